//! One run, one Job, one Pod: from just before the create to what a user waits for.

use crate::seconds;
use e2e_tests::{RunView, TestNamespace, namespace::PATIENCE, run as make_run};
use k8s_openapi::api::{batch::v1::Job, core::v1::Pod};
use serde_json::{Value, json};
use std::time::Instant;
use subagent_crds::{SubagentRun, conditions};

/// A run of an agent that answers at once: seconds from create to Finished. Comes back when it is proven stopped, so that
/// nothing of it meets the next.
pub async fn run(ns: &TestNamespace, name: &str) -> f64 {
    let began = Instant::now();
    ns.create(&make_run(name, "hello")).await;
    let finished = ns.run_until(name, "Finished", |run| run.is(conditions::FINISHED)).await;
    let taken = seconds(began.elapsed());
    assert_eq!((finished.reason().as_str(), finished.text().as_str()), ("Completed", "echo: hello"));
    let stopped = ns.stopped(name).await;
    ns.until::<Pod>(&stopped.pod_name(), "released", PATIENCE, released).await;
    taken
}

/// True when the operator is done with a run's pod.
pub fn released(pod: &Pod) -> bool {
    pod.metadata.finalizers.iter().flatten().next().is_none()
}

/// A Job whose one pod ends at once: seconds from create to Complete.
pub async fn job(ns: &TestNamespace, name: &str) -> f64 {
    let began = Instant::now();
    ns.create(&make_job(name)).await;
    ns.until::<Job>(name, "Complete", PATIENCE, is_complete).await;
    seconds(began.elapsed())
}

/// A Pod that ends at once: seconds from create to Succeeded.
pub async fn pod(ns: &TestNamespace, name: &str) -> f64 {
    let pod: Pod = object(json!({"metadata": {"name": name}, "spec": pod_spec()}));
    let began = Instant::now();
    ns.create(&pod).await;
    let is_over = |pod: &Pod| pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded");
    ns.until::<Pod>(name, "Succeeded", PATIENCE, is_over).await;
    seconds(began.elapsed())
}

/// The Job.
pub fn make_job(name: &str) -> Job {
    object(json!({"metadata": {"name": name}, "spec": {"backoffLimit": 0, "template": {"spec": pod_spec()}}}))
}

/// True when a Job is over, and well.
pub fn is_complete(job: &Job) -> bool {
    let conditions = job.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|condition| condition.type_ == "Complete" && condition.status == "True")
}

/// True when a run is over.
pub fn is_finished(run: &SubagentRun) -> bool {
    run.is(conditions::FINISHED)
}

/// What a worker pod of the scripted agent is to the scheduler and the kubelet, without us. The agent ends at once: its
/// stdin is closed.
fn pod_spec() -> Value {
    json!({
        "restartPolicy": "Never",
        "securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{
            "name": "agent",
            "image": "localhost/scripted-agent:dev",
            "imagePullPolicy": "Never",
            "command": ["/usr/bin/scripted-agent"],
            "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}, "limits": {"memory": "256Mi"}},
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
        }],
    })
}

fn object<K: serde::de::DeserializeOwned>(value: Value) -> K {
    serde_json::from_value(value).expect("an object")
}
