//! The client of the place that the setting names.

use super::{
    SettingError, Store,
    location::{self, Kind, Location},
};
use object_store::{
    BackoffConfig, Certificate, ClientOptions, ObjectStore, RetryConfig, aws::AmazonS3Builder,
    azure::MicrosoftAzureBuilder, gcp::GoogleCloudStorageBuilder, local::LocalFileSystem, prefix::PrefixStore,
};
use std::{sync::Arc, time::Duration};
use tokio::sync::Semaphore;

/// Longest time in which a cloud is asked again by itself. A worker that is told "later" comes again anyway.
const ASK_AGAIN: Duration = Duration::from_secs(10);
/// How often.
const RETRIES: usize = 4;

impl Store {
    /// Opens what the setting names; `None` for an empty one. Nothing is read or written yet: a store that is away must not
    /// keep the operator, with all runs that need none, from starting ([`Store::check`] tells).
    ///
    /// `environment` holds what a cloud needs beside the URL: the variables that begin with `AWS_`, `GOOGLE_` or `AZURE_`,
    /// named as those clouds' own tools do.
    ///
    /// # Errors
    /// [`SettingError`] when it names no store, or an option of the environment is none.
    pub fn open(
        setting: &str,
        environment: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Option<Self>, SettingError> {
        let Some(location) = location::parse(setting)? else { return Ok(None) };
        let environment: Vec<_> = environment.into_iter().collect();
        let objects = objects(&location, &environment)
            .map_err(|error| SettingError { url: location.url.to_string(), why: error.to_string() })?;
        let folder = match location.kind {
            Kind::Folder(path) => Some(path),
            _ => None,
        };
        Ok(Some(Self {
            objects,
            url: location.url.to_string(),
            folder,
            installation: None,
            calls: Arc::new(Semaphore::new(super::calls::CALLS)),
            step: super::STEP,
            verify: super::VERIFY,
        }))
    }
}

fn objects(location: &Location, environment: &[(String, String)]) -> object_store::Result<Arc<dyn ObjectStore>> {
    let (url, prefix) = (location.url.as_str(), location.prefix.clone());
    // Options that a cloud does not know are somebody else's.
    macro_rules! cloud {
        ($builder:ty, $ours:literal) => {{
            let mut builder = <$builder>::new().with_client_options(client_options()?).with_retry(retries());
            for (name, value) in environment.iter().filter(|(name, _)| name.starts_with($ours)) {
                if let Ok(option) = name.to_ascii_lowercase().parse() {
                    builder = builder.with_config(option, value);
                }
            }
            Arc::new(PrefixStore::new(builder.with_url(url).build()?, prefix)) as Arc<dyn ObjectStore>
        }};
    }
    Ok(match location.kind {
        // A write is acknowledged when file and folders are on the disk.
        Kind::Folder(_) => Arc::new(PrefixStore::new(LocalFileSystem::new().with_fsync(true), prefix)),
        Kind::S3 => cloud!(AmazonS3Builder, "AWS_"),
        Kind::Gcs => cloud!(GoogleCloudStorageBuilder, "GOOGLE_"),
        Kind::Azure => cloud!(MicrosoftAzureBuilder, "AZURE_"),
    })
}

fn retries() -> RetryConfig {
    RetryConfig { backoff: BackoffConfig::default(), max_retries: RETRIES, retry_timeout: ASK_AGAIN }
}

/// Trusts what the system trusts (`SSL_CERT_FILE` names more); on a system without any certificates, as in an image that holds
/// the operator alone, Mozilla's list.
fn client_options() -> object_store::Result<ClientOptions> {
    // The client takes the process's provider; it is the same as everywhere here, and may be set already.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = ClientOptions::new();
    if !rustls_native_certs::load_native_certs().certs.is_empty() {
        return Ok(options);
    }
    let roots = webpki_root_certs::TLS_SERVER_ROOT_CERTS;
    roots.iter().try_fold(options.with_no_system_certificates(true), |options, root| {
        Ok(options.with_root_certificate(Certificate::from_der(root)?))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials() -> Vec<(String, String)> {
        [
            ("AWS_ACCESS_KEY_ID", "id"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_ENDPOINT_URL", "https://s3.example"),
            ("AZURE_STORAGE_ACCOUNT_NAME", "account"),
            ("AZURE_STORAGE_ACCOUNT_KEY", "a2V5"),
            ("AWS_OF_ANOTHER_TOOL", "x"),
            ("HOME", "/"),
        ]
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .to_vec()
    }

    #[test]
    fn each_kind_of_store_opens_without_being_asked_anything() {
        for url in ["s3://bucket/x", "az://container/x", "file:///does/not/exist"] {
            let store = Store::open(url, credentials()).unwrap().unwrap();
            assert_eq!(store.url(), url);
        }
        assert!(Store::open("", credentials()).unwrap().is_none());
    }

    #[test]
    fn half_of_the_credentials_is_named() {
        let mut half = credentials();
        half.remove(1);
        let error = Store::open("s3://bucket", half).unwrap_err().to_string();
        assert!(error.to_lowercase().contains("secret"), "{error}");
    }
}
