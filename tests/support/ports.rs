//! Ports for private servers.

use std::net::TcpListener;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU16, Ordering};

use uuid::Uuid;

/// Below the range that outgoing connections take theirs from: a server that is down for a while
/// must find its port free when it comes back.
const LOW: u16 = 20_000;
const HIGH: u16 = 32_000;

/// The first of `count` free ports in a row. None is given out twice by one process.
pub fn free(count: u16) -> u16 {
    // Processes that start together begin at different places.
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
        let random = Uuid::now_v7().as_u128() % u128::from(HIGH - LOW);
        AtomicU16::new(random as u16)
    });

    for _ in LOW..HIGH {
        let first = LOW + NEXT.fetch_add(count, Ordering::Relaxed) % (HIGH - LOW - count);
        if (first..first + count).all(|port| TcpListener::bind(("127.0.0.1", port)).is_ok()) {
            return first;
        }
    }
    panic!("no {count} free ports between {LOW} and {HIGH}");
}
