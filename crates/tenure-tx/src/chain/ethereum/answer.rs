//! What a node's answer to `eth_sendRawTransaction` means.
//!
//! A closed table: the words each client has in its own source, and one meaning for each. The
//! client behind an address is not known, so all tables are searched, and the longest words that are
//! found decide. The code is not asked: clients use the same codes for different things.
//!
//! An answer that is in no table is *uncertain*: the node, or a gateway before it, may have taken
//! the bytes. It is never read as a refusal.

use alloy_json_rpc::{ErrorPayload, RpcError};
use alloy_transport::TransportErrorKind;
use serde::Deserialize;

use super::{TransportError, plainly};
use crate::chain::{Outcome, Shortfall};

/// What an answer means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Meaning {
    /// The node has these bytes.
    Known,
    /// The nonce is used.
    Outdated,
    /// A transaction with this nonce is there and pays as much or more.
    Outbid,
    /// It pays less than the node takes.
    BelowMinimum,
    /// It pays less than the block's own fee.
    BelowBaseFee,
    /// The account cannot pay for it.
    Unfunded,
    /// Not now.
    Busy,
    /// Not this, on its merits.
    Refused,
}

use Meaning::{BelowBaseFee, BelowMinimum, Busy, Known, Outbid, Outdated, Refused, Unfunded};

/// Words in lower case, and what they mean. Words that begin with `=` are the whole first word of
/// the answer, and words that begin with `^` are its beginning, because they mean something else
/// inside a sentence.
type Table = &'static [(&'static str, Meaning)];

const GETH: Table = &[
    ("already known", Known),
    ("nonce too low", Outdated),
    ("nonce too high", Busy),
    ("nonce has max value", Refused),
    ("replacement transaction underpriced", Outbid),
    ("transaction underpriced", BelowMinimum),
    ("transaction gas price below minimum", BelowMinimum),
    ("max fee per gas less than block base fee", BelowBaseFee),
    ("insufficient funds for gas * price + value", Unfunded),
    ("insufficient funds for transfer", Unfunded),
    ("txpool is full", Busy),
    ("account limit exceeded", Busy),
    ("address already reserved", Busy),
    ("authority already reserved", Busy),
    ("in-flight transaction limit reached", Busy),
    ("gapped-nonce tx from delegated accounts", Busy),
    ("future transaction tries to replace pending", Busy),
    ("invalid sender", Refused),
    ("exceeds block gas limit", Refused),
    ("transaction gas limit too high", Refused),
    ("gas uint64 overflow", Refused),
    ("intrinsic gas too low", Refused),
    ("insufficient gas for floor data gas cost", Refused),
    ("max priority fee per gas higher than", Refused),
    ("max fee per gas higher than 2^256-1", Refused),
    ("negative value", Refused),
    ("oversized data", Refused),
    ("max initcode size exceeded", Refused),
    ("sender not an eoa", Refused),
    ("transaction type not supported", Refused),
    ("invalid chain id for signer", Refused),
    ("exceeds the configured cap", Refused),
];

/// Since 2025 in geth's words; before in words of its own, behind which details follow.
const NETHERMIND: Table = &[
    ("already known", Known),
    ("=alreadyknown", Known),
    ("=oldnonce", Outdated),
    ("=noncegap", Busy),
    ("=noncetoofarinfuture", Busy),
    ("nonce too far in future", Busy),
    ("=replacementnotallowed", Outbid),
    ("=feetoolow", BelowMinimum),
    ("=feetoolowtocompete", BelowMinimum),
    ("=insufficientfunds", Unfunded),
    ("=pendingtxsofconflictingtype", Busy),
    ("pending transaction type conflict", Busy),
    ("delegation nonce gap", Busy),
    ("delegation authority has pending transaction", Busy),
    ("=syncing", Busy),
    ("node is syncing", Busy),
    ("=gaslimitexceeded", Refused),
    ("gas limit reached", Refused),
    ("=int256overflow", Refused),
    ("transaction cost overflow", Refused),
    // With the comma that this client puts before its details: "Invalid API key" and "Invalid response
    // from upstream" are a gateway's words, and say nothing of the bytes.
    ("^invalid, ", Refused),
    ("^transaction invalid,", Refused),
    ("=failedtoresolvesender", Refused),
    ("failed to recover sender", Refused),
    ("=senderiscontract", Refused),
    ("=notsupportedtxtype", Refused),
    ("unsupported transaction type", Refused),
    ("=maxtxsizeexceeded", Refused),
    ("transaction too large", Refused),
    ("gas below floor data cost", Refused),
    ("=invalidtxsignature", Refused),
    ("=invalidtxchainid", Refused),
    ("invalid rlp", Refused),
];

