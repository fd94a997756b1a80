//! One ConfigMap of a run.

use crate::api::{self, ReadError, WriteError};
use k8s_openapi::{
    ByteString,
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, Resource, ResourceExt, api::PostParams, core::Status};
use std::collections::BTreeMap;
use subagent_crds::{SubagentRun, names};

/// Storing has to be tried again.
#[derive(Debug, thiserror::Error)]
pub enum ArchiveError {
    /// The write failed, or its answer was lost.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// What stands in the place could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// Why something was not stored, and will not be by trying the same again soon.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unstored {
    /// The namespace goes away, and everything in it: as it should be.
    NamespaceGone,
    /// A quota is full; the text says what to do, and then the API server's words.
    Quota(String),
    /// Somebody can do something about it; the text says what was found.
    Fault(String),
}

impl Unstored {
    /// What a person can do something about.
    pub fn fault(&self) -> Option<&str> {
        match self {
            Self::NamespaceGone => None,
            Self::Quota(why) | Self::Fault(why) => Some(why),
        }
    }
}

/// Whose content it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Owner {
    /// Namespace of the run.
    pub namespace: String,
    /// Name of the run.
    pub run_name: String,
    /// UID of the run.
    pub run_uid: String,
    /// Attempt that made the content.
    pub attempt: i32,
    /// UID of that attempt's pod.
    pub pod_uid: String,
}

