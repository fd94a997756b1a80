//! The Secret that holds the roots.

use super::root::{Root, RootError, Roots, validity};
use k8s_openapi::{ByteString, api::core::v1::Secret, jiff::Timestamp};
use kube::{
    Api, Client,
    api::{ObjectMeta, PostParams},
};
use std::{collections::BTreeMap, time::Duration};

const CURRENT_CERTIFICATE: &str = "current.crt";
const CURRENT_KEY: &str = "current.key";
const NEXT_CERTIFICATE: &str = "next.crt";
const NEXT_KEY: &str = "next.key";
/// Since when every live worker pod carries the next root, RFC 3339.
const NEXT_CARRIED: &str = "next.carried-since";
const PREVIOUS_CERTIFICATE: &str = "previous.crt";
/// Longest single call: the client has no read timeout of its own.
const CALL_TIMEOUT: Duration = Duration::from_secs(10);
/// Replicas race at most a few times: each lost race means that another one made progress.
const RACES: usize = 5;

/// The Secret is not usable.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    /// The API server refused.
    #[error("Secret {0} of the gateway's root: {1}")]
    Kube(String, #[source] Box<kube::Error>),
    /// The API server did not answer.
    #[error("Secret {0} of the gateway's root: no answer within 10 s")]
    Timeout(String),
    /// Its content is not what this program writes.
    #[error(
        "Secret {0} of the gateway's root is damaged ({1}); restore it, or delete it to get a new root: workers that are running then cannot reconnect"
    )]
    Damaged(String, String),
    /// Other writers never stopped.
    #[error("Secret {0} of the gateway's root changes all the time")]
    Raced(String),
}

#[derive(Debug)]
pub(super) struct RootSecret {
    secrets: Api<Secret>,
    name: String,
}

impl RootSecret {
    pub fn new(client: Client, namespace: &str, name: &str) -> Self {
        Self { secrets: Api::namespaced(client, namespace), name: name.to_owned() }
    }

    /// The roots as they must be now: read, created when there are none, stepped when it is time. Replicas agree:
    /// a create that comes second and an update of an older version fail, and the winner's content is read.
    pub async fn ensure(&self, now: Timestamp) -> Result<Roots, SecretError> {
        for _ in 0..RACES {
            let Some((secret, roots)) = self.read().await? else {
                let roots = Roots::first(now).map_err(|error| self.damaged(&error))?;
                let created = Secret {
                    metadata: ObjectMeta { name: Some(self.name.clone()), ..ObjectMeta::default() },
                    type_: Some("Opaque".to_owned()),
                    data: Some(encode(&roots)),
                    ..Secret::default()
                };
                match self.timely(self.secrets.create(&PostParams::default(), &created)).await {
                    Ok(_) => return Ok(roots),
                    Err(error) if lost_race(&error) => continue,
                    Err(error) => return Err(error),
                }
            };
            let Some(stepped) = roots.step(now).map_err(|error| self.damaged(&error))? else { return Ok(roots) };
            self.replace(secret, &stepped).await?;
        }
        Err(SecretError::Raced(self.name.clone()))
    }

    /// The stored roots, with the version they are of.
    pub async fn read(&self) -> Result<Option<(Secret, Roots)>, SecretError> {
        let Some(secret) = self.timely(self.secrets.get_opt(&self.name)).await? else { return Ok(None) };
        let roots = decode(secret.data.as_ref()).map_err(|what| SecretError::Damaged(self.name.clone(), what))?;
        Ok(Some((secret, roots)))
    }

