//! A node without a kubelet: it binds pods, starts the real worker for them as a process of this machine, and reports
//! what became of it.

use crate::programs;
use futures::StreamExt;
use integration_tests::TestNamespace;
use k8s_openapi::api::{
    authentication::v1::TokenRequest,
    core::v1::{Container, Node, Pod, ServiceAccount},
};
use kube::{
    Api, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    runtime::{WatchStreamExt, wait::await_condition, watcher},
};
use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use scripted_agent::collector::Collector;
use serde_json::{Value, json};
use std::{
    collections::HashMap,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Stdio,
    sync::{Arc, Mutex},
    time::Duration,
};
use subagent_crds::names;
use tempfile::TempDir;
use tokio::{
    io::{AsyncBufReadExt, AsyncRead, BufReader},
    process::{Child, Command},
    sync::watch,
};

/// A node of one namespace. A clone is the same node.
#[derive(Clone)]
pub struct TestNode(Arc<Inner>);

struct Inner {
    namespace: TestNamespace,
    name: String,
    collector: Collector,
    folder: TempDir,
    workers: Mutex<HashMap<String, Worker>>,
    /// Whether the end of containers is reported.
    reports: watch::Sender<bool>,
}

/// The worker of a pod.
#[derive(Clone)]
pub struct Worker {
    pid: Pid,
    said: Arc<Mutex<String>>,
    exit: watch::Receiver<Option<i32>>,
}

impl Worker {
    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        kill(self.pid, signal).expect("the worker runs");
    }

    /// Waits for its end; the exit code as a container runtime reports it.
    pub async fn exit(&self) -> i32 {
        let mut exit = self.exit.clone();
        let code = exit.wait_for(Option::is_some).await.expect("the node looks after it");
        code.expect("it was waited for")
    }
}

impl TestNode {
    /// Makes the node.
    pub async fn new(namespace: TestNamespace) -> Self {
        let name = format!("node-{}", namespace.name);
        let node: Node = serde_json::from_value(json!({"metadata": {"name": name}})).expect("a node");
        Api::all(namespace.client.clone()).create(&PostParams::default(), &node).await.expect("a node");
        Self(Arc::new(Inner {
            namespace,
            name,
            collector: Collector::start("127.0.0.1:0").expect("a collector"),
            folder: tempfile::tempdir().expect("a folder"),
            workers: Mutex::default(),
            reports: watch::Sender::new(true),
        }))
    }

    /// What the agents on this node report.
    pub fn collector(&self) -> &Collector {
        &self.0.collector
    }

    /// A folder agents can work in.
    pub fn cwd(&self) -> PathBuf {
        self.0.folder.path().to_owned()
    }

    /// Takes every worker pod from now on, those that wait and those to come.
    pub fn serve(&self) {
        self.serve_pods_with(names::RUN_UID_LABEL);
    }

    /// The same for the pods of probes.
    pub fn serve_probes(&self) {
        self.serve_pods_with(names::PROBE_LABEL);
    }

