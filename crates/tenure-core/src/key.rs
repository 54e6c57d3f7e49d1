//! Names of roles, and the advisory lock keys they stand for.
//!
//! The key of a named role is the first 8 bytes, big-endian, of the SHA-256 of its UTF-8 name, as
//! a signed `bigint`. [`LockKey::sql_for_name`] gives one line of SQL that computes the same, so
//! any other program can contend for the same lock. Published test vectors:
//!
//! | name | key |
//! |---|---|
//! | `scheduler` | `-6905248152981328462` |
//! | `msp-leader` | `-4486929126544047771` |
//! | `storagehub:polkadot:5FHneW46xGXgs5mUiveU4sbTyGBzmstUspZC92UhjJM694ty:msp` | `-3082125020877034169` |
//! | `aufgabe-größe` | `2244942333873473668` |
//! | `役割` | `6394879015369282685` |

use std::fmt;
use std::str::FromStr;

use sha2::{Digest, Sha256};

/// The key of an advisory lock, in one of PostgreSQL's two key spaces (which never collide). A closed set: there is no
/// third.
///
/// In JSON it is what the database's functions take: `{"key": 1, "pair": false}`; a pair is packed as
/// `key1 << 32 | key2`.
#[derive(
    Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize,
)]
#[serde(from = "Packed", into = "Packed")]
pub enum LockKey {
    /// The `bigint` form.
    Big(i64),
    /// The `(int4, int4)` form.
    Pair(i32, i32),
}

/// A key as the database keeps it.
#[derive(serde::Serialize, serde::Deserialize)]
struct Packed {
    key: i64,
    pair: bool,
}

impl From<LockKey> for Packed {
    fn from(key: LockKey) -> Self {
        match key {
            LockKey::Big(key) => Packed { key, pair: false },
            LockKey::Pair(high, low) => {
                Packed { key: i64::from(high) << 32 | i64::from(low as u32), pair: true }
            }
        }
    }
}

impl From<Packed> for LockKey {
    fn from(Packed { key, pair }: Packed) -> Self {
        if pair { LockKey::Pair((key >> 32) as i32, key as i32) } else { LockKey::Big(key) }
    }
}

impl LockKey {
    /// The key of a named role.
    pub fn of_name(name: &str) -> Self {
        let digest: [u8; 32] = Sha256::digest(name.as_bytes()).into();
        let [a, b, c, d, e, f, g, h, ..] = digest;
        LockKey::Big(i64::from_be_bytes([a, b, c, d, e, f, g, h]))
    }

    /// One line of SQL that computes [`LockKey::of_name`] in the database.
    pub fn sql_for_name(name: &str) -> String {
        // Doubling quotes is enough only while standard_conforming_strings is on; E'' with both
        // quotes and backslashes doubled means the same under either setting.
        let quoted = name.replace('\\', "\\\\").replace('\'', "''");
        format!(
            "select ('x' || left(encode(sha256(convert_to(E'{quoted}', 'UTF8')), 'hex'), 16))\
             ::bit(64)::bigint"
        )
    }

    /// What goes between the parentheses of an advisory lock function: `123` or `1, 2`, typed so
    /// that the server can only pick the right form.
    pub fn args(self) -> String {
        match self {
            LockKey::Big(key) => format!("'{key}'::bigint"),
            LockKey::Pair(a, b) => format!("'{a}'::int4, '{b}'::int4"),
        }
    }

    /// How `pg_locks` shows this key: `(classid, objid, objsubid)`.
    pub fn pg_locks_columns(self) -> (u32, u32, i16) {
        match self {
            LockKey::Big(key) => {
                let bits = key as u64;
                ((bits >> 32) as u32, bits as u32, 1)
            }
            LockKey::Pair(a, b) => (a as u32, b as u32, 2),
        }
    }
}

impl fmt::Display for LockKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LockKey::Big(key) => write!(f, "{key}"),
            LockKey::Pair(a, b) => write!(f, "{a},{b}"),
        }
    }
}

/// A text that is no lock key.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
#[error(
    "{text:?} is not a lock key; write a 64-bit integer (-42, 0x2a) or two 32-bit ones (1,100)"
)]
pub struct KeyError {
    pub text: String,
}

impl FromStr for LockKey {
    type Err = KeyError;

    /// Accepts a decimal `bigint`, `0x` and up to 16 hex digits (the bit pattern), or `key1,key2`.
    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bad = || KeyError { text: text.to_owned() };
        let trimmed = text.trim();
        if let Some((a, b)) = trimmed.split_once(',') {
            let half = |s: &str| s.trim().parse::<i32>().map_err(|_| bad());
            return Ok(LockKey::Pair(half(a)?, half(b)?));
        }
        if let Some(hex) = trimmed.strip_prefix("0x").or_else(|| trimmed.strip_prefix("0X")) {
            if hex.starts_with('+') {
                return Err(bad());
            }
            return u64::from_str_radix(hex, 16)
                .map(|bits| LockKey::Big(bits as i64))
                .map_err(|_| bad());
        }
        trimmed.parse().map(LockKey::Big).map_err(|_| bad())
    }
}

/// The name of a role: 1 to 200 bytes of UTF-8 without control characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RoleName(std::sync::Arc<str>);

