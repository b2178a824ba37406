//! What a member tells the operator: debug while all is well, info on a change, warn when something was lost.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
};

use super::spelling::NoReply;
use crate::{
    clock::Moment,
    metrics,
    report::Reports,
    slots::protocol::{Assignment, Epoch, Name, Outcome, Ownership, Reason, Request},
};

#[derive(Clone)]
pub(super) struct Says {
    group: Arc<str>,
    /// How many routes there are.
    routes: usize,
    /// Until when something is held, as it was said last.
    held: Option<Moment>,
    reports: Arc<Mutex<Reports>>,
    said: Option<Said>,
}

/// What was said last of the assignment.
#[derive(Clone, PartialEq)]
enum Said {
    Owns(Epoch),
    Nothing(Reason),
}

/// To a spare.
fn is_nothing_new(said: &Said) -> bool {
    match said {
        Said::Nothing(
            Reason::Spare
            | Reason::Unsettled
            | Reason::StandingDown
            | Reason::Lapsed
            | Reason::Joining
            | Reason::Waiting,
        ) => true,
        Said::Nothing(Reason::Foreign(_) | Reason::Left) | Said::Owns(_) => false,
    }
}

impl Says {
    pub(super) fn new(group: &str) -> Self {
        Self {
            group: group.into(),
            routes: 0,
            held: None,
            reports: Arc::default(),
            said: None,
        }
    }

    /// How many routes there are now.
    pub(super) fn knows(&mut self, routes: usize) {
        self.routes = routes;
    }

    /// Of each request; a fault the first time, then counted.
    pub(super) fn asked(&self, request: &Request, outcome: &Result<Outcome, NoReply>) {
        let group = &*self.group;
        let Err(problem) = outcome else {
            return tracing::trace!(group, ?request, ?outcome, "asked");
        };
        let mut reports = self.reports.lock().unwrap_or_else(PoisonError::into_inner);
        reports.first(&problem.to_string(), |times| {
            tracing::warn!(
                group,
                %problem,
                times,
                "a request on outbox_slots failed; without it, lanes are lost. The user needs find, insert and update \
                 there, and the primary has to answer within a beat (TOA_ATOMICITY_INTERVAL)"
            );
        });
    }

    /// Of what is owned, each time the protocol says so.
    pub(super) fn assigned(
        &mut self,
        assignment: &Assignment,
        me: Option<&Name>,
        members: usize,
        now: Moment,
    ) {
        let group = &*self.group;
        let me = me.map_or("nobody", |me| me);
        let now = now.0.as_nanos() as u64;
        let said = match assignment {
            Assignment::Own(own) => Said::Owns(own.epoch.clone()),
            Assignment::None(reason) => Said::Nothing(*reason),
        };
        // A spare says so once, however often those change of whom it is one: it has nothing to lose.
        let was_spare = self.said == Some(Said::Nothing(Reason::Spare));
        if self.said.as_ref() == Some(&said) || (was_spare && is_nothing_new(&said)) {
            return;
        }
        metrics::members(group, members);
        match assignment {
            Assignment::Own(own) => {
                let (slots, epoch) = (self.slots(own), own.epoch.number);
                tracing::info!(group, me, slots, epoch, members, now, "owns lanes");
            }
            Assignment::None(reason) => self.owns_nothing(*reason, me, now),
        }
        self.said = Some(said);
    }

    fn owns_nothing(&self, reason: Reason, me: &str, now: u64) {
        let group = &*self.group;
        match reason {
            Reason::Joining => tracing::debug!(group, me, now, "owns nothing: joining"),
            Reason::Waiting => tracing::info!(
                group,
                me,
                now,
                "owns nothing yet: it made the group, and waits a lease for owners of one that may have been dropped"
            ),
            Reason::Unsettled => tracing::info!(
                group,
                me,
                now,
                "owns nothing for now: the members changed, and not all have let go of their lanes"
            ),
            Reason::StandingDown => {
                tracing::info!(
                    group,
                    me,
                    now,
                    "owns nothing for now: letting go of its lanes"
                );
            }
            Reason::Lapsed => tracing::warn!(
                group,
                me,
                now,
                "owns nothing: it cannot know whether it still does, no sign of life was acknowledged in time; it pumps again \
                 when MongoDB answers"
            ),
            Reason::Spare => tracing::info!(
                group,
                me,
                now,
                "owns nothing: spare, 128 members come before it or it serves no route now; it writes and publishes \
                 its own rows"
            ),
            Reason::Foreign(version) => tracing::error!(
                group,
                me,
                now,
                version,
                "owns nothing: the group speaks another version of the protocol; it joins once no member of that \
                 version is left and its document is gone"
            ),
            Reason::Left => tracing::info!(group, me, now, "owns nothing any more: left the group"),
        }
    }

    /// Of what is still in hand, lanes that are owned or rows of lanes that were, each time it may be for longer.
    pub(super) fn holds(&mut self, me: &str, until: Option<Moment>, now: Moment) {
        let before = std::mem::replace(&mut self.held, until);
        let (group, now) = (&*self.group, now.0.as_nanos() as u64);
        match until {
            Some(until) if before != Some(until) => {
                let until = until.0.as_nanos() as u64;
                tracing::debug!(group, me, now, until, "holds its lanes");
            }
            None if before.is_some() => tracing::debug!(group, me, now, "let go of its lanes"),
            Some(_) | None => {}
        }
    }

    pub(super) fn falls_silent(&self) {
        tracing::warn!(
            group = &*self.group,
            "writes are done and no majority acknowledges them: silent for a while, so that others may have its lanes"
        );
    }

    pub(super) fn doubts(&self) {
        tracing::warn!(
            group = &*self.group,
            "the wall clock ran ahead by a beat: was this machine stopped? Its lanes are given up until the others agree"
        );
    }

    /// Of leaving the lanes of a sink to those who can work on them.
    pub(super) fn serves(&self, sink: &str, serves: bool) {
        let group = &*self.group;
        match serves {
            true => tracing::info!(group, sink, "takes lanes again"),
            false => tracing::warn!(
                group,
                sink,
                "cannot publish or mark, and another can: its lanes are theirs meanwhile"
            ),
        }
    }

    /// `1/3` where that goes for every route, else each slot with its routes.
    fn slots(&self, own: &Ownership) -> String {
        let mut slots: BTreeMap<String, Vec<&str>> = BTreeMap::new();
        for (route, slot) in own.slots.iter() {
            slots.entry(slot.to_string()).or_default().push(route);
        }
        match slots.len() {
            1 if own.slots.len() == self.routes => slots.into_keys().collect(),
            _ => format!("{slots:?}"),
        }
    }
}
