//! IPv6 addresses of an Ethernet device: trial, autoconfiguration, routers (RFC 4861 section 6.3, RFC 4862).
//!
//! ```text
//!   add_address ─▶ tentative: wait 0-1 s, solicit, wait 1 s ─▶ an address ─▶ (deprecated) ─▶ gone      lifetimes only by RA
//!                       └─ somebody has it: dropped; a stable-privacy one is made anew, three times
//!   first queue ─▶ link-local address ─▶ its trial is over ─▶ ask for routers: 1, 2, 4 ... 3600 s (RFC 7559)
//!   RA ─▶ default router · prefix on the link · address of the prefix · MTU · times of neighbour discovery
//! ```
//! A tentative address is nobody's: it is not local, not a source, and only discovery knows it. Addresses of advertised prefixes
//! follow the two-hour rule: an unauthenticated advertisement can not end an address that has longer to live.
//!
//! Of several routers the best one has the default route: one that answers before one that failed, then by
//! preference (RFC 4191), then the first heard. Limits: [`MAX_ROUTERS`], [`MAX_PREFIXES`], [`MAX_AUTO_ADDRS`].
//! `accept_ra` is off unless asked for. Not here: temporary addresses, DHCPv6, DNS servers (parsed by `wire` only), the
//! advertised hop limit, route information options, optimistic addresses.

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv6Addr};

use linerate_base::{Duration, HashKey, Instant};
use linerate_netdev::IfIndex;
use linerate_wire::ndisc::{INFINITE, PrefixInfo, RouterAdvert, RouterPref};
use linerate_wire::{Cidr, MacAddr, NdOption, NdiscRepr};

use super::ndisc::{self, ALL_ROUTERS, solicited_node};
use super::table::Claim;
use crate::config::AddrGen;
use crate::core_state::Core;
use crate::link::Links;
use crate::route::{Route, RouteOrigin};

/// Default routers of a device.
pub(crate) const MAX_ROUTERS: usize = 16;
/// Advertised on-link prefixes of a device.
pub(crate) const MAX_PREFIXES: usize = 16;
/// Addresses of advertised prefixes of a device (Linux's `max_addresses`).
pub(crate) const MAX_AUTO_ADDRS: usize = 16;
/// Trials of stable-privacy addresses (`idgen_retries`).
const IDGEN_RETRIES: u8 = 3;
/// Longest delay before the first solicitation, milliseconds (`MAX_RTR_SOLICITATION_DELAY`).
const MAX_DELAY_MS: u64 = 1000;
/// First and longest time between router solicitations.
const RS_INTERVAL: [Duration; 2] = [Duration::from_secs(4), Duration::from_secs(3600)];
/// What a router may set the time between solicitations to: a longer one would keep packets waiting for hours.
const RETRANS: [Duration; 2] = [Duration::from_millis(10), Duration::from_secs(10)];
/// The two hours of the two-hour rule.
const TWO_HOURS: Duration = Duration::from_secs(7200);
/// Metric of routes of advertisements (Linux's `IP6_RT_PRIO_USER` for the default route, `ADDRCONF` for prefixes).
const DEFAULT_METRIC: u32 = 1024;
const PREFIX_METRIC: u32 = 256;
/// Metric of the routes to all groups, a device's number added.
const GROUPS_METRIC: u32 = 256;
/// The smallest MTU of IPv6.
const MIN_MTU: u32 = 1280;

/// Until when an address may be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Lifetimes {
    valid_until: Instant,
    preferred_until: Instant,
}

/// An address on trial.
#[derive(Debug)]
struct Tentative {
    cidr: Cidr,
    /// When the next step is due; `None` before the first.
    at: Option<Instant>,
    sent: u8,
    nonce: [u8; 6],
    /// Trials of this prefix so far.
    retries: u8,
    /// Made of an advertised prefix.
    auto: Option<Lifetimes>,
    /// Made by us: another one may be made when it is taken.
    generated: bool,
}

