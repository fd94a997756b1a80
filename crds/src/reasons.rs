//! The failure taxonomy: each `status.reason` a run can have, with what it means and what to do. It is API.

use crate::run_status::Phase;

/// How the agent's work ended. On the wire it is an open set; this build writes only these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StopReason {
    /// The agent said it is done.
    Completed,
    /// It was cancelled.
    Aborted,
    /// Anything that is not one of the others.
    Error,
    /// The model's token limit ended the turn.
    MaxTokens,
    /// The agent refused.
    Refusal,
}

impl StopReason {
    /// The API's word.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Completed => "Completed",
            Self::Aborted => "Aborted",
            Self::Error => "Error",
            Self::MaxTokens => "MaxTokens",
            Self::Refusal => "Refusal",
        }
    }
}

/// Whether trying again can help without changing anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Retry {
    /// The same request can succeed later.
    CanHelp,
    /// Something must be changed first.
    Pointless,
}

/// When a reason can appear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// The request was refused: no pod.
    Rejected,
    /// Before the session existed.
    Starting,
    /// After it existed.
    Running,
    /// The agent's own end of a turn.
    Protocol,
}

/// What is known about a reason.
#[derive(Clone, Copy, Debug)]
pub struct Facts {
    /// The word in `status.reason`.
    pub name: &'static str,
    /// When it appears.
    pub stage: Stage,
    /// The stop reason that goes with it; none where no agent ran.
    pub stop_reason: Option<StopReason>,
    /// The terminal phase that goes with it.
    pub phase: Phase,
    /// Whether a retry can help.
    pub retry: Retry,
    /// What it means, one sentence.
    pub meaning: &'static str,
    /// What to do, one sentence.
    pub remedy: &'static str,
}

macro_rules! taxonomy {
    ($($name:ident: $stage:ident, $stop:expr, $phase:ident, $retry:ident, $meaning:literal, $remedy:literal;)*) => {
        /// A reason of the failure taxonomy.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Reason {
            $(#[doc = $meaning] $name,)*
        }

        impl Reason {
            /// Every reason, in the order of the documentation.
            pub const ALL: &'static [Self] = &[$(Self::$name,)*];

            /// What is known about it.
            pub fn facts(self) -> Facts {
                match self {
                    $(Self::$name => Facts {
                        name: stringify!($name),
                        stage: Stage::$stage,
                        stop_reason: $stop,
                        phase: Phase::$phase,
                        retry: Retry::$retry,
                        meaning: $meaning,
                        remedy: $remedy,
                    },)*
                }
            }

            /// The reason of that name.
            pub fn parse(name: &str) -> Option<Self> {
                match name {
                    $(stringify!($name) => Some(Self::$name),)*
                    _ => None,
                }
            }
        }
    };
}

