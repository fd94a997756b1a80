//! The leaf certificate of one replica: made in memory, short, replaced at half of its life.

use super::root::{BACKDATE, Root, RootError, offset};
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use rcgen::{CertificateParams, DnType, ExtendedKeyUsagePurpose, KeyPair, KeyUsagePurpose};
use rustls::{
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
    server::{ClientHello, ResolvesServerCert},
    sign::CertifiedKey,
};
use std::sync::{Arc, PoisonError, RwLock};

/// Life of a leaf. Short, because nobody revokes it; long enough to outlast a day without an API server.
pub const LEAF_VALIDITY: SignedDuration = SignedDuration::from_hours(24);

/// The names a Service has inside the cluster, shortest first.
pub fn service_names(service: &str, namespace: &str) -> Vec<String> {
    vec![
        service.to_owned(),
        format!("{service}.{namespace}"),
        format!("{service}.{namespace}.svc"),
        format!("{service}.{namespace}.svc.cluster.local"),
    ]
}

/// A leaf and what decides when it is replaced.
#[derive(Debug)]
pub(super) struct Leaf {
    pub key: Arc<CertifiedKey>,
    made: Timestamp,
    issuer: Root,
}

impl Leaf {
    pub fn issue(root: &Root, names: &[String], now: Timestamp) -> Result<Self, RootError> {
        let mut params = CertificateParams::new(names.to_vec())?;
        params.distinguished_name.push(DnType::CommonName, "subagent-gateway");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        params.not_before = offset(now - BACKDATE)?;
        params.not_after = offset(now + LEAF_VALIDITY)?;
        let pair = KeyPair::generate()?;
        let certificate = params.signed_by(&pair, &root.issuer()?)?;
        let der = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(pair.serialize_der()));
        let key = rustls::crypto::ring::sign::any_supported_type(&der)?;
        let key = Arc::new(CertifiedKey::new(vec![certificate.der().clone()], key));
        Ok(Self { key, made: now, issuer: root.clone() })
    }

    /// True when half of its life is over or another root signs now.
    pub fn is_due(&self, signer: &Root, now: Timestamp) -> bool {
        *signer != self.issuer || now >= self.made + LEAF_VALIDITY / 2
    }
}

/// Hands the newest leaf to each handshake.
#[derive(Debug)]
pub(super) struct LeafResolver {
    key: RwLock<Arc<CertifiedKey>>,
}

impl LeafResolver {
    pub fn new(key: Arc<CertifiedKey>) -> Self {
        Self { key: RwLock::new(key) }
    }

    pub fn swap(&self, key: Arc<CertifiedKey>) {
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
    }
}

impl ResolvesServerCert for LeafResolver {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.key.read().unwrap_or_else(PoisonError::into_inner).clone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pki::root::{Carried, Roots};
    use rstest::rstest;
    use rustls::{
        RootCertStore,
        client::{WebPkiServerVerifier, danger::ServerCertVerifier},
        pki_types::{CertificateDer, ServerName, UnixTime, pem::PemObject},
    };
    use std::time::Duration;

    fn start() -> Timestamp {
        Timestamp::from_second(1_800_000_000).unwrap()
    }

    fn verify(leaf: &Leaf, bundle: &str, name: &str, at: Timestamp) -> Result<(), rustls::Error> {
        let mut store = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
            store.add(certificate.unwrap()).unwrap();
        }
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier = WebPkiServerVerifier::builder_with_provider(Arc::new(store), provider).build().unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let at = UnixTime::since_unix_epoch(Duration::from_secs(at.as_second().unsigned_abs()));
        verifier.verify_server_cert(&leaf.key.cert[0], &[], &name, &[], at).map(|_| ())
    }

    #[test]
    fn a_leaf_verifies_under_its_root_for_the_names_of_the_service() {
        let roots = Roots::first(start()).unwrap();
        let mut names = service_names("gw", "system");
        names.push("127.0.0.1".to_owned());
        let leaf = Leaf::issue(roots.signer(), &names, start()).unwrap();
        let bundle = roots.bundle(start()).unwrap();
        for name in &names {
            verify(&leaf, &bundle, name, start()).unwrap();
        }
        assert!(verify(&leaf, &bundle, "gw.other.svc", start()).is_err());
        assert!(verify(&leaf, &bundle, "gw", start() + LEAF_VALIDITY + SignedDuration::from_secs(1)).is_err());
        let other = Roots::first(start()).unwrap().bundle(start()).unwrap();
        assert!(verify(&leaf, &other, "gw", start()).is_err(), "another installation's root is not trusted (n4)");
    }

    #[test]
    fn a_worker_with_the_old_bundle_outlives_the_promotion_of_a_published_root() {
        let first = Roots::first(start()).unwrap();
        let due = start() + crate::pki::ROOT_VALIDITY - SignedDuration::from_hours(24 * 300);
        let two = first.step(due).unwrap().unwrap();
        let bundle = two.bundle(due).unwrap();
        let promoted_at = due + SignedDuration::from_hours(24);
        let carried = Roots { carried_since: Some(due), ..two.clone() };
        let promoted = carried.after_look(Carried::Everywhere, promoted_at, SignedDuration::from_hours(24)).unwrap();
        for roots in [&two, &promoted] {
            let leaf = Leaf::issue(roots.signer(), &service_names("gw", "system"), promoted_at).unwrap();
            verify(&leaf, &bundle, "gw.system.svc", promoted_at).unwrap();
        }
    }

    #[rstest]
    #[case::new(0, false, false)]
    #[case::before_half(11 * 3600 + 3599, false, false)]
    #[case::half(12 * 3600, false, true)]
    #[case::another_root(0, true, true)]
    fn a_leaf_is_renewed_at_half_of_its_life(
        #[case] age_seconds: i64,
        #[case] another_root: bool,
        #[case] expected: bool,
    ) {
        let root = Root::generate(start()).unwrap();
        let leaf = Leaf::issue(&root, &service_names("gw", "system"), start()).unwrap();
        let signer = if another_root { Root::generate(start()).unwrap() } else { root };
        assert_eq!(leaf.is_due(&signer, start() + SignedDuration::from_secs(age_seconds)), expected);
    }

    #[test]
    fn names_of_a_service_end_in_the_full_one() {
        assert_eq!(service_names("gw", "ns"), ["gw", "gw.ns", "gw.ns.svc", "gw.ns.svc.cluster.local"]);
    }
}
