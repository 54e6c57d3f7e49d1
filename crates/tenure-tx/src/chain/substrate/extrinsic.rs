//! Extrinsics of version 4: what is signed, how it is laid out, and how one is read.
//!
//! Pure. A signature covers the call, what the runtime's extensions put into the extrinsic, and what
//! they only sign: versions, the first block, and the block in which a mortal one is born.

use parity_scale_codec::{Compact, Decode as _, Encode as _};

use super::key::{Key, Scheme, verifies};
use super::metadata::{Address, Runtime, RuntimeError};
use super::value::{self, Misfit};
use super::{compact_length, extrinsic_hash};
use crate::account::SignError;
use crate::chain::Block;
use crate::status::Hash;

/// Version 4, signed.
const SIGNED: u8 = 0x84;

/// A payload that is longer is signed as its hash.
const LONG: usize = 256;

/// How long a mortal extrinsic lives.
///
/// In blocks, a power of two from 4 to 4,096: above that the block of its birth could no longer be
/// told exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Period(u64);

impl Period {
    /// So many blocks, raised to the next power of two; below 4 it is 4, above 4,096 it is 4,096.
    #[must_use]
    pub fn new(blocks: u64) -> Self {
        Period(blocks.clamp(4, 4096).next_power_of_two())
    }

    /// How many blocks it is valid for.
    #[must_use]
    pub fn blocks(self) -> u64 {
        self.0
    }
}

impl Default for Period {
    fn default() -> Self {
        Period(64)
    }
}

/// From when and for how long an extrinsic is valid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Era {
    pub(super) period: Period,
    /// Its phase within the period: which blocks it may be born in.
    phase: u64,
}

impl Era {
    pub(super) fn born(period: Period, number: u64) -> Self {
        Era { period, phase: number % period.0 }
    }

    fn encode(self) -> [u8; 2] {
        let low = u16::try_from(self.period.0.trailing_zeros().saturating_sub(1)).unwrap_or(15);
        let phase = u16::try_from(self.phase).unwrap_or_default();
        (low.clamp(1, 15) | phase << 4).to_le_bytes()
    }

    /// Reads one; `None` is immortal.
    fn decode(bytes: &mut &[u8]) -> Result<Option<Self>, Misread> {
        let (&first, rest) = bytes.split_first().ok_or(Misread)?;
        *bytes = rest;
        if first == 0 {
            return Ok(None);
        }
        let (&second, rest) = bytes.split_first().ok_or(Misread)?;
        *bytes = rest;
        let both = u64::from(u16::from_le_bytes([first, second]));
        let period = 2u64 << (both % 16);
        let quantum = (period >> 12).max(1);
        let phase = (both >> 4).checked_mul(quantum).ok_or(Misread)?;
        if period < 4 || phase >= period {
            return Err(Misread);
        }
        Ok(Some(Era { period: Period(period), phase }))
    }

    /// The block it counts as born in, if it is looked at in this block.
    pub(super) fn birth(self, current: u64) -> u64 {
        (current.max(self.phase) - self.phase) / self.period.0 * self.period.0 + self.phase
    }
}

/// What besides the call is chosen for one extrinsic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Terms {
    pub(super) nonce: u64,
    pub(super) tip: u128,
    /// The period, and the block it is born in; without them it is immortal.
    pub(super) mortal: Option<(Period, Block)>,
}

/// What the extensions contribute.
struct Extra {
    inside: Vec<u8>,
    beside: Vec<u8>,
}

/// The bytes are not an extrinsic of this runtime.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Misread;

impl From<Misfit> for Misread {
    fn from(_: Misfit) -> Self {
        Misread
    }
}

/// A signed extrinsic, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extrinsic<'a> {
    pub(super) account: &'a [u8],
    pub(super) nonce: Option<u64>,
    pub(super) tip: Option<u128>,
    pub(super) era: Option<Era>,
    scheme: Option<Scheme>,
    signature: &'a [u8],
    inside: &'a [u8],
    pub(super) call: &'a [u8],
}

impl Runtime {
    fn extra(&self, terms: &Terms) -> Result<Extra, RuntimeError> {
        let (mut inside, mut beside) = (Vec::new(), Vec::new());
        for extension in &self.extensions {
            match extension.name.as_str() {
                "CheckSpecVersion" => self.version.spec.encode_to(&mut beside),
                "CheckTxVersion" => self.version.transaction.encode_to(&mut beside),
                "CheckGenesis" => beside.extend(self.genesis.0),
                "CheckMortality" | "CheckEra" => match terms.mortal {
                    None => {
                        inside.push(0);
                        beside.extend(self.genesis.0);
                    }
                    Some((period, birth)) => {
                        inside.extend(Era::born(period, birth.number).encode());
                        beside.extend(birth.hash.0);
                    }
                },
                "CheckNonce" => Compact(terms.nonce).encode_to(&mut inside),
                "ChargeTransactionPayment" => Compact(terms.tip).encode_to(&mut inside),
                "ChargeAssetTxPayment" => {
                    Compact(terms.tip).encode_to(&mut inside);
                    // No asset: the chain's own.
                    inside.push(0);
                }
                "CheckMetadataHash" => {
                    // Its disabled mode, and no hash.
                    inside.push(0);
                    beside.push(0);
                }
                _ if self.is_empty(extension.inside) && self.is_empty(extension.beside) => {}
                unknown => return Err(RuntimeError::Extension(unknown.to_owned())),
            }
        }
        Ok(Extra { inside, beside })
    }

