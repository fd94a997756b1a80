//! The rows of the table for kind Subagent.

use crate::table::{Case, Request, case, descriptor, merged};
use serde_json::{Value, json};

const CHILD: &str = "Subagent";
const SPEC: &str = "Subagent.spec";
const STATUS: &str = "Subagent.status";
const MESSAGE: &str = "Subagent.spec.messages[]";

/// Outcomes that never change, and those that do.
const FINAL: [&str; 6] = ["Started", "Claimed", "Steered", "Applied", "Rejected", "Discarded"];
const UNDER_WAY: [&str; 3] = ["Accepted", "Queued", "Parked"];

pub fn cases() -> Vec<Case> {
    [creation(), immutability(), inbox(), contents(), cancelling(), status()].concat()
}

fn spec(spec: Value) -> Value {
    json!({"spec": spec})
}

fn messages(list: Value) -> Value {
    spec(json!({"messages": list}))
}

/// The one the smallest child has.
fn first() -> Value {
    json!({"id": "m1", "text": "hello"})
}

fn second() -> Value {
    json!({"id": "m2", "text": "go on"})
}

fn noted(outcome: &str) -> Value {
    json!({"status": {"messages": [{"id": "m1", "sequence": 1, "outcome": outcome}]}})
}

fn workspace(gibibytes: i64) -> Value {
    let requests = json!({"storage": format!("{gibibytes}Gi")});
    json!({"claimTemplate": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": requests}, "storageClassName": "s"}})
}

fn creation() -> Vec<Case> {
    let parameters = |key: &str| spec(json!({"parameters": {key: "x"}}));
    let filter = |filter: Value| spec(json!({"toolFilter": filter}));
    let described =
        |filter: Value| json!({"status": {"descriptor": merged(&descriptor(), &json!({"toolFilter": filter}))}});
    vec![
        Case {
            accepted: vec![json!({}), messages(json!([second()]))],
            refused: vec![messages(json!([])), messages(Value::Null), messages(json!([first(), second()]))],
            ..case(SPEC, "spec", "a new Subagent has exactly one message: what it is told first", "at creation")
        },
        Case {
            request: Request::Update,
            accepted: vec![messages(json!([first(), second()]))],
            ..case(SPEC, "spec", "a new Subagent has exactly one message: what it is told first", "later")
        },
        Case {
            accepted: vec![json!({}), spec(json!({"cancelThroughEpoch": 0}))],
            refused: vec![spec(json!({"cancelThroughEpoch": 1}))],
            ..case(SPEC, "spec", "cancelThroughEpoch of a new Subagent is 0: nothing has run yet", "at creation")
        },
        Case {
            accepted: vec![parameters("REPO"), spec(json!({"parameters": {}}))],
            refused: vec![parameters("repo"), parameters("")],
            ..case(
                "Subagent.spec.parameters",
                "spec.parameters",
                "parameter names are upper-case letters, digits and underscores, start with a letter or underscore, and have at most 63 characters",
                "names",
            )
        },
        Case {
            accepted: vec![filter(json!({"allow": []})), filter(json!({"deny": ["write"]}))],
            refused: vec![filter(json!({}))],
            ..case("Subagent.spec.toolFilter", "spec.toolFilter", "toolFilter has allow, deny or both", "presence")
        },
        Case {
            request: Request::Status,
            accepted: vec![described(json!({"allow": []}))],
            refused: vec![described(json!({}))],
            ..case(
                "Subagent.status.descriptor.toolFilter",
                "status.descriptor.toolFilter",
                "toolFilter has allow, deny or both",
                "presence",
            )
        },
    ]
}

/// A changed, an added and a removed value of each field that is fixed at creation.
fn immutability() -> Vec<Case> {
    let mut cases = vec![];
    for (field, verb, old, new) in [
        ("providerRef", "is", json!({"name": "one"}), json!({"name": "two"})),
        ("description", "is", json!("one"), json!("two")),
        ("parentRef", "is", json!({"kind": "Subagent", "name": "one"}), json!({"name": "two"})),
        ("parameters", "are", json!({"A": "one"}), json!({"A": "two"})),
        ("agentOptions", "are", json!({"model": "one"}), json!({"model": "two"})),
        ("persona", "is", json!(""), json!("two")),
        ("toolFilter", "is", json!({"allow": []}), json!({"deny": []})),
        ("maxDepth", "is", json!(0), json!(1)),
        ("workspace", "is", workspace(1), workspace(2)),
    ] {
        let message = format!("{field} {verb} immutable; create a new Subagent");
        let set = |value: &Value| spec(json!({field: value}));
        let kept = vec![
            json!({"metadata": {"labels": {"a": "b"}}}),
            spec(json!({"historyLimit": 7, "activation": {"residencySeconds": 60, "idleDeadlineSeconds": 5}})),
        ];
        let mut refused = vec![set(&new)];
        if !["providerRef", "description"].contains(&field) {
            refused.push(set(&Value::Null));
            cases.push(Case {
                request: Request::Update,
                accepted: kept.clone(),
                refused: vec![set(&old)],
                ..case(SPEC, "spec", &message, "added later")
            });
        }
        cases.push(Case {
            stored: set(&old),
            request: Request::Update,
            accepted: [vec![set(&old)], kept].concat(),
            refused,
            ..case(SPEC, "spec", &message, "changed or removed")
        });
    }
    cases
}

/// R12: an entry is appended, never changed, and removed only when it is over.
fn inbox() -> Vec<Case> {
    let message = "a message can be removed only when status.messages shows a final outcome for it; leave those that are under way in the list";
    let removed = || vec![messages(json!([])), messages(json!([second()]))];
    let kept =
        || vec![messages(json!([first()])), messages(json!([first(), second()])), messages(json!([second(), first()]))];
    let mut cases = vec![Case {
        request: Request::Update,
        accepted: kept(),
        refused: removed(),
        ..case(CHILD, "spec.messages", message, "not seen yet")
    }];
    cases.extend(UNDER_WAY.map(|outcome| Case {
        stored: noted(outcome),
        request: Request::Update,
        accepted: kept(),
        refused: removed(),
        ..case(CHILD, "spec.messages", message, "under way")
    }));
    cases.extend(FINAL.map(|outcome| Case {
        stored: noted(outcome),
        request: Request::Update,
        accepted: [kept(), removed()].concat(),
        ..case(CHILD, "spec.messages", message, "over")
    }));
    let other = json!({"status": {"messages": [{"id": "m2", "sequence": 1, "outcome": "Claimed"}]}});
    cases.push(Case {
        stored: other,
        request: Request::Update,
        refused: removed(),
        ..case(CHILD, "spec.messages", message, "another is over")
    });
    cases.push(Case {
        request: Request::Update,
        accepted: kept(),
        refused: vec![
            messages(json!([{"id": "m1", "text": "hallo"}])),
            messages(json!([{"id": "m1", "text": "hello", "delivery": "Steer"}])),
            messages(json!([{"id": "m1", "content": [{"text": "hello"}]}])),
        ],
        ..case(MESSAGE, "spec.messages[0]", "a message never changes; append another one with a new id", "changed")
    });
    let full = |count: usize, last: &Value| {
        let long = |i: usize| json!({"id": format!("w{i}"), "text": "x".repeat(16384)});
        let list: Vec<Value> = [first()].into_iter().chain((0..count).map(long)).chain([last.clone()]).collect();
        messages(json!(list))
    };
    // The first has 5 characters.
    let rest = 16384 - 5;
    cases.push(Case {
        request: Request::Update,
        accepted: vec![
            full(15, &json!({"id": "z", "text": "x".repeat(rest)})),
            full(15, &json!({"id": "z", "content": [{"text": "x".repeat(rest - 2)}, {"resourceLink": {"uri": "u", "name": "n"}}]})),
        ],
        refused: vec![
            full(15, &json!({"id": "z", "text": "x".repeat(rest + 1)})),
            full(15, &json!({"id": "z", "content": [{"text": "x".repeat(rest)}, {"text": "x"}]})),
            full(15, &json!({"id": "z", "content": [{"text": "x".repeat(rest - 1)}, {"resourceLink": {"uri": "u", "name": "n"}}]})),
        ],
        ..case(
            "Subagent.spec.messages",
            "spec.messages",
            "the contents of all messages together have at most 262144 characters; wait until some are over, and remove those",
            "in all",
        )
    });
    cases
}

fn contents() -> Vec<Case> {
    let only = |message: Value| messages(json!([merged(&json!({"id": "m1"}), &message)]));
    let text = json!({"text": "x"});
    let content = json!({"content": [{"text": "x"}]});
    let link = json!({"resourceLink": {"uri": "file:///x", "name": "x"}});
    let of_delivery = |delivery: &str| json!({"delivery": delivery});
    vec![
        Case {
            accepted: vec![only(text.clone()), only(content.clone())],
            refused: vec![only(merged(&text, &content))],
            ..case(MESSAGE, "spec.messages[0]", "a message has text or content, not both", "presence")
        },
        Case {
            accepted: vec![
                only(of_delivery("Interrupt")),
                only(merged(&text, &of_delivery("Interrupt"))),
                only(merged(&content, &of_delivery("Steer"))),
            ],
            refused: vec![only(json!({})), only(of_delivery("Queue")), only(of_delivery("Steer"))],
            ..case(
                MESSAGE,
                "spec.messages[0]",
                "a message has text or content; only delivery Interrupt may have neither",
                "presence",
            )
        },
        Case {
            accepted: vec![only(json!({"content": [text]})), only(json!({"content": [link, text]}))],
            refused: vec![only(json!({"content": [{}]})), only(json!({"content": [merged(&text, &link)]}))],
            ..case(
                "Subagent.spec.messages[].content[]",
                "spec.messages[0].content[0]",
                "a content block of a message has exactly one of text and resourceLink",
                "presence",
            )
        },
    ]
}

/// R15: what does not exist cannot be cancelled, and a cancel is not taken back.
fn cancelling() -> Vec<Case> {
    let through = |epoch: i64| spec(json!({"cancelThroughEpoch": epoch}));
    let bound = "cancelThroughEpoch is at most status.epochs: only an activation that exists can be cancelled";
    vec![
        Case {
            request: Request::Update,
            accepted: vec![through(0)],
            refused: vec![through(1)],
            ..case(CHILD, "spec.cancelThroughEpoch", bound, "before the first activation")
        },
        Case {
            stored: json!({"status": {"epochs": 2}}),
            request: Request::Update,
            accepted: vec![through(0), through(1), through(2)],
            refused: vec![through(3), through(1000)],
            ..case(CHILD, "spec.cancelThroughEpoch", bound, "beyond the newest")
        },
        Case {
            stored: json!({"status": {"epochs": 3}}),
            then: through(2),
            request: Request::Update,
            accepted: vec![through(2), through(3)],
            // Removed, it becomes its default again.
            refused: vec![through(1), through(0), spec(json!({"cancelThroughEpoch": null}))],
            ..case(SPEC, "spec", "cancelThroughEpoch only rises", "taken back")
        },
    ]
}

fn status() -> Vec<Case> {
    let patch = |field: &str, value: &Value| json!({"status": {field: value}});
    let lineage = json!({"depth": 2, "parentUID": "p", "rootUID": "p", "ancestors": ["p"]});
    let mut cases = vec![Case {
        stored: json!({"status": {"message": "m"}}),
        request: Request::Status,
        accepted: vec![json!({"status": {"message": null}}), json!({"status": {"message": "n"}})],
        refused: vec![json!({"status": null})],
        ..case(CHILD, "status", "status cannot be removed", "removed")
    }];
    for (field, value, changes) in [
        ("lineage", lineage, vec![json!({"depth": 1}), json!({"rootUID": "q"}), json!({"ancestors": []})]),
        ("descriptor", descriptor(), vec![json!({"providerRevision": "s"}), json!({"persona": ""})]),
        (
            "workspace",
            json!({"claimName": "w", "claimUID": "u"}),
            vec![json!({"claimName": "v"}), json!({"claimUID": "v"})],
        ),
    ] {
        let message = format!("{field} is written once");
        cases.push(Case {
            stored: patch(field, &value),
            request: Request::Status,
            accepted: vec![patch(field, &value), json!({"status": {"message": "m"}})],
            refused: changes.iter().chain([&Value::Null]).map(|change| patch(field, change)).collect(),
            ..case(STATUS, "status", &message, "changed or removed")
        });
        cases.push(Case {
            stored: json!({"status": {"message": "m"}}),
            request: Request::Status,
            accepted: vec![patch(field, &value)],
            ..case(STATUS, "status", &message, "written")
        });
    }
    cases.push(Case {
        stored: json!({"status": {"epochs": 2}}),
        request: Request::Status,
        accepted: vec![patch("epochs", &json!(2)), patch("epochs", &json!(3))],
        refused: vec![patch("epochs", &json!(1)), patch("epochs", &Value::Null)],
        ..case(STATUS, "status", "epochs never decreases", "a late writer")
    });
    let rejected = "a rejected child stays rejected";
    cases.push(Case {
        stored: patch("phase", &json!("Rejected")),
        request: Request::Status,
        accepted: vec![patch("message", &json!("m"))],
        refused: vec![patch("phase", &json!("Settled")), patch("phase", &Value::Null)],
        ..case(STATUS, "status", rejected, "taken back")
    });
    cases.push(Case {
        stored: patch("phase", &json!("Settled")),
        request: Request::Status,
        accepted: ["Active", "Parked", "Rejected", "NotResumable", "Terminating"]
            .map(|to| patch("phase", &json!(to)))
            .into(),
        ..case(STATUS, "status", rejected, "any other phase")
    });
    cases
}
