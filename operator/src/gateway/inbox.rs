//! The inbox of a run on its way to the worker: what a live run lists, against what this connection was told. Pure.
//!
//! The run is the one place messages wait in: an activation's spec lists them, a one-shot run's status those of its spec that are
//! for the worker. A connection that begins tells everything again, and the worker drops what it knows.

use crate::run::steers;
use std::collections::BTreeSet;
use subagent_crds::{
    SubagentRun,
    message::{self, PlacedMessage},
    run::Inbox as State,
};
use subagent_link::{ContentBlock, Delivery, GatewayMessage, InboxMessage};

/// What one connection was told.
#[derive(Debug, Default)]
pub(super) struct Told {
    listed: BTreeSet<i64>,
    delivered: BTreeSet<i64>,
    closed: bool,
}

impl Told {
    /// What is to be told now, in this order: what is listed no more, what is new, and the end.
    pub fn next(&mut self, run: &SubagentRun, attempt: i32) -> Vec<GatewayMessage> {
        let activation = run.spec.activation.as_ref();
        let steers = steers::placed(run);
        let messages = if activation.is_some() { &run.spec.messages } else { &steers };
        let listed: BTreeSet<i64> = messages.iter().map(|message| message.placement).collect();
        let mut next = Vec::new();
        if listed != self.listed {
            next.push(GatewayMessage::Inbox { placements: listed.iter().copied().collect() });
        }
        let report = run.status.as_ref().and_then(|status| status.report.as_ref());
        let settled: BTreeSet<i64> = report
            .filter(|report| report.attempt == attempt)
            .map(|report| report.messages.iter().map(|told| told.placement).collect())
            .unwrap_or_default();
        let mut fresh: Vec<&PlacedMessage> = messages.iter().collect();
        fresh.retain(|message| !settled.contains(&message.placement) && !self.delivered.contains(&message.placement));
        fresh.sort_by_key(|message| message.placement);
        self.delivered.retain(|placement| listed.contains(placement));
        for message in fresh {
            self.delivered.insert(message.placement);
            next.push(GatewayMessage::Deliver(Box::new(deliver(message))));
        }
        self.listed = listed;
        if activation.is_some_and(|activation| activation.inbox == State::Closed) && !self.closed {
            self.closed = true;
            next.push(GatewayMessage::Close);
        }
        next
    }
}

fn deliver(message: &PlacedMessage) -> InboxMessage {
    let text = message.text.iter().map(|text| ContentBlock::Text { text: text.clone() });
    let blocks = message.content.iter().flatten().filter_map(|block| {
        if let Some(text) = &block.text {
            return Some(ContentBlock::Text { text: text.clone() });
        }
        let link = block.resource_link.as_ref()?;
        Some(ContentBlock::ResourceLink { uri: link.uri.clone(), name: link.name.clone() })
    });
    InboxMessage {
        id: message.id.clone(),
        placement: message.placement,
        delivery: match message.delivery {
            message::Delivery::Queue => Delivery::Queue,
            message::Delivery::Steer => Delivery::Steer,
            message::Delivery::Interrupt => Delivery::Interrupt,
        },
        content: text.chain(blocks).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn run(placements: &[i64], inbox: &str, told: &[i64]) -> SubagentRun {
        let messages: Vec<Value> =
            placements.iter().map(|at| json!({"id": format!("m{at}"), "placement": at, "text": "t"})).collect();
        let told: Vec<Value> =
            told.iter().map(|at| json!({"id": format!("m{at}"), "placement": at, "outcome": "Claimed"})).collect();
        serde_json::from_value(json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "metadata": {"name": "r"},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "messages": messages,
                "activation": {"subagentRef": {"name": "c", "uid": "u"}, "epoch": 1, "inbox": inbox}},
            "status": {"report": {"podUID": "p", "attempt": 1, "seq": 3, "messages": told}},
        }))
        .unwrap()
    }

    fn words(next: &[GatewayMessage]) -> String {
        let words = next.iter().map(|message| match message {
            GatewayMessage::Inbox { placements } => format!("list{placements:?}"),
            GatewayMessage::Deliver(message) => message.id.clone(),
            GatewayMessage::Close => "close".to_owned(),
            other => format!("{other:?}"),
        });
        words.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn a_connection_is_told_what_waits_once_and_in_order() {
        let mut told = Told::default();
        assert_eq!(words(&told.next(&run(&[2, 1], "Open", &[]), 1)), "list[1, 2] m1 m2");
        assert_eq!(words(&told.next(&run(&[2, 1], "Open", &[1]), 1)), "");
        assert_eq!(words(&told.next(&run(&[2, 3], "Open", &[]), 1)), "list[2, 3] m3");
        assert_eq!(words(&told.next(&run(&[2, 3], "Closed", &[]), 1)), "close");
        assert_eq!(words(&told.next(&run(&[], "Closed", &[]), 1)), "list[]");
    }

    #[test]
    fn r1_a_new_connection_is_told_again_what_has_no_outcome_of_its_own_attempt() {
        let live = run(&[1, 2], "Open", &[1]);
        assert_eq!(words(&Told::default().next(&live, 1)), "list[1, 2] m2");
        assert_eq!(words(&Told::default().next(&live, 2)), "list[1, 2] m1 m2", "another attempt claimed nothing yet");
    }

    /// c38: what the status has not placed, or has turned away, is no agent's.
    #[test]
    fn c38_a_one_shot_run_is_given_what_its_status_has_queued_and_nothing_else() {
        let mut live = run(&[0], "Closed", &[]);
        live.spec.activation = None;
        assert_eq!(words(&Told::default().next(&live, 1)), "");
        for (outcome, expected) in [("Queued", "list[7] m0"), ("Rejected", ""), ("Steered", "")] {
            let noted = json!([{"id": "m0", "placement": 7, "outcome": outcome}]);
            live.status.as_mut().unwrap().messages = serde_json::from_value(noted).unwrap();
            assert_eq!(words(&Told::default().next(&live, 1)), expected, "{outcome}");
        }
    }
}
