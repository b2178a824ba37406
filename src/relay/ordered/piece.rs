//! What an ordered sink is given of one row, and what became of it so far.

use std::sync::Arc;

use bson::Bson;
use tokio::time::Instant;

use crate::{
    clock::Term,
    metrics::{Failure as Kind, Meters},
    routes::{RouteSet, Routes},
    row::{Row, RowId},
    sinks::{Message, Order},
    store::cursors::Place,
};

pub(super) struct Piece {
    pub(super) id: RowId,
    /// Where it ends.
    pub(super) place: Place,
    /// What is still to be taken, by the number of its route, in declared order.
    pub(super) todo: Vec<(usize, Message)>,
    /// What is given up, and why.
    pub(super) dead: Vec<(usize, String)>,
    /// After how many attempts.
    pub(super) attempts: u32,
    /// Why it can neither be delivered nor given up.
    pub(super) blocked: Option<String>,
    /// When it was made, in milliseconds since the epoch.
    pub(super) made: Option<i64>,
    /// Until when it is new; none: it is not, or was tried.
    pub(super) new_until: Option<Instant>,
}

/// Makes a row into messages.
#[derive(Clone)]
pub(super) struct Renderer {
    pub(super) routes: Arc<Routes>,
    /// Those of the sink.
    pub(super) own: RouteSet,
    pub(super) order: Order,
    /// Whether what cannot be delivered is given up.
    pub(super) gives_up: bool,
    pub(super) meters: Meters,
}

impl Renderer {
    /// Whether the sink was not there yet when the row was made.
    pub(super) fn skips(&self, row: &Row) -> bool {
        self.routes.skips(self.own, row)
    }

    pub(super) fn piece(&self, row: &Row, place: Place, term: &Term) -> Piece {
        let mut piece = Piece::empty(row, place);
        let done = self.routes.done(row.outstanding.as_deref());
        for (index, route) in self.routes.all.iter().enumerate() {
            if done.contains(index) || !self.own.contains(index) {
                continue;
            }
            let rendered = match self.order.is_whole {
                true => route.label.render_whole(&row.event, self.routes.encoding),
                false => route.label.render(&row.event, self.routes.encoding),
            };
            match rendered {
                Ok(None) => {}
                Ok(Some(body)) => {
                    let message = Message {
                        position: position(&piece.place),
                        ..route.message(row, body, term)
                    };
                    piece.todo.push((index, message));
                }
                Err(unrendered) => {
                    self.meters.failed(index, Kind::Unrendered);
                    piece.unrendered(index, unrendered.to_string(), self.gives_up);
                }
            }
        }
        piece
    }
}

impl Piece {
    /// Of a row of which nothing is delivered.
    pub(super) fn empty(row: &Row, place: Place) -> Self {
        Self {
            id: row.id.clone(),
            place,
            todo: Vec::new(),
            dead: Vec::new(),
            attempts: 1,
            blocked: None,
            made: row.id.time(),
            new_until: None,
        }
    }

    /// Whether it is on its way for the first time, soon after its commit.
    pub(super) fn is_new(&self, now: Instant) -> bool {
        self.new_until.is_some_and(|until| now < until)
    }

    fn unrendered(&mut self, route: usize, reason: String, gives_up: bool) {
        match gives_up {
            true => self.dead.push((route, reason)),
            false => self.blocked = Some(reason),
        }
    }

    pub(super) fn is_settled(&self) -> bool {
        self.todo.is_empty() && self.blocked.is_none()
    }

    /// Gives up what is left of it after so many attempts, but for the last that were not in them.
    pub(super) fn park(&mut self, reason: &str, attempts: u32, untried: usize) {
        self.attempts = attempts;
        let tried = self.todo.len().saturating_sub(untried);
        let left = self.todo.drain(..tried);
        self.dead
            .extend(left.map(|(route, _)| (route, reason.to_owned())));
    }
}

fn position(place: &Place) -> Option<Arc<str>> {
    match place {
        Place::Token(_, Bson::Document(token)) => token.get_str("_data").ok().map(Arc::from),
        Place::Token(..) | Place::Row(_) => None,
    }
}
