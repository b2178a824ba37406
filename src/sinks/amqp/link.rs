//! One connection, and the socket under it.

use std::{
    io,
    net::{Shutdown, TcpStream},
    os::fd::AsFd,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use lapin::{
    AsyncTcpStream, Connection, ConnectionProperties, ErrorKind,
    protocol::{AMQPErrorKind, AMQPHardError, AMQPSoftError},
    uri::{AMQPScheme, AMQPUri},
};
use rustls::ClientConfig;
use tokio::net::TcpSocket;

use super::tls::{Certificates, Fault};
use crate::error::{Error, Result};

/// How long name look-up, TCP, TLS and the AMQP handshake may take together.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The heartbeat where the URI names none, in seconds: a half-open link is noticed within twice that.
const HEARTBEAT: u16 = 10;

/// A broker to connect to.
pub(crate) struct Node {
    uri: AMQPUri,
    address: String,
}

impl Node {
    /// Reads the URIs of the setting.
    pub(crate) fn list(uris: &[String]) -> Result<Vec<Self>> {
        let refuse = |origin: &'static str, value: &str, expected: String| Error::Setting {
            name: "TOA_OUTBOX_AMQP".into(),
            origin: origin.into(),
            value: value.into(),
            expected,
        };
        if uris.is_empty() {
            let expected =
                "set it to at least one URI such as amqp://user:password@host:port/vhost";
            return Err(refuse("not set", "", expected.into()));
        }
        let node = |(index, uri): (usize, &String)| {
            Self::parse(uri).map_err(|problem| {
                let number = index + 1;
                let expected = format!(
                    "expected amqp://user:password@host:port/vhost or amqps://…, URI {number} of {}: {problem}",
                    uris.len()
                );
                refuse("settings", "…", expected)
            })
        };
        uris.iter().enumerate().map(node).collect()
    }

    fn parse(uri: &str) -> Result<Self, &'static str> {
        if !uri.starts_with("amqp://") && !uri.starts_with("amqps://") {
            return Err("its scheme is neither amqp nor amqps");
        }
        // What the parser says may repeat the URI, and with it the password.
        let mut uri: AMQPUri = uri.parse().map_err(
            |_| "it cannot be read; percent-encode what is special in user, password and vhost",
        )?;
        if uri.vhost.contains('@') {
            return Err("what is special in user and password has to be percent-encoded");
        }
        uri.query.heartbeat.get_or_insert(HEARTBEAT);
        let scheme = match uri.scheme {
            AMQPScheme::AMQP => "amqp",
            AMQPScheme::AMQPS => "amqps",
        };
        let address = format!(
            "{scheme}://{}:{}/{}",
            uri.authority.host, uri.authority.port, uri.vhost
        );
        Ok(Self { uri, address })
    }

    /// The URI without credentials.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn is_secure(&self) -> bool {
        self.uri.scheme == AMQPScheme::AMQPS
    }
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoLink {
    #[error("no answer within {} s: check the port in TOA_OUTBOX_AMQP: it has to speak AMQP and, if the scheme is amqps, TLS", CONNECT_TIMEOUT.as_secs())]
    Silent,
    #[error(
        "what answers speaks neither AMQP nor, if the scheme is amqps, TLS: {0}; check the port in TOA_OUTBOX_AMQP: amqp has 5672 and amqps 5671 by default"
    )]
    Foreign(lapin::Error),
    #[error("TLS: {0}")]
    Insecure(Fault),
    /// In TLS 1.3 a client is refused after it has begun to write: what the broker says of it may be lost in a reset.
    #[error(
        "{0}; a broker does so too that does not accept what this client shows, see TOA_OUTBOX_AMQP_CERT and TOA_OUTBOX_AMQP_KEY"
    )]
    Gone(lapin::Error),
    /// The certificates of the settings, which were in order at the start.
    #[error("{0}")]
    Certificates(Error),
    #[error("{0}; check user and password in TOA_OUTBOX_AMQP")]
    Unknown(lapin::Error),
    #[error("{0}; check the virtual host in TOA_OUTBOX_AMQP, and this user's permissions on it")]
    Barred(lapin::Error),
    #[error("{0}; check host and port in TOA_OUTBOX_AMQP, and that the broker runs")]
    Unreached(lapin::Error),
    #[error("{0}")]
    Refused(lapin::Error),
}

impl NoLink {
    fn of(error: lapin::Error, is_secure: bool) -> Self {
        match error.kind() {
            ErrorKind::ParsingError(_) => Self::Foreign(error),
            ErrorKind::IOError(cause) => match Fault::of(cause) {
                Some(fault) => Self::Insecure(fault),
                None if cause.kind() == io::ErrorKind::InvalidData => Self::Foreign(error),
                None if is_secure && is_end(cause.kind()) => Self::Gone(error),
                None => Self::Unreached(error),
            },
            ErrorKind::ProtocolError(answer) => match answer.kind() {
                AMQPErrorKind::Soft(AMQPSoftError::ACCESSREFUSED) => Self::Unknown(error),
                AMQPErrorKind::Hard(AMQPHardError::NOTALLOWED) => Self::Barred(error),
                _ => Self::Refused(error),
            },
            _ => Self::Refused(error),
        }
    }
}

