//! What a worker is told to do, from the live run and the provider's revision. Pure.

use crate::provider::for_worker;
use subagent_crds::{SubagentProviderSpec, SubagentRun, content, run::Activation};
use subagent_link::{
    Assignment, ContentBlock, ContentDigest, Continuation, ContinuedSession, Deadlines, PROMPT_FILE, Prompt,
};

/// A run that gives no assignment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum AssignmentError {
    #[error("the run has no prompt")]
    NoPrompt,
    #[error("the provider's revision names no transport this version speaks")]
    NoTransport,
}

/// Builds the assignment. `max_result_bytes` bounds what the worker may report.
pub(super) fn build(
    run: &SubagentRun,
    provider: &SubagentProviderSpec,
    max_result_bytes: i64,
) -> Result<Assignment, AssignmentError> {
    let prompt = match (&run.spec.prompt, &run.spec.activation) {
        (Some(asked), _) => Some(prompt(asked)?),
        (None, Some(_)) => None,
        (None, None) => return Err(AssignmentError::NoPrompt),
    };
    let transport = for_worker::transport(provider).ok_or(AssignmentError::NoTransport)?;
    let effective = run.status.as_ref().and_then(|status| status.effective.as_ref());
    Ok(Assignment {
        prompt,
        continuation: run.spec.activation.as_ref().map(|activation| continuation(activation, provider)),
        persona: run.spec.persona.clone(),
        model: run.spec.agent_options.as_ref().and_then(|options| options.model.clone()),
        transport,
        stop: for_worker::stop(provider),
        deadlines: Deadlines {
            active_seconds: effective.and_then(|effective| effective.active_deadline_seconds),
            idle_seconds: effective.and_then(|effective| effective.idle_deadline_seconds),
        },
        max_result_bytes,
        uploads: true,
    })
}

fn continuation(activation: &Activation, provider: &SubagentProviderSpec) -> Continuation {
    let state = provider.session_state.as_ref();
    Continuation {
        epoch: activation.epoch,
        session: activation.session.as_ref().map(|session| ContinuedSession {
            id: session.id.clone(),
            checkpoint: ContentDigest { sha256: session.checkpoint.digest.clone(), size: session.checkpoint.size },
            completed_turns: session.completed_turns,
        }),
        state_paths: state.map(|state| state.paths.clone()).unwrap_or_default(),
        max_state_bytes: state.map_or(0, |state| state.max_bytes),
    }
}

fn prompt(prompt: &content::Prompt) -> Result<Prompt, AssignmentError> {
    if prompt.config_map_key_ref.is_some() {
        // The kubelet mounts it; the gateway never reads a tenant's ConfigMap.
        return Ok(Prompt::File { path: PROMPT_FILE.to_owned() });
    }
    let text = prompt.text.iter().map(|text| ContentBlock::Text { text: text.clone() });
    let blocks: Vec<_> = text.chain(prompt.content.iter().flatten().filter_map(block)).collect();
    if blocks.is_empty() { Err(AssignmentError::NoPrompt) } else { Ok(Prompt::Inline { content: blocks }) }
}

fn block(block: &content::ContentBlock) -> Option<ContentBlock> {
    if let Some(text) = &block.text {
        return Some(ContentBlock::Text { text: text.clone() });
    }
    if let Some(link) = &block.resource_link {
        return Some(ContentBlock::ResourceLink { uri: link.uri.clone(), name: link.name.clone() });
    }
    let image = block.image.as_ref()?;
    Some(ContentBlock::Image { data: image.data.clone(), mime_type: image.mime_type.clone() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};
    use subagent_link::{AcpTransport, PermissionMode, StopGraces};

    fn run(prompt: Value) -> SubagentRun {
        serde_json::from_value(json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun", "metadata": {"name": "r"},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "prompt": prompt},
            "status": {"effective": {
                "startDeadlineSeconds": 600, "activeDeadlineSeconds": 90, "ttlSecondsAfterFinished": 1, "maxAttempts": 1,
            }},
        }))
        .unwrap()
    }

    fn provider(transport: Value) -> SubagentProviderSpec {
        serde_json::from_value(json!({
            "transport": transport, "template": {}, "stop": {"cancelGraceSeconds": 1, "eofGraceSeconds": 2},
        }))
        .unwrap()
    }

    #[rstest]
    #[case::text(json!({"text": "hi"}), Prompt::Inline { content: vec![ContentBlock::Text { text: "hi".into() }] })]
    #[case::content(
        json!({"content": [
            {"text": "a"},
            {"resourceLink": {"uri": "file:///x", "name": "x"}},
            {"image": {"data": "AA==", "mimeType": "image/png"}},
        ]}),
        Prompt::Inline { content: vec![
            ContentBlock::Text { text: "a".into() },
            ContentBlock::ResourceLink { uri: "file:///x".into(), name: "x".into() },
            ContentBlock::Image { data: "AA==".into(), mime_type: "image/png".into() },
        ]})]
    #[case::file(json!({"configMapKeyRef": {"name": "c", "key": "k"}}), Prompt::File { path: PROMPT_FILE.into() })]
    fn a_prompt_becomes_blocks_or_a_file(#[case] prompt: Value, #[case] expected: Prompt) {
        let assignment = build(&run(prompt), &provider(json!({"acp": {}})), 7).unwrap();
        assert_eq!(assignment.prompt, Some(expected));
        assert_eq!((assignment.max_result_bytes, assignment.uploads), (7, true));
    }

    #[test]
    fn c2_transport_and_graces_come_from_the_revision_and_deadlines_from_the_frozen_status() {
        let transport = json!({"acp": {"permission": {"mode": "Allow"}, "authMethod": "key", "sessionMode": "auto"}});
        let assignment = build(&run(json!({"text": "hi"})), &provider(transport), 7).unwrap();
        assert_eq!(
            assignment.transport,
            AcpTransport { permission: PermissionMode::Allow, auth_method: "key".into(), session_mode: "auto".into() }
        );
        assert_eq!(
            assignment.stop,
            StopGraces { cancel_grace_seconds: 1, eof_grace_seconds: 2, term_grace_seconds: 3 }
        );
        assert_eq!(assignment.deadlines, Deadlines { active_seconds: Some(90), idle_seconds: None });
    }

    #[test]
    fn what_cannot_be_assigned_is_said() {
        let acp = provider(json!({"acp": {}}));
        assert_eq!(build(&run(json!({})), &acp, 7), Err(AssignmentError::NoPrompt));
        let none = provider(json!({}));
        assert_eq!(build(&run(json!({"text": "hi"})), &none, 7), Err(AssignmentError::NoTransport));
    }
}
