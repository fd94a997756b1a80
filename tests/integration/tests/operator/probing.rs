//! The probe of a provider's agent: what it learns, what its failures mean, and that it is done once.

use crate::{
    audit::{Mark, Request, lines},
    watching::{History, Version},
    world::{LIMIT, World, end, status},
};
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{DeleteParams, ListParams, Patch, PatchParams},
};
use serde_json::{Value, json};
use std::time::Duration;
use subagent_crds::{Phase, SubagentProvider, SubagentProviderStatus, SubagentRun, conditions, names, provider::Probe};
use subagent_operator::provider::{probe, revision};

/// How long nothing is to happen without an event.
const QUIET: Duration = Duration::from_secs(5);

/// A provider whose agent is probed.
fn make(world: &World, name: &str, env: &[(&str, &str)]) -> SubagentProvider {
    let mut provider = world.make_provider(name, env);
    provider.spec.probe = Probe::OnChange;
    provider
}

/// The probes of a provider.
async fn probes(world: &World, provider: &str) -> Vec<Pod> {
    let labels = format!("{},{}={provider}", names::PROBE_LABEL, names::PROVIDER_LABEL);
    world.namespace.api::<Pod>().list(&ListParams::default().labels(&labels)).await.expect("pods").items
}

/// Waits for a probe that fits.
async fn a_probe(world: &World, provider: &str, fits: impl Fn(&Pod) -> bool) -> Pod {
    let fits = &fits;
    world
        .namespace
        .eventually(&format!("a probe of {provider}"), LIMIT, async || {
            let found = probes(world, provider).await;
            found.into_iter().find(|pod| fits(pod)).ok_or_else(|| "none fits".to_owned())
        })
        .await
}

async fn no_probe(world: &World, provider: &str) {
    world
        .namespace
        .eventually(&format!("no probe of {provider} any more"), LIMIT, async || {
            let left = probes(world, provider).await;
            if left.is_empty() {
                Ok(())
            } else {
                Err(format!("{:?}", left.iter().map(Pod::name_any).collect::<Vec<_>>()))
            }
        })
        .await;
}

/// Status, reason and message of `Ready`.
fn ready(status: &SubagentProviderStatus) -> (&str, &str, &str) {
    let ready = conditions::get(&status.conditions, conditions::READY).expect("Ready");
    (&ready.status, &ready.reason, &ready.message)
}

async fn until(
    world: &World,
    provider: &str,
    what: &str,
    fits: impl Fn(&SubagentProviderStatus) -> bool,
) -> SubagentProviderStatus {
    let is_current = |provider: &SubagentProvider| {
        provider.status.as_ref().is_some_and(|status| {
            status.observed_generation == provider.metadata.generation && !status.conditions.is_empty() && fits(status)
        })
    };
    let provider = world.namespace.until::<SubagentProvider>(provider, what, LIMIT, is_current).await;
    provider.status.expect("a status")
}

async fn until_probed(world: &World, provider: &str) -> SubagentProviderStatus {
    until(world, provider, "probed", |status| status.probe.is_some()).await
}

/// The scripted agent is asked once; what it advertises is in the status, nothing of the probe is left, nobody took it
/// for a run, and nothing goes on (C3, S9).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c3_s9_an_agent_is_asked_once_and_its_word_is_in_the_status() {
    let world = World::new("probe").await;
    let operator = world.operator().await;
    let mark = Mark::now();
    world.namespace.create(&make(&world, "provider", &[])).await;
    let waiting = until(&world, "provider", "checked", |_| true).await;
    let (is_ready, reason, message) = ready(&waiting);
    assert_eq!((is_ready, reason), ("True", "Valid"), "who asks for nothing special need not wait: {message}");
    assert!(message.contains("is being probed"), "{message}");
    assert_eq!(waiting.capabilities, ["DepthLimit"]);
    let pod = a_probe(&world, "provider", |_| true).await;
    assert!(pod.finalizers().is_empty() && !pod.labels().contains_key(names::RUN_UID_LABEL), "{:?}", pod.metadata);
    let provider: SubagentProvider = world.namespace.api().get("provider").await.expect("the provider");
    let owner = pod.owner_references().first().expect("an owner");
    assert_eq!((Some(&owner.uid), owner.controller), (provider.uid().as_ref(), Some(true)), "garbage collection");
    world.node.serve_probes();
    let probed = until_probed(&world, "provider").await;
    no_probe(&world, "provider").await;
    let agent = probed.agent.clone().expect("an agent");
    let (is_ready, reason, message) = ready(&probed);
    assert_eq!((is_ready, reason), ("True", "Probed"), "{message}");
    assert!(message.contains(&format!("{} {}", agent.name, agent.version)), "{message}");
    for capability in ["DepthLimit", "ImagePrompt", "CloseSession", "Persona", "Steering"] {
        assert!(probed.capabilities.iter().any(|known| known == capability), "{:?}", probed.capabilities);
    }
    assert!(agent.capabilities.iter().any(|known| known == "Steering"), "what it said is kept: {agent:?}");
    assert_eq!(world.prompts("provider"), 0);

    tokio::time::sleep(QUIET).await;
    let asked = mark.requests_of(&world.rights.user);
    let written: Vec<_> = asked.into_iter().filter(Request::is_counted_write).collect();
    println!("writes: {}\n{}", written.len(), lines(&written));
    // Revision, pod, two statuses, the pod's deletion.
    assert!(written.len() <= 5, "{} writes:\n{}", written.len(), lines(&written));
    assert_eq!(written.iter().filter(|request| request.is_pod_creation()).count(), 1);
    let again: SubagentProvider = world.namespace.api().get("provider").await.expect("the provider");
    assert_eq!(again.status, Some(probed));
    operator.stop().await;
    world.finish().await;
}

