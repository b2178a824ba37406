//! What the user of a connection may do, by what the server says of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
};

use bson::{Bson, Document, doc};
use mongodb::Database;

use crate::error::{Error, Result, UNAUTHORIZED, code};

/// What is wrong where the server asks for a name and is given none, and what to do.
pub(crate) const NAMELESS: [&str; 2] = [
    "the server asks who one is, and the connection string names nobody",
    "add user and password to TOA_OUTBOX_MONGODB: mongodb://USER:PASSWORD@host/…",
];

/// The privileges of one user.
#[derive(Debug)]
pub(crate) struct Rights {
    database: String,
    privileges: Vec<Document>,
}

/// Something that is to be allowed on a collection; on the database where that is empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Right {
    pub(crate) collection: String,
    pub(crate) action: &'static str,
}

/// What a user may not do on one collection; on the database where that is empty.
#[derive(Debug)]
pub(crate) struct Lack {
    database: String,
    pub(crate) collection: String,
    actions: Vec<&'static str>,
}

impl fmt::Display for Lack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this user lacks {} on ", self.actions.join(", "))?;
        match self.collection.as_str() {
            "" => write!(f, "the database {}", self.database),
            name => write!(f, "{}.{name}", self.database),
        }
    }
}

impl Lack {
    /// What an administrator runs.
    pub(crate) fn remedy(&self) -> String {
        let Self {
            database,
            collection,
            actions,
        } = self;
        format!(
            "grant it: db.grantPrivilegesToRole(ROLE, [{{ resource: {{ db: {database:?}, collection: {collection:?} }}, \
             actions: {actions:?} }}])"
        )
    }
}

impl Right {
    /// What reading the change stream of the database takes.
    pub(crate) fn to_follow() -> impl Iterator<Item = Self> {
        Self::all("", &["find", "changeStream"])
    }

    /// What finding the outbox collections of the database takes.
    pub(crate) fn to_discover() -> impl Iterator<Item = Self> {
        Self::all("", &["listCollections"])
    }

    /// What reading the change stream of one collection takes, as for a sink to which the order of its commits is kept.
    pub(crate) fn to_order(rows: &str) -> impl Iterator<Item = Self> {
        Self::all(rows, &["find", "changeStream"])
    }

    /// What reading and marking the rows of a collection takes.
    pub(crate) fn to_publish(rows: &str) -> impl Iterator<Item = Self> {
        Self::all(rows, &["find", "update"])
    }

    pub(crate) fn all<'a>(
        collection: &'a str,
        actions: &'a [&'static str],
    ) -> impl Iterator<Item = Self> + 'a {
        actions.iter().map(|action| Self {
            collection: collection.to_owned(),
            action,
        })
    }
}

impl Rights {
    /// Asks the server; none where nobody is asked to authenticate.
    pub(crate) async fn ask(database: &Database) -> Result<Option<Self>> {
        let command = doc! { "connectionStatus": 1, "showPrivileges": true };
        let status = database.run_command(command).await;
        let status = status.map_err(|error| {
            Error::store("asking what this user may do", database.name(), error)
        })?;
        Ok(Self::read(database.name(), &status))
    }

    /// Whether one who gives no name may do what he likes.
    pub(crate) async fn is_open(database: &Database) -> Result<bool> {
        let listed = database.run_command(doc! { "listCollections": 1, "nameOnly": true });
        match listed.await {
            Ok(_) => Ok(true),
            Err(error) if code(&error) == Some(UNAUTHORIZED) => Ok(false),
            Err(error) => Err(Error::store(
                "asking who may do what",
                database.name(),
                error,
            )),
        }
    }

    fn read(database: &str, status: &Document) -> Option<Self> {
        let info = status.get_document("authInfo").ok()?;
        let users = info.get_array("authenticatedUsers").ok()?;
        let privileges = info.get_array("authenticatedUserPrivileges").ok()?;
        let privileges = privileges.iter().filter_map(Bson::as_document);
        (!users.is_empty()).then(|| Self {
            database: database.to_owned(),
            privileges: privileges.cloned().collect(),
        })
    }

