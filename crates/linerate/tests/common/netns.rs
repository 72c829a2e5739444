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
        }
    }
}

fn skip(name: &str, why: &str) {
    let required = std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all");
    assert!(!required, "{name} needs a TUN in a namespace of its own: {why}");
    println!("skipped: {name} needs a TUN in a namespace of its own: {why}");
}
