//! Root certificates and when they change. Pure: time is an argument.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use time::OffsetDateTime;

/// Life of a root: ten years.
pub const ROOT_VALIDITY: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
/// A next root is made when the current one has less than this left: a year of slack for an operator that is not running.
const NEXT_BEFORE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// Certificates begin this much before now: nodes' clocks differ.
pub(super) const BACKDATE: SignedDuration = SignedDuration::from_hours(1);

/// A certificate that cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    /// Making or parsing failed.
    #[error("certificate: {0}")]
    Rcgen(#[from] rcgen::Error),
    /// The PEM of a stored certificate is damaged.
    #[error("the gateway's root certificate cannot be read: {0}")]
    Damaged(String),
    /// A key that rustls does not take.
    #[error("key: {0}")]
    Key(#[from] rustls::Error),
}

/// A root that can sign.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct Root {
    pub certificate: String,
    pub key: String,
}

impl std::fmt::Debug for Root {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Root").field("certificate", &self.certificate).finish_non_exhaustive()
    }
}

impl Root {
    pub fn generate(now: Timestamp) -> Result<Self, RootError> {
        let mut params = CertificateParams::default();
        // The name differs per root, so that a verifier never tries one root's key on another root's leaf.
        params.distinguished_name.push(DnType::CommonName, format!("subagent-gateway root {}", now.as_second()));
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = offset(now - BACKDATE)?;
        params.not_after = offset(now + ROOT_VALIDITY)?;
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self { certificate, key: key.serialize_pem() })
    }

    pub fn issuer(&self) -> Result<Issuer<'static, KeyPair>, RootError> {
        Ok(Issuer::from_ca_cert_pem(&self.certificate, KeyPair::from_pem(&self.key)?)?)
    }
}

/// First and last moment of a certificate.
pub(super) fn validity(certificate: &str) -> Result<(Timestamp, Timestamp), RootError> {
    let damaged = |error: &dyn std::fmt::Display| RootError::Damaged(error.to_string());
    let der = CertificateDer::from_pem_slice(certificate.as_bytes()).map_err(|error| damaged(&error))?;
    let (_, parsed) = x509_parser::parse_x509_certificate(&der).map_err(|error| damaged(&error))?;
    let at = |seconds| Timestamp::from_second(seconds).map_err(|error| damaged(&error));
    Ok((at(parsed.validity().not_before.timestamp())?, at(parsed.validity().not_after.timestamp())?))
}

pub(super) fn offset(time: Timestamp) -> Result<OffsetDateTime, RootError> {
    OffsetDateTime::from_unix_timestamp(time.as_second()).map_err(|error| RootError::Damaged(error.to_string()))
}

/// What a look at the live worker pods found: do their annotations hold every root of the bundle?
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Carried {
    /// All of them did already.
    Everywhere,
    /// All of them do now; some were given it just now.
    JustGiven,
    /// Some do not, and could not be given it.
    NotEverywhere,
}

/// The roots in use, as the Secret holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Roots {
    /// Signs.
    pub current: Root,
    /// Is published and signs later.
    pub next: Option<Root>,
    /// Since when every live worker pod is known to carry `next`.
    pub carried_since: Option<Timestamp>,
    /// Signed before; leaves of a replica that has not looked yet still hang on it. Its key is gone.
    pub previous: Option<String>,
}

impl Roots {
    pub fn first(now: Timestamp) -> Result<Self, RootError> {
        Ok(Self { current: Root::generate(now)?, next: None, carried_since: None, previous: None })
    }

    pub fn signer(&self) -> &Root {
        &self.current
    }

    /// Every root that a worker may meet now, the signing one first.
    pub fn bundle(&self, now: Timestamp) -> Result<String, RootError> {
        let all =
            [Some(&self.current.certificate), self.next.as_ref().map(|next| &next.certificate), self.previous.as_ref()];
        let mut bundle = String::new();
        for certificate in all.into_iter().flatten() {
            if validity(certificate)?.1 > now {
                bundle.push_str(certificate.trim_end());
                bundle.push('\n');
            }
        }
        Ok(bundle)
    }

