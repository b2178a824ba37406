//! Messages for tests.

use std::{collections::BTreeMap, sync::Arc};

use bson::Bson;

use crate::{
    clock::Term,
    sinks::{Message, Route},
};

/// One whose payload is JSON.
pub(in crate::sinks) fn message(row: &str, body: &str) -> Message {
    message_of(row, body.as_bytes(), "application/json")
}

pub(in crate::sinks) fn message_of(row: &str, body: &[u8], content_type: &'static str) -> Message {
    let route = Route {
        component: "tea.pots".into(),
        label: "created".into(),
        exchange: String::new(),
        content_type,
        mandatory: false,
        headers: BTreeMap::new(),
    };
    Message {
        row: row.to_owned(),
        entity: Bson::from(7),
        time: Some(1_767_323_045),
        body: body.to_vec(),
        route: Arc::new(route),
        attempt: 1,
        is_replay: false,
        is_live: true,
        position: None,
        term: Term::Endless,
    }
}
