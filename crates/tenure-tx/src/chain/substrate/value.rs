//! Values of a runtime's types: JSON to SCALE, and SCALE walked.
//!
//! Pure. What comes from a node or a caller is bounded: a value nests at most [`DEPTH`] deep, and a
//! sequence claims no more than its bytes can hold.

use std::fmt;

use parity_scale_codec::{Compact, Decode as _, Encode as _};
use scale_info::form::PortableForm;
use scale_info::{Field, PortableRegistry, Type, TypeDef, TypeDefPrimitive};
use serde_json::{Map, Value};

use super::account_of;
use crate::status::unhex;

/// How deep a value may nest. Calls of calls need some; a type that contains itself has no end.
const DEPTH: usize = 64;

/// How many parts a type may have before its length is not counted, and a value before it is not
/// walked: types of types of nothing would double with each level.
const PARTS: u32 = 10_000_000;

/// Why a value does not fit its type; it names the place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Misfit {
    place: String,
    why: String,
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.as_str() {
            "" => f.write_str(&self.why),
            place => write!(f, "{place}: {}", self.why),
        }
    }
}

impl Misfit {
    fn new(why: impl Into<String>) -> Self {
        Misfit { place: String::new(), why: why.into() }
    }

    /// What there is instead, what is most like it first.
    fn absent(wanted: &str, mut names: Vec<&str>) -> Self {
        if names.is_empty() {
            return Misfit::new(format!("there is no {wanted:?}; it has no content"));
        }
        names.sort_by_key(|name| std::cmp::Reverse(alike(name, wanted)));
        Misfit::new(format!("there is no {wanted:?}; there is {}", list(&names)))
    }

    pub(super) fn at(self, part: &str) -> Self {
        let place = match self.place.as_str() {
            "" => part.to_owned(),
            inner => format!("{part}.{inner}"),
        };
        Misfit { place, ..self }
    }
}

fn resolve(types: &PortableRegistry, ty: u32) -> Result<&Type<PortableForm>, Misfit> {
    types.resolve(ty).ok_or_else(|| Misfit::new("the metadata does not say what it is"))
}

/// The length of a type whose values all have the same.
pub(super) fn fixed_len(types: &PortableRegistry, ty: u32) -> Option<usize> {
    fixed(types, ty, 0, &mut 1_000)
}

fn fixed(types: &PortableRegistry, ty: u32, depth: usize, parts: &mut u32) -> Option<usize> {
    *parts = parts.checked_sub(1)?;
    if depth > DEPTH {
        return None;
    }
    let depth = depth + 1;
    match &types.resolve(ty)?.type_def {
        TypeDef::Composite(whole) => whole.fields.iter().try_fold(0usize, |sum, field| {
            sum.checked_add(fixed(types, field.ty.id, depth, parts)?)
        }),
        TypeDef::Tuple(whole) => whole
            .fields
            .iter()
            .try_fold(0usize, |sum, field| sum.checked_add(fixed(types, field.id, depth, parts)?)),
        TypeDef::Array(array) => {
            fixed(types, array.type_param.id, depth, parts)?.checked_mul(array.len as usize)
        }
        TypeDef::Primitive(primitive) => width(primitive),
        TypeDef::Variant(_)
        | TypeDef::Sequence(_)
        | TypeDef::Compact(_)
        | TypeDef::BitSequence(_) => None,
    }
}

fn width(primitive: &TypeDefPrimitive) -> Option<usize> {
    match primitive {
        TypeDefPrimitive::Bool | TypeDefPrimitive::U8 | TypeDefPrimitive::I8 => Some(1),
        TypeDefPrimitive::U16 | TypeDefPrimitive::I16 => Some(2),
        TypeDefPrimitive::Char | TypeDefPrimitive::U32 | TypeDefPrimitive::I32 => Some(4),
        TypeDefPrimitive::U64 | TypeDefPrimitive::I64 => Some(8),
        TypeDefPrimitive::U128 | TypeDefPrimitive::I128 => Some(16),
        TypeDefPrimitive::U256 | TypeDefPrimitive::I256 => Some(32),
        TypeDefPrimitive::Str => None,
    }
}

/// Walks over one value: what is left of `bytes` is what follows it.
pub(super) fn skip(types: &PortableRegistry, ty: u32, bytes: &mut &[u8]) -> Result<(), Misfit> {
    walk(types, ty, bytes, 0, &mut { PARTS })
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Result<&'a [u8], Misfit> {
    let (taken, rest) =
        bytes.split_at_checked(count).ok_or_else(|| Misfit::new("the bytes end too soon"))?;
    *bytes = rest;
    Ok(taken)
}

