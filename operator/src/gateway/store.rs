//! The status write: report, result and transcript in one server-side apply. What they refer to is stored first, or
//! proven to be.
//!
//! One apply, because an apply that leaves out a field of its manager gives that field up: the stored result would be
//! removed by the next report. So what is stored is sent again with every report.

use super::{
    Gateway,
    fence::{Claim, Refusal, judge},
    snapshot::{Reported, ReportedOutput},
};
use crate::{
    api::{self, ReadError, WriteError},
    archive::{
        Owner,
        result::{self, Part, Whole},
        transcript::{self, Archived, Tail},
    },
    settings::CALL_TIMEOUT,
};
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Resource,
    api::PatchParams,
    runtime::events::{Event, EventType},
};
use serde_json::{Value, json};
use subagent_crds::{
    StopReason, SubagentRun, bounds, conditions, names,
    report::{OtherContent, Report, RunResult, Transcript, TranscriptSource, TurnOutput},
};
use subagent_link::RefusalReason;

/// What the status holds of the gateway's fields.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Stored {
    pub report: Option<Report>,
    pub result: Option<RunResult>,
    pub transcript: Option<Transcript>,
}

impl Stored {
    pub fn of(run: &SubagentRun) -> Self {
        let Some(status) = &run.status else { return Self::default() };
        Self { report: status.report.clone(), result: status.result.clone(), transcript: status.transcript.clone() }
    }

    /// Highest stored sequence number of an attempt, 0 without one.
    pub fn seq(&self, attempt: i32) -> i64 {
        self.report.as_ref().filter(|report| report.attempt == attempt).map_or(0, |report| report.seq)
    }

    /// A turn's output that the stored report names: it was proven then.
    fn output(&self, attempt: i32, reported: &ReportedOutput) -> Option<&TurnOutput> {
        let report = self.report.as_ref().filter(|report| report.attempt == attempt)?;
        let turn = report.turns.iter().find(|turn| turn.turn == reported.turn)?;
        let digest = |blocks: &OtherContent| (blocks.sha256.clone(), blocks.size);
        turn.output.as_ref().filter(|known| {
            (&known.sha256, known.size, known.other_blocks) == (&reported.sha256, reported.size, reported.other_blocks)
                && known.ref_.is_some() == reported.text.is_some()
                && known.blocks.as_ref().map(digest)
                    == reported.blocks.as_ref().map(|blocks| (blocks.sha256.clone(), blocks.size))
        })
    }

    /// Whether the stored report says that the turn's output is lost: it is over without one and did not complete. One that
    /// completed may have been stored by an older gateway, which knows no outputs.
    fn is_lost(&self, attempt: i32, reported: &ReportedOutput) -> bool {
        let report = self.report.as_ref().filter(|report| report.attempt == attempt);
        let turn = report.and_then(|report| report.turns.iter().find(|turn| turn.turn == reported.turn));
        turn.filter(|turn| turn.output.is_none())
            .and_then(|turn| turn.stop_reason.as_deref())
            .is_some_and(|ended| ended != StopReason::Completed.as_str())
    }

    /// What the fields are after a report. What it does not bring stays, also from an earlier attempt: that is the
    /// partial output.
    fn with(&self, report: Report, result: Option<RunResult>, transcript: Option<Transcript>) -> Self {
        Self {
            report: Some(report),
            result: result.or_else(|| self.result.clone()),
            transcript: transcript.or_else(|| self.transcript.clone()),
        }
    }
}

/// A checked report that waits to be stored.
#[derive(Clone, Debug)]
pub(super) struct Pending {
    /// Without the outputs of its turns.
    pub report: Report,
    pub outputs: Vec<ReportedOutput>,
    pub result: Option<Reported>,
    pub transcript: Option<Tail>,
    pub arrived: tokio::time::Instant,
}

impl Pending {
    /// A newer report in the place of one that was not stored yet: snapshots are cumulative, result and transcript are
    /// kept when the newer one does not bring them.
    pub fn absorbed_by(self, newer: Self) -> Self {
        Self {
            result: newer.result.or(self.result),
            transcript: newer.transcript.or(self.transcript),
            arrived: self.arrived,
            report: newer.report,
            outputs: newer.outputs,
        }
    }
}

/// Where a report belongs.
#[derive(Clone, Debug)]
pub(super) struct Place {
    pub namespace: String,
    pub run_name: String,
    pub claim: Claim,
}

