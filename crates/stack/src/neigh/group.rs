//! Memberships, and telling routers about them: IGMPv3 and MLDv2, and their elders when a querier speaks those.
//!
//! A group is joined by users (an address joins its solicited-node group, the application others) and left by the last. A join is
//! reported at once and once more within a second (robustness 2); so is a leave. A query is answered after a random part
//! of the time that it allows: one general answer for all groups, or one for the group asked for. While a querier of an
//! older version has been heard, reports are of that version and name one group each (RFC 3376 section 7.2, RFC 3810
//! section 8.2). The groups of all nodes are never reported.
//!
//! Joins are for any source. Limits: [`MAX_GROUPS`] a device. Not here: source filters, reports of routers, suppression of
//! older reports by others' (more messages, never fewer).

use alloc::vec::Vec;
use core::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use linerate_base::{Duration, Instant};
use linerate_netdev::IfIndex;
use linerate_skb::Skb;
use linerate_wire::ethernet::ethertype;
use linerate_wire::group::{self, GroupQuery, GroupRecord, RecordKind, igmp};
use linerate_wire::ip::proto;
use linerate_wire::{IpRepr, MacAddr, ipv4};

use super::{ether, ndisc};
use crate::core_state::Core;
use crate::upcall::IpMeta;

/// Groups of a device.
pub const MAX_GROUPS: usize = 1024;
/// How often a change is reported.
const ROBUSTNESS: u8 = 2;
/// Longest time to the second report of a change, milliseconds.
const REPORT_INTERVAL_MS: u64 = 1000;
/// Records of one message: it must fit the head of an skb.
const RECORDS: usize = 5;
/// How long an older querier is remembered when it does not say (robustness 2 x 125 s + 10 s).
const OLDER_QUERIER: Duration = Duration::from_secs(260);
/// Where IGMPv3 reports go.
const IGMP_ROUTERS: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 22);
/// Where IGMPv2 leaves go.
const ALL_ROUTERS_V4: Ipv4Addr = Ipv4Addr::new(224, 0, 0, 2);
/// Where MLDv2 reports go.
const MLD_ROUTERS: Ipv6Addr = Ipv6Addr::new(0xff02, 0, 0, 0, 0, 0, 0, 0x16);
/// IPv4 router alert (RFC 2113).
const ROUTER_ALERT_V4: [u8; 4] = [0x94, 4, 0, 0];
/// A hop-by-hop header with a router alert for MLD (RFC 2711), ICMPv6 behind it.
const ROUTER_ALERT_V6: [u8; 8] = [proto::ICMPV6, 0, 5, 2, 0, 0, 1, 0];

struct Membership {
    group: IpAddr,
    users: u32,
    /// Reports of the last change that are still to be sent, and when.
    left: u8,
    at: Option<Instant>,
    /// A query for this group is to be answered then.
    answer_at: Option<Instant>,
}

/// The memberships of a device.
pub(crate) struct Groups {
    list: Vec<Membership>,
    /// Hardware addresses of them.
    macs: Vec<MacAddr>,
    /// A general query is to be answered then, by family (IPv4, IPv6).
    answer_all_at: [Option<Instant>; 2],
    /// The older version that is spoken, and until when.
    older: [(u8, Instant); 2],
}

const fn family(addr: IpAddr) -> usize {
    if addr.is_ipv4() { 0 } else { 1 }
}

/// Groups that everybody is in are not reported (RFC 3376 section 6, RFC 3810 section 6), nor those that stay on the host.
fn is_reported(group: IpAddr) -> bool {
    match group {
        IpAddr::V4(a) => a != Ipv4Addr::new(224, 0, 0, 1),
        IpAddr::V6(a) => a != ndisc::ALL_NODES && a.octets()[1] & 0xf > 1,
    }
}

impl Groups {
    pub(crate) fn new() -> Self {
        Self { list: Vec::new(), macs: Vec::new(), answer_all_at: [None; 2], older: [(0, Instant::ZERO); 2] }
    }
    /// Is a frame to this group address for us?
    #[inline]
    pub(crate) fn has_mac(&self, mac: MacAddr) -> bool {
        self.macs.contains(&mac)
    }
    /// Are we in this group?
    pub(crate) fn contains(&self, group: IpAddr) -> bool {
        self.list.iter().any(|m| m.group == group && m.users > 0)
    }
    fn rebuild_macs(&mut self) {
        self.macs = self.list.iter().filter(|m| m.users > 0).map(|m| MacAddr::of_group(m.group)).collect();
    }

    /// One more user of a group; false when there are too many groups.
    pub(crate) fn join(&mut self, group: IpAddr) -> bool {
        let at = self.list.iter().position(|m| m.group == group);
        if at.is_none() && self.list.len() >= MAX_GROUPS {
            return false;
        }
        let at = at.unwrap_or_else(|| {
            self.list.push(Membership { group, users: 0, left: 0, at: None, answer_at: None });
            self.list.len() - 1
        });
        if let Some(m) = self.list.get_mut(at) {
            m.users += 1;
            if m.users == 1 {
                m.change();
                self.rebuild_macs();
            }
        }
        true
    }

