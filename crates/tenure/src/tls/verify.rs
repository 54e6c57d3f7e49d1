//! Certificate verifiers for the modes rustls has no verifier for.
//!
//! rustls by itself knows `verify-full` only.  Both verifiers here still check that the server
//! owns the key of the certificate it shows (the handshake's signature); they differ in what they
//! ask of the certificate.

use std::sync::Arc;

use rustls::{
    CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};

/// What is asked of the server's certificate.
#[derive(Debug)]
pub(super) enum Check {
    /// Nothing: `prefer`, `allow`, `require` without root certificates.
    Nothing,
    /// A chain to one of these roots, for whatever host: `verify-ca`.
    Chain(RootCertStore),
}

/// A verifier of certificates that does not look at the host name.
#[derive(Debug)]
pub(super) struct Unnamed {
    pub(super) check: Check,
    pub(super) provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for Unnamed {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.check {
            Check::Nothing => {}
            Check::Chain(roots) => {
                if roots.is_empty() {
                    return Err(CertificateError::UnknownIssuer.into());
                }
                verify_server_cert_signed_by_trust_anchor(
                    &ParsedCertificate::try_from(end_entity)?,
                    roots,
                    intermediates,
                    now,
                    self.provider.signature_verification_algorithms.all,
                )?;
            }
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls12_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        verify_tls13_signature(message, cert, dss, &self.provider.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}
