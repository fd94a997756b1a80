//! The memory of a child's message ids that have left its status: the same id again has no effect (pitfall R12).
//!
//! It lies in immutable ConfigMaps that the child owns. A new one takes in those before it that are not more than twice as
//! large, as in a log-structured tree: ten thousand ids are in about ten of them, and each is written a few times in all.
//! Pure, but for [`load`] and [`store`].

use super::inbox::Remembered;
use crate::{
    api::{self, ReadError, WriteError},
    naming,
};
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::{Api, Client, Resource, ResourceExt, api::PostParams};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use subagent_crds::{Subagent, message::Outcome, names, subagent_status::MessageStatus};

/// Most ids in one ConfigMap: it stays below half of what an object may have.
const MOST: usize = 8192;
/// Hex digits that are kept of a digest: nobody meets another one's by chance.
const DIGITS: usize = 20;
/// Key of the ids in a ConfigMap.
const KEY: &str = "ids";

/// A part of the memory, as one ConfigMap holds it: digest of the id to what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment(BTreeMap<String, Remembered>);

/// The memory as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Name and content of each part, oldest first.
    segments: Vec<(String, Segment)>,
    /// What is wrong with a part that is not usable, for a person.
    pub lost: Option<String>,
}

/// What is to be stored so that more ids are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The new part.
    pub segment: Segment,
    /// Its name.
    pub name: String,
    /// The names that the status lists then, oldest first.
    pub listed: Vec<String>,
    /// The names that are listed no more: the new part holds what they hold.
    pub merged: Vec<String>,
    /// Ids in all.
    pub count: i64,
}

impl Segment {
    /// The part that holds these messages.
    pub fn of<'a>(messages: impl IntoIterator<Item = &'a MessageStatus>) -> Self {
        let record = |message: &MessageStatus| {
            let digest: String = message.digest.chars().take(DIGITS).collect();
            (key(&message.id), Remembered { digest, outcome: message.outcome })
        };
        Self(messages.into_iter().map(record).collect())
    }

    /// Takes in an older part. What that says of an id stays.
    fn take_in(&mut self, older: &Self) {
        self.0.extend(older.0.iter().map(|(id, seen)| (id.clone(), seen.clone())));
    }

    fn encode(&self) -> String {
        let line = |(id, seen): (&String, &Remembered)| format!("{id} {} {}\n", seen.digest, seen.outcome.as_str());
        self.0.iter().map(line).collect()
    }

    fn decode(text: &str) -> Option<Self> {
        let record = |line: &str| {
            let mut words = line.split(' ');
            let (id, digest, outcome) = (words.next()?, words.next()?, words.next()?);
            let outcome: Outcome = serde_json::from_value(outcome.into()).ok()?;
            Some((id.to_owned(), Remembered { digest: digest.to_owned(), outcome }))
        };
        text.lines().map(record).collect::<Option<_>>().map(Self)
    }

    /// Its name says how many ids it holds, and depends on every one of them: another content has another name.
    fn name(&self, child: &Subagent) -> String {
        let digest = naming::hex(&Sha256::digest(self.encode().as_bytes())[..4]);
        let (name, uid) = (child.name_any(), child.uid().unwrap_or_default());
        naming::derived(&name, &uid, &format!("s{}-{digest}", self.0.len()))
    }
}

impl Memory {
    /// What is remembered of an id.
    pub fn recall(&self, id: &str) -> Option<&Remembered> {
        let key = key(id);
        self.segments.iter().find_map(|(_, segment)| segment.0.get(&key))
    }

    /// A memory of one part.
    #[cfg(test)]
    pub fn of(name: &str, segment: Segment) -> Self {
        Self { segments: vec![(name.to_owned(), segment)], lost: None }
    }

