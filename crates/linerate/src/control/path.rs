//! Where a control socket is: a private directory, a file per process, and who is running.
//!
//! The directory is `linerate` in `$XDG_RUNTIME_DIR`, or `/tmp/linerate-UID`. It is made with mode 0700 and believed only if it is
//! a directory (no link), ours, and closed to all others: anybody can make directories in `/tmp`. The file is `PID.sock`,
//! `PID.2.sock` for a second stack of a process, and so on.
//!
//! ```text
//!   bind a name of our own ─▶ chmod 0600 ─▶ listen ─▶ link it to the final name        a file under a final name listens
//! ```
//! So a final name on which nobody answers belonged to a process that died, and is replaced. Two processes that replace the
//! same dead one at the same moment may lose one of the two names; both go on. A server removes its file at its end, if it is
//! still its own.
//!
//! Limits: a path of at most `MAX_PATH_BYTES`, which is the kernel's; names of processes are as they see themselves, so two
//! containers that share the directory may meet, and the second takes the next name.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, listen, socket_with};
use rustix::process::geteuid;

/// Longest path of a Unix socket, bytes (`sun_path` and its end).
const MAX_PATH_BYTES: usize = 107;
/// Stacks of one process that have a default path.
const MAX_PER_PROCESS: u32 = 64;
/// Files looked at for what dead processes left.
const MAX_SWEPT: usize = 256;
/// Clients that wait to be accepted.
const BACKLOG: i32 = 16;

/// Where a stack listens for `linerate ss` and the like.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum ControlPath {
    /// `$XDG_RUNTIME_DIR/linerate/PID.sock`, or `/tmp/linerate-UID/PID.sock`: where the tools look.
    #[default]
    Default,
    /// This file, whose directory exists.
    At(PathBuf),
}

/// A process with a control socket.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Running {
    /// Its number, from the file's name.
    pub pid: u32,
    /// Its socket.
    pub path: PathBuf,
}

/// A listening socket and its file.
#[derive(Debug)]
pub(super) struct Bound {
    listener: OwnedFd,
    path: PathBuf,
    /// Device and inode of the file, to know it again.
    file: (u64, u64),
}

impl Bound {
    pub(super) fn new(path: &ControlPath) -> io::Result<Self> {
        match path {
            ControlPath::At(path) => Self::at(path),
            ControlPath::Default => Self::in_directory(&directory()),
        }
    }

    /// The first free name of this process; what dead ones left goes.
    fn in_directory(dir: &Path) -> io::Result<Self> {
        make_private(dir)?;
        sweep(dir);
        let mut nth = 1;
        loop {
            match Self::at(&dir.join(file_name(std::process::id(), nth))) {
                Err(e) if e.kind() == io::ErrorKind::AddrInUse && nth < MAX_PER_PROCESS => nth += 1,
                done => return done,
            }
        }
    }

    fn at(path: &Path) -> io::Result<Self> {
        let scratch = scratch_name(path)?;
        // What an earlier process of our number left in the middle.
        remove(&scratch)?;
        let made = Self::listen_at(&scratch).and_then(|(listener, file)| {
            publish(&scratch, path)?;
            Ok(Self { listener, path: path.to_owned(), file })
        });
        let removed = remove(&scratch);
        let this = made.map_err(|e| explain(path, e))?;
        removed.map(|()| this)
    }

    fn listen_at(scratch: &Path) -> io::Result<(OwnedFd, (u64, u64))> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        bind(&listener, &SocketAddrUnix::new(scratch)?)?;
        // Nobody can connect before it listens.
        fs::set_permissions(scratch, fs::Permissions::from_mode(0o600))?;
        listen(&listener, BACKLOG)?;
        let meta = fs::symlink_metadata(scratch)?;
        Ok((listener, (meta.dev(), meta.ino())))
    }

    pub(super) fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
    pub(super) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let is_ours = fs::symlink_metadata(&self.path).is_ok_and(|m| (m.dev(), m.ino()) == self.file);
        if is_ours {
            // It may be gone already.
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Gives the listening socket its final name.
fn publish(scratch: &Path, path: &Path) -> io::Result<()> {
    match fs::hard_link(scratch, path) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        done => return done,
    }
    let meta = fs::symlink_metadata(path)?;
    if !meta.file_type().is_socket() {
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, "there is a file that is no socket"));
    }
    if is_served(path) {
        return Err(io::Error::new(io::ErrorKind::AddrInUse, "a running process listens there"));
    }
    fs::rename(scratch, path)
}

/// Does anybody listen there? One who has too many callers does, too.
fn is_served(path: &Path) -> bool {
    match UnixStream::connect(path) {
        Ok(_) => true,
        Err(e) => !matches!(e.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound),
    }
}

