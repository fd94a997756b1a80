//! A probe: an attempt up to its session, without run, gateway and prompt. So what it meets, a run would have met, and in
//! the same words.

use super::{
    attempt::{Attempt, Halt},
    handshake::Wanted,
};
use crate::{
    outcome::{End, Settlement, Stage, StopCause},
    process,
};
use std::{ffi::OsString, process::ExitCode, time::Duration};
use subagent_link::{AcpTransport, Finding};
use tokio::time::timeout;

/// How long the agent may take to close its session. Nothing depends on it; its end closes it, too.
const CLOSE: Duration = Duration::from_secs(5);

/// The story of a probe.
pub async fn live(mut attempt: Attempt, transport: &AcpTransport, argv: &[OsString]) -> ExitCode {
    let outcome = meet(&mut attempt, transport, argv).await;
    let finding = match outcome {
        Ok(()) => Finding::Agent(attempt.ledger.snapshot().agent.clone().unwrap_or_default()),
        // The controller knows why; here it is known only how far the agent came.
        Err(Halt::End(End::Stopped { cause: StopCause::Terminated, stage, .. })) => {
            let diagnostic = format!("in stage {}", stage.name());
            attempt.say(&format!("SIGTERM before the agent had answered: {diagnostic}"));
            Finding::Failure { reason: "PodDeleted".into(), diagnostic }
        }
        Err(Halt::End(end)) => {
            let Settlement { reason, diagnostic, .. } = attempt.judge(&end);
            Finding::Failure { reason: reason.to_owned(), diagnostic: diagnostic.unwrap_or_default() }
        }
        // Nobody is there who could refuse.
        Err(Halt::Refused) => Finding::Failure { reason: "WorkerLost".into(), diagnostic: String::new() },
    };
    let answers = matches!(finding, Finding::Agent(_));
    if let Finding::Agent(agent) = &finding {
        attempt.say(&format!("the agent answers; it advertises: {}", agent.capabilities.join(" ")));
    }
    attempt.enter(Stage::Stopping);
    attempt.stop_agent().await;
    // Last, when nothing of the agent is left that could write in its place.
    process::leave_message(&attempt.settings.message_file, &finding.encode());
    attempt.transcript.flush();
    if answers { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

async fn meet(attempt: &mut Attempt, transport: &AcpTransport, argv: &[OsString]) -> Result<(), Halt> {
    attempt.enter(Stage::Spawning);
    attempt.start_agent(argv)?;
    attempt.introduce(transport).await?;
    // A session that cannot be closed would stay behind, perhaps in a store of the agent's outside of the pod.
    if attempt.agent_takes("CloseSession") {
        let session = attempt.open_session(transport, &Wanted::default()).await?;
        if !matches!(timeout(CLOSE, attempt.close_session(&session)).await, Ok(Ok(()))) {
            attempt.say("the session was not closed; it ends with the agent");
        }
    }
    Ok(())
}