taxonomy! {
    NoProvider: Rejected, None, Rejected, CanHelp, "The provider the run names did not exist before the start deadline.", "Create the SubagentProvider in the run's namespace, or correct spec.providerRef.name in a new run.";
    ProviderNotReady: Rejected, None, Rejected, CanHelp, "The provider was not ready before the start deadline.", "Read the Ready condition of the provider with kubectl describe, correct it, and create a new run.";
    UnsupportedCapability: Rejected, None, Rejected, Pointless, "The run asks for something its provider cannot do.", "Remove the named field, or choose a provider whose status.capabilities lists the named capability.";
    UnsupportedSchema: Rejected, None, Rejected, Pointless, "The output schema uses something outside the supported subset of JSON Schema.", "Correct the schema at the named paths.";
    DepthExceeded: Rejected, None, Rejected, Pointless, "The run is deeper in its lineage than a maxDepth of it or of an ancestor allows.", "Delegate from higher up, or raise maxDepth where the tree starts.";
    InvalidArgs: Rejected, None, Rejected, Pointless, "A field of the request is outside its domain.", "Correct the named field in a new run.";
    ParentUnavailable: Rejected, None, Rejected, Pointless, "The parent is missing, finished, cancelled or being deleted, and accepts no children.", "Name a parent that is still running, or leave parentRef out.";
    Unauthorized: Rejected, None, Rejected, Pointless, "The parent's UID is not the one the run names: it was replaced under the same name.", "Name the parent that exists now, with its UID.";
    PersistenceUnavailable: Rejected, None, Rejected, CanHelp, "A continuable child needs a session store and none is configured or reachable.", "Configure the session store in the chart's values.";
    ImagePullFailed: Starting, Some(StopReason::Error), Failed, CanHelp, "An image of the worker pod could not be pulled before the start deadline.", "Correct the image name or the pull secret in the provider's template.";
    ImageUserRefused: Starting, Some(StopReason::Error), Failed, Pointless, "The agent's image runs as root or as a user that is only a name, and the pod must not run as root.", "Set securityContext.runAsUser to a number other than 0 on container agent in the provider's template.";
    InvalidTemplate: Starting, Some(StopReason::Error), Failed, Pointless, "The pod of the provider's template is not valid or not runnable.", "Correct the named field in the provider's template, or the run's parameters that it uses, and create a new run.";
    PodRejected: Starting, Some(StopReason::Error), Failed, Pointless, "The API server or the node refused the worker pod.", "Read the message: it is the refusal's own; correct the template or the policy it names.";
    Unschedulable: Starting, Some(StopReason::Error), Failed, CanHelp, "No node had room for the worker pod before the start deadline.", "Lower the requests in the template, or add nodes.";
    MissingReference: Starting, Some(StopReason::Error), Failed, CanHelp, "A Secret, ConfigMap, volume or service account that the pod needs did not exist before the start deadline.", "Create the named object or correct the reference.";
    RunRefused: Starting, Some(StopReason::Error), Failed, CanHelp, "The API server refused to create the run of a child's activation, or the claim of its workspace, until the start deadline.", "Read the message: it is the refusal's own; correct the admission policy or webhook it names, or remove the object that has the name, and append a message.";
    QuotaExceeded: Starting, Some(StopReason::Error), Failed, CanHelp, "The namespace's quota had no room for the worker pod.", "Wait for other runs to end, or raise the quota.";
    ConcurrencyLimit: Starting, Some(StopReason::Error), Failed, CanHelp, "The provider's limit of concurrent runs had no room.", "Wait for other runs to end, or raise maxConcurrentRuns.";
    AgentStartFailed: Starting, Some(StopReason::Error), Failed, Pointless, "The agent's process could not be started, or a child's session not be put back for it.", "Correct what the message names: command, args or workingDir of container agent in the provider's template, the ConfigMap that holds the prompt, or the provider's sessionState: its paths must be those of the child's earlier activations and writable for the container's user, and maxBytes large enough.";
    AgentHandshakeFailed: Starting, Some(StopReason::Error), Failed, Pointless, "The agent ended, answered wrongly, or lacks what the run asks for, before its session existed.", "Where the message names what the agent lacks or does not offer, correct spec.agentOptions.model, spec.persona or the provider's session mode, or choose another provider; an HTTP status in it is that of the model's API; otherwise look at kubectl logs: the command must be an ACP server on standard input and output.";
    AgentAuthRequired: Starting, Some(StopReason::Error), Failed, Pointless, "The agent asks for authentication.", "Give the agent its credentials in the template, or set transport.acp.authMethod.";
    StartDeadlineExceeded: Starting, Some(StopReason::Error), Failed, CanHelp, "The session did not exist before the start deadline; the message names the stage.", "Look at the named stage; raise startDeadlineSeconds if the agent is only slow.";
    AgentCrashed: Running, Some(StopReason::Error), Failed, CanHelp, "The agent's process ended during a turn.", "Look at kubectl logs and the diagnostic: signal 9 often means memory.";
    AgentProtocolError: Running, Some(StopReason::Error), Failed, Pointless, "The agent broke the protocol or answered the prompt with an error.", "Look at kubectl logs for what the agent said.";
    OOMKilled: Running, Some(StopReason::Error), Failed, Pointless, "The agent or its whole container was killed because the container used more memory than its limit.", "Raise resources.limits.memory of container agent in the provider's template.";
    Evicted: Running, Some(StopReason::Error), Failed, CanHelp, "The node evicted the worker pod.", "Create a new run; side effects of the lost one are possible.";
    NodeLost: Running, Some(StopReason::Error), Failed, CanHelp, "The node of the worker pod is gone.", "Create a new run; side effects of the lost one are possible.";
    PodDeleted: Running, Some(StopReason::Error), Failed, CanHelp, "Somebody deleted the worker pod.", "Create a new run; to stop a run set spec.cancel or delete the run.";
    WorkerLost: Running, Some(StopReason::Error), Failed, CanHelp, "The worker ended without a final report.", "Look at kubectl logs; create a new run; side effects of the lost one are possible.";
    DeadlineExceeded: Running, Some(StopReason::Error), Failed, Pointless, "The run was active longer than activeDeadlineSeconds.", "Raise activeDeadlineSeconds or ask for less.";
    IdleDeadlineExceeded: Running, Some(StopReason::Error), Failed, CanHelp, "The agent gave no sign of life for idleDeadlineSeconds.", "Raise idleDeadlineSeconds, or look at kubectl logs for what it waits for.";
    ResultTooLarge: Running, Some(StopReason::Error), Failed, Pointless, "The result is larger than the limit; it is not cut.", "Let the agent write large output to a file or a store and answer with its place, or raise maxResultBytes of the chart.";
    DurabilityFailed: Running, Some(StopReason::Error), Failed, CanHelp, "The result, or the session of a continuable child, could not be stored or fetched.", "Make room for what the message or the run's Events name, or correct the provider's sessionState if it is that, and create a new run, or send the child its next message: it goes on from its last checkpoint; the transcript, where there is one in status.transcript, holds the result as far as it reaches.";
    CleanupFailed: Running, Some(StopReason::Aborted), Cancelled, Pointless, "The run was cancelled but its pod could not be proven stopped in time.", "Bring the pod's node back; or, once the pod is known to be dead, run the kubectl annotate command of the message (kubectl annotate subagentrun NAME subagents.dev/release-pod=UID_OF_THE_POD).";
    NotResumable: Running, Some(StopReason::Error), Failed, Pointless, "The child's session cannot be resumed, or the claim of its workspace is gone.", "Start a new child.";
    MissingStructuredOutput: Running, Some(StopReason::Error), Failed, CanHelp, "The agent gave no output of the asked schema.", "Ask for it in the prompt too.";
    TurnLimit: Running, Some(StopReason::Error), Failed, Pointless, "The agent reached its own limit of model requests in a turn.", "Raise the agent's limit or ask for less.";
    Completed: Protocol, Some(StopReason::Completed), Completed, Pointless, "The agent completed.", "Read status.result; with a ref in it, the text is in ConfigMaps labelled subagents.dev/content=result.";
    AgentRefused: Protocol, Some(StopReason::Refusal), Failed, Pointless, "The agent refused to go on.", "Read status.result and the transcript for why.";
    MaxTokens: Protocol, Some(StopReason::MaxTokens), Failed, Pointless, "The turn ended at the model's token limit; the result is partial.", "Ask for less, or raise the agent's token limit.";
    Cancelled: Protocol, Some(StopReason::Aborted), Cancelled, Pointless, "The run was cancelled.", "Read the partial output in status.result, if there is one.";
}

