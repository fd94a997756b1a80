use super::*;
use bytes::Bytes;
use futures::{TryStreamExt, future::join_all, stream};
use object_store::{
    memory::InMemory,
    throttle::{ThrottleConfig, ThrottledStore},
};
use proptest::prelude::*;
use rstest::rstest;
use sha2::{Digest, Sha256};
use std::{collections::BTreeMap, convert::Infallible, fs, os::unix::fs::MetadataExt, path::Path, process::Command};
use tempfile::TempDir;

const CHILD: &str = "7f9c1f0e-5f0a-4f7e-8a63-2f1f3e1f6f10";
/// Above one part, and no multiple of it.
const LARGE: usize = 2 * PART as usize + 4711;

fn store(folder: &Path) -> Arc<Store> {
    let url = format!("file://{}", folder.display());
    // However busy the machine is.
    let (step, verify) = (Duration::from_secs(600), Duration::from_secs(600));
    Arc::new(Store { step, verify, ..Store::open(&url, []).unwrap().unwrap() })
}

fn place() -> (TempDir, Arc<Store>) {
    let dir = TempDir::new().unwrap();
    let store = store(&dir.path().join("sessions"));
    (dir, store)
}

/// A checkpoint of another child, so that the store is not empty.
async fn beside(store: &Store) {
    let key = Key { child_uid: "another".into(), ..key_of(b"x") };
    store.put(&key, 1, frames(b"x", 1)).await.unwrap();
}

fn content(size: usize) -> Vec<u8> {
    (0..size).map(|index| (index.wrapping_mul(2_654_435_761) >> 13) as u8).collect()
}

fn key_of(content: &[u8]) -> Key {
    let sha256 = crate::naming::hex(&Sha256::digest(content));
    Key { child_uid: CHILD.into(), epoch: 1, turn: 1, sha256 }
}

fn frames(content: &[u8], each: usize) -> impl futures::Stream<Item = Result<Bytes, Infallible>> + use<> {
    let frames: Vec<_> = content.chunks(each.max(1)).map(|frame| Ok(Bytes::copy_from_slice(frame))).collect();
    stream::iter(frames)
}

async fn put(store: &Store, content: &[u8]) -> Result<(), PutError> {
    store.put(&key_of(content), content.len() as u64, frames(content, 100_000)).await
}

async fn get(store: &Arc<Store>, content: &[u8]) -> Result<Vec<u8>, GetError> {
    let content = store.get(&key_of(content), content.len() as u64).await?;
    let parts: Vec<Bytes> = content.try_collect().await?;
    Ok(parts.concat())
}

/// Everything in the store's folder, files of writers included.
fn files(dir: &TempDir) -> Vec<String> {
    let mut found = vec![];
    let mut folders = vec![dir.path().to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { found.push(path.display().to_string()) }
        }
    }
    found
}

#[rstest]
#[case::a_byte(1)]
#[case::a_part(PART as usize)]
#[case::a_part_and_a_byte(PART as usize + 1)]
#[case::several_parts(LARGE)]
#[tokio::test]
async fn r10_what_was_stored_comes_back(#[case] size: usize) {
    let (dir, store) = place();
    let content = content(size);
    put(&store, &content).await.unwrap();
    assert_eq!(get(&store, &content).await.unwrap(), content);
    let path = dir.path().join("sessions").join(key_of(&content).to_string());
    assert_eq!(files(&dir), [path.display().to_string()], "under its key, and nothing else");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// However it is cut into frames, and whatever happens to it on the way: it is visible whole and right, or not at all.
    #[test]
    fn r10_any_content_in_any_frames_is_stored_whole_or_not_at_all(
        bytes in prop::collection::vec(any::<u8>(), 1..5000),
        cuts in prop::collection::vec(0_usize..5000, 0..8),
        harm in 0..4,
        at in any::<prop::sample::Index>(),
    ) {
        let (key, size) = (key_of(&bytes), bytes.len() as u64);
        let mut arriving = bytes.clone();
        match harm {
            0 => arriving.truncate(at.index(bytes.len())),
            1 => arriving[at.index(bytes.len())] ^= 1,
            2 => arriving.push(0),
            _ => {}
        }
        let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| *cut < arriving.len()).chain([0, arriving.len()]).collect();
        cuts.sort_unstable();
        let frames: Vec<Result<_, Infallible>> =
            cuts.windows(2).map(|cut| Ok(Bytes::copy_from_slice(&arriving[cut[0]..cut[1]]))).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let (dir, store) = place();
            let stored = store.put(&key, size, stream::iter(frames)).await;
            if harm > 2 {
                stored.unwrap();
                assert_eq!(get(&store, &bytes).await.unwrap(), bytes);
            } else {
                assert!(matches!(stored, Err(PutError::Content(_))), "{stored:?}");
                assert_eq!(files(&dir), [""; 0]);
                beside(&store).await;
                assert_eq!(get(&store, &bytes).await, Err(GetError::Missing(key)));
            }
        });
    }
}