    /// What is to be stored so that this is remembered, too.
    pub fn with(&self, child: &Subagent, batch: Segment) -> Addition {
        let mut segment = batch;
        let mut kept = self.segments.as_slice();
        while let Some(((_, last), rest)) = kept.split_last()
            && last.0.len() <= 2 * segment.0.len()
            && last.0.len() + segment.0.len() <= MOST
        {
            segment.take_in(last);
            kept = rest;
        }
        let name = segment.name(child);
        let names = |part: &[(String, Segment)]| part.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        let count = kept.iter().map(|(_, kept)| kept.0.len()).sum::<usize>() + segment.0.len();
        let mut listed = names(kept);
        listed.push(name.clone());
        Addition {
            merged: names(&self.segments[kept.len()..]),
            count: i64::try_from(count).unwrap_or(i64::MAX),
            segment,
            name,
            listed,
        }
    }
}

fn key(id: &str) -> String {
    naming::hex(&Sha256::digest(id.as_bytes()))[..DIGITS].to_owned()
}

/// Reads the memory that the child's status lists.
///
/// # Errors
/// When a read fails for another reason than absence.
pub async fn load(client: &Client, child: &Subagent) -> Result<Memory, ReadError> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &child.namespace().unwrap_or_default());
    let mut memory = Memory::default();
    let seen = child.status.as_ref().and_then(|status| status.seen_ids.as_ref());
    for name in seen.iter().flat_map(|seen| &seen.config_maps) {
        match judge(child, name, api::get(&config_maps, name).await?.as_ref()) {
            Ok(segment) => memory.segments.push((name.clone(), segment)),
            Err(why) => memory.lost = memory.lost.or(Some(why)),
        }
    }
    Ok(memory)
}

/// What a found ConfigMap holds, if it is the one that was stored under the name.
fn judge(child: &Subagent, name: &str, found: Option<&ConfigMap>) -> Result<Segment, String> {
    let named = format!("ConfigMap {name}, which remembers the ids of earlier messages,");
    let remedy =
        "restore it, or create a new Subagent: no new message is taken, since nobody can tell whether it is one";
    let Some(found) = found else { return Err(format!("{named} is gone; {remedy}")) };
    let text = found.data.as_ref().and_then(|data| data.get(KEY)).map(String::as_str).unwrap_or_default();
    let segment = Segment::decode(text).filter(|segment| segment.name(child) == name);
    segment.ok_or_else(|| format!("{named} does not hold what was stored there; {remedy}"))
}

/// Stores a new part. Again is the same: its name depends on its content.
///
/// # Errors
/// [`WriteError`], also when something else has the name.
pub async fn store(client: &Client, child: &Subagent, addition: &Addition) -> Result<(), WriteError> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &child.namespace().unwrap_or_default());
    let params = PostParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PostParams::default() };
    let (what, body) = (format!("creating ConfigMap {}", addition.name), config_map(child, addition));
    match api::write(what, config_maps.create(&params, &body)).await {
        Ok(_) => Ok(()),
        // What it holds is looked at whenever it is read.
        Err(WriteError::Refused { status, .. }) if status.reason == "AlreadyExists" => Ok(()),
        Err(error) => Err(error),
    }
}

