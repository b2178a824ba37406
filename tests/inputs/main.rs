//! What people get wrong, and what the program says: one line that names the thing and the remedy, and never a password.
//! A row of a table: what was given `=>` what is said, part by part.

#[path = "../support/mod.rs"]
mod support;

mod rows;
mod servers;
mod settings;
mod stage;
