//! What can only be found out by trying: a TUN with its offloads, and a socket of AF_XDP.
//!
//! The trial runs in a child inside fresh namespaces, where an ordinary user has the rights that the host may withhold
//! outside; so a success there says that the kernel can, and a failure to get there says that user namespaces are
//! forbidden. What this process may do by itself is asked of its capabilities.

use std::fs::OpenOptions;
use std::io;
use std::process::{Command, Stdio};

use linerate_host::tun::{Tun, TunConfig, VnetHdr};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};
use serde::{Deserialize, Serialize};

use super::host::capability;
use super::{Check, Part};

/// Name of the device that is tried.
const DEVICE: &str = "lindoctor%d";
const CAP_NET_ADMIN: u32 = 12;

/// A TUN as the kernel gave it.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct TunFound {
    vnet_hdr: bool,
    csum: bool,
    tso4: bool,
    tso6: bool,
    uso: bool,
}

/// What the trial found; errors as texts.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(super) struct Found {
    tun: Result<TunFound, String>,
    xdp: Result<(), String>,
}

/// Tries here, in this namespace.
pub(super) fn here() -> Found {
    let open = Tun::open(&TunConfig::new(DEVICE).leave_down());
    let tun = open.map_err(|e| e.to_string()).map(|tun| {
        let on = tun.offloads();
        let vnet_hdr = tun.vnet_hdr() != VnetHdr::Off;
        TunFound { vnet_hdr, csum: on.csum, tso4: on.tso4, tso6: on.tso6, uso: on.uso }
    });
    let xdp = match socket_with(AddressFamily::XDP, SocketType::RAW, SocketFlags::CLOEXEC, None) {
        Ok(_) => Ok(()),
        Err(Errno::AFNOSUPPORT) => Err("this kernel was built without it".into()),
        Err(e) => Err(e.to_string()),
    };
    Found { tun, xdp }
}

/// Tries in a child in fresh namespaces.
fn in_namespace() -> io::Result<Found> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["doctor", "--probe"]).stdin(Stdio::null()).stderr(Stdio::null());
    let out = linerate_host::netns::in_fresh_namespace(&mut command).output()?;
    serde_json::from_slice(&out.stdout).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

pub(super) fn checks() -> Vec<Check> {
    let opens = OpenOptions::new().read(true).write(true).open("/dev/net/tun").map(drop);
    let admin = capability(CAP_NET_ADMIN);
    let inside = in_namespace();
    let found = match &inside {
        Ok(found) => Some(found.clone()),
        Err(_) if admin => Some(here()),
        Err(_) => None,
    };
    let mut checks = vec![driver(opens.as_ref().err()), rights(admin), namespaces(inside.as_ref().err())];
    checks.extend(found.as_ref().map(|f| device(&f.tun)));
    checks.extend(found.as_ref().and_then(|f| f.tun.as_ref().ok()).map(offloads));
    checks.extend(found.as_ref().map(|f| xdp(&f.xdp)));
    checks
}

fn driver(error: Option<&io::Error>) -> Check {
    let name = "/dev/net/tun";
    let advice = match error.map(io::Error::kind) {
        None => return Check::ok(Part::Works, name, "opens"),
        Some(io::ErrorKind::NotFound) => "load the driver (`modprobe tun`), or give the container the device",
        Some(io::ErrorKind::PermissionDenied) => "let this user open it (mode 0666 is usual), or the container use it",
        Some(_) => "load the driver (`modprobe tun`)",
    };
    Check::warn(Part::Works, name, error.map(ToString::to_string).unwrap_or_default(), advice)
}

fn rights(admin: bool) -> Check {
    let name = "CAP_NET_ADMIN";
    let advice = "an existing TUN of this user can be used without it; a new one needs root or a user namespace";
    let found =
        if admin { "this process may make network devices" } else { "this process may not make network devices" };
    if admin { Check::ok(Part::Works, name, found) } else { Check::info(Part::Works, name, found).advise(advice) }
}