const BESU: Table = &[
    // "unknown transaction type" is another client's refusal.
    ("^known transaction", Known),
    ("nonce too low", Outdated),
    ("nonce too high", Busy),
    ("transaction nonce is too distant from current sender nonce", Busy),
    ("an invalid transaction with a lower nonce exists", Busy),
    ("replacement transaction underpriced", Outbid),
    ("gas price below configured minimum gas price", BelowMinimum),
    ("gas price below current base fee", BelowBaseFee),
    ("upfront cost exceeds account balance", Unfunded),
    ("initial sync is still in progress", Busy),
    ("transaction pool not enabled", Busy),
    ("invalid signature", Refused),
    ("intrinsic gas exceeds gas limit", Refused),
    ("transaction gas limit exceeds block gas limit", Refused),
    ("transaction gas limit cap exceeded", Refused),
    ("sender account not authorized to send transactions", Refused),
    ("wrong chainid", Refused),
    ("chainid not supported", Refused),
    ("chainid is required", Refused),
    ("transaction fee cap exceeded", Refused),
    ("max priority fee per gas exceeds max fee per gas", Refused),
    ("invalid transaction type", Refused),
    ("plugin has marked the transaction as invalid", Refused),
];

const ERIGON: Table = &[
    ("already known", Known),
    ("existing txn with same hash", Known),
    ("existing tx with same hash", Known),
    ("nonce too low", Outdated),
    (": mined", Outdated),
    ("nonce gap too large", Busy),
    ("queued sender dormant", Busy),
    ("replacement transaction underpriced", Outbid),
    ("replaced by transaction with higher tip", Outbid),
    ("could not replace existing tx", Outbid),
    ("underpriced", BelowMinimum),
    ("fee too low", BelowMinimum),
    ("insufficient funds", Unfunded),
    ("spammer", Busy),
    ("pending sub-pool is full", Busy),
    ("basefee sub-pool is full", Busy),
    ("queued sub-pool is full", Busy),
    ("oversized data", Refused),
    ("invalid sender", Refused),
    ("gasuintoverflow", Refused),
    ("intrinsicgas", Refused),
    ("rlptoolong", Refused),
    ("initcode too large", Refused),
    ("gas limit is too high", Refused),
    ("fork supporting this transaction type is not activated yet", Refused),
    ("invalid chain id", Refused),
];

const RETH: Table = &[
    ("already known", Known),
    ("already imported", Known),
    ("nonce too low", Outdated),
    ("nonce too high", Busy),
    ("nonce exceeds u64 limit", Refused),
    ("insufficient gas price to replace existing transaction", Outbid),
    ("replacement transaction underpriced", Outbid),
    ("transaction underpriced", BelowMinimum),
    ("below chain minimum", BelowMinimum),
    ("priority fee below minimum required priority fee", BelowMinimum),
    ("max fee per gas less than block base fee", BelowBaseFee),
    ("insufficient funds for gas * price + value", Unfunded),
    ("transaction overdraws from account", Unfunded),
    ("txpool is full", Busy),
    ("discarded outright due to pool size constraints", Busy),
    ("being identified as a spammer", Busy),
    ("conflicts with existing transaction", Busy),
    ("exceeds block's gas limit", Refused),
    ("exceeds maximum per-transaction gas limit", Refused),
    ("exceeds max transaction gas limit", Refused),
    ("exceeds max_init_code_size", Refused),
    ("gas limit too high", Refused),
    ("intrinsic gas too high", Refused),
    ("invalid transaction signature", Refused),
    ("failed to decode signed transaction", Refused),
    ("empty transaction data", Refused),
    ("sender is not an eoa", Refused),
    ("invalid chain id", Refused),
];