impl Place {
    /// Whose the ConfigMaps of this worker are.
    pub fn owner(&self) -> Owner {
        Owner {
            namespace: self.namespace.clone(),
            run_name: self.run_name.clone(),
            run_uid: self.claim.run_uid.clone(),
            attempt: self.claim.attempt,
            pod_uid: self.claim.pod_uid.clone(),
        }
    }
}

/// Where the parts of an output are.
#[derive(Debug, Default)]
struct Proven {
    text: Option<Whole>,
    blocks: Option<OtherContent>,
}

/// The report with the outputs of its turns. A turn whose output is lost did not complete, whatever its worker says (c31).
fn with_outputs(mut report: Report, outputs: Vec<(i64, Option<TurnOutput>)>) -> Report {
    for (number, output) in outputs {
        let Some(turn) = report.turns.iter_mut().find(|turn| turn.turn == number) else { continue };
        if output.is_none() && turn.stop_reason.as_deref() == Some(StopReason::Completed.as_str()) {
            turn.stop_reason = Some(StopReason::Error.as_str().to_owned());
        }
        turn.output = output;
    }
    report
}

/// The apply. `None` is left out: a null would be stored as a value.
fn body(run_name: &str, fields: &Stored) -> Value {
    let mut status = serde_json::Map::new();
    let present = [
        ("report", fields.report.as_ref().map(|report| json!(report))),
        ("result", fields.result.as_ref().map(|result| json!(result))),
        ("transcript", fields.transcript.as_ref().map(|transcript| json!(transcript))),
    ];
    for (key, value) in present {
        if let Some(value) = value {
            status.insert(key.to_owned(), value);
        }
    }
    json!({
        "apiVersion": SubagentRun::api_version(&()),
        "kind": SubagentRun::kind(&()),
        "metadata": {"name": run_name},
        "status": status,
    })
}

impl Gateway {
    /// Stores a report: the transcript's ConfigMap first, an uploaded result and the outputs of turns proven, then the status.
    pub async fn store(&self, place: &Place, stored: &Stored, pending: Pending) -> Result<Stored, Refusal> {
        let unavailable = |error: &dyn std::fmt::Display| {
            tracing::warn!(namespace = place.namespace, run = place.run_name, %error, "report not stored");
            Refusal::later(RefusalReason::Unavailable, "the API server could not store the report")
        };
        let outputs = self.outputs(place, stored, pending.outputs).await.map_err(|error| unavailable(&error))?;
        let result = match pending.result {
            None => None,
            Some(reported) => self.proven(place, reported).await.map_err(|error| unavailable(&error))?,
        };
        let transcript = match &pending.transcript {
            None => None,
            Some(tail) => {
                let (owner, manager) = (place.owner(), names::GATEWAY_MANAGER);
                let archived = transcript::archive(&self.client, &owner, manager, tail, TranscriptSource::Worker).await;
                Some(self.noted(place, archived.map_err(|error| unavailable(&error))?))
            }
        };
        let seq = pending.report.seq;
        let fields = stored.with(with_outputs(pending.report, outputs), result, transcript);
        let runs: Api<SubagentRun> = Api::namespaced(self.client.clone(), &place.namespace);
        // Force, because a field may be shared: a controller archives the log of a worker that could not.
        let params = PatchParams::apply(names::GATEWAY_MANAGER).force();
        let patch = api::apply_body(&body(&place.run_name, &fields));
        let what = format!("status of {}/{}", place.namespace, place.run_name);
        match api::write(what.as_str(), runs.patch_status(&place.run_name, &params, &patch)).await {
            Ok(run) => {
                self.metrics.wrote("gateway", "status");
                self.metrics.reports_stored.inc();
                self.metrics.report_store_seconds.observe(pending.arrived.elapsed().as_secs_f64());
                tracing::debug!(namespace = place.namespace, run = place.run_name, seq, "report stored");
                Ok(Stored::of(&run))
            }
            Err(WriteError::Refused { status, .. }) if status.code != 403 => {
                self.explain(&runs, place, seq, &status.message).await.unwrap_or_else(|error| Err(unavailable(&error)))
            }
            Err(WriteError::Gone(_)) => Err(Refusal::later(RefusalReason::NotYet, "the run is not there")),
            Err(error) => Err(unavailable(&error)),
        }
    }