#[derive(Debug)]
struct Router {
    addr: Ipv6Addr,
    until: Instant,
    pref: RouterPref,
    failed: bool,
}

/// What a device knows of IPv6 besides its addresses.
#[derive(Default)]
pub(crate) struct Addrconf {
    tentative: Vec<Tentative>,
    /// Addresses of advertised prefixes.
    auto: Vec<(Cidr, Lifetimes)>,
    routers: Vec<Router>,
    prefixes: Vec<(Cidr, Instant)>,
    /// The default route that is installed: its router and metric.
    default: Option<(Ipv6Addr, u32)>,
    /// The next router solicitation, and the time behind it.
    solicit: Option<(Instant, Duration)>,
    /// Addresses that others had, newest last.
    pub(crate) failed: Vec<Ipv6Addr>,
    /// Advertised MTU, 0 = none.
    pub(crate) mtu_bytes: u32,
}

impl Addrconf {
    /// Addresses on trial.
    pub(crate) fn tentative(&self) -> impl Iterator<Item = Cidr> + '_ {
        self.tentative.iter().map(|t| t.cidr)
    }
    pub(crate) fn has_tentative(&self, addr: IpAddr) -> bool {
        self.tentative.iter().any(|t| t.cidr.addr() == addr)
    }
    /// The earliest thing to do.
    fn next(&self) -> Instant {
        let trials = self.tentative.iter().map(|t| t.at.unwrap_or(Instant::ZERO));
        let ends = self.auto.iter().map(|(_, l)| next_end(l));
        let routers = self.routers.iter().map(|r| r.until).chain(self.prefixes.iter().map(|p| p.1));
        let solicit = self.solicit.iter().map(|s| s.0);
        trials.chain(ends).chain(routers).chain(solicit).min().unwrap_or(Instant::FAR_FUTURE)
    }
    /// Takes an address on trial away.
    pub(crate) fn remove_tentative(&mut self, addr: IpAddr) -> bool {
        let before = self.tentative.len();
        self.tentative.retain(|t| t.cidr.addr() != addr);
        self.tentative.len() != before
    }
    /// An address was taken away: nothing of it is kept.
    pub(crate) fn forget(&mut self, addr: IpAddr) {
        self.auto.retain(|(c, _)| c.addr() != addr);
    }
}

/// When the next of an address's two lives ends: the preferred one is FAR_FUTURE once it is over.
fn next_end(l: &Lifetimes) -> Instant {
    l.valid_until.min(l.preferred_until)
}

fn end_of(now: Instant, seconds: u32) -> Instant {
    if seconds == INFINITE { Instant::FAR_FUTURE } else { now + Duration::from_secs(u64::from(seconds)) }
}

/// The lower half of an address, from the hardware address (RFC 4291 appendix A).
fn eui64(mac: MacAddr) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    u64::from_be_bytes([a ^ 2, b, c, 0xff, 0xfe, d, e, f])
}

/// The lower half that is stable for this prefix, hardware and secret (RFC 7217 section 5), and no reserved one (RFC 5453).
fn stable(key: &HashKey, prefix: u64, mac: MacAddr, retries: u8) -> u64 {
    let [a, b, c, d, e, f] = mac.0;
    let hw = u64::from_be_bytes([0, 0, a, b, c, d, e, f]);
    let mut counter = u64::from(retries) << 8;
    loop {
        let iid = key.sip24_words(&[prefix, hw, counter]);
        let reserved = iid == 0 || (0xfdff_ffff_ffff_ff80..=0xfdff_ffff_ffff_ffff).contains(&iid);
        if !reserved {
            return iid;
        }
        counter += 1;
    }
}