const ANVIL: Table = &[
    ("transaction already imported", Known),
    ("nonce too low", Outdated),
    ("nonce too high", Busy),
    ("replacement transaction underpriced", Outbid),
    ("insufficient gas price to replace existing transaction", Outbid),
    ("max fee per gas less than block base fee", BelowBaseFee),
    ("insufficient funds for gas * price + value", Unfunded),
    ("insufficient fee token balance", Unfunded),
    ("cyclic transaction detected", Busy),
    ("intrinsic gas too low", Refused),
    ("intrinsic gas too high", Refused),
    ("out of gas: gas required exceeds allowance", Refused),
    ("incompatible eip-155 transaction, signed for another chain", Refused),
    ("transaction gas limit is greater than the block gas limit", Refused),
    ("failed to decode transaction", Refused),
];

/// Also what Cosmos' own pool says, whose text may come in the answer's data.
const COSMOS_EVM: Table = &[
    ("already known", Known),
    ("already in mempool", Known),
    ("already in the mempool", Known),
    ("tx already exists in cache", Known),
    ("tx nonce is lower than account nonce", Outdated),
    ("tx nonce is higher than account nonce", Busy),
    ("invalid nonce", Busy),
    ("invalid sequence", Busy),
    ("replacement transaction underpriced", Outbid),
    ("transaction gas price below minimum", BelowMinimum),
    ("insufficient fee", BelowMinimum),
    ("insufficient funds", Unfunded),
    ("mempool is full", Busy),
    ("queue full", Busy),
    ("incorrect chain-id", Refused),
    ("signature verification failed", Refused),
    ("tx too large", Refused),
    ("out of gas", Refused),
];

/// A sequencer. One that is away, and a relay that reached none, are uncertain.
const NITRO: Table = &[
    ("already known", Known),
    ("nonce too low", Outdated),
    // It may wait in the sequencer's queue for the one before it.
    ("nonce too high", Busy),
    ("max fee per gas less than block base fee", BelowBaseFee),
    ("insufficient funds for gas * price + value", Unfunded),
    ("currently not accepting transactions due to expected surplus", Busy),
    ("intrinsic gas too low", Refused),
    ("l2message too long", Refused),
    ("transaction sender is not on the whitelist", Refused),
];

/// A node that has the bytes, in other words than those of the clients above.
const ANY_CLIENT: Table = &[
    ("alreadyknown", Known),
    ("already exist", Known),
    ("already in pool", Known),
    ("already in the pool", Known),
    ("already in cache", Known),
    ("already in the txpool", Known),
    ("already present", Known),
    ("already submitted", Known),
    ("already pending", Known),
    ("already been submitted", Known),
    ("already been imported", Known),
    ("already received", Known),
];

const TABLES: [Table; 9] =
    [GETH, NETHERMIND, BESU, ERIGON, RETH, ANVIL, COSMOS_EVM, NITRO, ANY_CLIENT];

fn meaning(text: &str) -> Option<Meaning> {
    let text = text.to_lowercase();
    let first = text.split([',', ':', ' ', '.']).next().unwrap_or_default();
    let found = |words: &str| match (words.strip_prefix('='), words.strip_prefix('^')) {
        (Some(word), _) => first == word,
        (None, Some(beginning)) => text.starts_with(beginning),
        (None, None) => text.contains(words),
    };
    let rows = TABLES.iter().copied().flatten().filter(|(words, _)| found(words));
    rows.max_by_key(|(words, _)| words.len()).map(|(_, meaning)| *meaning)
}

/// The least the node takes, if it says so.
fn minimum(text: &str) -> Option<u128> {
    let after = ["minimum needed ", "minimum required priority fee "];
    let at = after.iter().find_map(|words| text.find(words).map(|at| at + words.len()))?;
    let digits = text[at..].chars().take_while(char::is_ascii_digit).collect::<String>();
    digits.parse().ok()
}

/// The longest answer that is kept: a node's text goes into the table.
const MAX_TEXT: usize = 300;

fn bounded(text: &str) -> String {
    let text = super::without_addresses(text.to_owned());
    text.chars().filter(|c| !c.is_control()).take(MAX_TEXT).collect()
}

