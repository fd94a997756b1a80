//! Who delegates to whom: parent, depth and cap, of runs and of continuable children alike (contract c11 to c15). Pure.

use super::validate::{Refusal, Verdict, WAITING, refuse};
use subagent_crds::{
    Phase, Reason, Subagent, SubagentPhase, SubagentRun, bounds, conditions,
    run::{ParentKind, ParentRef},
    run_status::{Descriptor, Lineage},
};

/// What was found of the parent a run names.
#[derive(Clone, Debug, Default)]
pub enum Parent {
    /// The run names none.
    #[default]
    NotAsked,
    /// No object of that kind and name.
    Missing,
    /// It is there and does not decode; how (pitfall C1).
    Undecodable(String),
    /// The parent, from a live GET.
    Found(Box<SubagentRun>),
    /// The parent, a continuable child, from a live GET.
    Child(Box<Subagent>),
}

/// What counts of a parent, of whatever kind.
struct Known<'a> {
    uid: Option<&'a String>,
    name: &'a str,
    lineage: Option<&'a Lineage>,
    descriptor: Option<&'a Descriptor>,
    /// Why those below it are to stop or not to start.
    stop: Option<&'static str>,
    /// Why it takes no more children.
    closed: Option<String>,
    /// The child whose activation it is.
    activates: Option<&'a str>,
    /// True for a run that is terminal and stopped: a cancel of it has done its work.
    is_over: bool,
}

impl Parent {
    /// What it names as its own parent, if a cancel from there may pass it by: nobody tells a run that is over, and a child at
    /// rest, or about to be, may not be told either.
    pub fn untold(&self) -> Option<&ParentRef> {
        match self {
            Self::Found(run) => {
                let phase = run.status.as_ref().and_then(|status| status.phase);
                run.spec.parent_ref.as_ref().filter(|_| phase.is_some_and(Phase::is_terminal))
            }
            Self::Child(child) => child.spec.parent_ref.as_ref(),
            Self::NotAsked | Self::Missing | Self::Undecodable(_) => None,
        }
    }

    fn known(&self) -> Option<Known<'_>> {
        match self {
            Self::Found(run) => {
                let status = run.status.as_ref();
                Some(Known {
                    uid: run.metadata.uid.as_ref(),
                    name: run.metadata.name.as_deref().unwrap_or_default(),
                    lineage: status.and_then(|status| status.lineage.as_ref()),
                    descriptor: status.and_then(|status| status.descriptor.as_ref()),
                    stop: why_to_stop(run),
                    closed: why_closed(run),
                    activates: run.spec.activation.as_ref().map(|activation| activation.subagent_ref.name.as_str()),
                    is_over: status.is_some_and(|status| {
                        status.phase.is_some_and(Phase::is_terminal)
                            && conditions::is_true(&status.conditions, conditions::STOPPED)
                    }),
                })
            }
            Self::Child(child) => {
                let status = child.status.as_ref();
                let phase = status.and_then(|status| status.phase);
                let is_over = |phase: &SubagentPhase| {
                    matches!(phase, SubagentPhase::Rejected | SubagentPhase::NotResumable | SubagentPhase::Terminating)
                };
                Some(Known {
                    uid: child.metadata.uid.as_ref(),
                    name: child.metadata.name.as_deref().unwrap_or_default(),
                    lineage: status.and_then(|status| status.lineage.as_ref()),
                    descriptor: status.and_then(|status| status.descriptor.as_ref()),
                    stop: why_to_stop_below(child),
                    closed: phase.filter(is_over).map(|phase| format!("is {}", phase.as_str())),
                    activates: None,
                    is_over: false,
                })
            }
            Self::NotAsked | Self::Missing | Self::Undecodable(_) => None,
        }
    }
}

