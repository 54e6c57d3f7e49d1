//! Why a call failed. Most receipts do not say: the call is repeated on the block before its own, as
//! nearly as a node can, and what the node says then is the reason. An end waits for its reason as long as
//! one request may take, and no longer; the endpoints share that time.

use alloy_json_rpc::ErrorPayload;
use alloy_primitives::{B256, U64, hex};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout};

use super::TransportError;
use super::rpc::{Call, Rpc};
use crate::chain::Receipt;
use crate::status::Hash;

/// The longest reason that is kept.
const LONGEST: usize = 200;

/// Solidity's `Error(string)` and `Panic(uint256)`.
const ERROR: [u8; 4] = [0x08, 0xc3, 0x79, 0xa0];
const PANIC: [u8; 4] = [0x4e, 0x48, 0x7b, 0x71];

/// What is told where no node says why.
const UNKNOWN: &str = "the call failed; the node gives no reason";
/// What is told where none was asked in time.
const NOT_ASKED: &str = "the call failed; no node gave the reason in time";

/// A transaction with its receipt.
pub(super) type Told<'a> = (Hash, &'a mut Receipt);

/// Whether a call failed, and its receipt does not say why.
pub(super) fn is_unexplained(receipt: &Receipt) -> bool {
    receipt.success == Some(false) && receipt.reason.is_none()
}

/// Finds out why calls failed, where their receipts do not say.
pub(super) async fn explain(rpc: &Rpc, told: impl IntoIterator<Item = Told<'_>>) {
    let mut told: Vec<Told<'_>> = told.into_iter().collect();
    told.retain(|(_, receipt)| is_unexplained(receipt));
    if told.is_empty() {
        return;
    }
    let until = Instant::now() + rpc.timeout;
    let (order, mut why) = (rpc.order(), UNKNOWN);
    for (index, others) in order.iter().zip((0..order.len()).rev()) {
        // One endpoint that is silent leaves the others their share of the time.
        let share = until.saturating_duration_since(Instant::now()) / (others as u32 + 1);
        let asked = async {
            let _turn = rpc.endpoints[*index].explains.lock().await;
            let Ok(batch) = rpc.batch(*index).await else { return };
            // Of an endpoint that takes no batches some are explained when the time is over.
            for some in told.chunks_mut(batch) {
                if repeat(rpc, *index, some).await.is_err() {
                    break;
                }
            }
        };
        if timeout(share, asked).await.is_err() {
            why = NOT_ASKED;
        }
        told.retain(|(_, receipt)| is_unexplained(receipt));
        if told.is_empty() {
            return;
        }
    }
    for (_, receipt) in told.into_iter().filter(|(_, receipt)| is_unexplained(receipt)) {
        receipt.reason = Some(why.to_owned());
    }
}

