//! Workspaces of children: one claim for the life of each, in the pod of every activation; never another's, never a fresh one in
//! its place.

use crate::{
    audit::{Mark, Request},
    children::{Children, message, queue},
    world::LIMIT,
};
use integration_tests::claim_spec;
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, ResourceQuota};
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams, PostParams},
};
use rstest::rstest;
use serde_json::{Value, json};
use subagent_crds::{
    Subagent, SubagentPhase, SubagentRun, SubagentStatus,
    conditions::{WORKSPACE_CREATED, get},
    message::Code,
    names,
};
use subagent_operator::subagent::workspace;

/// A child with a workspace, told `one`.
fn asking(claim: Value) -> Value {
    json!({"workspace": {"claimTemplate": claim}, "messages": [{"id": "m1", "text": "one"}]})
}

impl Children {
    async fn claims(&self) -> Vec<PersistentVolumeClaim> {
        self.world.namespace.api().list(&ListParams::default()).await.expect("claims").items
    }

    /// Deletes a claim. Nobody takes it out of protection here, where no controller looks whether a pod uses it.
    async fn delete_claim(&self, name: &str, is_released: bool) {
        let claims = self.world.namespace.api::<PersistentVolumeClaim>();
        claims.delete(name, &DeleteParams::default()).await.expect("a deletion");
        if is_released {
            let released = json!({"metadata": {"finalizers": null}});
            claims.patch(name, &PatchParams::default(), &Patch::Merge(&released)).await.expect("a release");
        }
    }

    async fn runs(&self) -> Vec<SubagentRun> {
        self.world.namespace.api().list(&ListParams::default()).await.expect("runs").items
    }
}

/// Claims and places of a pod's workspace.
fn mounted(pod: &Pod) -> Vec<(String, String)> {
    let spec = pod.spec.as_ref().expect("a spec");
    let claims =
        spec.volumes.iter().flatten().filter_map(|volume| Some((volume, volume.persistent_volume_claim.as_ref()?)));
    let agent = crate::node::agent(pod);
    let place = |volume: &str| {
        let mount = agent.volume_mounts.iter().flatten().find(|mount| mount.name == volume);
        mount.map(|mount| mount.mount_path.clone()).unwrap_or_default()
    };
    claims.map(|(volume, claim)| (claim.claim_name.clone(), place(&volume.name))).collect()
}

/// What `WorkspaceCreated` says.
fn created(status: &SubagentStatus) -> (&str, &str) {
    let condition = get(&status.conditions, WORKSPACE_CREATED);
    condition.map_or(("", ""), |condition| (condition.status.as_str(), condition.reason.as_str()))
}

/// c40: made once, for the child alone, and mounted where the agent works, whatever epoch it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c40_a_child_has_one_claim_in_all_its_activations() {
    let (children, operator) = Children::new("workspace").await;
    let mark = Mark::now();
    let child = children.create("child", asking(claim_spec())).await;
    let first = children.settled("child").await;
    children.append("child", &[queue("m2", "two")]).await;
    let second = children.settled("child").await;
    assert_eq!((second.epochs, created(&second)), (2, ("True", "ClaimCreated")));
    let stored = first.workspace.expect("a workspace");
    assert_eq!(second.workspace.as_ref(), Some(&stored));
    let [claim] = &children.claims().await[..] else { panic!("one claim") };
    assert_eq!((claim.name_any(), claim.uid()), (stored.claim_name.clone(), Some(stored.claim_uid)));
    let [owner] = claim.owner_references() else { panic!("one owner") };
    assert_eq!(
        (Some(&owner.uid), owner.controller, owner.kind.as_str()),
        (child.uid().as_ref(), Some(true), "Subagent")
    );
    assert_eq!(claim.labels().get(names::SUBAGENT_LABEL).map(String::as_str), Some("child"));
    let asked = serde_json::to_value(&claim.spec).expect("a spec");
    assert_eq!(asked["resources"], claim_spec()["resources"]);
    let cwd = children.world.node.cwd().to_str().expect("a path").to_owned();
    for epoch in [1, 2] {
        let pod = children.world.pod(&children.run("child", epoch).await, 1).await;
        assert_eq!(mounted(&pod), [(stored.claim_name.clone(), cwd.clone())], "epoch {epoch}");
    }
    let asked = mark.requests_of(&children.world.rights.user);
    let made =
        asked.iter().filter(|asked| asked.is_counted_write() && asked.line().contains("/persistentvolumeclaims"));
    assert_eq!(made.map(Request::line).collect::<Vec<_>>().len(), 1);
    children.finish(operator).await;
}

