//! Trust: the gateway's roots from the pod's volume and nothing else.

use anyhow::{Context, bail};
use rustls::{
    ClientConfig, RootCertStore,
    pki_types::{CertificateDer, pem::PemObject},
};
use std::{path::Path, sync::Arc};

/// A TLS client that trusts the roots in this PEM file, as it is now.
///
/// # Errors
/// When the file cannot be read or holds no certificate.
pub fn client(roots_file: &Path) -> anyhow::Result<Arc<ClientConfig>> {
    let pem = std::fs::read(roots_file).with_context(|| format!("reading {}", roots_file.display()))?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        let certificate = certificate.with_context(|| format!("reading {}", roots_file.display()))?;
        roots.add(certificate).with_context(|| format!("a certificate in {}", roots_file.display()))?;
    }
    if roots.is_empty() {
        bail!("{} holds no certificate", roots_file.display());
    }
    // The provider is named, so that no other crate's choice of a process-wide default matters.
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .context("TLS versions")?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok(Arc::new(config))
}
