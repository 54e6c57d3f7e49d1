//! Raw public keys (RFC 7250): the handshake proves a key, and the key is all there is to a peer's name.

use std::sync::Arc;

use ed25519_dalek::VerifyingKey;
use rustls::client::AlwaysResolvesClientRawPublicKeys;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{WebPkiSupportedAlgorithms, verify_tls13_signature_with_raw_key};
use rustls::pki_types::{
    CertificateDer, PrivatePkcs8KeyDer, ServerName, SubjectPublicKeyInfoDer, UnixTime,
};
use rustls::server::AlwaysResolvesServerRawPublicKeys;
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::sign::CertifiedKey;
use rustls::version::TLS13;
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, DistinguishedName, Error, ServerConfig,
    SignatureScheme,
};

use super::{Loaded, TlsError, finished};
use crate::identity::{Ed25519Keys, Keys as _, PeerId};

/// An ed25519 key as X.509 writes it: these bytes, then the key (RFC 8410).
const PUBLIC: [u8; 12] = [0x30, 0x2a, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x03, 0x21, 0x00];
/// The same for a secret key, in PKCS #8.
const SECRET: [u8; 16] = [
    0x30, 0x2e, 0x02, 0x01, 0x00, 0x30, 0x05, 0x06, 0x03, 0x2b, 0x65, 0x70, 0x04, 0x22, 0x04, 0x20,
];

/// Whose key it is; `None` if it is no ed25519 key, or one that any program could sign for.
pub(super) fn identity(shown: &[u8]) -> Option<PeerId> {
    let key: [u8; 32] = shown.strip_prefix(&PUBLIC)?.try_into().ok()?;
    let known = VerifyingKey::from_bytes(&key).ok()?;
    (!known.is_weak()).then_some(PeerId(key))
}

/// Both sides, each with the key of `keys`.
pub(super) fn raw(keys: &Ed25519Keys) -> Result<Loaded, TlsError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let secret = PrivatePkcs8KeyDer::from([SECRET.as_slice(), &keys.secret()].concat());
    let signer = rustls::crypto::ring::sign::any_eddsa_type(&secret)?;
    let public = CertificateDer::from([PUBLIC.as_slice(), &keys.id().0].concat());
    let certified = Arc::new(CertifiedKey::new(vec![public], signer));
    let any = Arc::new(AnyKey { algorithms: provider.signature_verification_algorithms });
    let server = ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&TLS13])?
        .with_client_cert_verifier(any.clone())
        .with_cert_resolver(Arc::new(AlwaysResolvesServerRawPublicKeys::new(certified.clone())));
    let client = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&TLS13])?
        .dangerous()
        .with_custom_certificate_verifier(any)
        .with_client_cert_resolver(Arc::new(AlwaysResolvesClientRawPublicKeys::new(certified)));
    Ok(finished(server, client))
}

/// Takes any ed25519 key, and has it proven. What the key may do is asked afterwards, of the credentials.
#[derive(Debug)]
struct AnyKey {
    algorithms: WebPkiSupportedAlgorithms,
}

impl AnyKey {
    fn check(shown: &CertificateDer<'_>) -> Result<(), Error> {
        identity(shown).map(drop).ok_or(Error::InvalidCertificate(CertificateError::BadEncoding))
    }

    fn signed(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let key = SubjectPublicKeyInfoDer::from(shown.as_ref());
        verify_tls13_signature_with_raw_key(message, &key, signature, &self.algorithms)
    }
}

impl ServerCertVerifier for AnyKey {
    fn verify_server_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Self::check(shown).map(|()| ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

impl ClientCertVerifier for AnyKey {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn verify_client_cert(
        &self,
        shown: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        Self::check(shown).map(|()| ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Err(Error::General("TLS 1.2 is not spoken here".to_owned()))
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        shown: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.signed(message, shown, signature)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        vec![SignatureScheme::ED25519]
    }

    fn requires_raw_public_keys(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_read_back_and_what_is_none_is_refused() {
        let keys = Ed25519Keys::generate();
        let shown = [PUBLIC.as_slice(), &keys.id().0].concat();
        assert_eq!(identity(&shown), Some(keys.id()));
        assert_eq!(identity(&shown[1..]), None);
        assert_eq!(identity(&[shown.as_slice(), &[0]].concat()), None);
        // A key of low order: one signature of it fits every message.
        let mut weak = [0; 32];
        weak[0] = 1;
        assert_eq!(identity(&[PUBLIC.as_slice(), &weak].concat()), None);
    }
}