    /// The result as it goes into the status: what was uploaded is there, whole, or there is no result. The controller
    /// never makes a run Completed without one (contract c31).
    async fn proven(&self, place: &Place, reported: Reported) -> Result<Option<RunResult>, ReadError> {
        let text = reported.text();
        let Reported { mut result, blocks, .. } = reported;
        let Some(proven) = self.prove(place, text, blocks).await? else {
            self.is_lost(place, "the result");
            return Ok(None);
        };
        if let Some(text) = proven.text {
            (result.ref_, result.chunks) = (Some(text.reference), Some(text.chunks));
        }
        result.blocks = proven.blocks;
        Ok(Some(result))
    }

    /// The outputs of turns as they go into the report, `None` for one that is not there whole. One that a report names already
    /// was proven then, and does not change; nor does one that is lost, which was said then.
    async fn outputs(
        &self,
        place: &Place,
        stored: &Stored,
        reported: Vec<ReportedOutput>,
    ) -> Result<Vec<(i64, Option<TurnOutput>)>, ReadError> {
        let mut outputs = Vec::new();
        for output in reported {
            let turn = output.turn;
            let known = stored.output(place.claim.attempt, &output).cloned();
            let output = match known {
                Some(known) => Some(known),
                None if stored.is_lost(place.claim.attempt, &output) => None,
                None => self.proven_output(place, output).await?,
            };
            outputs.push((turn, output));
        }
        Ok(outputs)
    }

    async fn proven_output(&self, place: &Place, output: ReportedOutput) -> Result<Option<TurnOutput>, ReadError> {
        let ReportedOutput { turn, other_blocks, sha256, size, text, blocks } = output;
        let Some(proven) = self.prove(place, text, blocks).await? else {
            self.is_lost(place, &format!("the output of turn {turn}"));
            return Ok(None);
        };
        let (ref_, chunks) = proven.text.map(|whole| (whole.reference, whole.chunks)).unzip();
        Ok(Some(TurnOutput { ref_, chunks, other_blocks, blocks: proven.blocks, sha256, size }))
    }

    /// Where what was uploaded is. `None` when something of it is not there.
    async fn prove(
        &self,
        place: &Place,
        text: Option<Part>,
        blocks: Option<Part>,
    ) -> Result<Option<Proven>, ReadError> {
        let owner = place.owner();
        let mut proven = Proven::default();
        if let Some(text) = text {
            let Some(whole) = result::prove(&self.client, &owner, &text).await? else { return Ok(None) };
            proven.text = Some(whole);
        }
        if let Some(blocks) = blocks {
            let Some(whole) = result::prove(&self.client, &owner, &blocks).await? else { return Ok(None) };
            let (ref_, chunks) = (whole.reference, whole.chunks);
            proven.blocks = Some(OtherContent { ref_, chunks, sha256: blocks.sha256, size: blocks.size });
        }
        Ok(Some(proven))
    }

    fn is_lost(&self, place: &Place, what: &str) {
        let why = format!("what the worker had uploaded is not there any more, so {what} is lost");
        tracing::warn!(namespace = place.namespace, run = place.run_name, why, "result not stored");
        self.warn(place, "ResultNotStored", why);
    }

    fn noted(&self, place: &Place, archived: Archived) -> Transcript {
        match archived.unarchived {
            None => self.metrics.wrote("gateway", "configmap"),
            Some(unarchived) => {
                tracing::warn!(
                    namespace = place.namespace,
                    run = place.run_name,
                    ?unarchived,
                    "transcript not archived"
                );
                self.metrics.transcripts_unarchived.inc();
                if let Some(why) = unarchived.fault() {
                    self.warn(place, "TranscriptNotArchived", why.to_owned());
                }
            }
        }
        archived.transcript
    }

    /// Tells the run's reader, without holding up the report: an Event never delays a run (contract c10).
    pub fn warn(&self, place: &Place, reason: &'static str, why: String) {
        let run = ObjectReference {
            api_version: Some(SubagentRun::api_version(&()).into_owned()),
            kind: Some(SubagentRun::kind(&()).into_owned()),
            namespace: Some(place.namespace.clone()),
            name: Some(place.run_name.clone()),
            uid: Some(place.claim.run_uid.clone()),
            ..ObjectReference::default()
        };
        let event = Event {
            type_: EventType::Warning,
            reason: reason.to_owned(),
            note: Some(conditions::cut(&why, bounds::MESSAGE)),
            action: "Store".to_owned(),
            secondary: None,
        };
        let recorder = self.recorder.clone();
        tokio::spawn(async move {
            match tokio::time::timeout(CALL_TIMEOUT, recorder.publish(&event, &run)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "Event not published"),
                Err(_) => tracing::warn!("Event not published in time"),
            }
        });
    }

    /// The API server refused the status. The live run tells why: it moved on, or it already holds this report, or the
    /// report itself is at fault.
    async fn explain(
        &self,
        runs: &Api<SubagentRun>,
        place: &Place,
        seq: i64,
        message: &str,
    ) -> Result<Result<Stored, Refusal>, ReadError> {
        let run = api::get(runs, &place.run_name).await?;
        let verdict = verdict(&place.claim, seq, run.as_ref(), message);
        if verdict.is_err() {
            tracing::info!(namespace = place.namespace, run = place.run_name, seq, message, "report refused");
        }
        Ok(verdict)
    }
}

