//! Signs EIP-1559 transactions with a local key.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use alloy_consensus::{SignableTransaction as _, Transaction as _, TxEip1559, TxEnvelope};
use alloy_eips::eip2718::{Decodable2718 as _, Encodable2718 as _};
use alloy_primitives::{Address, Bytes as Data, TxKind, U256};
use alloy_signer::SignerSync as _;
use alloy_signer_local::PrivateKeySigner;
use async_trait::async_trait;
use serde::{Deserialize, Serialize};

use crate::account::{AccountId, SignError, Signed, Signer, Unsigned};
use crate::status::Hash;

/// A call, as callers encode it: JSON with hex fields.
///
/// ```
/// # use tenure_tx::chain::ethereum::EthereumCall;
/// let call: EthereumCall = serde_json::from_str(
///     r#"{"to":"0x00000000000000000000000000000000000000aa","value":"0x1","data":"0x","gas":21000}"#,
/// ).unwrap();
/// assert_eq!(call.gas, 21_000);
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EthereumCall {
    /// The receiver; absent creates a contract.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub to: Option<Address>,
    /// Wei to send; 0 if absent.
    #[serde(default)]
    pub value: U256,
    /// The input; empty if absent. A little less than 128 KiB at most.
    #[serde(default)]
    pub data: Data,
    /// The gas limit. A request with less than the call costs at least, or more than a block has, is refused
    /// as [`SignError::Malformed`].
    pub gas: u64,
}

impl EthereumCall {
    /// The bytes for [`SendRequest::call`](crate::SendRequest::call), as an [`EthereumSigner`] reads them.
    #[must_use]
    pub fn encode(&self) -> bytes::Bytes {
        serde_json::to_vec(self).map_or_else(|_| bytes::Bytes::new(), bytes::Bytes::from)
    }
}

/// The base fee as last seen, and the caps on what is paid. Cheap to clone; all clones see the same.
/// Take it from [`EthereumChain::fees`](super::EthereumChain::fees): a default one stays at zero, and
/// its bids cover the tip only.
#[derive(Debug, Clone, Default)]
pub struct Fees {
    base: Arc<Mutex<u128>>,
    /// The gas of a block as last seen; 0 if it is not known.
    block_gas: Arc<AtomicU64>,
    per_gas: Option<u128>,
    per_transaction: Option<u128>,
}

impl Fees {
    pub(super) fn with_caps(per_gas: Option<u128>, per_transaction: Option<u128>) -> Self {
        Fees { per_gas, per_transaction, ..Fees::default() }
    }

    pub(super) fn set_block_gas(&self, gas: u64) {
        self.block_gas.store(gas, Ordering::Relaxed);
    }

    pub(super) fn set_base(&self, fee: u128) {
        *self.base.lock().unwrap_or_else(PoisonError::into_inner) = fee;
    }

    fn base(&self) -> u128 {
        *self.base.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The most that a request pays for a unit of gas.
    pub(super) fn cap_per_gas(&self) -> Option<u128> {
        self.per_gas.map(below)
    }

    /// The most that a unit of gas may cost in a transaction with this gas limit. A request leaves a
    /// pool's step below the caps, so that a no-op can still take its place.
    fn cap(&self, gas: u64, noop: bool) -> u128 {
        let shared = self.per_transaction.map(|most| most / u128::from(gas.max(1)));
        let cap = self.per_gas.unwrap_or(u128::MAX).min(shared.unwrap_or(u128::MAX));
        if noop { cap } else { below(cap) }
    }
}

/// The most that [`outbid`] tops within the cap.
fn below(cap: u128) -> u128 {
    cap.saturating_sub(1) / 9 * 8
}

/// A local key that signs EIP-1559 transactions. It is never printed.
///
/// A first attempt bids twice the base fee plus the tip; a replacement with a higher tip bids at least an
/// eighth more than the attempt it replaces. One with the same tip gives the same bytes, unless the base fee
/// has outgrown the bid. Neither bids more than the caps of [`Fees`], and a request leaves a ninth of them
/// for the no-op that may have to take its place: where a pool would ask for more, the bytes stay as they
/// are.
#[derive(Clone)]
pub struct EthereumSigner {
    key: PrivateKeySigner,
    account: AccountId,
    chain_id: u64,
    fees: Fees,
}

impl std::fmt::Debug for EthereumSigner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EthereumSigner").field("account", &self.account).finish_non_exhaustive()
    }
}

