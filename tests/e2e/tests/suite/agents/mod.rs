//! Published agents, unmodified, against a scripted model.
//!
//! What holds for all of them is here and in `children`; what is an agent's own is in the table of [`Published`]. `make test` has
//! two of them, `make test-agents` all.

mod children;

use e2e_tests::{
    RunView, TestNamespace, cluster,
    cluster::host_address,
    commands::repository,
    in_namespace,
    namespace::PATIENCE,
    objects::merge,
    processes,
    published::{Model, Published, nonce, scripted},
    run_with,
    status::end,
};
use kube::ResourceExt;
use rstest::rstest;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::time::Duration;
use subagent_crds::{SubagentProvider, SubagentRun, conditions};
use tokio::{io::AsyncReadExt, net::TcpListener};

/// Longest run: an agent of half a gigabyte starts on a node that starts others.
const TURN: Duration = Duration::from_secs(240);

async fn ready(ns: &TestNamespace, provider: &str) {
    ns.until(provider, "Ready", PATIENCE, |provider: &SubagentProvider| {
        provider.status.as_ref().is_some_and(|status| conditions::is_true(&status.conditions, conditions::READY))
    })
    .await;
}

async fn finished(ns: &TestNamespace, run: &str) -> SubagentRun {
    ns.until(run, "Finished", TURN, |run: &SubagentRun| run.is(conditions::FINISHED)).await
}

/// The provider of the example does its work: a file written, read back through a shell, and the right answer.
#[rstest]
#[case::claude(Published::claude())]
#[cfg_attr(feature = "every-agent", case::codex(Published::codex()))]
#[case::opencode(Published::opencode())]
#[tokio::test]
async fn it_writes_a_file_and_answers_with_a_digest(#[case] agent: Published) {
    // The probe's, and the run's.
    let _pods = agent.pods(2).await;
    in_namespace(agent.provider, async |ns| {
        Model::start(&ns, &agent).await;
        let example = repository().join(format!("examples/provider-{}.yaml", agent.provider));
        ns.kubectl(&["apply", "-f", example.to_str().expect("a path in UTF-8")]);
        ready(&ns, agent.provider).await;
        let nonce = nonce(&ns);
        let prompt = format!("nonce: {nonce}\nWrite the SHA-256 of the nonce to the file answer.txt, read it back, then answer with the digest alone.\n");
        ns.create(&run_with("digest", json!({"providerRef": {"name": agent.provider}, "prompt": {"text": prompt}}))).await;
        let run = finished(&ns, "digest").await;
        assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
        assert_eq!(run.text().trim(), format!("{:x}", Sha256::digest(&nonce)));
        let found = run.seen().report.and_then(|report| report.agent).expect("the agent");
        assert_eq!((found.name.as_str(), found.protocol_version), (agent.name, 1));
        assert!(!found.version.is_empty());
        let counted = run.seen().permissions.unwrap_or_default();
        assert_eq!((counted.allowed, counted.rejected), (agent.asked, 0));
        let log = ns.kubectl(&["logs", "-l", &cluster::of_run("digest"), "-c", "agent", "--tail=-1"]);
        assert!(log.contains(&nonce) && log.contains("answer.txt"), "{log}");
    })
    .await;
}

