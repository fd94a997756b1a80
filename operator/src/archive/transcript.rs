//! The archived tail of a transcript: one ConfigMap per attempt (pitfall T9).

use super::{
    ArchiveError, Owner, Unstored,
    config_map::{Content, Data},
};
use crate::{
    api::{self, ReadError},
    naming,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Client, ResourceExt};
use subagent_crds::{
    names,
    report::{Transcript, TranscriptSource},
};

/// Key of the compressed tail.
const KEY: &str = "transcript.zst";

/// A checked tail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    /// zstd-compressed.
    pub data: Vec<u8>,
    /// SHA-256 of the uncompressed tail in lower-case hex.
    pub sha256: String,
    /// Size of the uncompressed tail in bytes.
    pub size: i64,
    /// Bytes before the tail.
    pub dropped_bytes: i64,
}

/// A transcript as the status shows it.
#[derive(Clone, Debug, PartialEq)]
pub struct Archived {
    /// Without `ref` when it is not archived.
    pub transcript: Transcript,
    /// Why there is no ConfigMap, when there is none.
    pub unarchived: Option<Unstored>,
}

/// Name of an attempt's archive.
pub fn name(owner: &Owner) -> String {
    naming::derived(&owner.run_name, &owner.run_uid, &format!("transcript-{}", owner.attempt))
}

fn config_map(owner: &Owner, tail: &Tail, source: TranscriptSource) -> ConfigMap {
    let annotations = vec![
        (names::SHA256_ANNOTATION, tail.sha256.clone()),
        (names::SIZE_ANNOTATION, tail.size.to_string()),
        (names::DROPPED_BYTES_ANNOTATION, tail.dropped_bytes.to_string()),
        (names::SOURCE_ANNOTATION, source.as_str().to_owned()),
    ];
    let data = Data::Bytes(KEY, tail.data.clone());
    let kind = names::CONTENT_TRANSCRIPT;
    owner.config_map(Content { name: name(owner), kind, labels: vec![], annotations, data })
}

/// Stores the tail. Only what may pass is an error: the archive is worth less than the result, so a refusal that stays
/// (a full quota, a name that is taken, a namespace that is going away) leaves the transcript without reference.
///
/// # Errors
/// [`ArchiveError`] when trying again can help.
pub async fn archive(
    client: &Client,
    owner: &Owner,
    manager: &str,
    tail: &Tail,
    source: TranscriptSource,
) -> Result<Archived, ArchiveError> {
    let unarchived = owner.put(client, manager, &config_map(owner, tail, source)).await?.err();
    let transcript = Transcript {
        pod_uid: owner.pod_uid.clone(),
        ref_: unarchived.is_none().then(|| name(owner)),
        sha256: tail.sha256.clone(),
        size: tail.size,
        dropped_bytes: tail.dropped_bytes,
        source,
    };
    Ok(Archived { transcript, unarchived })
}

/// The archive of this attempt that is there already: its writer died before the status named it.
///
/// # Errors
/// [`ReadError`] when the API server does not say.
pub async fn stored(client: &Client, owner: &Owner) -> Result<Option<Transcript>, ReadError> {
    let found = api::get(&owner.api(client), &name(owner)).await?;
    Ok(found.filter(|found| owner.made(found)).and_then(|found| told(&found, owner)))
}

/// What an archive says of itself.
fn told(found: &ConfigMap, owner: &Owner) -> Option<Transcript> {
    let annotation = |key: &str| found.annotations().get(key);
    Some(Transcript {
        pod_uid: owner.pod_uid.clone(),
        ref_: Some(found.name_any()),
        sha256: annotation(names::SHA256_ANNOTATION)?.clone(),
        size: annotation(names::SIZE_ANNOTATION)?.parse().ok()?,
        dropped_bytes: annotation(names::DROPPED_BYTES_ANNOTATION)?.parse().ok()?,
        source: TranscriptSource::parse(annotation(names::SOURCE_ANNOTATION)?)?,
    })
}

#[cfg(test)]
mod tests {
    use super::{super::config_map::tests::owner, *};

    #[test]
    fn t9_an_archive_tells_what_the_status_is_to_say() {
        let tail = Tail { data: b"abc".to_vec(), sha256: "ab".into(), size: 9, dropped_bytes: 1 };
        for source in [TranscriptSource::Worker, TranscriptSource::Log] {
            let found = config_map(&owner(), &tail, source);
            assert_eq!(found.binary_data.as_ref().unwrap()[KEY].0, b"abc");
            let expected = Transcript {
                pod_uid: "pod".into(),
                ref_: Some(name(&owner())),
                sha256: "ab".into(),
                size: 9,
                dropped_bytes: 1,
                source,
            };
            assert_eq!(told(&found, &owner()), Some(expected));
        }
    }
}
