//! The sweep of the session store, with real objects that refer to what is in it.

use crate::world::LIMIT;
use integration_tests::{TestNamespace, make_run, make_subagent};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::json;
use std::{
    collections::{BTreeSet, HashSet},
    fs,
    path::Path,
    time::SystemTime,
};
use subagent_crds::{
    Subagent, SubagentRun,
    run::{Activation, CheckpointRef, ContinuedSession},
};
use subagent_operator::{
    session_store::{Store, key, sweep},
    watching::Scope,
};
use tempfile::TempDir;

const DAY: SignedDuration = SignedDuration::from_hours(24);

/// A checkpoint of that turn that was written some hours ago.
fn lies_there(dir: &Path, child: &str, turn: i64, hours: u64) -> String {
    let key = key(child, 1, turn, &"0a".repeat(32));
    let path = dir.join(&key);
    fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
    fs::write(&path, b"x").expect("a file");
    let written = SystemTime::now() - std::time::Duration::from_secs(hours * 3600);
    fs::File::options().write(true).open(&path).expect("a file").set_modified(written).expect("a time");
    key
}

fn there(dir: &Path, keys: &[String]) -> BTreeSet<usize> {
    (0..keys.len()).filter(|index| dir.join(&keys[*index]).exists()).collect()
}

/// R10: what a child, its run or a worker's report names stays, however old; what nothing names goes in the second pass.
#[tokio::test]
async fn r10_the_sweep_leaves_everything_that_an_object_names() {
    let namespace = TestNamespace::new("sessions").await;
    let dir = TempDir::new().expect("a folder");
    let store = Store::open(&format!("file://{}", dir.path().display()), []).expect("a setting").expect("a store");
    let child = namespace.create(&make_subagent("child")).await;
    let uid = child.uid().expect("a UID");
    let mut keys: Vec<String> = (1..=5).map(|turn| lies_there(dir.path(), &uid, turn, 48)).collect();
    keys.push(lies_there(dir.path(), &uid, 6, 1));
    keys.push(lies_there(dir.path(), "of-no-child-here", 1, 9999));
    let digest = "0a".repeat(32);
    let checkpoint = |turn: usize| json!({"key": keys[turn - 1], "digest": digest, "size": 1, "epoch": 1, "turn": turn, "at": "2026-01-01T00:00:00Z"});
    let params = PatchParams::default();
    let children: Api<Subagent> = namespace.api();
    let status = Patch::Merge(json!({"status": {"checkpoint": checkpoint(2)}}));
    children.patch_status("child", &params, &status).await.expect("a status");
    let mut run = make_run("child-1");
    run.spec.prompt = None;
    let activation = run.spec.activation.insert(Activation { epoch: 1, ..Activation::default() });
    (activation.subagent_ref.name, activation.subagent_ref.uid) = ("child".into(), uid.clone());
    let pinned = CheckpointRef { key: keys[2].clone(), digest: digest.clone(), size: 1 };
    activation.session = Some(ContinuedSession { id: "s".into(), checkpoint: pinned, completed_turns: 1 });
    namespace.create(&run).await;
    let runs: Api<SubagentRun> = namespace.api();
    let begun = Patch::Merge(json!({"status": {"phase": "Running", "attempt": 1, "podUID": "pod"}}));
    runs.patch_status("child-1", &params, &begun).await.expect("a status");
    let mut told = checkpoint(4);
    told.as_object_mut().expect("an object").retain(|field, _| field != "epoch" && field != "at");
    let report =
        Patch::Merge(json!({"status": {"report": {"podUID": "pod", "attempt": 1, "seq": 1, "checkpoint": told}}}));
    runs.patch_status("child-1", &params, &report).await.expect("a report");

    let scopes = [Scope::Namespace(namespace.name.clone())];
    let pass = async |suspects: &HashSet<_>| {
        let now = Timestamp::now();
        sweep::pass(&namespace.client, &store, &scopes, DAY, suspects, now).await.expect("a pass")
    };
    let first = pass(&HashSet::new()).await;
    assert_eq!(there(dir.path(), &keys), (0..7).collect(), "nothing goes in the first pass");
    let suspected: BTreeSet<String> = first.iter().map(ToString::to_string).collect();
    assert_eq!(suspected, BTreeSet::from([keys[0].clone(), keys[4].clone()]));
    // Named again meanwhile, as by a status that one pass had read before and the other after.
    let status = Patch::Merge(json!({"status": {"checkpoint": checkpoint(5)}}));
    children.patch_status("child", &params, &status).await.expect("a status");
    let second = pass(&first).await;
    assert_eq!(there(dir.path(), &keys), (1..7).collect());
    assert_eq!(second.iter().map(ToString::to_string).collect::<Vec<_>>(), [keys[1].clone()]);
    // A child of which nothing is seen may be in a namespace that is not watched.
    runs.delete("child-1", &DeleteParams::default()).await.expect("a deletion");
    children.delete("child", &DeleteParams::default()).await.expect("a deletion");
    let children = &children;
    let gone = async || match children.get_opt("child").await {
        Ok(None) => Ok(()),
        other => Err(format!("{other:?}")),
    };
    namespace.eventually("the child is gone", LIMIT, gone).await;
    let third = pass(&second).await;
    assert_eq!((there(dir.path(), &keys), third.len()), ((1..7).collect(), 0));
}
