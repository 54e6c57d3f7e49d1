//! The schema `tenure`: its files, and the grants that a login role needs.

use tenure_connect::migrate::Schema;
use tenure_connect::sql::identifier;

/// The files, applied once, in order, by the member that comes first.
pub const SCHEMA: Schema = Schema {
    name: "tenure",
    // "tenure" in ASCII, with a tail.
    key: 0x74_65_6e_75_72_65_00_01,
    files: tenure_connect::migrations![
        "../sql", 1 "tables", 2 "seat", 3 "watch", 4 "fence", 5 "views", 6 "operate",
    ],
};

/// The version that this library speaks.
pub const VERSION: i32 = SCHEMA.version();

/// The grants a login role needs to take part, as SQL text for the schema's owner to run.
pub fn privileges_sql(role: &str) -> String {
    include_str!("../sql/privileges.sql").replace("{role}", &identifier(role))
}

/// All migrations as one script, safe to run again: for a tool of your own that applies SQL.
pub fn script() -> String {
    SCHEMA.script()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_count_up_from_one_without_a_gap() {
        for (index, migration) in SCHEMA.files.iter().enumerate() {
            assert_eq!(migration.version, i32::try_from(index).unwrap() + 1);
        }
    }

    #[test]
    fn a_role_name_cannot_break_out_of_the_grants() {
        let sql = privileges_sql("x\"; drop schema tenure; --");
        assert!(sql.contains("to \"x\"\"; drop schema tenure; --\";"));
    }
}
