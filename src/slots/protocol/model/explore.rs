//! Breadth first over every world within reach of the rules.

use std::collections::HashSet;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::time::{Duration, Instant};

use super::world::{Action, Rules, World};

pub struct Found {
    pub states: usize,
    pub depth: usize,
    pub took: Duration,
    /// Everything within the rules was seen.
    pub complete: bool,
    /// The shortest way to two owners.
    pub broken: Option<Vec<Action>>,
    /// The most half beats any sampled state needed until every lane was owned; none when one was not in the bound.
    pub recovery: Option<u32>,
    /// The way to a state that did not recover.
    pub stuck: Option<Vec<Action>>,
    pub sampled: usize,
}

pub struct Limits {
    pub states: usize,
    /// Check the recovery of one state in so many; 0: of none.
    pub sample: u64,
    pub bound: u32,
}

pub fn explore(start: World, rules: &Rules, limits: &Limits) -> Found {
    let begun = Instant::now();
    let mut seen: HashSet<u64, BuildHasherDefault<Pass>> = HashSet::default();
    let mut way: Vec<(u32, Action)> = vec![(0, Action::Advance)];
    let mut level = vec![(start.clone(), 0u32)];
    seen.insert(print(&start));
    let mut found = Found {
        states: 1,
        depth: 0,
        took: Duration::ZERO,
        complete: true,
        broken: None,
        recovery: Some(0),
        stuck: None,
        sampled: 0,
    };
    let mut actions = Vec::new();
    while !level.is_empty() && found.broken.is_none() && found.stuck.is_none() {
        found.depth += 1;
        let mut next = Vec::new();
        'level: for (world, node) in &level {
            world.actions(rules, &mut actions);
            for action in &actions {
                let mut after = world.clone();
                after.act(*action, rules);
                let mark = print(&after);
                if !seen.insert(mark) {
                    continue;
                }
                way.push((*node, *action));
                let here = u32::try_from(way.len() - 1).unwrap_or(u32::MAX);
                if after.broken() {
                    found.broken = Some(trace(&way, here));
                    break 'level;
                }
                if limits.sample > 0 && mark.is_multiple_of(limits.sample) {
                    found.sampled += 1;
                    match after.recovers(rules, limits.bound) {
                        Some(spent) => found.recovery = found.recovery.map(|most| most.max(spent)),
                        None => {
                            found.recovery = None;
                            found.stuck = Some(trace(&way, here));
                            break 'level;
                        }
                    }
                }
                next.push((after, here));
                if seen.len() >= limits.states {
                    found.complete = false;
                    break 'level;
                }
            }
        }
        level = if found.complete { next } else { Vec::new() };
    }
    found.states = seen.len();
    found.took = begun.elapsed();
    found
}

fn trace(way: &[(u32, Action)], mut node: u32) -> Vec<Action> {
    let mut actions = Vec::new();
    while node != 0 {
        let (before, action) = way[node as usize];
        actions.push(action);
        node = before;
    }
    actions.reverse();
    actions
}

fn print(world: &World) -> u64 {
    let mut mix = Mix(0x9e37_79b9_7f4a_7c15);
    world.hash(&mut mix);
    mix.finish()
}

/// A quick hash; a million states in 64 bits do not meet.
struct Mix(u64);

impl Mix {
    fn eat(&mut self, word: u64) {
        self.0 = (self.0 ^ word)
            .wrapping_mul(0xd6e8_feb8_6659_fd93)
            .rotate_left(29);
        self.0 ^= self.0 >> 32;
    }
}

impl Hasher for Mix {
    fn finish(&self) -> u64 {
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.eat(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, word: u8) {
        self.eat(word.into());
    }

    fn write_u32(&mut self, word: u32) {
        self.eat(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        self.eat(word);
    }

    fn write_usize(&mut self, word: usize) {
        self.eat(word as u64);
    }
}

/// The set holds prints: they are hashed already.
#[derive(Default)]
struct Pass(u64);

impl Hasher for Pass {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, _: &[u8]) {}

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }
}
