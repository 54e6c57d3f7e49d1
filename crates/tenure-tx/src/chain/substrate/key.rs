//! The key that signs. It is never printed: no error, log or `Debug` holds any of it.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use bip39::{Language, Mnemonic};
use k256::ecdsa::signature::hazmat::PrehashVerifier as _;
use k256::ecdsa::{RecoveryId, Signature as EcdsaSignature, SigningKey, VerifyingKey};
use parity_scale_codec::Encode as _;
use schnorrkel::derive::{ChainCode, Derivation as _};
use schnorrkel::{ExpansionMode, Keypair, MiniSecretKey, PublicKey, Signature};
use sha3::{Digest as _, Keccak256};
use zeroize::Zeroizing;

use super::extrinsic_hash;
use crate::account::{AccountId, SignError};
use crate::status::unhex;

/// The phrase of every development chain.
const DEVELOPMENT: &str = "bottom drive obey lake curtain smoke basket hold race lonely fit walk";

/// What a signature of Substrate's sr25519 is about.
const CONTEXT: &[u8] = b"substrate";

/// How a key signs, and what its account is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, strum::Display, strum::EnumString)]
#[non_exhaustive]
#[strum(serialize_all = "lowercase")]
pub enum Scheme {
    /// Schnorr signatures on Ristretto: the usual one. The account is the public key.
    Sr25519,
    /// secp256k1 over BLAKE2b-256. The account is the public key's BLAKE2b-256.
    Ecdsa,
    /// secp256k1 over Keccak-256, as on Ethereum, with its 20-byte accounts.
    Ethereum,
}

#[derive(Clone)]
enum Secret {
    // schnorrkel and k256 wipe their keys when they are dropped.
    Sr25519(Arc<Keypair>),
    Secp256k1(Arc<SigningKey>),
}

/// A key of one scheme. It is never printed: no error, log or `Debug` holds any of it.
///
/// A key is written as other tools of these chains write it (SURI): a secret phrase of 12 to 24
/// words or 32 bytes in hex, then `//hard` and `/soft` junctions, then `///password`. Without a phrase,
/// `//Alice` and the like are junctions of the phrase that all development chains share.
#[derive(Clone)]
pub struct Key {
    scheme: Scheme,
    secret: Secret,
    account: AccountId,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("account", &self.account).finish_non_exhaustive()
    }
}

fn unusable(why: &str) -> SignError {
    SignError::Key(why.to_owned())
}

impl Key {
    /// A key from its SURI. Soft junctions are for [`Scheme::Sr25519`] only.
    ///
    /// # Errors
    /// [`SignError::Key`]; the message never holds the text.
    pub fn from_suri(suri: &str, scheme: Scheme) -> Result<Self, SignError> {
        let suri = Suri::parse(suri.trim())?;
        let seed = suri.seed()?;
        let secret = match scheme {
            Scheme::Sr25519 => Secret::Sr25519(Arc::new(sr25519(&seed, &suri.junctions)?)),
            Scheme::Ecdsa | Scheme::Ethereum => {
                Secret::Secp256k1(Arc::new(secp256k1(&seed, &suri.junctions)?))
            }
        };
        let account = account(scheme, &secret)?;
        Ok(Key { scheme, secret, account })
    }

    /// A key from a file that holds its SURI, and that other users cannot read. It blocks: a pipe for ten
    /// seconds at most.
    ///
    /// # Errors
    /// [`SignError::Key`] if the file cannot be read, may be read by others or holds no key.
    pub fn from_file(path: &Path, scheme: Scheme) -> Result<Self, SignError> {
        let text = crate::account::read_key_file(path)?;
        Self::from_suri(&Zeroizing::new(text), scheme)
    }

    /// A key from an environment variable that holds its SURI.
    ///
    /// # Errors
    /// [`SignError::Key`] if the variable is not set or holds no key.
    pub fn from_env(name: &str, scheme: Scheme) -> Result<Self, SignError> {
        let text = std::env::var(name).map_err(|_| {
            SignError::Key(format!(
                "the environment variable {name} is not set; set it, or name another"
            ))
        })?;
        Self::from_suri(&Zeroizing::new(text), scheme)
    }

