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

use crate::error::DUPLICATE_KEY;
use crate::slots::protocol::{self, Epoch, Member, Name, Outcome, PROTOCOL, Request, Routes};

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
    // The server gives up first, so that it is known that the write was done.
    command.extend(doc! {
        "maxTimeMS": millis,
        "writeConcern": { "w": "majority", "wtimeout": millis * 2 / 3 },
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

/// Why a request has no reply that counts.
#[derive(Debug, thiserror::Error)]
pub(super) enum NoReply {
    /// The server did it, and no majority has said so.
    #[error("not acknowledged by a majority: {0}")]
    Unacknowledged(Document),
    #[error("{0}")]
    Failed(String),
}

/// What the server's reply to `request` means.
pub(super) fn outcome(request: &Request, reply: &Document) -> Result<Outcome, NoReply> {
    match reply.get_document("writeConcernError") {
        Ok(error) => Err(NoReply::Unacknowledged(error.clone())),
        Err(_) => understood(request, reply).map_err(NoReply::Failed),
    }
}

fn understood(request: &Request, reply: &Document) -> Result<Outcome, String> {
    match request {
        Request::Look => {
            let cursor = reply.get_document("cursor").map_err(unexpected)?;
            match cursor.get_array("firstBatch").map_err(unexpected)?.first() {
                None => Ok(Outcome::Missing),
                Some(document) => {
                    let document = document.as_document().ok_or("a document that is none")?;
                    match protocol(document)? {
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

pub(super) fn read(document: &Document) -> Result<protocol::Document, String> {
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
/// The version of the text that a group keeps to.
pub(super) fn protocol(group: &Document) -> Result<u64, String> {
    number(group, "protocol")
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn routes() -> Routes {
        std::sync::Arc::new(["amqp/$a".into(), "amqp/b".into()].into())
    }

    fn epoch(number: u64) -> Epoch {
        Epoch {
            number,
            nonce: "x.1".into(),
        }
    }

    fn group() -> protocol::Document {
        protocol::Document {
            members: vec![
                Member {
                    id: "a.1".into(),
                    beat: 5,
                    seen: Some(epoch(2)),
                    routes: routes(),
                },
                Member {
                    id: "b.1".into(),
                    beat: 0,
                    seen: None,
                    routes: Routes::default(),
                },
            ],
            epoch: epoch(2),
            protocol: PROTOCOL,
        }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        assert_eq!(read(&group().into_spelling()).unwrap(), group());
    }

    #[test]
    fn every_write_names_the_group_its_protocol_and_a_majority_and_none_upserts() {
        let (id, nonce): (Name, Name) = ("a.1".into(), "x.2".into());
        let epoch = epoch(2);
        let writes = [
            Request::Join {
                id: id.clone(),
                routes: routes(),
                nonce: nonce.clone(),
            },
            Request::Beat { id: id.clone() },
            Request::Ack {
                id: id.clone(),
                epoch: epoch.clone(),
            },
            Request::Renew {
                id: id.clone(),
                epoch: epoch.clone(),
                routes: routes(),
                nonce: nonce.clone(),
            },
            Request::Evict {
                id: id.clone(),
                beat: 5,
                epoch,
                nonce: nonce.clone(),
            },
            Request::Leave { id, nonce },
        ];
        for write in writes {
            let command = command("outbox_slots", "g", &write, SECOND);
            let query = command.get_document("query").unwrap();
            assert_eq!(query.get_str("_id").unwrap(), "g", "{write:?}");
            assert!(query.contains_key("protocol"), "{write:?}");
            let concern = command.get_document("writeConcern").unwrap();
            assert_eq!(concern.get_str("w").unwrap(), "majority", "{write:?}");
            assert!(!command.contains_key("upsert") && command.get_bool("new").unwrap());
            let members = query.keys().any(|key| key.starts_with("members"));
            assert!(members, "{write:?}");
        }
    }

    /// Every part of a filter keeps some other write, or an old copy of this one, from doing harm.
    #[test]
    fn each_change_is_bound_to_what_it_was_decided_on() {
        let (id, nonce): (Name, Name) = ("a.1".into(), "x.2".into());
        let (of, next) = (epoch(2), doc! { "number": 3_i64, "nonce": "x.2" });
        let at = doc! { "epoch.number": 2_i64, "epoch.nonce": "x.1" };
        let with = |member: Document| {
            let mut filter = member;
            filter.extend(at.clone());
            filter
        };
        let mine = doc! { "members.id": "a.1" };
        let named = ["amqp/$a", "amqp/b"];

        let ack = Request::Ack {
            id: id.clone(),
            epoch: of.clone(),
        };
        let seen = doc! { "members.$.seen": { "number": 2_i64, "nonce": "x.1" } };
        assert_eq!(
            update(&ack),
            (with(mine.clone()), doc! { "$set": seen }.into())
        );

        let renew = Request::Renew {
            id: id.clone(),
            epoch: of.clone(),
            routes: routes(),
            nonce: nonce.clone(),
        };
        let renewed = doc! { "$set": { "epoch": next.clone(), "members.$.routes": named } };
        assert_eq!(update(&renew), (with(mine.clone()), renewed.into()));

        let evict = Request::Evict {
            id: id.clone(),
            beat: 5,
            epoch: of,
            nonce: nonce.clone(),
        };
        let still = doc! { "members": { "$elemMatch": { "id": "a.1", "beat": 5_i64 } } };
        let gone = doc! { "$pull": { "members": { "id": "a.1" } }, "$set": { "epoch": next } };
        assert_eq!(update(&evict), (with(still), gone.into()));

        let beat = doc! { "$inc": { "members.$.beat": 1_i64 } };
        assert_eq!(
            update(&Request::Beat { id: id.clone() }),
            (mine, beat.into())
        );

        let (filter, stages) = update(&Request::Join {
            id,
            routes: routes(),
            nonce,
        });
        assert_eq!(filter, doc! { "members.id": { "$ne": "a.1" } });
        let literal = format!("{:?}", doc! { "$literal": named });
        assert!(
            format!("{stages:?}").contains(&literal),
            "a $ in a name is a letter: {stages:?}"
        );
    }

    #[test]
    fn only_what_a_majority_acknowledged_is_a_reply() {
        let beat = Request::Beat { id: "a.1".into() };
        let mut reply = doc! { "ok": 1, "value": group().into_spelling() };
        let written = outcome(&beat, &reply).unwrap();
        assert_eq!(written, Outcome::Written(group()));
        reply.insert("writeConcernError", doc! { "code": 64 });
        assert!(matches!(
            outcome(&beat, &reply),
            Err(NoReply::Unacknowledged(_))
        ));
        let none = doc! { "ok": 1, "value": null };
        assert_eq!(outcome(&beat, &none).unwrap(), Outcome::Unmatched);
        let foreign = doc! { "ok": 1, "value": { "protocol": 1, "epoch": 5 } };
        assert!(matches!(outcome(&beat, &foreign), Err(NoReply::Failed(_))));
    }

    #[test]
    fn a_look_says_what_is_there() {
        let look = |batch: Vec<Document>| {
            let reply = doc! { "cursor": { "firstBatch": batch } };
            outcome(&Request::Look, &reply).unwrap()
        };
        assert_eq!(look(vec![]), Outcome::Missing);
        assert_eq!(look(vec![group().into_spelling()]), Outcome::Shown(group()));
        assert_eq!(
            look(vec![doc! { "protocol": 2, "epoch": "?" }]),
            Outcome::Foreign(2)
        );
    }

    #[test]
    fn a_group_that_is_there_already_is_not_made_again() {
        let create = Request::Create {
            id: "a.1".into(),
            routes: routes(),
            nonce: "x.1".into(),
        };
        let refused = |code: i32| doc! { "n": 0, "writeErrors": [{ "code": code }] };
        assert_eq!(
            outcome(&create, &refused(DUPLICATE_KEY)).unwrap(),
            Outcome::Unmatched
        );
        assert!(outcome(&create, &refused(13)).is_err());
        let Outcome::Written(made) = outcome(&create, &doc! { "n": 1 }).unwrap() else {
            panic!("it was made");
        };
        assert_eq!(made.members[0].seen, None, "it has to wait");
        let command = command("outbox_slots", "g", &create, SECOND);
        let documents = command.get_array("documents").unwrap();
        assert_eq!(read(documents[0].as_document().unwrap()).unwrap(), made);
    }
}
