//! Whether a service with sinks of its own can keep what fails.

use std::future::IntoFuture;

use bson::Document;
use futures::TryStreamExt;
use mongodb::IndexModel;

use super::{ACTIONS, Deliveries, indexes};
use crate::{
    error::{Error, NAMESPACE_NOT_FOUND, Result, code},
    store::{
        registry,
        rights::{Right, Rights},
    },
};

/// What is not there of what [`ensure`](Deliveries::ensure) makes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Missing {
    Collection,
    /// These indexes.
    Indexes(Vec<Document>),
}

impl Deliveries {
    /// Refuses where what fails could not be kept: then a failure would hold up its row for ever. With `ensure` what is missing is
    /// made first, if the user may.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] with what is missing and who can mend it, [`Error::Store`] if MongoDB does not answer.
    pub(crate) async fn ready(&self, ensure: bool) -> Result<()> {
        let made = match ensure {
            true => self.ensure().await.map(|()| true),
            false => Ok(false),
        };
        match made {
            Ok(true) => {}
            Ok(false) => self.there().await?,
            Err(error) if error.is_unauthorized() => self.there().await?,
            Err(error) => return Err(error),
        }
        self.allowed().await
    }

    async fn there(&self) -> Result<()> {
        let problem = match self.missing().await {
            Ok(None) => return Ok(()),
            // Whoever may not look finds out with the first failure.
            Err(error) if error.is_unauthorized() => return Ok(()),
            Err(error) => return Err(error),
            Ok(Some(Missing::Collection)) => "does not exist".to_owned(),
            Ok(Some(Missing::Indexes(missing))) => {
                let missing: Vec<String> = missing.iter().map(Document::to_string).collect();
                format!("lacks the indexes {}", missing.join(", "))
            }
        };
        Err(self.unfit(format!(
            "the collection {}, where failed deliveries to sinks are kept, {problem}; have an administrator run: \
             toa-outbox init --sinks {}",
            self.name(),
            self.rows.collection(),
        )))
    }

    async fn allowed(&self) -> Result<()> {
        let needed = Right::all(self.all.name(), ACTIONS);
        let needed = needed.chain(Right::all(registry::COLLECTION, registry::ACTIONS));
        let who = "sinks of a service's own need";
        Rights::demand(&self.rows.database, who, needed).await
    }

    /// What is missing, if anything is.
    pub(crate) async fn missing(&self) -> Result<Option<Missing>> {
        let found = async {
            match self.all.list_indexes().into_future().await {
                Ok(indexes) => indexes.try_collect::<Vec<_>>().await.map(Some),
                Err(error) if code(&error) == Some(NAMESPACE_NOT_FOUND) => Ok(None),
                Err(error) => Err(error),
            }
        };
        let attempted = "looking at the collection of failed deliveries";
        let Some(found) = self.within(attempted, found).await? else {
            return Ok(Some(Missing::Collection));
        };
        let is_there = |wanted: &IndexModel| found.iter().any(|found| found.keys == wanted.keys);
        let missing: Vec<Document> = indexes()
            .into_iter()
            .filter(|wanted| !is_there(wanted))
            .map(|index| index.keys)
            .collect();
        Ok((!missing.is_empty()).then_some(Missing::Indexes(missing)))
    }

    fn unfit(&self, problem: String) -> Error {
        Error::Unfit {
            database: self.rows.database.name().to_owned(),
            problem,
        }
    }
}
