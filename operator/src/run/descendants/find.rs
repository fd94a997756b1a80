//! Finds the runs and children below a run or child, live.

use super::{Descendant, Family, are_to_stop, deleting_since};
use crate::{
    api::{self, ReadError},
    context::Context,
    decoding::Guarded,
    run::after_end,
};
use k8s_openapi::jiff::Timestamp;
use kube::{Api, api::ListParams};
use subagent_crds::{Subagent, SubagentRun, names, run::ParentKind, run_status::Lineage};

/// Objects per page: each may carry half a megabyte of prompt or messages, and none of it is kept.
const PAGE: u32 = 50;

impl Family {
    /// Looks at the descendants where they matter: when they are to stop, or when the time to live of the run is over.
    /// Without one to wait for the answer stays true, for nobody is admitted any more; else it is looked again.
    ///
    /// # Errors
    /// When the list fails.
    pub async fn look(&mut self, context: &Context, run: &SubagentRun, now: Timestamp) -> Result<(), ReadError> {
        if !are_to_stop(run) && !after_end::is_outlived(run, now) {
            return Ok(());
        }
        if self.is_done(deleting_since(run).is_some()) {
            return Ok(());
        }
        self.found = Some(below_run(context, run).await?);
        Ok(())
    }
}

/// The descendants of a run, in any depth. One that does not decode is one of them: its pod may run (pitfall C1).
///
/// # Errors
/// When the list fails.
pub async fn below_run(context: &Context, run: &SubagentRun) -> Result<Vec<Descendant>, ReadError> {
    let namespace = run.metadata.namespace.as_deref().unwrap_or_default();
    let uid = run.metadata.uid.as_deref().unwrap_or_default();
    below(context, namespace, uid, run.status.as_ref().and_then(|status| status.lineage.as_ref())).await
}

/// The descendants of what has this UID and this lineage. The activations of a child are not below it: they are itself.
///
/// # Errors
/// When a list fails.
pub async fn below(
    context: &Context,
    namespace: &str,
    uid: &str,
    lineage: Option<&Lineage>,
) -> Result<Vec<Descendant>, ReadError> {
    let Some(root) = lineage.map(|lineage| lineage.root_uid.as_str()) else { return Ok(vec![]) };
    let of_tree = ListParams::default().fields(&format!("{}={root}", names::ROOT_UID_FIELD)).limit(PAGE);
    let runs: Api<Guarded<SubagentRun>> = Api::namespaced(context.client.clone(), namespace);
    let mut found = api::list(&runs, of_tree.clone(), "descendants", |guarded| match guarded.0 {
        Ok(run) if run.spec.activation.as_ref().is_some_and(|own| own.subagent_ref.uid == uid) => None,
        Ok(run) => Descendant::below(uid, &run),
        Err(undecodable) => Descendant::below(uid, &undecodable.run())
            .map(|one| Descendant { undecodable: Some(undecodable.how), ..one }),
    })
    .await?;
    let children: Api<Guarded<Subagent>> = Api::namespaced(context.client.clone(), namespace);
    let below = api::list(&children, of_tree, "children", |guarded| match guarded.0 {
        Ok(child) => Descendant::child_below(uid, &child),
        Err(undecodable) => Descendant::below(uid, &undecodable.run()).map(|one| Descendant {
            kind: ParentKind::Subagent,
            undecodable: Some(undecodable.how),
            ..one
        }),
    });
    found.extend(below.await?);
    Ok(found)
}