/// Repeats these calls at one endpoint.
async fn repeat(rpc: &Rpc, index: usize, told: &mut [Told<'_>]) -> Result<(), TransportError> {
    let by_hash = |(hash, _): &Told<'_>| ("eth_getTransactionByHash", json!([B256::from(hash.0)]));
    let calls: Vec<Call> = told.iter().map(by_hash).collect();
    let found = rpc.put(index, &calls).await?;
    let (mut receipts, mut calls) = (Vec::new(), Vec::<Call>::new());
    for ((_, receipt), tx) in told.iter_mut().zip(found) {
        let before = receipt.number.and_then(|number| number.checked_sub(1));
        let (Ok(tx @ Value::Object(_)), Some(before)) = (tx, before) else { continue };
        let call = json!({
            "from": tx["from"], "to": tx["to"], "value": tx["value"], "data": tx["input"],
            "gas": tx["gas"],
        });
        calls.push(("eth_call", json!([call, U64::from(before)])));
        receipts.push(receipt);
    }
    for (receipt, answer) in receipts.into_iter().zip(rpc.put(index, &calls).await?) {
        receipt.reason = match answer {
            Err(refused) => refused.as_error_resp().and_then(reason_of),
            // What came before it in its block made the difference.
            Ok(_) => Some(UNKNOWN.to_owned()),
        };
    }
    Ok(())
}

/// What a node says of a call that fails. Another answer, as that it has not the state, is no reason.
fn reason_of(said: &ErrorPayload) -> Option<String> {
    let data = said.data.as_ref().and_then(|data| serde_json::from_str::<Value>(data.get()).ok());
    let data = data.as_ref().and_then(Value::as_str);
    let told = data.map(|text| text.trim_start_matches("Reverted ")).and_then(reason_in);
    let failed = ["revert", "out of gas", "opcode", "jump", "stack"];
    let word = said.message.to_ascii_lowercase();
    let message = || failed.iter().any(|one| word.contains(one)).then(|| short(&said.message));
    told.or_else(message)
}

/// The reason in what a call returned, in hex.
pub(super) fn reason_in(text: &str) -> Option<String> {
    let bytes = hex::decode(text).ok().filter(|bytes| bytes.len() >= 4)?;
    let (selector, rest) = bytes.split_at(4);
    // A number of 32 bytes, of which only small ones make sense here.
    let number = |at: usize| {
        let word = rest.get(at..at + 32)?;
        let (high, low) = word.split_at(24);
        let low = u64::from_be_bytes(low.try_into().ok()?);
        high.iter().all(|byte| *byte == 0).then_some(low)
    };
    let text = || {
        let length = usize::try_from(number(32)?).ok()?;
        let text = rest.get(64..64usize.checked_add(length)?)?;
        Some(String::from_utf8_lossy(text).into_owned())
    };
    let known = match selector {
        _ if selector == ERROR => text(),
        _ if selector == PANIC => number(0).map(|code| format!("panic {code:#x}")),
        _ => None,
    };
    let known = known.map(|text| short(&text)).filter(|text| !text.is_empty());
    Some(known.unwrap_or_else(|| short(&format!("the error {}", hex::encode_prefixed(&bytes)))))
}

/// Without what a terminal would take for an order, and not endless.
fn short(text: &str) -> String {
    let shown = |c: char| if c.is_control() { ' ' } else { c };
    let text: String = text.chars().take(LONGEST).map(shown).collect();
    // A node that could not read a reason leaves the place behind its colon empty.
    text.trim().trim_end_matches(':').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_reason_is_what_the_contract_said() {
        let word = |number: u64| format!("{number:064x}");
        let said = format!("0x08c379a0{}{}{:0<64}", word(32), word(8), hex::encode("too late"));
        assert_eq!(reason_in(&said).as_deref(), Some("too late"));
        let panic = format!("0x4e487b71{}", word(0x11));
        assert_eq!(reason_in(&panic).as_deref(), Some("panic 0x11"));
        assert_eq!(reason_in("0xdeadbeef").as_deref(), Some("the error 0xdeadbeef"));
        // Cut short, of an absurd length, or without a text.
        for odd in [
            format!("0x08c379a0{}", word(32)),
            format!("0x08c379a0{}{}", word(32), word(u64::MAX)),
            format!("0x08c379a0{}{}", word(32), word(0)),
        ] {
            assert!(reason_in(&odd).is_some_and(|reason| reason.starts_with("the error 0x08c3")));
        }
        assert_eq!(reason_in("no hex"), None);
        assert_eq!(reason_in("0x"), None);
    }

    #[test]
    fn an_answer_that_is_about_something_else_is_no_reason() {
        let said = |text: &str| serde_json::from_str::<ErrorPayload>(text).expect("an error");
        let lost = said(r#"{"code":-32000,"message":"missing trie node 1a2b"}"#);
        assert_eq!(reason_of(&lost), None);
        let plain = said(r#"{"code":-32000,"message":"execution reverted: closed"}"#);
        assert_eq!(reason_of(&plain).as_deref(), Some("execution reverted: closed"));
        let bare = said(r#"{"code":-32000,"message":"execution reverted: \u0000\u0001 "}"#);
        assert_eq!(reason_of(&bare).as_deref(), Some("execution reverted"));
        let gas = said(r#"{"code":-32000,"message":"out of gas"}"#);
        assert_eq!(reason_of(&gas).as_deref(), Some("out of gas"));
        let data =
            said(r#"{"code":3,"message":"execution reverted","data":"Reverted 0xdeadbeef"}"#);
        assert_eq!(reason_of(&data).as_deref(), Some("the error 0xdeadbeef"));
    }
}