fn length(bytes: &mut &[u8]) -> Result<usize, Misfit> {
    let length = Compact::<u32>::decode(bytes).map_err(|_| Misfit::new("no length"))?;
    Ok(length.0 as usize)
}

fn walk(
    types: &PortableRegistry,
    ty: u32,
    bytes: &mut &[u8],
    depth: usize,
    parts: &mut u32,
) -> Result<(), Misfit> {
    *parts = parts.checked_sub(1).ok_or_else(|| Misfit::new("it has too many parts"))?;
    if depth > DEPTH {
        return Err(Misfit::new("it nests too deep"));
    }
    let depth = depth + 1;
    match &resolve(types, ty)?.type_def {
        TypeDef::Composite(whole) => {
            whole.fields.iter().try_for_each(|field| walk(types, field.ty.id, bytes, depth, parts))
        }
        TypeDef::Tuple(whole) => {
            whole.fields.iter().try_for_each(|field| walk(types, field.id, bytes, depth, parts))
        }
        TypeDef::Variant(choice) => {
            let index = take(bytes, 1)?[0];
            let variant = choice.variants.iter().find(|variant| variant.index == index);
            let variant = variant.ok_or_else(|| Misfit::new(format!("no variant {index}")))?;
            variant
                .fields
                .iter()
                .try_for_each(|field| walk(types, field.ty.id, bytes, depth, parts))
        }
        TypeDef::Sequence(sequence) => {
            let count = length(bytes)?;
            repeat(types, sequence.type_param.id, count, bytes, depth, parts)
        }
        TypeDef::Array(array) => {
            repeat(types, array.type_param.id, array.len as usize, bytes, depth, parts)
        }
        TypeDef::Primitive(TypeDefPrimitive::Str) => {
            let count = length(bytes)?;
            take(bytes, count).map(drop)
        }
        TypeDef::Primitive(primitive) => {
            take(bytes, width(primitive).unwrap_or_default()).map(drop)
        }
        TypeDef::Compact(_) => {
            let first = *bytes.first().ok_or_else(|| Misfit::new("the bytes end too soon"))?;
            let count = match first & 0b11 {
                0 => 1,
                1 => 2,
                2 => 4,
                _ => usize::from(first >> 2) + 5,
            };
            take(bytes, count).map(drop)
        }
        TypeDef::BitSequence(bits) => {
            let count = length(bytes)?;
            let store = fixed_len(types, bits.bit_store_type.id).filter(|width| *width > 0);
            let store = store.ok_or_else(|| Misfit::new("bits of an unknown width"))?;
            take(bytes, count.div_ceil(store * 8) * store).map(drop)
        }
    }
}

fn repeat(
    types: &PortableRegistry,
    ty: u32,
    count: usize,
    bytes: &mut &[u8],
    depth: usize,
    parts: &mut u32,
) -> Result<(), Misfit> {
    match fixed_len(types, ty) {
        // However many there are, they are no bytes.
        Some(0) => Ok(()),
        Some(width) => {
            let total = count.checked_mul(width).ok_or_else(|| Misfit::new("it is too long"))?;
            take(bytes, total).map(drop)
        }
        // Each takes at least a byte, or the next one finds none.
        None => (0..count).try_for_each(|_| walk(types, ty, bytes, depth, parts)),
    }
}

/// Encodes JSON as a value of that type.
///
/// Numbers are numbers or decimal text, bytes are hex text, a choice is its name or
/// `{"Name": …}`, an option is null or its value, an account is hex or SS58.
pub(super) fn encode(
    types: &PortableRegistry,
    ty: u32,
    json: &Value,
    out: &mut Vec<u8>,
) -> Result<(), Misfit> {
    put(types, ty, json, out, 0)
}

