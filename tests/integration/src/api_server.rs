//! The API server the tests talk to.

use crate::{commands::repository, schema};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::{
    Api, Client, Config,
    api::{GetParams, Patch, PatchParams},
    config::{KubeConfigOptions, Kubeconfig},
    core::Request,
};
use serde_json::Value;
use std::time::{Duration, Instant};
use tokio::sync::OnceCell;

/// Installing two definitions takes a second on two busy cores.
const INSTALL_LIMIT: Duration = Duration::from_secs(60);

/// Kept also when it failed: every other test of the process would wait as long and fail alike.
static INSTALLED: OnceCell<Result<(), String>> = OnceCell::const_new();

/// The connection of a cluster administrator.
///
/// # Panics
/// Unless `tests/integration/run` (or the likes of it) started the API server. `KUBECONFIG` alone could name the cluster
/// someone works with; these tests install definitions and policies.
pub async fn config() -> Config {
    for name in ["KUBECONFIG", "SUBAGENT_AUDIT_LOG"] {
        assert!(std::env::var_os(name).is_some(), "{name} is not set; start these tests with tests/integration/run");
    }
    let file = Kubeconfig::read().expect("the file KUBECONFIG names");
    Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await.expect("a usable kubeconfig")
}

/// A client with all rights, after the definitions were installed. A client belongs to the runtime it was made in, so
/// every test makes its own.
pub async fn client() -> Client {
    let client = Client::try_from(config().await).expect("a client");
    if let Err(error) = INSTALLED.get_or_init(|| install(&client)).await {
        panic!("{error}");
    }
    client
}

/// A client of another user, by impersonation.
pub async fn client_as(user: &str, groups: &[&str]) -> Client {
    Client::try_from(config_as(user, groups).await).expect("a client")
}

/// The connection of another user, by impersonation.
pub async fn config_as(user: &str, groups: &[&str]) -> Config {
    let mut config = config().await;
    config.auth_info.impersonate = Some(user.to_owned());
    config.auth_info.impersonate_groups = Some(groups.iter().map(|&group| group.to_owned()).collect());
    config
}

/// Path of the audit log, one JSON event a line.
pub fn audit_log() -> std::path::PathBuf {
    std::env::var_os("SUBAGENT_AUDIT_LOG").expect("SUBAGENT_AUDIT_LOG").into()
}

/// Applies `crds/*.yaml`, the files that are installed everywhere, and waits until the API server enforces them.
async fn install(client: &Client) -> Result<(), String> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let mut names = vec![];
    let folder = repository().join("crds");
    for entry in std::fs::read_dir(&folder).expect("the folder of the definitions") {
        let path = entry.expect("an entry").path();
        if path.extension().is_none_or(|extension| extension != "yaml") {
            continue;
        }
        let text = std::fs::read_to_string(&path).expect("a definition");
        let crd: Value = serde_saphyr::from_str(&text).expect("a definition in YAML");
        let name = crd["metadata"]["name"].as_str().expect("a name").to_owned();
        let params = PatchParams::apply("integration-tests").force();
        api.patch(&name, &params, &Patch::Apply(&crd))
            .await
            .unwrap_or_else(|e| panic!("the API server refuses {}: {e}", path.display()));
        names.push(name);
    }
    assert!(!names.is_empty(), "no definitions in {}", folder.display());
    let began = Instant::now();
    loop {
        let missing = not_enforced(client, &api, &names).await;
        if missing.is_empty() {
            return Ok(());
        }
        if began.elapsed() > INSTALL_LIMIT {
            return Err(format!("definitions not in force within {INSTALL_LIMIT:?}: {missing:?}"));
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// What is still missing: a condition, or a rule in the published schema. Only the latter tells that a definition that
/// was there before in another version is in force.
async fn not_enforced(client: &Client, api: &Api<CustomResourceDefinition>, names: &[String]) -> Vec<String> {
    let mut missing = vec![];
    for name in names {
        let crd = api.get(name).await.expect("a definition");
        let conditions = crd.status.and_then(|status| status.conditions).unwrap_or_default();
        if !conditions.iter().any(|condition| condition.type_ == "Established" && condition.status == "True") {
            missing.push(format!("{name}: not Established"));
        }
    }
    let request = Request::new(format!("/openapi/v3/apis/{}", subagent_crds::GROUP));
    let request = request.get(subagent_crds::VERSION, &GetParams::default()).expect("a request");
    let published: Value = client.request(request).await.unwrap_or_default();
    let schemas = published["components"]["schemas"].as_object();
    let published: Vec<_> =
        schemas.into_iter().flat_map(|schemas| schemas.values()).flat_map(schema::rules_of).collect();
    for rule in schema::rules() {
        if !published.iter().any(|there| there.rule == rule.rule && there.message == rule.message) {
            missing.push(format!("{}: rule {} not published", rule.path, rule.rule));
        }
    }
    missing
}
