//! One row for each way a validation rule can be kept and broken.

use serde_json::{Value, json};

/// How a case's objects reach the API server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Created, as a merge patch of the smallest object of its kind.
    Create,
    /// Patched.
    Update,
    /// Patched through the status subresource.
    Status,
}

/// A rule, what is stored before, and what is then accepted and refused.
#[derive(Clone, Debug)]
pub struct Case {
    /// Kind and path of the rule in the schema.
    pub path: &'static str,
    /// Field the API server names: the path with an index for each list.
    pub field: &'static str,
    /// The rule's message.
    pub message: String,
    /// What this case is about.
    pub what: &'static str,
    /// How the object is before, as a merge patch of the smallest one.
    pub stored: Value,
    /// What is changed in that afterwards, because an object cannot begin that way; null for nothing.
    pub then: Value,
    /// How the two lists below are sent.
    pub request: Request,
    /// Merge patches that are accepted.
    pub accepted: Vec<Value>,
    /// Merge patches that are refused with the message.
    pub refused: Vec<Value>,
}

/// Every case. The messages stand here a second time on purpose: users read them, so a change must be meant.
pub fn cases() -> Vec<Case> {
    let of_runs =
        [creation(), immutability(), cancel(), terminal(), written_once(), rising(), current_pod(), first_status()];
    [of_runs.concat(), crate::subagents::cases()].concat()
}

pub fn case(path: &'static str, field: &'static str, message: &str, what: &'static str) -> Case {
    Case {
        path,
        field,
        message: message.into(),
        what,
        stored: json!({}),
        then: Value::Null,
        request: Request::Create,
        accepted: vec![],
        refused: vec![],
    }
}

const RUN: &str = "SubagentRun";
const SPEC: &str = "SubagentRun.spec";
const STATUS: &str = "SubagentRun.status";

