//! Outputs of turns that leave the status: what an activation keeps in ConfigMaps is bounded as the list of its turns is.
//!
//! The ConfigMaps go before the status that does not list the turn any more. So a crash in between loses no name, and the next
//! process removes the same. Those of an older activation go with its run.

use super::apply::Error;
use crate::{
    api::{self, WriteError},
    archive,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{
    Api, Client, ResourceExt,
    api::{DeleteParams, Preconditions},
};
use subagent_crds::{SubagentRun, SubagentStatus, report::TurnOutput, subagent_status::ChildTurn};

/// Names of the ConfigMaps of those turns of the current activation that leave the list.
pub fn leaving(old: &SubagentStatus, new: &SubagentStatus) -> Vec<String> {
    let epoch = old.activation.as_ref().map(|activation| activation.epoch);
    let is_listed = |epoch, turn| new.turns.iter().any(|kept| (kept.epoch, kept.turn) == (epoch, turn));
    let gone = old.turns.iter().filter(|turn| Some(turn.epoch) == epoch && !is_listed(turn.epoch, turn.turn));
    gone.filter_map(ChildTurn::kept).flat_map(config_maps).collect()
}

fn config_maps(output: &TurnOutput) -> Vec<String> {
    let text = output.ref_.as_ref().map(|reference| (reference, output.chunks.unwrap_or(1)));
    let blocks = output.blocks.as_ref().map(|blocks| (&blocks.ref_, blocks.chunks));
    let parts = text.into_iter().chain(blocks);
    parts
        .flat_map(|(reference, chunks)| (1..=chunks).map(|number| archive::result::chunk_name(reference, number)))
        .collect()
}

/// Removes those of them that are there and are the run's.
///
/// # Errors
/// [`Error`] when a call fails; some may be gone then.
pub(super) async fn remove(client: &Client, run: &SubagentRun, names: &[String]) -> Result<(), Error> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &run.namespace().unwrap_or_default());
    let run_uid = run.uid().unwrap_or_default();
    for name in names {
        let found = api::get(&config_maps, name).await?.filter(|found| archive::is_of(found, &run_uid));
        let Some(found) = found else { continue };
        let preconditions = Preconditions { uid: found.uid(), resource_version: None };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        match api::write(format!("deleting ConfigMap {name}"), config_maps.delete(name, &params)).await {
            Ok(_) | Err(WriteError::Gone(_) | WriteError::Conflict(_)) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn status(turns: Value) -> SubagentStatus {
        serde_json::from_value(json!({"activation": {"epoch": 2, "runName": "r"}, "turns": turns})).unwrap()
    }

    #[test]
    fn t5_what_leaves_the_list_is_removed_and_nothing_else() {
        let text = json!({"ref": "t", "chunks": 2, "sha256": "", "size": 9});
        let both = json!({"ref": "u", "chunks": 1, "sha256": "", "size": 9,
            "blocks": {"ref": "b", "chunks": 2, "sha256": "", "size": 9}});
        let blocks = json!({"sha256": "", "size": 0, "blocks": {"ref": "c", "chunks": 1, "sha256": "", "size": 9}});
        let old = status(json!([
            {"epoch": 1, "turn": 9, "output": text},
            {"epoch": 2, "turn": 1},
            {"epoch": 2, "turn": 2, "output": text},
            {"epoch": 2, "turn": 3, "output": both},
            {"epoch": 2, "turn": 4, "besideText": blocks},
            {"epoch": 2, "turn": 5, "output": {"ref": "kept", "chunks": 1, "sha256": "", "size": 9}},
        ]));
        let mut new = old.clone();
        new.turns.drain(..5);
        assert_eq!(leaving(&old, &new), ["t-001", "t-002", "u-001", "b-001", "b-002", "c-001"]);
        assert_eq!(leaving(&old, &old), Vec::<String>::new());
        let ended = SubagentStatus { activation: None, ..old.clone() };
        assert_eq!(leaving(&ended, &new), Vec::<String>::new(), "they go with their run");
    }
}