/// An address of `prefix` (its upper 64 bits); `None` when the device makes none.
fn generate(generator: AddrGen, prefix: u64, mac: MacAddr, retries: u8) -> Option<Ipv6Addr> {
    let iid = match generator {
        AddrGen::None => return None,
        AddrGen::Eui64 => eui64(mac),
        AddrGen::StablePrivacy(key) => stable(&key, prefix, mac, retries),
    };
    Some(Ipv6Addr::from_bits(u128::from(prefix) << 64 | u128::from(iid)))
}

/// Begins the trial of an address, or installs it when there are none.
fn begin(links: &mut Links, ifindex: IfIndex, t: Tentative) {
    let Some((ether, neigh)) = links.ether_and_neigh(ifindex) else { return };
    if ether.conf.dad_transmits == 0 {
        return install(links, ifindex, &t);
    }
    let group = match t.cidr.addr() {
        IpAddr::V6(a) => solicited_node(a),
        IpAddr::V4(_) => return,
    };
    ether.groups.join(group.into());
    ether.addrconf.tentative.push(t);
    neigh.schedule(Instant::ZERO);
}

fn tentative(cidr: Cidr, generated: bool, auto: Option<Lifetimes>, retries: u8) -> Tentative {
    Tentative { cidr, at: None, sent: 0, nonce: [0; 6], retries, auto, generated }
}

/// An address that the user adds begins its trial.
pub(crate) fn add_address(links: &mut Links, ifindex: IfIndex, cidr: Cidr) {
    begin(links, ifindex, tentative(cidr, false, None, 0));
}

/// The device came up: it makes its link-local address.
pub(crate) fn link_up(links: &mut Links, ifindex: IfIndex) {
    let Some((ether, neigh)) = links.ether_and_neigh(ifindex) else { return };
    neigh.schedule(Instant::ZERO);
    ether.up = true;
    ether.groups.join(ndisc::ALL_NODES.into());
    ether.groups.join(core::net::Ipv4Addr::new(224, 0, 0, 1).into());
    if let Some(groups) = Cidr::new(Ipv6Addr::from_bits(0xff << 120).into(), 8) {
        // Each device can speak to groups; without a better reason the first does.
        let mut route = Route::new(groups, ifindex);
        (route.metric, route.origin) = (GROUPS_METRIC + ifindex.0, RouteOrigin::Kernel);
        let _ = links.add_route(route);
    }
    let Some((ether, _)) = links.ether_and_neigh(ifindex) else { return };
    let link_local = generate(ether.conf.addr_gen, 0xfe80 << 48, ether.mac(), 0);
    let known = |a: Ipv6Addr, links: &Links| {
        links.device(ifindex).is_some_and(|d| d.addrs().iter().any(|c| c.addr() == IpAddr::V6(a)))
    };
    if let Some(cidr) = link_local.filter(|a| !known(*a, links)).and_then(|a| Cidr::new(a.into(), 64)) {
        begin(links, ifindex, tentative(cidr, true, None, 0));
    }
}

/// The trial is over (or there was none): the address is ours.
fn install(links: &mut Links, ifindex: IfIndex, t: &Tentative) {
    // The prefix of an advertised address is on the link only if the router says so.
    let _ = links.install_address(ifindex, t.cidr, t.auto.is_none());
    let Some((ether, neigh)) = links.ether_and_neigh(ifindex) else { return };
    if let Some(life) = t.auto {
        ether.addrconf.auto.push((t.cidr, life));
        neigh.schedule(Instant::ZERO);
    }
    let link_local = matches!(t.cidr.addr(), IpAddr::V6(a) if a.is_unicast_link_local());
    if link_local {
        // What was reported from no address is reported again (RFC 3810 section 5.2.13).
        ether.groups.report_again();
        neigh.schedule(Instant::ZERO);
        if ether.conf.accept_ra && ether.addrconf.routers.is_empty() {
            ether.addrconf.solicit = Some((Instant::ZERO, RS_INTERVAL[0]));
        }
    }
}