fn outcome_of_text(text: &str) -> Outcome {
    let said = bounded(text);
    match meaning(text) {
        Some(Known) => Outcome::AlreadyKnown,
        Some(Outdated) => Outcome::Outdated,
        Some(Outbid) => Outcome::Underpriced(Shortfall::Outbid, said),
        Some(BelowMinimum) => {
            Outcome::Underpriced(Shortfall::BelowMinimum { needed: minimum(text) }, said)
        }
        Some(BelowBaseFee) => Outcome::Underpriced(Shortfall::BelowBaseFee, said),
        Some(Unfunded) => Outcome::Unfunded(said),
        Some(Busy) => Outcome::Busy(said),
        Some(Refused) => Outcome::Refused(said),
        None => Outcome::Uncertain(said),
    }
}

fn outcome_of_answer(payload: &ErrorPayload) -> Outcome {
    // Some clients say what it is about only in the data, behind a general message.
    let data = payload.data.as_ref().map(|data| data.get()).filter(|data| data.starts_with('"'));
    match (outcome_of_text(&payload.message), data) {
        (Outcome::Uncertain(said), Some(data)) => match outcome_of_text(data.trim_matches('"')) {
            Outcome::Uncertain(_) => Outcome::Uncertain(said),
            known => known,
        },
        (outcome, _) => outcome,
    }
}

/// The answer in the body of an HTTP error.
#[derive(Deserialize)]
struct ErrorBody {
    error: ErrorPayload,
}

