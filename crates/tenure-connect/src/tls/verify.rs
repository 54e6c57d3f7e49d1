//! What is asked of the server's certificate.
//!
//! rustls' own verifier knows `verify-full` only, and refuses a self-signed certificate that is
//! its own authority (what PostgreSQL's manual makes with one `openssl` line) even where the user
//! names exactly that certificate as trusted. This one follows libpq in both. In every mode the
//! server must own the key of the certificate it shows: the handshake's signature is checked.

use std::sync::Arc;

use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::client::{verify_server_cert_signed_by_trust_anchor, verify_server_name};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::server::ParsedCertificate;
use rustls::{CertificateError, DigitallySignedStruct, Error, RootCertStore, SignatureScheme};
use x509_cert::der::Decode;

/// How much is asked.
#[derive(Debug)]
pub(super) enum Check {
    /// Nothing: `prefer`, `allow`, `require` without root certificates.
    Nothing,
    /// A chain to a trusted certificate, for whatever host: `verify-ca`.
    Chain(Trust),
    /// The chain, and that it names the host: `verify-full`.
    ChainAndName(Trust),
}

/// What is trusted.
#[derive(Debug, Clone)]
pub(super) struct Trust {
    /// Authorities that may have signed the server's certificate.
    pub(super) roots: RootCertStore,
    /// Certificates the user named: one of them may be the server's own.
    pub(super) named: Vec<CertificateDer<'static>>,
}

/// A verifier for one [`Check`].
#[derive(Debug)]
pub(super) struct Verifier {
    pub(super) check: Check,
    pub(super) provider: Arc<CryptoProvider>,
}

impl Verifier {
    fn verify_chain(
        &self,
        trust: &Trust,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<(), Error> {
        if trust.named.iter().any(|named| named == end_entity) {
            return verify_period(end_entity, now);
        }
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &trust.roots,
            intermediates,
            now,
            self.provider.signature_verification_algorithms.all,
        )
    }
}

/// A certificate that is trusted by itself may still have expired.
fn verify_period(certificate: &CertificateDer<'_>, now: UnixTime) -> Result<(), Error> {
    let parsed = x509_cert::Certificate::from_der(certificate)
        .map_err(|_| Error::from(CertificateError::BadEncoding))?;
    let period = parsed.tbs_certificate.validity;
    if now.as_secs() < period.not_before.to_unix_duration().as_secs() {
        return Err(CertificateError::NotValidYet.into());
    }
    if now.as_secs() > period.not_after.to_unix_duration().as_secs() {
        return Err(CertificateError::Expired.into());
    }
    Ok(())
}

impl ServerCertVerifier for Verifier {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        match &self.check {
            Check::Nothing => {}
            Check::Chain(trust) => self.verify_chain(trust, end_entity, intermediates, now)?,
            Check::ChainAndName(trust) => {
                self.verify_chain(trust, end_entity, intermediates, now)?;
                verify_server_name(&ParsedCertificate::try_from(end_entity)?, server_name)?;
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
