//! How a run ends. Pure: from the worker's final word, the pod's end and what was recorded before.

use super::{plan::current_report, status::storing_trouble, validate::Refusal};
use crate::pod::observe::Ended;
use subagent_crds::{
    Phase, Reason, SubagentRunStatus, conditions,
    report::Final,
    run_status::{MODE_CONTINUABLE, Stopping},
};

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// Terminal phase.
    pub phase: Phase,
    /// Stop reason; none where no agent ran.
    pub stop_reason: Option<String>,
    /// Reason of the taxonomy.
    pub reason: Reason,
    /// For a person.
    pub message: String,
    /// Allow-listed facts (contract c30).
    pub diagnostic: Option<String>,
}

impl Outcome {
    fn of(reason: Reason, message: String) -> Self {
        let facts = reason.facts();
        Self {
            phase: facts.phase,
            stop_reason: facts.stop_reason.map(|stop| stop.as_str().to_owned()),
            reason,
            message: if message.is_empty() { format!("{} {}", facts.meaning, facts.remedy) } else { message },
            diagnostic: None,
        }
    }
}

/// A refusal: no agent ran.
pub fn rejected(refusal: &Refusal) -> Outcome {
    Outcome { phase: Phase::Rejected, stop_reason: None, ..Outcome::of(refusal.reason, refusal.message.clone()) }
}

/// The pod could not be created: accepted, but no agent ever ran.
pub fn failed_to_start(refusal: &Refusal) -> Outcome {
    Outcome::of(refusal.reason, refusal.message.clone())
}

/// Cancelled when first seen, or before a pod existed (contract c9).
pub fn cancelled_before_start() -> Outcome {
    Outcome::of(Reason::Cancelled, "cancelled before anything was started".into())
}

/// A stop that found no pod.
pub fn stopped_without_pod(status: &SubagentRunStatus, stop: &Stopping) -> Outcome {
    if stop.reason == Reason::Cancelled.as_str() {
        match status.attempt {
            Some(attempt) if attempt > 1 => {
                let why = status.message.as_deref().unwrap_or_default();
                Outcome::of(Reason::Cancelled, format!("cancelled before attempt {attempt} had a worker pod: {why}"))
            }
            _ => cancelled_before_start(),
        }
    } else {
        stopped_without_report(status, stop)
    }
}

/// A stop whose worker could not report. Without a worker a recorded stop decides (contract c27).
pub fn stopped_without_report(status: &SubagentRunStatus, stop: &Stopping) -> Outcome {
    let reason = Reason::parse(&stop.reason).unwrap_or(Reason::Cancelled);
    Outcome::of(
        reason,
        if reason == Reason::Cancelled { String::new() } else { status.message.clone().unwrap_or_default() },
    )
}

/// An end without a final report: the recorded stop, else what the pod shows. `last_words` are those of a worker that
/// was never heard of (pitfall N4).
pub fn without_report(status: &SubagentRunStatus, ended: &Ended, last_words: Option<&str>) -> Outcome {
    /// Leaves room for the rest in the message.
    const MAX: usize = 300;
    let said = last_words.map(|words| conditions::cut(words, MAX));
    let with_words = |text: String| said.iter().fold(text, |text, said| format!("{text} Its worker says: {said}."));
    match &status.stopping {
        Some(stop) => {
            let outcome = stopped_without_report(status, stop);
            let is_cancelled = outcome.phase == Phase::Cancelled;
            Outcome { message: if is_cancelled { outcome.message } else { with_words(outcome.message) }, ..outcome }
        }
        None => gone_at_rest(status, ended.reason)
            .unwrap_or_else(|| Outcome::of(ended.reason, with_words(ended.reason.with_remedy(&ended.message)))),
    }
}

/// True for the run of a continuable child.
fn is_activation(status: &SubagentRunStatus) -> bool {
    status.descriptor.as_ref().is_some_and(|descriptor| descriptor.mode == MODE_CONTINUABLE)
}

/// True while a turn is under way, by the worker's stored word: a prompt is sent only after that is stored. A final word
/// closes the turn that it interrupts, in its own words and at its own time.
pub(super) fn is_amid_turn(status: &SubagentRunStatus) -> bool {
    let Some(report) = current_report(status) else { return false };
    let Some(turn) = report.turns.last() else { return false };
    let closed_by = |last: &Final| {
        turn.finished_at.as_ref() == Some(&last.at) && turn.stop_reason.as_ref() == Some(&last.stop_reason)
    };
    turn.stop_reason.is_none() || report.final_.as_ref().is_some_and(closed_by)
}