/// Depth, ancestors and cap of what has this UID, names this parent and asks for this cap.
///
/// # Errors
/// The refusal, or what is waited for.
pub fn lineage(
    own_uid: &str,
    reference: Option<&ParentRef>,
    max_depth: Option<i32>,
    found: &Parent,
) -> Result<(Lineage, Option<i32>), Verdict> {
    let (lineage, inherited) = match reference {
        None => (Lineage { depth: 1, parent_uid: None, root_uid: own_uid.to_owned(), ancestors: vec![] }, None),
        Some(reference) => {
            let parent = available_parent(own_uid, reference, found)?;
            let Some(above) = parent.lineage else {
                return Err(Verdict::Waits(Refusal {
                    reason: Reason::ParentUnavailable,
                    message: format!(
                        "{WAITING}{:?} {}, the parent: it is not accepted yet",
                        reference.kind, reference.name
                    ),
                }));
            };
            let parent_uid = parent.uid.cloned().unwrap_or_default();
            let mut ancestors = above.ancestors.clone();
            ancestors.push(parent_uid.clone());
            if ancestors.len() > bounds::ANCESTORS {
                return Err(refuse(
                    Reason::DepthExceeded,
                    format!(
                        "the lineage would have more than {} ancestors; delegate from higher up",
                        bounds::ANCESTORS
                    ),
                ));
            }
            let lineage = Lineage {
                depth: above.depth.saturating_add(1),
                parent_uid: Some(parent_uid),
                root_uid: above.root_uid.clone(),
                ancestors,
            };
            (lineage, parent.descriptor.and_then(|descriptor| descriptor.max_depth))
        }
    };
    let cap = [max_depth, inherited].into_iter().flatten().min();
    if cap.is_some_and(|cap| lineage.depth > cap) {
        return Err(refuse(
            Reason::DepthExceeded,
            format!(
                "the depth would be {}, the smallest maxDepth of this object and its ancestors is {}; delegate from higher up or raise maxDepth",
                lineage.depth,
                cap.unwrap_or_default()
            ),
        ));
    }
    Ok((lineage, cap))
}

/// The parent, when it accepts children (contract c14).
fn available_parent<'a>(own_uid: &str, reference: &ParentRef, found: &'a Parent) -> Result<Known<'a>, Verdict> {
    let parent = bound_parent(own_uid, None, reference, found)?;
    if let Some(child) = parent.activates {
        // It goes when the child has had some more of them, and takes along what is below it: the child is what stays.
        let named = named(reference);
        return Err(refuse(
            Reason::InvalidArgs,
            format!("{named} is an activation of Subagent {child}; name its Subagent {child} in spec.parentRef"),
        ));
    }
    if let Some(why) = parent.stop {
        return Err(unavailable(reference, why));
    }
    if let Some(why) = &parent.closed {
        return Err(unavailable(reference, why));
    }
    Ok(parent)
}

/// Whether the next pod of an accepted run may be created, as far as its ancestors go; asked right before that. One that
/// came to its own end is no hindrance: the run was accepted before. But nobody tells an ancestor that is over to stop, so
/// a cancel from above that was earlier than the run's lineage would pass by: those above it are looked at, up to the first
/// that is alive. (From there it is as with a live parent: either its stop is seen here, or its list sees the run.)
///
/// # Errors
/// The refusal, or what is waited for.
pub fn may_start(run: &SubagentRun, reference: &ParentRef, found: &Parent, above: &[Parent]) -> Result<(), Verdict> {
    let lineage = run.status.as_ref().and_then(|status| status.lineage.as_ref());
    may_begin(run.metadata.uid.as_deref().unwrap_or_default(), lineage, reference, found, above)
}

/// The same for what has this UID and this recorded lineage.
///
/// # Errors
/// The refusal, or what is waited for.
pub fn may_begin(
    own_uid: &str,
    lineage: Option<&Lineage>,
    reference: &ParentRef,
    found: &Parent,
    above: &[Parent],
) -> Result<(), Verdict> {
    let undecodable = |how: &str| {
        let message = format!("{WAITING}an ancestor that does not decode: {how}");
        Verdict::Waits(Refusal { reason: Reason::ParentUnavailable, message })
    };
    if let Parent::Undecodable(how) = found {
        return Err(undecodable(how));
    }
    let recorded = lineage.and_then(|lineage| lineage.parent_uid.as_ref());
    if let Some(why) = bound_parent(own_uid, recorded, reference, found)?.stop {
        return Err(unavailable(reference, why));
    }
    let is_recorded = |uid: &String| lineage.is_some_and(|lineage| lineage.ancestors.contains(uid));
    let mut below = found;
    for ancestor in above {
        if let Parent::Undecodable(how) = ancestor {
            return Err(undecodable(how));
        }
        // A child outlives a cancel of one above it, and may be spoken to afterwards.
        let is_below_child = matches!(below, Parent::Child(_));
        match ancestor.known() {
            Some(one) if one.uid.is_some_and(is_recorded) => {
                let done = is_below_child && one.is_over && one.stop != Some(DELETED);
                if let Some(why) = one.stop.filter(|_| !done) {
                    let where_ = if is_below_child { "is below one that stops" } else { "is over" };
                    return Err(unavailable(reference, &format!("{where_}, and {} above it {why}", one.name)));
                }
            }
            _ if is_below_child => return Ok(()),
            _ => return Err(unavailable(reference, "is over, and one above it does not exist any more")),
        }
        below = ancestor;
    }
    Ok(())
}

