//! The setting, checked: which kind of store, and where in it.

use super::SettingError;
use object_store::{ObjectStoreScheme, path::Path};
use std::path::PathBuf;
use url::Url;

/// A place for checkpoints.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Location {
    pub url: Url,
    pub kind: Kind,
    /// What every key is put behind.
    pub prefix: Path,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Folder(PathBuf),
    S3,
    Gcs,
    Azure,
}

/// Reads the setting; `None` for an empty one.
pub(super) fn parse(setting: &str) -> Result<Option<Location>, SettingError> {
    let setting = setting.trim();
    let refused = |why: String| SettingError { url: setting.to_owned(), why };
    if setting.is_empty() {
        return Ok(None);
    }
    let url = Url::parse(setting).map_err(|error| SettingError { url: hidden(setting), why: error.to_string() })?;
    if !url.username().is_empty() || url.password().is_some() {
        // It goes into messages that others read.
        let why = "credentials do not belong into the URL: set them in the environment (sessionStore.envFrom)".into();
        return Err(SettingError { url: hidden(setting), why });
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refused(
            "it has a query or a fragment; options are set in the environment (sessionStore.env)".into(),
        ));
    }
    let (scheme, prefix) = ObjectStoreScheme::parse(&url).map_err(|error| refused(error.to_string()))?;
    let kind = match (scheme, url.scheme()) {
        (ObjectStoreScheme::Local, _) if prefix.as_ref().is_empty() => {
            return Err(refused("the root folder is not a place for it".into()));
        }
        (ObjectStoreScheme::Local, _) => {
            Kind::Folder(url.to_file_path().map_err(|()| refused("it is not a path of this machine".into()))?)
        }
        (ObjectStoreScheme::AmazonS3, "s3") => Kind::S3,
        (ObjectStoreScheme::GoogleCloudStorage, "gs") => Kind::Gcs,
        (ObjectStoreScheme::MicrosoftAzure, "az") => Kind::Azure,
        (_, scheme) => return Err(refused(format!("{scheme}:// is not a kind of store that is supported"))),
    };
    Ok(Some(Location { url, kind, prefix }))
}

/// The setting without what may be a password.
fn hidden(setting: &str) -> String {
    match (setting.find("://"), setting.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}***{}", &setting[..scheme + 3], &setting[at..]),
        _ => setting.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;

    #[rstest]
    #[case("file:///var/lib/subagents", Kind::Folder("/var/lib/subagents".into()), "var/lib/subagents")]
    #[case("file:///a%20b/", Kind::Folder("/a b/".into()), "a b")]
    #[case("s3://bucket", Kind::S3, "")]
    #[case(" s3://bucket/some/prefix/ ", Kind::S3, "some/prefix")]
    #[case("gs://bucket/x", Kind::Gcs, "x")]
    #[case("az://container/x", Kind::Azure, "x")]
    fn a_place_is_read(#[case] setting: &str, #[case] kind: Kind, #[case] prefix: &str) {
        let location = parse(setting).unwrap().unwrap();
        assert_eq!((location.kind, location.prefix.as_ref()), (kind, prefix));
    }

    #[test]
    fn none_is_a_setting() {
        assert_eq!(parse("").unwrap(), None);
    }

    #[rstest]
    #[case::no_url("/var/lib/subagents", "relative URL without a base")]
    #[case::two_slashes("file://var/lib", "recognise")]
    #[case::root("file:///", "root folder")]
    #[case::no_bucket("s3:///x", "")]
    #[case::memory("memory:///", "memory://")]
    #[case::web("https://example.com/x", "https://")]
    #[case::web_of_a_cloud("https://s3.eu-west-1.amazonaws.com/b", "https://")]
    #[case::credentials("s3://key:secret@bucket", "credentials")]
    #[case::options("s3://bucket?region=x", "query")]
    fn what_is_no_place_is_refused_with_what_to_write(#[case] setting: &str, #[case] named: &str) {
        let error = parse(setting).unwrap_err().to_string();
        assert!(
            error.contains(named) && error.contains("sessionStore.url") && error.contains("s3://BUCKET"),
            "{error}"
        );
        assert!(!error.contains("secret"), "{error}");
    }
}
