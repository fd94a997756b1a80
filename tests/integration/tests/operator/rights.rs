//! The chart's rights for one operator: what it does here it may do in a cluster, and nothing else.

use integration_tests::{TestNamespace, chart, config_as};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SelfSubjectAccessReview, SelfSubjectAccessReviewSpec, SubjectAccessReviewStatus,
};
use kube::{
    Api, Client, Config,
    api::{DynamicObject, Patch, PatchParams, PostParams},
    core::{ApiResource, GroupVersionKind},
};
use serde_json::{Value, json};
use std::time::Duration;

/// The authorizer learns of roles by a watch; this is long for a busy machine.
const IN_FORCE: Duration = Duration::from_secs(30);

/// Who the operator of a namespace is.
#[derive(Clone, Debug)]
pub struct Rights {
    /// Full name of the release: also the lease's name.
    pub release: String,
    /// User name of its service account.
    pub user: String,
    /// Groups of that service account.
    pub groups: Vec<String>,
}

impl Rights {
    /// Renders the chart for this namespace alone, applies its roles, and waits until they are in force.
    pub async fn grant(namespace: &TestNamespace) -> Self {
        Self::grant_edited(namespace, |_| {}).await
    }

    /// The same for an operator that can read children and write none: the test is their controller.
    pub async fn grant_but_children(namespace: &TestNamespace) -> Self {
        Self::grant_edited(namespace, |role| {
            let Some(rules) = role.get_mut("rules").and_then(Value::as_array_mut) else { return };
            for rule in rules.iter_mut() {
                let resources = rule["resources"].as_array_mut().expect("resources");
                resources.retain(|resource| !["subagents", "subagents/status"].map(Value::from).contains(resource));
            }
            rules.retain(|rule| rule["resources"] != json!([]));
            rules.push(
                json!({"apiGroups": ["subagents.dev"], "resources": ["subagents"], "verbs": ["get", "list", "watch"]}),
            );
        })
        .await
    }

    async fn grant_edited(namespace: &TestNamespace, edit: impl Fn(&mut Value)) -> Self {
        let name = &namespace.name;
        let release: String = format!("so-{name}").chars().take(45).collect();
        let release = release.trim_end_matches('-').to_owned();
        let (full, watched) = (format!("fullnameOverride={release}"), format!("watchNamespaces={{{name}}}"));
        let aggregate = "rbac.aggregateToDefaultRoles=false";
        for mut object in chart::render(name, &["--set", &full, "--set", &watched, "--set", aggregate]) {
            let is_hook = object["metadata"]["annotations"]["helm.sh/hook"].is_string();
            if object["apiVersion"] == "rbac.authorization.k8s.io/v1" && !is_hook {
                edit(&mut object);
                apply(namespace, &object).await;
            }
        }
        let rights = Self {
            user: format!("system:serviceaccount:{name}:{release}"),
            groups: vec![
                "system:serviceaccounts".into(),
                format!("system:serviceaccounts:{name}"),
                "system:authenticated".into(),
            ],
            release,
        };
        rights.until_in_force(namespace).await;
        rights
    }

    /// The connection of a client with these rights.
    pub async fn config(&self) -> Config {
        config_as(&self.user, &self.groups.iter().map(String::as_str).collect::<Vec<_>>()).await
    }

    /// A client with these rights.
    pub async fn client(&self) -> Client {
        Client::try_from(self.config().await).expect("a client")
    }

    /// One question for each binding.
    async fn until_in_force(&self, namespace: &TestNamespace) {
        let reviews: Api<SelfSubjectAccessReview> = Api::all(self.client().await);
        let questions = [
            ("authentication.k8s.io", "tokenreviews", "create", None),
            ("", "pods", "create", None),
            ("coordination.k8s.io", "leases", "update", Some(self.release.clone())),
        ];
        for (group, resource, verb, name) in questions {
            let review = SelfSubjectAccessReview {
                spec: SelfSubjectAccessReviewSpec {
                    resource_attributes: Some(ResourceAttributes {
                        group: Some(group.into()),
                        resource: Some(resource.into()),
                        verb: Some(verb.into()),
                        name,
                        namespace: Some(namespace.name.clone()),
                        ..ResourceAttributes::default()
                    }),
                    ..SelfSubjectAccessReviewSpec::default()
                },
                ..SelfSubjectAccessReview::default()
            };
            let (reviews, review) = (&reviews, &review);
            namespace
                .eventually(&format!("the right to {verb} {resource}"), IN_FORCE, async || {
                    match reviews.create(&PostParams::default(), review).await.map(|review| review.status) {
                        Ok(Some(SubjectAccessReviewStatus { allowed: true, .. })) => Ok(()),
                        other => Err(format!("{other:?}")),
                    }
                })
                .await;
        }
    }
}

async fn apply(namespace: &TestNamespace, object: &Value) {
    let text = |pointer: &str| object.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned();
    let kind = GroupVersionKind::gvk("rbac.authorization.k8s.io", "v1", &text("/kind"));
    let resource = ApiResource::from_gvk(&kind);
    let api: Api<DynamicObject> = match text("/metadata/namespace") {
        own if own.is_empty() => Api::all_with(namespace.client.clone(), &resource),
        own => Api::namespaced_with(namespace.client.clone(), &own, &resource),
    };
    let params = PatchParams::apply("integration-tests").force();
    let name = text("/metadata/name");
    api.patch(&name, &params, &Patch::Apply(object)).await.unwrap_or_else(|error| panic!("{name}: {error}"));
}