/// The same above one part, where the bytes are on the disk before the end is known.
#[rstest]
#[case::cut(|content: &mut Vec<u8>| content.truncate(LARGE - 1))]
#[case::longer(|content: &mut Vec<u8>| content.push(0))]
#[case::changed(|content: &mut Vec<u8>| content[PART as usize] ^= 1)]
#[tokio::test]
async fn r10_a_large_content_that_is_not_as_announced_is_never_visible(#[case] harm: fn(&mut Vec<u8>)) {
    let (dir, store) = place();
    let whole = content(LARGE);
    let mut spoiled = whole.clone();
    harm(&mut spoiled);
    let stored = store.put(&key_of(&whole), LARGE as u64, frames(&spoiled, 1_000_000)).await;
    assert!(matches!(stored, Err(PutError::Content(_))), "{stored:?}");
    assert_eq!(files(&dir), [""; 0], "nothing of it is left");
}

#[tokio::test]
async fn r10_a_content_that_breaks_off_may_come_again() {
    let (dir, store) = place();
    let whole = content(LARGE);
    let broken = frames(&whole[..LARGE / 2], 1_000_000).map_err(|never| match never {});
    let broken = futures::StreamExt::chain(broken, stream::iter([Err("reset by peer")]));
    let stored = store.put(&key_of(&whole), LARGE as u64, broken).await;
    assert_eq!(stored, Err(PutError::Content(ContentError::Broken("reset by peer".into()))));
    assert_eq!(files(&dir), [""; 0]);
    put(&store, &whole).await.unwrap();
}

#[tokio::test]
async fn r1_a_repeat_changes_nothing_and_is_checked_all_the_same() {
    let (dir, store) = place();
    let content = content(5000);
    put(&store, &content).await.unwrap();
    let written = || fs::metadata(dir.path().join("sessions").join(key_of(&content).to_string())).unwrap().modified();
    let first = written().unwrap();
    put(&store, &content).await.unwrap();
    let spoiled = store.put(&key_of(&content), 5000, frames(&[1; 5000], 100)).await;
    assert_eq!(spoiled, Err(PutError::Content(ContentError::Digest)));
    assert_eq!((written().unwrap(), get(&store, &content).await.unwrap()), (first, content.clone()));
}

#[rstest]
#[case(3000)]
#[case(LARGE)]
#[tokio::test]
async fn r9_several_writers_of_one_key_do_not_meet(#[case] size: usize) {
    let (dir, store) = place();
    let content = content(size);
    let spoiled = vec![0; size];
    let key = key_of(&content);
    let writers = (0..6).map(|number| {
        let arriving = if number == 3 { &spoiled } else { &content };
        store.put(&key, size as u64, frames(arriving, size / 3))
    });
    let stored: Vec<_> = join_all(writers).await.into_iter().map(|stored| stored.is_ok()).collect();
    assert_eq!(stored, [true, true, true, false, true, true]);
    assert_eq!((get(&store, &content).await.unwrap() == content, files(&dir).len()), (true, 1));
}