/// N1, N5: each failure has the reason a run would have, the provider is not ready and says what to do; the pod stays for
/// its log.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n1_n5_a_failed_probe_has_the_reason_of_a_run() {
    let world = World::new("probe-fails").await;
    let operator = world.operator().await;
    world.node.serve_probes();
    let cases = [
        ("exits", Some(("SCRIPTED_AGENT_INITIALIZE", "exit:3")), "AgentHandshakeFailed", "exit code 3"),
        ("banner", Some(("SCRIPTED_AGENT_START", "banner-exit")), "AgentHandshakeFailed", "in stage Initialize"),
        ("auth", Some(("SCRIPTED_AGENT_NEW", "auth-required")), "AgentAuthRequired", "authMethod"),
        ("absent", None, "AgentStartFailed", "not found"),
    ];
    for (name, env, ..) in cases {
        let mut provider = make(&world, name, env.as_slice());
        if env.is_none() {
            provider.spec.template["spec"]["containers"][0]["command"] = json!(["no-such-command"]);
        }
        world.namespace.create(&provider).await;
    }
    for (name, _, expected, says) in cases {
        let status = until_probed(&world, name).await;
        let (is_ready, reason, message) = ready(&status);
        assert_eq!((is_ready, reason), ("False", expected), "{name}: {message}");
        assert!(message.contains(says) && message.contains("repeated after 1 min"), "{name}: {message}");
        assert_eq!((status.agent, status.capabilities), (None, vec!["DepthLimit".to_owned()]));
        assert_eq!(probes(&world, name).await.len(), 1, "its log is there to be read");
    }
    // c5: not ready is waited for.
    world.run("run", "auth", "hello").await;
    let run = world.until("run", "waits", |status| status.phase.is_some()).await;
    assert_eq!(end(&run), (Phase::Pending, "ProviderNotReady"));
    operator.stop().await;
    world.finish().await;
}

