//! Text that becomes SQL.
//!
//! A seat sends each statement as one simple-query message, because a session that has received
//! Parse or Bind without Sync is not idle for the server, and then the server-enforced lease does
//! not run. So values travel as literals, and they all pass through [`literal`].

use std::time::Duration;

use serde::Serialize;

/// A value as an SQL string literal.
///
/// Sound only with `standard_conforming_strings = on`: the caller's session must have set it. A
/// NUL cannot be part of any PostgreSQL text; it would end the message early, so it is replaced.
pub fn literal(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('\'');
    for c in text.chars() {
        match c {
            '\'' => out.push_str("''"),
            '\0' => out.push('\u{fffd}'),
            other => out.push(other),
        }
    }
    out.push('\'');
    out
}

/// A value as a `jsonb` literal.
///
/// # Panics
/// If the value cannot be JSON: a map whose keys are not text.
pub fn json(value: &impl Serialize) -> String {
    let text = serde_json::to_string(value).expect("our own records have string keys only");
    format!("{}::jsonb", literal(&text))
}

/// A name as an SQL identifier.
pub fn identifier(name: &str) -> String {
    format!("\"{}\"", name.replace('\0', "\u{fffd}").replace('"', "\"\""))
}

/// What a session of ours pins, whatever the login role's or the database's defaults are.
///
/// `idle_session_timeout` is the server's half of the lease. It does not run inside a transaction, a
/// statement, or a write to a client that does not read: the other timeouts end those.
pub fn settings(idle: Duration, statement: Duration, check: Duration) -> String {
    format!(
        "set standard_conforming_strings = on; \
         set client_min_messages = warning; \
         set search_path = pg_catalog; \
         set default_transaction_isolation = 'read committed'; \
         set default_transaction_read_only = off; \
         set default_transaction_deferrable = off; \
         set synchronous_commit = on; \
         set idle_session_timeout = {idle}; \
         set idle_in_transaction_session_timeout = {idle}; \
         set statement_timeout = {statement}; \
         set lock_timeout = {statement}; \
         set client_connection_check_interval = {check}; \
         set tcp_user_timeout = {idle}; \
         set tcp_keepalives_idle = 1; \
         set tcp_keepalives_interval = 1; \
         set tcp_keepalives_count = 3; \
         set jit = off; \
         select set_config(name, '0', false) from pg_settings where name = 'transaction_timeout'",
        idle = idle.as_millis(),
        statement = statement.as_millis(),
        check = check.as_millis().max(1),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Reads a literal back the way the server's lexer does.
    fn read(sql: &str) -> Option<(String, &str)> {
        let mut rest = sql.strip_prefix('\'')?.char_indices().peekable();
        let mut out = String::new();
        while let Some((at, c)) = rest.next() {
            if c != '\'' {
                out.push(c);
            } else if rest.next_if(|(_, next)| *next == '\'').is_some() {
                out.push('\'');
            } else {
                return Some((out, &sql[1 + at + 1..]));
            }
        }
        None
    }

    proptest! {
        #[test]
        fn a_literal_ends_where_it_should_and_says_what_it_was_given(text in any::<String>()) {
            let sql = literal(&text);
            let (back, rest) = read(&sql).expect("it is closed");
            prop_assert_eq!(rest, "");
            prop_assert_eq!(back, text.replace('\0', "\u{fffd}"));
        }

        #[test]
        fn an_identifier_cannot_break_out(text in any::<String>()) {
            let sql = identifier(&text);
            let inner = &sql[1..sql.len() - 1];
            prop_assert!(!inner.replace("\"\"", "").contains('"'));
        }
    }
}