fn config_map(child: &Subagent, addition: &Addition) -> ConfigMap {
    let (name, uid) = (child.name_any(), child.uid().unwrap_or_default());
    ConfigMap {
        metadata: ObjectMeta {
            name: Some(addition.name.clone()),
            namespace: child.namespace(),
            labels: Some(BTreeMap::from([
                (names::SUBAGENT_LABEL.to_owned(), name.clone()),
                (names::SUBAGENT_UID_LABEL.to_owned(), uid.clone()),
                (names::CONTENT_LABEL.to_owned(), names::CONTENT_SEEN_IDS.to_owned()),
            ])),
            owner_references: Some(vec![OwnerReference {
                api_version: Subagent::api_version(&()).into_owned(),
                kind: Subagent::kind(&()).into_owned(),
                name,
                uid,
                controller: Some(true),
                block_owner_deletion: None,
            }]),
            ..ObjectMeta::default()
        },
        data: Some(BTreeMap::from([(KEY.to_owned(), addition.segment.encode())])),
        immutable: Some(true),
        ..ConfigMap::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    fn child() -> Subagent {
        serde_json::from_value(json!({
            "apiVersion": "subagents.dev/v1alpha1", "kind": "Subagent",
            "metadata": {"name": "child", "namespace": "n", "uid": "u"},
            "spec": {"providerRef": {"name": "p"}, "description": "d", "messages": []},
        }))
        .unwrap()
    }

    fn message(number: usize) -> MessageStatus {
        let id = format!("m{number}");
        MessageStatus {
            digest: format!("{}{}", key(&id), "0".repeat(44)),
            id,
            outcome: Outcome::Claimed,
            ..MessageStatus::default()
        }
    }

    fn add(memory: &Memory, batch: &[MessageStatus]) -> (Memory, Addition) {
        let child = child();
        let addition = memory.with(&child, Segment::of(batch));
        let stored = config_map(&child, &addition);
        let segment = judge(&child, &addition.name, Some(&stored)).unwrap();
        let kept = memory.segments.iter().filter(|(name, _)| addition.listed.contains(name)).cloned();
        let segments = kept.chain([(addition.name.clone(), segment)]).collect();
        (Memory { segments, lost: None }, addition)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

        /// T5, R12: ten thousand ids in batches of any size are in about ten ConfigMaps of a bounded size, and each is found.
        #[test]
        fn t5_r12_ten_thousand_ids_stay_in_a_few_config_maps(sizes in prop::collection::vec(1_usize..60, 400)) {
            let (mut memory, mut next) = (Memory::default(), 0);
            for size in sizes.into_iter().cycle() {
                if next >= 10_000 {
                    break;
                }
                let batch: Vec<_> = (next..next + size).map(message).collect();
                next += size;
                let (new, addition) = add(&memory, &batch);
                prop_assert_eq!(addition.count, next as i64);
                prop_assert!(addition.merged.iter().all(|name| !addition.listed.contains(name)));
                prop_assert!(addition.listed.len() <= 14, "{}", addition.listed.len());
                prop_assert!(addition.listed.iter().all(|name| name.len() <= 64));
                memory = new;
            }
            let largest = memory.segments.iter().map(|(_, segment)| segment.encode().len()).max();
            prop_assert!(largest.unwrap() <= 512 * 1024);
            for number in [0, 1, next / 2, next - 1] {
                let seen = memory.recall(&format!("m{number}")).unwrap();
                prop_assert!(message(number).digest.starts_with(&seen.digest));
            }
            prop_assert_eq!(memory.recall(&format!("m{next}")), None);
        }
    }

    #[test]
    fn r12_what_was_said_of_an_id_first_stays() {
        let (memory, _) = add(&Memory::default(), &[message(1)]);
        let other = MessageStatus { digest: "f".repeat(64), outcome: Outcome::Discarded, ..message(1) };
        let (memory, addition) = add(&memory, &[other]);
        assert_eq!((addition.count, addition.merged.len()), (1, 1));
        assert_eq!(memory.recall("m1").unwrap().outcome, Outcome::Claimed);
    }

    #[test]
    fn r12_a_part_that_is_gone_or_was_changed_is_lost_and_named() {
        let child = child();
        let (_, addition) = add(&Memory::default(), &[message(1), message(2)]);
        let stored = config_map(&child, &addition);
        assert_eq!(stored.immutable, Some(true));
        let mut other = stored.clone();
        other.data.as_mut().unwrap().insert(KEY.into(), "a b Claimed\n".into());
        for found in [None, Some(&other), Some(&ConfigMap::default())] {
            let why = judge(&child, &addition.name, found).unwrap_err();
            assert!(why.contains(&addition.name) && why.contains("restore it"), "{why}");
        }
    }

    #[test]
    fn a_name_is_short_enough_for_the_status() {
        let mut child = child();
        child.metadata.name = Some("x".repeat(63));
        let all: Vec<_> = (0..MOST).map(message).collect();
        let addition = Memory::default().with(&child, Segment::of(&all));
        assert!(addition.name.len() <= 64, "{}", addition.name.len());
    }
}
