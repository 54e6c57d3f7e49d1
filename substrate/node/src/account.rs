//! An account of either length: 32 bytes in SS58, or 20 bytes in hex.

use codec::{Decode, Encode, Error, Input, Output};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sp_core::crypto::{AccountId32, Ss58Codec};

/// Encoded as its bare bytes, as both runtimes expect.
#[derive(Clone, Debug, PartialEq, Eq, scale_info::TypeInfo)]
pub struct AnyAccount(Vec<u8>);

impl Encode for AnyAccount {
    fn encode_to<T: Output + ?Sized>(&self, dest: &mut T) {
        dest.write(&self.0);
    }
}

impl Decode for AnyAccount {
    fn decode<I: Input>(input: &mut I) -> Result<Self, Error> {
        Ok(Self(<[u8; 32]>::decode(input)?.to_vec()))
    }
}

impl std::fmt::Display for AnyAccount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?}", sp_core::hexdisplay::HexDisplay::from(&self.0))
    }
}

impl<'de> Deserialize<'de> for AnyAccount {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        if text.starts_with("0x") {
            let bytes = sp_core::bytes::from_hex(&text).map_err(serde::de::Error::custom)?;
            return Ok(Self(bytes));
        }
        let account = AccountId32::from_string(&text)
            .map_err(|error| serde::de::Error::custom(format!("{error:?}")))?;
        Ok(Self(<AccountId32 as AsRef<[u8]>>::as_ref(&account).to_vec()))
    }
}

impl Serialize for AnyAccount {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.to_string())
    }
}