/// Somebody else has the address.
pub(super) fn dad_failed(core: &mut Core, ifindex: IfIndex, addr: Ipv6Addr) {
    let links = &mut core.links;
    let Some((ether, neigh)) = links.ether_and_neigh(ifindex) else { return };
    let Some(at) = ether.addrconf.tentative.iter().position(|t| t.cidr.addr() == IpAddr::V6(addr)) else { return };
    let t = ether.addrconf.tentative.remove(at);
    ether.groups.leave(solicited_node(addr).into());
    neigh.table.stats.dad_failures += 1;
    let failed = &mut ether.addrconf.failed;
    if failed.len() >= MAX_AUTO_ADDRS {
        failed.remove(0);
    }
    failed.push(addr);
    let again = t.generated && matches!(ether.conf.addr_gen, AddrGen::StablePrivacy(_)) && t.retries < IDGEN_RETRIES;
    if again {
        let (generator, mac, retries) = (ether.conf.addr_gen, ether.mac(), t.retries + 1);
        let prefix = (addr.to_bits() >> 64) as u64;
        let cidr = generate(generator, prefix, mac, retries).and_then(|a| Cidr::new(a.into(), t.cidr.prefix_len()));
        if let Some(cidr) = cidr {
            begin(links, ifindex, tentative(cidr, true, t.auto, retries));
        }
    }
}

/// Is the address on trial? Then the nonce of our solicitation, if one was sent.
pub(super) fn tentative_nonce(core: &Core, ifindex: IfIndex, addr: Ipv6Addr) -> Option<Option<[u8; 6]>> {
    let list = &core.links.ether(ifindex)?.addrconf.tentative;
    let t = list.iter().find(|t| t.cidr.addr() == IpAddr::V6(addr))?;
    Some((t.sent > 0).then_some(t.nonce))
}

/// What is due of a device; returns when there is more.
pub(super) fn run(core: &mut Core, ifindex: IfIndex) -> Instant {
    if !core.links.ether(ifindex).is_some_and(|e| e.up) {
        return Instant::FAR_FUTURE;
    }
    run_trials(core, ifindex);
    run_lifetimes(core, ifindex);
    run_solicit(core, ifindex);
    core.links.ether(ifindex).map_or(Instant::FAR_FUTURE, |e| e.addrconf.next())
}

/// One step of one trial.
enum Step {
    Solicit(Ipv6Addr, [u8; 6]),
    Done(Tentative),
}

fn run_trials(core: &mut Core, ifindex: IfIndex) {
    while let Some(step) = next_step(core, ifindex) {
        match step {
            Step::Solicit(target, nonce) => {
                let msg = NdiscRepr::NeighborSolicit { target, lla: None, nonce: Some(nonce) };
                let dst = solicited_node(target);
                ndisc::send(core, ifindex, MacAddr::of_group(dst.into()), (Ipv6Addr::UNSPECIFIED, dst), &msg);
            }
            Step::Done(t) => {
                if let (IpAddr::V6(a), Some((ether, _))) = (t.cidr.addr(), core.links.ether_and_neigh(ifindex)) {
                    // The address itself joins it again.
                    ether.groups.leave_silently(solicited_node(a).into());
                }
                install(&mut core.links, ifindex, &t);
            }
        }
    }
}

fn next_step(core: &mut Core, ifindex: IfIndex) -> Option<Step> {
    let (now, delay) = (core.now, Duration::from_millis(core.rng.below(MAX_DELAY_MS)));
    let random = core.rng.next_u64().to_be_bytes();
    let ether = core.links.ether_and_neigh(ifindex)?.0;
    let (limit, retrans) = (ether.conf.dad_transmits, ether.nd_retrans());
    let list = &mut ether.addrconf.tentative;
    for t in list.iter_mut().filter(|t| t.at.is_none()) {
        t.at = Some(now + delay);
    }
    let at = list.iter().position(|t| t.at.is_some_and(|at| at <= now))?;
    let t = list.get_mut(at)?;
    if t.sent >= limit {
        return Some(Step::Done(list.remove(at)));
    }
    t.sent += 1;
    t.at = Some(now + retrans);
    t.nonce.copy_from_slice(&random[..6]);
    match t.cidr.addr() {
        IpAddr::V6(a) => Some(Step::Solicit(a, t.nonce)),
        IpAddr::V4(_) => None,
    }
}

