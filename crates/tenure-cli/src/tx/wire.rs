//! What callers and nodes say to each other: one JSON object per line, over TCP.
//!
//! ```text
//! → {"op":"send","request_id":"invoice-7","call":{"to":"0x…","value":"0x1","gas":21000},"deadline_ms":600000}
//! ← {"ok":{"nonce":12,"hash":"0x…","request_id":"invoice-7","state":"future","noop":false,"ended":false}}
//! → {"op":"wait","request_id":"invoice-7","within_ms":30000}
//! ← {"ok":{"nonce":12,…,"ended":true,"end":{"kind":"executed","hash":"0x…","block":"0x…","fee":"21000"}}}
//! → {"op":"cancel","request_id":"invoice-7"}
//! ← {"error":{"code":"not_leader","message":"…","request_id":"invoice-7"}}
//! ```

use serde::{Deserialize, Serialize};
use serde_json::Value;
use tenure_tx::service::Dropped;
use tenure_tx::status::{End, Hash, State};
use tenure_tx::store::StoredTransaction;

/// What a caller asks.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum Question {
    /// Only the leader takes it.
    Send {
        /// Written first: a line that is too long is answered with the id all the same.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
        /// The call in the signer's encoding.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        call: Option<Value>,
        /// Or signed bytes, in hex.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        signed: Option<String>,
        /// Give it up after so long, if it is in no block by then.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deadline_ms: Option<u64>,
    },
    /// Only the leader takes it.
    Cancel {
        #[serde(default, skip_serializing_if = "Option::is_none")]
        nonce: Option<u64>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        request_id: Option<String>,
    },
    /// What became of a request; any node answers, at its end or after so long.
    Wait {
        request_id: String,
        #[serde(default)]
        within_ms: u64,
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
        Reply::about(None, code, message)
    }

    /// An error about a request.
    pub(super) fn about(id: Option<String>, code: &str, message: impl Into<String>) -> Self {
        Reply::Error { code: code.to_owned(), message: message.into(), request_id: id }
    }
}

/// Where an accepted request stands.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Progress {
    pub(super) nonce: u64,
    pub(super) hash: Hash,
    pub(super) request_id: String,
    /// A repeated request may have come far already.
    pub(super) state: State,
    /// A no-op has taken the request's place.
    #[serde(default)]
    pub(super) noop: bool,
    pub(super) ended: bool,
    /// How it ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) end: Option<End>,
    /// The last answer of the chain's node that was not a yes, while it is open.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) answer: Option<String>,
    /// The end that was told first, if the chain has since proved another.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) corrected: Option<End>,
    /// The node has no group: no other one finishes what it has accepted.
    #[serde(default)]
    pub(super) standalone: bool,
}

impl Progress {
    /// As the table has it.
    pub(super) fn of(row: StoredTransaction, standalone: bool) -> Self {
        Progress {
            nonce: row.nonce,
            hash: row.hash,
            state: row.status.state(),
            request_id: row.request_id,
            noop: row.noop,
            ended: row.ended,
            end: row.note.end.map(|end| *end),
            answer: row.note.answer,
            corrected: row.note.corrected.map(|end| *end),
            standalone,
        }
    }
}

/// What an order to drop a request has done so far.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Drop {
    pub(super) nonce: u64,
    /// The request at that nonce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) request_id: Option<String>,
    #[serde(flatten)]
    pub(super) dropped: Dropped,
}
