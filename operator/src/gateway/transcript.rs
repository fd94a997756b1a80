//! The archived tail of a transcript: one immutable ConfigMap per attempt, owned by the run.

use super::{fence::Claim, snapshot::Tail};
use crate::{
    api::{self, ReadError, WriteError},
    naming,
};
use k8s_openapi::{
    ByteString,
    api::core::v1::ConfigMap,
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference},
};
use kube::{Api, Client, Resource, api::PostParams, core::Status};
use std::collections::BTreeMap;
use subagent_crds::{
    SubagentRun, names,
    report::{Transcript, TranscriptSource},
};

/// Key of the compressed tail.
const KEY: &str = "transcript.zst";
/// Cause that the API server gives when it refuses a create because the namespace is being deleted.
const NAMESPACE_TERMINATING: &str = "NamespaceTerminating";

/// Archiving has to be tried again.
#[derive(Debug, thiserror::Error)]
pub(super) enum ArchiveError {
    #[error(transparent)]
    Write(#[from] WriteError),
    #[error(transparent)]
    Read(#[from] ReadError),
}

/// A transcript as the status shows it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Archived {
    pub transcript: Transcript,
    /// Why there is no ConfigMap, when there is none.
    pub unarchived: Option<Unarchived>,
}

/// Why a transcript has no archive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Unarchived {
    /// The namespace goes away, and everything in it: as it should be.
    NamespaceGone,
    /// Somebody can do something about it; the text says what was found.
    Fault(String),
}

/// Name of an attempt's archive.
pub(super) fn name(run_name: &str, run_uid: &str, attempt: i32) -> String {
    naming::derived(run_name, run_uid, &format!("transcript-{attempt}"))
}

/// The ConfigMap. Immutable: what a finished run shows never changes.
fn config_map(namespace: &str, run_name: &str, claim: &Claim, tail: &Tail) -> ConfigMap {
    let labels = [
        (names::RUN_LABEL, run_name.to_owned()),
        (names::RUN_UID_LABEL, claim.run_uid.clone()),
        (names::ATTEMPT_LABEL, claim.attempt.to_string()),
    ];
    let owner = OwnerReference {
        api_version: SubagentRun::api_version(&()).into_owned(),
        kind: SubagentRun::kind(&()).into_owned(),
        name: run_name.to_owned(),
        uid: claim.run_uid.clone(),
        controller: Some(true),
        block_owner_deletion: None,
    };
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(name(run_name, &claim.run_uid, claim.attempt)),
            namespace: Some(namespace.to_owned()),
            labels: Some(labels.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        binary_data: Some(BTreeMap::from([(KEY.to_owned(), ByteString(tail.data.clone()))])),
        immutable: Some(true),
        ..ConfigMap::default()
    }
}

/// What a found ConfigMap of our name is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    /// Ours, from an earlier try: the same content.
    Same,
    /// Of this run, with other content.
    Different,
    /// Not of this run: somebody else's, and left alone (pitfall D2).
    Foreign,
}

fn compare(found: &ConfigMap, wanted: &ConfigMap, run_uid: &str) -> Found {
    let owners = found.metadata.owner_references.as_deref().unwrap_or_default();
    if !owners.iter().any(|owner| owner.uid == run_uid && owner.controller == Some(true)) {
        Found::Foreign
    } else if found.binary_data == wanted.binary_data {
        Found::Same
    } else {
        Found::Different
    }
}