/// N1, N6: what the kubelet says of a pod that does not start. What passes by itself is shown and does not make a
/// provider unready, also when the probe's time is over.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn n1_n6_a_probe_that_does_not_start_says_why() {
    let world = World::new("probe-start").await;
    let operator = world.operator().await;
    let waiting = |reason: &str, message: &str| {
        let state = json!({"waiting": {"reason": reason, "message": message}});
        json!({"phase": "Pending", "containerStatuses": [
            {"name": "agent", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state},
        ]})
    };
    let no_room = json!({"phase": "Pending", "conditions": [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes have cpu"},
    ]});
    let cases: [(&str, Value, Option<&str>, &str); 4] = [
        ("image", waiting("ErrImageNeverPull", "no such image"), Some("ImagePullFailed"), "no such image"),
        (
            "user",
            waiting("CreateContainerConfigError", "image will run as root, runAsNonRoot"),
            Some("ImageUserRefused"),
            "runAsUser",
        ),
        ("back-off", waiting("ImagePullBackOff", "back-off 5s"), None, "ImagePullFailed: container agent: back-off 5s"),
        ("no-room", no_room, None, "Unschedulable: 0/1 nodes have cpu"),
    ];
    for (name, seen, ..) in &cases {
        let mut provider = make(&world, name, &[]);
        if *name == "no-room" {
            provider.spec.run_defaults.start_deadline_seconds = Some(8);
        }
        world.namespace.create(&provider).await;
        let pod = a_probe(&world, name, |_| true).await;
        world.node.patch_status(&pod, seen.clone()).await;
        world.node.patch_status(&pod, seen.clone()).await;
    }
    for (name, _, fault, says) in &cases {
        let status = until(&world, name, "says why", |status| ready(status).2.contains(says)).await;
        let expected = fault.map_or(("True", "Valid"), |fault| ("False", fault));
        let (is_ready, reason, message) = ready(&status);
        assert_eq!((is_ready, reason), expected, "{name}: {message}");
    }
    let late = until_probed(&world, "no-room").await;
    let (is_ready, reason, message) = ready(&late);
    assert_eq!((is_ready, reason), ("True", "Valid"), "{message}");
    assert_eq!(late.probe.and_then(|probe| probe.reason).as_deref(), Some("Unschedulable"));
    for name in ["no-room", "image", "user"] {
        // It would still wait for what does not come: it does not stay. The next attempt may be there by now.
        let name = format!("{}={name},{}=1", names::PROVIDER_LABEL, names::PROBE_LABEL);
        let (pods, params) = (world.namespace.api::<Pod>(), ListParams::default().labels(&name));
        let (pods, params) = (&pods, &params);
        world
            .namespace
            .eventually(&format!("no pod of the first probe: {name}"), LIMIT, async || {
                let left = pods.list(params).await.map_err(|error| error.to_string())?.items;
                if left.is_empty() { Ok(()) } else { Err(format!("{} left", left.len())) }
            })
            .await;
    }
    operator.stop().await;
    world.finish().await;
}

/// c2: an edit makes the probe of the older spec pointless, while it is under way and when it is done: its finding is not
/// read or forgotten, its pod goes, and the new spec gets its own. A switch to Never forgets what was learnt.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c2_an_edit_probes_what_is_written_now() {
    let world = World::new("probe-edit").await;
    let operator = world.operator().await;
    world.namespace.create(&make(&world, "provider", &[("SCRIPTED_AGENT_INITIALIZE", "gate:old")])).await;
    let old = a_probe(&world, "provider", |_| true).await;
    let worker = world.node.start(&old).await;
    world.event("provider", "request", "initialize").await;
    let named = |name: &str| {
        let capabilities = json!({"agentInfo": {"name": name}}).to_string();
        make(&world, "provider", &[("SCRIPTED_AGENT_CAPABILITIES", &capabilities)])
    };
    world.edit_provider(&named("edited")).await;
    let new = a_probe(&world, "provider", |pod| pod.name_any() != old.name_any()).await;
    worker.exit().await;
    world.node.start(&new).await;
    let status = until_probed(&world, "provider").await;
    assert_eq!(status.agent.expect("an agent").name, "edited");
    no_probe(&world, "provider").await;
    world.node.serve_probes();
    world.edit_provider(&named("edited again")).await;
    let is_new = |status: &SubagentProviderStatus| status.agent.as_ref().is_some_and(|it| it.name == "edited again");
    until(&world, "provider", "probed again", is_new).await;
    no_probe(&world, "provider").await;

    let patch = json!({"spec": {"probe": "Never"}});
    let providers = world.namespace.api::<SubagentProvider>();
    providers.patch("provider", &PatchParams::default(), &Patch::Merge(&patch)).await.expect("an edit");
    let status = until(&world, "provider", "not probed", |status| status.probe.is_none()).await;
    assert_eq!((status.agent.is_none(), status.capabilities), (true, vec!["DepthLimit".to_owned()]));
    assert!(probes(&world, "provider").await.is_empty());
    operator.stop().await;
    world.finish().await;
}

/// R1: a crash or a write that fails in between must not lose what a probe told.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_what_a_probe_told_is_stored_before_its_pod_goes() {
    let world = World::new("probe-order").await;
    let operator = world.operator().await;
    world.node.serve_probes();
    let providers = History::<SubagentProvider>::of(&world.namespace).await;
    let pods = History::<Pod>::of(&world.namespace).await;
    world.namespace.create(&make(&world, "provider", &[])).await;
    let going = pods.at("the pod goes", |pod| pod.is_gone || pod.object.metadata.deletion_timestamp.is_some()).await;
    let is_probed = |version: &Version<SubagentProvider>| {
        version.object.status.as_ref().is_some_and(|status| status.probe.is_some())
    };
    let stored = providers.at("the finding is stored", is_probed).await;
    assert!(stored < going, "the pod went at {going}, before its finding was stored at {stored}");
    operator.stop().await;
    world.finish().await;
}