/// The end of an activation whose pod went away with its node or was drained while there was nothing to do: every turn is
/// over and stored, so nothing is lost, and what was placed meanwhile is given to the next.
fn gone_at_rest(status: &SubagentRunStatus, reason: Reason) -> Option<Outcome> {
    let is_disruption = [Reason::Evicted, Reason::NodeLost, Reason::PodDeleted].contains(&reason);
    let has_turns = current_report(status).is_some_and(|report| !report.turns.is_empty());
    let is_at_rest = is_activation(status) && has_turns && !is_amid_turn(status);
    let message =
        format!("its pod went away ({reason}) while there was nothing to do; every turn before that is stored");
    (is_disruption && is_at_rest).then(|| Outcome::of(Reason::Completed, message))
}

/// An end with the worker's final report: the protocol decides (contract c25 to c29), never an exit code.
pub fn from_report(status: &SubagentRunStatus, ended: &Ended) -> Outcome {
    let report = current_report(status);
    let Some(last) = report.and_then(|report| report.final_.as_ref()) else {
        return without_report(status, ended, None);
    };
    let turns = report.map_or(0, |report| report.turn_count.max(i64::try_from(report.turns.len()).unwrap_or(i64::MAX)));
    let said = Reason::parse(&last.reason);
    let outcome = match (last.stop_reason.as_str(), said) {
        // One that was closed before any message wanted a turn has none (contract c29 is about prompts).
        ("Completed", _) if turns < 1 && !is_activation(status) => Outcome::of(
            Reason::AgentProtocolError,
            "the worker reported completion without one turn: a contradiction".into(),
        ),
        ("Completed", _) if status.result.as_ref().map(|result| &result.pod_uid) != status.pod_uid.as_ref() => {
            Outcome::of(Reason::DurabilityFailed, "the agent completed but no result was stored".into())
        }
        ("Completed", _) if is_activation(status) => {
            Outcome::of(Reason::Completed, "its inbox was closed, and every message in it is worked off".into())
        }
        ("Completed", _) => Outcome::of(Reason::Completed, "the agent completed".into()),
        ("Aborted", _) => match &status.stopping {
            Some(stop) => stopped_without_report(status, stop),
            // The worker was quicker than our record of the cancel, or the agent ended its own turn as cancelled; the
            // diagnostic tells which (contract c25).
            None => Outcome::of(Reason::Cancelled, String::new()),
        },
        // The worker got SIGTERM and knows no more than that: from us, for the recorded reason; with an eviction; or from
        // somebody who deleted the pod (contract c49, pitfall N3).
        (_, Some(Reason::PodDeleted)) => match &status.stopping {
            Some(stop) => stopped_without_report(status, stop),
            None if ended.reason == Reason::Evicted => without_report(status, ended, None),
            None => gone_at_rest(status, Reason::PodDeleted)
                .unwrap_or_else(|| Outcome::of(Reason::PodDeleted, String::new())),
        },
        // What is not a failure's word cannot be the reason of one.
        (_, Some(reason)) if reason.facts().phase == Phase::Failed => Outcome::of(reason, String::new()),
        _ => Outcome::of(Reason::AgentProtocolError, format!("unknown end: {} {}", last.stop_reason, last.reason)),
    };
    let diagnostic = if outcome.phase == Phase::Completed { None } else { last.diagnostic.clone() };
    let message = match &diagnostic {
        Some(facts) if outcome.phase == Phase::Failed && said == Some(outcome.reason) => {
            let trouble = storing_trouble(status).filter(|_| outcome.reason == Reason::DurabilityFailed);
            with_facts(outcome.reason, facts, trouble)
        }
        _ => outcome.message,
    };
    Outcome { diagnostic, message, ..outcome }
}

/// What the reason means, what was seen, what was in the way, and what to do. The whole diagnostic stands beside it in the
/// status.
fn with_facts(reason: Reason, diagnostic: &str, trouble: Option<&str>) -> String {
    /// Leaves room for meaning and remedy in what a table can show.
    const MAX: usize = 256;
    let facts = reason.facts();
    let seen = conditions::cut(diagnostic.lines().next().unwrap_or_default().trim_end_matches('.'), MAX);
    let trouble = trouble.map(|it| format!(" In the way was: {}.", conditions::cut(it.trim_end_matches('.'), 2 * MAX)));
    format!("{} Seen: {seen}.{} {}", facts.meaning, trouble.unwrap_or_default(), facts.remedy)
}
