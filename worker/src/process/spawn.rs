//! Starting the agent.

use super::{Exit, Reaper, environment::agent_environment};
use crate::outcome::{CwdFault, StartFault};
use nix::{
    errno::Errno,
    unistd::{AccessFlags, Pid, access, execve},
};
use std::{
    env,
    ffi::{CString, OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};
use tokio::{
    process::{ChildStderr, ChildStdin, ChildStdout},
    sync::oneshot,
};

/// PATH of a container that sets none, as the C library has it.
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A started agent.
#[derive(Debug)]
pub struct Agent {
    /// Process id, and id of its own process group.
    pub group: Pid,
    /// Resolves once it ended and was collected.
    pub exit: oneshot::Receiver<Exit>,
    /// Its stdin.
    pub stdin: ChildStdin,
    /// Its stdout, the protocol.
    pub stdout: ChildStdout,
    /// Its stderr, for the transcript.
    pub stderr: ChildStderr,
}

/// Starts the agent in its own process group, in `cwd`, with the container's environment (c18, c56).
///
/// # Errors
/// [`StartFault`]: the working directory or command is of no use, or the system refuses.
pub fn start(argv: &[OsString], cwd: &Path, spare_home: &Path, reaper: &Reaper) -> Result<Agent, StartFault> {
    check_cwd(cwd).map_err(StartFault::Cwd)?;
    let name = argv.first().ok_or(StartFault::CommandNotFound)?;
    let path = env::var_os("PATH").unwrap_or_else(|| DEFAULT_PATH.into());
    let program = find_command(name, &path, cwd)?;
    let environment = agent_environment(env::vars_os(), spare_home, is_writable_folder);
    let mut command = Command::new(&program);
    command.current_dir(cwd).process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    exec_as_it_is(&mut command, &program, argv, &environment)?;
    let (mut child, group, exit) = reaper.spawn(&mut command).map_err(|error| spawn_fault(&error))?;
    let pipes = || -> io::Result<_> {
        let missing = || io::Error::other("a pipe is missing");
        Ok((
            ChildStdin::from_std(child.stdin.take().ok_or_else(missing)?)?,
            ChildStdout::from_std(child.stdout.take().ok_or_else(missing)?)?,
            ChildStderr::from_std(child.stderr.take().ok_or_else(missing)?)?,
        ))
    };
    let (stdin, stdout, stderr) = { pipes }().map_err(|error| spawn_fault(&error))?;
    Ok(Agent { group, exit, stdin, stdout, stderr })
}

/// Makes the command execute exactly this file with these words, or fail.
///
/// The standard library ends in `execvp` in a static build, which hands a file that the kernel cannot execute to
/// `/bin/sh`: a script without an interpreter line, or a program of another architecture, would start a shell (c56) and
/// look like an agent that ended.
#[allow(unsafe_code, reason = "there is no safe way to choose between execve and execvp")]
fn exec_as_it_is(
    command: &mut Command,
    program: &Path,
    argv: &[OsString],
    environment: &[(OsString, OsString)],
) -> Result<(), StartFault> {
    // A NUL cannot be in words or variables that came from the kernel; the name of the spare home may hold one.
    let text = |bytes: Vec<u8>| CString::new(bytes).map_err(|_| StartFault::Spawn(Errno::EINVAL as i32));
    let program = text(program.as_os_str().as_bytes().to_vec())?;
    let argv: Vec<CString> = argv.iter().map(|word| text(word.as_bytes().to_vec())).collect::<Result<_, _>>()?;
    let environment: Vec<CString> = environment
        .iter()
        .map(|(name, value)| text([name.as_bytes(), b"=", value.as_bytes()].concat()))
        .collect::<Result<_, _>>()?;
    let exec = move || match execve(&program, &argv, &environment) {
        Ok(never) => match never {},
        Err(error) => Err(io::Error::from(error)),
    };
    // SAFETY: the closure runs in the forked child, where only what is safe in a signal handler may be called. It makes
    // the two arrays of pointers and calls execve(2); the C library keeps its allocator usable in a forked child, and
    // everything else was made before the fork.
    unsafe { command.pre_exec(exec) };
    Ok(())
}

fn spawn_fault(error: &io::Error) -> StartFault {
    match error.kind() {
        // The file was found before, so this is the interpreter it names.
        io::ErrorKind::NotFound => StartFault::NotAProgram,
        io::ErrorKind::PermissionDenied => StartFault::CommandNotExecutable,
        _ if error.raw_os_error() == Some(Errno::ENOEXEC as i32) => StartFault::NotAProgram,
        _ => StartFault::Spawn(error.raw_os_error().unwrap_or(0)),
    }
}

fn check_cwd(cwd: &Path) -> Result<(), CwdFault> {
    if !cwd.is_absolute() {
        return Err(CwdFault::Relative);
    }
    match cwd.metadata() {
        Ok(found) if !found.is_dir() => Err(CwdFault::NotAFolder),
        Ok(_) if access(cwd, AccessFlags::X_OK).is_ok() => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(CwdFault::Missing),
        Ok(_) | Err(_) => Err(CwdFault::NotEnterable),
    }
}

fn is_writable_folder(path: &Path) -> bool {
    path.is_dir() && access(path, AccessFlags::W_OK | AccessFlags::X_OK).is_ok()
}

/// Finds the command as a shell would: a name with a slash is a path, relative to the working directory; any other is
/// looked up on PATH.
fn find_command(name: &OsStr, path: &OsStr, cwd: &Path) -> Result<PathBuf, StartFault> {
    let candidates: Vec<PathBuf> = if name.as_bytes().contains(&b'/') {
        vec![cwd.join(name)]
    } else {
        env::split_paths(path).map(|folder| cwd.join(folder).join(name)).collect()
    };
    let mut fault = StartFault::CommandNotFound;
    for candidate in candidates {
        if candidate.is_file() {
            if access(&candidate, AccessFlags::X_OK).is_ok() {
                return Ok(candidate);
            }
            fault = StartFault::CommandNotExecutable;
        }
    }
    Err(fault)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rstest::rstest;
    use std::{fs, os::unix::fs::PermissionsExt};

    #[rstest]
    #[case("relative", Err(CwdFault::Relative))]
    #[case("/nowhere/at/all", Err(CwdFault::Missing))]
    #[case("/proc/self/status", Err(CwdFault::NotAFolder))]
    #[case("/", Ok(()))]
    fn c18_the_working_directory_is_checked(#[case] cwd: &str, #[case] want: Result<(), CwdFault>) {
        assert_eq!(check_cwd(Path::new(cwd)), want);
    }

    #[test]
    fn c56_commands_are_found_on_path_or_relative_to_the_working_directory() {
        let folder = tempfile::tempdir().unwrap();
        let (tool, data) = (folder.path().join("tool"), folder.path().join("data"));
        fs::write(&tool, "").unwrap();
        fs::write(&data, "").unwrap();
        fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
        let find = |name: &str| find_command(OsStr::new(name), folder.path().as_os_str(), folder.path());
        assert_eq!(find("tool"), Ok(tool.clone()));
        assert_eq!(find("./tool"), Ok(folder.path().join("./tool")));
        assert_eq!(find(tool.to_str().unwrap()), Ok(tool));
        assert_eq!(find("data"), Err(StartFault::CommandNotExecutable));
        assert_eq!(find("absent"), Err(StartFault::CommandNotFound));
    }
}
