//! What runs cost the API server, on real pods, from its audit log. A binary of its own: nothing else is going on, so the
//! operator's own count of reconciles is that of these runs.

use e2e_tests::{
    RunView, ScriptedProvider, TestNamespace,
    audit::{Request, requests_in},
    budget::{self, Cost},
    cluster::{self, OPERATOR_NAMESPACE, OPERATOR_USER},
    collector,
    collector::seen_event,
    commands::kubectl,
    in_namespace,
    namespace::PATIENCE,
    objects::PROVIDER,
    run,
};
use futures::future::join_all;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    ResourceExt,
    api::{Patch, PatchParams},
};
use serde_json::json;
use std::time::Instant;
use subagent_crds::{Subagent, message::Outcome};

/// Design section 9: successful creates, updates, patches and deletes until the run is stopped. Here every write counts up
/// to the release of the pod, which is the one behind.
const WRITES: usize = 12;
/// The same for a result that does not fit the status: its ConfigMap.
const WRITES_OF_A_LARGE_RESULT: usize = 13;
/// Bytes of such a result.
const LARGE: usize = 64 * 1024;
/// Design section 9.
const RECONCILES: usize = 12;
const RUNS: usize = 20;
/// Design section 9: writes of a message that steers.
const WRITES_OF_A_STEER: usize = 6;
/// Messages that steer one turn.
const STEERS: usize = 12;
/// So few at a time that the operator is not what they wait for.
const AT_A_TIME: usize = 5;

#[tokio::test]
async fn c3_every_run_stays_within_its_budget() {
    in_namespace("budget", async |ns| {
        ns.provider(&ScriptedProvider::default()).await;
        let before = reconciles(&ns).await;
        let names: Vec<_> = (0..RUNS).map(|number| format!("budget-{number:02}")).collect();
        let large = names.last().expect("runs");
        for some in names.chunks(AT_A_TIME) {
            join_all(some.iter().map(|name| to_the_end(&ns, name, name == large))).await;
        }
        let reconciles = reconciles(&ns).await - before;

        let (asked, forbidden): (Vec<Request>, Vec<Request>) = requests_in(&ns.name)
            .into_iter()
            .filter(|request| request.user() == OPERATOR_USER)
            .partition(|request| request.decision() != "forbid");
        assert!(forbidden.is_empty(), "D6: {}", lines(&forbidden));
        let costs: Vec<Cost> = names.iter().map(|name| budget::cost(&asked, name)).collect();
        let counted =
            asked.iter().filter(|request| request.is_counted_write() && !is_about_a_provider(request)).count();
        let writes: Vec<usize> = costs.iter().map(|cost| cost.writes.len()).collect();
        assert_eq!(writes.iter().sum::<usize>(), counted, "a write that belongs to no run: {}", lines(&asked));

        let reads: Vec<usize> = costs.iter().map(|cost| cost.reads).collect();
        println!("writes of a run: {}", figures(&writes));
        println!("reads of a run by which its reconciles begin: {}", figures(&reads));
        println!("reconciles of {RUNS} runs, by the operator's count: {reconciles}");
        for (name, cost) in names.iter().zip(&costs) {
            assert!(cost.writes.len() > 4, "{name}: that is not all: {}", lines(&cost.writes));
            let allowed = if name == large { WRITES_OF_A_LARGE_RESULT } else { WRITES };
            assert!(cost.writes.len() <= allowed, "{name}: {} writes: {}", cost.writes.len(), lines(&cost.writes));
            // Every reconcile begins with one.
            assert!(cost.reads <= RECONCILES, "{name}: {} reads of it", cost.reads);
        }
        assert!((RUNS..=RUNS * RECONCILES).contains(&reconciles), "{reconciles} reconciles of {RUNS} runs");
    })
    .await;
}

