//! What is counted, and when to worry. Only this file names a metric; what reads them is the application's to install.

/// A cycle that read nothing, because this replica owned no lane. Some, at a start or while members come and go; worry
/// where every replica of a component counts them for more than a minute: then nobody pumps.
pub(crate) fn cycle_without_a_lane(collection: &str) {
    let collection = collection.to_owned();
    metrics::counter!("toa_outbox_unassigned_cycles_total", "collection" => collection)
        .increment(1);
}

/// A tail that had to be opened anew. One at an election or a restart of the server is nothing; worry about one a second,
/// the log says why.
#[cfg(feature = "sidecar")]
pub(crate) fn tail_reopened(database: &str) {
    let database = database.to_owned();
    metrics::counter!("toa_outbox_tail_reopenings_total", "database" => database).increment(1);
}