fn run_lifetimes(core: &mut Core, ifindex: IfIndex) {
    let now = core.now;
    let Some((ether, _)) = core.links.ether_and_neigh(ifindex) else { return };
    let conf = &mut ether.addrconf;
    let routers = conf.routers.len();
    conf.routers.retain(|r| r.until > now);
    let lost_router = conf.routers.len() != routers;
    let dead: Vec<Cidr> = conf.prefixes.iter().filter(|p| p.1 <= now).map(|p| p.0).collect();
    conf.prefixes.retain(|p| p.1 > now);
    let expired: Vec<Cidr> = conf.auto.iter().filter(|a| a.1.valid_until <= now).map(|a| a.0).collect();
    conf.auto.retain(|a| a.1.valid_until > now);
    let mut deprecated = Vec::new();
    for (cidr, life) in conf.auto.iter_mut().filter(|a| a.1.preferred_until <= now) {
        life.preferred_until = Instant::FAR_FUTURE;
        deprecated.push(cidr.addr());
    }
    for prefix in dead {
        let _ = core.links.del_advertised(prefix, ifindex);
    }
    for cidr in expired {
        let _ = core.links.del_address(ifindex, cidr);
    }
    for addr in deprecated {
        core.links.set_deprecated(addr, true);
    }
    if lost_router {
        refresh_default(core, ifindex);
    }
}

fn run_solicit(core: &mut Core, ifindex: IfIndex) {
    let now = core.now;
    let Some((ether, _)) = core.links.ether_and_neigh(ifindex) else { return };
    let own = ether.mac();
    let Some((at, interval)) = ether.addrconf.solicit.filter(|s| s.0 <= now) else { return };
    let delay = Duration::from_millis(core.rng.below(MAX_DELAY_MS));
    // Up to a tenth more or less, so that hosts that started together drift apart (RFC 7559 section 2).
    let jitter = interval / 10;
    let wait = interval - jitter + (jitter * 2).mul_f64(core.rng.unit());
    let Some((ether, _)) = core.links.ether_and_neigh(ifindex) else { return };
    if at == Instant::ZERO {
        ether.addrconf.solicit = Some((now + delay, interval));
        return;
    }
    ether.addrconf.solicit = Some((now + wait, (interval * 2).min(RS_INTERVAL[1])));
    let src = core.links.link_local(ifindex).unwrap_or(Ipv6Addr::UNSPECIFIED);
    let msg = NdiscRepr::RouterSolicit { lla: (!src.is_unspecified()).then_some(own) };
    ndisc::send(core, ifindex, MacAddr::of_group(ALL_ROUTERS.into()), (src, ALL_ROUTERS), &msg);
}

/// A router advertisement; false when it may not be one.
pub(super) fn rcv_ra(core: &mut Core, ifindex: IfIndex, src: Ipv6Addr, ra: &RouterAdvert<'_>) -> bool {
    if !src.is_unicast_link_local() {
        return false;
    }
    let now = core.now;
    let Some((ether, neigh)) = core.links.ether_and_neigh(ifindex).filter(|(e, _)| e.conf.accept_ra) else {
        return true;
    };
    let params = ether.params_of(src.into());
    // An hour is the longest that RFC 4861 section 6.2.1 lets a router say.
    if (1..=3_600_000).contains(&ra.reachable_ms) {
        params.set_base_reachable(Duration::from_millis(u64::from(ra.reachable_ms)));
    }
    if ra.retrans_ms > 0 {
        params.retrans = Duration::from_millis(u64::from(ra.retrans_ms)).clamp(RETRANS[0], RETRANS[1]);
    }
    ether.addrconf.solicit = None;
    note_router(&mut ether.addrconf.routers, src, ra, now);
    neigh.schedule(now);
    refresh_default(core, ifindex);
    let mut lla = None;
    for option in ra.options.iter() {
        match option {
            NdOption::SourceLla(mac) if mac.is_unicast() => lla = Some(mac),
            NdOption::Mtu(mtu) => set_mtu(core, ifindex, mtu),
            NdOption::Prefix(p) => prefix(core, ifindex, &p),
            _ => {}
        }
    }
    if lla.is_some() {
        let claim = Claim { mac: lla, proof: false, replace: true, weak: true, router: Some(true) };
        ndisc::learn(core, ifindex, src, &claim, true);
    }
    true
}

