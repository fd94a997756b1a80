//! The workspace of a child: one claim for its life, made before its first activation has a run. Pure, but for [`refused`].
//!
//! The status names the claim by its UID before anything can write into it. From then on it is this one or none: a claim that is
//! gone is never made again, and the pod of an activation mounts no other (contract c40).

use super::placing;
use crate::{
    api::{ReadError, WriteError},
    context::Context,
    naming,
    pod::template,
    provider::capabilities::WORKSPACE,
    run::{
        apply::create_with,
        validate::{Verdict, refuse},
    },
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::{ResourceExt, api::PostParams, core::Status};
use serde_json::{Value, json};
use subagent_crds::{Reason, Subagent, SubagentProvider, subagent_status::ChildWorkspace};

/// The claim that the status of a child names.
pub fn stored(child: &Subagent) -> Option<&ChildWorkspace> {
    child.status.as_ref()?.workspace.as_ref()
}

/// Name of the claim of a child.
pub fn name(child: &Subagent) -> String {
    naming::claim(&child.name_any(), &child.uid().unwrap_or_default())
}

/// The claim that a child asks for. As JSON, so that fields newer than our types survive.
pub fn claim(child: &Subagent) -> Option<Value> {
    let template = &child.spec.workspace.as_ref()?.claim_template;
    Some(json!({
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": placing::owned(child, &name(child)),
        "spec": template,
    }))
}

/// What is found under the name of a child's claim that is not stored yet: the child's own, made before a crash.
///
/// # Errors
/// Why it is not, for a person. It is left as it is (pitfall D2).
pub fn own(child: &Subagent, found: &PersistentVolumeClaim) -> Result<ChildWorkspace, String> {
    let named = format!("PersistentVolumeClaim {}", found.name_any());
    let mut owners = found.metadata.owner_references.iter().flatten();
    if !owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == child.metadata.uid.as_ref()) {
        return Err(format!(
            "{named} exists and does not belong to this child, so its workspace is not created; delete that claim if nobody \
             needs it, or create the child under another name"
        ));
    }
    if found.metadata.deletion_timestamp.is_some() {
        return Err(format!("{named} is being deleted; the workspace is created when it is gone"));
    }
    Ok(ChildWorkspace { claim_name: found.name_any(), claim_uid: found.uid().unwrap_or_default() })
}

/// Why what has the name of a child's claim does not hold its files.
pub fn loss(stored: &ChildWorkspace, found: Option<&PersistentVolumeClaim>) -> Option<String> {
    let how = match found {
        None => "is gone",
        Some(found) if found.metadata.uid.as_ref() != Some(&stored.claim_uid) => {
            "is another one: that with the child's files is gone"
        }
        Some(found) if found.metadata.deletion_timestamp.is_some() => "is being deleted",
        Some(_) => return None,
    };
    let claim = &stored.claim_name;
    let seen = format!("PersistentVolumeClaim {claim}, the child's workspace with UID {}, {how}", stored.claim_uid);
    Some(Reason::NotResumable.with_remedy(&seen))
}

/// Whether a provider has a place for a workspace.
///
/// # Errors
/// The refusal.
pub fn capability(provider: &SubagentProvider) -> Result<(), Verdict> {
    let has = provider.status.as_ref().map(|status| status.capabilities.as_slice()).unwrap_or_default();
    if has.iter().any(|known| known == WORKSPACE) {
        return Ok(());
    }
    let name = provider.name_any();
    let why = template::refuses_workspace(&provider.spec.template).map_or_else(String::new, |why| format!(": {why}"));
    let message = format!(
        "SubagentProvider {name} has no capability {WORKSPACE}, which spec.workspace asks for{why}; leave spec.workspace out, \
         or choose a provider whose status.capabilities lists it"
    );
    Err(refuse(Reason::UnsupportedCapability, message))
}

/// Asks the API server, with all its admission, whether it would take the claim of a child. What it says against it, when that
/// will not change. What may pass, or is the matter of others, shows when the claim is created.
///
/// # Errors
/// When it cannot be asked.
pub async fn refused(context: &Context, child: &Subagent) -> Result<Option<String>, ReadError> {
    let Some(claim) = claim(child) else { return Ok(None) };
    let params = PostParams { dry_run: true, ..PostParams::default() };
    let namespace = child.namespace().unwrap_or_default();
    match create_with::<PersistentVolumeClaim>(context, &namespace, claim, &params).await {
        Err(WriteError::Refused { status, .. }) if is_of_template(&status) => Ok(Some(status.message.clone())),
        // What a webhook that does not answer leads to.
        Err(WriteError::Call { source, .. }) if matches!(&*source, kube::Error::Api(status) if status.code == 500) => {
            Ok(None)
        }
        Ok(_) | Err(WriteError::Refused { .. } | WriteError::Gone(_) | WriteError::Conflict(_)) => Ok(None),
        Err(WriteError::Call { what, source }) => Err(ReadError::Call { what, source }),
        Err(WriteError::Timeout(what)) => Err(ReadError::Timeout(what)),
    }
}

