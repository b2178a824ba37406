//! By how much the clocks of two machines differ.

use mongodb::Database;

use super::Hello;
use crate::{error::Result, row::now};

/// By how much clocks may differ before rows are read too early or too late for anyone to notice.
const MOST_SKEW: i64 = 1000;

#[derive(Debug)]
pub(crate) struct Server {
    /// Neither a replica set nor a sharded cluster: no transactions, no change streams.
    pub(crate) is_standalone: bool,
    pub(crate) clock: Skew,
}

impl Server {
    /// Asks twice: the first answer may have waited for a connection.
    pub(crate) async fn ask(database: &Database) -> Result<Self> {
        Hello::ask(database).await?;
        let sent = now();
        let hello = Hello::ask(database).await?;
        let received = now();
        let theirs = hello.0.get_datetime("localTime");
        let theirs = theirs.map_or(sent, |time| time.timestamp_millis());
        Ok(Self {
            is_standalone: !hello.is_transactional(),
            clock: Skew::of(sent, theirs, received),
        })
    }
}

/// The server's clock less ours, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Skew {
    pub(crate) ahead: i64,
    /// Half of the round trip: what it may be wrong by.
    pub(crate) uncertain: i64,
}

impl Skew {
    fn of(sent: i64, theirs: i64, received: i64) -> Self {
        let uncertain = (received - sent) / 2;
        Self {
            ahead: theirs - sent - uncertain,
            uncertain,
        }
    }

    /// Whether it is large, whatever the network did to the measurement.
    pub(crate) fn is_large(self) -> bool {
        self.ahead.abs() - self.uncertain > MOST_SKEW
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slow_network_is_no_wrong_clock() {
        assert!(!Skew::of(0, 2500, 5000).is_large());
        assert!(
            !Skew::of(0, 5000, 5000).is_large(),
            "the answer may have come at once"
        );
        assert!(!Skew::of(0, 900, 2).is_large());
        assert!(Skew::of(0, 1500, 2).is_large() && Skew::of(5000, 2000, 5002).is_large());
        assert_eq!(
            Skew::of(1000, 3000, 1100),
            Skew {
                ahead: 1950,
                uncertain: 50
            }
        );
    }
}
