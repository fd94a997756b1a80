//! What an operator asked of the API server, from the audit log. The API server writes an entry before it answers.

use serde_json::Value;
use std::{
    fs::File,
    io::{BufRead, BufReader, Seek, SeekFrom},
};

/// A place in the audit log.
#[derive(Clone, Copy, Debug)]
pub struct Mark(u64);

impl Mark {
    /// The beginning.
    pub const START: Self = Self(0);

    /// The end of the log as it is now.
    pub fn now() -> Self {
        Self(std::fs::metadata(integration_tests::api_server::audit_log()).expect("the audit log").len())
    }

    /// What a user asked since then.
    pub fn requests_of(self, user: &str) -> Vec<Request> {
        let mut file = File::open(integration_tests::api_server::audit_log()).expect("the audit log");
        file.seek(SeekFrom::Start(self.0)).expect("a place in the audit log");
        let lines = BufReader::new(file).lines().map_while(Result::ok).filter(|line| line.contains(user));
        // The last line may be half written.
        let entries = lines.filter_map(|line| serde_json::from_str::<Value>(&line).ok()).map(Request);
        entries.filter(|request| request.text("/impersonatedUser/username") == user).collect()
    }
}

/// One answered request.
#[derive(Clone, Debug)]
pub struct Request(Value);

impl Request {
    fn text(&self, pointer: &str) -> &str {
        self.0.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether it counts for the budget of writes: everything that changed an object, but Events, Leases and
    /// TokenReviews.
    pub fn is_counted_write(&self) -> bool {
        let resource = self.text("/objectRef/resource");
        let code = self.0.pointer("/responseStatus/code").and_then(Value::as_i64).unwrap_or_default();
        ["create", "update", "patch", "delete"].contains(&self.text("/verb"))
            && (200..300).contains(&code)
            && !self.text("/requestURI").contains("dryRun=")
            && !["events", "leases", "tokenreviews"].contains(&resource)
    }

    /// Whether it was to change an object of that name, whatever the answer.
    pub fn is_patch_of(&self, name: &str) -> bool {
        self.text("/verb") == "patch" && self.object() == name
    }

    /// Whether a pod was really to be created.
    pub fn is_pod_creation(&self) -> bool {
        self.text("/verb") == "create"
            && self.text("/objectRef/resource") == "pods"
            && !self.text("/requestURI").contains("dryRun=")
    }

    /// What was done to which kind, for a count.
    pub fn what(&self) -> String {
        let (verb, resource) = (self.text("/verb"), self.text("/objectRef/resource"));
        match self.text("/objectRef/subresource") {
            "" => format!("{verb} {resource}"),
            sub => format!("{verb} {resource}/{sub}"),
        }
    }

    /// Name of the object.
    pub fn object(&self) -> &str {
        self.text("/objectRef/name")
    }

    /// Whether the authorizer refused it.
    pub fn is_forbidden(&self) -> bool {
        self.text("/annotations/authorization.k8s.io~1decision") == "forbid"
    }

    /// One line for a person.
    pub fn line(&self) -> String {
        let (verb, uri) = (self.text("/verb"), self.text("/requestURI"));
        format!("{} {verb} {uri}", self.text("/requestReceivedTimestamp"))
    }
}

/// Lines of some requests.
pub fn lines(requests: &[Request]) -> String {
    requests.iter().map(Request::line).collect::<Vec<_>>().join("\n")
}