/// What a failed submission means.
pub(super) fn outcome_of(error: &TransportError) -> Outcome {
    if let Some(payload) = error.as_error_resp() {
        return outcome_of_answer(payload);
    }
    match error {
        RpcError::Transport(TransportErrorKind::HttpError(http)) => {
            if let Ok(body) = serde_json::from_str::<ErrorBody>(&http.body) {
                return outcome_of_answer(&body.error);
            }
            match http.status {
                // Sent back before it was read: no node behind this address ever sees it.
                413 => Outcome::Refused("too large for the node (HTTP 413)".to_owned()),
                // A gateway's own error may come after its node has taken the bytes.
                status => Outcome::Uncertain(format!("HTTP {status}")),
            }
        }
        other => Outcome::Uncertain(bounded(&plainly(other))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(code: i64, message: &str) -> Outcome {
        let payload = ErrorPayload { code, message: message.to_owned().into(), data: None };
        outcome_of_answer(&payload)
    }

    /// As each client's own source writes it, with what it puts behind.
    #[test]
    fn every_clients_words_mean_what_the_client_means() {
        let known = ["already known", "AlreadyKnown", "ALREADY_EXISTS: already known"];
        let known = known.into_iter().chain([
            "Known transaction",
            "transaction already imported",
            "[0xab]: already imported",
            "tx already in mempool",
            "INTERNAL_ERROR: existing txn with same hash",
        ]);
        for said in known {
            assert_eq!(answer(-32000, said), Outcome::AlreadyKnown, "{said}");
        }
        for said in [
            "nonce too low: next nonce 3, tx nonce 1",
            "OldNonce, Current nonce: 3, nonce of rejected tx: 1.",
            "Nonce too low",
            "NONCE_TOO_LOW: nonce too low",
            "tx nonce is lower than account nonce",
        ] {
            assert_eq!(answer(-32001, said), Outcome::Outdated, "{said}");
        }
        for said in [
            "replacement transaction underpriced",
            "ReplacementNotAllowed, existing tx pays more",
            "[0xab]: insufficient gas price to replace existing transaction",
            "INTERNAL_ERROR: could not replace existing tx",
        ] {
            let outcome = answer(-32000, said);
            assert!(matches!(outcome, Outcome::Underpriced(Shortfall::Outbid, _)), "{said}");
        }
        for said in [
            "insufficient funds for gas * price + value: balance 1, tx cost 2, overshot 1",
            "InsufficientFunds, Account balance: 0, cumulative cost: 42000",
            "Upfront cost exceeds account balance",
            "INTERNAL_ERROR: insufficient funds",
            "Insufficient funds for gas * price + value",
            "transaction overdraws from account, balance: 1, cost: 2",
            "insufficient funds for transfer",
        ] {
            for code in [-32000, -32003, -32004, -32010] {
                assert!(matches!(answer(code, said), Outcome::Unfunded(_)), "{code} {said}");
            }
        }
        for said in [
            "intrinsic gas too low: gas 20999, minimum needed 21000",
            "oversized data: transaction size 1500000, limit 131072",
            "Intrinsic gas exceeds gas limit",
            "MaxTxSizeExceeded, the limit is 131072",
            "invalid chain id for signer: have 1 want 5",
            "Invalid, the signature is malformed",
            "l2message too long",
        ] {
            assert!(matches!(answer(-32000, said), Outcome::Refused(_)), "{said}");
        }
        for said in ["txpool is full", "NonceGap, Future nonce.", "nonce too high", "Syncing"] {
            assert!(matches!(answer(-32000, said), Outcome::Busy(_)), "{said}");
        }
    }

    #[test]
    fn a_minimum_is_read_from_the_words_that_name_it() {
        let needed = |said| match answer(-32000, said) {
            Outcome::Underpriced(Shortfall::BelowMinimum { needed }, _) => needed,
            other => panic!("{said}: {other:?}"),
        };
        let geth = "transaction gas price below minimum: gas tip cap 0, minimum needed 25000000000";
        assert_eq!(needed(geth), Some(25_000_000_000));
        let reth = "transaction priority fee below minimum required priority fee 100";
        assert_eq!(needed(reth), Some(100));
        assert_eq!(needed("transaction underpriced"), None);
        assert_eq!(needed("FeeTooLow, the fee is too low"), None);
        assert_eq!(needed("Gas price below configured minimum gas price"), None);
        let base = answer(-32000, "max fee per gas less than block base fee: address 0x1");
        assert!(matches!(base, Outcome::Underpriced(Shortfall::BelowBaseFee, _)), "{base:?}");
    }

    #[test]
    fn what_no_table_has_is_uncertain_whatever_its_code() {
        for said in [
            "upstream request timed out",
            "internal error",
            "sequencer temporarily not available",
            "rate limit exceeded",
            "too many requests",
            "this request is invalid in some way",
            "Invalid API key",
            "Invalid response from upstream: context deadline exceeded",
            "invalid request",
            "transaction invalidated by the gateway's cache",
            "unknown transaction type",
            "",
        ] {
            for code in [-32000, -32003, -32005, -32010, -32602, -32603, 429] {
                assert!(matches!(answer(code, said), Outcome::Uncertain(_)), "{code} {said}");
            }
        }
    }

    #[test]
    fn the_words_may_stand_in_the_data() {
        let data = serde_json::value::to_raw_value("tx already exists in cache").expect("text");
        let message = "Internal error".to_owned().into();
        let payload = ErrorPayload { code: -32603, message, data: Some(data) };
        assert_eq!(outcome_of_answer(&payload), Outcome::AlreadyKnown);
    }

    #[test]
    fn http_errors_are_uncertain_except_a_body_that_is_too_large() {
        let http = |status, body: &str| {
            outcome_of(&TransportErrorKind::http_error(status, body.to_owned()))
        };
        for status in [400, 403, 404, 408, 429, 500, 502, 503, 504] {
            assert!(matches!(http(status, "<html>"), Outcome::Uncertain(_)), "{status}");
        }
        assert!(matches!(http(413, ""), Outcome::Refused(_)));
        let body = r#"{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"already known"}}"#;
        assert_eq!(http(400, body), Outcome::AlreadyKnown);
    }

    /// A row that another client's longer words would overrule says the wrong thing.
    #[test]
    fn no_clients_words_are_overruled_by_anothers() {
        for (words, wanted) in TABLES.iter().copied().flatten() {
            let said = words.trim_start_matches(['=', '^']);
            assert_eq!(meaning(said), Some(*wanted), "{said}");
            assert_eq!(said.to_lowercase(), said, "words are searched in lower case");
        }
    }

    #[test]
    fn a_long_answer_is_cut_and_holds_no_address() {
        let said = format!("cannot reach http://user:key@10.0.0.1:8545/v3/key {}", "x".repeat(999));
        let Outcome::Uncertain(kept) = answer(-32000, &said) else { panic!("uncertain") };
        assert!(kept.len() <= MAX_TEXT && !kept.contains("key"), "{kept}");
    }
}
