//! The broker: whether it can be reached, and whether the exchanges are ours to use.

use super::Findings;
use crate::{
    Error, Settings,
    cli::target::Aim,
    sinks::amqp::{Exchange, Survey},
};

/// `is_without` says that messages go to sinks alone.
pub(super) async fn look(
    settings: &Settings,
    aims: &[Aim],
    is_without: bool,
    findings: &mut Findings,
) -> Result<(), Error> {
    if settings.amqp.is_empty() && is_without {
        findings.fine("broker", "none is configured, messages go to sinks alone");
        return Ok(());
    }
    if settings.amqp.is_empty() {
        findings.wrong(
            "broker",
            "nothing says where messages go",
            "set TOA_OUTBOX_AMQP, or pass --amqp",
        );
        return Ok(());
    }
    let mut usable = None;
    let mut away = Vec::new();
    for (address, survey) in Survey::each(settings).await? {
        match survey {
            Err(reason) => away.push((address, reason)),
            Ok(survey) => {
                match survey.is_blocked() {
                    true => findings.warn(
                        &address,
                        "the broker blocks publications",
                        "free memory or disk there; what waits goes out after that",
                    ),
                    false => findings.fine(&address, "connected"),
                }
                if let Some((_, spare)) = usable.replace((address, survey)) {
                    spare.close().await;
                }
            }
        }
    }
    for (address, reason) in away {
        let remedy = remedy(&reason);
        match usable.is_some() {
            true => findings.warn(&address, reason, remedy),
            false => findings.wrong(&address, reason, remedy),
        }
    }
    if let Some((address, survey)) = usable {
        exchanges(&address, survey, aims, findings).await;
    }
    Ok(())
}

async fn exchanges(address: &str, mut survey: Survey, aims: &[Aim], findings: &mut Findings) {
    let (mut fit, mut missing) = (0, 0);
    for rendering in aims.iter().flat_map(|aim| &aim.routes.all) {
        let name = &rendering.route.exchange;
        match survey.exchange(name).await {
            Ok(Exchange::Fits) => fit += 1,
            Ok(Exchange::Missing) => missing += 1,
            Ok(Exchange::Refused(reason)) => findings.wrong(
                &format!("exchange {name}"),
                reason,
                "it has to be a durable fanout without arguments, and this user needs the right to configure it and to write to it: delete it if nobody needs it as it is, or set another exchange template",
            ),
            Err(reason) => {
                findings.wrong(address, format!("looking at exchange {name}: {reason}"), "try again");
                return;
            }
        }
    }
    survey.close().await;
    if fit + missing > 0 {
        findings.fine(
            "exchanges",
            format!("{fit} stand as they should, {missing} are made with their first message"),
        );
    }
}

/// By what brokers and systems say.
fn remedy(reason: &str) -> &'static str {
    let says = |text: &str| reason.to_lowercase().contains(text);
    if says("access_refused") || says("login was refused") {
        "check user and password in the URI"
    } else if says("vhost") || says("not_allowed") {
        "check the virtual host in the URI, and this user's permissions on it"
    } else {
        "check that the broker runs, its host and port, and whether they speak TLS (amqps)"
    }
}