    /// How it signs, and what its account is.
    #[must_use]
    pub fn scheme(&self) -> Scheme {
        self.scheme
    }

    /// The account that it signs for.
    #[must_use]
    pub fn account(&self) -> &AccountId {
        &self.account
    }

    /// The signature of a payload, as the scheme writes it.
    pub(super) fn sign(&self, payload: &[u8]) -> Result<Vec<u8>, SignError> {
        match &self.secret {
            Secret::Sr25519(pair) => Ok(pair.sign_simple(CONTEXT, payload).to_bytes().to_vec()),
            Secret::Secp256k1(key) => {
                let hash = digest(self.scheme, payload);
                let (signature, recovery) = key
                    .sign_prehash_recoverable(&hash)
                    .map_err(|_| unusable("the key signs nothing"))?;
                let mut bytes = signature.to_bytes().to_vec();
                bytes.push(recovery.to_byte());
                Ok(bytes)
            }
        }
    }
}

/// Whether an account's key has signed a payload. Public: it needs no secret.
pub(super) fn verifies(scheme: Scheme, account: &[u8], signature: &[u8], payload: &[u8]) -> bool {
    match scheme {
        Scheme::Sr25519 => {
            let key = PublicKey::from_bytes(account).ok();
            let signature = Signature::from_bytes(signature).ok();
            key.zip(signature)
                .is_some_and(|(key, one)| key.verify_simple(CONTEXT, payload, &one).is_ok())
        }
        Scheme::Ecdsa | Scheme::Ethereum => {
            let Some((body, recovery)) = signature.split_at_checked(64) else { return false };
            let recovery = recovery.first().and_then(|byte| RecoveryId::from_byte(*byte));
            let body = EcdsaSignature::from_slice(body).ok();
            let Some((body, recovery)) = body.zip(recovery) else { return false };
            let hash = digest(scheme, payload);
            VerifyingKey::recover_from_prehash(&hash, &body, recovery).is_ok_and(|key| {
                key.verify_prehash(&hash, &body).is_ok() && of_public(scheme, &key) == account
            })
        }
    }
}

fn digest(scheme: Scheme, payload: &[u8]) -> [u8; 32] {
    match scheme {
        Scheme::Ethereum => Keccak256::digest(payload).into(),
        Scheme::Sr25519 | Scheme::Ecdsa => extrinsic_hash(payload).0,
    }
}

fn of_public(scheme: Scheme, key: &VerifyingKey) -> Vec<u8> {
    match scheme {
        // Without the byte that says that both coordinates follow.
        Scheme::Ethereum => {
            let point = key.to_encoded_point(false);
            Keccak256::digest(&point.as_bytes()[1..])[12..].to_vec()
        }
        Scheme::Sr25519 | Scheme::Ecdsa => {
            extrinsic_hash(key.to_encoded_point(true).as_bytes()).0.to_vec()
        }
    }
}

fn account(scheme: Scheme, secret: &Secret) -> Result<AccountId, SignError> {
    let bytes = match secret {
        Secret::Sr25519(pair) => pair.public.to_bytes().to_vec(),
        Secret::Secp256k1(key) => of_public(scheme, key.verifying_key()),
    };
    AccountId::new(bytes).map_err(|error| SignError::Key(error.to_string()))
}

fn sr25519(seed: &[u8; 32], junctions: &[Junction]) -> Result<Keypair, SignError> {
    let mini = MiniSecretKey::from_bytes(seed).map_err(|_| unusable("not a key of 32 bytes"))?;
    let mut pair = mini.expand_to_keypair(ExpansionMode::Ed25519);
    for junction in junctions {
        let code = ChainCode(junction.code);
        pair = if junction.hard {
            let (mini, _) = pair.secret.hard_derive_mini_secret_key(Some(code), b"");
            mini.expand_to_keypair(ExpansionMode::Ed25519)
        } else {
            pair.derived_key_simple(code, b"").0
        };
    }
    Ok(pair)
}

