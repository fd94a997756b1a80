//! Whose token is it: a TokenReview for our audience, and the pod the token is bound to.

use super::fence::Refusal;
use crate::api;
use axum::http::{HeaderMap, header::AUTHORIZATION};
use k8s_openapi::api::authentication::v1::{TokenReview, TokenReviewSpec, TokenReviewStatus};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use subagent_link::{AUDIENCE, RefusalReason};

/// Extra field of a bound token: name of its pod.
const POD_NAME: &str = "authentication.kubernetes.io/pod-name";
/// Extra field of a bound token: UID of its pod.
const POD_UID: &str = "authentication.kubernetes.io/pod-uid";
/// Username of a service account is this, the namespace, a colon, the name.
const USERNAME_PREFIX: &str = "system:serviceaccount:";

/// The pod a token is bound to, on the API server's word.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub namespace: String,
    pub pod_name: String,
    pub pod_uid: String,
}

/// The bearer token of a request.
pub(super) fn bearer(headers: &HeaderMap) -> Option<String> {
    let (scheme, token) = headers.get(AUTHORIZATION)?.to_str().ok()?.split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then(|| token.to_owned())
}

/// Asks the API server. Nothing is cached: a token ends with its pod, and connections are few.
pub(super) async fn review(client: &Client, token: String) -> Result<Identity, Refusal> {
    let review = TokenReview {
        metadata: ObjectMeta::default(),
        spec: TokenReviewSpec { token, audiences: Some(vec![AUDIENCE.to_owned()]) },
        status: None,
    };
    let reviews: Api<TokenReview> = Api::all(client.clone());
    let answer =
        api::write("token review", reviews.create(&PostParams::default(), &review)).await.map_err(|error| {
            tracing::warn!(%error, "token not reviewed");
            Refusal::later(RefusalReason::Unavailable, "the API server could not review the token")
        })?;
    identity(&answer.status.unwrap_or_default())
}

/// Reads a review. The audience is checked again: an API server that knows no audiences answers without them.
fn identity(status: &TokenReviewStatus) -> Result<Identity, Refusal> {
    // Another token may be in the pod's volume a moment later: worth another try.
    let unauthenticated = |message: &str| Refusal::later(RefusalReason::Unauthenticated, message);
    if status.authenticated != Some(true) {
        return Err(unauthenticated(status.error.as_deref().unwrap_or("the token is not valid")));
    }
    if !status.audiences.iter().flatten().any(|audience| audience == AUDIENCE) {
        return Err(unauthenticated("the token is for another audience"));
    }
    let user = status.user.as_ref();
    let account = user.and_then(|user| user.username.as_deref()?.strip_prefix(USERNAME_PREFIX)?.split_once(':'));
    let extra = |key: &str| user.and_then(|user| user.extra.as_ref()?.get(key)?.first().cloned());
    match (account, extra(POD_NAME), extra(POD_UID)) {
        (Some((namespace, _)), Some(pod_name), Some(pod_uid)) => {
            Ok(Identity { namespace: namespace.to_owned(), pod_name, pod_uid })
        }
        _ => Err(unauthenticated("the token is not bound to a pod")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::{Value, json};

    fn status(changes: Value) -> TokenReviewStatus {
        let mut status = json!({
            "authenticated": true,
            "audiences": ["subagents.dev"],
            "user": {
                "username": "system:serviceaccount:team:default",
                "extra": {POD_NAME: ["p"], POD_UID: ["u"]},
            },
        });
        for (key, value) in changes.as_object().unwrap() {
            status[key] = value.clone();
        }
        serde_json::from_value(status).unwrap()
    }

    #[test]
    fn d5_a_bound_token_names_its_pod() {
        let expected = Identity { namespace: "team".into(), pod_name: "p".into(), pod_uid: "u".into() };
        assert_eq!(identity(&status(json!({}))), Ok(expected));
    }

    #[rstest]
    #[case::not_valid(json!({"authenticated": false}))]
    #[case::other_audience(json!({"audiences": ["https://kubernetes.default.svc"]}))]
    #[case::no_audience(json!({"audiences": []}))]
    #[case::a_person(json!({"user": {"username": "jane", "extra": {POD_NAME: ["p"], POD_UID: ["u"]}}}))]
    #[case::not_bound(json!({"user": {"username": "system:serviceaccount:team:default"}}))]
    fn d5_any_other_token_is_refused(#[case] changes: Value) {
        let refusal = identity(&status(changes)).unwrap_err();
        assert_eq!((refusal.reason, refusal.retry), (RefusalReason::Unauthenticated, true));
    }

    #[rstest]
    #[case("Bearer abc", Some("abc"))]
    #[case("bearer  abc ", Some("abc"))]
    #[case("Basic abc", None)]
    #[case("Bearer ", None)]
    fn a_bearer_token_is_found(#[case] value: &str, #[case] expected: Option<&str>) {
        let headers = HeaderMap::from_iter([(AUTHORIZATION, value.parse().unwrap())]);
        assert_eq!(bearer(&headers).as_deref(), expected);
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
