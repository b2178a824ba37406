//! Certificates of a test's own.

use std::fs;
use std::path::PathBuf;

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair, date_time_ymd,
};
use tempfile::TempDir;

use super::unique;

/// Signs certificates and keeps them as PEM files.
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
    folder: TempDir,
}

/// The files of one certificate.
#[derive(Clone)]
pub struct Identity {
    pub cert: PathBuf,
    pub key: PathBuf,
    /// Certificate and key in one, as MongoDB wants them.
    pub both: PathBuf,
}

impl Authority {
    /// One that nobody knows yet.
    pub fn new() -> Self {
        let mut params = named(&unique("authority"), &[]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let folder = tempfile::tempdir().expect("a folder");
        fs::write(folder.path().join("ca.pem"), issuer.pem()).expect("ca.pem");
        Self { issuer, folder }
    }

    /// The file of its own certificate.
    pub fn ca(&self) -> PathBuf {
        self.folder.path().join("ca.pem")
    }

    /// A certificate for these hosts; the files of an earlier one of that name are replaced.
    pub fn issue(&self, name: &str, hosts: &[&str]) -> Identity {
        self.sign(name, named(name, hosts))
    }

    /// The same, but it was valid until long ago.
    pub fn issue_expired(&self, name: &str, hosts: &[&str]) -> Identity {
        let mut params = named(name, hosts);
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(2021, 1, 1);
        self.sign(name, params)
    }

    fn sign(&self, name: &str, params: CertificateParams) -> Identity {
        let key = KeyPair::generate().expect("a key");
        let cert = params.signed_by(&key, &self.issuer).expect("a certificate");
        let write = |kind: &str, content: String| {
            let path = self.folder.path().join(format!("{name}-{kind}.pem"));
            fs::write(&path, content).expect("a file");
            path
        };
        Identity {
            cert: write("cert", cert.pem()),
            key: write("key", key.serialize_pem()),
            both: write("both", cert.pem() + &key.serialize_pem()),
        }
    }
}

fn named(name: &str, hosts: &[&str]) -> CertificateParams {
    let hosts: Vec<String> = hosts.iter().map(|&host| host.into()).collect();
    let mut params = CertificateParams::new(hosts).expect("names of hosts");
    params.distinguished_name.push(DnType::CommonName, name);
    params
}
