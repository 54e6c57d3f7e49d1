//! 20-byte accounts signed for with secp256k1 over keccak256, as Frontier's `fp-account`.
use alloc::{format, string::String};
use codec::{Decode, DecodeWithMemTracking, Encode, MaxEncodedLen};
use scale_info::TypeInfo;
use sp_core::ecdsa;
use sp_io::hashing::keccak_256;
use sp_runtime::traits::{IdentifyAccount, Lazy, Verify};

#[derive(
    Clone,
    Copy,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Encode,
    Decode,
    DecodeWithMemTracking,
    MaxEncodedLen,
    TypeInfo,
)]
pub struct AccountId20(pub [u8; 20]);

impl core::fmt::Display for AccountId20 {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        f.write_str("0x")?;
        self.0.iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
impl core::fmt::Debug for AccountId20 {
    fn fmt(&self, f: &mut core::fmt::Formatter) -> core::fmt::Result {
        core::fmt::Display::fmt(self, f)
    }
}
impl From<[u8; 20]> for AccountId20 {
    fn from(a: [u8; 20]) -> Self {
        Self(a)
    }
}
impl serde::Serialize for AccountId20 {
    fn serialize<S: serde::Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&format!("{self}"))
    }
}
impl<'de> serde::Deserialize<'de> for AccountId20 {
    fn deserialize<D: serde::Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let s = String::deserialize(d)?;
        let h = s.trim_start_matches("0x").as_bytes();
        let bad = || serde::de::Error::custom("not a 20-byte address");
        if h.len() != 40 {
            return Err(bad());
        }
        let n = |c: u8| (c as char).to_digit(16);
        let mut a = [0u8; 20];
        for (i, b) in a.iter_mut().enumerate() {
            let (x, y) = (n(h[2 * i]).ok_or_else(bad)?, n(h[2 * i + 1]).ok_or_else(bad)?);
            *b = (x * 16 + y) as u8;
        }
        Ok(Self(a))
    }
}

#[derive(
    Clone, PartialEq, Eq, Debug, Encode, Decode, DecodeWithMemTracking, MaxEncodedLen, TypeInfo,
)]
pub struct EthereumSignature(pub ecdsa::Signature);

#[derive(Clone, PartialEq, Eq, Debug, Encode, Decode, TypeInfo)]
pub struct EthereumSigner([u8; 20]);
impl IdentifyAccount for EthereumSigner {
    type AccountId = AccountId20;
    fn into_account(self) -> AccountId20 {
        AccountId20(self.0)
    }
}

impl Verify for EthereumSignature {
    type Signer = EthereumSigner;
    fn verify<L: Lazy<[u8]>>(&self, mut msg: L, signer: &AccountId20) -> bool {
        let m = keccak_256(msg.get());
        match sp_io::crypto::secp256k1_ecdsa_recover(self.0.as_ref(), &m) {
            Ok(pubkey) => keccak_256(&pubkey)[12..] == signer.0,
            Err(_) => false,
        }
    }
}
