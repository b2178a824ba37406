//! One connection to a destination, and one request on it.
//!
//! Nothing runs beside a delivery: the connection is driven by whoever awaits an answer on it, and whoever drops that ends
//! the connection too. So nothing leaves after a delivery was given up.

use std::{io, sync::Arc};

use http_body_util::{BodyExt, Full};
use hyper::{
    Request, Response,
    body::{Bytes, Incoming},
    client::conn::http1::{self, SendRequest},
    header::RETRY_AFTER,
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};
use tokio_rustls::TlsConnector;

use super::endpoint::Endpoint;

/// How much of an answer's body is read. A body that is longer has no meaning.
const MOST: usize = 64 * 1024;

/// How much of an answer's head is read; one that is longer is no answer.
const HEAD: usize = 64 * 1024;

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

pub(super) struct Connection {
    sender: SendRequest<Full<Bytes>>,
    driver: http1::Connection<TokioIo<Box<dyn Duplex>>, Full<Bytes>>,
}

/// What was answered, as much of it as has a meaning.
pub(super) struct Answer {
    pub(super) status: u16,
    /// The header of that name.
    pub(super) retry_after: Option<String>,
    /// None if there was too much of it.
    pub(super) body: Option<Vec<u8>>,
}

impl Connection {
    pub(super) async fn open(
        endpoint: &Endpoint,
        tls: Option<Arc<ClientConfig>>,
    ) -> io::Result<Self> {
        let host = endpoint.host();
        let stream = TcpStream::connect((host, endpoint.port())).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Duplex> = match tls {
            Some(config) => {
                let name = ServerName::try_from(host.to_owned()).map_err(io::Error::other)?;
                Box::new(TlsConnector::from(config).connect(name, stream).await?)
            }
            None => Box::new(stream),
        };
        let (sender, driver) = http1::Builder::new()
            .max_buf_size(HEAD)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(io::Error::other)?;
        Ok(Self { sender, driver })
    }

    /// Whether it takes a request: the other side may have closed it meanwhile.
    pub(super) async fn is_open(&mut self) -> bool {
        tokio::select! {
            // First, so that it learns of the end before it is asked.
            biased;
            _ = &mut self.driver => false,
            ready = self.sender.ready() => ready.is_ok(),
        }
    }

    /// Sends a request and awaits the answer to it, for as long as it takes. After an error, and after an answer that was
    /// too long, the connection is of no use any more.
    pub(super) async fn exchange(
        &mut self,
        request: Request<Full<Bytes>>,
    ) -> hyper::Result<Answer> {
        let answering = async {
            let response = self.sender.send_request(request).await?;
            read(response).await
        };
        tokio::pin!(answering);
        tokio::select! {
            biased;
            answer = &mut answering => answer,
            // What came until then is still there to be read.
            _ = &mut self.driver => answering.await,
        }
    }
}

async fn read(response: Response<Incoming>) -> hyper::Result<Answer> {
    let retry_after = response.headers().get(RETRY_AFTER);
    Ok(Answer {
        status: response.status().as_u16(),
        retry_after: retry_after.and_then(|value| Some(value.to_str().ok()?.to_owned())),
        body: bounded(response.into_body()).await?,
    })
}

async fn bounded(mut incoming: Incoming) -> hyper::Result<Option<Vec<u8>>> {
    let mut body = Vec::new();
    while let Some(frame) = incoming.frame().await {
        // The other kind are trailers.
        let Ok(piece) = frame?.into_data() else {
            continue;
        };
        if body.len() + piece.len() > MOST {
            return Ok(None);
        }
        body.extend_from_slice(&piece);
    }
    Ok(Some(body))
}

/// Why there is no answer, in our own words.
pub(super) fn fault(error: &hyper::Error) -> &'static str {
    match error {
        error if error.is_incomplete_message() => "the connection ended before the answer did",
        error if error.is_parse() => "what the destination answered is no HTTP/1.1",
        _ => "the connection broke before the answer was whole",
    }
}
