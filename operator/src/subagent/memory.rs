//! The memory of a child's message ids that have left its status: the same id again has no effect (pitfall R12).
//!
//! It lies in immutable ConfigMaps that the child owns. A new one takes in those before it that are not more than twice as
//! large, as in a log-structured tree: ten thousand ids are in about ten of them, and each is written a few times in all.
//! Pure, but for [`load`] and [`store`].

use super::{inbox::Remembered, placing};
use crate::{
    api::{self, ReadError, WriteError},
    naming,
};
use futures::future::try_join_all;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, ResourceExt, api::PostParams};
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use subagent_crds::{Subagent, message::Outcome, names, subagent_status::MessageStatus};

/// Most ids in one ConfigMap: it stays below half of what an object may have.
const MOST: usize = 8192;
/// Hex digits that are kept of a digest: nobody meets another one's by chance.
const DIGITS: usize = 20;
/// How many names are tried for a part.
const NAMES: usize = 10;
/// Key of the ids in a ConfigMap.
const KEY: &str = "ids";

/// A part of the memory, as one ConfigMap holds it: digest of the id to what became of it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Segment(BTreeMap<String, Remembered>);

/// The memory as it was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Name and content of each part, oldest first.
    segments: Vec<(Part, Segment)>,
    /// Names of the parts that are not usable. They stay listed: somebody may restore them.
    unread: Vec<String>,
    /// Ids that the status counts and that are not in a usable part.
    unknown: i64,
    /// What is wrong with a part that is not usable, for a person.
    pub lost: Option<String>,
}

/// Which ConfigMap holds a part.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Part {
    /// Its name.
    pub name: String,
    /// Its UID: another one of that name is none of ours.
    pub uid: Option<String>,
}