    /// Refuses a user who lacks some of what is `wanted`, as far as the server tells.
    pub(crate) async fn demand(
        database: &Database,
        who: &str,
        wanted: impl Iterator<Item = Right>,
    ) -> Result<()> {
        let had = Self::ask(database).await?;
        match had.and_then(|had| had.lacking(wanted)) {
            None => Ok(()),
            Some(lacking) => Err(Error::Unfit {
                database: database.name().to_owned(),
                problem: format!("{who} more rights: {lacking}"),
            }),
        }
    }

    /// What of `wanted` the user does not have, and how to grant it.
    pub(crate) fn lacking(&self, wanted: impl IntoIterator<Item = Right>) -> Option<String> {
        let missing = self.missing(wanted);
        let missing = missing
            .iter()
            .map(|lack| format!("{lack}; {}", lack.remedy()));
        let missing: Vec<String> = missing.collect();
        (!missing.is_empty()).then(|| missing.join("; and "))
    }

    /// Those of `wanted` that the user does not have, by collection.
    pub(crate) fn missing(&self, wanted: impl IntoIterator<Item = Right>) -> Vec<Lack> {
        let mut missing: BTreeMap<_, BTreeSet<_>> = BTreeMap::new();
        for right in wanted.into_iter().filter(|right| !self.has(right)) {
            missing
                .entry(right.collection)
                .or_default()
                .insert(right.action);
        }
        let lack = |(collection, actions): (_, BTreeSet<_>)| Lack {
            database: self.database.clone(),
            collection,
            actions: actions.into_iter().collect(),
        };
        missing.into_iter().map(lack).collect()
    }

    fn has(&self, right: &Right) -> bool {
        self.privileges.iter().any(|privilege| {
            let resource = privilege.get_document("resource");
            let actions = privilege.get_array("actions");
            resource.is_ok_and(|resource| self.covers(resource, &right.collection))
                && actions.is_ok_and(|actions| {
                    actions
                        .iter()
                        .any(|action| action.as_str() == Some(right.action))
                })
        })
    }

    /// An empty name in a privilege stands for every database, or every collection.
    fn covers(&self, resource: &Document, collection: &str) -> bool {
        if resource.get_bool("anyResource").unwrap_or(false) {
            return true;
        }
        let names = |field: &str, name: &str| {
            resource
                .get_str(field)
                .is_ok_and(|named| named.is_empty() || named == name)
        };
        names("db", &self.database) && names("collection", collection)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rights(resource: Document, actions: &[&str]) -> Rights {
        let privilege = doc! { "resource": resource, "actions": actions };
        let info = doc! { "authenticatedUsers": [{}], "authenticatedUserPrivileges": [privilege] };
        Rights::read("tea", &doc! { "authInfo": info }).unwrap()
    }

    #[test]
    fn who_is_not_asked_to_authenticate_has_no_list() {
        let info = doc! { "authenticatedUsers": [], "authenticatedUserPrivileges": [] };
        assert!(Rights::read("tea", &doc! { "authInfo": info }).is_none());
    }

    #[test]
    fn what_is_missing_is_named_by_collection() {
        let rights = rights(doc! { "db": "tea", "collection": "pots" }, &["find"]);
        let wanted = Right::all("pots", &["find", "update"]).chain(Right::all("", &["find"]));
        let missing: Vec<String> = rights.missing(wanted).iter().map(Lack::to_string).collect();
        assert_eq!(
            missing,
            [
                // The whole database is more than one collection.
                "this user lacks find on the database tea",
                "this user lacks update on tea.pots"
            ]
        );
    }

    #[test]
    fn an_empty_name_stands_for_all() {
        let find = || Right::all("pots", &["find"]);
        for resource in [
            doc! { "db": "tea", "collection": "" },
            doc! { "db": "", "collection": "" },
            doc! { "db": "", "collection": "pots" },
            doc! { "anyResource": true },
        ] {
            assert!(rights(resource, &["find"]).missing(find()).is_empty());
        }
        for resource in [
            doc! { "db": "coffee", "collection": "" },
            doc! { "db": "tea", "collection": "cups" },
            doc! { "cluster": true },
        ] {
            assert_eq!(rights(resource, &["find"]).missing(find()).len(), 1);
        }
    }
}