/// R1: the pod is gone before it was read, and the operator is killed between the pod's creation and its end: there is
/// another pod, and what was missed is read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r1_a_probe_survives_whoever_goes() {
    let world = World::new("probe-kill").await;
    let operator = world.operator().await;
    world.namespace.create(&make(&world, "provider", &[])).await;
    let first = a_probe(&world, "provider", |_| true).await;
    let pods = world.namespace.api::<Pod>();
    pods.delete(&first.name_any(), &DeleteParams::default().grace_period(0)).await.expect("a deletion");
    let second = a_probe(&world, "provider", |pod| pod.uid() != first.uid()).await;
    assert_eq!(second.name_any(), first.name_any(), "nothing was learnt: the same attempt");
    operator.kill().await;
    let worker = world.node.start(&second).await;
    assert_eq!(worker.exit().await, 0);
    let name = second.name_any();
    world
        .namespace
        .until::<Pod>(&name, "over", LIMIT, |pod| {
            pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Succeeded")
        })
        .await;
    let mark = Mark::now();
    let operator = world.operator().await;
    let status = until_probed(&world, "provider").await;
    assert!(status.agent.is_some());
    no_probe(&world, "provider").await;
    let asked = mark.requests_of(&world.rights.user);
    let created: Vec<_> = asked.into_iter().filter(Request::is_pod_creation).collect();
    assert!(created.is_empty(), "it was over already:\n{}", lines(&created));
    operator.stop().await;
    world.finish().await;
}

/// D2: somebody else's pod under the name of a probe, with its labels and a finding, is not read and not removed; the
/// provider names it, and is probed once it is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn d2_a_foreign_pod_is_never_taken_for_a_probe() {
    let world = World::new("probe-foreign").await;
    world.node.serve_probes();
    let provider = world.namespace.create(&make(&world, "provider", &[])).await;
    let uid = provider.uid().expect("a UID");
    let name = probe::pod_name("provider", &uid, &revision::of(&provider).name_any(), 1);
    let forged: Pod = serde_json::from_value(json!({
        "metadata": {"name": name, "labels": {
            names::PROBE_LABEL: "1", names::PROVIDER_LABEL: "provider", names::PROVIDER_UID_LABEL: uid,
        }},
        "spec": {"nodeName": "nowhere", "containers": [{"name": "agent", "image": "localhost/forged:dev"}]},
    }))
    .expect("a pod");
    let forged = world.namespace.create(&forged).await;
    let mut ended = world.node.ended(&forged, 0);
    let finding =
        json!({"agent": {"name": "forged", "version": "", "protocolVersion": 1, "capabilities": ["ImagePrompt"]}});
    ended["containerStatuses"][0]["state"]["terminated"]["message"] = json!(finding.to_string());
    world.node.patch_status(&forged, ended).await;
    let operator = world.operator().await;
    let named = |status: &SubagentProviderStatus| ready(status).2.contains(&name);
    let status = until(&world, "provider", "names the pod", named).await;
    assert!(ready(&status).2.contains("delete it") && status.agent.is_none(), "{:?}", ready(&status));
    assert_eq!(status.capabilities, ["DepthLimit"]);
    let pods = world.namespace.api::<Pod>();
    assert_eq!(pods.get(&name).await.expect("the pod").uid(), forged.uid());
    pods.delete(&name, &DeleteParams::default().grace_period(0)).await.expect("a deletion");
    let status = until_probed(&world, "provider").await;
    assert_ne!(status.agent.expect("an agent").name, "forged");
    operator.stop().await;
    world.finish().await;
}