/// What is to be stored so that more ids are remembered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Addition {
    /// The new part.
    pub segment: Segment,
    /// The names that the status goes on listing before that of the new part, oldest first.
    pub kept: Vec<String>,
    /// Those that are listed no more: the new part holds what they hold.
    pub merged: Vec<Part>,
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

    /// Its names, in the order in which they are tried: somebody may have taken one. Each says how many ids it holds, and
    /// depends on every one of them: another content has other names.
    fn names(&self, child: &Subagent) -> impl Iterator<Item = String> {
        let (name, uid) = (child.name_any(), child.uid().unwrap_or_default());
        let (ids, size) = (self.encode(), self.0.len());
        (0..NAMES).map(move |number| {
            let salt = if number == 0 { String::new() } else { number.to_string() };
            let digest = naming::hex(&Sha256::digest(format!("{ids}{salt}").as_bytes())[..4]);
            naming::derived(&name, &uid, &format!("s{size}-{digest}"))
        })
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
        Self { segments: vec![(Part { name: name.to_owned(), uid: None }, segment)], ..Self::default() }
    }

    /// One part of the memory is lost, and nothing is left of the others.
    #[cfg(test)]
    pub fn without(name: &str) -> Self {
        Self { unread: vec![name.to_owned()], unknown: 1, lost: Some(format!("{name} is gone")), ..Self::default() }
    }

    /// What is to be stored so that this is remembered, too.
    pub fn with(&self, batch: Segment) -> Addition {
        let mut segment = batch;
        let mut kept = self.segments.as_slice();
        while let Some(((_, last), rest)) = kept.split_last()
            && last.0.len() <= 2 * segment.0.len()
            && last.0.len() + segment.0.len() <= MOST
        {
            segment.take_in(last);
            kept = rest;
        }
        let count = kept.iter().map(|(_, kept)| kept.0.len()).sum::<usize>() + segment.0.len();
        let kept_names = kept.iter().map(|(part, _)| part.name.clone());
        Addition {
            merged: self.segments[kept.len()..].iter().map(|(part, _)| part.clone()).collect(),
            count: i64::try_from(count).unwrap_or(i64::MAX).saturating_add(self.unknown),
            segment,
            kept: self.unread.iter().cloned().chain(kept_names).collect(),
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
    let names: Vec<_> = seen.iter().flat_map(|seen| &seen.config_maps).collect();
    // All at once: a new message waits for them, and there are no more than about ten.
    let all = try_join_all(names.iter().map(|name| api::get(&config_maps, name.as_str()))).await?;
    for (name, found) in names.into_iter().zip(all) {
        let uid = found.as_ref().and_then(|found| found.metadata.uid.clone());
        match judge(child, name, found.as_ref()) {
            Ok(segment) => memory.segments.push((Part { name: name.clone(), uid }, segment)),
            Err(why) => {
                memory.unread.push(name.clone());
                memory.lost = memory.lost.or(Some(why));
            }
        }
    }
    let known = memory.segments.iter().map(|(_, segment)| segment.0.len()).sum::<usize>();
    let counted = seen.filter(|_| memory.lost.is_some()).map_or(0, |seen| seen.count);
    memory.unknown = counted.saturating_sub(i64::try_from(known).unwrap_or(i64::MAX)).max(0);
    Ok(memory)
}

/// Whether a ConfigMap is the child's own: nobody else makes one that is, and none of ours is changed (contract D2).
fn is_ours(child: &Subagent, found: &ConfigMap) -> bool {
    let mut owners = found.metadata.owner_references.iter().flatten();
    found.immutable == Some(true)
        && owners.any(|owner| owner.controller == Some(true) && Some(&owner.uid) == child.metadata.uid.as_ref())
}

/// What a found ConfigMap holds, if it is the one that was stored under the name.
fn judge(child: &Subagent, name: &str, found: Option<&ConfigMap>) -> Result<Segment, String> {
    let named = format!("ConfigMap {name}, which remembers the ids of earlier messages,");
    let remedy =
        "restore it, or create a new Subagent: no new message is taken, since nobody can tell whether it is one";
    let Some(found) = found else { return Err(format!("{named} is gone; {remedy}")) };
    let text = found.data.as_ref().and_then(|data| data.get(KEY)).map(String::as_str).unwrap_or_default();
    if !is_ours(child, found) {
        return Err(format!("{named} is not the child's own any more; {remedy}"));
    }
    let segment = Segment::decode(text).filter(|segment| segment.names(child).any(|own| own == name));
    segment.ok_or_else(|| format!("{named} does not hold what was stored there; {remedy}"))
}

/// Stores a new part and gives its name. Again is the same: its names depend on its content. One that is taken by something
/// else is left alone (contract D2).
///
/// # Errors
/// [`StoreError`], also when something else has every name.
pub async fn store(client: &Client, child: &Subagent, segment: &Segment) -> Result<String, StoreError> {
    let config_maps: Api<ConfigMap> = Api::namespaced(client.clone(), &child.namespace().unwrap_or_default());
    let params = PostParams { field_manager: Some(names::CONTROLLER_MANAGER.into()), ..PostParams::default() };
    let mut taken = None;
    for tried in segment.names(child) {
        let (what, body) = (format!("creating ConfigMap {tried}"), config_map(child, &tried, segment));
        match api::write(what, config_maps.create(&params, &body)).await {
            Ok(_) => return Ok(tried),
            Err(WriteError::Refused { what, status }) if status.reason == "AlreadyExists" => {
                let found = api::get(&config_maps, &tried).await?;
                if judge(child, &tried, found.as_ref()).is_ok() {
                    return Ok(tried);
                }
                taken = Some(WriteError::Refused { what, status });
            }
            Err(error) => return Err(error.into()),
        }
    }
    Err(taken.unwrap_or_else(|| WriteError::Gone("the names of a part".into())).into())
}

/// A part that was not stored.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// What has its name could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// It was not written.
    #[error(transparent)]
    Write(#[from] WriteError),
}

fn config_map(child: &Subagent, stored: &str, segment: &Segment) -> ConfigMap {
    let mut metadata = placing::owned(child, stored);
    let labels = metadata.labels.get_or_insert_default();
    labels.insert(names::CONTENT_LABEL.to_owned(), names::CONTENT_SEEN_IDS.to_owned());
    ConfigMap {
        metadata,
        data: Some(BTreeMap::from([(KEY.to_owned(), segment.encode())])),
        immutable: Some(true),
        ..ConfigMap::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
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
        let addition = memory.with(Segment::of(batch));
        let name = addition.segment.names(&child).next().unwrap();
        let stored = config_map(&child, &name, &addition.segment);
        let segment = judge(&child, &name, Some(&stored)).unwrap();
        let kept = memory.segments.iter().filter(|(part, _)| addition.kept.contains(&part.name)).cloned();
        let segments = kept.chain([(Part { name, uid: None }, segment)]).collect();
        (Memory { segments, ..Memory::default() }, addition)
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
                prop_assert!(addition.merged.iter().all(|part| !addition.kept.contains(&part.name)));
                prop_assert!(addition.kept.len() < 14, "{}", addition.kept.len());
                prop_assert!(addition.kept.iter().all(|name| name.len() <= 64));
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

    /// R12: what cannot be read stays listed and counted, so that whoever restores it finds everything remembered again.
    #[test]
    fn r12_a_part_that_is_lost_stays_listed_when_more_is_remembered() {
        let memory = Memory { unknown: 40, ..Memory::without("lost") };
        let (_, first) = add(&memory, &[message(1), message(2)]);
        assert_eq!((first.kept, first.count, first.merged.len()), (vec!["lost".to_owned()], 42, 0));
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
        let name = addition.segment.names(&child).next().unwrap();
        let stored = config_map(&child, &name, &addition.segment);
        assert_eq!(stored.immutable, Some(true));
        let mut other = stored.clone();
        other.data.as_mut().unwrap().insert(KEY.into(), "a b Claimed\n".into());
        for found in [None, Some(&other), Some(&ConfigMap::default())] {
            let why = judge(&child, &name, found).unwrap_err();
            assert!(why.contains(&name) && why.contains("restore it"), "{why}");
        }
    }

    /// What somebody else may change or delete is no memory, whatever it holds.
    #[test]
    fn d2_a_part_that_is_not_the_childs_own_is_not_believed() {
        let child = child();
        let segment = Segment::of(&[message(1), message(2)]);
        for name in segment.names(&child) {
            let stored = config_map(&child, &name, &segment);
            assert_eq!(judge(&child, &name, Some(&stored)), Ok(segment.clone()));
            let change = |change: &dyn Fn(&mut ConfigMap)| {
                let mut other = stored.clone();
                change(&mut other);
                other
            };
            let owner = |other: &mut ConfigMap, set: &dyn Fn(&mut OwnerReference)| {
                set(&mut other.metadata.owner_references.as_mut().unwrap()[0]);
            };
            for foreign in [
                change(&|other| other.metadata.owner_references = None),
                change(&|other| owner(other, &|owner| owner.uid = "another".into())),
                change(&|other| owner(other, &|owner| owner.controller = None)),
                change(&|other| other.immutable = None),
            ] {
                assert!(judge(&child, &name, Some(&foreign)).is_err(), "{foreign:?}");
            }
        }
        let names: std::collections::BTreeSet<_> = segment.names(&child).collect();
        assert_eq!(names.len(), NAMES, "a taken one is not the end");
    }

    #[test]
    fn a_name_is_short_enough_for_the_status() {
        let mut child = child();
        child.metadata.name = Some("x".repeat(63));
        let all: Vec<_> = (0..MOST).map(message).collect();
        let addition = Memory::default().with(Segment::of(&all));
        assert!(addition.segment.names(&child).all(|name| name.len() <= 64));
    }
}