/// A name beside `path` that no other stack of any process takes.
fn scratch_name(path: &Path) -> io::Result<PathBuf> {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let nth = NEXT.fetch_add(1, Ordering::Relaxed);
    let scratch = path.with_file_name(format!(".{}.{nth}.tmp", std::process::id()));
    let longest = path.as_os_str().len().max(scratch.as_os_str().len());
    if longest > MAX_PATH_BYTES {
        let why = format!("{}: a path of more than {MAX_PATH_BYTES} bytes; choose a shorter one", path.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    Ok(scratch)
}

fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(explain(path, e)),
        _ => Ok(()),
    }
}

fn explain(path: &Path, e: io::Error) -> io::Error {
    let advice = match e.kind() {
        io::ErrorKind::AddrInUse => "; name another path, or end that process",
        io::ErrorKind::AlreadyExists => "; name another path, or remove it",
        io::ErrorKind::NotFound => "; its directory must exist",
        io::ErrorKind::PermissionDenied => "; name a path in a directory that you may write to",
        _ => "",
    };
    io::Error::new(e.kind(), format!("control socket {}: {e}{advice}", path.display()))
}

/// The directory of this user's sockets, whether it exists or not.
pub(super) fn directory() -> PathBuf {
    match std::env::var_os("XDG_RUNTIME_DIR").filter(|dir| Path::new(dir).is_absolute()) {
        Some(dir) => Path::new(&dir).join("linerate"),
        None => PathBuf::from(format!("/tmp/linerate-{}", geteuid().as_raw())),
    }
}

/// Makes the directory, or makes sure that it is ours alone.
fn make_private(dir: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(dir) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(explain(dir, e)),
        _ => {}
    }
    is_private(dir)
}

fn is_private(dir: &Path) -> io::Result<()> {
    let meta = fs::symlink_metadata(dir).map_err(|e| explain(dir, e))?;
    let wrong = if !meta.is_dir() {
        "is no directory"
    } else if meta.uid() != geteuid().as_raw() {
        "belongs to somebody else"
    } else if meta.mode() & 0o077 != 0 {
        "is open to others (chmod 700)"
    } else {
        return Ok(());
    };
    let why = format!("{} {wrong}; set XDG_RUNTIME_DIR, or name the socket's path", dir.display());
    Err(io::Error::new(io::ErrorKind::PermissionDenied, why))
}

/// Removes sockets on which nobody listens and whose process is gone: a living one may be about to replace its own.
fn sweep(dir: &Path) {
    let Ok(entries) = fs::read_dir(dir) else { return };
    for entry in entries.flatten().take(MAX_SWEPT) {
        let pid = entry.file_name().to_str().and_then(pid_of_any);
        let is_socket = entry.file_type().is_ok_and(|kind| kind.is_socket());
        if is_socket && pid.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) && !is_served(&entry.path())
        {
            // Somebody else may have been faster.
            let _ = fs::remove_file(entry.path());
        }
    }
}

fn file_name(pid: u32, nth: u32) -> String {
    if nth == 1 { format!("{pid}.sock") } else { format!("{pid}.{nth}.sock") }
}

/// The process of a file's name: of a final one, or of one that was being made.
fn pid_of_any(name: &str) -> Option<u32> {
    let made = |name: &str| name.strip_prefix('.')?.strip_suffix(".tmp")?.split_once('.')?.0.parse().ok();
    pid_of(name).or_else(|| made(name))
}

/// The process of a final name.
fn pid_of(name: &str) -> Option<u32> {
    let stem = name.strip_suffix(".sock")?;
    stem.split_once('.').map_or(stem, |(pid, _)| pid).parse().ok()
}

/// This user's processes with a control socket at a default path, by number. Files of dead processes are passed over.
///
/// # Errors
/// What the host says to the directory; one that does not exist is empty.
pub fn running() -> io::Result<Vec<Running>> {
    running_in(&directory())
}

fn running_in(dir: &Path) -> io::Result<Vec<Running>> {
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(|e| explain(dir, e))?,
    };
    // Somebody else's directory could lead us anywhere.
    is_private(dir)?;
    let mut found: Vec<_> = entries
        .flatten()
        .filter_map(|entry| Some(Running { pid: pid_of(entry.file_name().to_str()?)?, path: entry.path() }))
        .filter(|running| is_served(&running.path))
        .collect();
    found.sort_by(|a, b| (a.pid, &a.path).cmp(&(b.pid, &b.path)));
    Ok(found)
}

#[cfg(test)]
mod tests;