fn note_router(routers: &mut Vec<Router>, addr: Ipv6Addr, ra: &RouterAdvert<'_>, now: Instant) {
    let known = routers.iter().position(|r| r.addr == addr);
    let until = now + Duration::from_secs(u64::from(ra.lifetime_s));
    match known {
        Some(at) if ra.lifetime_s == 0 => {
            routers.remove(at);
        }
        Some(at) => (routers[at].until, routers[at].pref) = (until, ra.pref),
        None if ra.lifetime_s > 0 && routers.len() < MAX_ROUTERS => {
            routers.push(Router { addr, until, pref: ra.pref, failed: false });
        }
        None => {}
    }
}

fn set_mtu(core: &mut Core, ifindex: IfIndex, mtu: u32) {
    let Some(limit) = core.links.device(ifindex).map(|d| d.mtu_bytes) else { return };
    let Some((ether, _)) = core.links.ether_and_neigh(ifindex) else { return };
    if (MIN_MTU..=limit).contains(&mtu) && ether.addrconf.mtu_bytes != mtu {
        ether.addrconf.mtu_bytes = mtu;
        core.links.touch();
    }
}

/// Makes the default route that of the best router.
fn refresh_default(core: &mut Core, ifindex: IfIndex) {
    let links = &mut core.links;
    let Some((ether, _)) = links.ether_and_neigh(ifindex) else { return };
    let conf = &mut ether.addrconf;
    // The first of equals: `max_by_key` would take the last.
    let best = conf.routers.iter().rev().max_by_key(|r| (!r.failed, r.pref)).map(|r| r.addr);
    if best == conf.default.map(|d| d.0) {
        return;
    }
    let old = conf.default.take();
    let Some(dst) = Cidr::new(Ipv6Addr::UNSPECIFIED.into(), 0) else { return };
    if old.is_some() {
        let _ = links.del_advertised(dst, ifindex);
    }
    let Some(router) = best else { return };
    // Another device's router may have the metric.
    for metric in DEFAULT_METRIC..DEFAULT_METRIC + MAX_ROUTERS as u32 {
        let mut route = Route::new(dst, ifindex).via(router.into());
        (route.metric, route.origin) = (metric, RouteOrigin::RouterAdvert);
        if links.add_route(route).is_ok() {
            if let Some((ether, _)) = links.ether_and_neigh(ifindex) {
                ether.addrconf.default = Some((router, metric));
            }
            return;
        }
    }
}

/// A prefix: on the link, and good for addresses, each if the router says so (RFC 4862 section 5.5.3).
fn prefix(core: &mut Core, ifindex: IfIndex, p: &PrefixInfo) {
    if p.prefix_len > 128 || p.prefix.is_unicast_link_local() || p.prefix.is_multicast() || p.preferred_s > p.valid_s {
        return;
    }
    let Some(net) = Cidr::new(p.prefix.into(), p.prefix_len).and_then(|c| Cidr::new(c.network(), p.prefix_len)) else {
        return;
    };
    let now = core.now;
    if p.on_link {
        let until = end_of(now, p.valid_s);
        let Some((ether, _)) = core.links.ether_and_neigh(ifindex) else { return };
        let list = &mut ether.addrconf.prefixes;
        match list.iter().position(|x| x.0 == net) {
            Some(at) if p.valid_s > 0 => list[at].1 = until,
            Some(at) => {
                list.remove(at);
                let _ = core.links.del_advertised(net, ifindex);
            }
            None if p.valid_s > 0 && list.len() < MAX_PREFIXES => {
                list.push((net, until));
                let mut route = Route::new(net, ifindex);
                (route.metric, route.origin) = (PREFIX_METRIC, RouteOrigin::RouterAdvert);
                // An address of ours may have brought the route already.
                let _ = core.links.add_route(route);
            }
            None => {}
        }
    }
    if p.autonomous && p.prefix_len == 64 {
        auto_address(core, ifindex, p);
    }
}