impl Reason {
    /// The word in `status.reason`.
    pub fn as_str(self) -> &'static str {
        self.facts().name
    }

    /// What to do when this ended an activation of a child: the spec of its run is the operator's, and it is the child that goes
    /// on.
    pub fn child_remedy(self) -> &'static str {
        const NEXT: &str = "Send the child its next message: it goes on from its last checkpoint; side effects of the lost turn are possible.";
        match self {
            Self::NoProvider => "Create the SubagentProvider again, then send the child its next message.",
            Self::ProviderNotReady => {
                "Read the Ready condition of the provider with kubectl describe, correct it, and send the child its next message."
            }
            Self::UnsupportedCapability => {
                "Give the provider back what the message names, or create a new Subagent with another provider."
            }
            Self::InvalidTemplate => {
                "Correct the named field in the provider's template and send the child its next message; its own parameters are \
                 immutable, for others create a new Subagent."
            }
            Self::AgentHandshakeFailed => {
                "Where the message names what the agent lacks or does not offer, correct the provider, or create a new Subagent \
                 with another spec.agentOptions.model or spec.persona; otherwise look at kubectl logs for what the agent said."
            }
            Self::StartDeadlineExceeded => {
                "Look at the named stage; raise spec.activation.startDeadlineSeconds of the Subagent if the agent is only slow."
            }
            Self::DeadlineExceeded => "Raise spec.activation.activeDeadlineSeconds of the Subagent or ask for less.",
            Self::IdleDeadlineExceeded => {
                "Raise spec.activation.idleDeadlineSeconds of the Subagent, or look at kubectl logs for what it waits for."
            }
            Self::Evicted | Self::NodeLost => NEXT,
            Self::PodDeleted => {
                "Send the child its next message: it goes on from its last checkpoint; to cancel what it does raise \
                 spec.cancelThroughEpoch."
            }
            Self::WorkerLost => {
                "Look at kubectl logs, then send the child its next message: it goes on from its last checkpoint; side effects of \
                 the lost turn are possible."
            }
            Self::Cancelled => "Read the partial output in status.lastResult, if there is one.",
            Self::AgentRefused => "Read status.lastResult and the transcript for why.",
            other => other.facts().remedy,
        }
    }

    /// What a run says of itself, in terms of the child that it activated.
    pub fn for_child(self, message: &str) -> String {
        message.replace(self.facts().remedy, self.child_remedy())
    }

    /// What was seen, as a sentence, and behind it what to do.
    pub fn with_remedy(self, seen: &str) -> String {
        format!("{}. {}", seen.trim_end().trim_end_matches('.'), self.facts().remedy)
    }
}

impl std::fmt::Display for Reason {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_parses_and_ends_in_a_terminal_phase() {
        for &reason in Reason::ALL {
            let facts = reason.facts();
            assert_eq!(Reason::parse(facts.name), Some(reason));
            assert!(facts.phase.is_terminal(), "{reason}");
            assert!(facts.meaning.ends_with('.') && facts.remedy.ends_with('.'), "{reason}");
            assert_eq!(facts.stop_reason.is_none(), facts.phase == Phase::Rejected, "{reason}");
        }
        assert_eq!(Reason::parse("Nonsense"), None);
        for &reason in Reason::ALL {
            let (own, remedy) = (reason.with_remedy("seen"), reason.child_remedy());
            assert_eq!(reason.for_child(&own), format!("seen. {remedy}"), "{reason}");
            let is_of_runs =
                ["in a new run", "status.result ", "raise startDeadlineSeconds", "Raise activeDeadlineSeconds"];
            let can_end_a_child = reason.facts().stage != Stage::Rejected && reason != Reason::Completed;
            assert!(!can_end_a_child || is_of_runs.iter().all(|words| !remedy.contains(words)), "{reason}: {remedy}");
        }
        let said = Reason::OOMKilled.with_remedy("too much.\n");
        assert!(said.starts_with("too much. Raise resources.limits.memory"), "{said}");
    }
}
