//! Messages to a one-shot run: each goes into the turn that is running, or is rejected. From the run's spec, its status and the
//! stored word of its worker, what became of each. Pure, and the only place that decides it.
//!
//! A message is `Queued` in the status before the gateway gives it to the worker, under the number that it has there. So what
//! the status has turned away is never given to an agent, whoever reads it when.

use super::plan::current_report;
use crate::{provider::capabilities::without_steering, subagent::inbox::NOT_TAKEN};
use k8s_openapi::{apimachinery::pkg::apis::meta::v1::Time, jiff::Timestamp};
use subagent_crds::{
    SubagentRun, SubagentRunStatus, bounds,
    message::{Code, Delivery, Outcome, PlacedMessage},
    report::Report,
    run_status::RunMessage,
};

/// The status with what became of the messages. Equal to the old one when there is nothing new.
pub fn noted(run: &SubagentRun, old: &SubagentRunStatus, now: Timestamp) -> SubagentRunStatus {
    let mut new = old.clone();
    if run.spec.activation.is_some() {
        return new;
    }
    let report = current_report(old);
    let is_over = old.phase.is_some_and(|phase| phase.is_terminal());
    for message in new.messages.iter_mut().filter(|message| message.outcome == Outcome::Queued) {
        if let Some((outcome, code, why)) = told(message, report, is_over) {
            (message.outcome, message.code, message.message) = (outcome, code, why.to_owned());
            message.at = Some(Time(now));
        }
    }
    for entry in &run.spec.messages {
        if new.messages.len() >= bounds::INBOX || new.messages.iter().any(|known| known.id == entry.id) {
            continue;
        }
        let mut message = RunMessage { id: entry.id.clone(), at: Some(Time(now)), ..RunMessage::default() };
        message.placement = i64::try_from(new.messages.len()).map_or(i64::MAX, |listed| listed + 1);
        match not_steerable(run, old, report) {
            None => message.outcome = Outcome::Queued,
            Some(why) => {
                (message.outcome, message.code) = (Outcome::Rejected, Some(Code::NotDelivered));
                message.message = why;
            }
        }
        new.messages.push(message);
    }
    if new != *old {
        new.observed_generation = run.metadata.generation;
        // Whoever waits for a condition of a run that is over must not wait for ever: nothing else looks at its spec any more.
        for condition in new.conditions.iter_mut().filter(|_| is_over) {
            condition.observed_generation = run.metadata.generation;
        }
    }
    new
}

/// What the worker says of a message that it may have, or what its end means for that (contract c38).
fn told(message: &RunMessage, report: Option<&Report>, is_over: bool) -> Option<(Outcome, Option<Code>, &'static str)> {
    let mut all = report.into_iter().flat_map(|report| &report.messages);
    let told = all.find(|told| told.id == message.id && told.placement == message.placement);
    match told.map(|told| (told.outcome.as_str(), told.code.as_deref().and_then(Code::parse))) {
        Some(("Steered", _)) => Some((Outcome::Steered, None, "")),
        Some(("Rejected", Some(Code::Unconfirmed))) => Some((Outcome::Rejected, Some(Code::Unconfirmed), UNCONFIRMED)),
        Some(("Rejected", _)) => Some((Outcome::Rejected, Some(Code::NotDelivered), NOT_TAKEN)),
        _ => is_over.then_some((Outcome::Rejected, Some(Code::Unconfirmed), UNCONFIRMED)),
    }
}

/// Why an agent may or may not have a message.
const UNCONFIRMED: &str = "the run ended before its agent confirmed that it took the message";

/// Why a message cannot go into a turn now.
fn not_steerable(run: &SubagentRun, status: &SubagentRunStatus, report: Option<&Report>) -> Option<String> {
    let is_over = status.phase.is_some_and(|phase| phase.is_terminal());
    let is_ending = status.stopping.is_some()
        || report.is_some_and(|report| {
            report.final_.is_some()
                || report.storing.is_some()
                || report.turns.iter().any(|turn| turn.stop_reason.is_some())
        });
    let is_running = report.is_some_and(|report| report.session.is_some() && !report.turns.is_empty());
    let stands = match (is_over, is_ending, is_running) {
        (true, ..) => "is over",
        (_, true, _) => "is ending",
        (_, _, false) => "is only starting",
        _ => return report.and_then(|report| without_steering(report.agent.as_ref()?, &run.spec.provider_ref.name)),
    };
    Some(format!("the run {stands}, and a steer goes into a running turn or nowhere"))
}