/// Whether the other side ended the connection.
fn is_end(kind: io::ErrorKind) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    matches!(
        kind,
        BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof
    )
}

/// A connection that can be cut.
///
/// Futures dropped in the client may still be written to the socket later, minutes later on a blocked
/// connection. So the link keeps a second handle of the socket: once that is shut down, nothing can
/// leave. Dropping the link cuts it.
pub(super) struct Link {
    connection: Connection,
    socket: Cut,
    address: String,
}

#[derive(Clone, Default)]
struct Socket(Arc<Mutex<Option<TcpStream>>>);

impl Link {
    pub(super) async fn open(node: &Node, certificates: &Certificates) -> Result<Self, NoLink> {
        // Dropped on the way, it cuts what is half open.
        let socket = Cut::default();
        let tls = match node.is_secure() {
            true => Some(certificates.read().map_err(NoLink::Certificates)?),
            false => None,
        };
        let opened = connection(node.uri.clone(), tls, socket.0.clone());
        let connection = tokio::time::timeout(CONNECT_TIMEOUT, opened)
            .await
            .map_err(|_| NoLink::Silent)?
            .map_err(|error| NoLink::of(error, node.is_secure()))?;
        Ok(Self {
            connection,
            socket,
            address: node.address.clone(),
        })
    }

    pub(super) fn connection(&self) -> &Connection {
        &self.connection
    }

    pub(super) fn address(&self) -> &str {
        &self.address
    }

    pub(super) fn cut(&self) {
        self.socket.0.cut();
    }
}

/// Cuts the socket when it is dropped.
#[derive(Default)]
struct Cut(Socket);

impl Drop for Cut {
    fn drop(&mut self) {
        self.0.cut();
    }
}

impl Socket {
    fn keep(&self, socket: TcpStream) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(socket);
    }

    /// The system lets go of what it still holds, whoever else has the socket: nothing of it is sent, only
    /// a reset.
    fn cut(&self) {
        let socket = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(socket) = socket {
            // Errors say that it is cut already. Where a connection cannot be dissolved, it is ended in good
            // order, and the reset comes once the client has let go of it.
            let _ = rustix::net::connect_unspec(&socket);
            let _ = socket.shutdown(Shutdown::Both);
            let _ = TcpSocket::from_std_stream(socket).set_zero_linger();
        }
    }
}

async fn connection(
    uri: AMQPUri,
    tls: Option<Arc<ClientConfig>>,
    socket: Socket,
) -> Result<Connection, lapin::Error> {
    let properties = ConnectionProperties::default()
        .with_connection_name(concat!("toa-outbox ", env!("CARGO_PKG_VERSION")).into());
    let runtime = lapin::runtime::default_runtime()?;
    Connection::connector(
        uri,
        runtime,
        async move |uri: AMQPUri, runtime| {
            let host = uri.authority.host.clone();
            let addresses = runtime.to_socket_addrs((host.clone(), uri.authority.port));
            let plain = tokio::time::timeout(
                CONNECT_TIMEOUT,
                AsyncTcpStream::connect(&runtime, addresses),
            );
            let plain = plain.await.map_err(std::io::Error::from)??;
            if let AsyncTcpStream::Plain(stream) = &plain {
                let second = stream.get_ref().as_fd().try_clone_to_owned()?;
                socket.keep(TcpStream::from(second));
            }
            match &tls {
                None => Ok(plain),
                Some(tls) => Ok(plain.into_rustls(&tls.clone().into(), &host).await?),
            }
        },
        properties,
    )
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_holds_no_credentials() {
        let node = Node::parse("amqps://me:secret@host:5671/v").unwrap();
        assert_eq!(node.address(), "amqps://host:5671/v");
        assert_eq!(node.uri.query.heartbeat, Some(HEARTBEAT));
    }

    #[test]
    fn what_is_no_uri_is_refused_without_being_repeated() {
        let refused = |uris: &[&str]| {
            let uris: Vec<String> = uris.iter().map(|&uri| uri.into()).collect();
            let error = Node::list(&uris).err().unwrap().to_string();
            assert!(
                error.contains("TOA_OUTBOX_AMQP") && !error.contains("secret"),
                "{error}"
            );
        };
        refused(&[]);
        refused(&["http://me:secret@host"]);
        refused(&["amqp://me:secret@host:port"]);
        refused(&["amqp://host", "me:secret@host"]);
        refused(&["amqp://me:123/secret@host"]);
    }
}
