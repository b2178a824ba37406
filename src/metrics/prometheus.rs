//! The metrics as Prometheus reads them.

use metrics::{describe_counter, describe_gauge, describe_histogram};
use metrics_exporter_prometheus::{BuildError, Matcher, PrometheusBuilder, PrometheusRecorder};

use super::{
    AVOIDED, BLOCKED, COMMIT_TO_CONFIRM, CONNECTED, CYCLE, DIED, FAILED, IN_FLIGHT, LANES,
    MALFORMED, MARKED, MEMBERS, OLDEST, PUBLISH, PUBLISHED, REOPENED, RETRIED, TAILED, UNASSIGNED,
    UNPUBLISHED,
};

/// From the fastest confirm to a backlog of an hour.
const BUCKETS: [f64; 16] = [
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0, 600.0,
    3600.0,
];

/// Counts until it is read; whoever installs it sees to its upkeep, which [`serve`](crate::health::serve) does.
pub(crate) fn recorder() -> Result<PrometheusRecorder, BuildError> {
    let mut builder = PrometheusBuilder::new();
    for name in [CYCLE, PUBLISH, COMMIT_TO_CONFIRM] {
        builder = builder.set_buckets_for_metric(Matcher::Full(name.into()), &BUCKETS)?;
    }
    Ok(builder.build_recorder())
}

/// Says what each metric is, to the recorder that is installed.
pub(crate) fn describe() {
    describe_gauge!(
        UNPUBLISHED,
        "Rows that wait in the collection, 100000 at most"
    );
    describe_gauge!(
        OLDEST,
        "For how long the oldest unpublished row has been due; alert on this"
    );
    describe_counter!(PUBLISHED, "Messages the broker confirmed");
    describe_counter!(
        FAILED,
        "Messages that were not sent and are tried again, by kind of failure"
    );
    describe_counter!(
        AVOIDED,
        "Rows left alone because this process was at them already"
    );
    describe_counter!(MARKED, "Rows marked published");
    describe_counter!(MALFORMED, "Readings of rows that no pump can publish");
    describe_gauge!(IN_FLIGHT, "Rows on their way to the broker");
    describe_histogram!(CYCLE, "How long a cycle of the pump took");
    describe_histogram!(
        PUBLISH,
        "From handing a message to the broker to its confirm"
    );
    describe_histogram!(
        COMMIT_TO_CONFIRM,
        "From the time in a row's id to the confirm"
    );
    describe_counter!(
        UNASSIGNED,
        "Cycles that read nothing because no lane was owned"
    );
    describe_counter!(RETRIED, "Attempts at messages that failed for themselves");
    describe_counter!(
        DIED,
        "Messages that were given up, and are kept as dead deliveries"
    );
    describe_gauge!(LANES, "Lanes this replica owns, of 128");
    describe_gauge!(super::BEHIND, "Age of the row that an ordered sink is at");
    describe_gauge!(MEMBERS, "Members of the group that shares the lanes");
    describe_counter!(TAILED, "Rows the tail took");
    describe_counter!(REOPENED, "Times the tail was opened again");
    describe_gauge!(CONNECTED, "Connections to the broker that are up");
    describe_gauge!(BLOCKED, "Connections the broker has blocked");
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::metrics::{
        BacklogMeters, Failure, KINDS, LinkMeters, Meters, TailMeters, members, tail_reopened,
    };

    /// All of them, each used once.
    fn rendered() -> String {
        let recorder = recorder().unwrap();
        metrics::with_local_recorder(&recorder, || {
            describe();
            let meters = Meters::new(
                "tea.pots",
                "amqp",
                ["created", "boiled"].map(Some).into_iter(),
            );
            BacklogMeters::new("tea.pots").waits(3, Duration::from_millis(1500));
            meters.published(1, Some(40));
            meters.published(0, Some(-7));
            meters.failed(1, Failure::Refused);
            meters.avoided();
            meters.marked(2);
            meters.malformed();
            let _flying = meters.flying();
            drop((meters.flying(), meters.cycle()));
            meters.unassigned();
            meters.lanes(128);
            meters.retried();
            meters.died();
            let tail = TailMeters::new("tea.pots");
            tail.taken();
            tail_reopened();
            members("tea", 2);
            let link = LinkMeters::new();
            link.link(1, 1);
            link.link(0, -1);
            link.taken(Duration::from_micros(1500));
            recorder.handle().render()
        })
    }

    #[test]
    fn each_is_counted_under_its_name_and_labels() {
        let text = rendered();
        for line in [
            "toa_outbox_unpublished_rows{component=\"tea.pots\"} 3",
            "toa_outbox_oldest_unpublished_seconds{component=\"tea.pots\"} 1.5",
            "toa_outbox_published_total{component=\"tea.pots\",sink=\"amqp\",label=\"boiled\"} 1",
            "toa_outbox_failed_total{component=\"tea.pots\",sink=\"amqp\",label=\"boiled\",kind=\"refused\"} 1",
            "toa_outbox_failed_total{component=\"tea.pots\",sink=\"amqp\",label=\"boiled\",kind=\"unrendered\"} 0",
            "toa_outbox_marked_total{component=\"tea.pots\",sink=\"amqp\"} 2",
            "toa_outbox_in_flight_rows{component=\"tea.pots\",sink=\"amqp\"} 1",
            "toa_outbox_commit_to_confirm_seconds_bucket{component=\"tea.pots\",sink=\"amqp\",le=\"0.05\"} 2",
            "toa_outbox_commit_to_confirm_seconds_sum{component=\"tea.pots\",sink=\"amqp\"} 0.04",
            "toa_outbox_cycle_duration_seconds_count{component=\"tea.pots\",sink=\"amqp\"} 1",
            "toa_outbox_owned_lanes{component=\"tea.pots\",sink=\"amqp\"} 128",
            "toa_outbox_tail_rows_total{component=\"tea.pots\"} 1",
            "toa_outbox_tail_reopenings_total 1",
            "toa_outbox_members{group=\"tea\"} 2",
            "toa_outbox_connected 1",
            "toa_outbox_blocked 0",
            "toa_outbox_publish_latency_seconds_bucket{le=\"0.0025\"} 1",
        ] {
            assert!(text.lines().any(|had| had == line), "{line} in {text}");
        }
    }

    /// A failure is the index of its own counter.
    #[test]
    fn kinds_are_in_the_order_of_their_numbers() {
        for (index, (failure, _)) in KINDS.into_iter().enumerate() {
            assert_eq!(failure as usize, index);
        }
    }

    #[test]
    fn each_is_described_and_in_the_table_of_the_readme() {
        let text = rendered();
        let readme = include_str!("../../README.md");
        let types = text.lines().filter_map(|line| line.strip_prefix("# TYPE "));
        let mut names = 0;
        for (name, kind) in types.filter_map(|line| line.split_once(' ')) {
            assert!(text.contains(&format!("# HELP {name} ")), "{name}");
            let mut table = readme.lines().filter(|line| line.starts_with('|'));
            let row = table.find(|line| line.contains(&format!("`{name}`")));
            assert!(
                row.is_some_and(|row| row.contains(kind)),
                "{name} in README"
            );
            names += 1;
        }
        assert_eq!(names, 20);
    }
}