impl EthereumSigner {
    /// A key from its 64 hex digits, with or without `0x`; `chain_id` is that of
    /// [`EthereumChain::chain_id`](super::EthereumChain::chain_id).
    ///
    /// # Errors
    /// [`SignError::Key`]; the message never holds the text.
    pub fn from_hex(key: &str, chain_id: u64, fees: Fees) -> Result<Self, SignError> {
        let key: PrivateKeySigner = key
            .trim()
            .parse()
            .map_err(|_| SignError::Key("expected 64 hex digits of a secp256k1 key".into()))?;
        let account = AccountId::new(key.address().as_slice())
            .map_err(|error| SignError::Key(error.to_string()))?;
        Ok(EthereumSigner { key, account, chain_id, fees })
    }

    /// A key from a file that holds its hex digits, and that other users cannot read. It blocks: a pipe for
    /// ten seconds at most.
    ///
    /// # Errors
    /// [`SignError::Key`] if the file cannot be read, may be read by others or holds no key.
    pub fn from_file(path: &Path, chain_id: u64, fees: Fees) -> Result<Self, SignError> {
        let text = crate::account::read_key_file(path)?;
        Self::from_hex(&text, chain_id, fees)
    }

    /// A key from an environment variable that holds its hex digits.
    ///
    /// # Errors
    /// [`SignError::Key`] if the variable is not set or holds no key.
    pub fn from_env(name: &str, chain_id: u64, fees: Fees) -> Result<Self, SignError> {
        let text = std::env::var(name).map_err(|_| {
            SignError::Key(format!(
                "the environment variable {name} is not set; set it, or name another"
            ))
        })?;
        Self::from_hex(&text, chain_id, fees)
    }
}

/// An eighth more than before: above the tenth that pools ask for.
fn outbid(old: u128) -> u128 {
    old.saturating_add(old / 8).saturating_add(1)
}

/// The largest input of a call: nodes take transactions of 128 KiB, and the rest needs some bytes.
const MAX_DATA: usize = 128 * 1024 - 512;

/// Whether a node can ever take a call: what is accepted must not block the account for ever. The gas
/// of a block is 0 if it is not known.
fn possible(call: &EthereumCall, block_gas: u64) -> Result<(), SignError> {
    if block_gas > 0 && call.gas > block_gas {
        let gas = call.gas;
        let why = format!("a gas limit of {gas} is above a block's {block_gas}; give less gas");
        return Err(SignError::Malformed(why));
    }
    let size = call.data.len();
    if size > MAX_DATA {
        let why = format!(
            "{size} bytes of data are more than the {MAX_DATA} that nodes take; split the call"
        );
        return Err(SignError::Malformed(why));
    }
    let zeros = call.data.iter().filter(|byte| **byte == 0).count();
    let data = (size - zeros).saturating_mul(16) + zeros.saturating_mul(4);
    let create = if call.to.is_none() { 32_000 } else { 0 };
    let least = 21_000 + create + u64::try_from(data).unwrap_or(u64::MAX);
    if call.gas < least {
        let gas = call.gas;
        let why = format!(
            "a gas limit of {gas} is below the {least} that it costs at least; give more gas"
        );
        return Err(SignError::Malformed(why));
    }
    Ok(())
}

#[async_trait]
impl Signer for EthereumSigner {
    fn account(&self) -> &AccountId {
        &self.account
    }