fn secp256k1(seed: &[u8; 32], junctions: &[Junction]) -> Result<SigningKey, SignError> {
    let mut seed = Zeroizing::new(*seed);
    for junction in junctions {
        if !junction.hard {
            return Err(unusable(
                "keys of this scheme have no soft junctions (/); use hard ones (//)",
            ));
        }
        let step = Zeroizing::new(("Secp256k1HDKD", &*seed, &junction.code).encode());
        *seed = extrinsic_hash(&step).0;
    }
    SigningKey::from_slice(&*seed).map_err(|_| unusable("not a key of this scheme"))
}

/// A step from one key to another.
struct Junction {
    hard: bool,
    code: [u8; 32],
}

impl Junction {
    fn new(text: &str, hard: bool) -> Self {
        let encoded = match text.parse::<u64>() {
            Ok(number) => number.encode(),
            Err(_) => text.encode(),
        };
        let mut code = [0; 32];
        match code.get_mut(..encoded.len()) {
            Some(start) => start.copy_from_slice(&encoded),
            None => code = extrinsic_hash(&encoded).0,
        }
        Junction { hard, code }
    }
}

/// A key as it is written.
struct Suri {
    phrase: Zeroizing<String>,
    junctions: Vec<Junction>,
    password: Option<Zeroizing<String>>,
}

impl Suri {
    fn parse(text: &str) -> Result<Self, SignError> {
        let (text, password) = match text.split_once("///") {
            Some((text, password)) => (text, Some(Zeroizing::new(password.to_owned()))),
            None => (text, None),
        };
        let at = text.find('/').unwrap_or(text.len());
        let (phrase, mut path) = text.split_at(at);
        let mut junctions = Vec::new();
        while let Some(rest) = path.strip_prefix('/') {
            let (hard, rest) = rest.strip_prefix('/').map_or((false, rest), |rest| (true, rest));
            let at = rest.find('/').unwrap_or(rest.len());
            let (name, rest) = rest.split_at(at);
            if name.is_empty() {
                return Err(unusable("a junction of the key has no name; write //name"));
            }
            junctions.push(Junction::new(name, hard));
            path = rest;
        }
        if phrase.is_empty() && junctions.is_empty() {
            return Err(unusable(EXPECTED));
        }
        let phrase = if phrase.is_empty() { DEVELOPMENT } else { phrase };
        Ok(Suri { phrase: Zeroizing::new(phrase.to_owned()), junctions, password })
    }

    fn seed(&self) -> Result<Zeroizing<[u8; 32]>, SignError> {
        let phrase = self.phrase.trim();
        let digits = phrase.strip_prefix("0x").unwrap_or(phrase);
        if digits.len() == 64 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            let bytes = Zeroizing::new(unhex(digits).unwrap_or_default());
            let seed = <[u8; 32]>::try_from(&bytes[..]).map_err(|_| unusable(EXPECTED))?;
            return Ok(Zeroizing::new(seed));
        }
        let words: Vec<&str> = phrase.split_whitespace().collect();
        let phrase = Zeroizing::new(words.join(" "));
        let mnemonic = Mnemonic::parse_in_normalized(Language::English, &phrase)
            .map_err(|_| unusable(EXPECTED))?;
        let (entropy, length) = mnemonic.to_entropy_array();
        let entropy = Zeroizing::new(entropy);
        // The seed is of the entropy, not of the words as elsewhere: so do all tools of these chains.
        let password = self.password.as_deref().map_or("", |password| password.as_str());
        let salt = Zeroizing::new(format!("mnemonic{password}"));
        let mut long = Zeroizing::new([0u8; 64]);
        let entropy = &entropy[..length];
        pbkdf2::pbkdf2_hmac::<sha2::Sha512>(entropy, salt.as_bytes(), 2048, &mut *long);
        let mut seed = Zeroizing::new([0u8; 32]);
        seed.copy_from_slice(&long[..32]);
        Ok(seed)
    }
}

