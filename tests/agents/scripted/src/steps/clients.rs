//! What an agent asks its client.

use serde_json::{Value, json};

use super::{Ending, Run};
use crate::script::Permission;
use crate::wire::Outcome;

impl Run<'_> {
    /// Asks for permission and waits for every answer, whatever happens to the turn meanwhile: there are agents that
    /// stop for nothing but the answer, and a client has to give one also when it cancels.
    pub(super) fn permission(&mut self, permission: &Permission) {
        let options: Vec<_> = permission
            .options
            .iter()
            .map(|(kind, id)| json!({"optionId": id, "name": format!("{kind} ({id})"), "kind": kind}))
            .collect();
        let mut open = Vec::new();
        for _ in 0..permission.count {
            let id = self.next_tool();
            let mut call = json!({"toolCallId": id, "title": permission.title, "status": "pending"});
            if permission.kind {
                call["kind"] = json!("execute");
            }
            if permission.input {
                call["rawInput"] = json!({"command": permission.title});
            }
            let mut update = call.clone();
            update["sessionUpdate"] = json!("tool_call");
            self.update(update);
            let params = json!({"sessionId": self.session, "toolCall": call, "options": options});
            open.push((id, self.agent.wire.request("session/request_permission", params)));
        }
        for (id, answer) in open {
            let Ok(outcome) = answer.recv() else { continue };
            let (text, allowed) = read_answer(&outcome, &permission.options);
            self.agent.reporter.report("permission", json!({"text": text}));
            self.tool_status(&id, if allowed { "completed" } else { "failed" });
            self.fact(&format!("permission: {text}"));
        }
    }

    pub(super) fn unknown_method(&mut self, method: &str, params: &str) -> Result<(), Ending> {
        let params: Value = match params {
            "" => json!({"sessionId": self.session}),
            params => serde_json::from_str(params).map_err(super::failed)?,
        };
        let answer = self.agent.wire.request(method, params);
        let text = match self.wait_for(move || answer.recv())? {
            Ok(Ok(result)) => format!("result {result}"),
            Ok(Err(error)) => format!("error {}", error.code),
            Err(_) => "nothing".into(),
        };
        self.fact(&format!("{method}: {text}"));
        Ok(())
    }
}

/// What the client chose, and whether that lets the tool run.
fn read_answer(outcome: &Outcome, options: &[(String, String)]) -> (String, bool) {
    let result = match outcome {
        Ok(result) => result,
        Err(error) => return (format!("error {}", error.code), false),
    };
    match result["outcome"]["outcome"].as_str() {
        Some("selected") => {
            let id = result["outcome"]["optionId"].as_str().unwrap_or_default();
            match options.iter().find(|(_, known)| known == id) {
                Some((kind, _)) => (format!("selected {id}"), kind.starts_with("allow")),
                None => (format!("selected {id}, which was not offered"), false),
            }
        }
        Some("cancelled") => ("cancelled".into(), false),
        _ => (format!("no outcome in {result}"), false),
    }
}
