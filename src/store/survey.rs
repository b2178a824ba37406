//! What an outbox collection lacks of what [`init`](super::init) makes of it. Nothing is changed.

use std::{fmt, time::Duration};

use bson::Document;
use futures::TryStreamExt;
use mongodb::IndexModel;

use super::{
    Store,
    deliveries::{Deliveries, Missing},
    ensure,
};
use crate::error::{NAMESPACE_NOT_FOUND, Result, code};

/// One thing that is not as it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Lack {
    /// The collection, and everything on it.
    Collection,
    /// The index that pumps read by.
    Due,
    /// There is one on the same fields, which covers other rows.
    DueDiffers,
    /// The index that reaps.
    Retention(Duration),
    /// It reaps after another time, or not at all.
    RetentionDiffers {
        found: Option<Duration>,
        wanted: Duration,
    },
    /// Published rows are to be kept for ever, and are reaped.
    RetentionUnwanted,
    /// What refuses rows that nobody could read.
    Validator,
    /// There is another.
    ValidatorDiffers,
    /// The index by which several sinks read what each is owed.
    Owed,
    /// The collection of failed deliveries.
    Deliveries,
    /// So many of its indexes.
    DeliveriesIndexes(usize),
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Collection => f.write_str("the collection does not exist"),
            Self::Due => f.write_str(
                "the index { lane: 1, partial: 1, pending: 1 } on published: false is missing, so each cycle reads every row",
            ),
            Self::DueDiffers => f.write_str(
                "the index { lane: 1, partial: 1, pending: 1 } is not the one on published: false alone",
            ),
            Self::Retention(_) => f.write_str(
                "the TTL index { publishedAt: 1 } is missing, so published rows stay for ever",
            ),
            Self::RetentionDiffers { found: Some(found), wanted } => write!(
                f,
                "published rows are kept for {} s, the setting says {} s",
                found.as_secs(),
                wanted.as_secs()
            ),
            Self::RetentionDiffers { found: None, .. } => {
                f.write_str("the index { publishedAt: 1 } has no expiry, so published rows stay for ever")
            }
            Self::RetentionUnwanted => f.write_str(
                "published rows are reaped by a TTL index, and the setting says to keep them for ever",
            ),
            Self::Validator => {
                f.write_str("there is no validator, so a row that nobody can read is not refused")
            }
            Self::ValidatorDiffers => f.write_str("the validator is not the one of this version"),
            Self::Owed => f.write_str(
                "the index { outstanding: 1, lane: 1, pending: 1 } is missing, so each sink reads what others are owed",
            ),
            Self::Deliveries => {
                f.write_str("the collection of failed deliveries is missing, so no service with sinks starts")
            }
            Self::DeliveriesIndexes(count) => {
                write!(f, "{count} indexes of the collection of failed deliveries are missing")
            }
        }
    }
}

impl Lack {
    /// What `init` does about it.
    pub(crate) fn work(&self) -> String {
        match self {
            Self::Collection => "create the collection with its indexes and validator".into(),
            Self::Due => {
                "create the index { lane: 1, partial: 1, pending: 1 } on published: false".into()
            }
            Self::DueDiffers => {
                "fail: drop the index { lane: 1, partial: 1, pending: 1 } first".into()
            }
            Self::Retention(span) => {
                format!(
                    "create the TTL index {{ publishedAt: 1 }} of {} s",
                    span.as_secs()
                )
            }
            Self::RetentionDiffers { wanted, .. } => {
                format!(
                    "set the expiry of {{ publishedAt: 1 }} to {} s",
                    wanted.as_secs()
                )
            }
            Self::RetentionUnwanted => "drop the TTL index { publishedAt: 1 }".into(),
            Self::Validator => "install the validator".into(),
            Self::ValidatorDiffers => "replace the validator".into(),
            Self::Owed => "create the index { outstanding: 1, lane: 1, pending: 1 }".into(),
            Self::Deliveries => {
                "create the collection of failed deliveries with its indexes".into()
            }
            Self::DeliveriesIndexes(count) => {
                format!("create {count} indexes of the collection of failed deliveries")
            }
        }
    }

    /// What an operator does about it.
    pub(crate) fn remedy(&self, collection: &str) -> String {
        let init = format!("toa-outbox init {collection}");
        match self {
            Self::DueDiffers => format!(
                "run db.{collection}.dropIndex({{ lane: 1, partial: 1, pending: 1 }}), then: {init}"
            ),
            Self::Owed | Self::Deliveries | Self::DeliveriesIndexes(_) => {
                format!("run: toa-outbox init --sinks {collection}")
            }
            _ => format!("run: {init}"),
        }
    }

    /// Whether pumps do not work as they should without it.
    pub(crate) fn is_grave(&self) -> bool {
        matches!(
            self,
            Self::Due | Self::DueDiffers | Self::Deliveries | Self::DeliveriesIndexes(_)
        )
    }
}

