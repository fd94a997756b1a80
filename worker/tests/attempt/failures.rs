//! Agents that fail, each with its own reason (c26, c30, c53, N5).

use crate::harness::run;
use rstest::rstest;

#[rstest]
#[case::banner_and_exit(
    "START",
    "banner-exit",
    "AgentHandshakeFailed",
    "in stage Initialize, the agent ended with exit code 0"
)]
#[case::banner_at_initialize("INITIALIZE", "banner-exit", "AgentHandshakeFailed", "exit code 0")]
#[case::exit("INITIALIZE", "exit:3", "AgentHandshakeFailed", "in stage Initialize, the agent ended with exit code 3")]
#[case::killed("INITIALIZE", "kill:KILL", "AgentHandshakeFailed", "signal 9")]
#[case::error("INITIALIZE", "error:-32603:secret", "AgentHandshakeFailed", "JSON-RPC error -32603")]
#[case::version("INITIALIZE", "version:2", "AgentHandshakeFailed", "protocol version 2")]
#[case::no_session_id("NEW", "no-session-id", "AgentHandshakeFailed", "no session id")]
#[case::exit_at_new("NEW", "exit:1", "AgentHandshakeFailed", "in stage SessionNew, the agent ended with exit code 1")]
#[case::auth("NEW", "auth-required", "AgentAuthRequired", "in stage SessionNew")]
#[tokio::test(flavor = "multi_thread")]
async fn n5_an_agent_that_fails_before_its_session(
    #[case] stage: &str,
    #[case] fault: &str,
    #[case] reason: &str,
    #[case] fact: &str,
) {
    let ended = run("a prompt").env(&format!("SCRIPTED_AGENT_{stage}"), fault).start().await.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Error", reason), 0), "{}", ended.transcript);
    assert!(ended.diagnostic().contains(fact), "{}", ended.diagnostic());
    assert!(!ended.diagnostic().contains("secret"), "c30: {}", ended.diagnostic());
    assert!(ended.report.snapshot.session.is_none(), "c8: no session, not started");
    assert!(ended.status.success());
}

#[rstest]
#[case::exit("!say x\n!crash 3", "AgentCrashed", "during the turn, the agent ended with exit code 3")]
#[case::exit_zero("!say x\n!crash 0", "AgentCrashed", "exit code 0")]
#[case::killed("!say x\n!kill KILL", "AgentCrashed", "signal 9 (SIGKILL), which is how running out of memory looks")]
#[case::fault("!say x\n!kill SEGV", "AgentCrashed", "signal 11")]
#[case::closed("!say x\n!close-stdout\n!hang", "AgentCrashed", "the agent closed its output")]
#[case::error("!say x\n!error -32603 secret", "AgentProtocolError", "the prompt with JSON-RPC error -32603")]
#[case::auth("!say x\n!error -32000 secret", "AgentAuthRequired", "in stage Prompt")]
#[tokio::test(flavor = "multi_thread")]
async fn c26_an_agent_that_fails_in_its_turn(#[case] script: &str, #[case] reason: &str, #[case] fact: &str) {
    let ended = run(&format!("!stderr secret\n{script}")).start().await.finish().await;
    assert_eq!((ended.words(), ended.prompts), (("Error", reason), 1), "{}", ended.transcript);
    assert!(ended.diagnostic().contains(fact), "{}", ended.diagnostic());
    assert!(!ended.diagnostic().contains("secret"), "c30: {}", ended.diagnostic());
    assert_eq!(ended.text(), "x", "c27: partial output is kept");
}

#[rstest]
#[case::absent(&["no-such-command"], "the command was not found")]
#[case::absent_path(&["/no/such/command"], "the command was not found")]
#[case::not_executable(&["/proc/self/status"], "not executable")]
#[tokio::test(flavor = "multi_thread")]
async fn n1_a_command_that_cannot_be_started(#[case] argv: &[&str], #[case] fact: &str) {
    let ended = run("hi").argv(argv).start().await.finish().await;
    assert_eq!(ended.words(), ("Error", "AgentStartFailed"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains(fact), "{}", ended.diagnostic());
}

#[rstest]
#[case::no_interpreter("#!/no/such/interpreter\n")]
#[case::no_format("just text")]
#[tokio::test(flavor = "multi_thread")]
async fn n1_a_command_that_is_no_program(#[case] content: &str) {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("command");
    std::fs::write(&path, content).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let ended = run("hi").argv(&[path.to_str().unwrap()]).start().await.finish().await;
    assert_eq!(ended.words(), ("Error", "AgentStartFailed"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("no program for this machine"), "{}", ended.diagnostic());
}

#[tokio::test(flavor = "multi_thread")]
async fn c18_a_working_directory_that_is_missing() {
    let mut setup = run("hi");
    setup.cwd = Some("/no/such/folder".into());
    let attempt = setup.start().await;
    assert_eq!(attempt.collector.all().len(), 0);
    let ended = attempt.finish().await;
    assert_eq!(ended.words(), ("Error", "AgentStartFailed"));
    assert_eq!(ended.diagnostic(), "the working directory does not exist");
}

#[tokio::test(flavor = "multi_thread")]
async fn c56_a_command_is_looked_up_on_path() {
    // No shell in between: the argument arrives as it is.
    let ended = run("hi").argv(&["env", "--", "sh", "-c", "exit 7"]).start().await.finish().await;
    assert_eq!(ended.words(), ("Error", "AgentHandshakeFailed"), "{}", ended.transcript);
    assert!(ended.diagnostic().contains("exit code 7"), "{}", ended.diagnostic());
}
