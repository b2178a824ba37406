//! Where requests go.

use hyper::{
    Uri,
    header::HeaderValue,
    http::uri::{Authority, PathAndQuery, Scheme},
};

use super::refused;
use crate::error::Result;

/// A URL taken apart. Its path and query are shown to nobody: many destinations keep a token there.
pub(super) struct Endpoint {
    pub(super) is_secure: bool,
    authority: Authority,
    path: PathAndQuery,
}

impl Endpoint {
    pub(super) fn of(url: &str) -> Result<Self> {
        let expected =
            "expected http:// or https://, a host, and perhaps a port, a path and a query";
        // No part of what cannot be read: any may be a secret.
        let refuse = |expected: &str| refused("url", "…", expected);
        let parts = url
            .parse::<Uri>()
            .map_err(|_| refuse(expected))?
            .into_parts();
        let (Some(scheme), Some(authority)) = (parts.scheme, parts.authority) else {
            return Err(refuse(expected));
        };
        if authority.as_str().contains('@') {
            return Err(refuse(
                "expected no user and no password in it; requests are signed by the secret",
            ));
        }
        let is_secure = match scheme {
            scheme if scheme == Scheme::HTTPS => true,
            scheme if scheme == Scheme::HTTP => false,
            _ => return Err(refuse(expected)),
        };
        if authority.host().is_empty() || authority.port_u16() == Some(0) {
            return Err(refuse(expected));
        }
        let path = parts
            .path_and_query
            .unwrap_or_else(|| PathAndQuery::from_static("/"));
        Ok(Self {
            is_secure,
            authority,
            path,
        })
    }

    /// As it is connected to, an IPv6 address without its brackets.
    pub(super) fn host(&self) -> &str {
        let host = self.authority.host();
        host.strip_prefix('[')
            .and_then(|host| host.strip_suffix(']'))
            .unwrap_or(host)
    }

    pub(super) fn port(&self) -> u16 {
        let usual = if self.is_secure { 443 } else { 80 };
        self.authority.port_u16().unwrap_or(usual)
    }

    /// What is asked for of the host.
    pub(super) fn target(&self) -> Uri {
        self.path.clone().into()
    }

    pub(super) fn host_header(&self) -> Option<HeaderValue> {
        HeaderValue::from_str(self.authority.as_str()).ok()
    }

    /// What may be shown of it.
    pub(super) fn address(&self) -> String {
        let scheme = if self.is_secure { "https" } else { "http" };
        format!("{scheme}://{}", self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::Endpoint;

    #[test]
    fn a_url_is_taken_apart() {
        for (url, host, port, target, address) in [
            ("http://a", "a", 80, "/", "http://a"),
            ("https://a.b/in?t=x", "a.b", 443, "/in?t=x", "https://a.b"),
            (
                "https://[::1]:8443/",
                "::1",
                8443,
                "/",
                "https://[::1]:8443",
            ),
            ("HTTP://a:8080?x", "a", 8080, "/?x", "http://a:8080"),
        ] {
            let endpoint = Endpoint::of(url).unwrap();
            assert_eq!((endpoint.host(), endpoint.port()), (host, port), "{url}");
            assert_eq!(endpoint.target().to_string(), target, "{url}");
            assert_eq!(endpoint.address(), address, "{url}");
        }
    }

    #[test]
    fn what_is_no_url_is_refused_and_not_repeated() {
        for url in [
            "",
            "hunter2",
            "/hunter2",
            "ftp://a/hunter2",
            "http://",
            "http://a:0/hunter2",
            "https://me:hunter2@a/",
            "https://a b/hunter2",
        ] {
            let text = Endpoint::of(url).err().unwrap().to_string();
            assert!(
                text.starts_with("url ") && !text.contains("hunter2"),
                "{text}"
            );
        }
    }
}