/// Why those below something that goes are to stop.
const DELETED: &str = "is being deleted";

/// Why those below a child are to stop or not to start, if they are: it goes, or its activation is being cancelled, or what it
/// delegated is being told of that. Once that is done it may be spoken to again, and takes children as before. A cancel of an
/// activation before the one at work is not about what that delegates.
fn why_to_stop_below(child: &Subagent) -> Option<&'static str> {
    if child.metadata.deletion_timestamp.is_some() {
        return Some(DELETED);
    }
    let status = child.status.as_ref()?;
    let activation = status.activation.as_ref();
    let through = child.spec.cancel_through_epoch;
    let is_asked =
        through > status.cancelled_through_epoch && activation.is_none_or(|activation| activation.epoch <= through);
    let is_under_way = activation.is_some_and(|activation| activation.epoch <= status.cancelled_through_epoch);
    (is_asked || is_under_way || status.cancelling_descendants).then_some("is cancelled")
}

/// Why those below a run are to stop or not to start, if they are. A deadline does not reach them.
fn why_to_stop(run: &SubagentRun) -> Option<&'static str> {
    let status = run.status.as_ref();
    let stopping = status.and_then(|status| status.stopping.as_ref());
    let is_cancelled = stopping.is_some_and(|stop| stop.reason == Reason::Cancelled.as_str())
        || status.is_some_and(|status| status.phase == Some(Phase::Cancelled));
    match run.metadata.deletion_timestamp {
        Some(_) => Some(DELETED),
        None if run.spec.cancel || is_cancelled => Some("is cancelled"),
        None => None,
    }
}

/// Why a run takes no more children, if it does not.
fn why_closed(run: &SubagentRun) -> Option<String> {
    let status = run.status.as_ref()?;
    if status.stopping.is_some() {
        return Some("is being stopped".into());
    }
    status.phase.filter(|phase| phase.is_terminal()).map(|phase| format!("is {}", phase.as_str()))
}

fn unavailable(reference: &ParentRef, why: &str) -> Verdict {
    let named = named(reference);
    refuse(Reason::ParentUnavailable, format!("{named} {why}; name a parent that is running, or leave parentRef out"))
}

fn named(reference: &ParentRef) -> String {
    format!("{:?} {}, named in spec.parentRef,", reference.kind, reference.name)
}

/// The parent that is named and, once that is recorded, bound by its UID.
fn bound_parent<'a>(
    own_uid: &str,
    recorded: Option<&String>,
    reference: &ParentRef,
    found: &'a Parent,
) -> Result<Known<'a>, Verdict> {
    let named = named(reference);
    let parent = match (reference.kind, found) {
        (ParentKind::SubagentRun, Parent::Found(_)) | (ParentKind::Subagent, Parent::Child(_)) => found.known(),
        (_, Parent::Undecodable(_)) => return Err(unavailable(reference, "does not decode")),
        _ => None,
    };
    let Some(parent) = parent else { return Err(unavailable(reference, "does not exist in this namespace")) };
    for expected in [reference.uid.as_ref(), recorded].into_iter().flatten() {
        if parent.uid != Some(expected) {
            return Err(refuse(
                Reason::Unauthorized,
                format!("{named} has another UID than {expected}: it was replaced; name the parent that exists now"),
            ));
        }
    }
    if parent.uid.is_some_and(|uid| uid == own_uid) {
        return Err(refuse(Reason::InvalidArgs, "spec.parentRef names the object itself; leave it out".into()));
    }
    Ok(parent)
}
