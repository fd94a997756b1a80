//! Objects that may not decode (pitfall C1): written under another schema, by an older or a newer version. One of them
//! stops neither a list nor a watch, is reported by field, and what can be read of it still counts.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::{Resource, api::ObjectMeta};
use serde::{
    Deserialize, Deserializer,
    de::{DeserializeOwned, Error as _},
};
use serde_json::{Map, Value, json};
use std::borrow::Cow;
use subagent_crds::{SubagentRun, SubagentRunSpec, SubagentRunStatus, conditions, run_status::Lineage};

/// Longest text of how something does not decode: it may quote the value.
const MAX_HOW: usize = 256;

/// An object, or what is known of one that does not decode.
#[derive(Clone, Debug)]
pub struct Guarded<K>(pub Result<K, Undecodable>);

/// An object that does not decode.
#[derive(Clone, Debug)]
pub struct Undecodable {
    /// Its metadata.
    pub metadata: ObjectMeta,
    /// The field and what is wrong with it.
    pub how: String,
    /// All of it.
    object: Value,
}

impl<'de, K: DeserializeOwned> Deserialize<'de> for Guarded<K> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let object = Value::deserialize(deserializer)?;
        let error = match serde_path_to_error::deserialize(&object) {
            Ok(decoded) => return Ok(Self(Ok(decoded))),
            Err(error) => error,
        };
        let metadata = ObjectMeta::deserialize(&object["metadata"]).map_err(D::Error::custom)?;
        let how = conditions::cut(&format!("{}: {}", error.path(), error.inner()), MAX_HOW);
        Ok(Self(Err(Undecodable { metadata, how, object })))
    }
}

impl<K: Resource> Resource for Guarded<K> {
    type DynamicType = K::DynamicType;
    type Scope = K::Scope;

    fn kind(dt: &K::DynamicType) -> Cow<'_, str> {
        K::kind(dt)
    }

    fn group(dt: &K::DynamicType) -> Cow<'_, str> {
        K::group(dt)
    }

    fn version(dt: &K::DynamicType) -> Cow<'_, str> {
        K::version(dt)
    }

    fn plural(dt: &K::DynamicType) -> Cow<'_, str> {
        K::plural(dt)
    }

    fn meta(&self) -> &ObjectMeta {
        self.0.as_ref().map_or_else(|undecodable| &undecodable.metadata, K::meta)
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        self.0.as_mut().map_or_else(|undecodable| &mut undecodable.metadata, K::meta_mut)
    }
}

impl Undecodable {
    /// What can be read of a run, for stopping it and waiting for its end: its metadata, `spec.cancel`, and every field of
    /// the status that decodes by itself. What cannot be read is absent, so a run without a readable end is a live one.
    pub fn run(&self) -> SubagentRun {
        let mut run = SubagentRun::new("", SubagentRunSpec::default());
        run.metadata = self.metadata.clone();
        run.spec.cancel = self.object["spec"]["cancel"] == true;
        let Some(stored) = self.object["status"].as_object() else { return run };
        let decodes = |field: &(String, Value)| SubagentRunStatus::deserialize(json!({&field.0: &field.1})).is_ok();
        let fields = stored.iter().map(|(name, value)| (name.clone(), readable(name, value)));
        let fields: Map<String, Value> = fields.filter(decodes).collect();
        let mut status = SubagentRunStatus::deserialize(Value::Object(fields)).unwrap_or_default();
        let lineage = status.lineage.take();
        status.lineage =
            lineage.or_else(|| loose_lineage(&self.object["status"]["lineage"], self.metadata.uid.as_deref()));
        run.status = Some(status);
        run
    }
}

/// A field's value, of the conditions those that decode.
fn readable(name: &str, value: &Value) -> Value {
    match value {
        Value::Array(all) if name == "conditions" => {
            all.iter().filter(|one| Condition::deserialize(*one).is_ok()).cloned().collect()
        }
        _ => value.clone(),
    }
}

