//! Connection strings without what is secret in them.

/// The parameters whose values are shown. Of all others, those that hold passwords and tokens among
/// them, only the names are.
const HARMLESS: [&str; 12] = [
    "appName",
    "authMechanism",
    "authSource",
    "directConnection",
    "loadBalanced",
    "readPreference",
    "replicaSet",
    "retryWrites",
    "ssl",
    "tls",
    "w",
    "heartbeat",
];

/// `text` with every URI in it bereft of credentials: `mongodb://…@host/tea?replicaSet=rs0`.
pub(crate) fn masked(text: &str) -> String {
    let mut uris: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match uris.last_mut() {
            // A password may have a space that nobody encoded.
            Some(uri) if !word.contains("://") => *uri = format!("{uri} {word}"),
            _ => uris.push(word.to_owned()),
        }
    }
    let masked: Vec<String> = uris.iter().map(|uri| masked_one(uri)).collect();
    masked.join(" ")
}

fn masked_one(text: &str) -> String {
    let Some((scheme, rest)) = text.split_once("://") else {
        return text.to_owned();
    };
    // The last one counts: a password with an @ that nobody encoded must not be shown in part.
    let (credentials, rest) = match rest.rsplit_once('@') {
        Some((_, rest)) => ("…@", rest),
        None => ("", rest),
    };
    let query = match rest.split_once('?') {
        Some((_, query)) => format!("?{}", masked_query(query)),
        None => String::new(),
    };
    let host = rest.split('?').next().unwrap_or_default();
    format!("{scheme}://{credentials}{host}{query}")
}

fn masked_query(query: &str) -> String {
    let parameter = |text: &str| match text.split_once('=') {
        Some((name, _))
            if !HARMLESS
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name)) =>
        {
            format!("{name}=…")
        }
        _ => text.to_owned(),
    };
    let parameters: Vec<String> = query.split('&').map(parameter).collect();
    parameters.join("&")
}

#[cfg(test)]
mod tests {
    use super::masked;

    #[test]
    fn credentials_are_never_shown_and_hosts_are() {
        for (text, shown) in [
            ("mongodb://db/tea", "mongodb://db/tea"),
            (
                "mongodb://me:hunter2@db,b:2/tea?replicaSet=rs0",
                "mongodb://…@db,b:2/tea?replicaSet=rs0",
            ),
            ("mongodb://me:hunter2@x@db", "mongodb://…@db"),
            ("mongodb://me:hun/ter2@db", "mongodb://…@db"),
            (
                "mongodb://db/?tlsCertificateKeyFilePassword=hunter2&tls=true",
                "mongodb://db/?tlsCertificateKeyFilePassword=…&tls=true",
            ),
            ("amqp://me:hunter2@a amqp://b/v", "amqp://…@a amqp://b/v"),
            ("mongodb://me:hun ter2@db", "mongodb://…@db"),
            ("5000 ms", "5000 ms"),
        ] {
            assert_eq!(masked(text), shown);
        }
    }
}
