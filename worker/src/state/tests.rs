use super::{PackFault, RestoreFault, distinct, inventory::Inventory, pack, restore};
use proptest::prelude::*;
use rstest::rstest;
use std::{
    collections::BTreeMap,
    fs::{self, File, Permissions},
    io::Write,
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::{Path, PathBuf},
    process::Command,
};
use tar::{Builder, EntryType, Header};
use tempfile::TempDir;

const LIMIT: u64 = 1 << 20;

/// What is at a path, for comparisons: kind, permissions, time, and content or target.
#[derive(Debug, PartialEq, Eq)]
struct Seen(&'static str, u32, i64, Vec<u8>);

/// Everything below a folder, by its path in it.
fn tree(folder: &Path) -> BTreeMap<PathBuf, Seen> {
    let (mut seen, mut open) = (BTreeMap::new(), vec![folder.to_path_buf()]);
    while let Some(path) = open.pop() {
        let found = fs::symlink_metadata(&path).unwrap();
        let (mode, time) = (found.mode() & 0o777, found.mtime());
        let what = if found.is_dir() {
            open.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            Seen("folder", mode, 0, vec![])
        } else if found.is_symlink() {
            Seen("link", 0, 0, fs::read_link(&path).unwrap().into_os_string().into_encoded_bytes())
        } else {
            Seen("file", mode, time, fs::read(&path).unwrap())
        };
        seen.insert(path.strip_prefix(folder).unwrap().to_path_buf(), what);
    }
    seen.remove(Path::new(""));
    seen
}

fn file(path: &Path, content: &[u8], mode: u32) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

/// Packs and hands the archive out.
fn packed(paths: &[PathBuf], spool: &TempDir) -> File {
    pack(paths, spool.path(), LIMIT).unwrap().file
}

#[test]
fn c40_what_was_packed_comes_back_as_it_was() {
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (state, absent) = (pod.path().join("state"), pod.path().join("absent"));
    file(&state.join("db"), b"pages", 0o600);
    file(&state.join("db-wal"), b"log", 0o640);
    file(&state.join("projects/a b/\u{e4}.jsonl"), b"{}", 0o755);
    file(&state.join(format!("{}/{}", "d".repeat(120), "f".repeat(200))), b"long", 0o600);
    file(&state.join("closed/file"), b"x", 0o400);
    fs::set_permissions(state.join("closed"), Permissions::from_mode(0o500)).unwrap();
    fs::create_dir(state.join("empty")).unwrap();
    symlink("../../outside", state.join("link")).unwrap();
    symlink(format!("/{}", "t".repeat(300)), state.join("dangling")).unwrap();
    let paths = [state.clone(), absent.clone()];
    let before = tree(pod.path());
    let mut archive = packed(&paths, &spool);
    // Whatever has come since goes: a newer log beside an older database is a state that never was.
    file(&state.join("db-shm"), b"newer", 0o600);
    file(&state.join("db"), b"newer pages", 0o600);
    file(&absent.join("new"), b"new", 0o600);
    let restored = restore(&mut archive, &paths, LIMIT).unwrap();
    fs::remove_dir(&absent).unwrap();
    assert_eq!(tree(pod.path()), before);
    assert_eq!((restored.files, restored.mounted), (5, 0));
}

#[test]
fn c40_a_new_pod_has_none_of_the_folders() {
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = pod.path().join("home/agent/state");
    file(&state.join("file"), b"x", 0o600);
    fs::set_permissions(&state, Permissions::from_mode(0o700)).unwrap();
    let before = tree(&state);
    let mut archive = packed(std::slice::from_ref(&state), &spool);
    fs::remove_dir_all(pod.path().join("home")).unwrap();
    restore(&mut archive, std::slice::from_ref(&state), LIMIT).unwrap();
    assert_eq!(tree(&state), before);
    assert_eq!(fs::metadata(&state).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn the_same_files_have_the_same_digest() {
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for name in ["b", "a", "c/d"] {
        file(&pod.path().join(name), name.as_bytes(), 0o600);
    }
    let paths = [pod.path().to_path_buf()];
    let (one, other) = (pack(&paths, spool.path(), LIMIT).unwrap(), pack(&paths, spool.path(), LIMIT).unwrap());
    assert_eq!((&one.sha256, one.size, one.files), (&other.sha256, other.size, 3));
    assert!(one.is_settled && one.unpacked > 3 * 512);
    assert_eq!(one.size, one.file.metadata().unwrap().len());
}

#[test]
fn a_link_leads_nowhere_and_what_is_no_file_is_left_out() {
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (state, secret) = (pod.path().join("state"), pod.path().join("secret"));
    file(&state.join("file"), b"x", 0o600);
    file(&secret.join("key"), b"secret", 0o600);
    symlink(&secret, state.join("link")).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(state.join("socket")).unwrap();
    let found = pack(&[state], spool.path(), LIMIT).unwrap();
    assert_eq!((found.files, found.others), (1, 1));
    let mut archive = tar::Archive::new(zstd::Decoder::new(reread(found.file)).unwrap());
    let names: Vec<_> = archive.entries().unwrap().map(|entry| entry.unwrap().path().unwrap().into_owned()).collect();
    assert!(names.iter().all(|name| !name.to_string_lossy().contains("key")), "{names:?}");
}

fn reread(mut file: File) -> File {
    use std::io::Seek;
    file.rewind().unwrap();
    file
}

/// A state path may itself be a link, as an image has it; what it leads to is the state.
#[test]
fn a_state_path_that_is_a_link_means_its_folder() {
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (real, state) = (pod.path().join("real"), pod.path().join("state"));
    file(&real.join("file"), b"x", 0o600);
    symlink(&real, &state).unwrap();
    let mut archive = packed(std::slice::from_ref(&state), &spool);
    fs::remove_file(real.join("file")).unwrap();
    restore(&mut archive, std::slice::from_ref(&state), LIMIT).unwrap();
    assert_eq!(fs::read(real.join("file")).unwrap(), b"x");
    assert!(fs::symlink_metadata(state).unwrap().is_symlink());
}

#[rstest]
#[case::none(&[], PackFault::Nothing)]
#[case::absent(&["absent"], PackFault::Nothing)]
#[case::empty(&["empty"], PackFault::Nothing)]
fn nothing_to_keep_is_a_fault(#[case] names: &[&str], #[case] fault: PackFault) {
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    fs::create_dir_all(pod.path().join("empty/er")).unwrap();
    let paths: Vec<_> = names.iter().map(|name| pod.path().join(name)).collect();
    assert_eq!(pack(&paths, spool.path(), LIMIT).unwrap_err(), fault);
}

#[test]
fn r10_the_bound_is_the_same_both_ways() {
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = pod.path().join("state");
    file(&state.join("file"), &vec![0; 100_000], 0o600);
    let paths = [state.clone()];
    let whole = pack(&paths, spool.path(), LIMIT).unwrap();
    assert!(whole.size < 10_000, "it is compressed");
    assert_eq!(pack(&paths, spool.path(), whole.unpacked - 1).unwrap_err(), PackFault::TooLarge(whole.unpacked - 1));
    let mut exact = pack(&paths, spool.path(), whole.unpacked).unwrap().file;
    restore(&mut exact, &paths, whole.unpacked).unwrap();
    let before = tree(pod.path());
    assert_eq!(restore(&mut exact, &paths, 100_000).unwrap_err(), RestoreFault::TooLarge(100_000));
    assert_eq!(tree(pod.path()), before, "nothing was touched");
}

#[test]
fn a_full_disk_is_not_the_states_fault() {
    let pod = tempfile::tempdir().unwrap();
    file(&pod.path().join("file"), b"x", 0o600);
    let fault = pack(&[pod.path().to_path_buf()], Path::new("/nowhere/at/all"), LIMIT).unwrap_err();
    assert_eq!(fault, PackFault::NoRoom(Some(2)));
    assert!(fault.to_string().contains("error number 2"), "{fault}");
}

#[test]
fn state_paths_below_one_another_are_one() {
    let paths = ["/a/b", "/a", "/ab", "relative", "/a/../etc", "/a/"].map(PathBuf::from);
    assert_eq!(distinct(&paths), ["/a", "/ab"].map(PathBuf::from));
}

/// An entry as no worker writes it.
#[derive(Clone, Debug)]
struct Raw {
    name: String,
    kind: u8,
    target: String,
}

fn archive(entries: &[Raw]) -> File {
    let mut builder = Builder::new(zstd::Encoder::new(tempfile::tempfile().unwrap(), 0).unwrap());
    for entry in entries {
        let mut header = Header::new_gnu();
        let fields = header.as_gnu_mut().unwrap();
        fields.name[..entry.name.len()].copy_from_slice(entry.name.as_bytes());
        fields.linkname[..entry.target.len()].copy_from_slice(entry.target.as_bytes());
        header.set_entry_type(EntryType::new(entry.kind));
        header.set_mode(0o7777);
        header.set_size(if entry.kind == b'0' { 4 } else { 0 });
        header.set_cksum();
        builder.append(&header, if entry.kind == b'0' { &b"evil"[..] } else { &[] }).unwrap();
    }
    builder.into_inner().unwrap().finish().unwrap()
}

/// A pod with a state folder that has something in it, and something beside it that must stay as it is.
fn pod() -> (TempDir, PathBuf) {
    let pod = tempfile::tempdir().unwrap();
    let state = pod.path().join("state");
    file(&state.join("old"), b"old", 0o600);
    file(&pod.path().join("outside/victim"), b"good", 0o600);
    (pod, state)
}

#[rstest]
#[case::dots("{state}/../outside/victim", b'0', "", RestoreFault::Outside)]
#[case::absolute("/{state}/x", b'0', "", RestoreFault::Outside)]
#[case::elsewhere("etc/passwd", b'0', "", RestoreFault::Elsewhere)]
#[case::a_neighbour("{state}-2/x", b'0', "", RestoreFault::Elsewhere)]
#[case::hard_link("{state}/x", b'1', "{state}/old", RestoreFault::Damaged)]
#[case::device("{state}/x", b'3', "", RestoreFault::Damaged)]
#[case::pipe("{state}/x", b'6', "", RestoreFault::Damaged)]
#[case::a_link_without_target("{state}/x", b'2', "", RestoreFault::Damaged)]
fn what_no_checkpoint_holds_is_refused_before_anything_is_touched(
    #[case] name: &str,
    #[case] kind: u8,
    #[case] target: &str,
    #[case] fault: RestoreFault,
) {
    let (pod, state) = pod();
    let root = state.to_str().unwrap().trim_start_matches('/');
    let put = |text: &str| text.replace("{state}", root);
    let good = Raw { name: put("{state}/good"), kind: b'0', target: String::new() };
    let before = tree(pod.path());
    let mut archive = archive(&[good, Raw { name: put(name), kind, target: put(target) }]);
    assert_eq!(restore(&mut archive, &[state], LIMIT).unwrap_err(), fault);
    assert_eq!(tree(pod.path()), before);
}

#[rstest]
#[case::nothing(b"")]
#[case::text(b"this is no archive")]
#[case::cut(b"\x28\xb5\x2f\xfd\x04\x00")]
fn r10_what_is_no_archive_is_damaged(#[case] bytes: &[u8]) {
    let (pod, state) = pod();
    let mut archive = tempfile::tempfile().unwrap();
    archive.write_all(bytes).unwrap();
    let before = tree(pod.path());
    let restored = restore(&mut archive, &[state], LIMIT);
    assert_eq!(restored, Err(RestoreFault::Damaged));
    assert_eq!(tree(pod.path()), before);
}

#[test]
fn a_folder_that_is_a_link_by_now_is_not_written_through() {
    let (pod, state) = pod();
    let root = state.to_str().unwrap().trim_start_matches('/').to_owned();
    let link = Raw { name: format!("{root}/l"), kind: b'2', target: "../outside".into() };
    let through = Raw { name: format!("{root}/l/victim"), kind: b'0', target: String::new() };
    let before = tree(pod.path());
    assert_eq!(restore(&mut archive(&[link, through]), &[state], LIMIT).unwrap_err(), RestoreFault::Outside);
    assert_eq!(tree(pod.path()), before);
}

/// Names are read into memory before anybody can judge them.
#[rstest]
#[case::long_name(EntryType::GNULongName)]
#[case::attributes(EntryType::XHeader)]
fn a_name_longer_than_any_is_damaged(#[case] kind: EntryType) {
    let (pod, state) = pod();
    let name = format!("{}/{}", state.to_str().unwrap().trim_start_matches('/'), "a".repeat(100_000));
    let mut builder = Builder::new(zstd::Encoder::new(tempfile::tempfile().unwrap(), 0).unwrap());
    for (kind, content) in [(kind, name.as_bytes()), (EntryType::Regular, &b"evil"[..])] {
        let mut header = Header::new_gnu();
        header.set_path("x").unwrap();
        header.set_entry_type(kind);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content).unwrap();
    }
    let mut archive = builder.into_inner().unwrap().finish().unwrap();
    let before = tree(pod.path());
    assert_eq!(restore(&mut archive, &[state], LIMIT).unwrap_err(), RestoreFault::Damaged);
    assert_eq!(tree(pod.path()), before);
}

/// What cannot be compressed becomes larger by that, and is taken and comes back all the same.
#[test]
fn r10_an_archive_of_exactly_the_bound_fits_whatever_is_in_it() {
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = pod.path().join("state");
    let mut word = 1_u64;
    let mut noise = Vec::new();
    while noise.len() < 700_000 {
        word = word.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        noise.extend_from_slice(&(word >> 16).to_be_bytes()[2..]);
    }
    file(&state.join("noise"), &noise, 0o600);
    let paths = [state.clone()];
    let bound = pack(&paths, spool.path(), LIMIT).unwrap().unpacked;
    let mut whole = pack(&paths, spool.path(), bound).unwrap();
    let most = subagent_link::most_compressed(i64::try_from(bound).unwrap());
    assert!(whole.size <= most.unsigned_abs(), "{} of {bound}", whole.size);
    fs::remove_dir_all(&state).unwrap();
    fs::create_dir(&state).unwrap();
    restore(&mut whole.file, &paths, bound).unwrap();
    assert!(fs::read(state.join("noise")).unwrap() == noise);
}

/// Names alone count, and they are counted before anything is packed.
#[test]
fn r10_the_bound_holds_for_names_too() {
    let pod = tempfile::tempdir().unwrap();
    for number in 0..9 {
        fs::create_dir(pod.path().join(number.to_string())).unwrap();
    }
    let take = |limit| Inventory::take(&[pod.path().to_path_buf()], limit).map(|found| found.items.len());
    assert_eq!(take(10 * 512).unwrap(), 10);
    assert_eq!(take(10 * 512 - 1).unwrap_err().kind(), std::io::ErrorKind::FileTooLarge);
}

/// Agents have files that come and go: one that went between being found and being read is not there.
#[test]
fn a_file_that_vanishes_while_it_is_packed_is_left_out() {
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let state = pod.path().join("state");
    file(&state.join("file"), b"x", 0o600);
    file(&state.join("journal"), b"y", 0o600);
    symlink("file", state.join("link")).unwrap();
    let found = Inventory::take(std::slice::from_ref(&state), LIMIT).unwrap();
    fs::remove_file(state.join("journal")).unwrap();
    fs::remove_file(state.join("link")).unwrap();
    let packed = super::pack::write(&found, spool.path(), LIMIT).unwrap();
    assert_eq!(packed.files, 1);
    fs::remove_file(state.join("file")).unwrap();
    let gone = super::pack::write(&found, spool.path(), LIMIT).unwrap_err();
    assert_eq!(gone, PackFault::Nothing);
    restore(&mut reread(packed.file), std::slice::from_ref(&state), LIMIT).unwrap();
    assert_eq!(tree(&state).into_keys().collect::<Vec<_>>(), [Path::new("file")]);
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
    command.arg("--mount").arg(std::env::current_exe().unwrap()).args(["--exact", &format!("state::tests::{test}")]);
    // It goes from out here, where nothing is mounted in it.
    let place = tempfile::tempdir().unwrap();
    let done = command.env(THERE, "1").env("TMPDIR", place.path()).output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success() && said.contains("1 passed"), "{said}{}", String::from_utf8_lossy(&done.stderr));
    false
}

fn mount(arguments: &[&str], at: &Path) {
    assert!(Command::new("mount").args(arguments).arg(at).status().unwrap().success(), "{arguments:?}");
}

/// As the kubelet mounts a `Secret`: a folder that is named after the time, links to it, and all of it read-only.
fn mount_secret(at: &Path, time: &str) {
    fs::create_dir_all(at).unwrap();
    mount(&["-t", "tmpfs", "tmpfs"], at);
    file(&at.join(format!("..{time}/token")), time.as_bytes(), 0o644);
    symlink(format!("..{time}"), at.join("..data")).unwrap();
    symlink("..data/token", at.join("token")).unwrap();
    mount(&["-o", "remount,ro,bind"], at);
}

/// As the kubelet mounts one file of a volume.
fn mount_file(at: &Path, content: &[u8], is_read_only: bool) {
    let source = at.with_extension("source");
    file(&source, content, 0o644);
    file(at, b"", 0o644);
    mount(&["--bind", source.to_str().unwrap()], at);
    if is_read_only {
        mount(&["-o", "remount,ro,bind"], at);
    }
    fs::remove_file(source).unwrap();
}

/// A pod mounts a `Secret` below a state path and a file of another; the next one mounts them with other times and contents.
#[test]
fn c40_what_a_pod_mounts_read_only_below_a_state_path_is_not_the_sessions() {
    if !in_mounts_of_its_own("c40_what_a_pod_mounts_read_only_below_a_state_path_is_not_the_sessions") {
        return;
    }
    let (spool, first) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let next = |place: &TempDir| {
        let link = spool.path().join("home");
        let _ = fs::remove_file(&link);
        fs::create_dir(place.path().join("state")).unwrap();
        symlink(place.path(), &link).unwrap();
        link.join("state")
    };
    // Where a pod is, as it is seen from inside.
    let state = next(&first);
    file(&state.join("db"), b"pages", 0o600);
    file(&state.join("plain/token"), b"the agent's own", 0o600);
    // Before there was a mount: also what an older archive holds in its place does no harm.
    file(&state.join("deep/creds/..one/token"), b"older", 0o600);
    symlink("..one", state.join("deep/creds/..data")).unwrap();
    file(&state.join("auth.json"), b"older", 0o600);
    let mut older = packed(std::slice::from_ref(&state), &spool);
    fs::remove_dir_all(state.join("deep")).unwrap();
    mount_secret(&state.join("deep/creds"), "one");
    mount_file(&state.join("auth.json"), b"secret", true);
    mount_file(&state.join("settings"), b"written by the agent", false);

    let kept = pack(std::slice::from_ref(&state), spool.path(), LIMIT).unwrap();
    assert_eq!((kept.files, kept.mounted, kept.others), (3, 2, 0));
    let mut archive = reread(kept.file);
    let names: Vec<_> = tar::Archive::new(zstd::Decoder::new(&archive).unwrap())
        .entries()
        .unwrap()
        .map(|entry| entry.unwrap().path().unwrap().to_str().unwrap().rsplit_once("/state").unwrap().1.to_owned())
        .collect();
    assert_eq!(
        names,
        ["/", "/db", "/deep", "/plain", "/plain/token", "/settings"].map(|name| name.trim_end_matches('/'))
    );

    let second = tempfile::tempdir().unwrap();
    let state = next(&second);
    mount_secret(&state.join("deep/creds"), "two");
    mount_file(&state.join("auth.json"), b"newer secret", true);
    mount_file(&state.join("settings"), b"of this pod", false);
    for (archive, files, mounted) in [(&mut archive, 2, 1), (&mut older, 2, 3)] {
        file(&state.join("left-over"), b"x", 0o600);
        let restored = restore(archive, std::slice::from_ref(&state), LIMIT).unwrap();
        assert_eq!((restored.files, restored.mounted), (files, mounted));
        assert_eq!(fs::read(state.join("db")).unwrap(), b"pages");
        assert_eq!(fs::read(state.join("auth.json")).unwrap(), b"newer secret");
        assert_eq!(fs::read(state.join("deep/creds/token")).unwrap(), b"two");
        assert!(!state.join("left-over").exists());
    }
}

/// The pod lost its volume and is read-only: nothing is put back, and nobody may take that for a session that is gone.
#[test]
fn c40_a_state_path_that_is_read_only_is_the_pods_fault() {
    if !in_mounts_of_its_own("c40_a_state_path_that_is_read_only_is_the_pods_fault") {
        return;
    }
    let (spool, pod) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (volume, state) = (pod.path().join("home"), pod.path().join("home/state"));
    file(&state.join("session"), b"x", 0o600);
    let mut archive = packed(std::slice::from_ref(&state), &spool);
    // Of the image, or of nobody.
    for inside in ["state/settings", "state", ""] {
        mount(&["-t", "tmpfs", "tmpfs"], &volume);
        fs::create_dir_all(volume.join(inside)).unwrap();
        mount(&["-o", "remount,ro,bind"], &volume);
        let restored = restore(&mut archive, std::slice::from_ref(&state), LIMIT);
        assert_eq!(restored, Err(RestoreFault::Unwritable(Some(30))), "{inside}");
    }
    // The volume itself is mounted read-only, with whatever in it.
    fs::create_dir(pod.path().join("volume")).unwrap();
    let state = pod.path().join("volume");
    file(&state.join("session"), b"x", 0o600);
    let mut archive = packed(std::slice::from_ref(&state), &spool);
    mount(&["-t", "tmpfs", "tmpfs"], &state);
    file(&state.join("session"), b"old", 0o600);
    mount(&["-o", "remount,ro,bind"], &state);
    let restored = restore(&mut archive, std::slice::from_ref(&state), LIMIT);
    assert_eq!(restored, Err(RestoreFault::Unwritable(Some(30))));
}

fn raw() -> impl Strategy<Value = Raw> {
    let part = prop::sample::select(vec!["a", "b", "link", "..", ".", "", "old", "outside", "victim"]);
    let start = prop::sample::select(vec!["{state}", "{state}", "{state}", "{state}/..", "/{state}", "{pod}", ""]);
    let kind = prop::sample::select(vec![b'0', b'0', b'2', b'2', b'5', b'1', b'3', b'L', b'x', b'7']);
    let target = prop::sample::select(vec!["..", "../outside", "../outside/victim", "{pod}/outside", "a", "/", "."]);
    (start, prop::collection::vec(part, 0..4), kind, target).prop_map(|(start, parts, kind, target)| {
        let name = std::iter::once(start).chain(parts).collect::<Vec<_>>().join("/");
        Raw { name, kind, target: target.into() }
    })
}

proptest! {
    /// Whatever an archive holds, in whatever order: nothing outside of the state path is made, changed or removed.
    #[test]
    fn c40_no_archive_reaches_out_of_the_state_paths(entries in prop::collection::vec(raw(), 0..12)) {
        let (pod, state) = pod();
        let put = |text: &str| {
            let (pod, state) = (pod.path().to_str().unwrap(), state.to_str().unwrap());
            let text = text.replace("{state}", state.trim_start_matches('/')).replace("{pod}", pod);
            text.chars().take(100).collect::<String>()
        };
        let entries: Vec<Raw> = entries
            .iter()
            .map(|entry| Raw { name: put(&entry.name), target: put(&entry.target), ..entry.clone() })
            .collect();
        let before = tree(&pod.path().join("outside"));
        let _ = restore(&mut archive(&entries), std::slice::from_ref(&state), LIMIT);
        prop_assert_eq!(tree(&pod.path().join("outside")), before);
        let mut beside: Vec<_> = fs::read_dir(pod.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        beside.sort();
        prop_assert_eq!(beside, ["outside", "state"]);
        prop_assert!(fs::symlink_metadata(&state).unwrap().is_dir());
    }
}
