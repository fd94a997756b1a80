//! The chart comes and goes under live runs. The first of the test binaries: whatever was installed before is installed
//! anew, so that the last one looks at the audit log of all others.

use e2e_tests::{
    RunView, ScriptedProvider, cluster, collector,
    collector::seen_event,
    commands::{kubectl, output},
    in_namespace,
    namespace::PATIENCE,
    run,
    status::end,
};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use std::time::Duration;
use subagent_crds::{Phase, SubagentRun, conditions};

/// How long the operator is away: longer than its lease of 15 s.
const OUTAGE: Duration = Duration::from_secs(18);

/// C7.
#[tokio::test]
async fn s6_r14_an_uninstalled_chart_loses_no_run_and_lets_none_go_without_proof() {
    in_namespace("uninstalled", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        ns.create(&run("steady", "!gate installed\n!say still here")).await;
        ns.create(&run("ending", "!gate uninstalled\n!say nobody was listening")).await;
        let deleted = ns.create(&run("deleted", "!stamp 100\n!hang")).await;
        for gate in ["installed", "uninstalled"] {
            seen_event(&collector, PATIENCE, "gate", gate).await;
        }
        for name in ["steady", "ending", "deleted"] {
            ns.run_until(name, "Running", |run| run.phase() == Some(Phase::Running)).await;
        }

        let finished = ns.finish(&run("finished", "nothing left to prove")).await;
        let done =
            output("helm", &["uninstall", cluster::RELEASE, "--namespace", cluster::OPERATOR_NAMESPACE, "--wait"]);
        // Helm tells the hook's log beside its own words.
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "{said}");
        // What is over is let go; what lives is named and keeps its finalizer.
        ns.kubectl(&["delete", "subagentrun", "finished", "--wait=false"]);
        ns.gone::<SubagentRun>("finished", &finished.uid().unwrap_or_default(), PATIENCE).await;
        ns.gone::<Pod>(&finished.pod_name(), &finished.seen().pod_uid.unwrap_or_default(), PATIENCE).await;
        for name in ["steady", "ending", "deleted"] {
            assert!(said.contains(&format!("run {name} in namespace {} is Running", ns.name)), "{said}");
            assert!(!ns.run(name).await.finalizers().is_empty(), "c50: {name} lost its finalizer");
        }
        assert!(cluster::operator_pods(&ns.client).await.is_empty());
        let left =
            kubectl(&["get", "jobs,serviceaccounts", "--namespace", cluster::OPERATOR_NAMESPACE, "--output", "name"]);
        assert!(!left.contains("uninstall"), "{left}");
        ns.kubectl(&["delete", "subagentrun", "deleted", "--wait=false"]);
        collector.open_gate("uninstalled");
        // The outage itself is what is tested here.
        tokio::time::sleep(OUTAGE).await;
        let waiting = ns.run("deleted").await;
        assert!(waiting.metadata.deletion_timestamp.is_some(), "c50: it stays until it is proven stopped");
        assert_eq!(ns.run("ending").await.phase(), Some(Phase::Running), "nobody could store its end");

        cluster::install(&ns.client).await;
        let gone_ms = ns.gone::<SubagentRun>("deleted", &deleted.uid().unwrap_or_default(), PATIENCE).await;
        let last = collector.of_kind("stamp").iter().map(|stamp| stamp.time_ms).max().expect("stamps");
        assert!(last <= gone_ms, "S1: a stamp {} ms after the run was gone", last.saturating_sub(gone_ms));
        let ending = ns.until("ending", "Stopped", PATIENCE, |run: &SubagentRun| run.is(conditions::STOPPED)).await;
        assert_eq!(
            (ending.end(), ending.text()),
            (end("Completed", "Completed", "Completed"), "nobody was listening".into())
        );
        collector.open_gate("installed");
        let steady = ns.stopped("steady").await;
        assert_eq!((steady.end(), steady.text()), (end("Completed", "Completed", "Completed"), "still here".into()));
        assert_eq!(collector.of_kind("prompt").len(), 4, "no prompt was sent twice");
    })
    .await;
}
