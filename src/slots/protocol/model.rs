//! A model of section 4.

mod checks;
mod explore;
mod histories;
mod history;
mod replica;
mod store;
mod variants;
mod world;