    async fn sign(&self, unsigned: Unsigned<'_>) -> Result<Signed, SignError> {
        let call = match unsigned.call {
            Some(bytes) => {
                serde_json::from_slice(bytes).map_err(|error| {
                    SignError::Malformed(format!(
                        "{error}, expected {{\"to\":\"0x…\",\"value\":\"0x1\",\"data\":\"0x\",\"gas\":21000}}"
                    ))
                })?
            }
            // The cheapest that uses the nonce: nothing, to oneself.
            None => EthereumCall {
                to: Some(self.key.address()),
                value: U256::ZERO,
                data: Data::new(),
                gas: 21_000,
            },
        };
        let (base, cap) = (self.fees.base(), self.fees.cap(call.gas, unsigned.call.is_none()));
        let mut priority = unsigned.tip.min(cap);
        let mut max = base.saturating_mul(2).saturating_add(priority).min(cap);
        if let Some(raw) = unsigned.replaces {
            let old = TxEnvelope::decode_2718_exact(raw).map_err(|error| {
                SignError::Malformed(format!("the replaced transaction cannot be read: {error}"))
            })?;
            let (old_priority, old_max) =
                (old.max_priority_fee_per_gas().unwrap_or(0), old.max_fee_per_gas());
            let outbids = outbid(old_max).max(outbid(old_priority)) <= cap;
            if priority > old_priority && outbids {
                priority = priority.max(outbid(old_priority));
                max = max.max(outbid(old_max));
            } else {
                // Signed anew, not outbid: how much is paid is the engine's to say, within its
                // bounds. The same fees give the same bytes, unless the base fee has outgrown them.
                priority = old_priority;
                if old_max >= base.saturating_add(priority).min(cap) {
                    max = old_max;
                }
            }
        }
        // Of a request only, and before it is accepted: no node would ever take it.
        if unsigned.call.is_some() && unsigned.replaces.is_none() {
            possible(&call, self.fees.block_gas.load(Ordering::Relaxed))?;
        }
        let bid = max.max(priority);
        let tx = TxEip1559 {
            chain_id: self.chain_id,
            nonce: unsigned.nonce,
            gas_limit: call.gas,
            max_fee_per_gas: bid,
            max_priority_fee_per_gas: priority,
            to: call.to.map_or(TxKind::Create, TxKind::Call),
            value: call.value,
            access_list: Default::default(),
            input: call.data,
        };
        let signature = self
            .key
            .sign_hash_sync(&tx.signature_hash())
            .map_err(|error| SignError::Unavailable(error.to_string()))?;
        let signed = TxEnvelope::from(tx.into_signed(signature));
        Ok(Signed {
            hash: Hash(signed.tx_hash().0),
            raw: signed.encoded_2718().into(),
            valid_until: None,
            tip: Some(priority),
            bid: Some(bid),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Head;

    const KEY: &str = "ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80";

    #[tokio::test]
    async fn a_replacement_outbids_both_fees_of_what_it_replaces() {
        let fees = Fees::default();
        fees.set_base(1_000);
        let signer = EthereumSigner::from_hex(KEY, 1, fees.clone()).expect("a key");
        let head = Head::default();
        let unsigned = Unsigned { nonce: 3, tip: 10, call: None, head: &head, replaces: None };
        let first = signer.sign(unsigned.clone()).await.expect("signs");
        // The base fee has fallen: the old bid still has to be topped.
        fees.set_base(1);
        let again = Unsigned { replaces: Some(&first.raw), tip: 11, ..unsigned };
        let second = signer.sign(again).await.expect("signs");
        let ((max1, tip1), (max2, tip2)) = (fee(&first.raw), fee(&second.raw));
        assert!(max2 * 10 >= max1 * 11 && tip2 * 10 >= tip1 * 11, "{max1}/{tip1} {max2}/{tip2}");
    }

    fn fee(raw: &[u8]) -> (u128, u128) {
        let tx = TxEnvelope::decode_2718_exact(raw).expect("ours");
        (tx.max_fee_per_gas(), tx.max_priority_fee_per_gas().expect("1559"))
    }

    #[tokio::test]
    async fn signing_anew_at_the_same_tip_never_pays_more() {
        let fees = Fees::default();
        fees.set_base(1_000);
        let signer = EthereumSigner::from_hex(KEY, 1, fees.clone()).expect("a key");
        let head = Head::default();
        let unsigned = Unsigned { nonce: 3, tip: 10, call: None, head: &head, replaces: None };
        let first = signer.sign(unsigned.clone()).await.expect("signs");
        let mut last = first.clone();
        for _ in 0..100 {
            let again = Unsigned { replaces: Some(&last.raw), ..unsigned.clone() };
            last = signer.sign(again).await.expect("signs");
        }
        assert_eq!(last, first, "the same bytes, so no further attempt");
        // A base fee that has outgrown the bid is followed, the tip is not touched.
        fees.set_base(5_000);
        let again = Unsigned { replaces: Some(&first.raw), ..unsigned };
        let risen = signer.sign(again).await.expect("signs");
        assert_eq!(fee(&risen.raw), (10_010, 10));
    }

    #[tokio::test]
    async fn nothing_is_ever_bid_above_the_caps() {
        let fees = Fees::with_caps(Some(1_500), None);
        fees.set_base(1_000);
        let signer = EthereumSigner::from_hex(KEY, 1, fees.clone()).expect("a key");
        let head = Head::default();
        let unsigned = Unsigned { nonce: 3, tip: 10, call: None, head: &head, replaces: None };
        let first = signer.sign(unsigned.clone()).await.expect("signs");
        assert_eq!((fee(&first.raw), first.bid), ((1_500, 10), Some(1_500)));
        // More cannot be bid: the same bytes, however high the base fee.
        fees.set_base(9_000);
        let again = Unsigned { replaces: Some(&first.raw), tip: 900, ..unsigned.clone() };
        assert_eq!(signer.sign(again).await.expect("signs"), first);
        // Of one transaction: 21,000 gas for 42,000,000 wei.
        let fees = Fees::with_caps(None, Some(42_000_000));
        fees.set_base(9_000);
        let signer = EthereumSigner::from_hex(KEY, 1, fees).expect("a key");
        let capped = signer.sign(unsigned).await.expect("signs");
        assert_eq!(fee(&capped.raw), (2_000, 10));
    }

    /// A gateway may call any price too low: the caps that hold without a word from the operator bound
    /// what it can cost.
    #[tokio::test]
    async fn a_nodes_word_alone_never_empties_the_account() {
        let options = super::super::EthereumOptions::default();
        let fees = Fees::with_caps(options.max_fee_per_gas, options.max_fee);
        fees.set_base(1_000_000_000);
        let signer = EthereumSigner::from_hex(KEY, 1, fees).expect("a key");
        let head = Head::default();
        let asked = 1_000_000_000_000_000;
        for gas in [21_000u64, 1_000_000] {
            let to = "0x00000000000000000000000000000000000000aa";
            let call = format!(r#"{{"gas":{gas},"to":"{to}"}}"#);
            let call = Some(call.as_bytes());
            let unsigned = Unsigned { nonce: 3, tip: asked, call, head: &head, replaces: None };
            let (max, tip) = fee(&signer.sign(unsigned).await.expect("signs").raw);
            assert!(tip <= max && max <= 50_000_000_000, "{tip} of {max}");
            assert!(max * u128::from(gas) <= 10_000_000_000_000_000, "{max} for {gas}");
        }
    }

    #[tokio::test]
    async fn a_no_op_outbids_a_request_that_is_at_its_cap() {
        let fees = Fees::with_caps(Some(50_000), None);
        fees.set_base(90_000);
        let signer = EthereumSigner::from_hex(KEY, 1, fees).expect("a key");
        let head = Head::default();
        let call = r#"{"gas":21000,"to":"0x00000000000000000000000000000000000000aa"}"#;
        let call = Some(call.as_bytes());
        let unsigned = Unsigned { nonce: 3, tip: 10, call, head: &head, replaces: None };
        let request = signer.sign(unsigned.clone()).await.expect("signs");
        let noop = Unsigned { call: None, tip: 12, replaces: Some(&request.raw), ..unsigned };
        let noop = signer.sign(noop).await.expect("signs");
        let ((max1, tip1), (max2, tip2)) = (fee(&request.raw), fee(&noop.raw));
        assert!(max2 * 10 >= max1 * 11 && tip2 * 10 >= tip1 * 11, "{max1}/{tip1} {max2}/{tip2}");
        assert!(max2 <= 50_000, "{max2}");
    }

    #[tokio::test]
    async fn a_call_that_no_node_can_take_is_never_accepted() {
        let signer = EthereumSigner::from_hex(KEY, 1, Fees::default()).expect("a key");
        let head = Head::default();
        signer.fees.set_block_gas(30_000_000);
        let high = r#"{"gas":30000001,"to":"0x00000000000000000000000000000000000000aa"}"#;
        let large = format!(r#"{{"gas":30000000,"data":"0x{}"}}"#, "ff".repeat(MAX_DATA + 1));
        for call in
            [r#"{"gas":20999,"to":"0x00000000000000000000000000000000000000aa"}"#, &large, high]
        {
            let call = Some(call.as_bytes());
            let unsigned = Unsigned { nonce: 0, tip: 0, call, head: &head, replaces: None };
            let refused = signer.sign(unsigned).await;
            assert!(matches!(refused, Err(SignError::Malformed(_))), "{refused:?}");
        }
    }

    #[tokio::test]
    async fn a_malformed_call_is_refused_and_the_key_is_never_shown() {
        let signer = EthereumSigner::from_hex(KEY, 1, Fees::default()).expect("a key");
        let head = Head::default();
        let call = Some(b"{\"gas\":1,\"surprise\":2}".as_slice());
        let unsigned = Unsigned { nonce: 0, tip: 0, call, head: &head, replaces: None };
        assert!(matches!(signer.sign(unsigned).await, Err(SignError::Malformed(_))));
        assert!(!format!("{signer:?}").contains(&KEY[..8]));
        let error =
            EthereumSigner::from_hex("ac0974secret", 1, Fees::default()).expect_err("short");
        assert!(!error.to_string().contains("secret"));
    }

    #[cfg(unix)]
    #[test]
    fn a_key_that_other_users_can_read_is_not_used() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("key");
        std::fs::write(&path, KEY).expect("written");
        for (mode, good) in [(0o644, false), (0o604, false), (0o600, true), (0o400, true)] {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).expect("set");
            let signer = EthereumSigner::from_file(&path, 1, Fees::default());
            assert_eq!(signer.is_ok(), good, "{mode:o}: {signer:?}");
            let error = signer.err().map(|error| error.to_string()).unwrap_or_default();
            assert_eq!(error.contains("chmod 600"), !good, "{error}");
        }
    }
}
