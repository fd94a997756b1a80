//! A root certificate that is replaced under a live worker.

use crate::{
    replica::{Plan, Replica},
    world::{LIMIT, World, end, status, text},
};
use k8s_openapi::{
    api::core::v1::{Pod, Secret},
    jiff::{SignedDuration, Timestamp, tz::TimeZone},
};
use kube::ResourceExt;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::json;
use subagent_crds::{Phase, names};

/// Data of a Secret whose root ends within the year in which the next one is made.
fn ending_root() -> serde_json::Value {
    let end = (Timestamp::now() + SignedDuration::from_hours(100 * 24)).to_zoned(TimeZone::UTC);
    let mut params = CertificateParams::default();
    params.distinguished_name.push(DnType::CommonName, "subagent-gateway root of old");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    params.not_after = rcgen::date_time_ymd(i32::from(end.year()), end.month() as u8, end.day() as u8);
    let key = KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    json!({"current.crt": certificate.pem(), "current.key": key.serialize_pem()})
}

fn text_of(secret: &Secret, key: &str) -> Option<String> {
    let bytes = secret.data.as_ref()?.get(key)?;
    Some(String::from_utf8_lossy(&bytes.0).trim_end().to_owned())
}

/// The old root's time is nearly over. The next one reaches the live worker's pod before it signs; then the operator is
/// replaced, so that the worker has to connect anew to a gateway that shows a leaf of the new root. Its turn goes on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_c41_a_root_is_replaced_under_a_live_worker_and_its_turn_goes_on() {
    let world = World::new("rotated").await;
    let name = format!("{}-gateway-root", world.rights.release);
    let secret = json!({"metadata": {"name": name}, "stringData": ending_root()});
    let old = world.namespace.create(&serde_json::from_value::<Secret>(secret).expect("a Secret")).await;
    let old = text_of(&old, "current.crt").expect("the old root");
    // The same as in life, where it takes a day.
    let arguments = vec!["--certificate-look-seconds=1".into(), "--root-carried-seconds=2".into()];
    let plan = Plan { arguments, ..world.plan("first") };

    // The worker starts before there is another root: the first operator looks every five minutes.
    let operator = world.operator().await;
    let secrets = world.namespace.api::<Secret>();
    let made = secrets.get(&name).await.expect("the Secret");
    let next = text_of(&made, "next.crt").expect("a next root is made at once");
    assert_eq!(text_of(&made, "current.crt").as_ref(), Some(&old), "the old one signs");
    world.node.serve();
    world.provider("provider", &[]).await;
    let run = world.run("run", "provider", "!gate rotated\n!say still trusted").await;
    world.event("run", "gate", "rotated").await;
    let pod = world.pod(&run, 1).await;
    // As a pod made by an operator that had not seen the next root yet.
    let only_old = json!({"metadata": {"annotations": {names::GATEWAY_ROOTS_ANNOTATION: format!("{old}\n")}}});
    let pods = world.namespace.api::<Pod>();
    let patch = kube::api::Patch::Merge(&only_old);
    pods.patch(&pod.name_any(), &kube::api::PatchParams::default(), &patch).await.expect("the older annotation");
    operator.stop().await;

    let operator = Replica::start(plan.clone());
    let carries = |pod: &Pod| {
        let roots = pod.annotations().get(names::GATEWAY_ROOTS_ANNOTATION);
        roots.is_some_and(|roots| roots.contains(&next) && roots.contains(&old))
    };
    world.namespace.until::<Pod>(&pod.name_any(), "carries both roots", LIMIT, carries).await;
    let waits = |secret: &Secret| text_of(secret, "next.carried-since").is_some();
    let waiting = world.namespace.until::<Secret>(&name, "the wait began", LIMIT, waits).await;
    assert_eq!(text_of(&waiting, "current.crt").as_ref(), Some(&old), "carried, and not for long enough");
    let signs = |secret: &Secret| text_of(secret, "current.crt").as_ref() == Some(&next);
    let signing = world.namespace.until::<Secret>(&name, "the next root signs", LIMIT, signs).await;
    assert_eq!(text_of(&signing, "previous.crt").as_ref(), Some(&old), "the old one stays trusted");
    assert_eq!(text_of(&signing, "next.crt"), None);

    operator.stop().await;
    let operator = Replica::start(plan);
    world.node.collector().open_gate("rotated");
    let run = world.stopped("run").await;
    assert_eq!((end(&run), text(&run)), ((Phase::Completed, "Completed"), "still trusted"));
    assert_eq!((status(&run).attempt, world.prompts("run")), (Some(1), 1));
    operator.stop().await;
    world.finish().await;
}
