//! What an HTTP sink is made of.

use std::{fmt, fs, path::PathBuf, sync::Mutex, time::Duration};

use super::{Http, TIMEOUT, content::Form, endpoint::Endpoint, refused, signature::Key};
use crate::{
    error::Result,
    sinks::tls::{Pem, believing},
};

/// What an HTTP sink is made of; see [`Http::builder`].
#[must_use]
pub struct HttpBuilder {
    url: String,
    secret: Option<Secret>,
    ca: Option<PathBuf>,
    timeout: Duration,
    form: Form,
}

enum Secret {
    Text(String),
    File(PathBuf),
}

impl HttpBuilder {
    pub(super) fn new(url: String) -> Self {
        Self {
            url,
            secret: None,
            ca: None,
            timeout: TIMEOUT,
            form: Form::default(),
        }
    }

    /// Signs requests with this. With the prefix `whsec_` the rest is base64, else it is taken as it is. This or
    /// [`secret_file`](Self::secret_file) is required, the later call counts.
    pub fn secret(mut self, secret: impl Into<String>) -> Self {
        self.secret = Some(Secret::Text(secret.into()));
        self
    }

    /// As [`secret`](Self::secret), with what is in a file, less the line break at its end. It is read once, by
    /// [`build`](Self::build).
    pub fn secret_file(mut self, path: impl Into<PathBuf>) -> Self {
        self.secret = Some(Secret::File(path.into()));
        self
    }

    /// Believes those who sign with the certificates in this PEM file, instead of those the system believes. It is read anew
    /// for each connection.
    pub fn ca(mut self, path: impl Into<PathBuf>) -> Self {
        self.ca = Some(path.into());
        self
    }

    /// How long a request may take, connecting included, until its answer has been read. More than zero, and at most 10
    /// seconds, which is the default.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// Sends each message in a request of its own.
    pub fn single(mut self) -> Self {
        self.form.is_single = true;
        self
    }

    /// Sends CloudEvents 1.0 in JSON: an array of them, or with [`single`](Self::single) one in structured mode.
    pub fn cloud_events(mut self) -> Self {
        self.form.is_cloud = true;
        self
    }

    /// The sink. Connects to nothing.
    ///
    /// # Errors
    ///
    /// [`Error::Setting`](crate::Error::Setting) for what is missing or cannot be used, of which no secret and no path of
    /// the URL is shown.
    pub fn build(self) -> Result<Http> {
        let endpoint = Endpoint::of(&self.url)?;
        let key = self.key()?;
        if self.timeout.is_zero() || self.timeout > TIMEOUT {
            let value = format!("{:?}", self.timeout);
            let expected = format!("expected more than zero, and at most {TIMEOUT:?}");
            return Err(refused("timeout", &value, &expected));
        }
        let ca = self.ca.map(|path| Pem::new("ca", "http sink", path));
        if endpoint.is_secure {
            believing("ca", ca.as_ref())?;
        } else if let Some(ca) = &ca {
            return Err(ca.refuse("the URL does not begin with https://"));
        }
        Ok(Http {
            endpoint,
            key,
            ca,
            timeout: self.timeout,
            form: self.form,
            idle: Mutex::default(),
        })
    }

    fn key(&self) -> Result<Key> {
        match &self.secret {
            None => Err(refused(
                "secret",
                "",
                "expected a secret, or a file of one by secret_file: requests are signed with it",
            )),
            Some(Secret::Text(secret)) => Key::of("secret", secret),
            Some(Secret::File(path)) => {
                let text = fs::read_to_string(path).map_err(|error| {
                    let expected =
                        format!("the file cannot be read: {error}; check its path and permissions");
                    refused("secret_file", &path.display().to_string(), &expected)
                })?;
                let line = text.strip_suffix('\n').unwrap_or(&text);
                Key::of("secret_file", line.strip_suffix('\r').unwrap_or(line))
            }
        }
    }
}

/// Without the URL, which has not been taken apart yet, and without the secret.
impl fmt::Debug for HttpBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpBuilder")
            .field("ca", &self.ca)
            .field("timeout", &self.timeout)
            .field("form", &self.form)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const URL: &str = "https://a/hunter2?t=hunter2";

    #[test]
    fn url_and_secret_are_required_and_shown_nowhere() {
        let builder = || Http::builder(URL).secret("hunter2");
        println!("{:?} {:?}", builder(), builder().build().unwrap());
        let shown = format!("{:?} {:?}", builder(), builder().build().unwrap());
        assert!(!shown.contains("hunter2"), "{shown}");
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::write(&path, text).unwrap();
            path
        };
        let plain = Http::builder("http://a/").secret("hunter2");
        for (builder, name, reason) in [
            (Http::builder(URL), "secret", "requests are signed"),
            (Http::builder("hunter2").secret("x"), "url", "http://"),
            (builder().secret(""), "secret", "not empty"),
            (
                builder().secret_file("/no/such"),
                "secret_file",
                "No such file",
            ),
            (
                builder().secret_file(file("empty", "\n")),
                "secret_file",
                "not empty",
            ),
            (
                builder().secret_file(file("odd", "whsec_hunter2!")),
                "secret_file",
                "base64",
            ),
            (builder().timeout(Duration::ZERO), "timeout", "10s"),
            (builder().timeout(Duration::from_secs(11)), "timeout", "10s"),
            (builder().ca("/no/such"), "ca", "No such file"),
            (
                builder().ca(file("ca", "hunter2")),
                "ca",
                "there is none in it",
            ),
            (plain.ca("/no/such"), "ca", "https://"),
        ] {
            let text = builder.build().unwrap_err().to_string();
            println!("{text}");
            assert!(text.starts_with(&format!("{name} (http sink)")), "{text}");
            assert!(text.contains(reason) && !text.contains("hunter2"), "{text}");
        }
    }

    #[test]
    fn the_line_break_at_the_end_of_a_file_is_not_of_the_secret() {
        let dir = tempfile::tempdir().unwrap();
        let sign = |http: Http| http.key.sign("a", 1, b"x");
        let expected = sign(Http::builder(URL).secret("hunter2 ").build().unwrap());
        for text in ["hunter2 ", "hunter2 \n", "hunter2 \r\n"] {
            let path = dir.path().join("secret");
            fs::write(&path, text).unwrap();
            let http = Http::builder(URL).secret_file(path).build().unwrap();
            assert_eq!(sign(http), expected, "{text:?}");
        }
    }
}
