//! A real worker keeps its child's session in a real store, and another one goes on from it.

use crate::{
    checkpoints::{CHILD, world},
    programs,
    world::{LIMIT, World},
};
use kube::ResourceExt;
use scripted_agent::binary;
use serde_json::json;
use std::{fs, path::Path, process::Stdio};
use subagent_crds::{
    report::Report,
    run::{Activation, CheckpointRef, ContinuedSession, Inbox},
};
use subagent_link::{AUDIENCE, StopGraces, WorkerConfig};
use tokio::{process::Command, time::timeout};

/// One activation with one message, from its pod to the end of its worker. Its last report.
async fn activate(world: &World, epoch: i64, session: Option<ContinuedSession>, text: &str) -> Report {
    let name = format!("child-{epoch}");
    let run = world
        .run_with(&name, |run| {
            run.spec.prompt = None;
            let activation = Activation { epoch, session, inbox: Inbox::Closed, ..Activation::default() };
            let activation = run.spec.activation.insert(activation);
            (activation.subagent_ref.name, activation.subagent_ref.uid) = ("child".into(), CHILD.into());
            let messages = json!([{"id": format!("m{epoch}"), "placement": 1, "text": text}]);
            run.spec.messages = serde_json::from_value(messages).expect("messages");
        })
        .await;
    let pod = world.pod(&format!("{name}-1"), &run).await;
    let run = world.begin(&run, 1, &pod).await;
    let folder = tempfile::tempdir().expect("a folder");
    let config = WorkerConfig {
        gateway: format!("wss://localhost:{}{}", world.replica.address.port(), subagent_link::LINK_PATH),
        namespace: world.namespace.name.clone(),
        run: name.clone(),
        run_uid: run.uid().expect("a UID"),
        attempt: 1,
        cwd: folder.path().to_str().expect("a name").to_owned(),
        stop: StopGraces { cancel_grace_seconds: 2, eof_grace_seconds: 2, term_grace_seconds: 2 },
    };
    let write = |name: &str, text: &str| fs::write(folder.path().join(name), text).expect("a file");
    write(subagent_link::CONFIG_FILE, &serde_json::to_string(&config).expect("JSON"));
    write(subagent_link::ROOTS_FILE, &world.replica.roots);
    write(subagent_link::TOKEN_FILE, &world.token(&pod, AUDIENCE).await);
    let worker = Command::new(programs::worker())
        .args(["run", "--"])
        .arg(binary::scripted_agent())
        .env("SUBAGENT_WORKER_LINK_DIR", folder.path())
        .env("SUBAGENT_WORKER_HOME_DIR", folder.path())
        .env_remove("SCRIPTED_AGENT_BINARY")
        .env("SCRIPTED_AGENT_STATE", &world.state)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("a worker");
    let output = timeout(LIMIT, worker.wait_with_output()).await.expect("it ends").expect("output");
    println!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    world.live(&name).await.status.and_then(|status| status.report).expect("a report")
}

fn reason(report: &Report) -> &str {
    report.final_.as_ref().map_or("no end", |end| end.reason.as_str())
}

fn clear(folder: &Path) {
    fs::remove_dir_all(folder).expect("a folder");
    fs::create_dir(folder).expect("a folder");
}

#[tokio::test]
async fn c40_c41_a_session_goes_through_the_store_into_another_pod() {
    let (mut world, store) = world("continued").await;
    let state = tempfile::tempdir().expect("a folder");
    world.state = state.path().to_str().expect("a name").to_owned();
    let first = activate(&world, 1, None, "remember me").await;
    assert_eq!(reason(&first), "Completed");
    let kept = first.checkpoint.as_ref().expect("c41: it was kept");
    assert_eq!(kept.key, format!("{CHILD}/1/1/{}", kept.digest));
    let session = |report: &Report| {
        let kept = report.checkpoint.clone().expect("a checkpoint");
        let checkpoint = CheckpointRef { key: kept.key, digest: kept.digest, size: kept.size };
        Some(ContinuedSession { id: report.session.clone().expect("a session").id, checkpoint, completed_turns: 1 })
    };

    // Another pod has nothing of the first one.
    clear(state.path());
    let second = activate(&world, 2, session(&first), "!history").await;
    assert_eq!(reason(&second), "Completed");
    let how = second.session.as_ref().map(|session| (session.id.clone(), session.how.clone()));
    assert_eq!(how, first.session.as_ref().map(|session| (session.id.clone(), "Resumed".into())));
    assert_eq!(second.turns[0].preview.as_deref(), Some("turns before: 1"));
    assert_eq!(second.checkpoint.as_ref().map(|kept| kept.key.split('/').nth(1) == Some("2")), Some(true));

    // R10: and without its checkpoint it is no other child.
    clear(state.path());
    fs::remove_file(store.path().join(&second.checkpoint.as_ref().expect("a checkpoint").key)).expect("it is there");
    let third = activate(&world, 3, session(&second), "!history").await;
    assert_eq!((reason(&third), third.turn_count), ("NotResumable", 0));
    // A store without anything is not the one that held it: no word about the session.
    clear(store.path());
    let fourth = activate(&world, 4, session(&first), "!history").await;
    assert_eq!((reason(&fourth), fourth.turn_count), ("DurabilityFailed", 0));
}
