//! What ends a trouble with the database: time, an operator, or other input.
//!
//! One classification for everything that connects: a member that starts, its driver, and the
//! commands. A member waits out what passes by itself, and gives up at once on what does not.

/// What has to happen before the same attempt can succeed. A closed set, quickest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Remedy {
    /// It comes back by itself: a server that starts, stops, recovers, is full or out of reach, a
    /// cluster without a primary, a lock that another session holds for a while.
    Time,
    /// An operator has to change something on the server: a login, a certificate, a privilege.
    Operator,
    /// The caller has to say something else: a database that does not exist, a missing password.
    Input,
}

impl Remedy {
    /// What an error code of PostgreSQL asks for. An unknown code is a matter for an operator.
    ///
    /// | codes | remedy |
    /// |---|---|
    /// | 08 (connection; a pooler whose server is down), 40 (rolled back), 53 (resources) | time |
    /// | 55P03, 57014 (a lock or a server that is slow), 57P01 to 57P03, 57P05 (shutting down, starting) | time |
    /// | 25006 (read-only: a primary that has just become a standby) | time |
    /// | 3D000 (no such database) | input |
    /// | all others | operator |
    #[must_use]
    pub fn of_sqlstate(code: &str) -> Self {
        match code {
            "55P03" | "57014" | "57P01" | "57P02" | "57P03" | "57P05" | "25006" => Remedy::Time,
            "3D000" => Remedy::Input,
            code => match code.get(..2) {
                Some("08" | "40" | "53") => Remedy::Time,
                Some(_) | None => Remedy::Operator,
            },
        }
    }

    /// The remedy where any one of several servers would do: the quickest of theirs.
    #[must_use]
    pub fn any(of: impl IntoIterator<Item = Self>) -> Self {
        of.into_iter().min().unwrap_or(Remedy::Operator)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_passes_by_itself_is_told_from_what_does_not() {
        for code in [
            "57P01", "57P02", "57P03", "53300", "53200", "53100", "55P03", "57014", "40001",
            "40P01", "08006", "25006",
        ] {
            assert_eq!(Remedy::of_sqlstate(code), Remedy::Time, "{code}");
        }
        for code in ["28P01", "42501", "42P01", "57P04", "58030", "XX000", "", "ä"] {
            assert_eq!(Remedy::of_sqlstate(code), Remedy::Operator, "{code}");
        }
        assert_eq!(Remedy::of_sqlstate("3D000"), Remedy::Input);
    }

    #[test]
    fn of_several_servers_the_first_that_comes_back_is_enough() {
        assert_eq!(Remedy::any([Remedy::Input, Remedy::Time, Remedy::Operator]), Remedy::Time);
        assert_eq!(Remedy::any([Remedy::Input, Remedy::Operator]), Remedy::Operator);
        assert_eq!(Remedy::any([]), Remedy::Operator);
    }
}
