//! A gossip election and a replicated history that cannot diverge, for groups without a database.
