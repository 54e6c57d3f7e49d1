//! A certificate authority of a test's own.

use std::{
    fs,
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
};

use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use tenure_embedded::Server;

use crate::{KitError, home::Home};

/// A certificate authority whose files live as long as it does.
#[derive(Debug)]
pub struct Ca {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// A server's certificate and key, for [`crate::ClusterOptions::tls`].
#[derive(Debug, Clone)]
pub struct ServerCert {
    cert: String,
    key: String,
    ca: String,
}

/// Files of a client's certificate and key (mode 0600, owned by the account that runs the test).
#[derive(Debug, Clone)]
pub struct ClientCert {
    /// The certificate, PEM.
    pub cert: PathBuf,
    /// The private key, PEM.
    pub key: PathBuf,
}

impl Ca {
    /// A new authority.
    ///
    /// # Errors
    /// [`KitError::Certificate`], [`KitError::Io`].
    pub fn new() -> Result<Self, KitError> {
        let mut params = CertificateParams::new(Vec::new())?;
        params.distinguished_name.push(DnType::CommonName, "Tenure test authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate()?;
        let cert = params.self_signed(&key)?;
        let folder = Home::get()?.folder("ca")?;
        let pem = cert.pem();
        fs::write(folder.join("ca.pem"), &pem)?;
        Ok(Self { folder, issuer: Issuer::new(params, key), pem })
    }

    /// The authority's certificate, PEM: what a client is told to trust.
    #[must_use]
    pub fn file(&self) -> PathBuf {
        self.folder.join("ca.pem")
    }

    /// A certificate for a server called `names` (host names or addresses).
    ///
    /// # Errors
    /// [`KitError::Certificate`].
    pub fn server(&self, names: &[&str]) -> Result<ServerCert, KitError> {
        let (cert, key) = self.sign(names, names.first().copied().unwrap_or("server"), true)?;
        Ok(ServerCert { cert, key, ca: self.pem.clone() })
    }

    /// A certificate that is right for a [`crate::Cluster`]: `localhost` and `127.0.0.1`.
    ///
    /// # Errors
    /// [`KitError::Certificate`].
    pub fn localhost(&self) -> Result<ServerCert, KitError> {
        self.server(&["localhost", "127.0.0.1"])
    }

    /// A certificate for a database user, whose name is its common name.
    ///
    /// # Errors
    /// [`KitError::Certificate`], [`KitError::Io`].
    pub fn client(&self, user: &str) -> Result<ClientCert, KitError> {
        let (cert, key) = self.sign(&[], user, false)?;
        let files = ClientCert {
            cert: self.folder.join(format!("{user}.pem")),
            key: self.folder.join(format!("{user}.key")),
        };
        private_file(&files.cert, &cert)?;
        private_file(&files.key, &key)?;
        Ok(files)
    }

    fn sign(
        &self,
        names: &[&str],
        common: &str,
        server: bool,
    ) -> Result<(String, String), KitError> {
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names)?;
        params.distinguished_name.push(DnType::CommonName, common);
        params.use_authority_key_identifier_extension = true;
        params.extended_key_usages = vec![if server {
            ExtendedKeyUsagePurpose::ServerAuth
        } else {
            ExtendedKeyUsagePurpose::ClientAuth
        }];
        let key = KeyPair::generate()?;
        let cert = params.signed_by(&key, &self.issuer)?;
        Ok((cert.pem(), key.serialize_pem()))
    }
}

impl Drop for Ca {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

impl ServerCert {
    /// Writes the files as PostgreSQL demands them (key of mode 0600, owned by the server's account)
    /// and returns the settings that use them.
    pub(crate) fn install(&self, server: &Server) -> Result<Vec<(String, String)>, KitError> {
        server.write("tls.crt", &self.cert)?;
        server.write("tls.key", &self.key)?;
        server.write("tls-ca.crt", &self.ca)?;
        Ok([
            ("ssl", "on"),
            ("ssl_cert_file", "tls.crt"),
            ("ssl_key_file", "tls.key"),
            ("ssl_ca_file", "tls-ca.crt"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec())
    }
}

fn private_file(path: &Path, text: &str) -> Result<(), KitError> {
    let mut file =
        fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    Ok(std::io::Write::write_all(&mut file, text.as_bytes())?)
}