    fn serve_pods_with(&self, label: &str) {
        let node = self.clone();
        let config = watcher::Config::default().labels(label);
        let mut pods = watcher(node.pods(), config).default_backoff().applied_objects().boxed();
        tokio::spawn(async move {
            while let Some(pod) = pods.next().await {
                let Ok(pod) = pod else { continue };
                let is_bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.is_some());
                if !is_bound && pod.metadata.deletion_timestamp.is_none() {
                    let node = node.clone();
                    tokio::spawn(async move { node.start(&pod).await });
                }
            }
        });
    }

    /// From now on the end of containers is not reported, as by a node that does not answer; or it is again.
    pub fn report_ends(&self, yes: bool) {
        self.0.reports.send_replace(yes);
    }

    /// The worker of a pod, once started.
    pub async fn worker(&self, pod: &str) -> Worker {
        let node = self;
        self.0
            .namespace
            .eventually(&format!("worker of pod {pod}"), Duration::from_secs(60), async || {
                node.0.workers.lock().expect("workers").get(pod).cloned().ok_or_else(|| "not started".into())
            })
            .await
    }

    /// Everything the workers said, for a failure.
    pub fn said(&self) -> String {
        let workers = self.0.workers.lock().expect("workers");
        let one = |(pod, worker): (&String, &Worker)| format!("--- {pod}\n{}", worker.said.lock().expect("lines"));
        workers.iter().map(one).collect()
    }

    fn pods(&self) -> Api<Pod> {
        self.0.namespace.api()
    }

    /// Binds a pod to this node and does nothing more, as while images are pulled.
    pub async fn bind(&self, pod: &Pod) {
        let binding = json!({
            "apiVersion": "v1", "kind": "Binding", "metadata": {"name": pod.name_any(), "uid": pod.uid()},
            "target": {"apiVersion": "v1", "kind": "Node", "name": self.0.name},
        });
        let done: Result<Value, _> =
            self.pods().create_subresource("binding", &pod.name_any(), &PostParams::default(), &binding).await;
        done.unwrap_or_else(|error| panic!("binding {}: {error}", pod.name_any()));
    }

    /// Binds a pod, starts its worker, and looks after it until the pod is gone.
    pub async fn start(&self, pod: &Pod) -> Worker {
        self.bind(pod).await;
        let name = pod.name_any();
        let (mut child, home) = self.spawn(pod).await;
        self.project(pod, home.join("link"));
        let said = Arc::new(Mutex::new(String::new()));
        capture(child.stdout.take().expect("stdout"), said.clone());
        capture(child.stderr.take().expect("stderr"), said.clone());
        let (exited, exit) = watch::channel(None);
        let pid = Pid::from_raw(child.id().expect("a process id") as i32);
        let worker = Worker { pid, said, exit };
        self.0.workers.lock().expect("workers").insert(name.clone(), worker.clone());
        self.mark_running(pod).await;
        let (node, pod) = (self.clone(), pod.clone());
        let message = home.join("message");
        tokio::spawn(async move { node.look_after(&pod, child, exited, &message).await });
        worker
    }

    /// Binds a pod and says that it runs, but starts nothing.
    pub async fn pretend(&self, pod: &Pod) {
        self.bind(pod).await;
        self.mark_running(pod).await;
    }

    async fn mark_running(&self, pod: &Pod) {
        let running = json!({"running": {"startedAt": now()}});
        self.patch_status(pod, json!({"phase": "Running", "containerStatuses": [container(pod, running)]})).await;
    }

    /// The files of the pod's projected volume and of its termination message, and the command of its container. A probe
    /// has neither roots nor a token.
    async fn spawn(&self, pod: &Pod) -> (Child, PathBuf) {
        let home = tempfile::tempdir_in(self.0.folder.path()).expect("a folder").keep();
        let link = home.join("link");
        std::fs::create_dir(&link).expect("a folder");
        std::fs::write(home.join("message"), "").expect("a file");
        let annotation = |key: &str| pod.annotations().get(key).unwrap_or_else(|| panic!("annotation {key}"));
        let write = |name: &str, text: &str| std::fs::write(link.join(name), text).expect("a file");
        write(subagent_link::CONFIG_FILE, annotation(names::WORKER_CONFIG_ANNOTATION));
        let run = pod.labels().get(names::RUN_LABEL);
        if run.is_some() {
            write(subagent_link::ROOTS_FILE, annotation(names::GATEWAY_ROOTS_ANNOTATION));
            write(subagent_link::TOKEN_FILE, &self.token(pod).await);
        }
        let tag = run.or_else(|| pod.labels().get(names::PROVIDER_LABEL)).expect("the owner's label");
        let agent = agent(pod);
        let env = agent.env.iter().flatten().map(|env| (env.name.clone(), env.value.clone().unwrap_or_default()));
        let program = programs::worker();
        let child = Command::new(program)
            .args(agent.args.iter().flatten())
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("SUBAGENT_WORKER_LINK_DIR", &link)
            .env("SUBAGENT_WORKER_HOME_DIR", &home)
            .env("SUBAGENT_WORKER_MESSAGE_FILE", home.join("message"))
            .env("SUBAGENT_WORKER_LOG", "debug")
            .env("SCRIPTED_AGENT_COLLECTOR", self.0.collector.address().to_string())
            .env("SCRIPTED_AGENT_TAG", tag)
            .envs(env)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        (child, home)
    }

    /// Brings a changed annotation into the volume, in one step, as a kubelet does.
    fn project(&self, pod: &Pod, link: PathBuf) {
        let config = watcher::Config::default().fields(&format!("metadata.name={}", pod.name_any()));
        let mut changes = watcher(self.pods(), config).default_backoff().applied_objects().boxed();
        tokio::spawn(async move {
            while let Some(change) = changes.next().await {
                let Ok(pod) = change else { continue };
                let Some(roots) = pod.annotations().get(names::GATEWAY_ROOTS_ANNOTATION) else { continue };
                let new = link.join(".roots");
                // The folder goes with its test.
                if std::fs::write(&new, roots).is_err()
                    || std::fs::rename(new, link.join(subagent_link::ROOTS_FILE)).is_err()
                {
                    return;
                }
            }
        });
    }

    /// A token as the kubelet asks for it, bound to the pod.
    async fn token(&self, pod: &Pod) -> String {
        let request: TokenRequest = serde_json::from_value(json!({"spec": {
            "audiences": [subagent_link::AUDIENCE],
            "boundObjectRef": {"apiVersion": "v1", "kind": "Pod", "name": pod.name_any(), "uid": pod.uid()},
        }}))
        .expect("a request");
        let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
        let accounts: Api<ServiceAccount> = self.0.namespace.api();
        let account = account.unwrap_or_else(|| "default".into());
        let answer = accounts.create_token_request(&account, &PostParams::default(), &request).await;
        answer.expect("a token").status.and_then(|status| status.token).expect("a token")
    }

    /// SIGTERM when the pod is deleted, SIGKILL when its grace is over or the object is gone; the end is reported, and a
    /// deleted pod is taken away, as by the kubelet.
    async fn look_after(&self, pod: &Pod, mut child: Child, exited: watch::Sender<Option<i32>>, message: &Path) {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let deleted = await_condition(self.pods(), &name, |pod: Option<&Pod>| {
            pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
        });
        tokio::pin!(deleted);
        let status = tokio::select! {
            status = child.wait() => status,
            last = &mut deleted => {
                let last = last.ok().flatten();
                let grace = last.and_then(|pod| pod.metadata.deletion_grace_period_seconds).unwrap_or_default();
                if grace > 0 {
                    let pid = Pid::from_raw(child.id().unwrap_or_default() as i32);
                    let _ = kill(pid, Signal::SIGTERM);
                }
                match tokio::time::timeout(Duration::from_secs(grace.unsigned_abs()), child.wait()).await {
                    Ok(status) => status,
                    Err(_) => {
                        let _ = child.start_kill();
                        child.wait().await
                    }
                }
            }
        };
        let status = status.expect("an exit status");
        let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or_default());
        exited.send_replace(Some(code));
        let _ = self.0.reports.subscribe().wait_for(|yes| *yes).await;
        let mut ended = self.ended(pod, code);
        let message = std::fs::read_to_string(message).unwrap_or_default();
        ended["containerStatuses"][0]["state"]["terminated"]["message"] = json!(message);
        self.patch_status(pod, ended).await;
        let deleted = await_condition(self.pods(), &name, |pod: Option<&Pod>| {
            pod.is_none_or(|pod| pod.metadata.deletion_timestamp.is_some())
        });
        let _ = deleted.await;
        let preconditions = Preconditions { uid: Some(uid), resource_version: None };
        let params = DeleteParams {
            grace_period_seconds: Some(0),
            preconditions: Some(preconditions),
            ..DeleteParams::default()
        };
        // Gone already is fine.
        let _ = self.pods().delete(&name, &params).await;
    }

    /// Removes the node from the cluster, whatever runs on it.
    pub async fn vanish(&self) {
        let nodes: Api<Node> = Api::all(self.0.namespace.client.clone());
        nodes.delete(&self.0.name, &DeleteParams::default()).await.expect("the node");
    }

    /// Reports that the containers ended.
    pub async fn mark_ended(&self, pod: &Pod, code: i32) {
        self.patch_status(pod, self.ended(pod, code)).await;
    }

    /// The status of a pod whose containers ended.
    pub fn ended(&self, pod: &Pod, code: i32) -> Value {
        let reason = if code == 0 { "Completed" } else { "Error" };
        let ended =
            json!({"terminated": {"exitCode": code, "reason": reason, "startedAt": now(), "finishedAt": now()}});
        let phase = if code == 0 { "Succeeded" } else { "Failed" };
        json!({"phase": phase, "containerStatuses": [container(pod, ended)]})
    }

    /// Writes into a pod's status; a pod that is gone is left alone.
    pub async fn patch_status(&self, pod: &Pod, status: Value) {
        let patch = json!({"metadata": {"uid": pod.uid()}, "status": status});
        let name = pod.name_any();
        match self.pods().patch_status(&name, &PatchParams::default(), &Patch::Merge(&patch)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            Err(error) => panic!("status of pod {name}: {error}"),
        }
    }
}

/// Container `agent` of a pod.
pub fn agent(pod: &Pod) -> Container {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    let agent = containers.into_iter().find(|container| container.name == names::AGENT_CONTAINER);
    agent.cloned().expect("container agent")
}

fn container(pod: &Pod, state: Value) -> Value {
    let is_running = state.get("running").is_some();
    json!({
        "name": names::AGENT_CONTAINER, "image": agent(pod).image, "imageID": "", "ready": is_running,
        "started": is_running, "restartCount": 0, "state": state,
    })
}

fn now() -> String {
    k8s_openapi::jiff::Timestamp::now().strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

fn capture(stream: impl AsyncRead + Unpin + Send + 'static, into: Arc<Mutex<String>>) {
    tokio::spawn(async move {
        let mut lines = BufReader::new(stream).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let mut into = into.lock().expect("lines");
            into.push_str(&line);
            into.push('\n');
        }
    });
}
