//! A probe: no gateway, no token, no prompt; the finding is left in a file.

use crate::harness::{PATIENCE, command};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use rstest::rstest;
use scripted_agent::{binary, collector::Collector};
use std::process::Stdio;
use subagent_link::{AcpTransport, Finding, ProbeConfig, StopGraces};
use tempfile::TempDir;
use tokio::{process::Child, time::timeout};

struct Probe {
    child: Child,
    collector: Collector,
    folder: TempDir,
}

impl Probe {
    fn start(argv: &[&str], env: &[(&str, &str)], transport: AcpTransport) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = ProbeConfig {
            namespace: "demo".into(),
            provider: "coder".into(),
            attempt: 1,
            cwd: folder.path().to_str().unwrap().to_owned(),
            stop: StopGraces { cancel_grace_seconds: 1, eof_grace_seconds: 1, term_grace_seconds: 1 },
            transport,
        };
        std::fs::write(folder.path().join("config.json"), serde_json::to_vec(&config).unwrap()).unwrap();
        // As a container's runtime leaves it.
        std::fs::write(folder.path().join("message"), "").unwrap();
        let collector = Collector::start("127.0.0.1:0").unwrap();
        let child = command(false)
            .args(["probe", "--"])
            .args(argv)
            .env("SUBAGENT_WORKER_LINK_DIR", folder.path())
            .env("SUBAGENT_WORKER_HOME_DIR", folder.path())
            .env("SUBAGENT_WORKER_MESSAGE_FILE", folder.path().join("message"))
            .env_remove("SCRIPTED_AGENT_BINARY")
            .env("SCRIPTED_AGENT_COLLECTOR", collector.address().to_string())
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap();
        Self { child, collector, folder }
    }

    /// The finding, the transcript, and whether the exit code says that the agent answers.
    async fn end(self) -> (Finding, String, bool, Collector) {
        let output = timeout(PATIENCE, self.child.wait_with_output()).await.expect("it ends").unwrap();
        let message = std::fs::read_to_string(self.folder.path().join("message")).unwrap();
        let transcript = String::from_utf8(output.stdout).unwrap();
        let finding = Finding::decode(&message).unwrap_or_else(|| panic!("{message:?}\n{transcript}"));
        (finding, transcript, output.status.success(), self.collector)
    }
}

fn agent() -> &'static str {
    binary::scripted_agent().to_str().unwrap()
}

fn methods(collector: &Collector) -> Vec<String> {
    collector.of_kind("request").into_iter().map(|request| request.text).collect()
}

/// c53: the handshake of a run and nothing of its turn; the session is closed again.
#[tokio::test(flavor = "multi_thread")]
async fn c53_a_probe_learns_what_the_agent_advertises_and_prompts_nothing() {
    let transport = AcpTransport { session_mode: "plan".into(), ..AcpTransport::default() };
    let (finding, transcript, succeeded, collector) = Probe::start(&[agent()], &[], transport).end().await;
    let Finding::Agent(found) = finding else { panic!("{finding:?}\n{transcript}") };
    assert_eq!(found.protocol_version, 1);
    assert!(!found.name.is_empty());
    for capability in ["CloseSession", "ImagePrompt", "Persona", "Steering"] {
        assert!(found.capabilities.iter().any(|known| known == capability), "{capability}: {:?}", found.capabilities);
    }
    assert_eq!(methods(&collector), ["initialize", "session/new", "session/set_mode", "session/close"]);
    assert!(succeeded && collector.of_kind("prompt").is_empty());
    for words in ["provider demo/coder, probe 1", "the agent answers", "ImagePrompt"] {
        assert!(transcript.contains(words), "{words:?} in {transcript}");
    }
}

/// Whether a model can be chosen is known once there is a session.
#[rstest]
#[case::models(&[("SCRIPTED_AGENT_MODELS", "models")], true)]
#[case::options(&[("SCRIPTED_AGENT_MODELS", "options")], true)]
#[case::none(&[], false)]
#[tokio::test(flavor = "multi_thread")]
async fn c18_a_probe_learns_whether_there_are_models(#[case] env: &[(&str, &str)], #[case] has_models: bool) {
    let (finding, transcript, ..) = Probe::start(&[agent()], env, AcpTransport::default()).end().await;
    let Finding::Agent(found) = finding else { panic!("{finding:?}\n{transcript}") };
    assert_eq!(found.capabilities.iter().any(|known| known == "AgentModel"), has_models, "{found:?}");
}

