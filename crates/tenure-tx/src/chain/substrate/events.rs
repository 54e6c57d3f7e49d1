//! What a block's events say of one of its extrinsics: whether its call succeeded, why not, and what
//! it cost.
//!
//! Pure. An event that cannot be read makes the answer unknown, never a yes.

use parity_scale_codec::{Compact, Decode as _};
use scale_info::TypeDef;

use super::metadata::Runtime;
use super::value::{self, Misfit};
use crate::chain::Receipt;

/// The storage key of a block's events: `twox128("System")` and `twox128("Events")`.
pub(super) const KEY: &str = "0x26aa394eea5630e07c48ae0c9558cef780d41e5e16056765bc8461851072c9d7";

impl Runtime {
    /// The receipt of the extrinsic at that place in its block, whose events these are.
    pub(super) fn receipt(&self, events: &[u8], place: u32, number: u64) -> Receipt {
        let mut receipt = Receipt { number: Some(number), ..Receipt::default() };
        // What was read before the unreadable is true all the same.
        let _ = self.read_events(events, place, &mut receipt);
        receipt
    }

    fn read_events(
        &self,
        mut bytes: &[u8],
        place: u32,
        receipt: &mut Receipt,
    ) -> Result<(), Misfit> {
        let Some(record) = self.events.and_then(|ty| self.item(ty)) else { return Ok(()) };
        let Some(TypeDef::Composite(record)) = self.types.resolve(record).map(|ty| &ty.type_def)
        else {
            return Ok(());
        };
        let Ok(Compact(count)) = Compact::<u32>::decode(&mut bytes) else { return Ok(()) };
        for _ in 0..count {
            let mut ours = false;
            for field in &record.fields {
                let own = bytes;
                value::skip(&self.types, field.ty.id, &mut bytes)?;
                match field.name.as_deref() {
                    Some("phase") => {
                        ours = own.first() == Some(&0)
                            && u32::decode(&mut &own[1..]).is_ok_and(|at| at == place);
                    }
                    Some("event") if ours => self.read_event(field.ty.id, own, receipt)?,
                    Some(_) | None => {}
                }
            }
        }
        Ok(())
    }

    fn item(&self, sequence: u32) -> Option<u32> {
        match &self.types.resolve(sequence)?.type_def {
            TypeDef::Sequence(sequence) => Some(sequence.type_param.id),
            // A list in a structure of its own.
            TypeDef::Composite(whole) => match &whole.fields[..] {
                [field] => self.item(field.ty.id),
                _ => None,
            },
            _ => None,
        }
    }

    fn read_event(&self, ty: u32, own: &[u8], receipt: &mut Receipt) -> Result<(), Misfit> {
        let [pallet, event, fields @ ..] = own else { return Ok(()) };
        let Some(pallet) = self.variant(ty, *pallet) else { return Ok(()) };
        let [inner] = &pallet.fields[..] else { return Ok(()) };
        let Some(event) = self.variant(inner.ty.id, *event) else { return Ok(()) };
        let mut fields: &[u8] = fields;
        match (pallet.name.as_str(), event.name.as_str()) {
            ("System", "ExtrinsicSuccess") => receipt.success = Some(true),
            ("System", "ExtrinsicFailed") => {
                receipt.success = Some(false);
                let error = event.fields.first();
                receipt.reason = error.and_then(|error| self.describe(error.ty.id, fields));
            }
            ("TransactionPayment", "TransactionFeePaid") => {
                for field in &event.fields {
                    let mut own = fields;
                    value::skip(&self.types, field.ty.id, &mut fields)?;
                    // The tip is in it.
                    if field.name.as_deref() == Some("actual_fee") {
                        receipt.fee = u128::decode(&mut own).ok();
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A dispatch error in the runtime's words: `Balances.InsufficientBalance`.
    fn describe(&self, ty: u32, bytes: &[u8]) -> Option<String> {
        let (&kind, inner) = bytes.split_first()?;
        let kind = self.variant(ty, kind)?;
        if kind.name == "Module" {
            let [pallet, error, ..] = inner else { return Some(kind.name.clone()) };
            let Some(pallet) = self.pallet(*pallet) else {
                return Some(format!("error {error} of pallet {pallet}"));
            };
            let known = pallet.errors.and_then(|errors| self.variant(errors, *error));
            return Some(match known {
                Some(known) => {
                    let why = known.docs.join(" ");
                    let name = format!("{}.{}", pallet.name, known.name);
                    if why.is_empty() { name } else { format!("{name}: {}", why.trim()) }
                }
                None => format!("{}, error {error}", pallet.name),
            });
        }
        let detail = kind.fields.first().zip(inner.first());
        let detail = detail.and_then(|(field, index)| self.variant(field.ty.id, *index));
        Some(match detail {
            Some(detail) => format!("{}.{}", kind.name, detail.name),
            None => kind.name.clone(),
        })
    }
}
