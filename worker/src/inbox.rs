//! The inbox of an activation: which of its messages wait, and what became of the others (design section 5).
//!
//! Pure: it is told what was delivered and what happened, and answers what to do. A message is known by its placement, so
//! one that is delivered again changes nothing. The operator numbers placements in the order of delivery, and places nothing
//! behind an interruption before that was carried out.

use std::collections::BTreeMap;
use subagent_link::{Delivery, InboxMessage, MessageOutcome};

/// What a delivered message asks for at once.
#[derive(Debug, PartialEq)]
pub enum Asked {
    /// Nothing: it waits for its turn, or was answered.
    Nothing,
    /// Bring it into the running turn.
    Steer(InboxMessage),
    /// End the running turn.
    Interrupt,
}

/// Whether there is a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// None.
    None,
    /// Recorded, its prompt not sent yet.
    Recorded,
    /// Its prompt is with the agent.
    Running,
    /// Its response was read, and what it left is being kept: nothing to steer or to interrupt any more, not over yet.
    Answered,
}

/// What became of messages, for the snapshot.
#[derive(Debug, Default)]
pub struct Inbox {
    /// Wait for a turn of their own, by placement.
    waiting: BTreeMap<i64, InboxMessage>,
    /// On their way into the running turn: id by placement.
    steering: BTreeMap<i64, String>,
    /// An interruption that ends the running turn.
    interrupting: Option<(i64, String)>,
    /// What became of the others, by placement.
    told: BTreeMap<i64, MessageOutcome>,
    closed: bool,
}

impl Inbox {
    /// Takes in a message. `at` is the time for what becomes of it at once.
    pub fn deliver(&mut self, message: InboxMessage, turn: Turn, at: &str) -> Asked {
        let placement = message.placement;
        if self.knows(placement) {
            return Asked::Nothing;
        }
        match message.delivery {
            Delivery::Queue => {
                self.waiting.insert(placement, message);
                Asked::Nothing
            }
            Delivery::Steer if turn == Turn::Running && self.interrupting.is_none() => {
                self.steering.insert(placement, message.id.clone());
                Asked::Steer(message)
            }
            Delivery::Steer => {
                self.tell(placement, message.id, "Rejected", Some("NotDelivered"), None, at);
                Asked::Nothing
            }
            Delivery::Interrupt => {
                self.park(at);
                if matches!(turn, Turn::None | Turn::Answered) {
                    self.tell(placement, message.id, "Applied", None, None, at);
                    return Asked::Nothing;
                }
                if let Some((earlier, id)) = self.interrupting.replace((placement, message.id)) {
                    self.tell(earlier, id, "Applied", None, None, at);
                }
                Asked::Interrupt
            }
        }
    }

    /// The turn of the first message begins: it is claimed for good.
    pub fn claim(&mut self, turn: i64, at: &str) -> Option<InboxMessage> {
        let (placement, message) = self.waiting.pop_first()?;
        self.tell(placement, message.id.clone(), "Claimed", None, Some(turn), at);
        Some(message)
    }

    /// The agent answered a steering message. `None`: it never did.
    pub fn steered(&mut self, placement: i64, taken: Option<bool>, turn: i64, at: &str) {
        let Some(id) = self.steering.remove(&placement) else { return };
        match taken {
            Some(true) => self.tell(placement, id, "Steered", None, Some(turn), at),
            Some(false) => self.tell(placement, id, "Rejected", Some("NotDelivered"), None, at),
            None => self.tell(placement, id, "Rejected", Some("Unconfirmed"), None, at),
        }
    }

    /// The turn is over, and with it the interruption that asked for that.
    pub fn turn_over(&mut self, at: &str) {
        if let Some((placement, id)) = self.interrupting.take() {
            self.tell(placement, id, "Applied", None, None, at);
        }
    }

    /// True while an interruption waits for the turn's end.
    pub fn is_interrupting(&self) -> bool {
        self.interrupting.is_some()
    }