fn creation() -> Vec<Case> {
    let name = "metadata.name has at most 63 characters: it becomes a label value; choose a shorter name";
    let named = |length: usize| json!({"metadata": {"name": "n".repeat(length)}});
    let names = |path| Case {
        accepted: vec![named(63)],
        refused: vec![named(64), named(253)],
        ..case(path, "<nil>", name, "length")
    };
    let text = json!({"text": "x"});
    let link = json!({"resourceLink": {"uri": "file:///x", "name": "x"}});
    let image = json!({"image": {"data": "eA==", "mimeType": "image/png"}});
    let reference = json!({"name": "prompts", "key": "one"});
    let content = |block: Value| json!({"spec": {"prompt": {"text": null, "content": [block]}}});
    let parameters = |key: &str| json!({"spec": {"parameters": {key: "x"}}});
    let filter = |filter: Value| json!({"spec": {"toolFilter": filter}});
    let activation = json!({"subagentRef": {"name": "child", "uid": "u"}, "epoch": 1});
    let described =
        |filter: Value| json!({"status": {"descriptor": merged(&descriptor(), &json!({"toolFilter": filter}))}});
    vec![
        names(RUN),
        names("SubagentProvider"),
        names("Subagent"),
        Case {
            accepted: vec![json!({}), json!({"spec": {"prompt": null, "activation": activation}})],
            refused: vec![json!({"spec": {"prompt": null}}), json!({"spec": {"activation": activation}})],
            ..case(
                SPEC,
                "spec",
                "a run has exactly one of prompt and activation; set prompt (activation is the operator's)",
                "presence",
            )
        },
        Case {
            accepted: vec![
                json!({"spec": {"prompt": text}}),
                json!({"spec": {"prompt": {"text": null, "content": [text]}}}),
                json!({"spec": {"prompt": {"text": null, "configMapKeyRef": reference}}}),
            ],
            refused: vec![
                json!({"spec": {"prompt": {"text": null}}}),
                json!({"spec": {"prompt": {"content": [text]}}}),
                json!({"spec": {"prompt": {"configMapKeyRef": reference}}}),
                json!({"spec": {"prompt": {"text": null, "content": [text], "configMapKeyRef": reference}}}),
            ],
            ..case(
                "SubagentRun.spec.prompt",
                "spec.prompt",
                "a prompt has exactly one of text, content and configMapKeyRef",
                "presence",
            )
        },
        Case {
            accepted: vec![content(text.clone()), content(link.clone()), content(image.clone())],
            refused: vec![
                content(json!({})),
                content(merged(&text, &link)),
                content(merged(&link, &image)),
                content(merged(&text, &image)),
            ],
            ..case(
                "SubagentRun.spec.prompt.content[]",
                "spec.prompt.content[0]",
                "a content block has exactly one of text, resourceLink and image",
                "presence",
            )
        },
        Case {
            accepted: vec![
                parameters("REPO"),
                parameters("_"),
                parameters("A1_B"),
                parameters(&"A".repeat(63)),
                json!({"spec": {"parameters": {}}}),
            ],
            refused: vec![
                parameters("repo"),
                parameters("1A"),
                parameters("A-B"),
                parameters(""),
                parameters("A B"),
                parameters("A\nB"),
                parameters(&"A".repeat(64)),
            ],
            ..case(
                "SubagentRun.spec.parameters",
                "spec.parameters",
                "parameter names are upper-case letters, digits and underscores, start with a letter or underscore, and have at most 63 characters",
                "names",
            )
        },
        // Presence counts, also of empty lists (c6, c16).
        Case {
            accepted: vec![
                filter(json!({"allow": []})),
                filter(json!({"deny": []})),
                filter(json!({"allow": ["read"], "deny": ["write"]})),
            ],
            refused: vec![filter(json!({}))],
            ..case("SubagentRun.spec.toolFilter", "spec.toolFilter", "toolFilter has allow, deny or both", "presence")
        },
        Case {
            request: Request::Status,
            accepted: vec![described(json!({"allow": []}))],
            refused: vec![described(json!({}))],
            ..case(
                "SubagentRun.status.descriptor.toolFilter",
                "status.descriptor.toolFilter",
                "toolFilter has allow, deny or both",
                "presence",
            )
        },
        Case {
            accepted: vec![
                json!({"spec": {"messages": []}}),
                json!({}),
                inbox(json!([said(json!({"text": "go on"}))])),
                steers([1, 2], "left"),
            ],
            refused: vec![
                told(json!({"text": "go on"})),
                told(json!({"delivery": "Interrupt"})),
                told(json!({"delivery": "Steer"})),
                told(json!({"delivery": "Steer", "content": [{"text": "x"}]})),
                told(json!({"delivery": "Steer", "text": "left", "placement": 1})),
            ],
            ..case(SPEC, "spec", MESSAGES, "at creation")
        },
        Case {
            request: Request::Update,
            accepted: vec![json!({"spec": {"messages": []}}), steers([1], "left")],
            refused: vec![json!({"spec": {"messages": [said(json!({"text": "go on"}))]}})],
            ..case(SPEC, "spec", MESSAGES, "later")
        },
        Case {
            stored: steers([1, 2], "left"),
            request: Request::Update,
            accepted: vec![steers([1, 2, 3], "left"), steers([2, 1], "left")],
            refused: vec![steers([2], "left"), json!({"spec": {"messages": null}}), steers([1, 3], "left")],
            ..case(
                SPEC,
                "spec",
                "messages of a one-shot run stay in the list; append another one with a new id",
                "removed",
            )
        },
        Case {
            accepted: vec![steers(0..16, &"x".repeat(16384))],
            refused: vec![steers(0..17, &"x".repeat(16384))],
            ..case(
                SPEC,
                "spec",
                "the texts of all messages of a one-shot run together have at most 262144 characters",
                "size",
            )
        },
        Case {
            accepted: vec![
                inbox(json!([said(json!({"content": [{"text": "x"}]}))])),
                inbox(json!([said(json!({"content": [{"resourceLink": {"uri": "file:///x", "name": "x"}}]}))])),
            ],
            refused: vec![
                inbox(json!([said(json!({"content": [{}]}))])),
                inbox(json!([said(
                    json!({"content": [{"text": "x", "resourceLink": {"uri": "file:///x", "name": "x"}}]})
                )])),
            ],
            ..case(
                "SubagentRun.spec.messages[].content[]",
                "spec.messages[0].content[0]",
                "a content block of a message has exactly one of text and resourceLink",
                "presence",
            )
        },
        Case {
            accepted: vec![json!({"spec": {"transport": {"acp": {}}}})],
            refused: vec![json!({"spec": {"transport": {"acp": null}}})],
            ..case(
                "SubagentProvider.spec.transport",
                "spec.transport",
                "transport has exactly one member; set transport.acp",
                "presence",
            )
        },
    ]
}

