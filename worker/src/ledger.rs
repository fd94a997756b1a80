//! The ledger: the one snapshot of this attempt, which of its states are stored, and what may happen only after that.
//!
//! Pure: it is told what happened and when, and answers what to send. Its rule is contract c41: the session and "turn n
//! is starting" are *acknowledged*, so stored in the run's status, before the prompt leaves the worker. The permission
//! to prompt is a value, [`PromptPermit`], that exists at most once per turn; the function that sends the prompt
//! consumes it.

use std::time::{Duration, Instant};
use subagent_link::{
    ACTIVITY_INTERVAL, Checkpoint, Final, MAX_SNAPSHOT_BYTES, MAX_TURNS, MessageOutcome, ResultPayload,
    STORED_OUTPUT_BYTES, Session, Snapshot, Storing, TranscriptPayload, Turn, TurnOutput, WorkerMessage,
};

/// Activity is reported at least this many times within the idle deadline, which the controller counts from the last
/// activity it knows of. Twice would be enough without the time a report takes.
const REPORTS_PER_IDLE_DEADLINE: u32 = 4;

/// What the gateway adds to a snapshot, and some room: its bound is that of the whole report.
const RESERVED_BYTES: usize = 1024;

/// The right to send the prompt of one turn. Not copied and not made anywhere else, so a prompt cannot be sent twice.
#[derive(Debug)]
pub struct PromptPermit(());

/// What came of a turn.
#[derive(Debug, Default)]
pub struct Answered {
    /// Stop reason.
    pub stop_reason: &'static str,
    /// How its output begins.
    pub preview: Option<String>,
    /// The whole output, when it is stored.
    pub output: Option<TurnOutput>,
}

/// How far the newest turn has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TurnState {
    /// There is none, or it is over and another may follow.
    None,
    /// Recorded in the snapshot with this number; to be acknowledged first.
    Recorded(i64),
    /// The permit was given away.
    Permitted,
    /// Cancelled or over: no permit any more.
    Closed,
}

/// State of an attempt, as reported and as acknowledged.
#[derive(Debug)]
pub struct Ledger {
    snapshot: Snapshot,
    /// Number of the newest published snapshot, 0 before the first.
    published: i64,
    /// Highest acknowledged number.
    acknowledged: i64,
    turn: TurnState,
    /// Something changed that is not worth a report of its own.
    unreported: bool,
    last_published: Option<Instant>,
    activity_interval: Duration,
    result: Option<ResultPayload>,
    transcript: Option<TranscriptPayload>,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Self {
        Self {
            snapshot: Snapshot::default(),
            published: 0,
            acknowledged: 0,
            turn: TurnState::None,
            unreported: false,
            last_published: None,
            activity_interval: ACTIVITY_INTERVAL,
            result: None,
            transcript: None,
        }
    }

    /// Activity is to be known soon enough that an agent at work never looks idle. `seconds` is the idle deadline.
    pub fn keep_alive_within(&mut self, seconds: i64) {
        let deadline = Duration::from_secs(seconds.max(1).unsigned_abs());
        self.activity_interval = ACTIVITY_INTERVAL.min(deadline / REPORTS_PER_IDLE_DEADLINE);
    }

    /// Highest sequence number used so far, for the hello.
    pub fn seq(&self) -> i64 {
        self.published
    }

    /// The state as it would be reported now.
    pub fn snapshot(&self) -> &Snapshot {
        &self.snapshot
    }

    /// Notes the stage. Stages pass in milliseconds as a rule, so this alone sends nothing.
    pub fn enter(&mut self, stage: &str) {
        if self.snapshot.final_.is_none() {
            stage.clone_into(&mut self.snapshot.stage);
        }
    }

    /// Changes something that can wait: activity, usage, counts. It is reported with the next report, or alone once
    /// [`flush_at`](Self::flush_at) is reached.
    pub fn note(&mut self, change: impl FnOnce(&mut Snapshot)) {
        if self.snapshot.final_.is_none() {
            change(&mut self.snapshot);
            self.unreported = true;
        }
    }

    /// What became of messages, as the next report tells it. Alone it sends nothing.
    pub fn set_messages(&mut self, told: Vec<MessageOutcome>) {
        if self.snapshot.final_.is_none() {
            self.snapshot.messages = told;
        }
    }

    /// When what was [noted](Self::note) is to be reported, `None` when nothing is waiting. Before the first report
    /// there is nothing to coalesce with: notes travel with that one.
    pub fn flush_at(&self) -> Option<Instant> {
        if self.unreported { Some(self.last_published? + self.activity_interval) } else { None }
    }

