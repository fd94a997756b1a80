//! D5: a link token that the kubelet made for a real worker pod, taken out of it and used by others. Who uses it is the
//! real worker, in pods of its own, against the real gateway.

use e2e_tests::{
    RunView, ScriptedProvider, TestNamespace, collector, collector::seen_event, in_namespace, namespace::PATIENCE, run,
    status::end,
};
use k8s_openapi::api::core::v1::{Pod, Secret};
use kube::{ResourceExt, api::LogParams};
use regex::Regex;
use serde_json::{Value, json};
use subagent_crds::{SubagentRun, names};

/// A worker of the tenant's own making: somebody's token, and a configuration that names a run and an attempt.
async fn attack(ns: &TestNamespace, name: &str, of: &Pod, token: &str, target: &SubagentRun) {
    let annotation = |key: &str| of.annotations().get(key).cloned().unwrap_or_default();
    let mut config: Value =
        serde_json::from_str(&annotation(names::WORKER_CONFIG_ANNOTATION)).expect("a configuration");
    config["run"] = json!(target.name_any());
    config["runUid"] = json!(target.uid());
    let files = json!({
        "config.json": config.to_string(), "roots.pem": annotation(names::GATEWAY_ROOTS_ANNOTATION), "token": token,
    });
    let secret: Secret =
        serde_json::from_value(json!({"metadata": {"name": name}, "stringData": files})).expect("a Secret");
    ns.create(&secret).await;
    let pod: Pod = serde_json::from_value(json!({"metadata": {"name": name}, "spec": {
        "restartPolicy": "Never", "automountServiceAccountToken": false, "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}},
        "volumes": [{"name": "link", "secret": {"secretName": name}}],
        "containers": [{
            "name": "agent", "image": "localhost/subagent-worker:dev", "imagePullPolicy": "Never",
            "command": ["/subagent-worker", "run", "--", "/subagent-worker"], "workingDir": "/",
            "env": [{"name": "SUBAGENT_WORKER_LINK_DIR", "value": "/link"}],
            "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}},
            "volumeMounts": [{"name": "link", "mountPath": "/link"}],
        }],
    }}))
    .expect("a pod");
    ns.create(&pod).await;
}

/// Waits until a pod's log holds this, and returns the log.
async fn says(ns: &TestNamespace, pod: &str, words: &str) -> String {
    ns.eventually(&format!("pod {pod} says {words:?}"), PATIENCE, async || {
        let params = LogParams { container: Some("agent".into()), ..LogParams::default() };
        let log = ns.api::<Pod>().logs(pod, &params).await.map_err(|error| error.to_string())?;
        if log.contains(words) { Ok(log) } else { Err(log) }
    })
    .await
}

#[tokio::test]
async fn d5_a_token_taken_out_of_its_pod_opens_no_other_run_and_ends_with_the_pod() {
    in_namespace("tokens", async |ns| {
        let collector = collector();
        ns.provider(&ScriptedProvider::default().reporting_to(collector.address())).await;
        // The agent shares the worker's container and can read its token: here it gives it away, on a whole line.
        let (steals, works) =
            ("!read /subagents/link/token\n!say \\n\n!gate open\n!say mine", "!gate open\n!say untouched");
        let thief = ns.create(&run("thief", steals)).await;
        let victim = ns.create(&run("victim", works)).await;
        for script in [steals, works] {
            seen_event(&collector, PATIENCE, "prompt", script).await;
        }
        let pod = ns.run_until("thief", "its pod is known", |run| run.seen().pod_uid.is_some()).await.pod_name();
        let log = says(&ns, &pod, "eyJ").await;
        let jwt = Regex::new(r"eyJ[\w-]+\.[\w-]+\.[\w-]+").expect("a pattern");
        let token = jwt.find(&log).expect("a token in the log").as_str().to_owned();
        let of = ns.api::<Pod>().get(&pod).await.expect("the thief's pod");
        let other_audience =
            ns.kubectl(&["create", "token", "default", "--bound-object-kind=Pod", "--bound-object-name", &pod]);

        attack(&ns, "another-run", &of, &token, &victim).await;
        // The token is good: its own run knows that this worker cannot be the one that reported.
        attack(&ns, "own-run", &of, &token, &thief).await;
        attack(&ns, "other-audience", &of, other_audience.trim(), &thief).await;
        says(&ns, "another-run", "the gateway refused this worker: NotCurrent").await;
        says(&ns, "own-run", "the gateway refused this worker: WorkerLost").await;
        says(&ns, "other-audience", "the gateway answered Unauthenticated").await;

        collector.open_gate("open");
        for (name, text) in [("thief", "mine"), ("victim", "untouched")] {
            let run = ns.stopped(name).await;
            assert_eq!(run.end(), end("Completed", "Completed", "Completed"), "{}", run.message());
            assert!(run.text().ends_with(text), "{}", run.text());
            assert_eq!(run.seen().attempt, Some(1));
            assert_eq!(collector.of_kind("prompt").iter().filter(|prompt| prompt.text.ends_with(text)).count(), 1);
        }
        ns.kubectl(&["delete", "subagentrun", "thief"]);
        ns.gone::<Pod>(&pod, &of.uid().unwrap_or_default(), PATIENCE).await;
        attack(&ns, "after-the-pod", &of, &token, &thief).await;
        says(&ns, "after-the-pod", "the gateway answered Unauthenticated").await;
    })
    .await;
}