/// Whom a run is below, by every UID of its lineage that can be read.
fn loose_lineage(stored: &Value, own: Option<&str>) -> Option<Lineage> {
    let ancestors = stored["ancestors"].as_array().into_iter().flatten();
    let above = [&stored["rootUID"], &stored["parentUID"]].into_iter().chain(ancestors);
    let above = above.filter_map(Value::as_str).filter(|uid| Some(*uid) != own);
    let root_uid = stored["rootUID"].as_str()?.to_owned();
    // Depth orders only who is told first.
    Some(Lineage { depth: 1, parent_uid: None, root_uid, ancestors: above.map(str::to_owned).collect() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use subagent_crds::Phase;

    fn stored(spec: Value, status: Value) -> Undecodable {
        let run = json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "SubagentRun",
            "metadata": {"name": "r", "namespace": "n", "uid": "own", "finalizers": ["f"]},
            "spec": spec, "status": status,
        });
        let guarded: Guarded<SubagentRun> = serde_json::from_value(run).expect("guarded");
        guarded.0.expect_err("it does not decode")
    }

    fn whole_status() -> Value {
        json!({
            "phase": "Completed", "podUID": "pod", "attempt": 2, "finishedAt": "2026-01-01T00:00:00Z",
            "conditions": [
                {"type": "Stopped", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
                {"type": "Started", "status": "True", "reason": "X", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"},
            ],
            "lineage": {"depth": 3, "parentUID": "b", "rootUID": "a", "ancestors": ["a", "b"]},
        })
    }

    fn spec() -> Value {
        json!({"providerRef": {"name": "p"}, "description": "d", "cancel": true})
    }

    #[test]
    fn c1_what_decodes_is_itself() {
        let run = json!({"metadata": {"name": "r"}, "spec": spec(), "status": whole_status()});
        let Guarded(run) = serde_json::from_value::<Guarded<SubagentRun>>(run).expect("guarded");
        assert_eq!(run.expect("it decodes").metadata.name.as_deref(), Some("r"));
    }

    /// Whatever is wrong elsewhere, what a stop needs is read.
    #[rstest]
    #[case::spec("/spec/description", json!(5), "spec.description: invalid type")]
    #[case::a_new_word("/spec/interruptionPolicy", json!("Later"), "spec.interruptionPolicy: unknown variant")]
    #[case::a_time("/status/startedAt", json!("2026-01-01T00:00:00+99:99"), "status.startedAt: ")]
    #[case::another_condition("/status/conditions/1/status", json!(true), "status.conditions[1].status: invalid type")]
    #[case::usage("/status/usage", json!(7), "status.usage: invalid type")]
    #[case::depth("/status/lineage/depth", json!("3"), "status.lineage.depth: invalid type")]
    fn c1_the_field_is_named_and_the_rest_is_read(#[case] at: &str, #[case] value: Value, #[case] how: &str) {
        let mut run = json!({"spec": spec(), "status": whole_status()});
        run["spec"]["interruptionPolicy"] = json!("Fail");
        run["status"]["usage"] = json!({});
        run["status"]["startedAt"] = json!("2026-01-01T00:00:00Z");
        *run.pointer_mut(at).expect("a field") = value;
        let undecodable = stored(run["spec"].clone(), run["status"].clone());
        assert!(undecodable.how.starts_with(how), "{}", undecodable.how);
        let run = undecodable.run();
        assert_eq!((run.metadata.name.as_deref(), run.metadata.finalizers), (Some("r"), Some(vec!["f".into()])));
        assert!(run.spec.cancel);
        let status = run.status.expect("a status");
        assert_eq!(
            (status.phase, status.pod_uid.as_deref(), status.attempt),
            (Some(Phase::Completed), Some("pod"), Some(2))
        );
        assert!(conditions::is_true(&status.conditions, conditions::STOPPED));
        let lineage = status.lineage.expect("a lineage");
        assert_eq!(lineage.root_uid, "a");
        assert!(["a", "b"].iter().all(|uid| lineage.ancestors.iter().any(|one| one == uid)), "{lineage:?}");
    }

    /// What cannot be read is never taken for an end.
    #[rstest]
    #[case::phase("/phase", json!("Paused"))]
    #[case::phase_of_another_type("/phase", json!(1))]
    #[case::stopped("/conditions/0/status", json!(true))]
    #[case::conditions("/conditions", json!({}))]
    fn c1_an_end_that_cannot_be_read_is_none(#[case] at: &str, #[case] value: Value) {
        let mut status = whole_status();
        *status.pointer_mut(at).expect("a field") = value;
        let status = stored(spec(), status).run().status.expect("a status");
        let is_over = status.phase.is_some_and(Phase::is_terminal);
        assert!(!(is_over && conditions::is_true(&status.conditions, conditions::STOPPED)), "{status:?}");
    }

    #[rstest]
    #[case(json!({"spec": 5}))]
    #[case(json!({"spec": null, "status": null}))]
    #[case(json!({"spec": {"cancel": "yes"}, "status": []}))]
    #[case(json!({"status": {"lineage": "none"}}))]
    fn c1_nothing_readable_is_nothing_said(#[case] parts: Value) {
        let run = stored(parts["spec"].clone(), parts["status"].clone()).run();
        let status = run.status.unwrap_or_default();
        assert_eq!((run.spec.cancel, status), (false, SubagentRunStatus::default()));
    }

    #[test]
    fn c1_a_root_is_not_below_itself() {
        let mut status = whole_status();
        status["lineage"] = json!({"depth": "1", "rootUID": "own"});
        let lineage = stored(spec(), status).run().status.and_then(|status| status.lineage).expect("a lineage");
        assert_eq!(lineage.ancestors, Vec::<String>::new());
    }

    #[test]
    fn c1_a_long_value_is_not_quoted_whole() {
        let undecodable = stored(json!({"providerRef": "x".repeat(5000)}), json!({}));
        assert!(undecodable.how.len() <= MAX_HOW, "{}", undecodable.how.len());
    }
}