#[tokio::test]
async fn r10_a_writer_that_dies_leaves_nothing_that_counts() {
    let (dir, store) = place();
    let whole = content(LARGE);
    let stuck = futures::StreamExt::chain(frames(&whole[..PART as usize + 9], 1_000_000), stream::pending());
    let (key, size) = (key_of(&whole), LARGE as u64);
    let put = store.put(&key, size, stuck);
    tokio::time::timeout(Duration::from_millis(300), put).await.unwrap_err();
    assert_eq!(store.list().try_collect::<Vec<_>>().await.unwrap(), []);
    assert!(get(&store, &whole).await.is_err());
    // As after the end of a whole process: the file is there.
    let left = dir.path().join("sessions").join(format!("{CHILD}/1/1/{}#7", key_of(&whole).sha256));
    fs::create_dir_all(left.parent().unwrap()).unwrap();
    fs::write(&left, b"half").unwrap();
    assert_eq!(store.list().try_collect::<Vec<_>>().await.unwrap(), []);
    store.tidy(Duration::from_secs(3600)).await.unwrap();
    assert!(left.exists(), "somebody may be writing it");
    store.tidy(Duration::ZERO).await.unwrap();
    assert!(!left.exists());
}

#[tokio::test]
async fn tidying_takes_empty_folders_and_no_checkpoint() {
    let (dir, store) = place();
    let content = content(10);
    put(&store, &content).await.unwrap();
    let empty = dir.path().join("sessions/another-child/2/1");
    fs::create_dir_all(&empty).unwrap();
    // The file system's own, and of somebody else: nothing of it is a child's.
    let foreign = dir.path().join("sessions/lost+found/1/1");
    fs::create_dir_all(&foreign).unwrap();
    fs::write(foreign.join("x#1"), b"x").unwrap();
    for _ in 0..3 {
        store.tidy(Duration::ZERO).await.unwrap();
    }
    assert!(!dir.path().join("sessions/another-child").exists());
    assert!(foreign.join("x#1").exists());
    assert_eq!(get(&store, &content).await.unwrap(), content);
}

#[rstest]
#[case::cut(300, |path: &Path| fs::write(path, content(299)).unwrap())]
#[case::changed(300, |path: &Path| fs::write(path, [0; 300]).unwrap())]
#[case::large_and_changed_at_its_end(LARGE, |path: &Path| {
    let mut spoiled = content(LARGE);
    spoiled[LARGE - 1] ^= 1;
    fs::write(path, spoiled).unwrap();
})]
#[tokio::test]
async fn r10_a_damaged_checkpoint_is_not_given_out(#[case] size: usize, #[case] harm: fn(&Path)) {
    let (dir, store) = place();
    let content = content(size);
    put(&store, &content).await.unwrap();
    harm(&dir.path().join("sessions").join(key_of(&content).to_string()));
    let got = get(&store, &content).await.map(|content| content.len());
    assert_eq!(got, Err(GetError::Damaged(key_of(&content))));
}

/// Damaged after it was verified: cut short it ends in an error.
#[tokio::test]
async fn r10_a_checkpoint_that_is_cut_on_its_way_ends_in_an_error() {
    let (dir, store) = place();
    let content = content(LARGE);
    put(&store, &content).await.unwrap();
    let mut reading = store.get(&key_of(&content), LARGE as u64).await.unwrap();
    let first = reading.try_next().await.unwrap().unwrap();
    assert!(content.starts_with(&first));
    fs::write(dir.path().join("sessions").join(key_of(&content).to_string()), vec![0; LARGE / 2]).unwrap();
    let rest: Result<Vec<Bytes>, _> = reading.try_collect().await;
    assert!(rest.is_err(), "{} parts", rest.map_or(0, |parts| parts.len()));
}

/// What is away may come back; what is said to be lost is lost.
#[tokio::test]
async fn r10_an_empty_store_is_no_word_about_a_checkpoint() {
    let (dir, store) = place();
    let content = content(10);
    put(&store, &content).await.unwrap();
    fs::rename(dir.path().join("sessions"), dir.path().join("elsewhere")).unwrap();
    let Err(GetError::Store(error)) = get(&store, &content).await else { panic!("it is said to be lost") };
    assert!(!error.may_pass() && error.told().contains("correct sessionStore.url"), "{error}");
    beside(&store).await;
    assert_eq!(get(&store, &content).await, Err(GetError::Missing(key_of(&content))));
}

