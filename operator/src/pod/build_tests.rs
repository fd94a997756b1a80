//! The pods that are built.

use super::*;
use rstest::rstest;

fn provider(template: Value) -> SubagentProviderSpec {
    serde_json::from_value(json!({"transport": {"acp": {}}, "template": template})).unwrap()
}

fn worker<'a>() -> Worker<'a> {
    Worker {
        namespace: "ns",
        run: "fix",
        run_uid: "uid-1",
        attempt: 2,
        parameters: None,
        prompt_file: None,
        workspace: None,
        worker_image: "worker:1",
        gateway_url: "wss://g.s.svc:8443/v1/link",
        gateway_roots: "PEM",
    }
}

#[test]
fn the_whole_pod() {
    let provider = provider(json!({
        "metadata": {"labels": {"team": "a"}},
        "spec": {"containers": [
            {"name": "agent", "image": "agent:1", "command": ["opencode"], "args": ["acp"], "securityContext": {"runAsUser": 1000}},
            {"name": "sidecar", "image": "side:1"},
        ]}
    }));
    insta::assert_yaml_snapshot!(build(&provider, &worker()));
}

fn probe<'a>() -> Probe<'a> {
    Probe {
        namespace: "ns",
        provider: "coder",
        provider_uid: "uid-2",
        pod: "coder-probe-1",
        attempt: 1,
        deadline_seconds: 600,
        worker_image: "worker:1",
    }
}

/// What a run meets, its probe meets: both pods differ in the worker's subcommand and in what is for the gateway.
#[test]
fn a_probes_pod_is_a_runs_pod_without_gateway_and_finalizer() {
    let provider = provider(json!({
        "metadata": {"labels": {"team": "a"}, "annotations": {"note": "b"}},
        "spec": {
            "initContainers": [{"name": "clone", "image": "git", "env": [{"name": "SUBAGENT_PARAM_BRANCH", "value": "main"}]}],
            "containers": [{
                "name": "agent", "image": "agent:1", "command": ["opencode"], "args": ["acp"],
                "envFrom": [{"secretRef": {"name": "llm"}}],
                "terminationMessagePath": "/tmp/end", "terminationMessagePolicy": "FallbackToLogsOnError",
            }, {"name": "sidecar", "image": "side:1", "terminationMessagePath": "/tmp/end"}],
        },
    }));
    let pod = build_probe(&provider, &probe());
    insta::assert_yaml_snapshot!(pod["metadata"]);
    let mut run = build(&provider, &worker())["spec"].clone();
    run["activeDeadlineSeconds"] = json!(600);
    run["containers"][0]["args"] = json!(["probe", "--", "opencode", "acp"]);
    for field in ["terminationMessagePath", "terminationMessagePolicy"] {
        run["containers"][0].as_object_mut().unwrap().remove(field);
    }
    let volumes = run["volumes"].as_array_mut().unwrap();
    let link = volumes.iter_mut().find(|volume| volume["name"] == LINK_VOLUME).unwrap();
    *link = config_volume();
    assert_eq!(pod["spec"], run);
    assert!(!pod["spec"].to_string().contains("serviceAccountToken\""), "D5: a probe has no token");
}

#[test]
fn what_the_template_says_stays() {
    let provider = provider(json!({"spec": {
        "automountServiceAccountToken": true,
        "terminationGracePeriodSeconds": 300,
        "securityContext": {"runAsNonRoot": false, "fsGroup": 7},
        "initContainers": [{"name": "clone", "image": "git"}],
        "volumes": [{"name": "w", "emptyDir": {}}],
        "containers": [{
            "name": "agent", "image": "a", "command": ["a"], "workingDir": "/src",
            "securityContext": {"allowPrivilegeEscalation": true, "capabilities": {"drop": ["NET_RAW"]}},
            "volumeMounts": [{"name": "w", "mountPath": "/src"}],
        }],
    }}));
    let spec = &build(&provider, &worker())["spec"];
    assert_eq!(spec["automountServiceAccountToken"], true);
    assert_eq!(spec["terminationGracePeriodSeconds"], 300);
    assert_eq!(spec["securityContext"]["runAsNonRoot"], false);
    assert_eq!(spec["securityContext"]["fsGroup"], 7);
    assert_eq!(spec["initContainers"][1]["name"], "clone");
    let agent = &spec["containers"][0];
    assert_eq!(agent["workingDir"], "/src");
    assert_eq!(agent["securityContext"]["allowPrivilegeEscalation"], true);
    assert_eq!(agent["securityContext"]["capabilities"]["drop"], json!(["NET_RAW"]));
    assert!(!spec["volumes"].to_string().contains(WORKSPACE_VOLUME));
}

