//! Webhooks: messages by HTTP, signed.
//!
//! ```text
//!   as many as fit ──► signed request ──┬─ answered ────► verdicts
//!                                       ├─ failed ──────► the caller halves it
//!                                       └─ nobody there ► no attempt is counted
//! ```
//!
//! One request at a time on one connection, which is kept. What a destination writes is read up to a bound and kept nowhere: all
//! texts are ours.

mod builder;
mod connection;
mod content;
mod disposition;
mod endpoint;
mod signature;
mod verdict;

use std::{
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use http_body_util::Full;
use hyper::{Method, Request, body::Bytes, header};
use tokio::time::{Instant, timeout_at};

use self::{
    connection::{Connection, fault},
    content::{Content, Form, delivery, headers},
    endpoint::Endpoint,
    signature::{Key, batch_id, id},
    verdict::Reply,
};
use super::{
    Message, Sink, Unreachable, Verdict,
    safety::Safety,
    tls::{Pem, believing},
};
use crate::{
    error::{Error, Result},
    label::BoxError,
};

pub use builder::HttpBuilder;

/// How long a request may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The most a request carries, in bytes.
const MOST: usize = 1024 * 1024;

/// A [`Sink`] that sends messages by HTTP/1.1 `POST`, signed as [Standard Webhooks] say, to a URL.
///
/// ```
/// # fn example() -> toa_outbox::Result<()> {
/// use toa_outbox::Http;
///
/// let hook = Http::builder("https://hooks.example/tea")
///     .secret_file("/run/secrets/hook") // or .secret("whsec_…")
///     .build()?;
/// # Ok(()) }
/// ```
///
/// # Requests
///
/// | header | |
/// | --- | --- |
/// | `webhook-id` | of a batch the same whenever the same messages are in it; of a [single](HttpBuilder::single) message its id |
/// | `webhook-timestamp` | when it was sent, in seconds since the epoch |
/// | `webhook-signature` | `v1,` and the HMAC-SHA256 of `id.timestamp.body` in base64 |
/// | `toa-delivery` | `live`, or `replay` for what an operator asked for again |
/// | `toa-attempt` | which attempt it is, 1 is the first; the most of those in a batch |
///
/// A body is an array of objects, also where there is one message in it. `entity` and `time` are null where nobody knows
/// them. A payload that is not JSON is base64 text in `data_base64`:
///
/// ```json
/// [{"id":"0193….created","row":"0193…","label":"created","component":"tea.pots","entity":7,"time":"2026-01-02T03:04:05Z",
///   "attempt":1,"content_type":"application/json","data":{"_id":7}}]
/// ```
///
/// A single message is sent as it is, under its own content type, with `toa-row`, `toa-label`, `toa-component`, `toa-entity` (JSON)
/// and, where it is known, `toa-time` as headers. As [CloudEvents](HttpBuilder::cloud_events) the type is
/// `<component>.<label>`, the source the component, the subject the entity, and row, label, attempt and delivery are
/// the extensions `toarow`, `toalabel`, `toaattempt` and `toadelivery`.
///
/// The id of a message is its row, a dot and its label. In ids and headers the percent sign and all but visible ASCII is
/// percent-encoded, and in an id the dots of the row.
///
/// A body has at most 1 MiB, a batch that is larger is cut. A message that is larger by itself is rejected and not sent.
///
/// A backlog, and what is sent again, is limited as [`Safety::default`] says, unless [the options](crate::SinkOptions::safety) say otherwise: at most 2 MiB
/// in 30 requests a minute from each replica.
///
/// # Answers
///
/// A destination may say in the body of any answer, in JSON of at most 64 KiB, what becomes of the messages: of all of them,
/// or of each by its id. `retry_after` is a positive whole number of seconds, `circuit` 1 to 128 letters, digits or `_ -`:
///
/// ```json
/// {"disposition":"accepted"}
/// {"disposition":"retry","retry_after":30}
/// {"disposition":"paused","circuit":"db-1","retry_after":3600}
/// {"dispositions":[{"id":"0193….created","disposition":"duplicate"},{"id":"0194….created","disposition":"rejected"}]}
/// ```
///
/// What is not exactly that, or leaves a message out, says nothing. Then the status counts:
///
/// | status | |
/// | --- | --- |
/// | 2xx | [accepted](Verdict::Accepted) |
/// | 429, 503 | [retry](Verdict::Retry), after `Retry-After` if that is a positive whole number of seconds or a date to come |
/// | 401, 403, 404, 407, 408, 425 | retry: the destination is not as it should be |
/// | 1xx, 3xx | retry; a redirect is never followed |
/// | 410 | [paused](Verdict::Paused) |
/// | 409, 413 and every other 4xx | [rejected](Verdict::Rejected) |
/// | 5xx and others, no whole answer in time | it failed: as retry, and a batch is halved until what fails is alone |
///
/// Where no connection can be made the delivery is [`Unreachable`], and that is nobody's fault.
///
/// Nothing that a destination writes is kept, logged or shown, but for a circuit.
///
/// [Standard Webhooks]: https://www.standardwebhooks.com
pub struct Http {
    endpoint: Endpoint,
    key: Key,
    /// Whose signatures are believed; none: whom the system believes.
    ca: Option<Pem>,
    timeout: Duration,
    form: Form,
    /// The connection of the last request, if it can have another.
    idle: Mutex<Option<Connection>>,
}

impl Http {
    /// To send messages to a URL, which begins with `http://` or `https://` and has no user and no password in it.
    pub fn builder(url: impl Into<String>) -> HttpBuilder {
        HttpBuilder::new(url.into())
    }

    /// Where it sends them, as far as that may be shown.
    pub(crate) fn address(&self) -> String {
        self.endpoint.address()
    }

    /// Sends one request and says what came of it.
    async fn send(&self, batch: &[Message], content: Content) -> Result<Reply, Unreachable> {
        let ids: Vec<String> = batch.iter().map(id).collect();
        let request = match self.request(batch, content) {
            Ok(request) => request,
            Err(error) => return Ok(Reply::Failed(format!("making the request: {error}"))),
        };
        let until = Instant::now() + self.timeout;
        let mut connection = self.connection(until).await?;
        let answer = match timeout_at(until, connection.exchange(request)).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(error)) => return Ok(Reply::Failed(fault(&error).into())),
            Err(_) => {
                let timeout = self.timeout;
                return Ok(Reply::Failed(format!("no whole answer within {timeout:?}")));
            }
        };
        if answer.body.is_some() {
            *self.idle() = Some(connection);
        }
        Ok(Reply::of(&answer, &ids, SystemTime::now()))
    }

    /// The one that is kept, or a new one.
    async fn connection(&self, until: Instant) -> Result<Connection, Unreachable> {
        let kept = self.idle().take();
        if let Some(mut connection) = kept
            && let Ok(true) = timeout_at(until, connection.is_open()).await
        {
            return Ok(connection);
        }
        let address = self.endpoint.address();
        let failed = |reason: &dyn fmt::Display| {
            Unreachable::new(format!("connecting to {address}: {reason}"))
        };
        let tls = match self.endpoint.is_secure {
            true => Some(self.tls().map_err(|error| failed(&error))?),
            false => None,
        };
        match timeout_at(until, Connection::open(&self.endpoint, tls)).await {
            Ok(Ok(connection)) => Ok(connection),
            Ok(Err(error))
                if error
                    .get_ref()
                    .is_some_and(|cause| cause.is::<rustls::Error>()) =>
            {
                Err(failed(&format_args!(
                    "{error}; is it to be believed, and by what `ca`?"
                )))
            }
            Ok(Err(error)) => Err(failed(&error)),
            Err(_) => Err(failed(&format_args!("nothing within {:?}", self.timeout))),
        }
    }

    /// As the file is now.
    fn tls(&self) -> Result<std::sync::Arc<rustls::ClientConfig>> {
        let config = believing("ca", self.ca.as_ref())?;
        Ok(config.with_no_client_auth().into())
    }

    fn request(
        &self,
        batch: &[Message],
        content: Content,
    ) -> Result<Request<Full<Bytes>>, BoxError> {
        let id = match batch {
            [message] if self.form.is_single => id(message),
            _ => batch_id(batch),
        };
        let timestamp = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        let attempt = batch.iter().map(Message::attempt).max().unwrap_or(1);
        let mut request = Request::builder()
            .method(Method::POST)
            .uri(self.endpoint.target())
            .header(header::CONTENT_TYPE, content.media_type)
            .header(
                header::USER_AGENT,
                concat!("toa-outbox/", env!("CARGO_PKG_VERSION")),
            )
            .header(
                "webhook-signature",
                self.key.sign(&id, timestamp, &content.bytes),
            )
            .header("webhook-id", id)
            .header("webhook-timestamp", timestamp)
            .header("toa-delivery", batch.first().map_or("live", delivery))
            .header("toa-attempt", attempt);
        if let Some(host) = self.endpoint.host_header() {
            request = request.header(header::HOST, host);
        }
        if let (
            [message],
            Form {
                is_single: true,
                is_cloud: false,
            },
        ) = (batch, self.form)
        {
            for (name, value) in headers(message)? {
                request = request.header(name, value);
            }
        }
        Ok(request.body(Full::new(content.bytes.into()))?)
    }

    /// Nothing that panics is called under the lock, so a poisoned one is as good as any.
    fn idle(&self) -> MutexGuard<'_, Option<Connection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sink for Http {
    async fn deliver(&self, batch: &[Message]) -> Result<Vec<Verdict>, BoxError> {
        if batch.is_empty() {
            return Ok(Vec::new());
        }
        let content = self.form.content(batch, MOST)?;
        if content.count < batch.len() {
            return Err("more than goes into one request".into());
        }
        if content.bytes.len() > MOST {
            return Ok(vec![too_large(content.bytes.len())]);
        }
        match self.send(batch, content).await? {
            Reply::Each(verdicts) => Ok(verdicts),
            Reply::All(verdict) => Ok(vec![verdict; batch.len()]),
            Reply::Failed(reason) => Err(reason.into()),
        }
    }

    /// One request.
    fn at_once(&self, batch: &[Message]) -> usize {
        // What cannot be written is to be found out by trying.
        let content = self.form.content(batch, MOST);
        content.map_or(batch.len(), |content| content.count)
    }

    fn safety(&self) -> Option<Safety> {
        Some(Safety::default())
    }
}

fn too_large(size: usize) -> Verdict {
    Verdict::Rejected(format!(
        "413, not sent: a body of {size} bytes, over the {MOST} of a request; make the payload of the label smaller"
    ))
}

/// A setting that cannot be used.
fn refused(name: &str, value: &str, expected: &str) -> Error {
    Error::Setting {
        name: name.into(),
        origin: "http sink".into(),
        value: value.into(),
        expected: expected.into(),
    }
}

/// Without the path of the URL, which may hold a token, and without the secret.
impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("address", &self.endpoint.address())
            .field("timeout", &self.timeout)
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
