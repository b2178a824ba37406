//! The group's document, and each request on it, as MongoDB has them. Only this file knows their fields.
//!
//! ```js
//! { _id: 'tea.tea_pots_outbox', protocol: 1, epoch: { number: 7, nonce: '…' },
//!   members: [ { id: 'host-4711-9f3c….1', beat: 42, seen: { number: 7, nonce: '…' }, routes: ['amqp/created', …] } ] }
//! ```
//!
//! Commands are run as they are, so that nothing is repeated, read from elsewhere or judged on the way: a reply with a
//! write-concern error is no reply.

use std::time::Duration;

use bson::{Bson, Document, doc};

use crate::slots::protocol::{self, Epoch, Member, Name, Outcome, PROTOCOL, Request, Routes};

/// The server's code for a key that is there already.
const DUPLICATE_KEY: i32 = 11000;

/// The command of a request.
pub(super) fn command(
    collection: &str,
    group: &str,
    request: &Request,
    timeout: Duration,
) -> Document {
    let millis = i64::try_from(timeout.as_millis()).unwrap_or(i64::MAX);
    let mut command = match request {
        Request::Look => {
            return doc! {
                "find": collection,
                "filter": { "_id": group },
                "limit": 1,
                "singleBatch": true,
                "readConcern": { "level": "majority" },
                "maxTimeMS": millis,
            };
        }
        Request::Create { id, routes, nonce } => {
            let mut document = doc! { "_id": group };
            document.extend(created(id, routes, nonce).into_spelling());
            doc! { "insert": collection, "documents": [document] }
        }
        change => {
            let (filter, update) = update(change);
            let mut query = doc! { "_id": group, "protocol": PROTOCOL };
            query.extend(filter);
            doc! { "findAndModify": collection, "query": query, "update": update, "new": true }
        }
    };
    command.extend(doc! {
        "maxTimeMS": millis,
        "writeConcern": { "w": "majority", "wtimeout": millis },
    });
    command
}

/// The filter, beside group and protocol, and the update of a change.
fn update(change: &Request) -> (Document, Bson) {
    let (filter, update) = match change {
        Request::Join { id, routes, nonce } => {
            // The epoch it makes depends on the one it finds, and its own `seen` on that.
            let member = doc! {
                "id": { "$literal": &**id },
                "beat": 0_i64,
                "seen": "$epoch",
                "routes": { "$literal": list(routes) },
            };
            let number = doc! { "$add": ["$epoch.number", 1_i64] };
            let stages = vec![
                doc! { "$set": { "epoch": { "number": number, "nonce": { "$literal": &**nonce } } } },
                doc! { "$set": { "members": { "$concatArrays": ["$members", [member]] } } },
            ];
            return (doc! { "members.id": { "$ne": &**id } }, stages.into());
        }
        Request::Beat { id } => (
            doc! { "members.id": &**id },
            doc! { "$inc": { "members.$.beat": 1_i64 } },
        ),
        Request::Ack { id, epoch } => (
            at(epoch, doc! { "members.id": &**id }),
            doc! { "$set": { "members.$.seen": spelled(epoch) } },
        ),
        Request::Renew {
            id,
            epoch,
            routes,
            nonce,
        } => (
            at(epoch, doc! { "members.id": &**id }),
            doc! { "$set": {
                "epoch": spelled(&epoch.after(nonce.clone())),
                "members.$.routes": list(routes),
            } },
        ),
        Request::Evict {
            id,
            beat,
            epoch,
            nonce,
        } => (
            at(
                epoch,
                doc! { "members": { "$elemMatch": { "id": &**id, "beat": long(*beat) } } },
            ),
            doc! {
                "$pull": { "members": { "id": &**id } },
                "$set": { "epoch": spelled(&epoch.after(nonce.clone())) },
            },
        ),
        Request::Leave { id, nonce } => (
            doc! { "members.id": &**id },
            doc! {
                "$pull": { "members": { "id": &**id } },
                "$inc": { "epoch.number": 1_i64 },
                "$set": { "epoch.nonce": &**nonce },
            },
        ),
        // Made by `command` itself; none of them filters on a member.
        Request::Look | Request::Create { .. } => (doc! {}, doc! {}),
    };
    (filter, update.into())
}

fn at(epoch: &Epoch, mut filter: Document) -> Document {
    filter.extend(doc! { "epoch.number": long(epoch.number), "epoch.nonce": &*epoch.nonce });
    filter
}

