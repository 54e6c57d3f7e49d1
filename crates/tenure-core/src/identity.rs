//! The name of a member.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use uuid::Uuid;

/// The identity of one process: `<scope>-<hostname>-<pid>-<uuid4>`. Cheap to clone.
///
/// Scope and host name may contain hyphens, so an identity is read from the right: the UUID, the
/// pid, and what is left is [`Identity::place`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

/// Why something cannot be an identity.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// The scope, or what says the place (an instance or the host's name), is empty.
    #[error("the {field} of an identity is empty; give it at least one character")]
    Empty {
        /// `scope` or `hostname`.
        field: &'static str,
    },
    /// A control character.
    #[error("the {field} of an identity has a control character ({found:?}); remove it")]
    Control {
        /// `scope` or `hostname`.
        field: &'static str,
        /// The character.
        found: char,
    },
    /// The whole is too long.
    #[error("the identity would have {bytes} bytes; shorten the scope or the instance so that it has {max}", max = Identity::MAX_BYTES)]
    TooLong {
        /// How many it would have.
        bytes: usize,
    },
    /// A text that does not end in `-<pid>-<uuid4>`.
    #[error("{text:?} is no identity; the form is <scope>-<hostname>-<pid>-<uuid4>")]
    Malformed {
        /// What was given.
        text: String,
    },
}

/// Bytes of a hyphenated UUID.
const UUID_BYTES: usize = 36;

impl Identity {
    /// The most bytes an identity may have.
    pub const MAX_BYTES: usize = 255;

    /// Puts an identity together.
    ///
    /// # Errors
    /// [`IdentityError`] if scope or host name is empty or has control characters, or the whole is
    /// longer than 255 bytes.
    pub fn new(scope: &str, hostname: &str, pid: u32, uuid: Uuid) -> Result<Self, IdentityError> {
        for (field, value) in [("scope", scope), ("hostname", hostname)] {
            if value.is_empty() {
                return Err(IdentityError::Empty { field });
            }
            if let Some(found) = value.chars().find(|c| c.is_control()) {
                return Err(IdentityError::Control { field, found });
            }
        }
        let text = format!("{scope}-{hostname}-{pid}-{}", uuid.hyphenated());
        if text.len() > Self::MAX_BYTES {
            return Err(IdentityError::TooLong { bytes: text.len() });
        }
        Ok(Identity(text.into()))
    }

    /// The identity of this process, with a fresh UUID.
    ///
    /// # Errors
    /// [`IdentityError`] as [`Identity::new`], on account of the scope.
    #[cfg(feature = "boot-clock")]
    pub fn generate(scope: &str) -> Result<Self, IdentityError> {
        let name = rustix::system::uname();
        let hostname: String =
            name.nodename().to_string_lossy().chars().filter(|c| !c.is_control()).collect();
        let hostname = if hostname.is_empty() { "localhost" } else { &hostname };
        Identity::new(scope, hostname, std::process::id(), Uuid::new_v4())
    }

    /// The whole text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// What makes this process unlike every other.
    pub fn uuid(&self) -> Uuid {
        self.split().2
    }

    /// The process id, on its host.
    pub fn pid(&self) -> u32 {
        self.split().1
    }

    /// `<scope>-<hostname>`.
    pub fn place(&self) -> &str {
        self.split().0
    }

    /// The host name, for a caller that knows the scope; `None` if this is another scope's identity.
    pub fn hostname(&self, scope: &str) -> Option<&str> {
        self.place().strip_prefix(scope)?.strip_prefix('-')
    }

    fn split(&self) -> (&str, u32, Uuid) {
        split(&self.0).expect("checked when it was made")
    }
}

/// Reads an identity from the right.
fn split(text: &str) -> Option<(&str, u32, Uuid)> {
    let (rest, uuid) = text.split_at_checked(text.len().checked_sub(UUID_BYTES)?)?;
    let (place, pid) = rest.strip_suffix('-')?.rsplit_once('-')?;
    // Some hyphen must have a scope before it and a host name after it.
    let two_parts = place.char_indices().any(|(i, c)| c == '-' && 0 < i && i + 1 < place.len());
    let digits = pid.bytes().all(|b| b.is_ascii_digit());
    if !two_parts || !digits || place.chars().any(char::is_control) {
        return None;
    }
    Some((place, pid.parse().ok()?, Uuid::try_parse(uuid).ok()?))
}

impl FromStr for Identity {
    type Err = IdentityError;

    fn from_str(text: &str) -> Result<Self, IdentityError> {
        if text.len() > Self::MAX_BYTES {
            return Err(IdentityError::TooLong { bytes: text.len() });
        }
        if split(text).is_none() {
            return Err(IdentityError::Malformed { text: text.to_owned() });
        }
        Ok(Identity(text.into()))
    }
}

impl fmt::Display for Identity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl AsRef<str> for Identity {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl serde::Serialize for Identity {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&self.0)
    }
}

impl<'de> serde::Deserialize<'de> for Identity {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        String::deserialize(d)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "polkadot-5F-ip-10-0-0-1-4242-6f1c1f5e-3b1a-4c55-9d6e-0a1b2c3d4e5f";

    #[test]
    fn an_identity_is_read_from_the_right() {
        let id: Identity = ID.parse().unwrap();
        assert_eq!(id.pid(), 4242);
        assert_eq!(id.uuid().to_string(), "6f1c1f5e-3b1a-4c55-9d6e-0a1b2c3d4e5f");
        assert_eq!(id.place(), "polkadot-5F-ip-10-0-0-1");
        assert_eq!(id.hostname("polkadot-5F"), Some("ip-10-0-0-1"));
        assert_eq!(id.hostname("kusama"), None);
    }

    #[test]
    fn bad_identities_are_refused_with_the_form() {
        for bad in ["", "x", "a-b-1", &ID[1..].replace("4242", "42x2"), &ID[ID.len() - 42..]] {
            let told = bad.parse::<Identity>().unwrap_err();
            assert_eq!(told, IdentityError::Malformed { text: bad.to_owned() });
        }
        let nil = Uuid::nil();
        assert_eq!(Identity::new("", "h", 1, nil), Err(IdentityError::Empty { field: "scope" }));
        assert_eq!(Identity::new("s", "", 1, nil), Err(IdentityError::Empty { field: "hostname" }));
        assert!(matches!(
            Identity::new("s\n", "h", 1, nil),
            Err(IdentityError::Control { field: "scope", .. })
        ));
        assert_eq!(
            Identity::new(&"s".repeat(215), "h", 1, nil),
            Err(IdentityError::TooLong { bytes: 256 })
        );
    }

    #[cfg(feature = "boot-clock")]
    #[test]
    fn generated_identities_name_this_process_and_differ() {
        let id = Identity::generate("test").unwrap();
        assert_eq!(id.pid(), std::process::id());
        assert_ne!(id, Identity::generate("test").unwrap());
    }

    proptest! {
        #[test]
        fn every_identity_survives_its_text(scope in "[^\\p{Cc}]{1,30}", host in "[^\\p{Cc}]{1,20}", pid: u32, uuid: u128) {
            let id = Identity::new(&scope, &host, pid, Uuid::from_u128(uuid)).unwrap();
            let back: Identity = id.as_str().parse().unwrap();
            prop_assert_eq!((back.pid(), back.uuid().as_u128()), (pid, uuid));
            prop_assert_eq!(back.hostname(&scope), Some(host.as_str()));
        }
    }
}
