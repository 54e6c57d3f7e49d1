//! What a runtime says of itself: its types, its pallets, and what a signature covers.
//!
//! Pure. Metadata comes from outside: nothing in it is trusted to be consistent, and what this
//! version does not know is refused by name, never guessed.

use frame_metadata::v14::{PalletErrorMetadata, PalletStorageMetadata, StorageEntryType};
use frame_metadata::{RuntimeMetadata, RuntimeMetadataPrefixed};
use parity_scale_codec::Decode as _;
use scale_info::form::PortableForm;
use scale_info::{PortableRegistry, TypeDef, Variant};

use super::key::Scheme;
use super::value;
use crate::status::Hash;

/// The two numbers that a signature covers, and that change with an upgrade.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Version {
    /// The runtime's version.
    pub spec: u32,
    /// The version of its calls' encoding.
    pub transaction: u32,
}

/// How extrinsics name their sender.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Address {
    /// The bare account.
    Bare,
    /// A choice of addresses, of which this index is the account.
    Multi(u8),
}

/// A part of what is signed besides the call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Extension {
    pub(super) name: String,
    /// Its type inside the extrinsic.
    pub(super) inside: u32,
    /// Its type that is signed and not sent.
    pub(super) beside: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Pallet {
    pub(super) name: String,
    pub(super) index: u8,
    pub(super) errors: Option<u32>,
}

impl Pallet {
    fn new(name: &str, index: u8, errors: Option<&PalletErrorMetadata<PortableForm>>) -> Self {
        Pallet { name: name.to_owned(), index, errors: errors.map(|errors| errors.ty.id) }
    }
}

/// A runtime, as its metadata, its version and the chain's first block describe it.
#[derive(Debug, Clone)]
pub struct Runtime {
    pub(super) types: PortableRegistry,
    pub(super) pallets: Vec<Pallet>,
    pub(super) extensions: Vec<Extension>,
    pub(super) address: Address,
    /// How many bytes an account has.
    pub(super) account_len: usize,
    pub(super) call: u32,
    pub(super) signature: u32,
    /// The type of a block's events.
    pub(super) events: Option<u32>,
    pub(super) version: Version,
    pub(super) genesis: Hash,
}

/// A runtime that this version cannot sign for, or cannot read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RuntimeError {
    /// The bytes are not metadata.
    #[error("the runtime's metadata cannot be read: {0}; sign with --signer-command")]
    Metadata(String),
    /// Metadata of another version.
    #[error(
        "the runtime's metadata has version {0}, and 14 and 15 are read here; sign with --signer-command"
    )]
    Version(u32),
    /// Metadata that contradicts itself.
    #[error("the runtime's metadata does not say what {0} is; sign with --signer-command")]
    Incomplete(&'static str),
    /// An extension with data that is not known here.
    #[error(
        "the runtime asks for the extension {0}, which is not known here; sign with --signer-command"
    )]
    Extension(String),
    /// The key's scheme is not one of the runtime's.
    #[error("the runtime does not take {0} signatures; choose another --key-scheme")]
    Scheme(Scheme),
}

impl Runtime {
    /// Reads metadata of version 14 or 15, as `state_getMetadata` gives it.
    ///
    /// # Errors
    /// [`RuntimeError`].
    pub fn read(metadata: &[u8], version: Version, genesis: Hash) -> Result<Self, RuntimeError> {
        // Of a version that this library does not know either, the rest would be nonsense.
        if let [b'm', b'e', b't', b'a', number, ..] = metadata
            && !matches!(number, 14 | 15)
        {
            return Err(RuntimeError::Version(u32::from(*number)));
        }
        let all = RuntimeMetadataPrefixed::decode(&mut &*metadata)
            .map_err(|error| RuntimeError::Metadata(error.to_string()))?;
        match all.1 {
            RuntimeMetadata::V14(all) => {
                let of = |name: &str| {
                    let whole = all.types.resolve(all.extrinsic.ty.id)?;
                    let parameter = whole.type_params.iter().find(|part| part.name == name)?;
                    parameter.ty.map(|ty| ty.id)
                };
                let address = of("Address").ok_or(RuntimeError::Incomplete("an address"))?;
                let call = of("Call").ok_or(RuntimeError::Incomplete("a call"))?;
                let signature = of("Signature").ok_or(RuntimeError::Incomplete("a signature"))?;
                let extensions = all.extrinsic.signed_extensions.iter().map(|one| Extension {
                    name: one.identifier.clone(),
                    inside: one.ty.id,
                    beside: one.additional_signed.id,
                });
                let extensions = extensions.collect();
                let system = all.pallets.iter().find(|pallet| pallet.name == "System");
                let storage = system.and_then(|pallet| pallet.storage.as_ref());
                let events = storage.and_then(events_of);
                let pallets = all.pallets.iter();
                let pallets =
                    pallets.map(|one| Pallet::new(&one.name, one.index, one.error.as_ref()));
                let pallets = pallets.collect();
                let parts = Parts { address, call, signature, extensions, events, pallets };
                Self::assemble(all.types, parts, all.extrinsic.version, version, genesis)
            }
            RuntimeMetadata::V15(all) => {
                let extensions = all.extrinsic.signed_extensions.iter().map(|one| Extension {
                    name: one.identifier.clone(),
                    inside: one.ty.id,
                    beside: one.additional_signed.id,
                });
                let extensions = extensions.collect();
                let system = all.pallets.iter().find(|pallet| pallet.name == "System");
                let storage = system.and_then(|pallet| pallet.storage.as_ref());
                let events = storage.and_then(events_of);
                let pallets = all.pallets.iter();
                let pallets =
                    pallets.map(|one| Pallet::new(&one.name, one.index, one.error.as_ref()));
                let pallets = pallets.collect();
                let parts = Parts {
                    address: all.extrinsic.address_ty.id,
                    call: all.extrinsic.call_ty.id,
                    signature: all.extrinsic.signature_ty.id,
                    extensions,
                    events,
                    pallets,
                };
                Self::assemble(all.types, parts, all.extrinsic.version, version, genesis)
            }
            other => Err(RuntimeError::Version(other.version())),
        }
    }

