//! TLS as all sinks that connect have it: files of certificates and keys, and whose signature is believed.

use std::{fs, path::PathBuf, sync::Arc};

use rustls::{
    ClientConfig, ConfigBuilder, RootCertStore,
    client::WantsClientCert,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, pem, pem::PemObject},
};
use rustls_platform_verifier::BuilderVerifierExt;

use crate::error::{Error, Result};

const CERTIFICATES: &str = "expected a PEM file of certificates";
const KEY: &str =
    "expected a PEM file of a private key that is not encrypted, PKCS#8, SEC1 or PKCS#1";

/// A file, and the setting that names it.
pub(super) struct Pem {
    name: &'static str,
    origin: &'static str,
    path: PathBuf,
}

impl Pem {
    pub(super) fn new(name: &'static str, origin: &'static str, path: PathBuf) -> Self {
        Self { name, origin, path }
    }

    pub(super) fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        let text = self.content(CERTIFICATES)?;
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&text).collect();
        match read {
            Ok(none) if none.is_empty() => {
                Err(self.refuse(format!("{CERTIFICATES}: there is none in it")))
            }
            Ok(some) => Ok(some),
            Err(error) => Err(self.refuse(format!("{CERTIFICATES}: {error}"))),
        }
    }

    pub(super) fn key(&self) -> Result<PrivateKeyDer<'static>> {
        let text = self.content(KEY)?;
        PrivateKeyDer::from_pem_slice(&text).map_err(|error| match error {
            pem::Error::NoItemsFound => self.refuse(format!("{KEY}: there is none in it")),
            // Nothing of the file: it is secret.
            _ => self.refuse(format!("{KEY}: it is damaged")),
        })
    }

    fn content(&self, expected: &str) -> Result<Vec<u8>> {
        fs::read(&self.path).map_err(|error| self.refuse(format!("{expected}: {error}")))
    }

    pub(super) fn refuse(&self, expected: impl Into<String>) -> Error {
        Error::Setting {
            name: self.name.into(),
            origin: self.origin.into(),
            value: self.path.display().to_string(),
            expected: expected.into(),
        }
    }
}

/// Those whom the file names, or without one whom the system believes. `name` is the setting that would say it.
pub(super) fn believing(
    name: &str,
    ca: Option<&Pem>,
) -> Result<ConfigBuilder<ClientConfig, WantsClientCert>> {
    let unusable = |error: rustls::Error| Error::Setting {
        name: name.into(),
        origin: "settings".into(),
        value: String::new(),
        expected: format!("it is not set, and the certificates of the system: {error}"),
    };
    // Named, because rustls panics where there are two to choose from.
    let provider = CryptoProvider::get_default().cloned();
    let provider = provider.unwrap_or_else(|| Arc::new(ring::default_provider()));
    let builder = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .map_err(unusable)?;
    let Some(ca) = ca else {
        return builder.with_platform_verifier().map_err(unusable);
    };
    let mut roots = RootCertStore::empty();
    for certificate in ca.certificates()? {
        roots
            .add(certificate)
            .map_err(|error| ca.refuse(format!("{CERTIFICATES}: {error}")))?;
    }
    Ok(builder.with_root_certificates(roots))
}
