//! The signing account, and what signs for it.

use std::fmt;
use std::str::FromStr;

use async_trait::async_trait;
use bytes::Bytes;

use crate::chain::Head;
use crate::status::{Hash, unhex};

/// The signing account, as its chain writes it: 20 bytes on Ethereum, 32 on most Substrate chains.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AccountId(Vec<u8>);

impl AccountId {
    /// The longest account id in bytes: the keys in a notification must fit into its 8,000 bytes.
    pub const MAX_LEN: usize = 64;

    /// From the bytes, as the chain writes them. Only their number is checked.
    ///
    /// # Errors
    /// [`MalformedAccount`] if there are none, or more than [`Self::MAX_LEN`].
    pub fn new(bytes: impl Into<Vec<u8>>) -> Result<Self, MalformedAccount> {
        let bytes = bytes.into();
        if bytes.is_empty() || bytes.len() > Self::MAX_LEN {
            return Err(MalformedAccount);
        }
        Ok(AccountId(bytes))
    }

    /// The bytes, as the chain writes them.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "0x{}", hex::encode(&self.0))
    }
}

impl fmt::Debug for AccountId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for AccountId {
    type Err = MalformedAccount;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        unhex(text).map_or(Err(MalformedAccount), AccountId::new)
    }
}

/// The text or the bytes are not an account id. As text it is hex, with or without `0x`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("an account id is 1 to 64 bytes in hex; pass the account's full address")]
pub struct MalformedAccount;

/// What is to be signed.
#[derive(Debug, Clone)]
#[allow(missing_docs, reason = "the names say it")]
pub struct Unsigned<'a> {
    pub nonce: u64,
    /// The tip on top of the chain's own fee, in the unit of
    /// [`ServiceOptions::tip`](crate::ServiceOptions::tip).
    pub tip: u128,
    /// The call in the chain's encoding; `None` is a no-op.
    pub call: Option<&'a [u8]>,
    /// The chain now: fees, and where mortality begins.
    pub head: &'a Head,
    /// The bytes this one replaces. A pool takes the new ones only if they pay enough more.
    pub replaces: Option<&'a [u8]>,
}

/// What was signed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Signed {
    /// The bytes to submit.
    pub raw: Bytes,
    /// Their hash, as the chain computes it.
    pub hash: Hash,
    /// The last block it is valid in, if it is mortal.
    pub valid_until: Option<u64>,
    /// The tip that the bytes carry, if the signer knows it: at a cap it may be less than was asked for.
    /// Without it, the bytes are read.
    pub tip: Option<u128>,
    /// The most it pays for each unit of work, tip and the chain's own fee together, if it has such a
    /// bound.
    pub bid: Option<u128>,
}

/// Holds the account's key. An implementation never prints it.
#[async_trait]
pub trait Signer: Send + Sync + 'static {
    /// The account it signs for.
    fn account(&self) -> &AccountId;

    /// What it is called in messages. Default: `the signer`.
    fn name(&self) -> &str {
        "the signer"
    }

    /// Signs exactly what is asked: this nonce, this call, and no more than the tip. Signing the same input
    /// twice need not give the same bytes. The future is dropped when it takes longer than
    /// [`ServiceOptions::sign`](crate::ServiceOptions::sign), and when this node stops leading.
    ///
    /// # Errors
    /// [`SignError`]; only [`SignError::Unavailable`] and [`SignError::TooDear`] are worth a retry. A new
    /// request is then refused with [`SendError::Sign`](crate::SendError::Sign); an accepted one is tried
    /// again.
    async fn sign(&self, unsigned: Unsigned<'_>) -> Result<Signed, SignError>;
}

/// Nothing was signed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SignError {
    /// The call's bytes are not a call of this chain. The caller's fault; no retry helps. The text says what
    /// would be one.
    #[error("malformed call: {0}")]
    Malformed(String),
    /// The signer cannot sign now: a device, a remote key service, a fee it could not learn. A retry may help;
    /// the text says what to check.
    #[error("it cannot be signed now: {0}")]
    Unavailable(String),
    /// The key could not be read, or does not fit the chain.
    #[error("no usable key: {0}")]
    Key(String),
    /// The signer signed something else than it was asked to. Nothing was sent.
    #[error("the signer signed something else: {0}; nothing was sent, mend the signer")]
    Mismatch(String),
    /// It would cost more than the account pays. A retry helps once the chain asks for less.
    #[error("it would cost {cost}, and at most {cap} is paid; raise --max-fee, or try again later")]
    TooDear {
        /// Fee and tip, in the chain's smallest unit.
        cost: u128,
        /// The cap, in the same.
        cap: u128,
    },
}

/// How long a pipe may take to give a key.
#[cfg(any(feature = "ethereum", feature = "substrate"))]
const PIPE: std::time::Duration = std::time::Duration::from_secs(10);

/// The text of a file that holds a key.
///
/// A pipe (`<(vault read …)`) gives it once, and within ten seconds. It blocks until then; call it before
/// the runtime has other work, or on a thread that may block.
///
/// # Errors
/// [`SignError::Key`] if it cannot be read, may be read by others, or is a pipe that gives nothing.
#[cfg(any(feature = "ethereum", feature = "substrate"))]
pub fn read_key_file(path: &std::path::Path) -> Result<String, SignError> {
    read_within(path, PIPE)
}

#[cfg(any(feature = "ethereum", feature = "substrate"))]
fn read_within(path: &std::path::Path, limit: std::time::Duration) -> Result<String, SignError> {
    refuse_public_file(path)?;
    // Already the opening of a pipe without a writer waits, and nothing ends that: a thread does it.
    let (reply, answer) = std::sync::mpsc::channel();
    let file = path.to_owned();
    std::thread::spawn(move || reply.send(std::fs::read_to_string(file)));
    let failed = |why: &dyn fmt::Display| {
        SignError::Key(format!("{}: {why}; name a file with the key", path.display()))
    };
    match answer.recv_timeout(limit) {
        Ok(read) => read.map_err(|error| failed(&error)),
        Err(_) => Err(failed(&format_args!("nothing came from it within {limit:?}"))),
    }
}

/// A key that other users can read is not used.
///
/// The rule for private keys of the database's connection: private, or owned by root and readable by a
/// group at most. A pipe (`<(vault read …)`) has no bits that matter.
#[cfg(any(feature = "ethereum", feature = "substrate"))]
fn refuse_public_file(path: &std::path::Path) -> Result<(), SignError> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        if let Ok(metadata) = std::fs::metadata(path).as_ref()
            && metadata.is_file()
        {
            let forbidden = if metadata.uid() == 0 { 0o027 } else { 0o077 };
            if metadata.mode() & forbidden != 0 {
                let path = path.display();
                let why = format!("{path} may be read by other users; chmod 600 it");
                return Err(SignError::Key(why));
            }
        }
    }
    Ok(())
}

#[cfg(all(test, unix, any(feature = "ethereum", feature = "substrate")))]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pipe_gives_a_key_or_is_given_up() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("runs");
        assert!(made.success());
        let error = read_within(&path, Duration::from_millis(20)).expect_err("no writer");
        assert!(error.to_string().contains("nothing came"), "{error}");
    }
}