    fn assemble(
        types: PortableRegistry,
        parts: Parts,
        extrinsic: u8,
        version: Version,
        genesis: Hash,
    ) -> Result<Self, RuntimeError> {
        if extrinsic != 4 {
            return Err(RuntimeError::Incomplete("an extrinsic of version 4"));
        }
        let (address, account) = match types.resolve(parts.address).map(|ty| &ty.type_def) {
            Some(TypeDef::Variant(choice)) => {
                let id = choice.variants.iter().find(|variant| variant.name == "Id");
                let id = id.filter(|id| id.fields.len() == 1);
                let id = id.ok_or(RuntimeError::Incomplete("an address"))?;
                (Address::Multi(id.index), id.fields[0].ty.id)
            }
            Some(_) => (Address::Bare, parts.address),
            None => return Err(RuntimeError::Incomplete("an address")),
        };
        let account_len = value::fixed_len(&types, account)
            .filter(|len| matches!(len, 20 | 32))
            .ok_or(RuntimeError::Incomplete("an account"))?;
        let Parts { call, signature, extensions, events, pallets, address: _ } = parts;
        Ok(Runtime {
            types,
            pallets,
            extensions,
            address,
            account_len,
            call,
            signature,
            events,
            version,
            genesis,
        })
    }

    /// The version of the runtime that the metadata describes.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The scheme that signs for it if none is chosen: Ethereum's for accounts of 20 bytes, sr25519
    /// for others.
    #[must_use]
    pub fn usual_scheme(&self) -> Scheme {
        if self.account_len == 20 { Scheme::Ethereum } else { Scheme::Sr25519 }
    }

    /// What stands before a signature of that scheme: the index of its kind, or nothing.
    pub(super) fn signature_tag(&self, scheme: Scheme) -> Result<Option<u8>, RuntimeError> {
        let refused = || RuntimeError::Scheme(scheme);
        let ty = self.types.resolve(self.signature);
        let ty = ty.ok_or(RuntimeError::Incomplete("a signature"))?;
        let fits = match scheme {
            Scheme::Ethereum => self.account_len == 20,
            Scheme::Sr25519 | Scheme::Ecdsa => self.account_len == 32,
        };
        match &ty.type_def {
            TypeDef::Variant(kinds) if fits => {
                let name = match scheme {
                    Scheme::Sr25519 => "Sr25519",
                    Scheme::Ecdsa => "Ecdsa",
                    Scheme::Ethereum => return Err(refused()),
                };
                let len = if scheme == Scheme::Sr25519 { 64 } else { 65 };
                let kind = kinds.variants.iter().find(|kind| kind.name == name);
                let of_len = |kind: &&Variant<PortableForm>| {
                    let [field] = &kind.fields[..] else { return false };
                    value::fixed_len(&self.types, field.ty.id) == Some(len)
                };
                kind.filter(of_len).map(|kind| Some(kind.index)).ok_or_else(refused)
            }
            TypeDef::Variant(_) => Err(refused()),
            // One kind of signature only: Ethereum's accounts have it, and its name says so.
            _ => {
                let named = ty.path.segments.last().is_some_and(|name| name == "EthereumSignature");
                let long = value::fixed_len(&self.types, self.signature) == Some(65);
                let ethereum = scheme == Scheme::Ethereum && fits && named && long;
                if ethereum { Ok(None) } else { Err(refused()) }
            }
        }
    }

    /// Whether a value of that type has no bytes.
    pub(super) fn is_empty(&self, ty: u32) -> bool {
        value::fixed_len(&self.types, ty) == Some(0)
    }

    pub(super) fn pallet(&self, index: u8) -> Option<&Pallet> {
        self.pallets.iter().find(|pallet| pallet.index == index)
    }

    /// The variant of an enumeration's type.
    pub(super) fn variant(&self, ty: u32, index: u8) -> Option<&Variant<PortableForm>> {
        match &self.types.resolve(ty)?.type_def {
            TypeDef::Variant(all) => all.variants.iter().find(|one| one.index == index),
            _ => None,
        }
    }
}

fn events_of(system: &PalletStorageMetadata<PortableForm>) -> Option<u32> {
    match &system.entries.iter().find(|entry| entry.name == "Events")?.ty {
        StorageEntryType::Plain(ty) => Some(ty.id),
        StorageEntryType::Map { .. } => None,
    }
}

/// What both versions of the metadata say, in other places.
struct Parts {
    address: u32,
    call: u32,
    signature: u32,
    extensions: Vec<Extension>,
    events: Option<u32>,
    pallets: Vec<Pallet>,
}