/// Whether a refusal is of what a child's template says: of its form, or by a LimitRange, which has no reason of its own, only
/// words. Another 403 may be of the operator's rights, of a quota or of a policy on anything.
fn is_of_template(status: &Status) -> bool {
    let is_limit =
        || ["maximum", "minimum"].iter().any(|bound| status.message.contains(&format!("{bound} storage usage per")));
    matches!(status.code, 400 | 422) || status.code == 403 && is_limit()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        run::plan_tests::{CREATED, merged},
        subagent::plan_tests::{child, provider},
    };
    use rstest::rstest;

    fn asking() -> Subagent {
        let template =
            json!({"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "later": 1});
        child(json!({"spec": {"workspace": {"claimTemplate": template}}}))
    }

    fn found(extra: Value) -> PersistentVolumeClaim {
        let mut made = claim(&asking()).unwrap();
        made["spec"].as_object_mut().unwrap().remove("later");
        serde_json::from_value(merged(merged(made, json!({"metadata": {"uid": "claim-uid"}})), extra)).unwrap()
    }

    #[test]
    fn a_claim_is_its_childs_and_says_what_its_template_says() {
        assert_eq!(claim(&child(json!({}))), None);
        let made = claim(&asking()).unwrap();
        assert_eq!(made["metadata"]["name"], name(&asking()));
        let owner = json!([{"apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "name": "c", "uid": "child-uid", "controller": true}]);
        assert_eq!(made["metadata"]["ownerReferences"], owner);
        assert_eq!(made["spec"]["later"], 1, "a field that these types do not know");
    }

    /// D2: matched by the owner's UID, never by name.
    #[rstest]
    #[case::own(json!({}), Ok("claim-uid"))]
    #[case::of_nobody(json!({"metadata": {"ownerReferences": null}}), Err("does not belong to this child"))]
    #[case::of_an_earlier_child(json!({"metadata": {"ownerReferences": [{"apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent", "name": "c", "uid": "another", "controller": true}]}}), Err("delete that claim if nobody"))]
    #[case::going(json!({"metadata": {"deletionTimestamp": CREATED}}), Err("is being deleted"))]
    fn d2_a_foreign_claim_is_never_adopted(#[case] extra: Value, #[case] expected: Result<&str, &str>) {
        let judged = own(&asking(), &found(extra)).map(|own| own.claim_uid);
        match (judged, expected) {
            (Ok(uid), Ok(expected)) => assert_eq!(uid, expected),
            (Err(why), Err(words)) => assert!(why.contains(words) && why.contains(&name(&asking())), "{why}"),
            other => panic!("{other:?}"),
        }
    }

    /// c40: only the claim with the stored UID holds the child's files.
    #[rstest]
    #[case::there(Some(json!({})), None)]
    #[case::gone(None, Some("is gone"))]
    #[case::made_again(Some(json!({"metadata": {"uid": "another"}})), Some("is another one"))]
    #[case::going(Some(json!({"metadata": {"deletionTimestamp": CREATED}})), Some("is being deleted"))]
    fn c40_a_workspace_is_the_claim_that_was_stored_or_lost(#[case] now: Option<Value>, #[case] words: Option<&str>) {
        let stored = own(&asking(), &found(json!({}))).unwrap();
        let lost = loss(&stored, now.map(found).as_ref());
        match words {
            None => assert_eq!(lost, None),
            Some(words) => {
                let lost = lost.unwrap();
                assert!(
                    lost.contains(words) && lost.contains(&stored.claim_name) && lost.contains("new child"),
                    "{lost}"
                );
            }
        }
    }

    /// c40: what will not change is for the child's author, everything else shows when the claim is created.
    #[rstest]
    #[case::form(422, "PersistentVolumeClaim \"c\" is invalid: spec.accessModes: Unsupported value", true)]
    #[case::bad_request(400, "PersistentVolumeClaim in version \"v1\" cannot be handled", true)]
    #[case::limit(
        403,
        "persistentvolumeclaims \"c\" is forbidden: maximum storage usage per PersistentVolumeClaim is 1Gi, but request is 2Gi",
        true
    )]
    #[case::right(
        403,
        "persistentvolumeclaims is forbidden: User \"o\" cannot create resource \"persistentvolumeclaims\"",
        false
    )]
    #[case::policy(
        403,
        "ValidatingAdmissionPolicy 'team' with binding 'team' denied request: a label is missing",
        false
    )]
    #[case::quota(403, "persistentvolumeclaims \"c\" is forbidden: exceeded quota: q", false)]
    #[case::name(409, "persistentvolumeclaims \"c\" already exists", false)]
    fn c40_only_what_the_template_says_is_refused_for_good(
        #[case] code: u16,
        #[case] message: &str,
        #[case] expected: bool,
    ) {
        let status = Status { code, message: message.into(), ..Status::default() };
        assert_eq!(is_of_template(&status), expected);
    }

    #[test]
    fn c7_a_provider_without_a_place_for_it_is_named_with_the_field() {
        let mount = json!([{"name": "v", "mountPath": "/workspace"}]);
        let template = json!({"spec": {"containers": [{"name": "agent", "volumeMounts": mount}]}});
        let taken = provider(json!({"spec": {"template": template}}));
        let Err(Verdict::Refused(refusal)) = capability(taken.found().unwrap()) else { panic!("a refusal") };
        assert_eq!(refusal.reason, Reason::UnsupportedCapability);
        for words in
            ["SubagentProvider p", WORKSPACE, "containers[agent].volumeMounts[/workspace]", "leave spec.workspace out"]
        {
            assert!(refusal.message.contains(words), "{words}: {}", refusal.message);
        }
        let template = json!({"spec": {"containers": [{"name": "agent", "workingDir": "/"}]}});
        let all = provider(json!({"spec": {"template": template}}));
        let Err(Verdict::Refused(refusal)) = capability(all.found().unwrap()) else { panic!("a refusal") };
        assert!(refusal.message.contains("containers[agent].workingDir is /, "), "{}", refusal.message);
        let free = provider(json!({"status": {"capabilities": [WORKSPACE]}}));
        assert!(capability(free.found().unwrap()).is_ok());
    }
}
