use super::*;
use std::os::unix::fs::symlink;

/// A private directory of its own, gone at the end.
struct Scratch(PathBuf);

impl Scratch {
    fn new(name: &str) -> Self {
        let dir = std::env::temp_dir().join(format!("lin-ctl-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        make_private(&dir).unwrap();
        Self(dir)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn at(path: &Path) -> io::Result<Bound> {
    Bound::new(&ControlPath::At(path.to_owned()))
}

#[test]
fn a_socket_is_private_and_goes_with_its_server() {
    let dir = Scratch::new("life");
    let path = dir.0.join("a.sock");
    let bound = at(&path).unwrap();
    assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 1, "nothing else is left");
    assert!(is_served(&path));
    // A living one is not replaced, a dead one is.
    let refused = at(&path).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::AddrInUse);
    assert!(refused.to_string().contains("a.sock") && refused.to_string().contains("another path"), "{refused}");
    assert!(is_served(&path));
    let dead = dir.0.join("dead.sock");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    assert!(dead.exists() && !is_served(&dead));
    let revived = at(&dead).unwrap();
    assert!(is_served(&dead));
    drop((bound, revived));
    assert_eq!(fs::read_dir(&dir.0).unwrap().count(), 0);
}

#[test]
fn what_is_not_ours_is_left_alone() {
    let dir = Scratch::new("alone");
    let file = dir.0.join("notes");
    fs::write(&file, "keep me").unwrap();
    assert_eq!(at(&file).unwrap_err().kind(), io::ErrorKind::AlreadyExists);
    assert_eq!(fs::read_to_string(&file).unwrap(), "keep me");
    assert_eq!(at(&dir.0.join("no/such.sock")).unwrap_err().kind(), io::ErrorKind::NotFound);
    let long = dir.0.join("x".repeat(MAX_PATH_BYTES));
    assert_eq!(at(&long).unwrap_err().kind(), io::ErrorKind::InvalidInput);
    // Somebody took the name meanwhile: the file is theirs.
    let path = dir.0.join("b.sock");
    let bound = at(&path).unwrap();
    fs::remove_file(&path).unwrap();
    fs::write(&path, "theirs").unwrap();
    drop(bound);
    assert_eq!(fs::read_to_string(&path).unwrap(), "theirs");
}

#[test]
fn only_a_private_directory_is_believed() {
    let dir = Scratch::new("dirs");
    let open = dir.0.join("open");
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(make_private(&open).unwrap_err().to_string().contains("open to others"));
    let link = dir.0.join("link");
    symlink(&dir.0, &link).unwrap();
    assert!(make_private(&link).unwrap_err().to_string().contains("no directory"));
    let new = dir.0.join("new");
    make_private(&new).unwrap();
    assert_eq!(fs::symlink_metadata(&new).unwrap().mode() & 0o7777, 0o700);
}

#[test]
fn stacks_of_a_process_have_a_name_each_and_the_dead_have_none() {
    let dir = Scratch::new("names");
    // Numbers above the kernel's largest are nobody's.
    let dead = ["4000000001.sock", "4000000001.2.sock", ".4000000002.0.tmp"].map(|name| dir.0.join(name));
    for path in &dead {
        drop(std::os::unix::net::UnixListener::bind(path).unwrap());
    }
    // These are none of our business: a file, somebody who listens, and what a living process may be about to replace.
    let file = dir.0.join("4000000003.sock");
    fs::write(&file, "").unwrap();
    let listens = dir.0.join("4000000004.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&listens).unwrap();
    let alive = dir.0.join("1.sock");
    drop(std::os::unix::net::UnixListener::bind(&alive).unwrap());
    let (first, second) = (Bound::in_directory(&dir.0).unwrap(), Bound::in_directory(&dir.0).unwrap());
    assert!(dead.iter().all(|path| !path.exists()));
    assert!(file.exists() && listens.exists() && alive.exists());
    let pid = std::process::id();
    assert_eq!(first.path(), dir.0.join(format!("{pid}.sock")));
    assert_eq!(second.path(), dir.0.join(format!("{pid}.2.sock")));
    let found: Vec<_> = running_in(&dir.0).unwrap().into_iter().map(|running| (running.pid, running.path)).collect();
    let mut expected = vec![(pid, second.path().to_owned()), (pid, first.path().to_owned()), (4_000_000_004, listens)];
    expected.sort();
    assert_eq!(found, expected);
    assert_eq!(running_in(&dir.0.join("nowhere")).unwrap(), []);
    // The first name is free again.
    drop(first);
    assert_eq!(Bound::in_directory(&dir.0).unwrap().path(), dir.0.join(format!("{pid}.sock")));
}

#[test]
fn names_of_files_are_those_of_processes() {
    assert_eq!((file_name(7, 1).as_str(), file_name(7, 2).as_str()), ("7.sock", "7.2.sock"));
    assert_eq!((pid_of("7.sock"), pid_of("7.2.sock")), (Some(7), Some(7)));
    for other in ["7", ".sock", "x.sock", ".7.0.tmp", "-7.sock"] {
        assert_eq!(pid_of(other), None, "{other}");
    }
    assert_eq!((pid_of_any(".7.0.tmp"), pid_of_any("7.sock"), pid_of_any(".tmp")), (Some(7), Some(7), None));
}