/// A message in its place.
fn said(content: Value) -> Value {
    merged(&json!({"id": "m1", "placement": 1}), &content)
}

/// An activation with these messages.
fn inbox(messages: Value) -> Value {
    let activation = json!({"subagentRef": {"name": "child", "uid": "u"}, "epoch": 1});
    json!({"spec": {"prompt": null, "activation": activation, "messages": messages}})
}

/// The same with a closed inbox.
fn closed(messages: Value) -> Value {
    merged(&inbox(messages), &json!({"spec": {"activation": {"inbox": "Closed"}}}))
}

const MESSAGES: &str = "a message of a one-shot run has an id, delivery Steer and text; create a new run for a follow-up, or a Subagent to go on";

/// A one-shot run with these steers, each with this text.
fn steers(ids: impl IntoIterator<Item = i32>, text: &str) -> Value {
    let steer = |id| json!({"id": format!("s{id}"), "delivery": "Steer", "text": text});
    json!({"spec": {"messages": ids.into_iter().map(steer).collect::<Vec<_>>()}})
}

/// A one-shot run with one message.
fn told(message: Value) -> Value {
    json!({"spec": {"messages": [merged(&json!({"id": "s1"}), &message)]}})
}

/// A changed, an added and a removed value of each field that is fixed at creation.
fn immutability() -> Vec<Case> {
    let mut cases = vec![];
    for (field, verb, old, new) in [
        ("providerRef", "is", json!({"name": "one"}), json!({"name": "two"})),
        ("description", "is", json!("one"), json!("two")),
        ("prompt", "is", json!({"text": "one"}), json!({"text": "two"})),
        ("parentRef", "is", json!({"kind": "SubagentRun", "name": "one"}), json!({"name": "two"})),
        ("parentRef", "is", json!({"kind": "SubagentRun", "name": "one"}), json!({"uid": "u"})),
        ("parameters", "are", json!({"A": "one"}), json!({"A": "two"})),
        ("parameters", "are", json!({"A": "one"}), json!({"B": "two"})),
        ("agentOptions", "are", json!({"model": "one"}), json!({"model": "two"})),
        ("persona", "is", json!(""), json!("two")),
        ("toolFilter", "is", json!({"allow": []}), json!({"allow": ["two"]})),
        ("toolFilter", "is", json!({"allow": []}), json!({"deny": []})),
        (
            "outputSchema",
            "is",
            json!({"type": "object", "properties": {"a": {"enum": [1]}}}),
            json!({"properties": {"a": {"enum": [2]}}}),
        ),
        ("maxDepth", "is", json!(0), json!(1)),
        ("startDeadlineSeconds", "is", json!(1), json!(2)),
        ("activeDeadlineSeconds", "is", json!(1), json!(2)),
        ("idleDeadlineSeconds", "is", json!(1), json!(2)),
        ("ttlSecondsAfterFinished", "is", json!(0), json!(1)),
        ("interruptionPolicy", "is", json!("Fail"), json!("Resume")),
        ("maxAttempts", "is", json!(1), json!(2)),
    ] {
        let message = format!("{field} {verb} immutable; create a new run");
        let set = |value: &Value| json!({"spec": {field: value}});
        let always_there = ["providerRef", "description", "prompt"].contains(&field);
        let mut refused = vec![set(&new)];
        if field == "prompt" {
            refused.push(json!({"spec": {"prompt": {"text": null, "content": [{"text": "one"}]}}}));
        }
        if !always_there {
            refused.push(set(&Value::Null));
            cases.push(Case {
                request: Request::Update,
                accepted: vec![json!({"metadata": {"labels": {"a": "b"}}}), json!({"spec": {"cancel": true}})],
                refused: vec![set(&old)],
                ..case(SPEC, "spec", &message, "added later")
            });
        }
        cases.push(Case {
            stored: set(&old),
            request: Request::Update,
            accepted: vec![set(&old), json!({"metadata": {"labels": {"a": "b"}}}), json!({"spec": {"cancel": true}})],
            refused,
            ..case(SPEC, "spec", &message, "changed or removed")
        });
    }
    let activation = json!({"subagentRef": {"name": "child", "uid": "u"}, "epoch": 1});
    let message = "activation is immutable but for its inbox; create a new run";
    cases.push(Case {
        request: Request::Update,
        accepted: vec![json!({"spec": {"cancel": true}})],
        refused: vec![json!({"spec": {"prompt": null, "activation": activation}})],
        ..case(SPEC, "spec", message, "instead of a prompt")
    });
    cases.push(Case {
        stored: json!({"spec": {"prompt": null, "activation": activation}}),
        request: Request::Update,
        accepted: vec![json!({"spec": {"cancel": true}})],
        refused: vec![json!({"spec": {"prompt": {"text": "x"}, "activation": null}})],
        ..case(SPEC, "spec", message, "replaced by a prompt")
    });
    let (one, two) = (said(json!({"text": "x"})), json!({"id": "m2", "placement": 2, "text": "x"}));
    let session = json!({"id": "s", "checkpoint": {"key": "k", "digest": "0".repeat(64), "size": 1}});
    cases.push(Case {
        stored: inbox(json!([one])),
        request: Request::Update,
        accepted: vec![closed(json!([one])), json!({"spec": {"cancel": true}})],
        refused: vec![
            json!({"spec": {"activation": {"epoch": 2}}}),
            json!({"spec": {"activation": {"subagentRef": {"uid": "v"}}}}),
            json!({"spec": {"activation": {"session": session}}}),
        ],
        ..case(SPEC, "spec", message, "another one")
    });
    cases.push(Case {
        stored: closed(json!([one])),
        request: Request::Update,
        accepted: vec![closed(json!([one]))],
        refused: vec![json!({"spec": {"activation": {"inbox": "Open"}}})],
        ..case(SPEC, "spec", "activation.inbox goes from Open to Closed once", "opened again")
    });
    cases.push(Case {
        stored: closed(json!([one])),
        request: Request::Update,
        accepted: vec![closed(json!([one])), closed(json!([]))],
        refused: vec![
            closed(json!([one, two])),
            closed(json!([two])),
            closed(json!([merged(&one, &json!({"placement": 2}))])),
        ],
        ..case(SPEC, "spec", "a closed inbox takes no new message", "one more")
    });
    cases.push(Case {
        stored: inbox(json!([one])),
        request: Request::Update,
        accepted: vec![
            inbox(json!([one])),
            inbox(json!([one, two])),
            inbox(json!([])),
            inbox(json!([merged(&one, &json!({"placement": 2, "text": "y"}))])),
        ],
        refused: vec![
            inbox(json!([merged(&one, &json!({"text": "y"}))])),
            inbox(json!([merged(&one, &json!({"delivery": "Steer"}))])),
        ],
        ..case("SubagentRun.spec.messages[]", "spec.messages[0]", "a placed message never changes", "changed")
    });
    cases
}

