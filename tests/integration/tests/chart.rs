//! The chart: what its values do, and what its objects are allowed, on a real API server.

use integration_tests::{
    TestNamespace,
    chart::{Release, find, render},
    client,
    commands::{chart, helm, helm_refusal},
    snapshot::assert_snapshot,
};
use k8s_openapi::api::{
    admissionregistration::v1::ValidatingAdmissionPolicy, authorization::v1::SubjectAccessReview, core::v1::Pod,
};
use kube::{Api, api::PostParams};
use serde_json::{Value, json};
use std::{collections::BTreeSet, time::Duration};

fn kinds(objects: &[Value]) -> BTreeSet<String> {
    let named = objects.iter().map(|object| (object["kind"].as_str(), object["metadata"]["name"].as_str()));
    named.map(|(kind, name)| format!("{} {}", kind.unwrap_or_default(), name.unwrap_or_default())).collect()
}

fn environment(objects: &[Value]) -> Vec<(String, String)> {
    let deployment = find(objects, "Deployment", "subagent-operator");
    let entries = deployment["spec"]["template"]["spec"]["containers"][0]["env"].as_array().expect("an environment");
    let text = |value: &Value| value.as_str().unwrap_or("<from the pod>").to_owned();
    entries.iter().map(|entry| (text(&entry["name"]), text(&entry["value"]))).collect()
}

#[test]
fn it_lints() {
    helm(&["lint", "--strict", &chart().display().to_string()]);
}

#[test]
fn a_value_that_does_not_exist_or_is_out_of_range_is_refused() {
    let chart = chart().display().to_string();
    for (value, named) in [
        ("imgae.tag=x", "additional properties 'imgae' not allowed"),
        ("image.digest=x", "additional properties 'digest' not allowed"),
        ("replicas=-1", "'/replicas'"),
        ("podTTLSeconds=soon", "'/podTTLSeconds'"),
        ("maxResultBytes=1", "'/maxResultBytes'"),
        ("sessionStore.url=/var/lib/subagents", "'/sessionStore/url'"),
        ("sessionStore.url=s3://key:secret@bucket", "'/sessionStore/url'"),
        ("sessionStore.keepSeconds=60", "'/sessionStore/keepSeconds'"),
        ("sessionStore.persistence.size=much", "'/sessionStore/persistence/size'"),
        ("sessionStore.persistence.accessMode=ReadOnlyMany", "'/sessionStore/persistence/accessMode'"),
        ("logFormat=xml", "'/logFormat'"),
        ("watchNamespaces={Not_a_name}", "'/watchNamespaces/0'"),
        ("image.pullPolicy=Sometimes", "'/image/pullPolicy'"),
        ("serviceAccount.create=false", "serviceAccount.name is needed when serviceAccount.create is false"),
    ] {
        let refusal = helm_refusal(&["template", "x", &chart, "--set", value]);
        assert!(refusal.contains(named), "{value}: {refusal}");
    }
}

#[test]
fn the_values_reach_the_operator() {
    let objects = render("subagents-system", &[]);
    let defaults = environment(&objects);
    let expect = |name: &str, value: &str| {
        let found: Vec<_> = defaults.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_str()).collect();
        assert_eq!(found, [value], "{name}");
    };
    expect("SUBAGENT_SERVICE_NAME", "subagent-operator");
    expect("SUBAGENT_WORKER_IMAGE", "localhost/subagent-worker:dev");
    expect("SUBAGENT_WATCH_NAMESPACES", "");
    expect("SUBAGENT_POD_TTL_SECONDS", "300");
    expect("SUBAGENT_MAX_RESULT_BYTES", "4194304");
    expect("SUBAGENT_SESSION_STORE", "file:///var/lib/subagents");
    expect("SUBAGENT_SESSION_STORE_KEEP_SECONDS", "86400");
    expect("SUBAGENT_SESSION_STORE_CONFIG_MAP", "subagent-operator-session-mark");
    expect("SUBAGENT_LEASE_NAME", "subagent-operator");
    expect("SUBAGENT_ROOT_SECRET", "subagent-operator-gateway-root");
    expect("SUBAGENT_LOG", "info");
    expect("SUBAGENT_LOG_FORMAT", "text");
    let set = "watchNamespaces={one,two},podTTLSeconds=7,maxResultBytes=4096,logLevel=debug,logFormat=json,workerImage.tag=v1,sessionStore.url=gs://b/p,sessionStore.keepSeconds=3600";
    let changed = environment(&render("subagents-system", &["--set", set]));
    let differing: Vec<_> =
        changed.iter().filter(|entry| !defaults.contains(entry)).map(|(_, value)| value.as_str()).collect();
    assert_eq!(
        differing,
        ["localhost/subagent-worker:v1", "one,two", "7", "4096", "gs://b/p", "3600", "debug", "json"]
    );
}

