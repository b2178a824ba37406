//! TLS, with an authority of one's own.

use std::{fs, sync::Arc};

use rustls::{
    ServerConfig,
    pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
};
use tokio_rustls::TlsAcceptor;

use crate::{
    PATH, PATIENCE, flat, http,
    log::Log,
    mongodb,
    support::{Authority, Hook, Identity, Pots, eventually, unique},
};

/// Stands before a hook and speaks TLS; its port.
async fn secured(hook: &Hook, identity: &Identity) -> u16 {
    let certificates = CertificateDer::pem_file_iter(&identity.cert).unwrap();
    let key = PrivateKeyDer::from_pem_file(&identity.key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(certificates.map(Result::unwrap).collect(), key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let behind = hook.url("").replace("http://", "");
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (acceptor, behind) = (acceptor.clone(), behind.clone());
            tokio::spawn(async move {
                let mut stream = acceptor.accept(stream).await.ok()?;
                let mut behind = TcpStream::connect(behind).await.ok()?;
                copy_bidirectional(&mut stream, &mut behind).await.ok()
            });
        }
    });
    port
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_is_believed_by_its_own_authority_and_no_other() {
    let (pots, hook) = (Pots::new(&mongodb().await).await, Hook::start().await);
    let (ours, strange) = (Authority::new(), Authority::new());
    let port = secured(&hook, &ours.issue("hook", &["localhost"])).await;
    let url = format!("https://localhost:{port}{PATH}");
    let (log, name) = (Log::read(), unique("hook"));
    let sink = http(url).ca(strange.ca()).build().unwrap();
    let builder = pots
        .builder()
        .sink_with(&name, [pots.labels()], sink, flat());
    let outbox = builder.open().await.unwrap();
    pots.make(&outbox, 0..3).await;
    let told = async || log.ours(&name).into_iter().next();
    let line = eventually(PATIENCE, "it is told", told).await;
    assert!(
        line.contains("UnknownIssuer") && line.contains("`ca`"),
        "{line}"
    );
    pots.owed("all of it is owed", |owed| owed == 3).await;
    assert_eq!(hook.connections(), 0);
    // The file is renewed under it.
    fs::copy(ours.ca(), strange.ca()).unwrap();
    pots.owed("in the end nothing is", |owed| owed == 0).await;
    assert_eq!(hook.connections(), 1);
    outbox.shutdown().await;
}
