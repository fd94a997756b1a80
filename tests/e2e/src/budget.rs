//! What a run cost the API server, from the audit log.

use crate::audit::Request;

/// What the operator asked for one run.
#[derive(Clone, Debug, Default)]
pub struct Cost {
    /// Its successful writes of the run and of everything named after it.
    pub writes: Vec<Request>,
    /// How often it read the run itself. Every reconcile begins with such a read, so there were at most as many; the gateway
    /// makes one for each hello, and a reconcile that sees the pod's end makes another.
    pub reads: usize,
}

/// The cost of a run up to the release of its pod, which is the write behind `Stopped`; out of what the operator asked in
/// its namespace.
pub fn cost(asked: &[Request], run: &str) -> Cost {
    let mut cost = Cost::default();
    for request in asked.iter().filter(|request| belongs_to(request.name(), run)) {
        let what = (request.verb(), request.resource());
        if request.is_counted_write() {
            cost.writes.push(request.clone());
        }
        cost.reads += usize::from((what.0, what.1.as_str()) == ("get", "subagentruns"));
        if (what.0, what.1.as_str()) == ("patch", "pods") {
            break;
        }
    }
    cost
}

/// Whether an object is a run, or is named after it: `run-hash8-...`.
pub fn belongs_to(name: &str, run: &str) -> bool {
    let Some(rest) = name.strip_prefix(run) else { return false };
    let derived = || {
        let hash = rest.strip_prefix('-')?.split('-').next()?;
        Some(hash.len() == 8 && hash.bytes().all(|byte| byte.is_ascii_hexdigit()))
    };
    rest.is_empty() || derived().unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use serde_json::json;

    #[test]
    fn a_cost_ends_with_the_release_of_the_pod() {
        let request = |verb: &str, resource: &str, name: &str| Request {
            entry: json!({
                "verb": verb, "objectRef": {"resource": resource, "name": name},
                "responseStatus": {"code": 200}, "requestURI": "/x",
            }),
        };
        let pod = "r-0a1b2c3d-1";
        let asked = [
            request("get", "subagentruns", "r"),
            request("patch", "subagentruns", "r"),
            request("create", "pods", pod),
            request("create", "events", "r-0a1b2c3d-1.x"),
            request("patch", "subagentruns", "other"),
            request("get", "pods", pod),
            request("patch", "pods", pod),
            request("get", "subagentruns", "r"),
            request("delete", "pods", pod),
        ];
        let cost = cost(&asked, "r");
        assert_eq!((cost.writes.len(), cost.reads), (3, 1));
    }

    #[rstest]
    #[case("r-1", true)]
    #[case("r-1-0a1b2c3d-1", true)]
    #[case("r-1-0a1b2c3d-transcript-1", true)]
    #[case("r-12", false)]
    #[case("r-12-0a1b2c3d-1", false)]
    #[case("r-1-other", false)]
    #[case("scripted", false)]
    fn what_is_named_after_a_run_belongs_to_it(#[case] name: &str, #[case] expected: bool) {
        assert_eq!(belongs_to(name, "r-1"), expected);
    }
}