    /// What a signature of that call covers.
    pub(super) fn payload(&self, call: &[u8], terms: &Terms) -> Result<Vec<u8>, RuntimeError> {
        let extra = self.extra(terms)?;
        Ok(covered(call, &extra.inside, &extra.beside))
    }

    /// Signs an encoded call.
    pub(super) fn sign(&self, call: &[u8], terms: &Terms, key: &Key) -> Result<Vec<u8>, SignError> {
        let refused = |error: RuntimeError| SignError::Key(error.to_string());
        let tag = self.signature_tag(key.scheme()).map_err(refused)?;
        let extra = self.extra(terms).map_err(refused)?;
        let payload = covered(call, &extra.inside, &extra.beside);
        let signature = key.sign(&payload)?;
        let mut body = vec![SIGNED];
        if let Address::Multi(index) = self.address {
            body.push(index);
        }
        body.extend(key.account().as_bytes());
        body.extend(tag);
        body.extend(signature);
        body.extend(extra.inside);
        body.extend(call);
        let length = u32::try_from(body.len())
            .map_err(|_| SignError::Malformed("the call is too long; split it".to_owned()))?;
        let mut raw = Compact(length).encode();
        raw.extend(body);
        Ok(raw)
    }

    /// Reads a signed extrinsic, to its last byte.
    pub(super) fn parse<'a>(&self, raw: &'a [u8]) -> Result<Extrinsic<'a>, Misread> {
        if compact_length(raw) != Some(raw.len()) {
            return Err(Misread);
        }
        let mut rest = raw;
        Compact::<u32>::decode(&mut rest).map_err(|_| Misread)?;
        let version = take(&mut rest, 1)?[0];
        if version != SIGNED {
            return Err(Misread);
        }
        if let Address::Multi(index) = self.address
            && take(&mut rest, 1)?[0] != index
        {
            return Err(Misread);
        }
        let account = take(&mut rest, self.account_len)?;
        let whole = rest;
        value::skip(&self.types, self.signature, &mut rest)?;
        let signature = &whole[..whole.len() - rest.len()];
        let (scheme, signature) = self.split_signature(signature);
        let (mut nonce, mut tip, mut era) = (None, None, None);
        let extended = rest;
        for extension in &self.extensions {
            let mut own = rest;
            value::skip(&self.types, extension.inside, &mut rest)?;
            match extension.name.as_str() {
                "CheckMortality" | "CheckEra" => era = Era::decode(&mut own)?,
                "CheckNonce" => {
                    nonce = Some(Compact::<u64>::decode(&mut own).map_err(|_| Misread)?.0);
                }
                "ChargeTransactionPayment" | "ChargeAssetTxPayment" => {
                    tip = Some(Compact::<u128>::decode(&mut own).map_err(|_| Misread)?.0);
                }
                _ => {}
            }
        }
        let inside = &extended[..extended.len() - rest.len()];
        let call = rest;
        value::skip(&self.types, self.call, &mut rest)?;
        if !rest.is_empty() {
            return Err(Misread);
        }
        Ok(Extrinsic { account, nonce, tip, era, scheme, signature, inside, call })
    }

    /// Nonce and tip of a signed extrinsic, if it is one of this runtime.
    #[must_use]
    pub fn nonce_and_tip(&self, raw: &[u8]) -> Option<(u64, u128)> {
        let read = self.parse(raw).ok()?;
        Some((read.nonce?, read.tip?))
    }

    fn split_signature<'a>(&self, signature: &'a [u8]) -> (Option<Scheme>, &'a [u8]) {
        for scheme in [Scheme::Sr25519, Scheme::Ecdsa, Scheme::Ethereum] {
            match self.signature_tag(scheme) {
                Ok(Some(tag)) if signature.first() == Some(&tag) => {
                    return (Some(scheme), &signature[1..]);
                }
                Ok(None) => return (Some(scheme), signature),
                Ok(Some(_)) | Err(_) => {}
            }
        }
        (None, signature)
    }

    /// Whether an extrinsic was signed for this runtime and a birth in that block.
    pub(super) fn was_signed(&self, extrinsic: &Extrinsic<'_>, birth: Block) -> bool {
        let mortal = extrinsic.era.map(|era| (era.period, birth));
        let terms = Terms { nonce: 0, tip: 0, mortal };
        let (Some(scheme), Ok(extra)) = (extrinsic.scheme, self.extra(&terms)) else {
            return false;
        };
        let payload = covered(extrinsic.call, extrinsic.inside, &extra.beside);
        verifies(scheme, extrinsic.account, extrinsic.signature, &payload)
    }

    /// Whether the bytes are a call of this runtime, to the last one.
    pub(super) fn check_call(&self, call: &[u8]) -> Result<(), SignError> {
        let mut rest = call;
        let walked = value::skip(&self.types, self.call, &mut rest);
        let why = match walked {
            Ok(()) if rest.is_empty() => return Ok(()),
            Ok(()) => format!("{} bytes follow the call", rest.len()),
            Err(misfit) => misfit.to_string(),
        };
        Err(SignError::Malformed(format!(
            "not a call of this runtime: {why}; encode it with this chain's metadata, or give its pallet, \
             name and arguments"
        )))
    }
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Misread> {
    let (taken, rest) = bytes.split_at_checked(count).ok_or(Misread)?;
    *bytes = rest;
    Ok(taken)
}

fn covered(call: &[u8], inside: &[u8], beside: &[u8]) -> Vec<u8> {
    let payload = [call, inside, beside].concat();
    if payload.len() > LONG { extrinsic_hash(&payload).0.to_vec() } else { payload }
}

/// A block that an extrinsic may have been born in.
pub(super) fn block(number: u64, hash: Hash) -> Block {
    Block { number, hash }
}
