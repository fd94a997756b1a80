//! The API server's audit log: every answered request, who made it, and what the authorizer decided.

use crate::commands::cluster_dir;
use serde_json::Value;
use std::{
    fs::File,
    io::{BufRead, BufReader},
};

/// One answered request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The whole entry.
    pub entry: Value,
}

impl Request {
    fn text(&self, pointer: &str) -> &str {
        self.entry.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
    }

    /// Who asked.
    pub fn user(&self) -> &str {
        self.text("/user/username")
    }

    /// `get`, `create`, ...
    pub fn verb(&self) -> &str {
        self.text("/verb")
    }

    /// The resource, with its subresource behind a slash.
    pub fn resource(&self) -> String {
        let (resource, sub) = (self.text("/objectRef/resource"), self.text("/objectRef/subresource"));
        if sub.is_empty() { resource.to_owned() } else { format!("{resource}/{sub}") }
    }

    /// The object's name; empty for a list.
    pub fn name(&self) -> &str {
        self.text("/objectRef/name")
    }

    /// True when the caller named itself this field manager.
    pub fn has_manager(&self, manager: &str) -> bool {
        let query = self.text("/requestURI").split_once('?').map_or("", |(_, query)| query);
        query.split('&').any(|part| part.strip_prefix("fieldManager=") == Some(manager))
    }

    /// When it was answered, RFC 3339 with microseconds.
    pub fn done_at(&self) -> &str {
        self.text("/stageTimestamp")
    }

    /// When it arrived, RFC 3339 with microseconds.
    pub fn at(&self) -> &str {
        self.text("/requestReceivedTimestamp")
    }

    /// HTTP status of the answer.
    pub fn code(&self) -> i64 {
        self.entry.pointer("/responseStatus/code").and_then(Value::as_i64).unwrap_or_default()
    }

    /// What the authorizer decided: `allow` or `forbid`.
    pub fn decision(&self) -> &str {
        self.text("/annotations/authorization.k8s.io~1decision")
    }

    /// True when nothing was to be stored.
    pub fn is_dry_run(&self) -> bool {
        self.text("/requestURI").contains("dryRun=")
    }

    /// Whether it counts for the budget of writes: everything that changed an object, but Events, Leases and
    /// TokenReviews.
    pub fn is_counted_write(&self) -> bool {
        ["create", "update", "patch", "delete"].contains(&self.verb())
            && (200..300).contains(&self.code())
            && !self.is_dry_run()
            && !["events", "leases", "tokenreviews"].contains(&self.text("/objectRef/resource"))
    }

    /// One line about it.
    pub fn line(&self) -> String {
        let (verb, resource, uri) = (self.verb(), self.resource(), self.text("/requestURI"));
        format!("{} {verb} {resource} {uri}: {} {}", self.at(), self.code(), self.decision())
    }
}

/// The requests whose entry contains a text and that `keep` keeps.
///
/// # Panics
/// When the audit log cannot be read.
pub fn requests(containing: &str, keep: impl Fn(&Request) -> bool) -> Vec<Request> {
    let path = cluster_dir().join("audit.log");
    let file = File::open(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let lines = BufReader::new(file).lines().map(|line| line.expect("a line of the audit log"));
    lines
        .filter(|line| line.contains(containing))
        // The newest line may be half written.
        .filter_map(|line| serde_json::from_str(&line).ok().map(|entry| Request { entry }))
        .filter(keep)
        .collect()
}

/// The requests about a namespace or anything in it.
pub fn requests_in(namespace: &str) -> Vec<Request> {
    requests(&format!("\"namespace\":\"{namespace}\""), |_| true)
}

/// The pods that anybody really asked to create in a namespace.
pub fn pods_created(namespace: &str) -> Vec<String> {
    let all = requests_in(namespace);
    let creates = all
        .iter()
        .filter(|request| request.verb() == "create" && request.resource() == "pods" && !request.is_dry_run());
    creates.map(Request::line).collect()
}
