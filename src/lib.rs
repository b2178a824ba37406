//! A transactional outbox for MongoDB: a state change and the events it produces commit together, and
//! the events then reach AMQP without the operation waiting.
//!
//! Every state change writes one [`Row`] into `<collection>_outbox` in the entity's own transaction. The
//! row is published at once, by the process that wrote it; a pump sweeps whatever did not leave; rows are
//! marked published in batches, and a TTL index expires them. At least once, nothing dropped, no
//! coordinator but the MongoDB that is there already.
//!
//! ```no_run
//! use bson::doc;
//! use toa_outbox::{Component, Label, Outbox, Settings};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = mongodb::Client::with_uri_str("mongodb://localhost/?replicaSet=rs0").await?;
//! let settings = Settings { amqp: vec!["amqp://localhost".into()], ..Settings::from_env()? };
//! let pots = Component::new("tea", "pots").labels(Label::system());
//! let pots = Outbox::open(&client.database("tea"), pots, settings).await?;
//!
//! let pot = pots.create(doc! { "material": "glass" }, doc! {}).await?; // tea.pots.created
//! let id = pot.get("_id").unwrap().clone();
//! pots.assign(doc! { "_id": id }, doc! { "$set": { "boiling": true } }, doc! {}).await?; // tea.pots.updated
//! pots.shutdown().await;
//! # Ok(()) }
//! ```
//!
//! Services in other languages write their rows themselves; the program of this crate, `toa-outbox run`, publishes them. It
//! is behind the feature `sidecar`, which is on unless `default-features = false`.
//!
//! # The map
//!
//! | part | what it knows |
//! | --- | --- |
//! | [`Outbox`], [`Transaction`] | all an application needs: transactions, entity helpers, shutdown |
//! | [`Subscription`] | hearing within the process what is committed |
//! | [`Component`], [`Label`], [`Encoding`] | what is published, under which names, in which form |
//! | [`Redact`] | what of an event is not to be stored |
//! | [`Settings`], [`Ceiling`] | every setting, from the environment or in code |
//! | [`Row`], [`Event`], [`Entry`] | what is stored |
//! | [`Slot`], [`LANES`] | which rows a replica pumps |
//! | [`Amqp`] | the connection to the broker |
//! | [`Sink`], [`Message`], [`Verdict`], [`Unreachable`], [`Policy`], [`SinkOptions`] | destinations of the application's own |
//! | [`JsonLines`], [`Stdout`] | two of them: a file, standard output |
//! | `Http` | another, behind the feature `http`: webhooks |
//! | [`Safety`] | how much of a backlog a destination is sent at a time |

#![forbid(unsafe_code)]
#![warn(missing_docs)]
// What the sidecar alone uses is in the modules that are gated below, and in some methods that are not worth a gate each.
#![cfg_attr(not(feature = "sidecar"), allow(dead_code))]

mod canonical;
mod ceiling;
#[cfg(feature = "sidecar")]
#[doc(hidden)]
pub mod cli;
mod clock;
mod component;
mod config;
mod error;
#[cfg(feature = "sidecar")]
mod health;
mod label;
mod lane;
mod metrics;
#[cfg(feature = "micro")]
#[doc(hidden)]
pub mod micro;
mod outbox;
mod redact;
mod relay;
mod report;
mod routes;
mod row;
#[cfg(feature = "sidecar")]
mod sidecar;
mod sinks;
mod slots;
mod store;

pub use ceiling::{Ceiling, NotACeiling};
pub use component::Component;
pub use config::Settings;
pub use error::{Error, Result};
pub use label::{BoxError, Encoding, Label};
pub use lane::{LANES, NotASlot, Slot};
pub use outbox::{Builder, Entry, Heard, Live, Outbox, Subscription, Transaction, Written};
pub use redact::Redact;
pub use relay::{ledger::Left, pump::Pass};
pub use row::{Event, Row, RowId};
#[cfg(feature = "http")]
pub use sinks::http::{Http, HttpBuilder};
pub use sinks::{
    Message, Policy, Sink, SinkOptions, Unreachable, Verdict, amqp::Amqp, file::JsonLines,
    safety::Safety, stdout::Stdout,
};
pub use store::init;

/// The examples of the README compile.
#[cfg(all(doctest, feature = "http"))]
#[doc = include_str!("../README.md")]
struct Readme;
