//! The operator's memory, as the kubelet measures it, and the peaks of single processes, as the kernel does.

use e2e_tests::{
    cluster::{OPERATOR_NAMESPACE, RELEASE, operator_pods},
    processes,
};
use kube::{Client, ResourceExt};
use serde_json::Value;
use std::fmt;

/// Bytes of the largest replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Resident, without files.
    resident: u64,
    /// What counts against the limit: with the pages of files in use, its own program above all.
    working_set: u64,
}

impl Memory {
    /// The larger of both figures.
    pub fn max(self, other: Self) -> Self {
        Self { resident: self.resident.max(other.resident), working_set: self.working_set.max(other.working_set) }
    }
}

impl fmt::Display for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mebibytes = |bytes: u64| bytes as f64 / 1024.0 / 1024.0;
        write!(f, "{:.1} MiB | {:.1} MiB", mebibytes(self.resident), mebibytes(self.working_set))
    }
}

/// Memory of the operator now.
pub async fn operator(client: &Client) -> Memory {
    let pods = operator_pods(client).await;
    let nodes = pods.iter().filter_map(|pod| pod.spec.as_ref()?.node_name.clone());
    nodes.map(|node| on_node(&node)).fold(Memory::default(), Memory::max)
}

/// Processes of the operator.
pub async fn operators(client: &Client) -> Vec<i32> {
    let pods = operator_pods(client).await;
    pods.iter().filter_map(|pod| processes::operator(&pod.uid()?)).collect()
}

/// Forgets the peak of a process so far.
pub fn forget_peak(process: i32) {
    std::fs::write(format!("/proc/{process}/clear_refs"), "5").expect("a process of this host");
}

/// The most bytes a process had resident since then, pages of its program included; none when it is gone.
pub fn peak(process: i32) -> Option<u64> {
    peak_in(&std::fs::read_to_string(format!("/proc/{process}/status")).ok()?)
}

fn peak_in(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kibibytes: u64 = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kibibytes * 1024)
}

fn on_node(node: &str) -> Memory {
    let text = e2e_tests::commands::kubectl(&["get", "--raw", &format!("/api/v1/nodes/{node}/proxy/stats/summary")]);
    let summary: Value = serde_json::from_str(&text).expect("the kubelet's summary");
    largest(&summary)
}

fn largest(summary: &Value) -> Memory {
    let is_ours = |pod: &&Value| {
        pod["podRef"]["namespace"] == OPERATOR_NAMESPACE
            && pod["podRef"]["name"].as_str().is_some_and(|name| name.starts_with(RELEASE))
    };
    let pods = summary["pods"].as_array().into_iter().flatten().filter(is_ours);
    let containers = pods.flat_map(|pod| pod["containers"].as_array().into_iter().flatten());
    let memory = |container: &Value| {
        let bytes = |field: &str| container["memory"][field].as_u64().unwrap_or_default();
        Memory { resident: bytes("rssBytes"), working_set: bytes("workingSetBytes") }
    };
    containers.map(memory).fold(Memory::default(), Memory::max)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_peak_is_read_from_the_kernels_word() {
        assert_eq!(peak_in("Name:\tx\nVmPeak:\t  99 kB\nVmHWM:\t   1234 kB\n"), Some(1234 * 1024));
        assert_eq!(peak_in("Name:\tx\n"), None);
    }

    #[test]
    fn the_largest_replica_counts_and_nobody_else() {
        let pod = |namespace: &str, name: &str, bytes: u64| json!({"podRef": {"namespace": namespace, "name": name}, "containers": [{"memory": {"rssBytes": bytes, "workingSetBytes": 2 * bytes}}]});
        let ours = |bytes| pod(OPERATOR_NAMESPACE, "subagent-operator-x", bytes);
        let summary = json!({"pods": [ours(3 << 20), ours(5 << 20), pod("a", "subagent-operator-x", 9 << 20)]});
        assert_eq!(largest(&summary).to_string(), "5.0 MiB | 10.0 MiB");
    }
}
