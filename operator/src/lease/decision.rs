//! What a candidate does with the lease it sees. Pure.

use super::LEASE_DURATION;
use k8s_openapi::api::coordination::v1::Lease;
use std::time::Duration;
use tokio::time::Instant;

/// The part of a lease that changes with every acquisition and renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Record {
    /// Holder, empty when released.
    pub holder: String,
    /// How long the holder promised to be quiet at most.
    pub duration: Duration,
    /// The record's own stamps; only their change matters, they are another node's clock.
    stamps: (Option<String>, Option<String>, i32),
}

impl Record {
    pub fn of(lease: &Lease) -> Self {
        let spec = lease.spec.clone().unwrap_or_default();
        let seconds = spec.lease_duration_seconds.and_then(|seconds| u64::try_from(seconds).ok());
        Self {
            holder: spec.holder_identity.unwrap_or_default(),
            duration: seconds.map_or(LEASE_DURATION, Duration::from_secs),
            stamps: (
                spec.acquire_time.map(|time| time.0.to_string()),
                spec.renew_time.map(|time| time.0.to_string()),
                spec.lease_transitions.unwrap_or(0),
            ),
        }
    }
}

/// A record and since when it has been seen unchanged, by the local clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Observation {
    pub record: Record,
    pub since: Instant,
}

impl Observation {
    /// What is known after one more look.
    pub fn update(before: Option<Self>, record: Option<Record>, now: Instant) -> Option<Self> {
        let record = record?;
        match before {
            Some(before) if before.record == record => Some(before),
            _ => Some(Self { record, since: now }),
        }
    }
}

/// What to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// There is no lease: create it.
    Create,
    /// The lease is free or expired: replace its holder.
    TakeOver,
    /// The lease already names this candidate, which has just started (a restarted container keeps its pod's name).
    Continue,
    /// Another one leads.
    Wait,
}

pub(super) fn decide(now: Instant, identity: &str, observation: Option<&Observation>) -> Action {
    let Some(Observation { record, since }) = observation else { return Action::Create };
    if record.holder.is_empty() {
        Action::TakeOver
    } else if record.holder == identity {
        Action::Continue
    } else if now.duration_since(*since) > record.duration {
        Action::TakeOver
    } else {
        Action::Wait
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::{
        api::coordination::v1::LeaseSpec, apimachinery::pkg::apis::meta::v1::MicroTime, jiff::Timestamp,
    };
    use rstest::rstest;

    fn record(holder: &str, renewed: i64) -> Record {
        let spec = LeaseSpec {
            holder_identity: Some(holder.to_owned()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(Timestamp::from_second(renewed).unwrap())),
            ..LeaseSpec::default()
        };
        Record::of(&Lease { spec: Some(spec), ..Lease::default() })
    }

    #[rstest]
    #[case::no_lease(None, 0, Action::Create)]
    #[case::released(Some(""), 0, Action::TakeOver)]
    #[case::own(Some("me"), 0, Action::Continue)]
    #[case::other_fresh(Some("other"), 0, Action::Wait)]
    #[case::other_at_the_limit(Some("other"), 15, Action::Wait)]
    #[case::other_expired(Some("other"), 16, Action::TakeOver)]
    fn r9_a_candidate_takes_only_what_is_free(
        #[case] holder: Option<&str>,
        #[case] unchanged_seconds: u64,
        #[case] expected: Action,
    ) {
        let start = Instant::now();
        let observation = Observation::update(None, holder.map(|holder| record(holder, 0)), start);
        assert_eq!(decide(start + Duration::from_secs(unchanged_seconds), "me", observation.as_ref()), expected);
    }

    #[test]
    fn r9_expiry_counts_from_the_last_change_seen_here_whatever_the_stamps_say() {
        let start = Instant::now();
        let later = |seconds| start + Duration::from_secs(seconds);
        // The holder's clock is far behind: its first stamp is already "old". That must not matter.
        let first = Observation::update(None, Some(record("other", -100_000)), start);
        assert_eq!(decide(later(10), "me", first.as_ref()), Action::Wait);
        let renewed = Observation::update(first, Some(record("other", -99_990)), later(10));
        assert_eq!(decide(later(20), "me", renewed.as_ref()), Action::Wait);
        let same = Observation::update(renewed, Some(record("other", -99_990)), later(20));
        assert_eq!(same.as_ref().unwrap().since, later(10), "an unchanged record keeps its time");
        assert_eq!(decide(later(26), "me", same.as_ref()), Action::TakeOver);
    }
}