fn put(
    types: &PortableRegistry,
    ty: u32,
    json: &Value,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Misfit> {
    if depth > DEPTH {
        return Err(Misfit::new("it nests too deep"));
    }
    let depth = depth + 1;
    let resolved = resolve(types, ty)?;
    let name = resolved.path.segments.last().map_or("", String::as_str);
    match &resolved.type_def {
        TypeDef::Composite(_) if matches!(name, "AccountId32" | "AccountId20") => {
            let bytes = account(json, fixed_len(types, ty))?;
            out.extend(bytes);
            Ok(())
        }
        TypeDef::Composite(_) if name == "U256" && !json.is_array() && !json.is_object() => {
            out.extend(wide(json)?);
            Ok(())
        }
        TypeDef::Composite(whole) => fields(types, &whole.fields, json, out, depth),
        TypeDef::Tuple(whole) => {
            let parts: Vec<u32> = whole.fields.iter().map(|field| field.id).collect();
            tuple(types, &parts, json, out, depth)
        }
        TypeDef::Variant(_) if name == "Option" => option(types, resolved, json, out, depth),
        TypeDef::Variant(choice) => {
            let unit = Value::Null;
            let (wanted, content) = match json {
                // The commonest address is an account.
                Value::String(text) if name == "MultiAddress" && !is_variant(resolved, text) => {
                    ("Id", json)
                }
                Value::String(text) => (text.as_str(), &unit),
                Value::Object(one) if one.len() == 1 => {
                    let (name, content) = one.iter().next().expect("one was counted");
                    (name.as_str(), content)
                }
                _ => return Err(Misfit::new("expected a name, or an object with one name")),
            };
            let variant = choice.variants.iter().find(|variant| variant.name == wanted);
            let variant = variant.ok_or_else(|| {
                let names = choice.variants.iter().map(|variant| variant.name.as_str());
                Misfit::absent(wanted, names.collect())
            })?;
            out.push(variant.index);
            fields(types, &variant.fields, content, out, depth)
                .map_err(|misfit| misfit.at(&variant.name))
        }
        TypeDef::Sequence(sequence) => {
            let inner = sequence.type_param.id;
            if let (Value::String(text), true) = (json, is_byte(types, inner)) {
                let bytes = bytes(text)?;
                put_length(bytes.len(), out)?;
                out.extend(bytes);
                return Ok(());
            }
            let Value::Array(items) = json else {
                return Err(Misfit::new("expected a list, or bytes in hex (0x…)"));
            };
            put_length(items.len(), out)?;
            each(types, inner, items, out, depth)
        }
        TypeDef::Array(array) => {
            let inner = array.type_param.id;
            let expected = array.len as usize;
            if let (Value::String(text), true) = (json, is_byte(types, inner)) {
                let bytes = bytes(text)?;
                if bytes.len() != expected {
                    return Err(Misfit::new(format!("expected {expected} bytes in hex")));
                }
                out.extend(bytes);
                return Ok(());
            }
            let items = json.as_array().filter(|items| items.len() == expected);
            let items = items.ok_or_else(|| Misfit::new(format!("expected {expected} items")))?;
            each(types, inner, items, out, depth)
        }
        TypeDef::Primitive(primitive) => put_primitive(primitive, json, out),
        TypeDef::Compact(compact) => {
            let mut inner = compact.type_param.id;
            // A number in a structure of its own, as a share of a hundred is.
            for _ in 0..DEPTH {
                let TypeDef::Composite(whole) = &resolve(types, inner)?.type_def else { break };
                match &whole.fields[..] {
                    [field] => inner = field.ty.id,
                    [] => return Ok(()),
                    _ => return Err(Misfit::new("a compact form that is no number")),
                }
            }
            let limit = match &resolve(types, inner)?.type_def {
                TypeDef::Primitive(primitive) => width(primitive).unwrap_or(16),
                TypeDef::Tuple(tuple) if tuple.fields.is_empty() => return Ok(()),
                _ => return Err(Misfit::new("a compact form that is no number")),
            };
            let number = unsigned(json)?;
            if limit < 16 && number >> (8 * limit) != 0 {
                return Err(Misfit::new(format!("{number} does not fit into {limit} bytes")));
            }
            Compact(number).encode_to(out);
            Ok(())
        }
        TypeDef::BitSequence(_) => {
            Err(Misfit::new("bits are not read here; give the whole call in hex"))
        }
    }
}

fn is_variant(ty: &Type<PortableForm>, name: &str) -> bool {
    match &ty.type_def {
        TypeDef::Variant(choice) => choice.variants.iter().any(|variant| variant.name == name),
        _ => false,
    }
}

fn is_byte(types: &PortableRegistry, ty: u32) -> bool {
    let primitive = types.resolve(ty).map(|ty| &ty.type_def);
    matches!(primitive, Some(TypeDef::Primitive(TypeDefPrimitive::U8)))
}

/// How many names a message lists.
const NAMES: usize = 24;

/// A few names, for a message.
fn list(names: &[&str]) -> String {
    let few = names.iter().take(NAMES).copied().collect::<Vec<_>>().join(", ");
    if names.len() > NAMES { format!("{few}, …") } else { few }
}

/// How many letters two names begin with alike, whatever their case.
fn alike(one: &str, other: &str) -> usize {
    let pairs = one.chars().zip(other.chars());
    pairs.take_while(|(one, other)| one.eq_ignore_ascii_case(other)).count()
}

fn option(
    types: &PortableRegistry,
    ty: &Type<PortableForm>,
    json: &Value,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Misfit> {
    if json.is_null() {
        out.push(0);
        return Ok(());
    }
    let inner = ty.type_params.first().and_then(|parameter| parameter.ty);
    let inner = inner.ok_or_else(|| Misfit::new("an option of nothing"))?;
    out.push(1);
    put(types, inner.id, json, out, depth)
}

/// The fields of a structure or a variant.
fn fields(
    types: &PortableRegistry,
    fields: &[Field<PortableForm>],
    json: &Value,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Misfit> {
    let named = fields.iter().all(|field| field.name.is_some());
    match (fields, json) {
        ([], Value::Null) => Ok(()),
        ([], Value::Object(none)) if none.is_empty() => Ok(()),
        ([], Value::Array(none)) if none.is_empty() => Ok(()),
        ([], Value::Object(given)) => {
            Err(Misfit::absent(given.keys().next().map_or("", String::as_str), Vec::new()))
        }
        ([], _) => Err(Misfit::new("it has no content; leave that out")),
        (_, Value::Object(given)) if named && fits(fields, given) => {
            if let Some(stray) = given.keys().find(|key| !has(fields, key)) {
                return Err(Misfit::absent(stray, names(fields)));
            }
            fields.iter().try_for_each(|field| {
                let name = field.name.as_deref().unwrap_or_default();
                let all = || list(&names(fields));
                let absent = || Misfit::new(format!("{name:?} is missing; it has {}", all()));
                let value = given.get(name).ok_or_else(absent)?;
                put(types, field.ty.id, value, out, depth).map_err(|misfit| misfit.at(name))
            })
        }
        // An object that the one field is not, with another name than the field's.
        ([one], Value::Object(given)) if named => {
            put(types, one.ty.id, json, out, depth).map_err(|misfit| match given.keys().next() {
                Some(stray) if misfit.place.is_empty() => Misfit::absent(stray, names(fields)),
                Some(_) | None => misfit,
            })
        }
        ([one], _) => put(types, one.ty.id, json, out, depth),
        (several, Value::Array(items)) if items.len() == several.len() => {
            let pairs = several.iter().zip(items);
            pairs
                .into_iter()
                .try_for_each(|(field, item)| put(types, field.ty.id, item, out, depth))
        }
        (several, _) => {
            Err(Misfit::new(format!("expected an object with {}", list(&names(several)))))
        }
    }
}

fn names(fields: &[Field<PortableForm>]) -> Vec<&str> {
    fields.iter().map(|field| field.name.as_deref().unwrap_or("…")).collect()
}

fn has(fields: &[Field<PortableForm>], key: &str) -> bool {
    fields.iter().any(|field| field.name.as_deref() == Some(key))
}

/// An object is of the fields unless there is one field that is an object itself.
fn fits(fields: &[Field<PortableForm>], given: &Map<String, Value>) -> bool {
    fields.len() > 1 || given.keys().any(|key| has(fields, key)) || given.is_empty()
}

fn tuple(
    types: &PortableRegistry,
    parts: &[u32],
    json: &Value,
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Misfit> {
    match (parts, json) {
        ([], Value::Null) => Ok(()),
        (parts, Value::Array(items)) if items.len() == parts.len() => {
            let mut pairs = parts.iter().zip(items);
            pairs.try_for_each(|(part, item)| put(types, *part, item, out, depth))
        }
        _ => Err(Misfit::new(format!("expected a list of {}", parts.len()))),
    }
}

fn each(
    types: &PortableRegistry,
    ty: u32,
    items: &[Value],
    out: &mut Vec<u8>,
    depth: usize,
) -> Result<(), Misfit> {
    items.iter().enumerate().try_for_each(|(at, item)| {
        put(types, ty, item, out, depth).map_err(|misfit| misfit.at(&format!("[{at}]")))
    })
}

fn put_length(length: usize, out: &mut Vec<u8>) -> Result<(), Misfit> {
    let length = u32::try_from(length).map_err(|_| Misfit::new("it is too long"))?;
    Compact(length).encode_to(out);
    Ok(())
}

fn bytes(text: &str) -> Result<Vec<u8>, Misfit> {
    let hex = text.starts_with("0x").then(|| unhex(text)).flatten();
    hex.ok_or_else(|| Misfit::new("expected bytes in hex (0x…)"))
}

fn account(json: &Value, expected: Option<usize>) -> Result<Vec<u8>, Misfit> {
    let account = json.as_str().and_then(|text| account_of(text).ok());
    let account = account.filter(|account| Some(account.as_bytes().len()) == expected);
    let account = account.ok_or_else(|| {
        let expected = expected.unwrap_or_default();
        Misfit::new(format!("expected an account of {expected} bytes, in hex or SS58"))
    })?;
    Ok(account.as_bytes().to_vec())
}

/// A number, or its decimal digits as text: JSON's numbers end at 2^53 in many programs.
fn unsigned(json: &Value) -> Result<u128, Misfit> {
    let number = match json {
        Value::Number(number) => number.to_string().parse().ok(),
        Value::String(text) => match text.strip_prefix("0x") {
            Some(digits) => u128::from_str_radix(digits, 16).ok(),
            None => text.parse().ok(),
        },
        _ => None,
    };
    number.ok_or_else(|| Misfit::new("expected a whole number, as it is or as text"))
}

/// 256 bits, little end first.
fn wide(json: &Value) -> Result<[u8; 32], Misfit> {
    let mut wide = [0; 32];
    match json.as_str().and_then(|text| text.strip_prefix("0x")) {
        Some(digits) if !digits.is_empty() && digits.len() <= 64 => {
            let padded = format!("{digits:0>64}");
            let bytes = unhex(&padded).ok_or_else(|| Misfit::new("expected hex digits"))?;
            wide.copy_from_slice(&bytes);
            wide.reverse();
        }
        _ => wide[..16].copy_from_slice(&unsigned(json)?.to_le_bytes()),
    }
    Ok(wide)
}

fn put_primitive(
    primitive: &TypeDefPrimitive,
    json: &Value,
    out: &mut Vec<u8>,
) -> Result<(), Misfit> {
    match primitive {
        TypeDefPrimitive::Bool => {
            let flag = json.as_bool().ok_or_else(|| Misfit::new("expected true or false"))?;
            out.push(u8::from(flag));
        }
        TypeDefPrimitive::Str => {
            let text = json.as_str().ok_or_else(|| Misfit::new("expected text"))?;
            put_length(text.len(), out)?;
            out.extend(text.as_bytes());
        }
        TypeDefPrimitive::Char => {
            let text = json.as_str().unwrap_or_default();
            let mut letters = text.chars();
            let (Some(letter), None) = (letters.next(), letters.next()) else {
                return Err(Misfit::new("expected one letter"));
            };
            out.extend(u32::from(letter).to_le_bytes());
        }
        TypeDefPrimitive::U256 | TypeDefPrimitive::I256 => out.extend(wide(json)?),
        TypeDefPrimitive::U8
        | TypeDefPrimitive::U16
        | TypeDefPrimitive::U32
        | TypeDefPrimitive::U64
        | TypeDefPrimitive::U128 => {
            let (number, width) = (unsigned(json)?, width(primitive).unwrap_or_default());
            if width < 16 && number >> (8 * width) != 0 {
                return Err(Misfit::new(format!("{number} does not fit into {width} bytes")));
            }
            out.extend(&number.to_le_bytes()[..width]);
        }
        TypeDefPrimitive::I8
        | TypeDefPrimitive::I16
        | TypeDefPrimitive::I32
        | TypeDefPrimitive::I64
        | TypeDefPrimitive::I128 => {
            let text = json.as_str().map_or_else(|| json.to_string(), str::to_owned);
            let number: i128 = text.parse().map_err(|_| Misfit::new("expected a whole number"))?;
            let width = width(primitive).unwrap_or_default();
            let shift = 128 - 8 * u32::try_from(width).unwrap_or(16);
            if (number << shift) >> shift != number {
                return Err(Misfit::new(format!("{number} does not fit into {width} bytes")));
            }
            out.extend(&number.to_le_bytes()[..width]);
        }
    }
    Ok(())
}