#[test]
fn the_switches_leave_out_what_they_say() {
    let all = kinds(&render("s", &[]));
    let without =
        |set: &str| -> Vec<String> { all.difference(&kinds(&render("s", &["--set", set]))).cloned().collect() };
    assert_eq!(
        without("crds.install=false"),
        [
            "CustomResourceDefinition subagentproviders.subagents.dev",
            "CustomResourceDefinition subagentruns.subagents.dev",
            "CustomResourceDefinition subagents.subagents.dev"
        ]
    );
    assert_eq!(without("admissionPolicies.enabled=false").len(), 10, "five policies and their bindings");
    assert_eq!(without("metrics.service.enabled=false"), ["Service subagent-operator-metrics"]);
    assert_eq!(
        without("uninstall.hook.enabled=false"),
        [
            "ClusterRole subagent-operator-uninstall",
            "ClusterRoleBinding subagent-operator-uninstall",
            "Job subagent-operator-uninstall",
            "Role subagent-operator-uninstall",
            "RoleBinding subagent-operator-uninstall",
            "ServiceAccount subagent-operator-uninstall",
        ]
    );
    assert_eq!(without("serviceAccount.create=false,serviceAccount.name=mine"), ["ServiceAccount subagent-operator"]);
    assert_eq!(
        without("rbac.aggregateToDefaultRoles=false"),
        ["ClusterRole subagent-operator-edit", "ClusterRole subagent-operator-view"]
    );
    let claim = ["PersistentVolumeClaim subagent-operator-sessions"];
    assert_eq!(without("sessionStore.url="), claim);
    assert_eq!(without("sessionStore.url=s3://b/p"), claim);
    assert_eq!(without("sessionStore.persistence.existingClaim=mine"), claim);
    let more = kinds(&render("s", &["--set", "replicas=2,sessionStore.url=s3://b/p"]));
    assert_eq!(more.difference(&all).collect::<Vec<_>>(), ["PodDisruptionBudget subagent-operator"]);
}

/// A volume that one node mounts has one user at a time; whatever else holds the checkpoints, an update leaves no gap (C5).
#[test]
fn c5_replicas_and_updates_fit_the_session_store() {
    let strategy = |set: &str| {
        let objects = render("s", &["--set", set]);
        find(&objects, "Deployment", "subagent-operator")["spec"]["strategy"]["type"].clone()
    };
    for (set, expected) in [
        ("replicas=1", "Recreate"),
        ("replicas=0", "Recreate"),
        ("sessionStore.persistence.existingClaim=mine", "Recreate"),
        ("replicas=2,sessionStore.persistence.accessMode=ReadWriteMany", "RollingUpdate"),
        ("replicas=2,sessionStore.url=s3://bucket/prefix", "RollingUpdate"),
        ("replicas=2,sessionStore.url=", "RollingUpdate"),
        ("sessionStore.url=", "RollingUpdate"),
    ] {
        assert_eq!(strategy(set), expected, "{set}");
    }
    let chart = chart().display().to_string();
    for set in ["replicas=2", "replicas=3,sessionStore.persistence.existingClaim=mine"] {
        let refusal = helm_refusal(&["template", "x", &chart, "--set", set]);
        for remedy in ["sessionStore.url to a bucket", "accessMode to ReadWriteMany", "without continuable children"] {
            assert!(refusal.contains(remedy), "{set}: {refusal}");
        }
    }
}