    /// The operator lists these placements; what became of others is stored with it.
    pub fn list(&mut self, placements: &[i64]) {
        self.told.retain(|placement, _| placements.contains(placement));
    }

    /// No further message comes.
    pub fn close(&mut self) {
        self.closed = true;
    }

    /// True once no further message comes and none waits.
    pub fn is_done(&self) -> bool {
        self.closed && self.waiting.is_empty()
    }

    /// True when no message waits.
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// What became of messages, by placement.
    pub fn told(&self) -> Vec<MessageOutcome> {
        self.told.values().cloned().collect()
    }

    fn knows(&self, placement: i64) -> bool {
        self.waiting.contains_key(&placement)
            || self.steering.contains_key(&placement)
            || self.told.contains_key(&placement)
            || self.interrupting.as_ref().is_some_and(|(interrupting, _)| *interrupting == placement)
    }

    fn park(&mut self, at: &str) {
        for (placement, message) in std::mem::take(&mut self.waiting) {
            self.tell(placement, message.id, "Parked", None, None, at);
        }
    }

    fn tell(&mut self, placement: i64, id: String, outcome: &str, code: Option<&str>, turn: Option<i64>, at: &str) {
        let code = code.map(str::to_owned);
        self.told.insert(
            placement,
            MessageOutcome { id, placement, outcome: outcome.to_owned(), code, turn, at: at.to_owned() },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(placement: i64, delivery: Delivery) -> InboxMessage {
        InboxMessage { id: format!("m{placement}"), placement, delivery, content: vec![] }
    }

    fn outcomes(inbox: &Inbox) -> String {
        let told = inbox.told();
        let words = told.iter().map(|told| match &told.code {
            Some(code) => format!("{}:{}/{code}", told.id, told.outcome),
            None => format!("{}:{}", told.id, told.outcome),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn c37_messages_are_claimed_by_placement_whatever_order_they_come_in() {
        let mut inbox = Inbox::default();
        for placement in [3, 1, 2, 1] {
            assert_eq!(inbox.deliver(message(placement, Delivery::Queue), Turn::None, "t"), Asked::Nothing);
        }
        let claimed: Vec<_> = (1..=3).map(|turn| inbox.claim(turn, "t").unwrap().placement).collect();
        assert_eq!(claimed, [1, 2, 3]);
        inbox.deliver(message(2, Delivery::Queue), Turn::None, "t");
        assert!(inbox.claim(4, "t").is_none(), "R1: what was claimed is never claimed again");
    }

    #[test]
    fn c38_a_steer_goes_into_a_running_turn_or_is_rejected() {
        let mut inbox = Inbox::default();
        for (placement, turn) in [(1, Turn::None), (2, Turn::Recorded), (6, Turn::Answered)] {
            assert_eq!(inbox.deliver(message(placement, Delivery::Steer), turn, "t"), Asked::Nothing);
        }
        for placement in [3, 4, 5] {
            let asked = inbox.deliver(message(placement, Delivery::Steer), Turn::Running, "t");
            assert!(matches!(asked, Asked::Steer(_)), "{asked:?}");
        }
        inbox.steered(3, Some(true), 1, "t");
        inbox.steered(4, Some(false), 1, "t");
        inbox.steered(5, None, 1, "t");
        inbox.steered(5, Some(true), 1, "t");
        assert_eq!(
            outcomes(&inbox),
            "m1:Rejected/NotDelivered m2:Rejected/NotDelivered m3:Steered m4:Rejected/NotDelivered m5:Rejected/Unconfirmed \
             m6:Rejected/NotDelivered"
        );
        assert!(inbox.is_empty(), "it never becomes a turn of its own");
    }

    #[test]
    fn c42_an_interruption_parks_what_waits_and_is_applied_with_the_end_of_the_turn() {
        let mut inbox = Inbox::default();
        for placement in [1, 2, 3] {
            inbox.deliver(message(placement, Delivery::Queue), Turn::None, "t");
        }
        inbox.claim(1, "t");
        assert_eq!(inbox.deliver(message(4, Delivery::Interrupt), Turn::Running, "t"), Asked::Interrupt);
        assert_eq!(outcomes(&inbox), "m1:Claimed m2:Parked m3:Parked");
        assert!(inbox.is_interrupting() && inbox.is_empty());
        assert_eq!(inbox.deliver(message(4, Delivery::Interrupt), Turn::Running, "t"), Asked::Nothing, "a repeat");
        let late = inbox.deliver(message(5, Delivery::Steer), Turn::Running, "t");
        assert_eq!(late, Asked::Nothing, "the turn is ending");
        inbox.turn_over("t");
        assert_eq!(outcomes(&inbox), "m1:Claimed m2:Parked m3:Parked m4:Applied m5:Rejected/NotDelivered");
        assert_eq!(inbox.deliver(message(6, Delivery::Interrupt), Turn::None, "t"), Asked::Nothing);
        assert!(outcomes(&inbox).ends_with("m6:Applied"));
        assert_eq!(inbox.deliver(message(7, Delivery::Interrupt), Turn::Answered, "t"), Asked::Nothing);
        assert!(outcomes(&inbox).ends_with("m7:Applied"), "R16: it does not wait for the session to be kept");
    }

    #[test]
    fn what_is_listed_no_more_is_forgotten_and_what_waits_is_not() {
        let mut inbox = Inbox::default();
        for placement in [1, 2, 3] {
            inbox.deliver(message(placement, Delivery::Queue), Turn::None, "t");
        }
        inbox.claim(1, "t");
        inbox.list(&[2]);
        assert_eq!(outcomes(&inbox), "");
        inbox.close();
        assert!(!inbox.is_done());
        inbox.claim(2, "t");
        inbox.claim(3, "t");
        assert!(inbox.is_done());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Deliver(i64),
        Claim,
        TurnOver,
        Steered(i64, Option<bool>),
    }

    fn step() -> impl Strategy<Value = Step> {
        prop_oneof![
            4 => (1_i64..24).prop_map(Step::Deliver),
            2 => Just(Step::Claim),
            2 => Just(Step::TurnOver),
            1 => ((1_i64..24), prop::option::of(any::<bool>())).prop_map(|(at, taken)| Step::Steered(at, taken)),
        ]
    }

    proptest! {
        /// R11: whatever comes in whatever order and however often, each message has at most one outcome, no message is
        /// claimed twice, and an outcome never changes.
        #[test]
        fn r11_every_message_has_one_outcome_and_keeps_it(steps in prop::collection::vec(step(), 0..80)) {
            let mut inbox = Inbox::default();
            let (mut turn, mut turns) = (Turn::None, 0);
            let mut seen: BTreeMap<i64, MessageOutcome> = BTreeMap::new();
            let mut claimed = Vec::new();
            for step in steps {
                match step {
                    Step::Deliver(placement) => {
                        let delivery = match placement % 5 {
                            0 => Delivery::Interrupt,
                            1 => Delivery::Steer,
                            _ => Delivery::Queue,
                        };
                        let _ = inbox.deliver(message(placement, delivery), turn, "t");
                    }
                    Step::Claim if turn == Turn::None => {
                        turns += 1;
                        if let Some(message) = inbox.claim(turns, "t") {
                            prop_assert!(!claimed.contains(&message.placement));
                            claimed.push(message.placement);
                            turn = Turn::Running;
                        }
                    }
                    Step::Claim => {}
                    Step::TurnOver => {
                        inbox.turn_over("t");
                        turn = Turn::None;
                        prop_assert!(!inbox.is_interrupting());
                    }
                    Step::Steered(placement, taken) => inbox.steered(placement, taken, turns, "t"),
                }
                for told in inbox.told() {
                    let first = seen.entry(told.placement).or_insert_with(|| told.clone());
                    prop_assert_eq!(&*first, &told);
                }
            }
        }
    }
}