/// Never with any of the text.
const EXPECTED: &str =
    "expected a secret phrase, or 64 hex digits, with //junctions if it has any (SURI)";

#[cfg(test)]
mod tests {
    use super::*;

    fn of(suri: &str, scheme: Scheme) -> String {
        Key::from_suri(suri, scheme).expect("a key").account().to_string()
    }

    #[test]
    fn a_key_has_the_account_that_other_tools_give_it() {
        let phrase = "bottom drive obey lake curtain smoke basket hold race lonely fit walk";
        let alice = "0xd43593c715fdd31c61141abd04a99fd6822c8558854ccde39a5684e7a56da27d";
        for suri in ["//Alice", &format!("{phrase}//Alice"), &format!("  {phrase}//Alice\n")] {
            assert_eq!(of(suri, Scheme::Sr25519), alice, "{suri}");
        }
        let root = "0x46ebddef8cd9bb167dc30878d7113b7e168e6f0646beffd77d69d39bad76b47a";
        assert_eq!(of(phrase, Scheme::Sr25519), root);
        let mini = "0xfac7959dbfe72f052e5a0c3c8d6530f202b02fd8f9f5ca3580ec8deb7797479e";
        assert_eq!(of(mini, Scheme::Sr25519), root);
        let ecdsa = super::super::account_of("5C7C2Z5sWbytvHpuLTvzKunnnRwQxft1jiqrLD5rhucQ5S9X");
        assert_eq!(of("//Alice", Scheme::Ecdsa), ecdsa.expect("an address").to_string());
        let alith = "0x5fb92d6e98884f76de468fa3f6278f8807c48bebc13595d45af5bdc4da702133";
        let account = "0xf24ff3a9cf04c71dbc94d0b566f7a27b94566cac";
        assert_eq!(of(alith, Scheme::Ethereum), account);
    }

    #[test]
    fn a_password_a_soft_junction_and_a_number_make_another_key() {
        let accounts = ["//Alice", "//Alice///secret", "//Alice/0", "//Alice/1", "//0", "/Alice"]
            .map(|suri| of(suri, Scheme::Sr25519));
        let mut different = accounts.to_vec();
        different.sort();
        different.dedup();
        assert_eq!(different.len(), accounts.len(), "{accounts:?}");
    }

    #[test]
    fn what_is_signed_verifies_and_nothing_else_does() {
        let alith = "5fb92d6e98884f76de468fa3f6278f8807c48bebc13595d45af5bdc4da702133";
        for scheme in [Scheme::Sr25519, Scheme::Ecdsa, Scheme::Ethereum] {
            let key = Key::from_suri(alith, scheme).expect("a key");
            let signature = key.sign(b"payload").expect("signs");
            let account = key.account().as_bytes();
            assert!(verifies(scheme, account, &signature, b"payload"), "{scheme}");
            assert!(!verifies(scheme, account, &signature, b"payloaf"), "{scheme}");
            assert!(!verifies(scheme, account, &signature[1..], b"payload"), "{scheme}");
            let mut other = account.to_vec();
            other[3] ^= 1;
            assert!(!verifies(scheme, &other, &signature, b"payload"), "{scheme}");
        }
    }

    #[test]
    fn a_key_is_never_shown() {
        let key = Key::from_suri("//Alice///opensesame", Scheme::Sr25519).expect("a key");
        let shown = format!("{key:?}");
        assert!(!shown.contains("esame") && !shown.contains("Alice"), "{shown}");
        for suri in ["", "opensesame", "0xopensesame", "////opensesame", "opensesame//", "//"] {
            let error = Key::from_suri(suri, Scheme::Sr25519).expect_err("no key").to_string();
            assert!(!error.contains("esame"), "{error}");
        }
        let soft = Key::from_suri("//Alice/opensesame", Scheme::Ecdsa).expect_err("soft");
        assert!(!soft.to_string().contains("esame"), "{soft}");
    }
}
