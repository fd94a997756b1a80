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
use serde_json::json;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use subagent_crds::{SubagentProvider, SubagentProviderSpec, names};

/// A revision that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It is gone.
    #[error("ControllerRevision {0}, which holds the provider as it was at acceptance, does not exist any more")]
    Missing(String),
    /// Its content is not a provider's spec.
    #[error("ControllerRevision {name} does not hold a provider's spec: {source}")]
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

/// The revision of a provider's current spec. Pure: the same spec of the same provider has the same name.
pub fn of(provider: &SubagentProvider) -> ControllerRevision {
    let content = json!({"spec": provider.spec});
    let digest = naming::hex(&Sha256::digest(content.to_string().as_bytes()));
    let uid = provider.uid().unwrap_or_default();
    let name = provider.name_any();
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(naming::derived(&name, &uid, &digest[..10])),
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

fn same(wanted: &ControllerRevision, found: &ControllerRevision) -> bool {
    wanted.data == found.data
}

/// Reads the provider's spec out of a revision.
///
/// # Errors
/// [`Error`] when it is missing, malformed or cannot be read.
pub async fn read(client: &Client, namespace: &str, name: &str) -> Result<SubagentProviderSpec, Error> {
    let revisions: Api<ControllerRevision> = Api::namespaced(client.clone(), namespace);
    let found = if name.is_empty() { None } else { api::get(&revisions, name).await? };
    let Some(found) = found else { return Err(Error::Missing(name.to_owned())) };
    serde_json::from_value(found.data.0["spec"].clone())
        .map_err(|source| Error::Malformed { name: name.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;

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
}