fn namespaces(error: Option<&io::Error>) -> Check {
    let name = "user namespaces";
    match error {
        None => Check::ok(Part::Works, name, "allowed"),
        Some(e) if e.kind() == io::ErrorKind::InvalidData => {
            Check::warn(Part::Works, name, "the trial in one gave no answer", "report this as a bug")
        }
        Some(e) => {
            let advice = "tests and the kernel's side of `speed` use them: see kernel.unprivileged_userns_clone, \
                          user.max_user_namespaces, kernel.apparmor_restrict_unprivileged_userns";
            Check::warn(Part::Works, name, e.to_string(), advice)
        }
    }
}

fn device(tun: &Result<TunFound, String>) -> Check {
    match tun {
        Ok(_) => Check::ok(Part::Works, "a TUN device", "can be made"),
        Err(why) => Check::warn(Part::Works, "a TUN device", "can not be made", why.as_str()),
    }
}

fn offloads(tun: &TunFound) -> Check {
    let all =
        [("vnet_hdr", tun.vnet_hdr), ("csum", tun.csum), ("tso4", tun.tso4), ("tso6", tun.tso6), ("uso", tun.uso)];
    let names = |on: bool| all.iter().filter(|(_, is)| *is == on).map(|(n, _)| *n).collect::<Vec<_>>().join(" ");
    let (has, lacks) = (names(true), names(false));
    let name = "TUN offloads";
    match lacks.as_str() {
        "" => Check::ok(Part::Speed, name, has),
        "uso" => Check::info(Part::Speed, name, format!("{has}, without uso"))
            .advise("UDP super-packets need Linux 6.2; TCP is not concerned"),
        _ => Check::warn(
            Part::Speed,
            name,
            format!("without {lacks}"),
            "every packet crosses as one frame: use a newer kernel",
        ),
    }
}

fn xdp(found: &Result<(), String>) -> Check {
    let found = match found {
        Ok(()) => "a socket can be made with CAP_NET_RAW".to_owned(),
        Err(why) => why.clone(),
    };
    Check::info(Part::Works, "AF_XDP", format!("{found}; this version does not use it"))
}

#[cfg(test)]
mod tests {
    use super::super::State;
    use super::*;

    #[test]
    fn what_was_tried_is_judged() {
        let all = TunFound { vnet_hdr: true, csum: true, tso4: true, tso6: true, uso: true };
        assert_eq!(offloads(&all), Check::ok(Part::Speed, "TUN offloads", "vnet_hdr csum tso4 tso6 uso"));
        assert_eq!(offloads(&TunFound { uso: false, ..all.clone() }).state, State::Info);
        let none = TunFound { vnet_hdr: false, csum: false, tso4: false, tso6: false, uso: false };
        assert_eq!(offloads(&none).found, "without vnet_hdr csum tso4 tso6 uso");
        assert_eq!((offloads(&none).state, device(&Err("why".into())).advice), (State::Warn, Some("why".into())));
        let os = |e: Errno| io::Error::from(e);
        assert!(driver(Some(&os(Errno::NOENT))).advice.is_some_and(|a| a.contains("modprobe")));
        assert!(driver(Some(&os(Errno::ACCESS))).advice.is_some_and(|a| a.contains("0666")));
        assert_eq!((driver(None).state, namespaces(None).state), (State::Ok, State::Ok));
        assert_eq!(namespaces(Some(&os(Errno::PERM))).state, State::Warn);
        assert_eq!((rights(true).state, rights(false).state), (State::Ok, State::Info));
        let found = Found { tun: Ok(all), xdp: Err("no".into()) };
        let text = serde_json::to_string(&found).unwrap();
        assert_eq!(
            serde_json::from_str::<Found>(&text).unwrap(),
            found,
            "what the child prints is what the parent reads"
        );
    }
}