/// An agent that cannot close a session gets none: it would stay behind.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_cannot_be_closed_is_not_opened() {
    let capabilities = r#"{"agentCapabilities": {"sessionCapabilities": {"close": null}}}"#;
    let env = [("SCRIPTED_AGENT_CAPABILITIES", capabilities)];
    let (finding, transcript, _, collector) = Probe::start(&[agent()], &env, AcpTransport::default()).end().await;
    assert!(matches!(finding, Finding::Agent(_)), "{finding:?}\n{transcript}");
    assert_eq!(methods(&collector), ["initialize"]);
}

#[rstest]
#[case::n5_exit(
    "INITIALIZE",
    "exit:3",
    "AgentHandshakeFailed",
    "in stage Initialize, the agent ended with exit code 3"
)]
#[case::n5_banner("START", "banner-exit", "AgentHandshakeFailed", "in stage Initialize")]
#[case::version("INITIALIZE", "version:2", "AgentHandshakeFailed", "protocol version 2")]
#[case::error("NEW", "error:-32603:secret", "AgentHandshakeFailed", "in stage SessionNew")]
#[case::auth("NEW", "auth-required", "AgentAuthRequired", "in stage SessionNew")]
#[tokio::test(flavor = "multi_thread")]
async fn c53_c30_a_failed_probe_says_what_a_run_would(
    #[case] stage: &str,
    #[case] fault: &str,
    #[case] expected: &str,
    #[case] fact: &str,
) {
    let stage = format!("SCRIPTED_AGENT_{stage}");
    let probe = Probe::start(&[agent()], &[(&stage, fault)], AcpTransport::default());
    let (finding, transcript, succeeded, _) = probe.end().await;
    let Finding::Failure { reason, diagnostic } = finding else { panic!("{finding:?}\n{transcript}") };
    assert_eq!(reason, expected, "{diagnostic}");
    assert!(diagnostic.contains(fact) && !diagnostic.contains("secret"), "{diagnostic}");
    assert!(!succeeded && transcript.contains(expected), "{transcript}");
}

#[tokio::test(flavor = "multi_thread")]
async fn n1_a_command_that_is_not_there_is_a_finding() {
    let (finding, _, succeeded, _) = Probe::start(&["no-such-command"], &[], AcpTransport::default()).end().await;
    let Finding::Failure { reason, diagnostic } = finding else { panic!("{finding:?}") };
    assert_eq!((reason.as_str(), succeeded), ("AgentStartFailed", false));
    assert!(diagnostic.contains("not found"), "{diagnostic}");
}

/// An agent that does not answer its `session/close` has answered all that matters.
#[tokio::test(flavor = "multi_thread")]
async fn a_session_that_is_not_closed_changes_nothing() {
    let env = [("SCRIPTED_AGENT_CLOSE", "error"), ("SCRIPTED_AGENT_EOF", "ignore")];
    let (finding, transcript, succeeded, _) = Probe::start(&[agent()], &env, AcpTransport::default()).end().await;
    assert!(matches!(finding, Finding::Agent(_)) && succeeded, "{finding:?}\n{transcript}");
    assert!(transcript.contains("not closed") && transcript.contains("SIGTERM"), "{transcript}");
}

/// What the kubelet does at the pod's deadline: the finding says where the agent hung.
#[tokio::test(flavor = "multi_thread")]
async fn n5_c49_sigterm_leaves_the_stage_as_the_finding() {
    let probe = Probe::start(&[agent()], &[("SCRIPTED_AGENT_INITIALIZE", "hang")], AcpTransport::default());
    probe.collector.wait_for_event(PATIENCE, "request", "initialize").unwrap();
    kill(Pid::from_raw(probe.child.id().unwrap() as i32), Signal::SIGTERM).unwrap();
    let (finding, transcript, ..) = probe.end().await;
    let Finding::Failure { reason, diagnostic } = finding else { panic!("{finding:?}\n{transcript}") };
    assert_eq!(reason, "PodDeleted");
    assert!(diagnostic.contains("in stage Initialize"), "{diagnostic}");
}