/// What the server's reply to `request` means; an error is what an operator has to know.
pub(super) fn outcome(request: &Request, reply: &Document) -> Result<Outcome, String> {
    if let Ok(error) = reply.get_document("writeConcernError") {
        return Err(format!("not acknowledged by a majority: {error}"));
    }
    match request {
        Request::Look => {
            let cursor = reply.get_document("cursor").map_err(unexpected)?;
            match cursor.get_array("firstBatch").map_err(unexpected)?.first() {
                None => Ok(Outcome::Missing),
                Some(document) => {
                    let document = document.as_document().ok_or("a document that is none")?;
                    match number(document, "protocol")? {
                        version if version == u64::from(PROTOCOL) => {
                            Ok(Outcome::Shown(read(document)?))
                        }
                        version => Ok(Outcome::Foreign(u32::try_from(version).unwrap_or(u32::MAX))),
                    }
                }
            }
        }
        Request::Create { id, routes, nonce } => {
            let errors = reply
                .get_array("writeErrors")
                .map(Vec::as_slice)
                .unwrap_or_default();
            match errors.first().and_then(Bson::as_document) {
                None => Ok(Outcome::Written(created(id, routes, nonce))),
                Some(error)
                    if error
                        .get_i32("code")
                        .is_ok_and(|code| code == DUPLICATE_KEY) =>
                {
                    Ok(Outcome::Unmatched)
                }
                Some(error) => Err(format!("refused: {error}")),
            }
        }
        Request::Join { .. }
        | Request::Beat { .. }
        | Request::Ack { .. }
        | Request::Renew { .. }
        | Request::Evict { .. }
        | Request::Leave { .. } => match reply.get("value") {
            Some(Bson::Document(document)) => Ok(Outcome::Written(read(document)?)),
            _ => Ok(Outcome::Unmatched),
        },
    }
}

fn created(id: &Name, routes: &Routes, nonce: &Name) -> protocol::Document {
    protocol::Document {
        protocol: PROTOCOL,
        epoch: Epoch {
            number: 1,
            nonce: nonce.clone(),
        },
        members: vec![Member {
            id: id.clone(),
            beat: 0,
            seen: None,
            routes: routes.clone(),
        }],
    }
}

impl protocol::Document {
    fn into_spelling(self) -> Document {
        let members = self.members.iter().map(|member| {
            let mut spelling = doc! { "id": &*member.id, "beat": long(member.beat) };
            if let Some(seen) = &member.seen {
                spelling.insert("seen", spelled(seen));
            }
            spelling.insert("routes", list(&member.routes));
            spelling
        });
        doc! { "protocol": self.protocol, "epoch": spelled(&self.epoch), "members": members.collect::<Vec<_>>() }
    }
}

fn read(document: &Document) -> Result<protocol::Document, String> {
    let members = document.get_array("members").map_err(unexpected)?;
    Ok(protocol::Document {
        protocol: u32::try_from(number(document, "protocol")?).unwrap_or(u32::MAX),
        epoch: epoch(document.get_document("epoch").map_err(unexpected)?)?,
        members: members.iter().map(member).collect::<Result<_, _>>()?,
    })
}

fn member(member: &Bson) -> Result<Member, String> {
    let member = member.as_document().ok_or("a member that is no document")?;
    let routes = member.get_array("routes").map_err(unexpected)?.iter();
    let seen = match member.get("seen") {
        None | Some(Bson::Null) => None,
        Some(Bson::Document(seen)) => Some(epoch(seen)?),
        Some(_) => return Err("seen is no document".into()),
    };
    Ok(Member {
        id: name(member, "id")?,
        beat: number(member, "beat")?,
        seen,
        routes: routes
            .map(|route| Ok(route.as_str().ok_or("a route that is no string")?.into()))
            .collect::<Result<_, String>>()
            .map(std::sync::Arc::new)?,
    })
}

fn epoch(epoch: &Document) -> Result<Epoch, String> {
    Ok(Epoch {
        number: number(epoch, "number")?,
        nonce: name(epoch, "nonce")?,
    })
}

fn spelled(epoch: &Epoch) -> Document {
    doc! { "number": long(epoch.number), "nonce": &*epoch.nonce }
}

fn list(routes: &Routes) -> Vec<&str> {
    routes.iter().map(|route| &**route).collect()
}

/// Counters do not come near the limit.
fn long(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

fn name(document: &Document, field: &str) -> Result<Name, String> {
    document.get_str(field).map(Into::into).map_err(unexpected)
}

/// A number of any type: someone may have edited the document by hand.
fn number(document: &Document, field: &str) -> Result<u64, String> {
    let number = match document.get(field) {
        Some(Bson::Int32(number)) => i64::from(*number),
        Some(Bson::Int64(number)) => *number,
        Some(Bson::Double(number)) => *number as i64,
        _ => return Err(format!("{field} is no number")),
    };
    u64::try_from(number).map_err(|_| format!("{field} is negative"))
}

fn unexpected(error: bson::error::Error) -> String {
    format!("not a document of this group: {error}")
}