/// c50, S8: somebody's finalizer on a probe that was deleted does not hold the provider's next one for ever, and is named.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c50_s8_a_probe_that_stays_behind_a_foreign_finalizer_is_named() {
    let world = World::new("probe-held").await;
    let operator = world.operator().await;
    world.namespace.create(&make(&world, "provider", &[])).await;
    let pod = a_probe(&world, "provider", |_| true).await;
    let pods = world.namespace.api::<Pod>();
    let held_by = async |finalizers: Value| {
        let patch = Patch::Merge(json!({"metadata": {"finalizers": finalizers}}));
        pods.patch(&pod.name_any(), &PatchParams::default(), &patch).await.expect("a patch");
    };
    held_by(json!(["example.org/mine"])).await;
    pods.delete(&pod.name_any(), &DeleteParams::default()).await.expect("a deletion");
    let status = until_probed(&world, "provider").await;
    let (is_ready, reason, message) = ready(&status);
    assert_eq!((is_ready, reason), ("True", "Valid"), "{message}");
    assert!(message.contains("example.org/mine") && message.contains(&pod.name_any()), "{message}");
    assert_eq!(status.probe.map(|probe| (probe.attempt, probe.reason)), Some((1, Some("PodDeleted".into()))));
    held_by(Value::Null).await;
    operator.stop().await;
    world.finish().await;
}

/// S8: `kubectl delete --cascade=orphan` leaves the probe to nobody; it is stopped and removed all the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn s8_a_probe_whose_provider_is_gone_is_removed() {
    let world = World::new("probe-orphan").await;
    let operator = world.operator().await;
    world.namespace.create(&make(&world, "provider", &[])).await;
    world.namespace.create(&make(&world, "stays", &[])).await;
    let pod = a_probe(&world, "provider", |_| true).await;
    let other = a_probe(&world, "stays", |_| true).await;
    world.namespace.api::<SubagentProvider>().delete("provider", &DeleteParams::default()).await.expect("a deletion");
    // What the garbage collector does then, which this API server has not.
    let orphan = Patch::Merge(json!({"metadata": {"ownerReferences": null}}));
    let pods = world.namespace.api::<Pod>();
    pods.patch(&pod.name_any(), &PatchParams::default(), &orphan).await.expect("a patch");
    no_probe(&world, "provider").await;
    let left = probes(&world, "stays").await;
    assert_eq!(left.iter().map(Pod::uid).collect::<Vec<_>>(), [other.uid()], "its provider is there");
    operator.stop().await;
    world.finish().await;
}

/// c5, c6: a directory of manifests has no order. A run that asks for what only the agent can have waits for the probe and
/// is taken or refused by its word; without a probe it is refused at once, and one that asks for nothing starts meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_c6_c7_what_only_the_agent_can_have_waits_for_its_word() {
    let world = World::new("probe-waits").await;
    let operator = world.operator().await;
    world.node.serve();
    let image = json!([{"text": "look"}, {"image": {"data": "aGk=", "mimeType": "image/png"}}]);
    let no_images = r#"{"agentCapabilities": {"promptCapabilities": {"image": null}}}"#;
    let ask = async |name: &str, provider: &str| {
        let mut run = world.make_run(name, provider, "");
        run.spec.prompt = Some(serde_json::from_value(json!({"content": image})).expect("a prompt"));
        world.namespace.create::<SubagentRun>(&run).await
    };
    ask("takes-images", "sees").await;
    ask("takes-none", "blind").await;
    ask("nobody-knows", "never").await;
    world.namespace.create(&make(&world, "sees", &[])).await;
    world.namespace.create(&make(&world, "blind", &[("SCRIPTED_AGENT_CAPABILITIES", no_images)])).await;
    world.provider("never", &[]).await;
    for name in ["takes-images", "takes-none"] {
        let run = world
            .until(name, "waits for the probe", |status| {
                status.message.as_deref().is_some_and(|message| message.contains("has not been probed yet"))
            })
            .await;
        assert_eq!(end(&run), (Phase::Pending, "ProviderNotReady"));
        let message = status(&run).message.clone().unwrap_or_default();
        assert!(message.contains("ImagePrompt") && message.contains("spec.prompt.content[].image"), "{message}");
    }
    let run = world.stopped("nobody-knows").await;
    assert_eq!(end(&run), (Phase::Rejected, "UnsupportedCapability"));
    let message = status(&run).message.clone().unwrap_or_default();
    assert!(message.contains("spec.probe is Never"), "{message}");
    world.run("plain", "sees", "hello").await;
    assert_eq!(end(&world.stopped("plain").await), (Phase::Completed, "Completed"));

    world.node.serve_probes();
    let run = world.stopped("takes-images").await;
    assert_eq!(end(&run), (Phase::Completed, "Completed"), "{:?}", status(&run).message);
    let run = world.stopped("takes-none").await;
    assert_eq!(end(&run), (Phase::Rejected, "UnsupportedCapability"));
    assert!(world.pods().await.iter().all(|pod| pod.labels()[names::RUN_LABEL] != "takes-none"));
    operator.stop().await;
    world.finish().await;
}