    /// Stores roots in the place of the ones that were read. False when another replica was quicker.
    pub async fn replace(&self, read: Secret, roots: &Roots) -> Result<bool, SecretError> {
        let updated = Secret { data: Some(encode(roots)), ..read };
        match self.timely(self.secrets.replace(&self.name, &PostParams::default(), &updated)).await {
            Ok(_) => Ok(true),
            Err(error) if lost_race(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn damaged(&self, error: &RootError) -> SecretError {
        SecretError::Damaged(self.name.clone(), error.to_string())
    }

    async fn timely<T>(&self, call: impl Future<Output = kube::Result<T>>) -> Result<T, SecretError> {
        match tokio::time::timeout(CALL_TIMEOUT, call).await {
            Ok(Ok(value)) => Ok(value),
            Ok(Err(error)) => Err(SecretError::Kube(self.name.clone(), Box::new(error))),
            Err(_) => Err(SecretError::Timeout(self.name.clone())),
        }
    }
}

fn lost_race(error: &SecretError) -> bool {
    matches!(error, SecretError::Kube(_, error) if matches!(&**error, kube::Error::Api(status) if status.code == 409))
}

fn encode(roots: &Roots) -> BTreeMap<String, ByteString> {
    let mut data = BTreeMap::new();
    let mut put = |key: &str, text: &str| data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec()));
    put(CURRENT_CERTIFICATE, &roots.current.certificate);
    put(CURRENT_KEY, &roots.current.key);
    if let Some(next) = &roots.next {
        put(NEXT_CERTIFICATE, &next.certificate);
        put(NEXT_KEY, &next.key);
    }
    if let Some(since) = &roots.carried_since {
        put(NEXT_CARRIED, &since.to_string());
    }
    if let Some(previous) = &roots.previous {
        put(PREVIOUS_CERTIFICATE, previous);
    }
    data
}

fn decode(data: Option<&BTreeMap<String, ByteString>>) -> Result<Roots, String> {
    let text = |key: &str| {
        let bytes = data.and_then(|data| data.get(key));
        bytes.map(|bytes| String::from_utf8(bytes.0.clone()).map_err(|_| format!("{key} is not text"))).transpose()
    };
    let root = |certificate: &str, key: &str| match (text(certificate)?, text(key)?) {
        (Some(certificate), Some(key)) => {
            let root = Root { certificate, key };
            root.issuer().map_err(|error| error.to_string())?;
            Ok(Some(root))
        }
        (None, None) => Ok(None),
        _ => Err(format!("{certificate} and {key} belong together")),
    };
    let current = root(CURRENT_CERTIFICATE, CURRENT_KEY)?.ok_or_else(|| format!("{CURRENT_CERTIFICATE} is missing"))?;
    let previous = text(PREVIOUS_CERTIFICATE)?;
    if let Some(previous) = &previous {
        validity(previous).map_err(|error| error.to_string())?;
    }
    // A time that cannot be read is none: the wait begins anew.
    let carried_since = text(NEXT_CARRIED)?.and_then(|since| since.parse().ok());
    Ok(Roots { current, next: root(NEXT_CERTIFICATE, NEXT_KEY)?, carried_since, previous })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[test]
    fn roots_survive_the_secret() {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let one = Roots::first(now).unwrap();
        assert_eq!(decode(Some(&encode(&one))).unwrap(), one);
        let previous = Root::generate(now).unwrap().certificate;
        let next = Some(Root::generate(now).unwrap());
        let full = Roots { next, carried_since: Some(now), previous: Some(previous), ..one };
        assert_eq!(decode(Some(&encode(&full))).unwrap(), full);
    }

    #[rstest]
    #[case::empty(&[CURRENT_CERTIFICATE, CURRENT_KEY], None, "current.crt is missing")]
    #[case::no_key(&[CURRENT_KEY], None, "belong together")]
    #[case::garbage(&[], Some(CURRENT_CERTIFICATE), "")]
    fn a_damaged_secret_is_said_and_never_replaced(
        #[case] removed: &[&str],
        #[case] spoiled: Option<&str>,
        #[case] expected: &str,
    ) {
        let mut data = encode(&Roots::first(Timestamp::from_second(1_800_000_000).unwrap()).unwrap());
        for key in removed {
            data.remove(*key);
        }
        if let Some(key) = spoiled {
            data.insert(key.to_owned(), ByteString(b"nonsense".to_vec()));
        }
        let error = decode(Some(&data)).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }
}