    /// Publishes the current state as a new report, unless everything is over.
    pub fn publish(&mut self, now: Instant) {
        if self.snapshot.final_.is_none() {
            self.advance(now);
        }
    }

    /// Records the session and that a turn starts, and publishes it. Without effect while a turn is under way, and once
    /// everything is over. `message_id` is the message whose turn it is; a run's own prompt has none.
    pub fn record_turn(&mut self, session: Session, message_id: Option<String>, started_at: String, now: Instant) {
        if self.turn != TurnState::None || self.snapshot.final_.is_some() {
            return;
        }
        self.snapshot.session = Some(session);
        self.snapshot.idle = false;
        self.snapshot.turn_count += 1;
        let turn = self.snapshot.turn_count;
        self.snapshot.turns.push(Turn { turn, message_id, started_at, ..Turn::default() });
        let surplus = self.snapshot.turns.len().saturating_sub(MAX_TURNS);
        self.snapshot.turns.drain(..surplus);
        self.advance(now);
        self.turn = TurnState::Recorded(self.published);
    }

    /// Notes the end of the turn and what was kept after it; another may follow. Both are reported together, with what comes
    /// next: the record of another turn, or [`publish`](Self::publish). Without a checkpoint the one before stays the newest.
    pub fn end_turn(&mut self, answered: Answered, finished_at: String, checkpoint: Option<Checkpoint>) {
        if self.snapshot.final_.is_some() || self.turn == TurnState::Closed {
            return;
        }
        self.turn = TurnState::None;
        if let Some(turn) = self.snapshot.turns.last_mut().filter(|turn| turn.finished_at.is_none()) {
            turn.stop_reason = Some(answered.stop_reason.to_owned());
            turn.finished_at = Some(finished_at);
            turn.preview = answered.preview;
            turn.output = answered.output;
        }
        if checkpoint.is_some() {
            self.snapshot.checkpoint = checkpoint;
        }
        self.snapshot.storing = None;
        self.unreported = true;
    }

    /// Number and stored output of the newest turn, if it is over and has one.
    pub fn stored_output(&self) -> Option<(i64, &TurnOutput)> {
        let turn = self.snapshot.turns.last().filter(|turn| turn.stop_reason.is_some())?;
        Some((turn.turn, turn.output.as_ref()?))
    }

    /// Nothing is to be done: reports that, with the session and the end of the turn before.
    pub fn rest(&mut self, session: Session, now: Instant) {
        if self.snapshot.final_.is_none() && self.turn == TurnState::None {
            self.snapshot.session = Some(session);
            self.snapshot.idle = true;
            self.advance(now);
        }
    }

    /// Number of the newest turn, 0 before the first.
    pub fn turns(&self) -> i64 {
        self.snapshot.turn_count
    }

    /// The permission to send the prompt: once a turn, and only after the record of the turn was acknowledged (c41).
    pub fn permit(&mut self) -> Option<PromptPermit> {
        match self.turn {
            TurnState::Recorded(seq) if self.acknowledged >= seq => {
                self.turn = TurnState::Permitted;
                Some(PromptPermit(()))
            }
            _ => None,
        }
    }

    /// No prompt any more: the attempt was cancelled or failed.
    pub fn close(&mut self) {
        self.turn = TurnState::Closed;
    }

    /// Notes that the turn is over and its result of this size is being stored; what it is worth to a reader shows only
    /// when that takes long.
    pub fn store(&mut self, size: i64, at: String) {
        self.note(|snapshot| {
            if let Some(turn) = snapshot.turns.last_mut() {
                turn.finished_at.get_or_insert(at);
            }
            snapshot.idle = true;
            snapshot.storing = Some(Storing { what: None, size, trouble: None });
        });
    }

    /// Notes what keeps the result from being stored.
    pub fn store_again(&mut self, trouble: String) {
        self.note(|snapshot| snapshot.storing.get_or_insert_default().trouble = Some(trouble));
    }

    /// Notes what keeps a turn from being over, until it is.
    pub fn keep_again(&mut self, storing: Storing) {
        self.note(|snapshot| snapshot.storing = Some(storing));
    }