/// The volume is where the operator looks, belongs to its group, and outlives the release.
#[test]
fn c34_the_volume_of_the_session_store_can_be_written_and_stays() {
    let objects = render("s", &["--set", "sessionStore.url=file:///data/sessions,sessionStore.persistence.size=1Ti"]);
    let pod = &find(&objects, "Deployment", "subagent-operator")["spec"]["template"]["spec"];
    assert_eq!(pod["securityContext"]["fsGroup"], json!(65532));
    let mounts = pod["containers"][0]["volumeMounts"].as_array().expect("mounts");
    assert!(mounts.contains(&json!({"name": "sessions", "mountPath": "/data/sessions"})), "{mounts:?}");
    let claim = find(&objects, "PersistentVolumeClaim", "subagent-operator-sessions");
    assert_eq!(claim["metadata"]["annotations"]["helm.sh/resource-policy"], "keep");
    assert_eq!(claim["spec"], json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Ti"}}}));
    let volumes = pod["volumes"].as_array().expect("volumes");
    let claimed = json!({"name": "sessions", "persistentVolumeClaim": {"claimName": "subagent-operator-sessions"}});
    assert!(volumes.contains(&claimed), "{volumes:?}");
    let goes =
        render("s", &["--set", "sessionStore.persistence.keep=false,sessionStore.persistence.storageClass=fast"]);
    let claim = find(&goes, "PersistentVolumeClaim", "subagent-operator-sessions");
    assert_eq!((&claim["metadata"]["annotations"], &claim["spec"]["storageClassName"]), (&Value::Null, &json!("fast")));
}

/// C7: definitions, and with them every run, survive an uninstall unless someone says otherwise.
#[test]
fn c7_the_definitions_are_kept_unless_told_otherwise() {
    for (set, policy) in [("crds.keep=true", json!("keep")), ("crds.keep=false", Value::Null)] {
        for object in render("s", &["--set", set]).iter().filter(|object| object["kind"] == "CustomResourceDefinition")
        {
            assert_eq!(object["metadata"]["annotations"]["helm.sh/resource-policy"], policy, "{set}");
        }
    }
    // The copies are those of the source, whatever templating they went through.
    let rendered = render("s", &["--set", "crds.keep=false"]);
    for definition in subagent_crds::definitions() {
        let source = serde_json::to_value(&definition).expect("a definition in JSON");
        let name = source["metadata"]["name"].as_str().expect("a name");
        assert_eq!(
            numbers_as_floats(find(&rendered, "CustomResourceDefinition", name)["spec"].clone()),
            numbers_as_floats(source["spec"].clone()),
            "{name}"
        );
    }
}

/// YAML readers differ in whether 3.0 is an integer.
fn numbers_as_floats(value: Value) -> Value {
    match value {
        Value::Number(number) => json!(number.as_f64()),
        Value::Array(items) => items.into_iter().map(numbers_as_floats).collect(),
        Value::Object(map) => map
            .into_iter()
            .map(|(key, value)| (key, numbers_as_floats(value)))
            .collect::<serde_json::Map<_, _>>()
            .into(),
        other => other,
    }
}

/// The operator's own pod passes the strictest Pod Security level, enforced by the API server.
#[tokio::test]
async fn the_operators_pod_is_restricted() {
    let enforced = [("pod-security.kubernetes.io/enforce", "restricted")];
    let namespace = TestNamespace::with_labels("restricted", &enforced).await;
    let dry_run = PostParams { dry_run: true, ..PostParams::default() };
    let dressed = |objects: &[Value]| {
        let mut pod = find(objects, "Deployment", "subagent-operator")["spec"]["template"].clone();
        pod["metadata"]["name"] = json!("operator");
        pod["spec"]["serviceAccountName"] = json!("default");
        pod
    };
    for set in [
        "replicas=1",
        "sessionStore.url=s3://b,sessionStore.caConfigMap=ca,sessionStore.env[0].name=AWS_REGION,sessionStore.env[0].value=r,sessionStore.envFrom[0].secretRef.name=s",
    ] {
        let pod: Pod = serde_json::from_value(dressed(&render(&namespace.name, &["--set", set]))).expect("a pod");
        namespace.api::<Pod>().create(&dry_run, &pod).await.expect("the strictest level takes it");
    }
    let objects = render(&namespace.name, &["--set", "replicas=2,sessionStore.url="]);
    let deployment = find(&objects, "Deployment", "subagent-operator");
    let mut pod = dressed(&objects);
    let typed: Pod = serde_json::from_value(pod.clone()).expect("a pod");
    namespace.api::<Pod>().create(&dry_run, &typed).await.expect("the strictest level takes it");
    let container = &pod["spec"]["containers"][0];
    assert_eq!(container["securityContext"]["readOnlyRootFilesystem"], json!(true));
    assert_eq!(pod["spec"]["securityContext"]["runAsUser"], json!(65532));
    let strategy = &deployment["spec"]["strategy"]["rollingUpdate"];
    assert_eq!((&strategy["maxUnavailable"], &strategy["maxSurge"]), (&json!(0), &json!(1)));
    // The check can fail: the same pod as root is refused.
    pod["spec"]["securityContext"]["runAsNonRoot"] = json!(false);
    pod["spec"]["securityContext"]["runAsUser"] = json!(0);
    let typed: Pod = serde_json::from_value(pod).expect("a pod");
    namespace.api::<Pod>().create(&dry_run, &typed).await.expect_err("root is refused");
    // The pod of the uninstall hook, too; and no Service and no budget takes it for the operator's.
    let mut hook = find(&objects, "Job", "subagent-operator-uninstall")["spec"]["template"].clone();
    let selector = deployment["spec"]["selector"]["matchLabels"].as_object().expect("a selector");
    assert!(selector.iter().all(|(key, value)| hook["metadata"]["labels"][key] != *value), "{hook}");
    hook["metadata"]["name"] = json!("uninstall");
    hook["spec"]["serviceAccountName"] = json!("default");
    let typed: Pod = serde_json::from_value(hook).expect("a pod");
    namespace.api::<Pod>().create(&dry_run, &typed).await.expect("the strictest level takes the hook's pod");
}

/// What exists only for the uninstall is no part of the release: Helm makes it then, and takes it away again.
#[test]
fn s6_the_uninstall_hook_leaves_nothing_behind() {
    let all = render("s", &[]);
    let hooks: Vec<&Value> =
        all.iter().filter(|object| object["metadata"]["annotations"]["helm.sh/hook"] == "pre-delete").collect();
    assert_eq!(hooks.len(), 6);
    for hook in hooks {
        let policy = &hook["metadata"]["annotations"]["helm.sh/hook-delete-policy"];
        assert_eq!(policy, "before-hook-creation,hook-succeeded", "{hook}");
    }
}

/// D6: the operator's rights, word for word. Whoever widens them sees it in the diff.
#[test]
fn d6_the_rights_are_as_committed() {
    let mut text = String::new();
    for object in render("subagents-system", &["--set", "watchNamespaces={one}"]) {
        let kind = object["kind"].as_str().unwrap_or_default();
        if !kind.contains("Role") {
            continue;
        }
        let namespace = object["metadata"]["namespace"].as_str().map(|name| format!(" in {name}")).unwrap_or_default();
        text.push_str(&format!("{kind} {}{namespace}\n", object["metadata"]["name"].as_str().unwrap_or_default()));
        for rule in object["rules"].as_array().into_iter().flatten() {
            let words = |key: &str| {
                let words = rule[key].as_array().into_iter().flatten().filter_map(Value::as_str);
                words.map(|word| if word.is_empty() { "core" } else { word }).collect::<Vec<_>>().join(",")
            };
            let names = words("resourceNames");
            let names = if names.is_empty() { names } else { format!(" named {names}") };
            text.push_str(&format!("  {} of {}{names}: {}\n", words("resources"), words("apiGroups"), words("verbs")));
        }
        if let Some(role) = object["roleRef"]["name"].as_str() {
            text.push_str(&format!("  {} {role}\n", object["roleRef"]["kind"].as_str().unwrap_or_default()));
        }
    }
    assert_snapshot("chart-rights", &text);
}

/// D3 D6: what the operator may do, asked of the API server: with `watchNamespaces`, elsewhere nothing but what removes
/// finalizers, and never anything it has no business with.
#[tokio::test]
async fn d6_the_rights_work_and_end_where_they_should() {
    let release = Release::install(TestNamespace::new("rights").await).await;
    let elsewhere = TestNamespace::new("elsewhere").await.name;
    let here = release.namespace.name.as_str();
    let reviews: Api<SubjectAccessReview> = Api::all(release.namespace.client.clone());
    let may = async |namespace: &str, verb: &str, resource: &str, name: &str| {
        let (group, resource) = resource.rsplit_once('.').map_or(("", resource), |_| {
            let (plural, group) = resource.split_once('.').unwrap_or((resource, ""));
            (group, plural)
        });
        let (resource, subresource) = resource.split_once('/').unwrap_or((resource, ""));
        let review: SubjectAccessReview = serde_json::from_value(json!({"spec": {
            "user": release.operator(), "groups": ["system:serviceaccounts", "system:authenticated"],
            "resourceAttributes": {"namespace": namespace, "verb": verb, "group": group, "resource": resource, "subresource": subresource, "name": name},
        }}))
        .expect("a review");
        let answer = reviews.create(&PostParams::default(), &review).await.expect("an answer");
        answer.status.expect("a status").allowed
    };
    // The authorizer learns of new roles by a watch.
    let limit = Duration::from_secs(10);
    release
        .namespace
        .eventually("the rights are in force", limit, async || {
            if may(here, "create", "pods", "").await && may(here, "create", "secrets", "").await {
                Ok(())
            } else {
                Err("not yet".into())
            }
        })
        .await;
    let lease = release.name.as_str();
    let root = format!("{lease}-gateway-root");
    for (namespace, verb, resource, name, allowed) in [
        // Starting runs: in the watched namespace only.
        (here, "create", "pods", "", true),
        (&elsewhere, "create", "pods", "", false),
        (here, "get", "pods/log", "", true),
        (&elsewhere, "get", "pods/log", "", false),
        (here, "create", "configmaps", "", true),
        (&elsewhere, "create", "configmaps", "", false),
        (&elsewhere, "get", "configmaps", "x", false),
        (here, "create", "persistentvolumeclaims", "", true),
        (here, "get", "persistentvolumeclaims", "x", true),
        (&elsewhere, "create", "persistentvolumeclaims", "", false),
        (here, "create", "controllerrevisions.apps", "", true),
        (&elsewhere, "create", "controllerrevisions.apps", "", false),
        (here, "create", "events.events.k8s.io", "", true),
        (here, "create", "subagentruns.subagents.dev", "", true),
        (&elsewhere, "create", "subagentruns.subagents.dev", "", false),
        (here, "delete", "subagentruns.subagents.dev", "", true),
        (&elsewhere, "delete", "subagentruns.subagents.dev", "", false),
        (here, "delete", "subagents.subagents.dev", "", true),
        (&elsewhere, "delete", "subagents.subagents.dev", "", false),
        // What finalizers need: also where the namespace's own bindings are gone.
        (&elsewhere, "patch", "subagentruns.subagents.dev", "", true),
        (&elsewhere, "patch", "subagentruns/status.subagents.dev", "", true),
        (&elsewhere, "patch", "subagents.subagents.dev", "", true),
        (&elsewhere, "patch", "subagents/status.subagents.dev", "", true),
        (&elsewhere, "patch", "pods", "", true),
        (&elsewhere, "delete", "pods", "", true),
        ("", "create", "tokenreviews.authentication.k8s.io", "", true),
        ("", "get", "nodes", "n", true),
        // Its own Lease and Secret, by name.
        (here, "update", "leases.coordination.k8s.io", lease, true),
        (here, "update", "leases.coordination.k8s.io", "other", false),
        (here, "get", "secrets", &root, true),
        (here, "get", "secrets", "other", false),
        (here, "list", "secrets", "", false),
        (&elsewhere, "get", "secrets", &root, false),
        (&elsewhere, "create", "secrets", "", false),
        // No business of it.
        (here, "list", "configmaps", "", false),
        (here, "update", "configmaps", "x", false),
        (here, "list", "persistentvolumeclaims", "", false),
        (here, "delete", "persistentvolumeclaims", "x", false),
        (here, "create", "subagents.subagents.dev", "", false),
        (here, "update", "subagentproviders.subagents.dev", "", false),
        (here, "delete", "subagentproviders.subagents.dev", "", false),
        (here, "create", "pods/exec", "", false),
        (here, "impersonate", "serviceaccounts", "", false),
        (here, "create", "serviceaccounts/token", "", false),
        (here, "create", "rolebindings.rbac.authorization.k8s.io", "", false),
    ] {
        assert_eq!(may(namespace, verb, resource, name).await, allowed, "{verb} {resource} {name} in {namespace}");
    }
}

/// The API server checks the policies' expressions against the types they match; it finds nothing to say.
#[tokio::test]
async fn the_policies_expressions_fit_the_types_they_match() {
    let release = Release::install(TestNamespace::new("types").await).await;
    let api: Api<ValidatingAdmissionPolicy> = Api::all(client().await);
    for kind in ["providers", "runs", "subagents", "owned-objects"] {
        let name = format!("{}-{kind}", release.name);
        let (api, name) = (&api, &name);
        let checked = release
            .namespace
            .eventually("the policy's types are checked", Duration::from_secs(30), async || {
                let policy = api.get(name).await.map_err(|error| error.to_string())?;
                policy.status.and_then(|status| status.type_checking).ok_or_else(|| format!("{name}: not checked yet"))
            })
            .await;
        assert_eq!(checked.expression_warnings.unwrap_or_default(), [], "{name}");
    }
}