fn cancel() -> Vec<Case> {
    let message = "cancel goes from false to true once; create a new run to start again";
    let cancel = |value: Value| json!({"spec": {"cancel": value}});
    vec![
        Case {
            stored: cancel(json!(true)),
            request: Request::Update,
            accepted: vec![cancel(json!(true))],
            // Removed, it becomes its default again.
            refused: vec![cancel(json!(false)), cancel(Value::Null)],
            ..case(SPEC, "spec", message, "taken back")
        },
        Case {
            request: Request::Update,
            accepted: vec![cancel(json!(true)), cancel(json!(false)), cancel(Value::Null)],
            // Nothing to refuse here; the row above refuses.
            ..case(SPEC, "spec", message, "set")
        },
    ]
}

/// Everything the gateway writes, from the pod `pod-1` in attempt 1.
pub fn status() -> Value {
    json!({
        "attempt": 1, "podUID": "pod-1", "phase": "Running",
        "report": {"podUID": "pod-1", "attempt": 1, "seq": 5},
        "result": {"podUID": "pod-1", "text": "one", "sha256": "00", "size": 3},
        "transcript": {"podUID": "pod-1", "sha256": "00", "size": 3},
    })
}

pub fn descriptor() -> Value {
    json!({"version": 1, "mode": "OneShot", "provider": "provider", "providerRevision": "r", "context": "Fresh", "description": "d"})
}

