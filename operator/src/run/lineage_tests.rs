//! Tables for parents of kind Subagent; those of runs are in the planner's tables.

use super::{
    lineage::{Parent, lineage, may_begin},
    plan_tests::{CREATED, merged, run},
    validate::Verdict,
};
use rstest::rstest;
use serde_json::{Value, json};
use subagent_crds::{
    Subagent,
    run::{ParentKind, ParentRef},
    run_status::Lineage,
};

fn child(extra: Value) -> Parent {
    let base = json!({
        "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "metadata": {"name": "c", "uid": "c-uid"},
        "spec": {"providerRef": {"name": "p"}, "description": "d", "parentRef": {"kind": "SubagentRun", "name": "top"}},
        "status": {"phase": "Active", "epochs": 2, "lineage": {"depth": 2, "parentUID": "top-uid", "rootUID": "top-uid", "ancestors": ["top-uid"]},
            "activation": {"epoch": 2, "runName": "r"}},
    });
    Parent::Child(Box::new(serde_json::from_value::<Subagent>(merged(base, extra)).unwrap()))
}

fn top(extra: Value) -> Parent {
    let base = json!({"metadata": {"name": "top", "uid": "top-uid"}, "status": {"phase": "Running",
        "lineage": {"depth": 1, "rootUID": "top-uid"}}});
    Parent::Found(Box::new(run(merged(base, extra))))
}

fn over(phase: &str) -> Value {
    json!({"status": {"phase": phase, "conditions": [
        {"type": "Stopped", "status": "True", "reason": "X", "message": "", "lastTransitionTime": CREATED}]}})
}

fn reference() -> ParentRef {
    ParentRef { kind: ParentKind::Subagent, name: "c".into(), uid: None }
}

fn word(verdict: Result<impl Sized, Verdict>) -> String {
    match verdict {
        Ok(_) => "taken".into(),
        Err(Verdict::Waits(refusal)) => format!("waits {}", refusal.message),
        Err(Verdict::Refused(refusal)) => format!("{} {}", refusal.reason, refusal.message),
        Err(Verdict::Accepted(_)) => "accepted".into(),
    }
}

#[rstest]
#[case::active(json!({}), "taken", "")]
#[case::settled(json!({"status": {"phase": "Settled", "activation": null}}), "taken", "")]
#[case::not_accepted(json!({"status": {"lineage": null}}), "waits", "Subagent c, the parent: it is not accepted yet")]
#[case::refused(json!({"status": {"phase": "Rejected"}}), "ParentUnavailable", "is Rejected")]
#[case::lost(json!({"status": {"phase": "NotResumable"}}), "ParentUnavailable", "is NotResumable")]
#[case::going(json!({"metadata": {"deletionTimestamp": CREATED}}), "ParentUnavailable", "is being deleted")]
#[case::cancel_asked(json!({"spec": {"cancelThroughEpoch": 2}}), "ParentUnavailable", "is cancelled")]
#[case::cancel_under_way(json!({"spec": {"cancelThroughEpoch": 2}, "status": {"cancelledThroughEpoch": 2}}), "ParentUnavailable", "is cancelled")]
#[case::cancel_being_told(json!({"spec": {"cancelThroughEpoch": 1}, "status": {"cancelledThroughEpoch": 1, "cancellingDescendants": true}}), "ParentUnavailable", "is cancelled")]
#[case::late_cancel(json!({"spec": {"cancelThroughEpoch": 1}}), "taken", "")]
#[case::cancel_done(json!({"spec": {"cancelThroughEpoch": 1}, "status": {"cancelledThroughEpoch": 1}}), "taken", "")]
fn c14_a_child_takes_children_unless_it_stops(#[case] extra: Value, #[case] expected: &str, #[case] words: &str) {
    let said = word(lineage("own", Some(&reference()), None, &child(extra)));
    assert!(said.starts_with(expected) && said.contains(words), "{said}");
}

#[test]
fn c11_below_a_child_the_depth_is_its_own_and_one() {
    let (found, _) = lineage("own", Some(&reference()), None, &child(json!({}))).unwrap();
    assert_eq!((found.depth, found.parent_uid.as_deref(), found.root_uid.as_str()), (3, Some("c-uid"), "top-uid"));
    assert_eq!(found.ancestors, ["top-uid", "c-uid"]);
    // A run of that name is another parent.
    let wrong = ParentRef { kind: ParentKind::SubagentRun, ..reference() };
    let said = word(lineage("own", Some(&wrong), None, &child(json!({}))));
    assert!(said.starts_with("ParentUnavailable") && said.contains("does not exist"), "{said}");
}

/// c42: an activation's run is pruned as the child goes on, and a run takes along what is below it; the child stays.
#[rstest]
#[case::at_work(json!({}))]
#[case::over(over("Completed"))]
fn c42_what_an_activation_delegates_is_below_its_child(#[case] extra: Value) {
    let activation = json!({"metadata": {"name": "c-1"}, "spec": {"activation": {
        "subagentRef": {"name": "c", "uid": "c-uid"}, "epoch": 1}}});
    let named = ParentRef { kind: ParentKind::SubagentRun, name: "c-1".into(), uid: None };
    let said = word(lineage("own", Some(&named), None, &top(merged(activation, extra))));
    assert!(said.starts_with("InvalidArgs") && said.contains("name its Subagent c in spec.parentRef"), "{said}");
}

/// c14: right before the pod, everybody above who may not have told the child is asked.
#[rstest]
#[case::alive(child(json!({})), vec![top(json!({}))], "taken")]
#[case::child_cancelled(child(json!({"spec": {"cancelThroughEpoch": 2}})), vec![top(json!({}))], "ParentUnavailable")]
#[case::cancelled_above(child(json!({})), vec![top(json!({"spec": {"cancel": true}}))], "ParentUnavailable")]
#[case::cancelled_above_and_over(child(json!({})), vec![top(over("Cancelled"))], "taken")]
#[case::deleted_above(child(json!({})), vec![top(merged(over("Completed"), json!({"metadata": {"deletionTimestamp": CREATED}})))], "ParentUnavailable")]
#[case::gone_above(child(json!({})), vec![Parent::Missing], "taken")]
#[case::replaced_above(child(json!({})), vec![top(json!({"metadata": {"uid": "x"}}))], "taken")]
#[case::undecodable_above(child(json!({})), vec![Parent::Undecodable("x".into())], "waits")]
#[case::replaced(child(json!({"metadata": {"uid": "x"}})), vec![], "Unauthorized")]
fn c14_who_is_above_a_child_is_asked_as_well(
    #[case] parent: Parent,
    #[case] above: Vec<Parent>,
    #[case] expected: &str,
) {
    let recorded = Lineage {
        depth: 3,
        parent_uid: Some("c-uid".into()),
        root_uid: "top-uid".into(),
        ancestors: vec!["top-uid".into(), "c-uid".into()],
    };
    let said = word(may_begin("own", Some(&recorded), &reference(), &parent, &above));
    assert!(said.starts_with(expected), "{said}");
}

#[test]
fn c14_above_a_child_it_goes_on_until_somebody_hears() {
    assert_eq!(child(json!({})).untold().map(|parent| parent.name.as_str()), Some("top"));
    assert_eq!(child(json!({"spec": {"parentRef": null}})).untold(), None);
    assert_eq!(top(json!({})).untold(), None);
    let nested = json!({"spec": {"parentRef": {"kind": "Subagent", "name": "c"}}});
    assert_eq!(top(nested.clone()).untold(), None, "it is alive and hears of a cancel");
    assert!(top(merged(nested, over("Completed"))).untold().is_some());
}