/// What a steering message costs, from its apply until its outcome is in the child's status; and how soon the agent has it.
#[tokio::test]
async fn a_steered_message_stays_within_its_budget() {
    in_namespace("steered", async |ns| {
        let collector = collector();
        ns.continuable(&ScriptedProvider::keeping_sessions().reporting_to(collector.address())).await;
        let spec = json!({
            "providerRef": {"name": PROVIDER}, "description": "to be steered",
            "messages": [{"id": "first", "text": "!report begun\n!gate never"}],
        });
        ns.create(&Subagent::new("steered", serde_json::from_value(spec).expect("a child's spec"))).await;
        seen_event(&collector, PATIENCE, "report", "begun").await;
        let before = writes(&ns).len();
        let mut milliseconds = vec![];
        for number in 0..STEERS {
            let id = format!("s{number}");
            let began = Instant::now();
            let told = json!({
                "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent",
                "spec": {"messages": [{"id": id, "delivery": "Steer", "text": format!("!report {id}")}]},
            });
            let params = PatchParams::apply(&id);
            ns.api::<Subagent>().patch("steered", &params, &Patch::Apply(&told)).await.expect("a message");
            seen_event(&collector, PATIENCE, "report", &id).await;
            milliseconds.push(usize::try_from(began.elapsed().as_millis()).expect("a time"));
            ns.until("steered", "Steered", PATIENCE, |child: &Subagent| {
                let all = child.status.iter().flat_map(|status| &status.messages);
                all.into_iter().any(|message| message.id == id && message.outcome == Outcome::Steered)
            })
            .await;
        }
        let writes = writes(&ns);
        let of_steers = &writes[before..];
        println!("writes of {STEERS} steering messages: {}", of_steers.len());
        println!("milliseconds from apply to the agent: {}", figures(&milliseconds));
        assert!(of_steers.len() >= STEERS, "that is not all: {}", lines(of_steers));
        assert!(of_steers.len() <= STEERS * WRITES_OF_A_STEER, "{} writes: {}", of_steers.len(), lines(of_steers));
    })
    .await;
}

/// What the operator has written in a namespace.
fn writes(ns: &TestNamespace) -> Vec<Request> {
    let own = |request: &Request| request.user() == OPERATOR_USER && request.is_counted_write();
    requests_in(&ns.name).into_iter().filter(own).collect()
}

/// Starts a run and waits until the operator is done with its pod.
async fn to_the_end(ns: &TestNamespace, name: &str, is_large: bool) {
    let prompt = if is_large { format!("!fill {LARGE}") } else { "hello".to_owned() };
    let ended = ns.finish(&run(name, &prompt)).await;
    assert_eq!(ended.reason(), "Completed", "{}", ended.message());
    let result = ended.seen().result.expect("a result");
    let size = if is_large { LARGE } else { "echo: hello".len() };
    assert_eq!((result.size, result.text.is_none()), (i64::try_from(size).expect("a size"), is_large));
    ns.until::<Pod>(&ended.pod_name(), "released", PATIENCE, |pod| pod.finalizers().is_empty()).await;
}

fn is_about_a_provider(request: &Request) -> bool {
    ["subagentproviders/status", "subagentproviders", "controllerrevisions"].contains(&request.resource().as_str())
}

/// How many runs were reconciled, as the operator's replicas count.
async fn reconciles(ns: &TestNamespace) -> usize {
    let pods = cluster::operator_pods(&ns.client).await;
    let of_pod = |pod: &Pod| {
        let name = pod.name_any();
        let path = format!("/api/v1/namespaces/{OPERATOR_NAMESPACE}/pods/{name}:8080/proxy/metrics");
        let text = kubectl(&["get", "--raw", &path]);
        let counts = text.lines().filter(|line| line.starts_with(r#"subagents_reconciles_total{controller="run""#));
        counts.filter_map(|line| line.rsplit(' ').next()?.parse::<usize>().ok()).sum::<usize>()
    };
    pods.iter().map(of_pod).sum()
}

fn figures(counts: &[usize]) -> String {
    let mut sorted = counts.to_vec();
    sorted.sort_unstable();
    format!("median {}, maximum {}", sorted[sorted.len() / 2], sorted[sorted.len() - 1])
}

fn lines(requests: &[Request]) -> String {
    requests.iter().map(|request| format!("\n  {}", request.line())).collect()
}
