//! Root certificates and when they change. Pure: time is an argument.

use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair, KeyUsagePurpose};
use rustls::pki_types::{CertificateDer, pem::PemObject};
use time::OffsetDateTime;

/// Life of a root: ten years.
pub const ROOT_VALIDITY: SignedDuration = SignedDuration::from_hours(10 * 365 * 24);
/// A next root is made when the current one has less than this left: a year of slack for an operator that is not running.
const NEXT_BEFORE: SignedDuration = SignedDuration::from_hours(365 * 24);
/// How long a root is published before it signs. Replicas look every five minutes, a kubelet refreshes annotations
/// within two; a day also covers a kubelet or a controller that is down for hours.
const PUBLISH_FIRST: SignedDuration = SignedDuration::from_hours(24);
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

/// The roots in use, as the Secret holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Roots {
    /// Signs.
    pub current: Root,
    /// Is published and signs later.
    pub next: Option<Root>,
    /// Signed before; leaves of a replica that has not looked yet still hang on it. Its key is gone.
    pub previous: Option<String>,
}

impl Roots {
    pub fn first(now: Timestamp) -> Result<Self, RootError> {
        Ok(Self { current: Root::generate(now)?, next: None, previous: None })
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
    /// seen by every replica before the next.
    pub fn step(&self, now: Timestamp) -> Result<Option<Self>, RootError> {
        let (_, current_end) = validity(&self.current.certificate)?;
        if let Some(next) = &self.next {
            let made = validity(&next.certificate)?.0 + BACKDATE;
            // An expired signer helps nobody: then the next one signs at once.
            if now >= made + PUBLISH_FIRST || now >= current_end {
                let previous = Some(self.current.certificate.clone());
                return Ok(Some(Self { current: next.clone(), next: None, previous }));
            }
        } else if now + NEXT_BEFORE > current_end {
            return Ok(Some(Self { next: Some(Root::generate(now)?), ..self.clone() }));
        }
        if let Some(previous) = &self.previous
            && validity(previous)?.1 <= now
        {
            return Ok(Some(Self { previous: None, ..self.clone() }));
        }
        Ok(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn days(count: i64) -> SignedDuration {
        SignedDuration::from_hours(count * 24)
    }

    #[test]
    fn a_root_is_published_before_it_signs_and_trusted_after_it_signed() {
        let first = Roots::first(start()).unwrap();
        let (begin, end) = validity(&first.current.certificate).unwrap();
        assert_eq!((begin, end), (start() - BACKDATE, start() + ROOT_VALIDITY));
        assert_eq!(first.step(start()).unwrap(), None);
        assert_eq!(first.step(end - days(366)).unwrap(), None, "more than a year is left");

        let due = end - days(364);
        let two = first.step(due).unwrap().expect("a next root");
        assert_eq!(two.signer(), first.signer(), "the old root still signs");
        let next = two.next.clone().unwrap();
        assert!(two.bundle(due).unwrap().contains(next.certificate.trim_end()), "but the new one is already trusted");
        assert_eq!(two.step(due + SignedDuration::from_hours(23)).unwrap(), None, "not published for long enough");

        let promoted = two.step(due + days(1)).unwrap().expect("a promotion");
        assert_eq!(promoted.signer(), &next);
        let bundle = promoted.bundle(due + days(1)).unwrap();
        assert!(bundle.contains(first.current.certificate.trim_end()), "leaves of the old root are still trusted");
        assert_eq!(promoted.step(due + days(2)).unwrap(), None);

        let late = promoted.step(end).unwrap().expect("the expired root leaves");
        assert_eq!(late.previous, None);
        assert_eq!(late.bundle(end).unwrap().matches("BEGIN CERTIFICATE").count(), 1);
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