/// A child's files are where its agent works, whatever that folder is called, and nothing empty is there beside them.
#[rstest]
#[case::default(json!({}), "/workspace")]
#[case::own(json!({"workingDir": "/home/agent/project", "volumeMounts": [{"name": "v", "mountPath": "/x"}]}), "/home/agent/project")]
fn a_workspace_is_mounted_at_the_working_directory(#[case] extra: Value, #[case] cwd: &str) {
    let mut agent = json!({"name": "agent", "image": "a", "command": ["a"]});
    agent.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
    let side = json!({"name": "side", "image": "s"});
    let provider = provider(json!({"spec": {"containers": [agent, side], "volumes": [{"name": "v", "emptyDir": {}}]}}));
    let spec = &build(&provider, &Worker { workspace: Some("c-1-workspace"), ..worker() })["spec"];
    let named = |list: &Value| -> Vec<Value> {
        list.as_array().into_iter().flatten().filter(|one| one["name"] == WORKSPACE_VOLUME).cloned().collect()
    };
    let claim = json!({"name": WORKSPACE_VOLUME, "persistentVolumeClaim": {"claimName": "c-1-workspace"}});
    assert_eq!(named(&spec["volumes"]), [claim]);
    let mount = json!({"name": WORKSPACE_VOLUME, "mountPath": cwd});
    assert_eq!(named(&spec["containers"][0]["volumeMounts"]), [mount]);
    assert_eq!(
        (&spec["containers"][0]["workingDir"], named(&spec["containers"][1]["volumeMounts"])),
        (&json!(cwd), vec![])
    );
}

#[test]
fn c56_the_prompt_travels_by_file_never_by_argv_or_environment() {
    let provider = provider(json!({"spec": {"containers": [{"name": "agent", "image": "a", "command": ["a"]}]}}));
    let reference = ConfigMapKeyRef { name: "prompts".into(), key: "p.md".into() };
    let parameters = BTreeMap::from([("REPO".to_owned(), "a$(HOME)$b".to_owned())]);
    let pod = build(&provider, &Worker { prompt_file: Some(&reference), parameters: Some(&parameters), ..worker() });
    let agent = &pod["spec"]["containers"][0];
    assert_eq!(agent["args"], json!(["run", "--", "a"]));
    assert_eq!(agent["env"], json!([{"name": "SUBAGENT_PARAM_REPO", "value": "a$$(HOME)$$b"}]));
    assert!(pod["spec"]["volumes"].to_string().contains(r#""path":"prompt""#));
}

#[test]
fn parameters_reach_every_container_and_replace_the_templates_defaults() {
    let default = json!({"name": "SUBAGENT_PARAM_BRANCH", "value": "main"});
    let from = json!({"name": "URL", "value": "$(SUBAGENT_PARAM_REPO)"});
    let provider = provider(json!({"spec": {
        "initContainers": [{"name": "clone", "image": "git", "env": [from, default]}],
        "containers": [{"name": "agent", "image": "a", "command": ["a"], "env": [default]}, {"name": "side", "image": "s"}],
    }}));
    let env = |parameters: &[(&str, &str)], list: &str, index: usize| -> String {
        let parameters = parameters.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let pod = build(&provider, &Worker { parameters: Some(&parameters), ..worker() });
        let env = pod["spec"][list][index]["env"].as_array().cloned().unwrap_or_default();
        let shown = env.iter().map(|env| format!("{}={}", env["name"], env["value"]).replace('"', ""));
        shown.collect::<Vec<_>>().join(" ").replace("SUBAGENT_PARAM_", "")
    };
    let both = [("REPO", "r"), ("BRANCH", "next")];
    assert_eq!(env(&both, "initContainers", 1), "BRANCH=next REPO=r URL=$(REPO)");
    assert_eq!(env(&both, "containers", 0), "BRANCH=next REPO=r");
    assert_eq!(env(&both, "containers", 1), "BRANCH=next REPO=r");
    assert_eq!(env(&[("REPO", "r")], "initContainers", 1), "REPO=r URL=$(REPO) BRANCH=main");
    assert_eq!(env(&[], "containers", 0), "BRANCH=main");
}

#[rstest]
#[case::nothing_said(json!({}), json!("50m"), Value::Null)]
#[case::a_request_alone(json!({"requests": {"cpu": "2"}}), json!("50m"), Value::Null)]
#[case::a_limit_alone(json!({"limits": {"cpu": "10m"}}), json!("10m"), json!("10m"))]
#[case::both(json!({"requests": {"cpu": "1"}, "limits": {"cpu": "2"}}), json!("1"), json!("2"))]
fn the_init_container_is_no_slower_than_the_agent_and_costs_nothing(
    #[case] agent: Value,
    #[case] request: Value,
    #[case] limit: Value,
) {
    let resources = init_resources(&json!({"resources": agent}));
    assert_eq!((&resources["requests"]["cpu"], &resources["limits"]["cpu"]), (&request, &limit));
    assert_eq!(resources["requests"]["memory"], resources["limits"]["memory"]);
}

#[test]
fn c49_the_pods_grace_holds_the_whole_ladder() {
    let mut provider = provider(json!({"spec": {}}));
    assert_eq!(termination_seconds(&provider), 10 + 6 + 3 + 15);
    provider.stop.cancel_grace_seconds = 100;
    assert_eq!(termination_seconds(&provider), 100 + 6 + 3 + 15);
}