/// Stores the tail. Only what may pass is an error: the archive is worth less than the result, so a refusal that stays
/// (a full quota, a name that is taken, a namespace that is going away) leaves the transcript without reference.
///
/// # Errors
/// [`ArchiveError`] when trying again can help.
pub(super) async fn archive(
    client: &Client,
    namespace: &str,
    run_name: &str,
    claim: &Claim,
    tail: &Tail,
) -> Result<Archived, ArchiveError> {
    let wanted = config_map(namespace, run_name, claim, tail);
    let archive_name = name(run_name, &claim.run_uid, claim.attempt);
    let done = |unarchived: Option<Unarchived>| Archived {
        transcript: Transcript {
            pod_uid: claim.pod_uid.clone(),
            ref_: unarchived.is_none().then(|| archive_name.clone()),
            sha256: tail.sha256.clone(),
            size: tail.size,
            dropped_bytes: tail.dropped_bytes,
            source: TranscriptSource::Worker,
        },
        unarchived,
    };
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), namespace);
    let params = PostParams { field_manager: Some(names::GATEWAY_MANAGER.to_owned()), ..PostParams::default() };
    let what = format!("ConfigMap {namespace}/{archive_name}");
    match api::write(what.as_str(), config_maps.create(&params, &wanted)).await {
        Ok(_) => Ok(done(None)),
        Err(WriteError::Refused { status, .. }) if status.reason == "AlreadyExists" => {
            let Some(found) = api::get(&config_maps, &archive_name).await? else {
                return Err(WriteError::Conflict(what).into());
            };
            Ok(match compare(&found, &wanted, &claim.run_uid) {
                Found::Same => done(None),
                Found::Different => {
                    done(Some(Unarchived::Fault(format!("{what} already holds another transcript of this attempt"))))
                }
                Found::Foreign => done(Some(Unarchived::Fault(format!(
                    "{what} does not belong to this run and is left as it is; delete it if nobody needs it"
                )))),
            })
        }
        Err(WriteError::Refused { status, .. }) => Ok(done(Some(refused(&what, &status)))),
        // The run is gone, too: the status write will tell.
        Err(WriteError::Gone(_)) => Ok(done(Some(Unarchived::NamespaceGone))),
        Err(error) => Err(error.into()),
    }
}

fn refused(what: &str, status: &Status) -> Unarchived {
    let causes = status.details.iter().flat_map(|details| &details.causes);
    if causes.into_iter().any(|cause| cause.reason == NAMESPACE_TERMINATING) {
        Unarchived::NamespaceGone
    } else {
        Unarchived::Fault(format!("{what}: {}", status.message))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn claim() -> Claim {
        Claim { pod_uid: "pod".into(), run_uid: "run-uid".into(), attempt: 2, seq: 0 }
    }

    fn tail(data: &[u8]) -> Tail {
        Tail { data: data.to_vec(), sha256: "0".repeat(64), size: 9, dropped_bytes: 1 }
    }

    #[test]
    fn the_archive_is_immutable_labelled_and_owned_by_the_run() {
        let got = serde_json::to_value(config_map("n", "r", &claim(), &tail(b"abc"))).unwrap();
        let hash = naming::short_hash("run-uid");
        assert_eq!(
            got,
            json!({
                "apiVersion": "v1", "kind": "ConfigMap", "immutable": true,
                "metadata": {
                    "name": format!("r-{hash}-transcript-2"), "namespace": "n",
                    "labels": {"subagents.dev/run": "r", "subagents.dev/run-uid": "run-uid", "subagents.dev/attempt": "2"},
                    "ownerReferences": [{
                        "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "name": "r", "uid": "run-uid",
                        "controller": true,
                    }],
                },
                "binaryData": {"transcript.zst": "YWJj"},
            })
        );
    }

    #[test]
    fn d2_only_an_archive_of_this_run_with_this_content_is_ours() {
        let wanted = config_map("n", "r", &claim(), &tail(b"abc"));
        assert_eq!(compare(&wanted, &wanted, "run-uid"), Found::Same);
        assert_eq!(compare(&config_map("n", "r", &claim(), &tail(b"x")), &wanted, "run-uid"), Found::Different);
        let of_another = Claim { run_uid: "other".into(), ..claim() };
        assert_eq!(compare(&config_map("n", "r", &of_another, &tail(b"abc")), &wanted, "run-uid"), Found::Foreign);
        let mut labelled = wanted.clone();
        labelled.metadata.owner_references = None;
        assert_eq!(compare(&labelled, &wanted, "run-uid"), Found::Foreign, "labels prove nothing");
    }

    #[test]
    fn s6_a_terminating_namespace_is_told_from_other_refusals() {
        let status = |cause: &str| -> Status {
            serde_json::from_value(json!({
                "status": "Failure", "code": 403, "reason": "Forbidden", "message": "exceeded quota",
                "details": {"causes": [{"reason": cause, "message": ""}]},
            }))
            .unwrap()
        };
        assert_eq!(refused("c", &status("NamespaceTerminating")), Unarchived::NamespaceGone);
        assert_eq!(refused("c", &status("Other")), Unarchived::Fault("c: exceeded quota".into()));
    }
}