fn auto_address(core: &mut Core, ifindex: IfIndex, p: &PrefixInfo) {
    let now = core.now;
    let life = Lifetimes { valid_until: end_of(now, p.valid_s), preferred_until: end_of(now, p.preferred_s) };
    let upper = |c: &Cidr| matches!(c.addr(), IpAddr::V6(a) if a.to_bits() >> 64 == p.prefix.to_bits() >> 64);
    let Some((ether, _)) = core.links.ether_and_neigh(ifindex) else { return };
    let conf = &mut ether.addrconf;
    if let Some(t) = conf.tentative.iter_mut().find(|t| t.auto.is_some() && upper(&t.cidr)) {
        t.auto = Some(life);
        return;
    }
    if let Some((cidr, known)) = conf.auto.iter_mut().find(|a| upper(&a.0)) {
        let left = known.valid_until.since(now);
        let given = Duration::from_secs(u64::from(p.valid_s));
        if given > TWO_HOURS || given > left || p.valid_s == INFINITE {
            known.valid_until = life.valid_until;
        } else if left > TWO_HOURS {
            known.valid_until = now + TWO_HOURS;
        }
        let addr = cidr.addr();
        let preferred = p.preferred_s > 0;
        // Over already: nothing is left to happen.
        known.preferred_until = if preferred { life.preferred_until } else { Instant::FAR_FUTURE };
        core.links.set_deprecated(addr, !preferred);
        return;
    }
    let room = conf.auto.len() + conf.tentative.len() < MAX_AUTO_ADDRS;
    if p.valid_s == 0 || !room {
        return;
    }
    let addr = generate(ether.conf.addr_gen, (p.prefix.to_bits() >> 64) as u64, ether.mac(), 0);
    if let Some(cidr) = addr.and_then(|a| Cidr::new(a.into(), 64)).filter(|c| !core.links.is_local(c.addr())) {
        begin(&mut core.links, ifindex, tentative(cidr, true, Some(life), 0));
    }
}

/// A router does not answer: another one is taken, if there is one.
pub(super) fn router_failed(core: &mut Core, ifindex: IfIndex, addr: IpAddr) {
    set_failed(core, ifindex, addr, true);
}

/// A neighbour proved that it is there, or spoke again after it failed.
pub(super) fn router_answered(core: &mut Core, ifindex: IfIndex, addr: IpAddr) {
    set_failed(core, ifindex, addr, false);
}

fn set_failed(core: &mut Core, ifindex: IfIndex, addr: IpAddr, failed: bool) {
    let Some((ether, _)) = core.links.ether_and_neigh(ifindex) else { return };
    let router = ether.addrconf.routers.iter_mut().find(|r| IpAddr::V6(r.addr) == addr && r.failed != failed);
    if let Some(router) = router {
        router.failed = failed;
        refresh_default(core, ifindex);
    }
}

/// A router says that it is none any more (RFC 4861 section 7.2.5).
pub(super) fn router_gone(core: &mut Core, ifindex: IfIndex, addr: Ipv6Addr) {
    let Some((ether, _)) = core.links.ether_and_neigh(ifindex) else { return };
    ether.addrconf.routers.retain(|r| r.addr != addr);
    refresh_default(core, ifindex);
}
