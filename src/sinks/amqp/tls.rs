//! TLS: whose certificates are believed, and which one is shown.
//!
//! The files are read at the start, where a mistake is found by whoever makes it, and again for each
//! connection: one that was renewed is used from the next connection on, and one that was renewed badly is an
//! error of that connection, which is tried again.

use std::{io, path::PathBuf, sync::Arc};

use rustls::{AlertDescription as Alert, CertificateError, ClientConfig};

use super::Node;
use crate::{
    config::Settings,
    error::Result,
    sinks::tls::{Pem, believing},
};

const CA: &str = "TOA_OUTBOX_AMQP_CA";

/// The files of the settings.
pub(super) struct Certificates {
    /// Who signs the broker's; none: whom the system believes.
    ca: Option<Pem>,
    /// What is shown to the broker, and its private key.
    own: Option<(Pem, Pem)>,
}

impl Certificates {
    /// Those for connections to `nodes`.
    pub(super) fn of(settings: &Settings, nodes: &[Node]) -> Result<Self> {
        Self::new(settings, nodes.iter().any(Node::is_secure))
    }

    /// Refuses what cannot be used, and certificates for a connection that would not be secured by them.
    fn new(settings: &Settings, is_secure: bool) -> Result<Self> {
        let ca = pem(CA, &settings.amqp_ca);
        let cert = pem("TOA_OUTBOX_AMQP_CERT", &settings.amqp_cert);
        let key = pem("TOA_OUTBOX_AMQP_KEY", &settings.amqp_key);
        if let Some(file) = [&ca, &cert, &key].into_iter().flatten().next()
            && !is_secure
        {
            return Err(file.refuse("no URI of TOA_OUTBOX_AMQP begins with amqps://"));
        }
        let own = match (cert, key) {
            (Some(cert), Some(key)) => Some((cert, key)),
            (None, None) => None,
            (Some(cert), None) => {
                return Err(cert.refuse("set TOA_OUTBOX_AMQP_KEY too, to its private key"));
            }
            (None, Some(key)) => {
                return Err(key.refuse("set TOA_OUTBOX_AMQP_CERT too, to its certificate"));
            }
        };
        let certificates = Self { ca, own };
        if is_secure {
            certificates.read()?;
        }
        Ok(certificates)
    }

    /// As the files are now.
    pub(super) fn read(&self) -> Result<Arc<ClientConfig>> {
        let believing = believing(CA, self.ca.as_ref())?;
        let config = match &self.own {
            None => believing.with_no_client_auth(),
            Some((cert, key)) => believing
                .with_client_auth_cert(cert.certificates()?, key.key()?)
                .map_err(|error| {
                    key.refuse(format!(
                        "expected the private key, the one of TOA_OUTBOX_AMQP_CERT: {error}"
                    ))
                })?,
        };
        Ok(Arc::new(config))
    }
}

fn pem(name: &'static str, path: &Option<PathBuf>) -> Option<Pem> {
    let path = path.clone()?;
    Some(Pem::new(name, "settings", path))
}

/// What the two sides do not accept of each other.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Fault {
    #[error("{0}; set TOA_OUTBOX_AMQP_CA to the certificates that sign the broker's")]
    Stranger(rustls::Error),
    #[error("{0}; connect by a name its certificate is for")]
    Misnamed(rustls::Error),
    /// Without the time it is now, which would make each attempt another fault.
    #[error("the broker's certificate has expired; renew it, or set the clock")]
    Expired,
    #[error("the broker's certificate is not valid yet; set the clock")]
    Early,
    #[error("{0}; mend the broker's certificate")]
    Broken(rustls::Error),
    #[error(
        "{0}: the broker does not accept what this client shows; see TOA_OUTBOX_AMQP_CERT and TOA_OUTBOX_AMQP_KEY"
    )]
    Unwelcome(rustls::Error),
    #[error("{0}")]
    Other(rustls::Error),
}

impl Fault {
    /// None if it is another's, or if what answers does not speak TLS at all.
    pub(super) fn of(error: &io::Error) -> Option<Self> {
        let error: &rustls::Error = error.get_ref()?.downcast_ref()?;
        let fault = match error {
            rustls::Error::InvalidMessage(_) => return None,
            rustls::Error::InvalidCertificate(problem) => match problem {
                // The latter, if an authority of the same name is believed.
                CertificateError::UnknownIssuer | CertificateError::BadSignature => Self::Stranger,
                CertificateError::NotValidForName
                | CertificateError::NotValidForNameContext { .. } => Self::Misnamed,
                CertificateError::Expired | CertificateError::ExpiredContext { .. } => {
                    return Some(Self::Expired);
                }
                CertificateError::NotValidYet | CertificateError::NotValidYetContext { .. } => {
                    return Some(Self::Early);
                }
                _ => Self::Broken,
            },
            rustls::Error::AlertReceived(alert) if is_about_the_client(*alert) => Self::Unwelcome,
            _ => Self::Other,
        };
        Some(fault(error.clone()))
    }
}

