//! Gates: answers that wait until somebody lets them go on.
//!
//! A test holds a turn open exactly as long as it needs, instead of guessing a delay.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::watch;

/// An answer is held at most this long: longer than any agent's own request limit, short enough that a forgotten gate
/// shows as an error in the test that forgot it.
const HELD_AT_MOST: Duration = Duration::from_secs(600);

/// One gate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Gate {
    /// Opened; it stays open.
    pub open: bool,
    /// Answers waiting for it.
    pub waiting: usize,
}

/// All gates by name.
#[derive(Debug, Clone)]
pub struct Gates(Arc<watch::Sender<BTreeMap<String, Gate>>>);

impl Default for Gates {
    fn default() -> Self {
        Self(Arc::new(watch::Sender::default()))
    }
}

impl Gates {
    /// Opens a gate, also before anything waits for it.
    pub fn open(&self, name: &str) {
        self.0.send_modify(|gates| gates.entry(name.to_owned()).or_default().open = true);
    }

    /// The gates there are.
    pub fn listing(&self) -> BTreeMap<String, Gate> {
        self.0.borrow().clone()
    }

    /// Waits until `name` is open.
    ///
    /// # Errors
    /// It stayed closed too long.
    pub(crate) async fn pass(&self, name: &str) -> Result<(), String> {
        self.pass_within(name, HELD_AT_MOST).await
    }

    async fn pass_within(&self, name: &str, limit: Duration) -> Result<(), String> {
        let _waiting = Waiting::new(self, name);
        let mut gates = self.0.subscribe();
        let open = gates.wait_for(|gates| gates.get(name).is_some_and(|gate| gate.open));
        match tokio::time::timeout(limit, open).await {
            Ok(Ok(_)) => Ok(()),
            _ => Err(format!("fake-llm: gate {name} stayed closed")),
        }
    }
}

/// Counts one waiting answer for as long as it lives.
struct Waiting<'a> {
    gates: &'a Gates,
    name: &'a str,
}

impl<'a> Waiting<'a> {
    fn new(gates: &'a Gates, name: &'a str) -> Self {
        gates.0.send_modify(|all| all.entry(name.to_owned()).or_default().waiting += 1);
        Self { gates, name }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.gates.0.send_modify(|all| all.entry(self.name.to_owned()).or_default().waiting -= 1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn an_answer_waits_for_its_own_gate_only() {
        let gates = Gates::default();
        let pass = gates.pass("a");
        tokio::pin!(pass);
        gates.open("b");
        assert!(futures::poll!(&mut pass).is_pending());
        assert_eq!(gates.listing()["a"], Gate { open: false, waiting: 1 });
        gates.open("a");
        pass.await.unwrap();
        assert_eq!(gates.listing()["a"], Gate { open: true, waiting: 0 });
        gates.pass("a").await.unwrap();
    }

    #[tokio::test]
    async fn a_forgotten_gate_ends_in_an_error() {
        assert!(Gates::default().pass_within("never", Duration::from_millis(1)).await.unwrap_err().contains("never"));
    }
}