/// A terminal phase is the last word (T1), and what was reported stands with it: a late final report changes nothing (R17).
fn terminal() -> Vec<Case> {
    let mut cases = vec![];
    for phase in ["Completed", "Failed", "Cancelled", "Rejected"] {
        let stored = json!({"status": merged(&status(), &json!({"phase": phase}))});
        let patch = |patch: Value| json!({"status": patch});
        let others =
            ["Pending", "Queued", "Starting", "Running", "Cancelling", "Completed", "Failed", "Cancelled", "Rejected"];
        let others =
            others.into_iter().filter(|&other| other != phase).map(|other| json!({"status": {"phase": other}}));
        let unrelated = vec![
            patch(json!({"phase": phase})),
            patch(json!({"message": "more was learned"})),
            patch(json!({"conditions": [condition("Stopped")]})),
            patch(status_without_phase()),
        ];
        cases.push(Case {
            stored: stored.clone(),
            request: Request::Status,
            accepted: unrelated.clone(),
            refused: others.chain([json!({"status": {"phase": null}})]).collect(),
            ..case(STATUS, "status", "a terminal phase never changes", "after the end")
        });
        for (field, message, change, added) in [
            (
                "report",
                "report is frozen once the phase is terminal",
                json!({"seq": 6}),
                json!({"podUID": "pod-1", "attempt": 1, "seq": 1}),
            ),
            (
                "result",
                "result is frozen once the phase is terminal",
                json!({"text": "two"}),
                json!({"podUID": "pod-1", "sha256": "00", "size": 0}),
            ),
            (
                "transcript",
                "transcript is frozen once the phase is terminal",
                json!({"size": 4}),
                json!({"podUID": "pod-1", "sha256": "00", "size": 0}),
            ),
        ] {
            cases.push(Case {
                stored: stored.clone(),
                request: Request::Status,
                accepted: unrelated.clone(),
                refused: vec![patch(json!({field: change})), patch(json!({field: null}))],
                ..case(STATUS, "status", message, "changed after the end")
            });
            cases.push(Case {
                stored: json!({"status": {"attempt": 1, "podUID": "pod-1", "phase": phase}}),
                request: Request::Status,
                accepted: vec![patch(json!({"message": "more was learned"}))],
                refused: vec![patch(json!({field: added}))],
                ..case(STATUS, "status", message, "added after the end")
            });
        }
    }
    // Before the end all of it moves.
    for phase in ["Pending", "Queued", "Starting", "Running", "Cancelling"] {
        cases.push(Case {
            stored: json!({"status": merged(&status(), &json!({"phase": phase}))}),
            request: Request::Status,
            accepted: vec![
                json!({"status": {"phase": "Failed"}}),
                json!({"status": {"phase": null}}),
                json!({"status": {"report": {"seq": 6}, "result": {"text": "two"}, "transcript": {"size": 4}}}),
                json!({"status": {"phase": "Completed", "report": {"seq": 6}, "result": {"text": "two"}, "transcript": {"size": 4}}}),
            ],
            ..case(STATUS, "status", "a terminal phase never changes", "before the end")
        });
    }
    cases
}

fn status_without_phase() -> Value {
    let mut status = status();
    if let Some(map) = status.as_object_mut() {
        map.remove("phase");
    }
    status
}

fn condition(type_: &str) -> Value {
    json!({"type": type_, "status": "True", "reason": "R", "message": "m", "lastTransitionTime": "2026-01-01T00:00:00Z"})
}

