//! Permission requests, answered by policy (contract c19, c55). Pure.

use super::update::{ToolCall, parse_tool_call};
use agent_client_protocol::v1::schema::{
    PermissionOptionKind, RequestPermissionOutcome, RequestPermissionResponse, SelectedPermissionOutcome,
};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use subagent_link::PermissionMode;

/// Options that are looked at; agents offer two to five.
const MAX_OPTIONS: usize = 64;

/// A request for permission.
#[derive(Debug)]
pub struct PermissionRequest {
    /// The session it comes from.
    pub session_id: String,
    /// What is to be permitted.
    pub call: ToolCall,
    /// Id and kind of each option of a known kind, in the agent's order.
    options: Vec<(String, PermissionOptionKind)>,
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Allowed by this option.
    Allowed(String),
    /// Rejected by this option.
    Rejected(String),
    /// No fitting option, or the turn is being cancelled.
    Cancelled,
}

impl PermissionRequest {
    /// Reads the parameters; what cannot be read is absent, and options of an unknown kind are not there.
    pub fn parse(params: &RawValue) -> Self {
        #[derive(Default, Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        struct Params<'a> {
            session_id: Value,
            #[serde(borrow)]
            tool_call: Option<&'a RawValue>,
            #[serde(borrow)]
            options: Option<&'a RawValue>,
        }
        #[derive(Deserialize)]
        #[serde(rename_all = "camelCase")]
        struct Offered {
            option_id: String,
            kind: PermissionOptionKind,
        }
        let params: Params<'_> = serde_json::from_str(params.get()).unwrap_or_default();
        let offered: Vec<&RawValue> =
            params.options.and_then(|options| serde_json::from_str(options.get()).ok()).unwrap_or_default();
        let options = offered
            .into_iter()
            .take(MAX_OPTIONS)
            .filter_map(|option| serde_json::from_str::<Offered>(option.get()).ok())
            .map(|option| (option.option_id, option.kind))
            .collect();
        Self {
            session_id: params.session_id.as_str().unwrap_or_default().to_owned(),
            call: params.tool_call.map(parse_tool_call).unwrap_or_default(),
            options,
        }
    }

    /// Decides by the options' kinds, whatever their order (c55).
    pub fn decide(&self, mode: PermissionMode) -> Decision {
        let find = |wanted: [PermissionOptionKind; 2]| {
            wanted
                .iter()
                .find_map(|kind| self.options.iter().find(|(_, offered)| offered == kind))
                .map(|(id, _)| id.clone())
        };
        match mode {
            PermissionMode::Allow => find([PermissionOptionKind::AllowOnce, PermissionOptionKind::AllowAlways])
                .map_or(Decision::Cancelled, Decision::Allowed),
            PermissionMode::Reject => find([PermissionOptionKind::RejectOnce, PermissionOptionKind::RejectAlways])
                .map_or(Decision::Cancelled, Decision::Rejected),
        }
    }
}

impl Decision {
    /// The answer in the protocol's form.
    pub fn response(&self) -> RequestPermissionResponse {
        RequestPermissionResponse::new(match self {
            Self::Allowed(id) | Self::Rejected(id) => {
                RequestPermissionOutcome::Selected(SelectedPermissionOutcome::new(id.clone()))
            }
            Self::Cancelled => RequestPermissionOutcome::Cancelled,
        })
    }

    /// How the transcript says it.
    pub fn words(&self) -> &'static str {
        match self {
            Self::Allowed(_) => "allowed",
            Self::Rejected(_) => "rejected",
            Self::Cancelled => "cancelled",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{json, value::to_raw_value};

    fn request(kinds: &[&str]) -> PermissionRequest {
        let options: Vec<Value> =
            kinds.iter().map(|kind| json!({"optionId": format!("id-{kind}"), "name": "n", "kind": kind})).collect();
        PermissionRequest::parse(&to_raw_value(&json!({"sessionId": "s", "options": options, "toolCall": {}})).unwrap())
    }

    #[rstest]
    #[case(PermissionMode::Reject, &["allow_once", "reject_once"], "rejected id-reject_once")]
    #[case(PermissionMode::Reject, &["reject_always", "allow_always", "reject_once"], "rejected id-reject_once")]
    #[case(PermissionMode::Reject, &["reject_always", "allow_once"], "rejected id-reject_always")]
    #[case(PermissionMode::Reject, &["allow_once", "allow_always"], "cancelled")]
    #[case(PermissionMode::Reject, &[], "cancelled")]
    #[case(PermissionMode::Allow, &["allow_always", "allow_once", "reject_once"], "allowed id-allow_once")]
    #[case(PermissionMode::Allow, &["reject_once", "allow_always"], "allowed id-allow_always")]
    #[case(PermissionMode::Allow, &["reject_once"], "cancelled")]
    #[case(PermissionMode::Allow, &["allow_everything_forever"], "cancelled")]
    fn c55_decisions_go_by_kind_and_not_by_position(
        #[case] mode: PermissionMode,
        #[case] kinds: &[&str],
        #[case] want: &str,
    ) {
        let decision = request(kinds).decide(mode);
        let id = match &decision {
            Decision::Allowed(id) | Decision::Rejected(id) => format!(" {id}"),
            Decision::Cancelled => String::new(),
        };
        assert_eq!(format!("{}{id}", decision.words()), want);
    }

    #[test]
    fn answers_have_the_protocols_form() {
        let form = |decision: Decision| serde_json::to_value(decision.response()).unwrap();
        assert_eq!(form(Decision::Cancelled), json!({"outcome": {"outcome": "cancelled"}}));
        assert_eq!(form(Decision::Rejected("r".into())), json!({"outcome": {"outcome": "selected", "optionId": "r"}}));
    }

    #[test]
    fn a_request_that_cannot_be_read_offers_nothing() {
        let request = PermissionRequest::parse(&to_raw_value(&json!(["what"])).unwrap());
        assert_eq!(request.decide(PermissionMode::Allow), Decision::Cancelled);
    }
}
