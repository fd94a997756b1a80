//! The story of an attempt: connect, get the assignment, start the agent, shake hands, record the turn, prompt, report,
//! stop.
//!
//! One task, one loop ([`Attempt::next`]): whatever the gateway, the agent, a signal or the clock says is handled one at
//! a time, so which of a cancel and a response came first has one answer (contract c27).

mod agent;
mod attempt;
mod beside;
mod handshake;
mod keep;
mod narrate;
mod probe;
mod restore;
mod retry;
mod serve;
mod share;
mod stop;
mod turn;
mod upload;

use crate::{
    config::Settings,
    inbox::Turn,
    outcome::{End, Stage, StartFault},
    process,
    prompt::LoadedPrompt,
};
use anyhow::Context;
use attempt::{Attempt, Halt};
use handshake::Wanted;
use std::{ffi::OsString, process::ExitCode};
use subagent_link::Assignment;

/// Runs the attempt this pod was made for; `argv` is the agent's command line.
///
/// # Errors
/// When the worker cannot even begin: no configuration, no signal handlers.
pub fn run(argv: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let settings = Settings::load()?;
    as_process(async {
        let attempt = Attempt::begin(settings)?;
        Ok(live(attempt, &argv).await)
    })
}

/// Probes the agent with the command line `argv`, and leaves what it found as the container's termination message.
///
/// # Errors
/// As [`run`].
pub fn probe(argv: Vec<OsString>) -> anyhow::Result<ExitCode> {
    let (settings, transport) = Settings::load_probe()?;
    as_process(async {
        let attempt = Attempt::begin_probe(settings)?;
        Ok(probe::live(attempt, &transport, &argv).await)
    })
}

fn as_process(story: impl Future<Output = anyhow::Result<ExitCode>>) -> anyhow::Result<ExitCode> {
    process::prepare().context("preparing the process")?;
    // One thread: there is little to do, and nothing else then waits for children or sets environment variables.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("starting the runtime")?;
    let code = runtime.block_on(story);
    // A name lookup may hang in its thread; nobody waits for it any more.
    runtime.shutdown_background();
    code
}

async fn live(mut attempt: Attempt, argv: &[OsString]) -> ExitCode {
    let outcome = work(&mut attempt, argv).await;
    let refused = match outcome {
        Ok(end) | Err(Halt::End(end)) => {
            attempt.quiet_turn(&end).await;
            attempt.report_end(&end);
            false
        }
        Err(Halt::Refused) => {
            attempt.cancel_turn().await;
            true
        }
    };
    attempt.stop_agent().await;
    let acknowledged = !refused && attempt.wait_for_acknowledgement().await;
    attempt.leave(acknowledged).await;
    if acknowledged { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

/// Everything up to the end of the turn, or of all turns of an activation.
async fn work(attempt: &mut Attempt, argv: &[OsString]) -> Result<End, Halt> {
    let assignment = wait_for_assignment(attempt).await?;
    attempt.permission = assignment.transport.permission;
    attempt.stop_graces = assignment.stop;
    attempt.limit_result(&assignment);
    attempt.state = assignment.continuation.as_ref().and_then(keep::State::of);
    attempt.show_deadlines(&assignment.deadlines);
    if let Some(seconds) = assignment.deadlines.idle_seconds {
        attempt.ledger.keep_alive_within(seconds);
    }
    let wanted = Wanted::of(&assignment);
    if let (Some(session), Some(continuation)) = (&wanted.session, &assignment.continuation) {
        attempt.restore(session, continuation).await?;
    }
    attempt.enter(Stage::Spawning);
    let Some(prompt) = assignment.prompt else {
        attempt.start_agent(argv)?;
        let session = attempt.handshake(&assignment.transport, &wanted).await?;
        return attempt.serve(&session).await;
    };
    let prompt = LoadedPrompt::load(prompt).map_err(|fault| Halt::End(End::NotStarted(StartFault::Prompt(fault))))?;
    attempt.ledger.note(|snapshot| snapshot.prompt.clone_from(&prompt.digest));
    attempt.start_agent(argv)?;
    let session = attempt.handshake(&assignment.transport, &wanted).await?;
    if prompt.has_image() && !attempt.agent_takes("ImagePrompt") {
        return Err(Halt::End(End::ImagesNotTaken));
    }
    attempt.turn = Turn::Recorded;
    let permit = attempt.record_turn(&session, None).await?;
    attempt.turn = Turn::Running;
    let end = attempt.turn(permit, &session, &prompt.blocks).await?;
    attempt.wait_for_steers().await;
    attempt.turn = Turn::Answered;
    Ok(end)
}

async fn wait_for_assignment(attempt: &mut Attempt) -> Result<Assignment, Halt> {
    attempt.enter(Stage::Connecting);
    loop {
        attempt.go_on(Stage::Connecting, false)?;
        if let Some(assignment) = attempt.assignment.take() {
            return Ok(*assignment);
        }
        attempt.next(None).await;
    }
}
