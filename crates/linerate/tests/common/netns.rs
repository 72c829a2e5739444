//! A test inside a user and network namespace of its own: it starts this test binary again, for one test.
//!
//! Nothing outside is touched and no root is needed, but the host must allow user namespaces and have a TUN driver. Where it
//! does not, the test says so and is skipped, unless `LINERATE_REQUIRE=all`.

use std::fs::OpenOptions;
use std::process::Command;

use linerate_host::netns;

/// Set in the child.
const INSIDE: &str = "LINERATE_TEST_NAMESPACE";

/// Runs `body`, the test called `name`, in a fresh namespace whose loopback is up.
pub(crate) fn in_namespace(name: &str, body: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        netns::set_loopback_up().expect("root of the namespace");
        // Linux would greet routers and groups by itself; nobody waits for that here.
        for which in ["all", "default"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/router_solicitations"), "0");
        }
        return body();
    }
    if let Err(e) = OpenOptions::new().read(true).write(true).open("/dev/net/tun") {
        return skip(name, &format!("/dev/net/tun: {e}"));
    }
    let exe = std::env::current_exe().expect("this binary");
    let mut command = Command::new(exe);
    command.args([name, "--exact", "--nocapture", "--test-threads=1"]).env(INSIDE, "1");
    match netns::in_fresh_namespace(&mut command).output() {
        Err(e) => skip(name, &format!("a user namespace: {e}")),
        Ok(out) => {
            let text = [out.stdout, out.stderr].concat();
            let text = String::from_utf8_lossy(&text);
            assert!(
                out.status.success() && text.contains("1 passed"),
                "inside the namespace ({}):\n{text}",
                out.status
            );
            // What it had to say, for `--nocapture`.
            print!("{text}");
        }
    }
}

/// As [`in_namespace`], if the host has all of `programs`.
#[allow(dead_code, reason = "not every test binary talks to programs")]
pub(crate) fn in_namespace_with(programs: &[&str], name: &str, body: impl FnOnce()) {
    // Whatever they think of that word, those that are there start.
    let missing = |program: &&&str| Command::new(program).arg("--version").output().is_err();
    match programs.iter().find(missing) {
        Some(program) => skip_for(name, program, "it is not installed"),
        None => in_namespace(name, body),
    }
}

fn skip(name: &str, why: &str) {
    skip_for(name, "a TUN in a namespace of its own", why);
}

fn skip_for(name: &str, what: &str, why: &str) {
    let required = std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all");
    assert!(!required, "{name} needs {what}: {why}");
    println!("skipped: {name} needs {what}: {why}");
}
