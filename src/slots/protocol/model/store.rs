//! The store the model believes in: `request.rs` taken literally, and every way of getting it wrong.

use super::super::{Document, Epoch, Member, Name, Outcome, PROTOCOL, Request, Routes};

/// What is broken, on purpose. Each has an execution with two owners, and a test that finds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Variant {
    Sound,
    /// A reply passes for one in which every member has seen the epoch.
    NoWaitForSeen,
    /// An eviction does not look at the beat, and a lapse is forgotten: renewing after one covers for the beat.
    EvictAnyBeat,
    /// An ack sets whatever epoch the document has.
    AckCurrent,
    /// A beat that finds no member puts one there.
    BeatUpserts,
    /// What a primary shows before a majority has it passes for written.
    Unacknowledged,
    /// A beat writes the value it counted to itself.
    AbsoluteBeat,
    /// A creation sets `seen`.
    CreatorSees,
    /// A creator does not wait.
    CreatorHurries,
    /// The host asks what it was last told and not what time it is.
    FlagNotDeadline,
    /// Epochs are numbers only.
    NoNonce,
    /// The epoch one lapsed in is taken up again, however long ago.
    LapseForgotten,
    /// The own beat may go back.
    BeatMayGoBack,
    /// The host says "drained" and is not.
    DrainedTooEarly,
    /// Others evict at the moment in which the owner stops, and not a beat later.
    LeaseIsStop,
}

impl Variant {
    pub fn forgets(self) -> bool {
        matches!(self, Variant::LapseForgotten | Variant::EvictAnyBeat)
    }
}

/// A request on its way.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Letter {
    pub request: Request,
    /// For `AbsoluteBeat`: what the sender believes its next beat to be.
    pub absolute: u64,
    pub routes: Routes,
}

pub fn apply(slot: &mut Option<Document>, letter: &Letter, variant: Variant) -> Outcome {
    match &letter.request {
        Request::Look => slot.clone().map_or(Outcome::Missing, Outcome::Shown),
        Request::Create { id, routes, nonce } => create(slot, id, routes, nonce, variant),
        Request::Beat { id } if variant == Variant::BeatUpserts => upsert(slot, id, &letter.routes),
        other => {
            let Some(document) = slot
                .as_mut()
                .filter(|document| document.protocol == PROTOCOL)
            else {
                return Outcome::Unmatched;
            };
            match write(document, other, letter.absolute, variant) {
                Some(()) => Outcome::Written(document.clone()),
                None => Outcome::Unmatched,
            }
        }
    }
}

fn create(
    slot: &mut Option<Document>,
    id: &Name,
    routes: &Routes,
    nonce: &Name,
    variant: Variant,
) -> Outcome {
    if slot.is_some() {
        return Outcome::Unmatched;
    }
    let epoch = Epoch {
        number: 1,
        nonce: nonce.clone(),
    };
    let seen = (variant == Variant::CreatorSees).then(|| epoch.clone());
    let members = vec![Member {
        id: id.clone(),
        beat: 0,
        seen,
        routes: routes.clone(),
    }];
    Outcome::Written(
        slot.insert(Document {
            protocol: PROTOCOL,
            epoch,
            members,
        })
        .clone(),
    )
}

fn upsert(slot: &mut Option<Document>, id: &Name, routes: &Routes) -> Outcome {
    let epoch = Epoch {
        number: 1,
        nonce: id.clone(),
    };
    let document = slot.get_or_insert_with(|| Document {
        protocol: PROTOCOL,
        epoch,
        members: Vec::new(),
    });
    if document.member(id).is_none() {
        let seen = Some(document.epoch.clone());
        document.members.push(Member {
            id: id.clone(),
            beat: 0,
            seen,
            routes: routes.clone(),
        });
    }
    if let Some(member) = find(document, id) {
        member.beat += 1;
    }
    Outcome::Written(document.clone())
}

fn find<'a>(document: &'a mut Document, id: &Name) -> Option<&'a mut Member> {
    document.members.iter_mut().find(|member| member.id == *id)
}

fn write(
    document: &mut Document,
    request: &Request,
    absolute: u64,
    variant: Variant,
) -> Option<()> {
    match request {
        Request::Look | Request::Create { .. } => return None,
        Request::Join { id, routes, nonce } => {
            if document.member(id).is_some() {
                return None;
            }
            document.epoch = document.epoch.after(nonce.clone());
            let seen = Some(document.epoch.clone());
            document.members.push(Member {
                id: id.clone(),
                beat: 0,
                seen,
                routes: routes.clone(),
            });
        }
        Request::Beat { id } => {
            let member = find(document, id)?;
            member.beat = if variant == Variant::AbsoluteBeat {
                absolute
            } else {
                member.beat + 1
            };
        }
        Request::Ack { id, epoch } => {
            let current = document.epoch.clone();
            if current != *epoch && variant != Variant::AckCurrent {
                return None;
            }
            find(document, id)?.seen = Some(current);
        }
        Request::Renew {
            id,
            epoch,
            routes,
            nonce,
        } => {
            if document.epoch != *epoch {
                return None;
            }
            find(document, id)?.routes = routes.clone();
            document.epoch = document.epoch.after(nonce.clone());
        }
        Request::Evict {
            id,
            beat,
            epoch,
            nonce,
        } => {
            let victim = find(document, id)?;
            if (victim.beat != *beat && variant != Variant::EvictAnyBeat)
                || document.epoch != *epoch
            {
                return None;
            }
            remove(document, id, nonce);
        }
        Request::Leave { id, nonce } => {
            find(document, id)?;
            remove(document, id, nonce);
        }
    }
    Some(())
}

fn remove(document: &mut Document, id: &Name, nonce: &Name) {
    document.members.retain(|member| member.id != *id);
    document.epoch = document.epoch.after(nonce.clone());
}

/// What a broken replica makes of its own request before it leaves.
pub fn distort(request: Request, variant: Variant) -> Request {
    if variant != Variant::NoNonce {
        return request;
    }
    let none = || Name::from("");
    match request {
        Request::Create { id, routes, .. } => Request::Create {
            id,
            routes,
            nonce: none(),
        },
        Request::Join { id, routes, .. } => Request::Join {
            id,
            routes,
            nonce: none(),
        },
        Request::Renew {
            id, epoch, routes, ..
        } => Request::Renew {
            id,
            epoch,
            routes,
            nonce: none(),
        },
        Request::Evict {
            id, beat, epoch, ..
        } => Request::Evict {
            id,
            beat,
            epoch,
            nonce: none(),
        },
        Request::Leave { id, .. } => Request::Leave { id, nonce: none() },
        other => other,
    }
}

/// What a broken replica reads into a reply.
pub fn misread(outcome: Outcome, me: Option<&Member>, variant: Variant) -> Outcome {
    let Outcome::Written(mut document) = outcome else {
        return outcome;
    };
    let epoch = document.epoch.clone();
    for member in &mut document.members {
        match variant {
            Variant::NoWaitForSeen => member.seen = Some(epoch.clone()),
            Variant::CreatorHurries if member.seen.is_none() => {
                member.seen = Some(Epoch {
                    number: 0,
                    nonce: "hurry".into(),
                });
            }
            Variant::BeatMayGoBack if me.is_some_and(|me| me.id == member.id) => {
                member.beat = member.beat.max(me.map_or(0, |me| me.beat + 1));
            }
            _ => {}
        }
    }
    Outcome::Written(document)
}
