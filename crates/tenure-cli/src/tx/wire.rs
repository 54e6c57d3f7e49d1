//! What callers and nodes say to each other: one JSON object per line, over TCP.
//!
//! ```text
//! → {"op":"send","call":{"to":"0x…","value":"0x1","gas":21000},"request_id":"invoice-7"}
//! ← {"ok":{"nonce":12,"hash":"0x…","request_id":"invoice-7","state":"future","ended":false}}
//! ← {"error":{"code":"not_leader","message":"…","request_id":"invoice-7"}}
//! ```

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_tx::status::{Hash, State};

/// What a caller asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Question {
    Send {
        /// The call in the signer's encoding.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<Value>,
        /// Or signed bytes, in hex.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signed: Option<String>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    Cancel {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nonce: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    Status,
}

/// What a node answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reply {
    Ok(Value),
    Error {
        code: String,
        message: String,
        /// The request it is about: without it a caller could not ask again safely.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
}

impl Reply {
    pub(super) fn ok(value: &impl Serialize) -> Self {
        Reply::Ok(serde_json::to_value(value).unwrap_or_default())
    }

    pub(super) fn error(code: &str, message: impl Into<String>) -> Self {
        Reply::Error { code: code.to_owned(), message: message.into(), request_id: None }
    }
}

/// An accepted transaction.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Accepted {
    pub(super) nonce: u64,
    pub(super) hash: Hash,
    pub(super) request_id: String,
    /// Where it stands: a repeated request may have come far already.
    pub(super) state: State,
    pub(super) ended: bool,
    /// The node has no group: no other one finishes what it has accepted.
    #[serde(default)]
    pub(super) standalone: bool,
}