/// What policy rejects is not done, what it allows is (c19, c55); both in a pod that reaches nothing but the model.
#[rstest]
#[case::claude(Published::claude())]
#[cfg_attr(feature = "every-agent", case::codex(Published::codex()))]
#[case::opencode(Published::opencode())]
#[tokio::test]
async fn c19_c55_it_asks_and_heeds_the_answer(#[case] agent: Published) {
    let _pods = agent.pods(2).await;
    in_namespace(&format!("{}-asks", agent.provider), async |ns| {
        let model = Model::start(&ns, &agent).await;
        for (name, mode) in [("rejects", "Reject"), ("allows", "Allow")] {
            let mut patch = json!({"probe": "Never", "transport": {"acp": {"permission": {"mode": mode}}}});
            merge(&mut patch, agent.asks());
            ns.create(&agent.provider(name, patch)).await;
            ready(&ns, name).await;
            let prompt = scripted(&[(agent.asking_shell)(&model.mark(name)), json!({"text": "all done"})]);
            ns.create(&run_with(name, json!({"providerRef": {"name": name}, "prompt": {"text": prompt}}))).await;
        }
        let allowed = finished(&ns, "allows").await;
        assert_eq!(allowed.end(), end("Completed", "Completed", "Completed"), "{}", allowed.message());
        assert_eq!(allowed.text().trim(), "all done");
        let counted = allowed.seen().permissions.expect("counts");
        assert_eq!((counted.allowed, counted.rejected), (1, 0));
        assert!(model.is_marked("allows"), "what was allowed was not done");

        let rejected = finished(&ns, "rejects").await;
        let (phase, stop_reason, reason) = agent.refused;
        assert_eq!(rejected.end(), end(phase, stop_reason, reason), "{}", rejected.message());
        let counted = rejected.seen().permissions.expect("counts");
        assert_eq!((counted.allowed, counted.rejected), (0, 1));
        assert!(!model.is_marked("rejects"), "what was rejected was done");
        let uid = rejected.uid().unwrap_or_default();
        ns.eventually("the Event PermissionsRejected", PATIENCE, async || {
            let events = ns.events_of(&uid).await;
            let found = events.iter().find(|(reason, _, _)| reason == "PermissionsRejected");
            let note = found.map(|(_, _, note)| note.as_str()).unwrap_or_default();
            if note.contains("transport.acp.permission.mode") { Ok(()) } else { Err(format!("{events:?}")) }
        })
        .await;
    })
    .await;
}

/// A command that waits for what never answers, and leaves another behind in a session of its own: a cancel ends the run
/// within its graces, and both of them (S2, S5).
#[rstest]
#[case::claude(Published::claude())]
#[cfg_attr(feature = "every-agent", case::codex(Published::codex()))]
#[case::opencode(Published::opencode())]
#[tokio::test]
async fn s2_s5_a_cancel_ends_what_its_tool_started(#[case] agent: Published) {
    let _pods = agent.pods(1).await;
    in_namespace(&format!("{}-stops", agent.provider), async |ns| {
        Model::start(&ns, &agent).await;
        // Takes connections, and says nothing.
        let dead = TcpListener::bind((host_address(), 0))
            .await
            .expect("a port on this host's address in the cluster's network");
        let address = dead.local_addr().expect("an address");
        // Nobody is asked here.
        let patch = json!({"probe": "Never", "transport": {"acp": {"permission": {"mode": "Allow"}}},
            "stop": {"cancelGraceSeconds": 5, "eofGraceSeconds": 2, "termGraceSeconds": 1}});
        ns.create(&agent.provider("stops", patch)).await;
        ready(&ns, "stops").await;
        let command = format!("setsid sleep 86400 </dev/null >/dev/null 2>&1 & wget -q -O - http://{address}/");
        // An agent that lets a long command go on in the background asks the model again meanwhile: held until nobody waits any more.
        let prompt = scripted(&[json!({"shell": command}), json!({"hold": "never"}), json!({"text": "never said"})]);
        ns.create(&run_with("hangs", json!({"providerRef": {"name": "stops"}, "prompt": {"text": prompt}}))).await;
        let (mut connection, _) =
            tokio::time::timeout(TURN, dead.accept()).await.expect("the command runs").expect("a connection");
        let run = ns.run("hangs").await;
        let uid = run.seen().pod_uid.expect("a pod");
        let before = processes::commands_of_pod(&uid);
        for part in ["sleep 86400", &format!("wget -q -O - http://{address}/")] {
            assert!(before.iter().any(|command| command.contains(part)), "no {part:?} in {before:?}");
        }

        ns.cancel("hangs");
        let run = ns.stopped("hangs").await;
        assert_eq!(run.end(), end("Cancelled", "Aborted", "Cancelled"), "{}", run.message());
        assert_eq!(
            run.condition(conditions::STOPPED).map(|stopped| stopped.reason),
            Some("ContainersTerminated".into())
        );
        assert_eq!(processes::commands_of_pod(&uid), Vec::<String>::new(), "the pod was proven stopped");
        // Seen from where it was connected to: it sent its request and is gone.
        let mut sent = Vec::new();
        let read =
            tokio::time::timeout(PATIENCE, connection.read_to_end(&mut sent)).await.expect("the connection ends");
        assert!(read.is_err() || String::from_utf8_lossy(&sent).starts_with("GET "), "{read:?}");
        assert!(!run.text().contains("never said"), "{}", run.text());
        assert!(ns.transcript("hangs").contains("sleep 86400"), "the transcript shows the command");
    })
    .await;
}
