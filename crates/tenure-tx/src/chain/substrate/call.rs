//! A call, as callers write it: SCALE bytes, or pallet, call and arguments by name.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::metadata::Runtime;
use super::value::{self, Misfit};
use crate::account::SignError;

/// A call by its names. It is encoded with the metadata of the runtime that it is signed for, also when
/// it is signed anew after an upgrade.
///
/// ```
/// # use tenure_tx::chain::substrate::SubstrateCall;
/// let call: SubstrateCall =
///     serde_json::from_str(r#"{"pallet":"System","call":"remark","args":{"remark":"0x676d"}}"#).unwrap();
/// assert_eq!(call.pallet, "System");
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SubstrateCall {
    /// The pallet's name in the runtime.
    pub pallet: String,
    /// The call's name in the pallet.
    pub call: String,
    /// Its arguments by name; absent if it has none.
    #[serde(default)]
    pub args: Value,
}

impl SubstrateCall {
    /// The bytes for [`SendRequest::call`](crate::SendRequest::call), as a
    /// [`SubstrateSigner`](super::SubstrateSigner) reads them.
    #[must_use]
    pub fn encode(&self) -> bytes::Bytes {
        serde_json::to_vec(self).map_or_else(|_| bytes::Bytes::new(), bytes::Bytes::from)
    }
}

/// Whether these are a call's names. A pallet may have the number of the brace.
pub(super) fn is_named(given: &[u8]) -> bool {
    given.first() == Some(&b'{') && serde_json::from_slice::<SubstrateCall>(given).is_ok()
}

impl Runtime {
    /// A call as SCALE, from either form; nothing is a remark of nothing.
    pub(super) fn call_of(&self, given: Option<&[u8]>) -> Result<Vec<u8>, SignError> {
        let Some(given) = given else {
            let call = "remark".to_owned();
            let args = json!({"remark": "0x"});
            return self.encode_call(&SubstrateCall { pallet: "System".to_owned(), call, args });
        };
        if given.first() == Some(&b'{') {
            let named = serde_json::from_slice(given).map_err(|error| {
                SignError::Malformed(format!(
                    "{error}, expected {{\"pallet\":\"System\",\"call\":\"remark\",\"args\":{{…}}}}"
                ))
            });
            match named {
                Ok(named) => return self.encode_call(&named),
                // A pallet may have the number of the brace.
                Err(error) if self.check_call(given).is_err() => return Err(error),
                Err(_) => {}
            }
        }
        self.check_call(given)?;
        Ok(given.to_vec())
    }

    /// Encodes a call by its names.
    ///
    /// # Errors
    /// [`SignError::Malformed`], with the argument's place.
    pub fn encode_call(&self, call: &SubstrateCall) -> Result<Vec<u8>, SignError> {
        let named = json!({&call.pallet: {&call.call: &call.args}});
        let mut bytes = Vec::new();
        let malformed = |misfit: Misfit| SignError::Malformed(misfit.to_string());
        value::encode(&self.types, self.call, &named, &mut bytes).map_err(malformed)?;
        Ok(bytes)
    }
}