/// Lineage (c11, c13, c15), descriptor (c32, c33) and effective deadlines are fixed at acceptance.
fn written_once() -> Vec<Case> {
    let mut cases = vec![];
    for (field, value, changes) in [
        (
            "lineage",
            json!({"depth": 2, "parentUID": "p", "rootUID": "p", "ancestors": ["p"]}),
            vec![json!({"depth": 1}), json!({"parentUID": null}), json!({"rootUID": "q"}), json!({"ancestors": []})],
        ),
        (
            "descriptor",
            descriptor(),
            vec![json!({"providerRevision": "s"}), json!({"persona": ""}), json!({"version": 2})],
        ),
        (
            "stopping",
            json!({"reason": "Cancelled", "at": "2026-01-01T00:00:00Z"}),
            vec![json!({"reason": "DeadlineExceeded"}), json!({"at": "2026-01-01T00:00:01Z"})],
        ),
        (
            "effective",
            json!({"startDeadlineSeconds": 600, "ttlSecondsAfterFinished": 0, "maxAttempts": 3}),
            vec![json!({"startDeadlineSeconds": 601}), json!({"activeDeadlineSeconds": 1}), json!({"maxAttempts": 4})],
        ),
    ] {
        let message = format!("{field} is written once");
        let patch = |value: &Value| json!({"status": {field: value}});
        cases.push(Case {
            stored: patch(&value),
            request: Request::Status,
            accepted: vec![patch(&value), json!({"status": {"message": "m"}})],
            refused: changes.iter().chain([&Value::Null]).map(patch).collect(),
            ..case(STATUS, "status", &message, "changed or removed")
        });
        cases.push(Case {
            stored: json!({"status": {"message": "m"}}),
            request: Request::Status,
            accepted: vec![patch(&value)],
            ..case(STATUS, "status", &message, "written")
        });
    }
    cases
}

/// Numbers that only rise: a late write of an older view never wins (R9, R17).
fn rising() -> Vec<Case> {
    let message = "report.attempt and report.seq never decrease";
    let second =
        json!({"status": {"attempt": 2, "podUID": "pod-2", "report": {"podUID": "pod-2", "attempt": 2, "seq": 5}}});
    vec![
        Case {
            stored: json!({"status": {"attempt": 3}}),
            request: Request::Status,
            accepted: vec![json!({"status": {"attempt": 3}}), json!({"status": {"attempt": 4}})],
            refused: vec![json!({"status": {"attempt": 2}}), json!({"status": {"attempt": null}})],
            ..case(STATUS, "status", "attempt never decreases", "attempt")
        },
        Case {
            stored: json!({"status": status()}),
            request: Request::Status,
            accepted: vec![
                json!({"status": {"report": {"seq": 5}}}),
                json!({"status": {"report": {"seq": 6}}}),
                json!({"status": {"report": {"idle": true}}}),
            ],
            refused: vec![
                json!({"status": {"report": {"seq": 4}}}),
                json!({"status": {"report": {"seq": 1}}}),
                json!({"status": {"report": null}}),
            ],
            ..case(STATUS, "status", message, "seq within an attempt")
        },
        Case {
            stored: second.clone(),
            request: Request::Status,
            accepted: vec![
                // Attempt 3 counts from the start again.
                json!({"status": {"attempt": 3, "podUID": "pod-3", "report": {"podUID": "pod-3", "attempt": 3, "seq": 1}}}),
            ],
            refused: vec![
                json!({"status": {"report": {"podUID": "pod-1", "attempt": 1, "seq": 9}}}),
                json!({"status": {"report": {"podUID": "pod-1", "attempt": 1, "seq": 5}}}),
            ],
            ..case(STATUS, "status", message, "attempt of a report")
        },
    ]
}

