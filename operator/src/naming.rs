//! Deterministic names: the same owner and number always give the same name, so a write that is repeated after a crash
//! meets its own object and never makes a second one.

use sha2::{Digest, Sha256};

/// Longest part of the owner's name that is kept.
const PREFIX: usize = 40;

/// `prefix(<=40)-hash8(owner UID)-suffix`.
pub fn derived(owner_name: &str, owner_uid: &str, suffix: &str) -> String {
    let prefix: String = owner_name.chars().take(PREFIX).collect();
    format!("{}-{}-{suffix}", prefix.trim_end_matches(['-', '.']), short_hash(owner_uid))
}

/// The first eight hex digits of the SHA-256 of some text.
pub fn short_hash(text: &str) -> String {
    hex(&Sha256::digest(text.as_bytes())[..4])
}

/// Lower-case hex.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Name of the pod of an attempt.
pub fn pod(run_name: &str, run_uid: &str, attempt: i32) -> String {
    derived(run_name, run_uid, &attempt.to_string())
}

/// Whether a pod of that name is one of some attempt of this run.
pub fn is_pod_of(pod_name: &str, run_name: &str, run_uid: &str) -> bool {
    let attempt = pod_name.rsplit('-').next().and_then(|number| number.parse().ok());
    attempt.is_some_and(|attempt| pod(run_name, run_uid, attempt) == pod_name)
}

/// Name of the claim of a child's workspace.
pub fn claim(child_name: &str, child_uid: &str) -> String {
    derived(child_name, child_uid, "workspace")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_deterministic_distinct_and_short_enough() {
        let long = "x".repeat(63);
        assert_eq!(pod(&long, "u1", 1), pod(&long, "u1", 1));
        assert_ne!(pod(&long, "u1", 1), pod(&long, "u2", 1), "R17: another run of the same name has other pods");
        assert_ne!(pod("a", "u1", 1), pod("a", "u1", 2));
        assert!(pod(&long, "u1", 1_000_000).len() <= 63);
        assert_eq!(claim(&long, "u1"), claim(&long, "u1"));
        assert_ne!(claim("a", "u1"), claim("a", "u2"), "a child of the same name has another claim");
        assert!(claim(&long, "u1").len() <= 63);
        assert_eq!(pod("fix-", "u", 1).matches("--").count(), 0);
    }
}