/// Reads a refused write against the live run.
fn verdict(claim: &Claim, seq: i64, run: Option<&SubagentRun>, message: &str) -> Result<Stored, Refusal> {
    // Judged as a reconnect that remembers everything: what is at stake is who speaks, not what it remembers.
    judge(&Claim { seq: i64::MAX, ..claim.clone() }, run)?;
    match run.map(Stored::of) {
        // A newer snapshot of the same worker came by another replica: this one is contained in it.
        Some(stored) if stored.seq(claim.attempt) >= seq => Ok(stored),
        _ => Err(Refusal::last(RefusalReason::Invalid, message)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn report(attempt: i32, seq: i64) -> Report {
        Report { pod_uid: "pod".into(), attempt, seq, ..Report::default() }
    }

    fn result(text: &str) -> RunResult {
        RunResult { pod_uid: "pod".into(), text: Some(text.into()), ..RunResult::default() }
    }

    fn transcript(size: i64) -> Transcript {
        Transcript { pod_uid: "pod".into(), size, ..Transcript::default() }
    }

    #[test]
    fn c31_a_later_report_sends_the_stored_result_and_transcript_again() {
        let stored = Stored { report: Some(report(1, 1)), result: Some(result("a")), transcript: Some(transcript(1)) };
        let next = stored.with(report(1, 2), None, None);
        assert_eq!(next, Stored { report: Some(report(1, 2)), ..stored.clone() });
        let body = body("r", &next);
        assert_eq!(body["status"]["report"]["seq"], 2);
        assert_eq!(body["status"]["result"]["text"], "a");
        assert_eq!(body["status"]["transcript"]["size"], 1);
        let replaced = stored.with(report(1, 3), Some(result("b")), None);
        assert_eq!((replaced.result, replaced.transcript), (Some(result("b")), Some(transcript(1))));
    }

    #[test]
    fn an_absent_field_is_left_out_of_the_apply() {
        let body = body("r", &Stored::default().with(report(1, 1), None, None));
        assert_eq!(body["metadata"], serde_json::json!({"name": "r"}));
        assert_eq!(body["status"].as_object().unwrap().keys().collect::<Vec<_>>(), ["report"]);
    }

    #[test]
    fn a_waiting_result_is_not_lost_to_a_newer_report() {
        let at = tokio::time::Instant::now();
        let reported = Reported { result: result("a"), blocks: None, turn: None };
        let pending = |seq, result, outputs, arrived| Pending {
            report: report(1, seq),
            outputs,
            result,
            transcript: None,
            arrived,
        };
        let older = pending(1, Some(reported.clone()), vec![], at);
        let outputs = vec![output(1, "ab")];
        let newer = pending(2, None, outputs.clone(), at + std::time::Duration::from_secs(1));
        let both = older.absorbed_by(newer);
        assert_eq!((both.report.seq, both.result, both.arrived), (2, Some(reported), at));
        assert_eq!(both.outputs, outputs, "a snapshot is cumulative");
    }

    fn output(turn: i64, sha256: &str) -> ReportedOutput {
        let part = Part { turn: Some(turn), part: subagent_link::ResultPart::Text, sha256: sha256.into(), size: 2000 };
        ReportedOutput { turn, other_blocks: 0, sha256: sha256.into(), size: 2000, text: Some(part), blocks: None }
    }

    fn with_turns(turns: serde_json::Value) -> Report {
        Report { turns: serde_json::from_value(turns).unwrap(), ..report(1, 1) }
    }

    /// What a report names was proven; nothing else is believed without a look.
    #[rstest]
    #[case::the_same(1, output(1, "ab"), true)]
    #[case::another_turn(1, output(2, "ab"), false)]
    #[case::another_text(1, output(1, "cd"), false)]
    #[case::with_more(1, ReportedOutput { blocks: output(1, "cd").text, ..output(1, "ab") }, false)]
    #[case::another_attempt(2, output(1, "ab"), false)]
    fn c31_only_a_stored_output_is_not_proven_again(
        #[case] attempt: i32,
        #[case] reported: ReportedOutput,
        #[case] is_known: bool,
    ) {
        let named = serde_json::json!({"ref": "r", "chunks": 1, "sha256": "ab", "size": 2000});
        let report = with_turns(serde_json::json!([{"turn": 1, "output": named}]));
        let stored = Stored { report: Some(report), ..Stored::default() };
        assert_eq!(stored.output(attempt, &reported).is_some(), is_known);
    }

    /// T8: that an output is lost is looked into, and said, once.
    #[rstest]
    #[case::lost(1, json!({"stopReason": "Error"}), true)]
    #[case::lost_and_refused(1, json!({"stopReason": "Refusal"}), true)]
    #[case::of_an_older_gateway(1, json!({"stopReason": "Completed"}), false)]
    #[case::not_over(1, json!({}), false)]
    #[case::stored(1, json!({"stopReason": "Error", "output": {"sha256": "ab", "size": 1}}), false)]
    #[case::another_attempt(2, json!({"stopReason": "Error"}), false)]
    fn t8_an_output_that_is_lost_is_not_looked_for_again(
        #[case] attempt: i32,
        #[case] turn: Value,
        #[case] lost: bool,
    ) {
        let mut told = json!([{"turn": 1}]);
        told[0].as_object_mut().unwrap().extend(turn.as_object().unwrap().clone());
        let stored = Stored { report: Some(with_turns(told)), ..Stored::default() };
        assert_eq!(stored.is_lost(attempt, &output(1, "ab")), lost);
        assert!(!stored.is_lost(attempt, &output(2, "ab")));
    }

    #[test]
    fn c31_a_turn_whose_output_is_lost_did_not_complete() {
        let turns = serde_json::json!([
            {"turn": 1, "stopReason": "Completed"}, {"turn": 2, "stopReason": "Refusal"}, {"turn": 3, "stopReason": "Completed"},
        ]);
        let kept = TurnOutput { size: 9, ..TurnOutput::default() };
        let got = with_outputs(with_turns(turns), vec![(1, None), (2, None), (3, Some(kept.clone()))]);
        let words: Vec<_> = got.turns.iter().map(|turn| turn.stop_reason.as_deref().unwrap_or_default()).collect();
        assert_eq!(words, ["Error", "Refusal", "Completed"]);
        assert_eq!(got.turns[2].output, Some(kept));
    }

    #[test]
    fn a_sequence_number_counts_for_its_attempt_only() {
        let stored = Stored { report: Some(report(1, 7)), ..Stored::default() };
        assert_eq!((stored.seq(1), stored.seq(2), Stored::default().seq(1)), (7, 0, 0));
    }

    fn run(phase: &str, attempt: i32, seq: i64) -> SubagentRun {
        serde_json::from_value(serde_json::json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "metadata": {"name": "r", "uid": "run"},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "prompt": {"text": "t"}},
            "status": {"phase": phase, "attempt": attempt, "podUID": "pod",
                "report": {"podUID": "pod", "attempt": attempt, "seq": seq}},
        }))
        .unwrap()
    }

    #[rstest]
    #[case::r17_terminal(run("Completed", 1, 3), Some(RefusalReason::Terminal))]
    #[case::r9_attempt_moved_on(run("Running", 2, 1), Some(RefusalReason::NotCurrent))]
    #[case::r9_newer_snapshot_is_stored(run("Running", 1, 5), None)]
    #[case::own_fault(run("Running", 1, 3), Some(RefusalReason::Invalid))]
    fn r9_a_refused_write_is_read_against_the_live_run(
        #[case] live: SubagentRun,
        #[case] expected: Option<RefusalReason>,
    ) {
        let claim = Claim { pod_uid: "pod".into(), run_uid: "run".into(), attempt: 1, seq: 0 };
        let got = verdict(&claim, 4, Some(&live), "said no");
        assert_eq!(got.as_ref().err().map(|refusal| refusal.reason), expected, "{got:?}");
        assert!(got.err().is_none_or(|refusal| !refusal.retry));
    }
}