    /// Records the end and publishes the final report. Without effect when there is one already: what was recorded
    /// first stands (c27).
    pub fn finish(
        &mut self,
        end: Final,
        preview: Option<String>,
        result: Option<ResultPayload>,
        transcript: Option<TranscriptPayload>,
        now: Instant,
    ) {
        if self.snapshot.final_.is_some() {
            return;
        }
        if let Some(turn) = self.snapshot.turns.last_mut().filter(|turn| turn.stop_reason.is_none()) {
            turn.finished_at.get_or_insert_with(|| end.at.clone());
            turn.stop_reason = Some(end.stop_reason.clone());
            turn.preview = preview;
        }
        self.snapshot.idle = true;
        self.snapshot.storing = None;
        self.snapshot.final_ = Some(end);
        self.result = result;
        self.transcript = transcript;
        self.turn = TurnState::Closed;
        self.advance(now);
    }

    /// Notes an acknowledgement. One for a number that was never published is nobody's word and changes nothing: it
    /// would acknowledge what is written later.
    pub fn acknowledge(&mut self, seq: i64) {
        if seq <= self.published {
            self.acknowledged = self.acknowledged.max(seq);
        }
    }

    /// The newest report if it is not acknowledged yet. Older ones are never sent again: this one holds them.
    pub fn pending(&self) -> Option<WorkerMessage> {
        (self.published > self.acknowledged).then(|| WorkerMessage::Report {
            seq: self.published,
            snapshot: Box::new(self.snapshot.clone()),
            result: self.result.clone(),
            transcript: self.transcript.clone(),
        })
    }

    /// True once the final report is published and acknowledged.
    pub fn is_settled(&self) -> bool {
        self.snapshot.final_.is_some() && self.acknowledged >= self.published
    }

    fn advance(&mut self, now: Instant) {
        self.fit();
        self.published += 1;
        self.unreported = false;
        self.last_published = Some(now);
    }