/// What a ConfigMap is to hold.
pub(super) struct Content {
    pub name: String,
    /// Value of [`names::CONTENT_LABEL`].
    pub kind: &'static str,
    /// By which it is found beside those that all have.
    pub labels: Vec<(&'static str, String)>,
    /// Facts about the whole content.
    pub annotations: Vec<(&'static str, String)>,
    pub data: Data,
}

pub(super) enum Data {
    Text(&'static str, String),
    Bytes(&'static str, Vec<u8>),
}

/// True for an object of the run with this UID. Labels prove nothing: ownership is matched by UID.
pub fn is_of(found: &ConfigMap, run_uid: &str) -> bool {
    found.owner_references().iter().any(|owner| owner.uid == run_uid && owner.controller == Some(true))
}

impl Owner {
    pub(super) fn api(&self, client: &Client) -> Api<ConfigMap> {
        Api::namespaced(client.clone(), &self.namespace)
    }

    /// The object. Immutable: what a finished run shows never changes.
    pub(super) fn config_map(&self, content: Content) -> ConfigMap {
        let labels = [
            (names::RUN_LABEL, self.run_name.clone()),
            (names::RUN_UID_LABEL, self.run_uid.clone()),
            (names::ATTEMPT_LABEL, self.attempt.to_string()),
            (names::CONTENT_LABEL, content.kind.to_owned()),
        ];
        let annotations = content.annotations.into_iter().chain([(names::POD_UID_ANNOTATION, self.pod_uid.clone())]);
        let owned = |pairs: &mut dyn Iterator<Item = (&'static str, String)>| -> BTreeMap<String, String> {
            pairs.map(|(key, value)| (key.to_owned(), value)).collect()
        };
        let owner = OwnerReference {
            api_version: SubagentRun::api_version(&()).into_owned(),
            kind: SubagentRun::kind(&()).into_owned(),
            name: self.run_name.clone(),
            uid: self.run_uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        let (data, binary_data) = match content.data {
            Data::Text(key, text) => (Some(BTreeMap::from([(key.to_owned(), text)])), None),
            Data::Bytes(key, bytes) => (None, Some(BTreeMap::from([(key.to_owned(), ByteString(bytes))]))),
        };
        ConfigMap {
            metadata: ObjectMeta {
                name: Some(content.name),
                namespace: Some(self.namespace.clone()),
                labels: Some(owned(&mut labels.into_iter().chain(content.labels))),
                annotations: Some(owned(&mut annotations.into_iter())),
                owner_references: Some(vec![owner]),
                ..ObjectMeta::default()
            },
            data,
            binary_data,
            immutable: Some(true),
        }
    }

    /// True for an object of this run.
    pub(super) fn owns(&self, found: &ConfigMap) -> bool {
        is_of(found, &self.run_uid)
    }

    /// True when an object of this run is of this attempt's pod.
    pub(super) fn made(&self, found: &ConfigMap) -> bool {
        self.owns(found) && found.annotations().get(names::POD_UID_ANNOTATION) == Some(&self.pod_uid)
    }

    /// Stores one. True when it was written now, false when it was there: the same content of this run, from an earlier
    /// try whose answer was lost.
    ///
    /// # Errors
    /// [`ArchiveError`] when trying again can help.
    pub(super) async fn put(
        &self,
        client: &Client,
        manager: &str,
        wanted: &ConfigMap,
    ) -> Result<Result<bool, Unstored>, ArchiveError> {
        let config_maps = self.api(client);
        let params = PostParams { field_manager: Some(manager.to_owned()), ..PostParams::default() };
        let name = wanted.name_any();
        let what = format!("ConfigMap {}/{name}", self.namespace);
        match api::write(what.as_str(), config_maps.create(&params, wanted)).await {
            Ok(_) => Ok(Ok(true)),
            Err(WriteError::Refused { status, .. }) if status.reason == "AlreadyExists" => {
                let Some(found) = api::get(&config_maps, &name).await? else {
                    return Err(WriteError::Conflict(what).into());
                };
                Ok(self.judge(&found, wanted, &what).map(|()| false))
            }
            Err(WriteError::Refused { status, .. }) => Ok(Err(refused(&what, &status))),
            // The run is gone, too.
            Err(WriteError::Gone(_)) => Ok(Err(Unstored::NamespaceGone)),
            Err(error) => Err(error.into()),
        }
    }

    /// What a found object of the wanted name is.
    fn judge(&self, found: &ConfigMap, wanted: &ConfigMap, what: &str) -> Result<(), Unstored> {
        if !self.owns(found) {
            let why = format!("{what} does not belong to this run and is left as it is; delete it if nobody needs it");
            return Err(Unstored::Fault(why));
        }
        if found.data != wanted.data || found.binary_data != wanted.binary_data {
            return Err(Unstored::Fault(format!("{what} already holds other content of this attempt")));
        }
        Ok(())
    }
}

fn refused(what: &str, status: &Status) -> Unstored {
    let why = format!("{what}: {}", status.message);
    if api::is_namespace_terminating(status) {
        Unstored::NamespaceGone
    } else if api::is_quota(status) {
        // What to do comes first: what is too long is cut at its end.
        Unstored::Quota(format!("raise the quota, or delete ConfigMaps that nobody needs: {why}"))
    } else {
        Unstored::Fault(why)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use serde_json::json;

    pub fn owner() -> Owner {
        Owner {
            namespace: "n".into(),
            run_name: "r".into(),
            run_uid: "run-uid".into(),
            attempt: 2,
            pod_uid: "pod".into(),
        }
    }

    fn holding(text: &str) -> ConfigMap {
        let annotations = vec![(names::SHA256_ANNOTATION, "ab".to_owned())];
        let data = Data::Text("text", text.into());
        let kind = names::CONTENT_RESULT;
        owner().config_map(Content { name: "c".into(), kind, labels: vec![], annotations, data })
    }

    #[test]
    fn what_a_run_leaves_is_immutable_labelled_and_owned_by_it() {
        let labels = json!({
            "subagents.dev/run": "r", "subagents.dev/run-uid": "run-uid", "subagents.dev/attempt": "2",
            "subagents.dev/content": "result",
        });
        assert_eq!(
            serde_json::to_value(holding("abc")).unwrap(),
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
                "metadata": {
                    "name": "c", "namespace": "n", "labels": labels,
                    "annotations": {"subagents.dev/pod-uid": "pod", "subagents.dev/sha256": "ab"},
                    "ownerReferences": [{
                        "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "name": "r", "uid": "run-uid",
                        "controller": true,
                    }],
                },
                "data": {"text": "abc"},
            })
        );
    }

    #[test]
    fn d2_only_an_object_of_this_run_with_this_content_is_ours() {
        let wanted = holding("abc");
        let judged = |found: &ConfigMap| owner().judge(found, &wanted, "c").err();
        let says = |found: &ConfigMap, words: &str| match judged(found) {
            Some(Unstored::Fault(why)) => assert!(why.contains(words), "{why}"),
            other => panic!("{other:?}"),
        };
        assert_eq!(judged(&wanted), None);
        says(&holding("x"), "other content");
        let mut another = wanted.clone();
        another.metadata.owner_references.as_mut().unwrap()[0].uid = "other".into();
        says(&another, "does not belong to this run");
        let mut labelled = wanted.clone();
        labelled.metadata.owner_references = None;
        says(&labelled, "does not belong to this run");
    }

    #[test]
    fn s6_a_terminating_namespace_and_a_full_quota_are_told_from_other_refusals() {
        let status = |cause: &str, message: &str| -> Status {
            serde_json::from_value(json!({
                "status": "Failure", "code": 403, "reason": "Forbidden", "message": message,
                "details": {"causes": [{"reason": cause, "message": ""}]},
            }))
            .unwrap()
        };
        let quota = "configmaps \"c\" is forbidden: exceeded quota: q";
        assert_eq!(refused("c", &status("NamespaceTerminating", quota)), Unstored::NamespaceGone);
        let Unstored::Quota(why) = refused("c", &status("Other", quota)) else { panic!("a quota") };
        assert!(why.starts_with("raise the quota") && why.ends_with(&format!("c: {quota}")), "{why}");
        assert_eq!(refused("c", &status("Other", "no")), Unstored::Fault("c: no".into()));
    }
}