    /// One user less; false when there was none.
    pub(crate) fn leave(&mut self, group: IpAddr) -> bool {
        let Some(m) = self.list.iter_mut().find(|m| m.group == group && m.users > 0) else { return false };
        m.users -= 1;
        if m.users == 0 {
            m.change();
            self.rebuild_macs();
        }
        true
    }

    /// One user less who is about to come back.
    pub(crate) fn leave_silently(&mut self, group: IpAddr) {
        if let Some(m) = self.list.iter_mut().find(|m| m.group == group && m.users > 0) {
            m.users -= 1;
        }
    }

    /// All IPv6 groups are reported once more.
    pub(crate) fn report_again(&mut self) {
        for m in self.list.iter_mut().filter(|m| !m.group.is_ipv4() && m.users > 0 && is_reported(m.group)) {
            (m.left, m.at) = (m.left.max(1), Some(Instant::ZERO));
        }
    }

    fn next(&self) -> Instant {
        let groups = self.list.iter().flat_map(|m| [m.at, m.answer_at]);
        groups.chain(self.answer_all_at).flatten().min().unwrap_or(Instant::FAR_FUTURE)
    }

    /// A query was heard: when it is answered.
    fn on_query(&mut self, q: &GroupQuery<'_>, f: usize, now: Instant, delay: Duration) {
        let newest = if f == 0 { 3 } else { 2 };
        if q.version < newest {
            self.older[f] = (q.version, now + OLDER_QUERIER);
        }
        let due = now + delay;
        let sooner = |at: &mut Option<Instant>| *at = Some(at.map_or(due, |a| a.min(due)));
        if q.group.is_unspecified() {
            sooner(&mut self.answer_all_at[f]);
        } else if let Some(m) = self.list.iter_mut().find(|m| m.group == q.group && m.users > 0) {
            sooner(&mut m.answer_at);
        }
    }

    /// The older version to be spoken in family `f`, 0 = none.
    fn older_version(&self, f: usize, now: Instant) -> u8 {
        let (version, until) = self.older[f];
        if until > now { version } else { 0 }
    }

    /// Records that are due in family `f`; `again` gives the time to the second report of a change.
    fn due(&mut self, f: usize, now: Instant, mut again: impl FnMut() -> Duration) -> Vec<GroupRecord> {
        let mut records = Vec::new();
        let all = self.answer_all_at[f].take_if(|at| *at <= now).is_some();
        for m in self.list.iter_mut().filter(|m| family(m.group) == f) {
            let group = m.group;
            if m.at.is_some_and(|at| at <= now) {
                let kind = if m.users > 0 { RecordKind::ChangeToExclude } else { RecordKind::ChangeToInclude };
                records.push(GroupRecord { kind, group });
                m.left = m.left.saturating_sub(1);
                m.at = (m.left > 0).then(|| now + again());
            }
            let asked = m.answer_at.take_if(|at| *at <= now).is_some();
            if (asked || all) && m.users > 0 && is_reported(group) {
                records.push(GroupRecord { kind: RecordKind::ModeIsExclude, group });
            }
        }
        self.list.retain(|m| m.users > 0 || m.at.is_some());
        records
    }
}

impl Membership {
    /// It was joined or left.
    fn change(&mut self) {
        if is_reported(self.group) {
            (self.left, self.at) = (ROBUSTNESS, Some(Instant::ZERO));
        }
    }
}

/// A message of IGMP; the skb's head starts at it.
pub(crate) fn rcv_igmp(core: &mut Core, meta: &IpMeta, skb: Skb) {
    let mut buf = [0u8; 1500];
    let n = skb.copy_bytes(0, &mut buf);
    let query = buf.get(..n).filter(|_| n == skb.len() as usize).map(GroupQuery::parse_igmp);
    if let Some(Ok(q)) = query {
        heard(core, meta.ifindex, &q);
    }
    core.consume(skb);
}

/// A multicast listener query; its checksum was verified.
pub(crate) fn rcv_mld(core: &mut Core, meta: &IpMeta, skb: Skb) {
    let mut buf = [0u8; 1500];
    let n = skb.copy_bytes(0, &mut buf);
    let from_router = matches!(meta.src, IpAddr::V6(a) if a.is_unicast_link_local()) && meta.ttl == 1;
    if from_router
        && n == skb.len() as usize
        && let Some(Ok(q)) = buf.get(..n).map(GroupQuery::parse_mld)
    {
        heard(core, meta.ifindex, &q);
    }
    core.consume(skb);
}

fn heard(core: &mut Core, ifindex: IfIndex, q: &GroupQuery<'_>) {
    let delay = Duration::from_millis(core.rng.below(u64::from(q.max_resp_ms.max(1))));
    let now = core.now;
    if let Some((ether, neigh)) = core.links.ether_and_neigh(ifindex) {
        ether.groups.on_query(q, family(q.group), now, delay);
        neigh.schedule(now);
    }
}