    /// The roots as they must be at `now`, `None` when nothing has to change. One step at a time: each is stored and
    /// seen by every replica before the next. Whether a new root may sign is not decided here but by [`Self::after_look`],
    /// with one exception: an expired signer helps nobody, then the next one signs at once.
    pub fn step(&self, now: Timestamp) -> Result<Option<Self>, RootError> {
        let (_, current_end) = validity(&self.current.certificate)?;
        match &self.next {
            Some(next) if now >= current_end => return Ok(Some(self.promoted(next))),
            None if now + NEXT_BEFORE > current_end => {
                return Ok(Some(Self { next: Some(Root::generate(now)?), carried_since: None, ..self.clone() }));
            }
            _ => {}
        }
        if let Some(previous) = &self.previous
            && validity(previous)?.1 <= now
        {
            return Ok(Some(Self { previous: None, ..self.clone() }));
        }
        Ok(None)
    }

    /// The roots after a look at the live worker pods, `None` when nothing has to change. The next root signs once every
    /// pod has carried it for `wait`, which is the kubelets' time to bring it into the pods' volumes: a worker that does
    /// not trust the signer could never connect again. A pod that was found without it starts the wait anew.
    pub fn after_look(&self, carried: Carried, now: Timestamp, wait: SignedDuration) -> Option<Self> {
        let next = self.next.as_ref()?;
        let carried_since = match (carried, self.carried_since) {
            (Carried::Everywhere, Some(since)) if now >= since + wait => return Some(self.promoted(next)),
            (Carried::Everywhere, Some(since)) => Some(since),
            (Carried::Everywhere, None) | (Carried::JustGiven, _) => Some(now),
            (Carried::NotEverywhere, _) => None,
        };
        (carried_since != self.carried_since).then(|| Self { carried_since, ..self.clone() })
    }

    /// The next root signs. The one before it stays trusted until it expires: replicas that have not looked yet show
    /// leaves of it, and pods need not be touched again.
    fn promoted(&self, next: &Root) -> Self {
        Self {
            current: next.clone(),
            next: None,
            carried_since: None,
            previous: Some(self.current.certificate.clone()),
        }
    }
}

