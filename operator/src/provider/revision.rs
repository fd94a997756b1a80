//! Revisions: each accepted spec of a provider as an immutable ControllerRevision. A run names the revision it was
//! accepted with, so an edit or the removal of the provider touches new starts only (contract c2). A revision refers to
//! Secrets and never holds their content.

use crate::{
    api::{self, ReadError, WriteError},
    naming,
};
use k8s_openapi::{
    api::apps::v1::ControllerRevision,
    apimachinery::pkg::{apis::meta::v1::ObjectMeta, runtime::RawExtension},
};
use kube::{Api, Client, ResourceExt, api::PostParams};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use subagent_crds::{SubagentProvider, SubagentProviderSpec, names};

/// Hex digits of the content's digest in a name.
const DIGEST: usize = 10;

/// A revision that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is gone.
    #[error(
        "ControllerRevision {0}, which holds the provider as it was when the run was accepted, does not exist any more: \
         somebody deleted it; create a new run"
    )]
    Missing(String),
    /// It is not what this operator stored.
    #[error(
        "ControllerRevision {0} is not the one that was stored when the run was accepted: somebody replaced it; delete \
         it and create a new run"
    )]
    Replaced(String),
    /// Its content is not a provider's spec.
    #[error("ControllerRevision {name} does not hold a provider's spec: {source}; create a new run")]
    Malformed {
        /// Name of the revision.
        name: String,
        /// Why.
        source: serde_json::Error,
    },
    /// A foreign object has its name.
    #[error("ControllerRevision {0} exists and does not belong to this provider; delete it")]
    Foreign(String),
    /// A read failed.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// A write failed.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Error {
    /// True when reading or writing again gives the same.
    pub fn is_final(&self) -> bool {
        match self {
            Self::Missing(_) | Self::Replaced(_) | Self::Malformed { .. } | Self::Foreign(_) => true,
            Self::Read(error) => error.is_undecodable(),
            Self::Write(_) => false,
        }
    }
}

/// The revision of a provider's current spec. Pure: the same spec of the same provider has the same name.
pub fn of(provider: &SubagentProvider) -> ControllerRevision {
    let content = json!({"spec": provider.spec});
    let uid = provider.uid().unwrap_or_default();
    let name = provider.name_any();
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(naming::derived(&name, &uid, &digest(&content))),
            namespace: provider.namespace(),
            labels: Some(BTreeMap::from([
                (names::PROVIDER_LABEL.to_owned(), name),
                (names::PROVIDER_UID_LABEL.to_owned(), uid),
            ])),
            ..ObjectMeta::default()
        },
        data: RawExtension(content),
        revision: provider.metadata.generation,
    }
}

/// Makes sure that the revision is stored.
///
/// # Errors
/// [`Error::Foreign`] when the name is taken by something else; it is never overwritten (pitfall D2).
pub async fn ensure(client: &Client, revision: &ControllerRevision) -> Result<String, Error> {
    let name = revision.name_any();
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), &revision.namespace().unwrap_or_default());
    if let Some(found) = api::get(&revisions, &name).await? {
        return same(revision, &found).then_some(name.clone()).ok_or(Error::Foreign(name));
    }
    let params = PostParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PostParams::default() };
    match api::write(format!("creating revision {name}"), revisions.create(&params, revision)).await {
        Ok(_) => Ok(name),
        Err(WriteError::Refused { status, .. }) if status.reason == "AlreadyExists" => {
            let found = api::get(&revisions, &name).await?;
            found.filter(|found| same(revision, found)).map(|_| name.clone()).ok_or(Error::Foreign(name))
        }
        Err(error) => Err(error.into()),
    }
}

/// Ours with this content. The labels count, too: nobody else may set them (pitfall D2).
fn same(wanted: &ControllerRevision, found: &ControllerRevision) -> bool {
    let label = |revision: &ControllerRevision| revision.labels().get(names::PROVIDER_UID_LABEL).cloned();
    wanted.data == found.data && label(wanted) == label(found)
}

/// What a revision is named after: ten hex digits of its content's SHA-256. The order of keys is no content.
fn digest(content: &Value) -> String {
    let mut sorted = content.clone();
    sorted.sort_all_objects();
    naming::hex(&Sha256::digest(sorted.to_string().as_bytes()))[..DIGEST].to_owned()
}

/// True for what [`of`] made: a revision's content decides what pods look like, so one that somebody else put under the
/// name is not read, whoever may create ControllerRevisions.
fn is_stored_by_us(revision: &ControllerRevision) -> bool {
    revision.labels().contains_key(names::PROVIDER_UID_LABEL)
        && revision.name_any().ends_with(&format!("-{}", digest(&revision.data.0)))
}

/// Reads the provider's spec out of a revision.
///
/// # Errors
/// [`Error`] when it is missing, malformed or cannot be read.
pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<SubagentProviderSpec, Error> {
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let found = if name.is_empty() { None } else { api::get(&revisions, name).await? };
    let Some(found) = found else { return Err(Error::Missing(name.to_owned())) };
    spec_of(&found)
}

fn spec_of(revision: &ControllerRevision) -> Result<SubagentProviderSpec, Error> {
    let name = revision.name_any();
    if !is_stored_by_us(revision) {
        return Err(Error::Replaced(name));
    }
    serde_json::from_value(revision.data.0["spec"].clone()).map_err(|source| Error::Malformed { name, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn provider(image: &str) -> SubagentProvider {
        serde_json::from_value::<SubagentProvider>(json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentProvider",
            "metadata": {"name": "p", "namespace": "n", "uid": "u"},
            "spec": {"transport": {"acp": {}}, "template": {"spec": {"image": image, "newer": 1}}},
        }))
        .unwrap()
    }

    #[test]
    fn c2_a_revision_is_named_by_its_content_and_keeps_fields_nobody_knows() {
        let revision = of(&provider("a"));
        assert_eq!(revision.metadata.name, of(&provider("a")).metadata.name);
        assert_ne!(revision.metadata.name, of(&provider("b")).metadata.name);
        let data: Value = revision.data.0;
        assert_eq!(data["spec"]["template"]["spec"]["newer"], 1);
    }

    #[test]
    fn d2_only_what_the_operator_stored_is_a_revision() {
        let stored = of(&provider("a"));
        assert!(is_stored_by_us(&stored) && same(&stored, &stored));
        let mut reordered = stored.clone();
        let spec = reordered.data.0["spec"].as_object_mut().unwrap();
        *spec = spec.clone().into_iter().rev().collect();
        assert!(is_stored_by_us(&reordered), "the order of keys is no content");
        let mut bare = stored.clone();
        bare.metadata.labels = None;
        assert!(!is_stored_by_us(&bare) && !same(&stored, &bare), "the content alone is anybody's");
        // C1: stored by a version with another schema.
        let mut old = stored.clone();
        old.data = RawExtension(json!({"spec": {"transport": 5}}));
        old.metadata.name = Some(naming::derived("p", "u", &digest(&old.data.0)));
        let error = spec_of(&old).unwrap_err();
        assert!(matches!(error, Error::Malformed { .. }) && error.is_final(), "{error}");
        let mut other = stored.clone();
        other.data.0["spec"]["template"]["spec"]["image"] = json!("b");
        assert!(!same(&stored, &other));
        assert!(matches!(spec_of(&other), Err(Error::Replaced(_))));
    }
}
