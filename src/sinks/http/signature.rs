//! What a destination knows a message by, and by what it knows that it comes from us: Standard Webhooks.
//!
//! <https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md>

use std::fmt::Write;

use base64::{Engine, engine::general_purpose::STANDARD};
use ring::{digest, hmac};

use super::refused;
use crate::{error::Result, sinks::Message};

/// What a secret begins with that is written in base64.
const ENCODED: &str = "whsec_";

/// Signs requests. It has no `Debug`: nobody is to see it.
pub(super) struct Key(hmac::Key);

impl Key {
    /// `name` is the setting the secret came from.
    pub(super) fn of(name: &'static str, secret: &str) -> Result<Self> {
        let refuse = |expected| refused(name, "…", expected);
        let bytes = match secret.strip_prefix(ENCODED) {
            Some(text) => STANDARD.decode(text).map_err(|_| {
                refuse("expected base64 after whsec_; a secret that is no base64 goes without")
            })?,
            None => secret.as_bytes().to_vec(),
        };
        match bytes.is_empty() {
            true => Err(refuse("expected a secret that is not empty")),
            false => Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, &bytes))),
        }
    }

    /// The value of `webhook-signature`.
    pub(super) fn sign(&self, id: &str, timestamp: u64, body: &[u8]) -> String {
        let mut signing = hmac::Context::with_key(&self.0);
        signing.update(format!("{id}.{timestamp}.").as_bytes());
        signing.update(body);
        format!("v1,{}", STANDARD.encode(signing.sign()))
    }
}

/// The identity of a message: row, a dot, label. The row has no dot in it, so no two are the same.
pub(super) fn id(message: &Message) -> String {
    let row = escaped(message.row()).replace('.', "%2E");
    format!("{row}.{}", escaped(message.label()))
}

/// The identity of a batch: the same whenever the same messages are in it, in any order.
pub(super) fn batch_id(batch: &[Message]) -> String {
    let mut ids: Vec<String> = batch.iter().map(id).collect();
    ids.sort_unstable();
    let digest = digest::digest(&digest::SHA256, ids.join("\n").as_bytes());
    digest
        .as_ref()
        .iter()
        .fold(String::from("batch_"), |mut id, byte| {
            // To a text it does not fail.
            let _ = write!(id, "{byte:02x}");
            id
        })
}

/// What may stand in a header: all but visible ASCII, and the percent sign, is percent-encoded.
pub(super) fn escaped(text: &str) -> String {
    text.bytes()
        .fold(String::with_capacity(text.len()), |mut escaped, byte| {
            match byte {
                b'%' | ..=b' ' | 0x7f.. => {
                    // To a text it does not fail.
                    let _ = write!(escaped, "%{byte:02X}");
                }
                byte => escaped.push(char::from(byte)),
            }
            escaped
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sinks::samples::message;

    #[test]
    fn signatures_are_those_of_the_specification() {
        let key = Key::of("secret", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw").unwrap();
        let (id, body) = ("msg_p5jXN8AQM9LWM0D4loKWxJek", br#"{"test": 2432232314}"#);
        let signature = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE=";
        assert_eq!(key.sign(id, 1_614_265_330, body), signature);
        assert_ne!(key.sign(id, 1_614_265_331, body), signature);
    }

    #[test]
    fn a_secret_without_a_prefix_is_taken_as_it_is() {
        let raw = Key::of("secret", "hunter2").unwrap();
        let encoded = format!("whsec_{}", STANDARD.encode("hunter2"));
        let encoded = Key::of("secret", &encoded).unwrap();
        assert_eq!(raw.sign("a", 1, b"x"), encoded.sign("a", 1, b"x"));
    }

    #[test]
    fn a_secret_that_is_none_is_refused_and_not_repeated() {
        for secret in ["", "whsec_", "whsec_hunter2!"] {
            let text = Key::of("secret", secret).err().unwrap().to_string();
            assert!(
                text.starts_with("secret ") && !text.contains("hunter2"),
                "{text}"
            );
        }
    }

    #[test]
    fn a_batch_is_known_by_what_is_in_it_and_nothing_else() {
        let (a, b) = (message("a", "{}"), message("b", "[]"));
        let both = batch_id(&[a.clone(), b.clone()]);
        assert_eq!(both, batch_id(&[b.clone(), a.clone()]));
        assert_ne!(both, batch_id(&[a]));
        assert!(both.len() == 70 && both.is_ascii(), "{both}");
    }

    #[test]
    fn any_id_fits_into_a_header_and_stays_apart_from_others() {
        assert_eq!(id(&message("0193-x", "{}")), "0193-x.created");
        assert_eq!(
            id(&message("a.b c%ü\n", "{}")),
            "a%2Eb%20c%25%C3%BC%0A.created"
        );
    }
}