#[tokio::test]
async fn c47_a_childs_checkpoints_go_with_it_and_no_others() {
    let (dir, store) = place();
    let mine = content(10);
    put(&store, &mine).await.unwrap();
    let longer_name = Key { child_uid: format!("{CHILD}0"), ..key_of(&mine) };
    store.put(&longer_name, 10, frames(&mine, 10)).await.unwrap();
    let left = dir.path().join(format!("sessions/{CHILD}/1/1/{}#1", key_of(&mine).sha256));
    fs::write(&left, b"half").unwrap();
    store.delete_prefix(CHILD).await.unwrap();
    assert!(!dir.path().join("sessions").join(CHILD).exists());
    let kept: Vec<_> = store.list().map_ok(|entry| entry.key).try_collect().await.unwrap();
    assert_eq!(kept, [longer_name]);
    store.delete_prefix(CHILD).await.unwrap();
    // Names that would lead elsewhere.
    for name in ["", ".", "..", "../sessions", "/"] {
        store.delete_prefix(name).await.unwrap();
    }
    assert_eq!(store.list().try_collect::<Vec<_>>().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_list_says_what_is_there_and_since_when() {
    let (dir, store) = place();
    assert_eq!(store.list().try_collect::<Vec<_>>().await.unwrap(), [], "no folder yet");
    let content = content(10);
    put(&store, &content).await.unwrap();
    fs::write(dir.path().join("sessions/of-somebody-else"), b"x").unwrap();
    let listed: Vec<_> = store.list().try_collect().await.unwrap();
    assert_eq!((listed.len(), &listed[0].key, listed[0].size), (1, &key_of(&content), 10));
    let age = k8s_openapi::jiff::Timestamp::now().as_second() - listed[0].written.as_second();
    assert!((-5..600).contains(&age), "{age} s");
    store.remove(&listed[0].key).await.unwrap();
    store.remove(&listed[0].key).await.unwrap();
    assert_eq!(store.list().try_collect::<Vec<_>>().await.unwrap(), []);
}

/// Everything below a folder, with its content.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(tree(&path));
        }
        found.insert(path.clone(), fs::read(&path).ok());
    }
    found
}

#[tokio::test]
async fn c34_a_check_writes_and_reads_and_leaves_everything_as_it_was() {
    let (dir, store) = place();
    put(&store, &content(10)).await.unwrap();
    let sessions = dir.path().join("sessions");
    fs::create_dir(sessions.join("of somebody else")).unwrap();
    fs::write(sessions.join("check_of_the_operator"), b"of somebody else").unwrap();
    let before = tree(&sessions);
    let checks = (0..4).map(|_| store.check());
    assert_eq!(join_all(checks).await, [Ok(()), Ok(()), Ok(()), Ok(())]);
    assert_eq!(tree(&sessions), before);
    // What is left of one that died, and of one that died while it wrote.
    for left in ["check_of_the_operator_07", "check_of_the_operator_07#1"] {
        fs::write(sessions.join(left), b"7").unwrap();
    }
    store.tidy(Duration::from_secs(3600)).await.unwrap();
    assert_eq!(tree(&sessions).len(), before.len() + 2, "it may be going on");
    store.tidy(Duration::ZERO).await.unwrap();
    assert_eq!(tree(&sessions).into_iter().filter(|(path, _)| path.is_file()).collect::<Vec<_>>().len(), 2);
}