/// R1: an operator is killed as soon as the claim is there, and the next one finds its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_an_operator_killed_around_the_claim_makes_no_second_one() {
    let (children, operator) = Children::new("workspace-kill").await;
    let child = children.create("child", asking(claim_spec())).await;
    let made = children
        .world
        .namespace
        .until::<PersistentVolumeClaim>(&workspace::name(&child), "exists", LIMIT, |_| true)
        .await;
    operator.kill().await;
    let operator = children.operator("second").await;
    let status = children.settled("child").await;
    assert_eq!(status.workspace.map(|stored| stored.claim_uid), made.uid());
    assert_eq!(children.claims().await.len(), 1);
    operator.stop().await;

    // At the step in which only the claim is stored, and the status does not name it.
    let other = children.create("other", asking(claim_spec())).await;
    let claim = serde_json::from_value(workspace::claim(&other).expect("a claim")).expect("a claim");
    let made = children.world.namespace.create::<PersistentVolumeClaim>(&claim).await;
    let operator = children.operator("third").await;
    let status = children.settled("other").await;
    assert_eq!(status.workspace.map(|stored| stored.claim_uid), made.uid());
    children.finish(operator).await;
}

/// D2: what somebody else has put under the claim's name is neither used nor changed; it is named, and with it gone the child
/// goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_a_foreign_claim_under_the_name_is_named_and_left_alone() {
    let (children, operator) = Children::new("workspace-taken").await;
    operator.stop().await;
    let child = children.create("child", asking(claim_spec())).await;
    let name = workspace::name(&child);
    let foreign = json!({"metadata": {"name": name}, "spec": claim_spec()});
    let foreign: PersistentVolumeClaim = serde_json::from_value(foreign).expect("a claim");
    let foreign = children.world.namespace.create(&foreign).await;
    let operator = children.operator("second").await;
    let taken = |status: &SubagentStatus| created(status) == ("False", "NameTaken");
    let status = children.until("child", "says that the name is taken", taken).await;
    let message = status.message.clone().unwrap_or_default();
    let words = format!("PersistentVolumeClaim {name} exists and does not belong to this child");
    assert!(message.contains(&words) && message.contains("delete that claim"), "{message}");
    assert_eq!((status.phase, status.workspace), (Some(SubagentPhase::Active), None));
    children.event("child", "RunRefused").await;
    let runs = children.runs().await;
    assert!(runs.is_empty(), "{runs:?}");
    let left = children.world.namespace.api::<PersistentVolumeClaim>().get(&name).await.expect("the claim");
    assert_eq!((left.uid(), left.resource_version()), (foreign.uid(), foreign.resource_version()));
    children.delete_claim(&name, true).await;
    let status = children.settled("child").await;
    assert!(status.workspace.is_some_and(|stored| Some(stored.claim_uid) != foreign.uid()));
    children.finish(operator).await;
}

/// c7, c34: a claim that no API server would take is refused with its words, and nothing is left behind.
#[rstest]
#[case::value(json!({"accessModes": ["Sometimes"]}), "spec.accessModes: Unsupported value: \"Sometimes\"")]
#[case::misspelt(json!({"storageClass": "fast"}), "unknown field \"spec.storageClass\"")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c7_c34_a_claim_that_is_none_refuses_the_child(#[case] extra: Value, #[case] words: &str) {
    let (children, operator) = Children::new("workspace-wrong").await;
    let mut claim = claim_spec();
    claim.as_object_mut().expect("a spec").extend(extra.as_object().expect("fields").clone());
    children.create("child", asking(claim)).await;
    let refused = |status: &SubagentStatus| status.phase == Some(SubagentPhase::Rejected);
    let status = children.until("child", "Rejected", refused).await;
    assert_eq!(status.reason.as_deref(), Some("InvalidArgs"), "{:?}", status.message);
    let message = status.message.unwrap_or_default();
    assert!(message.contains(words) && message.contains("spec.workspace.claimTemplate"), "{message}");
    let child = children.world.namespace.api::<Subagent>().get("child").await.expect("a child");
    assert!(child.finalizers().is_empty() && children.claims().await.is_empty());
    children.finish(operator).await;
}