/// Why a text cannot be the name of a role.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs, reason = "the names say it")]
pub enum RoleNameError {
    /// Nothing was given.
    #[error("the role name is empty; give it 1 to {max} bytes", max = RoleName::MAX_BYTES)]
    Empty,
    /// More bytes than a name may have.
    #[error("the role name has {bytes} bytes; shorten it to {max}", max = RoleName::MAX_BYTES)]
    TooLong { bytes: usize },
    /// A control character.
    #[error("the role name has a control character ({found:?}) at byte {at}; remove it")]
    Control { found: char, at: usize },
}

impl RoleName {
    /// The most bytes a name may have: it fits a btree entry and a log line.
    pub const MAX_BYTES: usize = 200;

    /// Checks a name.
    ///
    /// # Errors
    /// [`RoleNameError`] if it is empty, too long or has control characters (NUL among them).
    pub fn new(name: &str) -> Result<Self, RoleNameError> {
        if name.is_empty() {
            return Err(RoleNameError::Empty);
        }
        if name.len() > Self::MAX_BYTES {
            return Err(RoleNameError::TooLong { bytes: name.len() });
        }
        if let Some((at, found)) = name.char_indices().find(|(_, c)| c.is_control()) {
            return Err(RoleNameError::Control { found, at });
        }
        Ok(RoleName(name.into()))
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The lock key that this name stands for.
    pub fn key(&self) -> LockKey {
        LockKey::of_name(&self.0)
    }
}

impl fmt::Display for RoleName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A map by names can be asked with a text.
impl std::borrow::Borrow<str> for RoleName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl AsRef<str> for RoleName {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl FromStr for RoleName {
    type Err = RoleNameError;

    fn from_str(name: &str) -> Result<Self, RoleNameError> {
        RoleName::new(name)
    }
}

impl serde::Serialize for RoleName {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for RoleName {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let name = String::deserialize(d)?;
        RoleName::new(&name).map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn published_test_vectors_hold() {
        let page = include_str!("key.rs");
        let rows = page.lines().filter_map(|line| {
            let (name, key) =
                line.strip_prefix("//! | `")?.strip_suffix("` |")?.split_once("` | `")?;
            Some((name, key.parse::<LockKey>().unwrap()))
        });
        let mut count = 0;
        for (name, key) in rows {
            assert_eq!(LockKey::of_name(name), key, "{name}");
            count += 1;
        }
        assert_eq!(count, 5);
    }

    #[test]
    fn keys_are_read_in_every_documented_form() {
        let read = |s: &str| s.parse::<LockKey>();
        assert_eq!(read("-42"), Ok(LockKey::Big(-42)));
        assert_eq!(read("0xffffffffffffffff"), Ok(LockKey::Big(-1)));
        assert_eq!(read("0x2A"), Ok(LockKey::Big(42)));
        assert_eq!(read("1, -100"), Ok(LockKey::Pair(1, -100)));
        for bad in ["", "x", "0x", "0x+1", "1,2,3", "1,", "2147483648,0", "9223372036854775808"] {
            assert_eq!(read(bad), Err(KeyError { text: bad.to_owned() }), "{bad:?}");
        }
    }

    #[test]
    fn the_smallest_key_is_still_a_bigint_in_sql() {
        // `-9223372036854775808` unquoted is a numeric, for which there is no lock function.
        assert_eq!(LockKey::Big(i64::MIN).args(), "'-9223372036854775808'::bigint");
        assert_eq!(LockKey::Pair(1, -2).args(), "'1'::int4, '-2'::int4");
    }

    #[test]
    fn pg_locks_columns_split_a_key_as_the_server_does() {
        assert_eq!(LockKey::Big(0x1_0000_0002).pg_locks_columns(), (1, 2, 1));
        assert_eq!(LockKey::Big(-1).pg_locks_columns(), (u32::MAX, u32::MAX, 1));
        assert_eq!(LockKey::Pair(-1, 7).pg_locks_columns(), (u32::MAX, 7, 2));
    }

    #[test]
    fn a_name_with_quotes_stays_one_literal() {
        let sql = LockKey::sql_for_name("a'b\\c");
        assert!(sql.contains("E'a''b\\\\c'"), "{sql}");
    }

    #[test]
    fn bad_role_names_are_told_apart() {
        assert_eq!(RoleName::new(""), Err(RoleNameError::Empty));
        assert_eq!(RoleName::new(&"é".repeat(101)), Err(RoleNameError::TooLong { bytes: 202 }));
        assert_eq!(RoleName::new("a\0b"), Err(RoleNameError::Control { found: '\0', at: 1 }));
        assert_eq!(RoleName::new("é\n"), Err(RoleNameError::Control { found: '\n', at: 2 }));
        assert!(RoleName::new(&"é".repeat(100)).is_ok());
    }

    proptest! {
        #[test]
        fn a_key_survives_its_text(big: i64, a: i32, b: i32) {
            for key in [LockKey::Big(big), LockKey::Pair(a, b)] {
                prop_assert_eq!(key.to_string().parse(), Ok(key));
            }
            prop_assert_eq!(format!("{:#x}", big as u64).parse(), Ok(LockKey::Big(big)));
        }
    }
}