/// Nobody is there any more when it is over.
#[tokio::test]
async fn c34_a_check_that_is_given_up_leaves_nothing() {
    let (dir, store) = place();
    fs::create_dir(dir.path().join("sessions")).unwrap();
    for _ in 0..20 {
        tokio::select! {
            biased;
            _ = store.check() => panic!("it has not begun"),
            () = std::future::ready(()) => {}
        }
    }
    let gone = async {
        // Its place is given back when it is over.
        while store.calls.available_permits() < calls::CALLS || Arc::strong_count(&store) > 1 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    assert_eq!(files(&dir), [""; 0]);
}

/// A file system that hangs, as one on the network does whose server is gone.
#[test]
fn r10_calls_that_hang_leave_threads_for_everybody_else() {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .max_blocking_threads(calls::CALLS + 2)
        .enable_all()
        .build()
        .unwrap();
    let dir = TempDir::new().unwrap();
    runtime.block_on(async {
        let hanging = Store { step: Duration::from_millis(300), ..Arc::into_inner(store(dir.path())).unwrap() };
        let hanging = Arc::new(hanging);
        let key = key_of(b"x");
        let pipe = dir.path().join(key.to_string());
        fs::create_dir_all(pipe.parent().unwrap()).unwrap();
        // Whoever opens it waits for the other end.
        assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
        let asked = join_all((0..3 * calls::CALLS).map(|_| hanging.get(&key, 1))).await;
        for asked in asked {
            let Err(GetError::Store(error)) = asked.map(drop) else { panic!("it has an answer") };
            assert!(error.may_pass(), "{error}");
        }
        let other = tokio::task::spawn_blocking(|| 7);
        let other = tokio::time::timeout(Duration::from_secs(20), other).await.expect("a thread is left");
        assert_eq!(other.unwrap(), 7);
        // The server is back.
        let other_end = fs::File::options().read(true).write(true).open(&pipe).unwrap();
        let free = async {
            while hanging.calls.available_permits() < calls::CALLS {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), free).await.expect("their places are given back");
        drop(other_end);
    });
    runtime.shutdown_background();
}

/// A place that takes no files, whoever asks: root may write where modes say that nobody does.
#[rstest]
#[case::not_a_folder(|dir: &Path| { fs::write(dir.join("sessions"), b"a file").unwrap(); dir.join("sessions/x") })]
#[case::no_rights(|_: &Path| "/sys/kernel/sessions".into())]
#[tokio::test]
async fn r10_c34_a_folder_that_cannot_be_written_is_named_with_what_to_do(#[case] folder: fn(&Path) -> PathBuf) {
    let dir = TempDir::new().unwrap();
    let store = store(&folder(dir.path()));
    for size in [10, LARGE] {
        let Err(PutError::Store(error)) = put(&store, &content(size)).await else { panic!("it is stored") };
        assert!(!error.may_pass(), "{error}");
        assert!(error.to_string().contains(store.url()), "{error}");
    }
    assert!(!store.check().await.unwrap_err().may_pass());
}

/// Runs a test of this module once more where it may mount what only it sees. True there.
fn in_mounts_of_its_own(test: &str) -> bool {
    const THERE: &str = "IN_MOUNTS_OF_ITS_OWN";
    if std::env::var_os(THERE).is_some() {
        return true;
    }
    let mut command = Command::new("unshare");
    if fs::metadata("/proc/self").unwrap().uid() != 0 {
        command.args(["--user", "--map-root-user"]);
    }
    command.arg("--mount").arg(std::env::current_exe().unwrap());
    let done = command.args(["--exact", &format!("session_store::tests::{test}")]).env(THERE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
    false
}

fn mount(arguments: &[&str], folder: &Path) {
    assert!(Command::new("mount").args(arguments).arg(folder).status().unwrap().success(), "{arguments:?}");
}

#[tokio::test]
async fn r10_a_full_or_read_only_volume_keeps_what_is_there_and_says_what_to_do() {
    if !in_mounts_of_its_own("r10_a_full_or_read_only_volume_keeps_what_is_there_and_says_what_to_do") {
        return;
    }
    let dir = TempDir::new().unwrap();
    mount(&["-t", "tmpfs", "-o", "size=12m", "tmpfs"], dir.path());
    let store = store(dir.path());
    let older = content(1000);
    put(&store, &older).await.unwrap();
    let refused = async |size: usize| {
        let Err(PutError::Store(error)) = put(&store, &content(size)).await else { panic!("it is stored") };
        assert!(!error.may_pass(), "{error}");
        error.to_string()
    };
    let why = refused(LARGE).await;
    assert!(why.contains("sessionStore.persistence.size"), "{why}");
    assert_eq!(files(&dir).len(), 1, "half of one takes no room");
    let rest = fs::write(dir.path().join("fills-it"), vec![0; 13 * 1024 * 1024]);
    assert!(rest.is_err());
    let why = refused(5000).await;
    assert!(why.contains("sessionStore.persistence.size"), "{why}");
    assert!(!store.check().await.unwrap_err().may_pass());
    assert_eq!(get(&store, &older).await.unwrap(), older);
    put(&store, &older).await.expect("what is there is there");

    fs::remove_file(dir.path().join("fills-it")).unwrap();
    put(&store, &content(5000)).await.expect("there is room again");
    mount(&["-o", "remount,ro"], dir.path());
    for size in [6000, LARGE] {
        let why = refused(size).await;
        assert!(why.contains("a volume there that can be written"), "{why}");
    }
    assert!(!store.check().await.unwrap_err().may_pass());
    assert_eq!(get(&store, &older).await.unwrap(), older);
}

/// The checkpoint of one turn, as small as they come.
async fn turn(store: &Store, epoch: i64, turn: i64) -> Key {
    let content = content(100);
    let key = Key { epoch, turn, ..key_of(&content) };
    store.put(&key, 100, frames(&content, 100)).await.unwrap();
    key
}

async fn listed(store: &Store) -> Vec<Key> {
    let mut keys: Vec<Key> = store.list().map_ok(|entry| entry.key).try_collect().await.unwrap();
    keys.sort_by_key(|key| (key.child_uid.clone(), key.epoch, key.turn));
    keys
}

#[tokio::test]
async fn r10_only_what_a_recorded_checkpoint_replaces_makes_room_for_it() {
    let (dir, store) = place();
    let mut all = vec![];
    for (epoch, number) in [(1, 1), (1, 2), (2, 1), (2, 9), (2, 10), (2, 11), (3, 1)] {
        all.push(turn(&store, epoch, number).await);
    }
    let [first, second, older, old, newest, next, later] = &all[..] else { panic!("seven") };
    let others = Key { child_uid: "another".into(), ..older.clone() };
    store.put(&others, 100, frames(&content(100), 100)).await.unwrap();
    assert_eq!(store.trim(newest, Among::Turns, |_| false).await, Ok(2), "{older} {old}");
    // What is there already and is not recorded yet is the next one's.
    let kept = [first, second, newest, next, later].map(Clone::clone);
    assert_eq!(listed(&store).await, [&kept[..], std::slice::from_ref(&others)].concat());
    assert!(!dir.path().join(format!("sessions/{CHILD}/2/9")).exists(), "a folder for each turn would be left");
    let is_named = |key: &Key| key == first;
    assert_eq!(store.trim(newest, Among::Activations, is_named).await, Ok(1), "{second}");
    let kept = [first, newest, next, later].map(Clone::clone);
    assert_eq!(listed(&store).await, [&kept[..], &[others]].concat());
    assert_eq!(store.trim(newest, Among::Activations, is_named).await, Ok(0));
    assert_eq!(store.trim(newest, Among::Activations, |_| false).await, Ok(1));
    assert!(!dir.path().join(format!("sessions/{CHILD}/1")).exists());
}

/// On a volume that holds three of them.
#[tokio::test]
async fn t5_r10_a_thousand_turns_take_the_room_of_a_few() {
    if !in_mounts_of_its_own("t5_r10_a_thousand_turns_take_the_room_of_a_few") {
        return;
    }
    let dir = TempDir::new().unwrap();
    mount(&["-t", "tmpfs", "-o", "size=400k,nr_inodes=32", "tmpfs"], dir.path());
    let store = store(dir.path());
    let content = content(100_000);
    for turn in 1..=1000 {
        let key = Key { turn, ..key_of(&content) };
        store.put(&key, 100_000, frames(&content, 100_000)).await.unwrap();
        // Now and then its order is missed.
        if turn % 7 > 0 {
            store.trim(&key, Among::Turns, |_| false).await.unwrap();
        }
    }
    assert_eq!(listed(&store).await.len(), 1);
}

/// A store that is slow beyond all bounds is one that may be well again later.
#[tokio::test]
async fn r10_c34_a_silent_store_holds_nobody_up_for_ever() {
    let wait = Duration::from_secs(3600);
    let config = ThrottleConfig { wait_put_per_call: wait, wait_get_per_call: wait, ..ThrottleConfig::default() };
    let store = Arc::new(Store {
        objects: Arc::new(ThrottledStore::new(InMemory::new(), config)),
        url: "s3://silent".into(),
        folder: None,
        installation: None,
        calls: Arc::new(Semaphore::new(1)),
        step: Duration::from_millis(20),
        verify: Duration::from_millis(20),
    });
    let Err(PutError::Store(error)) = put(&store, &content(10)).await else { panic!("it is stored") };
    assert!(error.may_pass() && error.to_string().contains("s3://silent"), "{error}");
    assert!(store.check().await.unwrap_err().may_pass());
    assert!(get(&store, &content(10)).await.is_err());
}