impl Store {
    /// What is missing or different, if the rows are to be kept for `retention`.
    pub(crate) async fn lacks(&self, retention: Duration) -> Result<Vec<Lack>> {
        let asked = async {
            let indexes = match self.rows.list_indexes().await {
                Ok(indexes) => indexes.try_collect::<Vec<_>>().await?,
                Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => return Ok(None),
                Err(error) => return Err(error),
            };
            Ok(Some((indexes, self.validator().await?)))
        };
        let found = asked
            .await
            .map_err(|error| self.failed("looking at indexes and validator", error))?;
        let Some((indexes, validator)) = found else {
            return Ok(vec![Lack::Collection]);
        };
        Ok(differences(&indexes, validator.as_ref(), retention))
    }

    /// What is missing of what sinks of a service's own need.
    pub(crate) async fn lacks_for_sinks(&self) -> Result<Vec<Lack>> {
        let asked = async {
            match self.rows.list_indexes().await {
                Ok(indexes) => indexes.try_collect::<Vec<_>>().await,
                Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(Vec::new()),
                Err(error) => Err(error),
            }
        };
        let indexes = asked
            .await
            .map_err(|error| self.failed("looking at indexes", error))?;
        let keys = ensure::owed_keys();
        let has_owed = indexes.iter().any(|index| same_keys(&index.keys, &keys));
        let mut lacks = Vec::new();
        if !has_owed {
            lacks.push(Lack::Owed);
        }
        lacks.extend(match Deliveries::new(self).missing().await? {
            None => None,
            Some(Missing::Collection) => Some(Lack::Deliveries),
            Some(Missing::Indexes(missing)) => Some(Lack::DeliveriesIndexes(missing.len())),
        });
        Ok(lacks)
    }

    async fn validator(&self) -> mongodb::error::Result<Option<Document>> {
        let named = bson::doc! { "name": self.rows.name() };
        let found = self.database.list_collections().filter(named).await?;
        let found: Vec<_> = found.try_collect().await?;
        Ok(found
            .into_iter()
            .next()
            .and_then(|found| found.options.validator))
    }
}

fn differences(
    indexes: &[IndexModel],
    validator: Option<&Document>,
    retention: Duration,
) -> Vec<Lack> {
    let wanted = ensure::validator();
    let validator = match validator {
        None => Some(Lack::Validator),
        Some(found) if *found != wanted => Some(Lack::ValidatorDiffers),
        Some(_) => None,
    };
    [due(indexes), expiry(indexes, retention), validator]
        .into_iter()
        .flatten()
        .collect()
}

fn due(indexes: &[IndexModel]) -> Option<Lack> {
    let wanted = ensure::due_index();
    let partial = |index: &IndexModel| index.options.as_ref()?.partial_filter_expression.clone();
    match indexes
        .iter()
        .find(|index| same_keys(&index.keys, &wanted.keys))
    {
        None => Some(Lack::Due),
        Some(found) if partial(found) != partial(&wanted) => Some(Lack::DueDiffers),
        Some(_) => None,
    }
}

fn expiry(indexes: &[IndexModel], retention: Duration) -> Option<Lack> {
    let keys = bson::doc! { "publishedAt": 1 };
    let found = indexes.iter().find(|index| same_keys(&index.keys, &keys));
    let found = found.map(|index| {
        index
            .options
            .as_ref()
            .and_then(|options| options.expire_after)
    });
    match (found, retention.is_zero()) {
        (None, false) => Some(Lack::Retention(retention)),
        (Some(Some(_)), true) => Some(Lack::RetentionUnwanted),
        (Some(found), false) if found != Some(retention) => Some(Lack::RetentionDiffers {
            found,
            wanted: retention,
        }),
        _ => None,
    }
}

/// In the same order and direction; shells write directions as doubles.
fn same_keys(one: &Document, other: &Document) -> bool {
    let keys = |keys: &Document| -> Vec<_> {
        let direction = |value: &bson::Bson| match value {
            bson::Bson::Double(number) => *number as i64,
            bson::Bson::Int64(number) => *number,
            value => value.as_i32().unwrap_or_default().into(),
        };
        keys.iter()
            .map(|(key, value)| (key.clone(), direction(value)))
            .collect()
    };
    keys(one) == keys(other)
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: Duration = Duration::from_secs(86_400);

    #[test]
    fn what_init_makes_lacks_nothing() {
        let indexes = [ensure::due_index(), ensure::retention_index(DAY)];
        let validator = ensure::validator();
        assert_eq!(differences(&indexes, Some(&validator), DAY), []);
        let kept = [ensure::due_index()];
        assert_eq!(differences(&kept, Some(&validator), Duration::ZERO), []);
    }

    #[test]
    fn each_difference_is_told() {
        let validator = ensure::validator();
        let plain = IndexModel::builder().keys(ensure::due_keys()).build();
        let indexes = [plain, ensure::retention_index(DAY)];
        let hour = Duration::from_secs(3600);
        assert_eq!(
            differences(&indexes, Some(&bson::doc! {}), hour),
            [
                Lack::DueDiffers,
                Lack::RetentionDiffers {
                    found: Some(DAY),
                    wanted: hour
                },
                Lack::ValidatorDiffers,
            ]
        );
        assert_eq!(
            differences(&[], Some(&validator), DAY),
            [Lack::Due, Lack::Retention(DAY)]
        );
        assert_eq!(
            differences(&indexes[1..], None, Duration::ZERO),
            [Lack::Due, Lack::RetentionUnwanted, Lack::Validator]
        );
    }
}