/// Whether a broker says this of what a client shows, or of what it does not show.
fn is_about_the_client(alert: Alert) -> bool {
    matches!(
        alert,
        Alert::CertificateRequired
            | Alert::HandshakeFailure
            | Alert::NoCertificate
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
    )
}

#[cfg(test)]
mod tests {
    use std::fs;

    use base64::{Engine, engine::general_purpose::STANDARD};
    use rcgen::{CertificateParams, KeyPair};

    use super::*;

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn new() -> Self {
            Self(tempfile::tempdir().unwrap())
        }

        fn file(&self, name: &str, content: impl AsRef<[u8]>) -> Option<PathBuf> {
            let path = self.0.path().join(name);
            fs::write(&path, content).unwrap();
            Some(path)
        }
    }

    fn pair() -> (String, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let params = CertificateParams::new(["localhost".into()]).unwrap();
        (params.self_signed(&key).unwrap().pem(), key)
    }

    fn refusal(settings: &Settings) -> String {
        Certificates::new(settings, true).err().unwrap().to_string()
    }

    #[test]
    fn a_certificate_and_its_key_are_taken_in_each_form_a_key_is_written_in() {
        let (folder, (cert, key)) = (Folder::new(), pair());
        let der = key.serialize_der();
        // PKCS#8 wraps the SEC1 form of a P-256 key, which comes last and has 109 bytes without its curve.
        let sec1 = STANDARD.encode(&der[der.len() - 109..]);
        let sec1 =
            format!("-----BEGIN EC PRIVATE KEY-----\n{sec1}\n-----END EC PRIVATE KEY-----\n");
        for key in [key.serialize_pem(), sec1] {
            let settings = Settings {
                amqp_ca: folder.file("ca", &cert),
                amqp_cert: folder.file("cert", &cert),
                amqp_key: folder.file("key", key),
                ..Settings::default()
            };
            let read = Certificates::new(&settings, true).unwrap().read().unwrap();
            assert!(read.client_auth_cert_resolver.has_certs());
        }
    }

    #[test]
    fn what_cannot_be_used_is_named_with_the_reason_and_without_what_is_in_it() {
        let (folder, (cert, key), (_, other)) = (Folder::new(), pair(), pair());
        let (cert_file, key_file) = (
            folder.file("cert", &cert),
            folder.file("key", key.serialize_pem()),
        );
        let empty = folder.file("empty", "");
        let torn = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n";
        let secret = "-----BEGIN PRIVATE KEY-----\nhunter2!\n-----END PRIVATE KEY-----\n";
        let ca = |amqp_ca| Settings {
            amqp_ca,
            ..Settings::default()
        };
        let own = |amqp_cert, amqp_key| Settings {
            amqp_cert,
            amqp_key,
            ..Settings::default()
        };
        let cases = [
            (ca(Some("/no/such/file".into())), "_CA", "No such file"),
            (ca(Some("/".into())), "_CA", "directory"),
            (ca(empty.clone()), "_CA", "there is none in it"),
            (ca(key_file.clone()), "_CA", "there is none in it"),
            (ca(folder.file("torn", torn)), "_CA", "BadEncoding"),
            (
                own(cert_file.clone(), None),
                "_CERT",
                "set TOA_OUTBOX_AMQP_KEY",
            ),
            (
                own(None, key_file.clone()),
                "_KEY",
                "set TOA_OUTBOX_AMQP_CERT",
            ),
            (own(empty.clone(), key_file), "_CERT", "there is none in it"),
            (own(cert_file.clone(), empty), "_KEY", "there is none in it"),
            (
                own(cert_file.clone(), folder.file("secret", secret)),
                "_KEY",
                "damaged",
            ),
            (
                own(cert_file, folder.file("other", other.serialize_pem())),
                "_KEY",
                "KeyMismatch",
            ),
        ];
        for (settings, name, reason) in cases {
            let text = refusal(&settings);
            println!("{text}");
            assert!(text.contains(&format!("AMQP{name} ")), "{text}");
            assert!(text.contains(reason) && !text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn certificates_that_would_secure_nothing_are_refused() {
        let settings = Settings {
            amqp_ca: Some("ca.pem".into()),
            ..Settings::default()
        };
        let refused = Certificates::new(&settings, false).err().unwrap();
        assert!(refused.to_string().contains("amqps://"), "{refused}");
    }

    #[test]
    fn a_renewed_file_is_read_anew() {
        let (folder, (cert, key)) = (Folder::new(), pair());
        let settings = Settings {
            amqp_ca: folder.file("ca", &cert),
            amqp_cert: folder.file("cert", &cert),
            amqp_key: folder.file("key", key.serialize_pem()),
            ..Settings::default()
        };
        let certificates = Certificates::new(&settings, true).unwrap();
        let (_, other) = pair();
        folder.file("key", other.serialize_pem());
        assert!(certificates.read().is_err(), "half of it was renewed");
        folder.file("key", key.serialize_pem());
        assert!(certificates.read().is_ok());
    }
}