/// The messages that the worker has or is to get.
pub fn placed(run: &SubagentRun) -> Vec<PlacedMessage> {
    let status = run.status.iter().flat_map(|status| &status.messages);
    let queued = status.filter(|message| message.outcome == Outcome::Queued);
    let place = |message: &RunMessage| {
        let entry = run.spec.messages.iter().find(|entry| entry.id == message.id)?;
        Some(PlacedMessage { placement: message.placement, delivery: Delivery::Steer, ..entry.clone() })
    };
    queued.filter_map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{
        plan::{Step, next},
        plan_tests::{accepted, at, finished, merged, report, run, running, settle, status, with_pod, world},
    };
    use rstest::rstest;
    use serde_json::{Value, json};

    fn steered(extra: Value) -> SubagentRun {
        let steer = json!({"id": "s1", "delivery": "Steer", "text": "left"});
        run(merged(json!({"metadata": {"generation": 2}, "spec": {"messages": [steer]}}), extra))
    }

    fn agent(capabilities: Value) -> Value {
        report(json!({"agent": {"capabilities": capabilities}}))
    }

    /// c38: only a turn that runs takes a steer, and what is turned away says why.
    #[rstest]
    #[case::starting(accepted(), Err("the run is only starting"))]
    #[case::no_turn(merged(with_pod(), report(json!({"turns": []}))), Err("the run is only starting"))]
    #[case::in_its_turn(merged(with_pod(), agent(json!(["Steering"]))), Ok(1))]
    #[case::unknown_agent(merged(with_pod(), report(json!({}))), Ok(1))]
    #[case::without_steering(merged(with_pod(), agent(json!(["LoadSession"]))), Err("SubagentProvider p has no capability Steering"))]
    #[case::stopping(merged(merged(with_pod(), report(json!({}))), json!({"status": {"stopping": {"reason": "Cancelled", "at": "2026-01-01T00:00:01Z"}}})), Err("the run is ending"))]
    #[case::answered(merged(with_pod(), finished("Completed", "Completed")), Err("the run is ending"))]
    #[case::over(merged(with_pod(), json!({"status": {"phase": "Completed"}})), Err("the run is over"))]
    fn c38_a_run_takes_a_steer_into_its_turn_or_not_at_all(#[case] stands: Value, #[case] expected: Result<i64, &str>) {
        let run = steered(stands);
        let old = run.status.clone().unwrap();
        let new = noted(&run, &old, at(5));
        let [message] = &new.messages[..] else { panic!("{new:?}") };
        match expected {
            Ok(placement) => assert_eq!((message.outcome, message.placement), (Outcome::Queued, placement)),
            Err(words) => {
                assert_eq!((message.outcome, message.code), (Outcome::Rejected, Some(Code::NotDelivered)));
                assert!(message.message.contains(words) && message.message.len() <= 256, "{}", message.message);
            }
        }
        assert_eq!((new.observed_generation, noted(&run, &new, at(6))), (Some(2), new.clone()), "once");
    }

    fn queued() -> Value {
        json!({"status": {"messages": [{"id": "s1", "placement": 1, "outcome": "Queued"}]}})
    }

    /// c38: the agent's word, by the worker; without one at the end nobody knows.
    #[rstest]
    #[case::steered(json!({"outcome": "Steered", "turn": 1}), false, Outcome::Steered, None)]
    #[case::refused(json!({"outcome": "Rejected", "code": "NotDelivered"}), false, Outcome::Rejected, Some(Code::NotDelivered))]
    #[case::unanswered(json!({"outcome": "Rejected", "code": "Unconfirmed"}), false, Outcome::Rejected, Some(Code::Unconfirmed))]
    #[case::another_placing(json!({"outcome": "Steered", "placement": 2}), false, Outcome::Queued, None)]
    #[case::told_at_the_end(json!({"outcome": "Steered"}), true, Outcome::Steered, None)]
    #[case::lost(json!({"outcome": "Steered", "id": "s2"}), true, Outcome::Rejected, Some(Code::Unconfirmed))]
    fn c38_what_became_of_a_steer_is_the_workers_word(
        #[case] told: Value,
        #[case] is_over: bool,
        #[case] outcome: Outcome,
        #[case] code: Option<Code>,
    ) {
        let told = merged(json!({"id": "s1", "placement": 1}), told);
        let over = if is_over { json!({"status": {"phase": "Failed"}}) } else { json!({}) };
        let run = steered(merged(merged(merged(with_pod(), report(json!({"messages": [told]}))), queued()), over));
        let new = noted(&run, run.status.as_ref().unwrap(), at(5));
        assert_eq!((new.messages[0].outcome, new.messages[0].code), (outcome, code));
    }

    /// What is stored first is that the worker gets it; that is said by a write of its own, before anything else is done.
    #[test]
    fn c38_a_steer_is_noted_before_anything_else_and_by_one_write() {
        let mut world = world(steered(merged(with_pod(), report(json!({})))), Some(running()));
        world.run.spec.messages.clear();
        settle(&mut world, at(5));
        let before = world.run.status.clone().unwrap();
        world.run.spec = steered(json!({})).spec;
        let stored = status(next(&world, at(6)));
        assert_eq!(stored.messages[0].outcome, Outcome::Queued);
        assert_eq!(
            SubagentRunStatus { messages: vec![], ..stored.clone() },
            SubagentRunStatus { observed_generation: Some(2), ..before }
        );
        world.run.status = Some(stored);
        assert!(placed(&world.run).len() == 1 && !matches!(next(&world, at(6)), Step::CreatePod));
    }

    /// `kubectl wait` looks at the generation of a condition.
    #[test]
    fn a_late_steer_leaves_the_conditions_of_a_finished_run_current() {
        let condition = json!({"type": "Finished", "status": "True", "reason": "Completed", "message": "", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"});
        let run = steered(merged(with_pod(), json!({"status": {"phase": "Completed", "conditions": [condition]}})));
        let new = noted(&run, run.status.as_ref().unwrap(), at(5));
        assert_eq!(new.conditions[0].observed_generation, Some(2));
    }
}
