//! The identity of a node: an ed25519 public key, and the means to sign with it and to check others.

use std::borrow::Cow;
use std::fmt;

use ed25519_dalek::{Signer as _, SigningKey, VerifyingKey};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The identity of a node, an operator or a client: its ed25519 public key. `Display` shows the first 4 bytes,
/// [`PeerId::to_hex`] all 32.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PeerId(pub [u8; 32]);

/// For people and programs the whole key in hexadecimal, between nodes its bytes.
impl Serialize for PeerId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.serialize_str(&self.to_hex())
        } else {
            self.0.serialize(serializer)
        }
    }
}

impl<'de> Deserialize<'de> for PeerId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = <Cow<'_, str>>::deserialize(deserializer)?;
            Self::from_hex(&text).ok_or_else(|| D::Error::custom("not 64 hexadecimal digits"))
        } else {
            <[u8; 32]>::deserialize(deserializer).map(Self)
        }
    }
}

impl PeerId {
    /// The first eight bytes as a number: the name under which consensus knows the node.
    #[must_use]
    pub fn short(&self) -> u64 {
        u64::from_be_bytes(self.0[..8].try_into().expect("eight of thirty-two bytes"))
    }

    /// The rank that breaks ties: a hash, so that no node is favoured for the look of its key.
    #[must_use]
    pub fn rank(&self) -> u64 {
        // One multiplication round of splitmix over the key's words: uniform, cheap, and no secret.
        self.0.chunks_exact(8).fold(0x9e37_79b9_7f4a_7c15, |h, w| {
            let w = u64::from_le_bytes(w.try_into().expect("chunks of eight"));
            let mut z: u64 = h ^ w;
            z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            z ^ (z >> 31)
        })
    }

    /// The whole key in hexadecimal.
    #[must_use]
    pub fn to_hex(&self) -> String {
        hex::encode(self.0)
    }

    /// Reads what [`PeerId::to_hex`] wrote; `None` if it is something else than 64 hexadecimal digits.
    #[must_use]
    pub fn from_hex(text: &str) -> Option<Self> {
        decode_hex(text).map(Self)
    }
}

/// Reads 32 bytes written as 64 hexadecimal digits.
#[doc(hidden)]
pub fn decode_hex(text: &str) -> Option<[u8; 32]> {
    let mut out = [0; 32];
    hex::decode_to_slice(text.trim(), &mut out).ok()?;
    Some(out)
}

impl fmt::Display for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0[..4]))
    }
}

impl fmt::Debug for PeerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An ed25519 signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Signature(#[serde(with = "serde_big_array::BigArray")] pub [u8; Self::LENGTH]);

impl Signature {
    /// Its bytes.
    pub const LENGTH: usize = 64;
    /// The place of a signature that is not made yet; it fits no message.
    pub const NONE: Self = Self([0; Self::LENGTH]);
}

/// Signs as one node, checks the signatures of all.
pub trait Keys: Send + 'static {
    /// The node these keys speak for.
    fn id(&self) -> PeerId;
    /// A signature over `message` in the name of [`Keys::id`].
    fn sign(&self, message: &[u8]) -> Signature;
    /// Whether `signature` is `signer`'s over `message`.
    fn verify(&self, signer: &PeerId, message: &[u8], signature: &Signature) -> bool;
}

/// An ed25519 key with its secret half, which `Debug` does not show. [`IdentityFolder`](crate::IdentityFolder)
/// keeps one on disk.
#[derive(Clone)]
pub struct Ed25519Keys(SigningKey);

impl Ed25519Keys {
    /// The key with these 32 secret bytes.
    #[must_use]
    pub fn from_secret(secret: &[u8; 32]) -> Self {
        Self(SigningKey::from_bytes(secret))
    }

    /// The secret bytes, to be stored where only the node's user can read them.
    #[must_use]
    pub fn secret(&self) -> [u8; 32] {
        self.0.to_bytes()
    }

    /// The public half: the identity that these keys prove.
    #[must_use]
    pub fn public(&self) -> PeerId {
        PeerId(self.0.verifying_key().to_bytes())
    }

    /// Fresh keys from the operating system's randomness.
    #[must_use]
    pub fn generate() -> Self {
        Self::from_secret(&rand::random())
    }
}

impl fmt::Debug for Ed25519Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The secret half is never shown.
        write!(f, "Ed25519Keys({})", self.id())
    }
}

impl Keys for Ed25519Keys {
    fn id(&self) -> PeerId {
        PeerId(self.0.verifying_key().to_bytes())
    }

    fn sign(&self, message: &[u8]) -> Signature {
        Signature(self.0.sign(message).to_bytes())
    }

    fn verify(&self, signer: &PeerId, message: &[u8], signature: &Signature) -> bool {
        let signature = ed25519_dalek::Signature::from_bytes(&signature.0);
        VerifyingKey::from_bytes(&signer.0)
            .is_ok_and(|key| key.verify_strict(message, &signature).is_ok())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_good_for_one_signer_and_one_message_only() {
        let (a, b) = (Ed25519Keys::generate(), Ed25519Keys::generate());
        let sig = a.sign(b"hello");
        assert!(b.verify(&a.id(), b"hello", &sig));
        assert!(!b.verify(&a.id(), b"hellO", &sig));
        assert!(!b.verify(&b.id(), b"hello", &sig));
    }

    #[test]
    fn a_name_survives_hexadecimal_and_rubbish_does_not() {
        let id = Ed25519Keys::generate().id();
        assert_eq!(PeerId::from_hex(&id.to_hex()), Some(id));
        let json = serde_json::to_string(&id).expect("text");
        assert_eq!(serde_json::from_str::<PeerId>(&json).expect("just written"), id);
        assert_eq!(
            postcard::to_stdvec(&id).expect("bytes"),
            id.0,
            "between nodes: the bytes alone"
        );
        assert_eq!(PeerId::from_hex("abc"), None);
        assert_eq!(PeerId::from_hex(&"g".repeat(64)), None);
        assert_eq!(PeerId::from_hex(&"é".repeat(32)), None);
    }

    #[test]
    fn the_secret_is_not_shown() {
        let keys = Ed25519Keys::generate();
        let shown = format!("{keys:?}");
        assert!(!shown.contains(&format!("{:?}", keys.secret())) && shown.len() < 40);
    }
}