/// True when a pod's annotation holds every certificate of the bundle, in whatever order and with whatever else.
pub(super) fn carries(annotation: &str, bundle: &str) -> bool {
    const END: &str = "-----END CERTIFICATE-----";
    bundle
        .split_inclusive(END)
        .map(str::trim)
        .filter(|block| block.ends_with(END))
        .all(|block| annotation.contains(block))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    fn start() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn days(count: i64) -> SignedDuration {
        SignedDuration::from_hours(count * 24)
    }

    /// An hour: what every pod must have carried a root for.
    const WAIT: SignedDuration = SignedDuration::from_hours(1);

    #[test]
    fn a_root_is_published_before_it_signs_and_trusted_after_it_signed() {
        let first = Roots::first(start()).unwrap();
        let (begin, end) = validity(&first.current.certificate).unwrap();
        assert_eq!((begin, end), (start() - BACKDATE, start() + ROOT_VALIDITY));
        assert_eq!(first.step(start()).unwrap(), None);
        assert_eq!(first.step(end - days(366)).unwrap(), None, "more than a year is left");
        assert_eq!(first.after_look(Carried::Everywhere, start(), WAIT), None, "there is nothing to wait for");

        let due = end - days(364);
        let two = first.step(due).unwrap().expect("a next root");
        assert_eq!(two.signer(), first.signer(), "the old root still signs");
        let next = two.next.clone().unwrap();
        assert!(two.bundle(due).unwrap().contains(next.certificate.trim_end()), "but the new one is already trusted");
        assert_eq!(two.step(due + days(300)).unwrap(), None, "time alone does not make it sign");

        let carried = two.after_look(Carried::Everywhere, due, WAIT).expect("the wait begins");
        assert_eq!((carried.signer(), carried.carried_since), (first.signer(), Some(due)));
        let promoted = carried.after_look(Carried::Everywhere, due + WAIT, WAIT).expect("a promotion");
        assert_eq!((promoted.signer(), promoted.carried_since), (&next, None));
        let bundle = promoted.bundle(due + days(1)).unwrap();
        assert!(bundle.contains(first.current.certificate.trim_end()), "leaves of the old root are still trusted");
        assert_eq!(promoted.step(due + days(2)).unwrap(), None);

        let late = promoted.step(end).unwrap().expect("the expired root leaves");
        assert_eq!(late.previous, None);
        assert_eq!(late.bundle(end).unwrap().matches("BEGIN CERTIFICATE").count(), 1);
    }

    /// What one look leads to.
    #[derive(Debug, PartialEq, Eq)]
    enum Then {
        Nothing,
        Since(i64),
        Unknown,
        Signs,
    }

    #[rstest]
    #[case::found_everywhere(None, Carried::Everywhere, Then::Since(0))]
    #[case::given_to_the_last_ones(None, Carried::JustGiven, Then::Since(0))]
    #[case::one_pod_cannot_have_it(None, Carried::NotEverywhere, Then::Nothing)]
    #[case::not_for_long_enough(Some(-59), Carried::Everywhere, Then::Nothing)]
    #[case::for_long_enough(Some(-60), Carried::Everywhere, Then::Signs)]
    #[case::for_longer(Some(-600), Carried::Everywhere, Then::Signs)]
    #[case::a_pod_without_it_turned_up(Some(-60), Carried::JustGiven, Then::Since(0))]
    #[case::a_pod_without_it_turned_up_and_stays_so(Some(-60), Carried::NotEverywhere, Then::Unknown)]
    #[case::by_a_clock_that_is_ahead(Some(5), Carried::Everywhere, Then::Nothing)]
    fn a_root_signs_only_when_every_live_pod_has_carried_it_for_an_hour(
        #[case] since_minutes: Option<i64>,
        #[case] carried: Carried,
        #[case] expected: Then,
    ) {
        let now = start();
        let at = |minutes| now + SignedDuration::from_mins(minutes);
        let roots = Roots {
            next: Some(Root::generate(now).unwrap()),
            carried_since: since_minutes.map(at),
            ..Roots::first(now).unwrap()
        };
        let then = match roots.after_look(carried, now, WAIT) {
            None => Then::Nothing,
            Some(new) if new.signer() != roots.signer() => Then::Signs,
            Some(new) => {
                new.carried_since.map_or(Then::Unknown, |since| Then::Since((since.as_second() - now.as_second()) / 60))
            }
        };
        assert_eq!(then, expected);
    }

    #[test]
    fn a_pod_carries_a_bundle_when_it_has_each_of_its_certificates() {
        let (one, two) = (Root::generate(start()).unwrap().certificate, Root::generate(start()).unwrap().certificate);
        let bundle = |parts: &[&str]| parts.iter().map(|part| format!("{}\n", part.trim_end())).collect::<String>();
        let both = bundle(&[&one, &two]);
        assert!(carries(&both, &both) && carries(&bundle(&[&two, &one]), &both), "the order does not matter");
        assert!(carries(&both, &bundle(&[&two])), "an older root may stay");
        assert!(!carries(&bundle(&[&one]), &both) && !carries("", &bundle(&[&one])));
    }

    #[test]
    fn an_expired_signer_is_replaced_at_once() {
        let first = Roots::first(start()).unwrap();
        let late = start() + ROOT_VALIDITY + days(1);
        let two = first.step(late).unwrap().unwrap();
        let promoted = two.step(late).unwrap().unwrap();
        assert_eq!(Some(promoted.signer()), two.next.as_ref());
        assert!(!promoted.bundle(late).unwrap().contains(first.current.certificate.trim_end()));
    }

    #[test]
    fn keys_are_not_shown() {
        let root = Root::generate(start()).unwrap();
        assert!(!format!("{root:?}").contains("PRIVATE"));
    }
}