/// What the gateway writes comes from the pod that is current (D5, R9, R17).
fn current_pod() -> Vec<Case> {
    let report = "a changed report must carry podUID and attempt of status: it comes from a pod that is not current";
    let result = "a changed result must carry podUID of status: it comes from a pod that is not current";
    let transcript = "a changed transcript must carry podUID of status: it comes from a pod that is not current";
    let none = json!({"status": {"message": "no attempt yet"}});
    let first = json!({"status": {"attempt": 1, "podUID": "pod-1"}});
    let no_pod = json!({"status": {"attempt": 1}});
    // Attempt 2 has begun; all three are still those of attempt 1.
    let next = json!({"status": merged(&status(), &json!({"report": {"podUID": "pod-1"}}))});
    let from = |pod: &str, attempt: i32| json!({"status": {"report": {"podUID": pod, "attempt": attempt, "seq": 9}}});
    let output = |field: &str, pod: &str| json!({"status": {field: {"podUID": pod, "sha256": "11", "size": 9}}});
    let mut cases = vec![
        Case {
            stored: none.clone(),
            request: Request::Status,
            refused: vec![from("pod-1", 1)],
            ..case(STATUS, "status", report, "before the first attempt")
        },
        Case {
            stored: no_pod.clone(),
            request: Request::Status,
            refused: vec![from("pod-1", 1)],
            ..case(STATUS, "status", report, "before the pod is known")
        },
        Case {
            stored: first.clone(),
            request: Request::Status,
            accepted: vec![from("pod-1", 1)],
            refused: vec![from("pod-0", 1), from("pod-1", 2)],
            ..case(STATUS, "status", report, "the first report")
        },
        Case {
            stored: next.clone(),
            request: Request::Status,
            accepted: vec![
                from("pod-1", 1),
                // The next attempt opens while the last one's words stay.
                json!({"status": {"attempt": 2, "podUID": "pod-2"}}),
                json!({"status": {"attempt": 2, "podUID": null}}),
            ],
            refused: vec![from("pod-2", 1), from("pod-1", 2), from("pod-2", 2)],
            ..case(STATUS, "status", report, "a later report")
        },
    ];
    for (field, message) in [("result", result), ("transcript", transcript)] {
        cases.extend([
            Case {
                stored: none.clone(),
                request: Request::Status,
                refused: vec![output(field, "pod-1")],
                ..case(STATUS, "status", message, "before the first attempt")
            },
            Case {
                stored: first.clone(),
                request: Request::Status,
                accepted: vec![output(field, "pod-1")],
                refused: vec![output(field, "pod-0")],
                ..case(STATUS, "status", message, "the first one")
            },
            Case {
                stored: next.clone(),
                request: Request::Status,
                accepted: vec![output(field, "pod-1"), json!({"status": {"attempt": 2, "podUID": "pod-2"}})],
                refused: vec![output(field, "pod-2")],
                ..case(STATUS, "status", message, "a later one")
            },
        ]);
    }
    cases
}

/// A run created again under the same name has no status yet: a report in flight for the old one must not be its first (R17).
fn first_status() -> Vec<Case> {
    let message = "the first status has no report, result or transcript: they come from an earlier run of this name";
    let part = |field: &str| {
        let mut value = status()[field].clone();
        if field == "report" {
            value["seq"] = json!(1);
        }
        json!({"status": {field: value}})
    };
    vec![
        Case {
            request: Request::Status,
            accepted: vec![
                json!({"status": {"phase": "Pending"}}),
                json!({"status": {"attempt": 1, "podUID": "pod-1"}}),
            ],
            refused: vec![part("report"), part("result"), part("transcript"), json!({"status": status()})],
            ..case(RUN, "status", message, "on a run without status")
        },
        Case {
            stored: json!({"status": {"attempt": 1, "podUID": "pod-1"}}),
            request: Request::Status,
            accepted: vec![part("report"), part("result"), part("transcript"), json!({"status": status()})],
            ..case(RUN, "status", message, "on an accepted run")
        },
        Case {
            stored: json!({"status": {"message": "m"}}),
            request: Request::Status,
            accepted: vec![json!({"status": {"message": null}}), json!({"status": {"message": "n"}})],
            refused: vec![json!({"status": null})],
            ..case(RUN, "status", "status cannot be removed", "removed")
        },
    ]
}

/// A JSON merge patch (RFC 7396), applied here where the API server does not: to objects that do not exist yet.
pub fn merged(target: &Value, patch: &Value) -> Value {
    let Value::Object(changes) = patch else { return patch.clone() };
    let mut result = target.as_object().cloned().unwrap_or_default();
    for (key, change) in changes {
        if change.is_null() {
            result.remove(key);
        } else {
            let old = result.get(key).cloned().unwrap_or(Value::Null);
            result.insert(key.clone(), merged(&old, change));
        }
    }
    Value::Object(result)
}