    /// Keeps the snapshot within its bound: previews of the oldest turns go first. Everything else in it is bounded so that
    /// it fits.
    fn fit(&mut self) {
        let size = |snapshot: &Snapshot| serde_json::to_vec(snapshot).map_or(0, |json| json.len());
        let outputs = self.snapshot.turns.iter().filter(|turn| turn.output.is_some()).count();
        let room = MAX_SNAPSHOT_BYTES - RESERVED_BYTES - outputs * STORED_OUTPUT_BYTES;
        let mut oldest = 0;
        while size(&self.snapshot) > room {
            let Some(turn) = self.snapshot.turns.get_mut(oldest) else { return };
            turn.preview = None;
            oldest += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use subagent_link::{Activity, ContentDigest, SessionOrigin};

    fn session() -> Session {
        Session { id: "s".into(), how: SessionOrigin::New }
    }

    fn end(reason: &str) -> Final {
        Final { stop_reason: reason.into(), reason: reason.into(), diagnostic: None, at: "t".into() }
    }

    fn completed(preview: Option<&str>) -> Answered {
        Answered { stop_reason: "Completed", preview: preview.map(str::to_owned), output: None }
    }

    fn recorded() -> Ledger {
        let mut ledger = Ledger::new();
        ledger.record_turn(session(), None, "t".into(), Instant::now());
        ledger
    }

    #[test]
    fn c41_no_permit_before_the_turn_is_acknowledged() {
        let mut ledger = recorded();
        assert!(ledger.permit().is_none());
        ledger.acknowledge(0);
        assert!(ledger.permit().is_none());
        ledger.acknowledge(1);
        assert!(ledger.permit().is_some());
        assert!(ledger.permit().is_none(), "R1: one permit, one prompt");
    }

    #[test]
    fn c41_a_later_report_acknowledges_the_turn_as_well() {
        let mut ledger = recorded();
        ledger.publish(Instant::now());
        ledger.acknowledge(2);
        assert!(ledger.permit().is_some());
    }

    #[test]
    fn c41_every_turn_needs_its_own_acknowledgement() {
        let now = Instant::now();
        let mut ledger = recorded();
        ledger.acknowledge(1);
        assert!(ledger.permit().is_some());
        ledger.record_turn(session(), Some("m2".into()), "t".into(), now);
        assert_eq!(ledger.turns(), 1, "never a second turn while one runs (c54)");
        ledger.end_turn(completed(Some("done")), "t".into(), None);
        assert_eq!(ledger.pending(), None, "its end travels with what comes next");
        ledger.record_turn(session(), Some("m2".into()), "t".into(), now);
        assert!(ledger.permit().is_none());
        ledger.acknowledge(2);
        assert!(ledger.permit().is_some() && ledger.permit().is_none());
        let turns = &ledger.snapshot().turns;
        assert_eq!((turns[0].stop_reason.as_deref(), turns[1].message_id.as_deref()), (Some("Completed"), Some("m2")));
    }

    /// c41: a turn's end and what was kept after it are one report; a turn that left nothing takes nothing away.
    #[test]
    fn c41_a_turns_end_and_its_checkpoint_are_reported_together() {
        let now = Instant::now();
        let mut ledger = recorded();
        let kept = Checkpoint { key: "u/1/1/ab".into(), digest: "ab".into(), size: 3, turn: 1 };
        ledger.end_turn(completed(None), "t".into(), Some(kept.clone()));
        assert_eq!(ledger.seq(), 1, "nothing is reported before both are there");
        ledger.record_turn(session(), None, "t".into(), now);
        ledger.end_turn(Answered { stop_reason: "Error", ..Answered::default() }, "t".into(), None);
        ledger.finish(end("Error"), None, None, None, now);
        assert_eq!(ledger.snapshot().checkpoint, Some(kept));
    }

    #[test]
    fn t5_a_snapshot_stays_within_its_bound_for_ever() {
        let mut ledger = Ledger::new();
        for turn in 1..100 {
            ledger.record_turn(session(), Some(format!("m{turn}")), "t".into(), Instant::now());
            let digest = ContentDigest { sha256: "a".repeat(64), size: 1 << 22 };
            let output =
                TurnOutput { sha256: digest.sha256.clone(), size: 1 << 22, other_blocks: 9, blocks: Some(digest) };
            let answered = Answered { output: Some(output), ..completed(Some(&"\u{1}".repeat(1024))) };
            ledger.end_turn(answered, "t".into(), None);
            ledger.publish(Instant::now());
            // With what the gateway adds.
            let added = ledger.snapshot().turns.len() * STORED_OUTPUT_BYTES;
            let size = serde_json::to_vec(ledger.snapshot()).unwrap().len() + added;
            assert!(size <= MAX_SNAPSHOT_BYTES, "{size} bytes after {turn} turns");
        }
        let turns = &ledger.snapshot().turns;
        assert_eq!((turns.len(), turns[0].turn), (MAX_TURNS, 99 - 31));
        assert!(turns[31].preview.is_some(), "the newest is shown");
    }

    #[test]
    fn an_acknowledgement_of_the_future_counts_for_nothing() {
        let mut ledger = Ledger::new();
        ledger.acknowledge(7);
        ledger.record_turn(session(), None, "t".into(), Instant::now());
        assert!(ledger.permit().is_none());
    }

    #[test]
    fn c27_what_is_recorded_first_stands() {
        let mut ledger = recorded();
        ledger.finish(end("Error"), None, None, None, Instant::now());
        ledger.finish(end("Aborted"), None, None, None, Instant::now());
        ledger.note(|snapshot| snapshot.turn_count = 9);
        ledger.publish(Instant::now());
        assert_eq!(ledger.seq(), 2);
        assert_eq!(ledger.snapshot().final_, Some(end("Error")));
        assert_eq!(ledger.snapshot().turn_count, 1);
        assert!(ledger.snapshot().idle, "no turn is running any more");
        assert!(!ledger.is_settled());
        ledger.acknowledge(2);
        assert!(ledger.is_settled() && ledger.pending().is_none());
    }

    #[test]
    fn only_the_newest_snapshot_is_pending() {
        let mut ledger = recorded();
        ledger.enter("Prompt");
        ledger.publish(Instant::now());
        ledger.acknowledge(1);
        let Some(WorkerMessage::Report { seq, snapshot, .. }) = ledger.pending() else { panic!("a report") };
        assert_eq!((seq, snapshot.stage.as_str()), (2, "Prompt"));
        ledger.acknowledge(2);
        assert!(ledger.pending().is_none());
    }

    #[test]
    fn activity_is_coalesced() {
        let start = Instant::now();
        let mut ledger = Ledger::new();
        ledger.note(|snapshot| snapshot.activity = Some(Activity { at: "t".into(), summary: "x".into() }));
        assert_eq!(ledger.flush_at(), None, "it travels with the first report");
        ledger.record_turn(session(), None, "t".into(), start);
        assert_eq!(ledger.flush_at(), None, "nothing is waiting");
        ledger.note(|snapshot| snapshot.idle = false);
        assert_eq!(ledger.flush_at(), Some(start + Duration::from_secs(60)));
        ledger.publish(start + Duration::from_secs(60));
        assert_eq!(ledger.flush_at(), None);
    }

    #[test]
    fn activity_is_known_well_within_the_idle_deadline() {
        let start = Instant::now();
        let mut ledger = Ledger::new();
        ledger.record_turn(session(), None, "t".into(), start);
        ledger.note(|snapshot| snapshot.idle = false);
        for (idle, expected) in [(1, 250), (20, 5_000), (60, 15_000), (240, 60_000), (86_400, 60_000)] {
            ledger.keep_alive_within(idle);
            assert_eq!(ledger.flush_at(), Some(start + Duration::from_millis(expected)), "idle deadline {idle} s");
        }
    }

    /// c41: what holds a session up is told until the turn is over, and the next turn begins without it.
    #[test]
    fn a_session_that_is_not_stored_is_told_until_the_turn_is_over() {
        let mut ledger = recorded();
        let storing = Storing { what: Some("Session".into()), size: 0, trouble: Some("no room".into()) };
        ledger.keep_again(storing.clone());
        assert_eq!(ledger.snapshot().storing, Some(storing));
        assert!(!ledger.snapshot().idle, "the turn is not over");
        ledger.end_turn(completed(None), "then".into(), None);
        assert_eq!(ledger.snapshot().storing, None);
    }

    /// c31: what holds the result up is told like any other note, and is over with the end.
    #[test]
    fn a_result_on_its_way_is_told_until_the_end() {
        let start = Instant::now();
        let mut ledger = recorded();
        ledger.store(20_000, "then".into());
        ledger.store_again("no room".into());
        let told = ledger.snapshot().clone();
        assert_eq!(told.storing, Some(Storing { what: None, size: 20_000, trouble: Some("no room".into()) }));
        assert!(told.idle && told.turns[0].finished_at.as_deref() == Some("then"));
        assert!(ledger.flush_at().is_some_and(|at| at >= start + ACTIVITY_INTERVAL));
        ledger.finish(end("Completed"), None, None, None, start);
        let last = ledger.snapshot();
        assert_eq!((last.storing.as_ref(), last.turns[0].finished_at.as_deref()), (None, Some("then")));
    }

    #[derive(Clone, Debug)]
    enum Step {
        Record,
        Publish,
        Note,
        Ack(i64),
        Permit,
        EndTurn,
        Close,
        Finish,
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            Just(Step::Record),
            Just(Step::Publish),
            Just(Step::Note),
            (-1_i64..8).prop_map(Step::Ack),
            Just(Step::Permit),
            Just(Step::EndTurn),
            Just(Step::Close),
            Just(Step::Finish),
        ]
    }

    proptest! {
        /// R1, c41: whatever order of reports, acknowledgements, repeats and cancels, at most one prompt leaves for each turn,
        /// only after a stored report named that turn, and never after the end.
        #[test]
        fn at_most_one_prompt_a_turn_and_only_after_its_record_is_stored(steps in prop::collection::vec(step(), 0..40)) {
            let now = Instant::now();
            let mut ledger = Ledger::new();
            // The gateway's view, kept apart from the ledger: the snapshots sent, and the newest one it stored.
            let mut sent: Vec<(i64, Snapshot)> = Vec::new();
            let mut stored = Snapshot::default();
            let (mut prompts, mut over, mut newest) = (0, false, 0);
            for step in steps {
                match step {
                    Step::Record => ledger.record_turn(session(), None, "t".into(), now),
                    Step::Publish => ledger.publish(now),
                    Step::Note => ledger.note(|snapshot| snapshot.idle = !snapshot.idle),
                    Step::Ack(seq) => {
                        // An acknowledgement may come late; what is stored never goes back.
                        if let Some((_, snapshot)) = sent.iter().find(|(number, _)| *number == seq && seq > newest) {
                            (stored, newest) = (snapshot.clone(), seq);
                        }
                        ledger.acknowledge(seq);
                    }
                    Step::Permit => {
                        if ledger.permit().is_some() {
                            prompts += 1;
                            prop_assert!(!over);
                            prop_assert_eq!(stored.turn_count, ledger.turns(), "the turn is stored");
                            prop_assert!(stored.session.is_some());
                        }
                    }
                    Step::EndTurn => ledger.end_turn(completed(None), "t".into(), None),
                    Step::Close => { ledger.close(); over = true; }
                    Step::Finish => { ledger.finish(end("Error"), None, None, None, now); over = true; }
                }
                if let Some(WorkerMessage::Report { seq, snapshot, .. }) = ledger.pending()
                    && sent.last().is_none_or(|(last, _)| *last < seq)
                {
                    sent.push((seq, *snapshot));
                }
                prop_assert!(sent.windows(2).all(|pair| pair[0].0 < pair[1].0));
            }
            prop_assert!(prompts <= ledger.turns());
        }
    }
}
