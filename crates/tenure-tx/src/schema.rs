//! The schema `tenure_tx`: numbered SQL files, applied once, in order, by the node that comes first.

use tenure_connect::migrate::Schema;

/// The files. A released file is never edited.
pub const SCHEMA: Schema = Schema {
    name: "tenure_tx",
    // "tenuretx" in ASCII.
    key: 0x74_65_6e_75_72_65_74_78,
    files: tenure_connect::migrations!["../sql", 1 "pending_transactions", 2 "writers"],
};

/// All migrations as one script, safe to run again: for operators with a migration tool of their own.
#[must_use]
pub fn script() -> String {
    SCHEMA.script()
}
