//! The simulated worlds of the elections: the product's own machines under a clock, a network and a
//! disk of the simulation's own, with faults, and with mistakes planted on purpose.
//!
//! Nothing here is part of the product, and the product knows nothing of it: a mistake is put into a
//! collaborator (a wrapped consensus, keys that believe everything, altered messages, a disk that
//! lies), never into the code that is tested. The seeds that must catch a mistake are kept in the
//! folder `seeds`.

pub mod election;
pub mod gossip;
pub mod linear;