/// A full quota is no refusal: the child waits, says for what, and goes on with room.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n1_a_full_quota_of_claims_is_waited_for() {
    let (children, operator) = Children::new("workspace-quota").await;
    let none = json!({"metadata": {"name": "none"}, "spec": {"hard": {"persistentvolumeclaims": "0"}}});
    children.world.namespace.create(&serde_json::from_value::<ResourceQuota>(none).expect("a quota")).await;
    let quotas = children.world.namespace.api::<ResourceQuota>();
    // As the quota controller would.
    let counts = json!({"persistentvolumeclaims": "0"});
    let counted = json!({"status": {"hard": counts, "used": counts}});
    quotas.patch_status("none", &PatchParams::default(), &Patch::Merge(&counted)).await.expect("a quota");
    let claims = &children.world.namespace.api::<PersistentVolumeClaim>();
    let dry = &PostParams { dry_run: true, ..PostParams::default() };
    let any = json!({"metadata": {"name": "any"}, "spec": claim_spec()});
    let any = &serde_json::from_value::<PersistentVolumeClaim>(any).expect("a claim");
    children
        .world
        .namespace
        .eventually("the quota is in force", LIMIT, async || match claims.create(dry, any).await {
            Err(error) if error.to_string().contains("exceeded quota") => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await;
    children.create("child", asking(claim_spec())).await;
    let waits = |status: &SubagentStatus| created(status) == ("False", "QuotaExceeded");
    let status = children.until("child", "waits for room", waits).await;
    assert_eq!((status.phase, status.reason.as_deref()), (Some(SubagentPhase::Active), Some("QuotaExceeded")));
    assert!(status.message.is_some_and(|message| message.contains("exceeded quota: none")));
    quotas.delete("none", &DeleteParams::default()).await.expect("a deletion");
    let status = children.settled("child").await;
    assert_eq!(created(&status), ("True", "ClaimCreated"));
    children.finish(operator).await;
}

/// c40: files that are lost are never replaced by an empty folder in silence.
#[rstest]
#[case::gone(true, "is gone")]
#[case::going(false, "is being deleted")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c40_a_lost_claim_is_not_resumable_and_never_made_again(#[case] is_released: bool, #[case] words: &str) {
    let (children, operator) = Children::new("workspace-lost").await;
    children.create("child", asking(claim_spec())).await;
    let stored = children.settled("child").await.workspace.expect("a workspace");
    children.delete_claim(&stored.claim_name, is_released).await;
    children.append("child", &[queue("m2", "two"), queue("m3", "three")]).await;
    let lost = |status: &SubagentStatus| status.phase == Some(SubagentPhase::NotResumable);
    let status = children.until("child", "NotResumable", lost).await;
    assert_eq!(message(&status, "m2").code, Some(Code::NotResumable));
    assert_eq!(message(&status, "m3").code, Some(Code::NotResumable));
    let said = status.message.clone().unwrap_or_default();
    assert!(said.contains(&stored.claim_name) && said.contains(words), "{said}");
    assert_eq!(status.workspace.as_ref(), Some(&stored));
    children.event("child", "NotResumable").await;
    assert_eq!(children.world.pods().await.len(), 1, "that of the first activation");
    let left = children.claims().await;
    assert!(left.iter().all(|claim| claim.uid().as_ref() == Some(&stored.claim_uid)), "{left:?}");
    assert_eq!(left.is_empty(), is_released);
    children.finish(operator).await;
}