/// What is due of a device; returns when there is more.
pub(super) fn run(core: &mut Core, ifindex: IfIndex) -> Instant {
    for f in 0..2 {
        let now = core.now;
        let Core { links, rng, .. } = core;
        let Some((ether, _)) = links.ether_and_neigh(ifindex) else { return Instant::FAR_FUTURE };
        if !ether.up {
            return Instant::FAR_FUTURE;
        }
        let again = || Duration::from_millis(1 + rng.below(REPORT_INTERVAL_MS));
        let records = ether.groups.due(f, now, again);
        let older = ether.groups.older_version(f, now);
        if older > 0 {
            for r in &records {
                report_old(core, ifindex, *r, older);
            }
        } else {
            for some in records.chunks(RECORDS) {
                report(core, ifindex, some, f == 0);
            }
        }
    }
    core.links.ether(ifindex).map_or(Instant::FAR_FUTURE, |e| e.groups.next())
}

/// A report of the newest version.
fn report(core: &mut Core, ifindex: IfIndex, records: &[GroupRecord], v4: bool) {
    let mut body = [0u8; 128];
    let len = group::report_len(v4, records.len());
    let src = core.links.link_local(ifindex).unwrap_or(Ipv6Addr::UNSPECIFIED);
    let pseudo = if v4 { 0 } else { group::mld_pseudo(&src, &MLD_ROUTERS, len) };
    group::emit_report(records, v4, pseudo, &mut body);
    let body = body.get(..len).unwrap_or_default();
    if v4 { send_v4(core, ifindex, IGMP_ROUTERS, body) } else { send_v6(core, ifindex, (src, MLD_ROUTERS), body) }
}

/// A report of an older version, for one group.
fn report_old(core: &mut Core, ifindex: IfIndex, r: GroupRecord, version: u8) {
    let mut body = [0u8; 24];
    let leaves = r.kind == RecordKind::ChangeToInclude;
    match r.group {
        // Version 1 knows no leave.
        IpAddr::V4(_) if leaves && version == 1 => {}
        IpAddr::V4(a) => {
            let (ty, dst) = match (leaves, version) {
                (true, _) => (igmp::V2_LEAVE, ALL_ROUTERS_V4),
                (false, 1) => (igmp::V1_REPORT, a),
                (false, _) => (igmp::V2_REPORT, a),
            };
            group::emit_old(ty, r.group, 0, &mut body);
            send_v4(core, ifindex, dst, &body[..group::old_len(true)]);
        }
        IpAddr::V6(a) => {
            let (ty, dst) = if leaves { (group::MLD_V1_DONE, ndisc::ALL_ROUTERS) } else { (group::MLD_V1_REPORT, a) };
            let src = core.links.link_local(ifindex).unwrap_or(Ipv6Addr::UNSPECIFIED);
            let pseudo = group::mld_pseudo(&src, &dst, group::old_len(false));
            group::emit_old(ty, r.group, pseudo, &mut body);
            send_v6(core, ifindex, (src, dst), &body);
        }
    }
}

/// IGMP in IPv4 with a router alert and a hop limit of 1 (RFC 3376 section 4).
fn send_v4(core: &mut Core, ifindex: IfIndex, dst: Ipv4Addr, body: &[u8]) {
    const HL: usize = ipv4::HEADER_LEN + ROUTER_ALERT_V4.len();
    let src = match core.links.source_for(ifindex, dst.into()) {
        Some(IpAddr::V4(a)) => a,
        _ => Ipv4Addr::UNSPECIFIED,
    };
    let mut b = [0u8; 128];
    let len = HL + body.len();
    let mut ip = IpRepr::new(src.into(), dst.into(), proto::IGMP, (ROUTER_ALERT_V4.len() + body.len()) as u32);
    (ip.hop_limit, ip.tos) = (1, 0xc0);
    ip.emit(&mut b);
    b[0] = 0x46;
    b[ipv4::HEADER_LEN..HL].copy_from_slice(&ROUTER_ALERT_V4);
    ipv4::fill_checksum(&mut b[..HL]);
    if let Some(to) = b.get_mut(HL..len) {
        to.copy_from_slice(body);
    }
    let whole = b.get(..len).unwrap_or_default();
    ether::send(core, ifindex, MacAddr::of_group(dst.into()), ethertype::IPV4, whole);
}

/// MLD in IPv6 with a router alert and a hop limit of 1 (RFC 3810 section 5).
fn send_v6(core: &mut Core, ifindex: IfIndex, (src, dst): (Ipv6Addr, Ipv6Addr), body: &[u8]) {
    const HL: usize = 48;
    let mut b = [0u8; 176];
    let len = HL + body.len();
    let mut ip = IpRepr::new(src.into(), dst.into(), proto::HOPOPTS, (8 + body.len()) as u32);
    ip.hop_limit = 1;
    ip.emit(&mut b);
    b[40..HL].copy_from_slice(&ROUTER_ALERT_V6);
    if let Some(to) = b.get_mut(HL..len) {
        to.copy_from_slice(body);
    }
    core.mibs.icmp.out_msgs += 1;
    let whole = b.get(..len).unwrap_or_default();
    ether::send(core, ifindex, MacAddr::of_group(dst.into()), ethertype::IPV6, whole);
}
