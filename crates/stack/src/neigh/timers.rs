//! Time passes on the link: solicitations again, giving up, trials, lifetimes, reports.
//!
//! Two sources: the wheel of the neighbour table, one key per entry with a running state; and one earliest time for everything
//! that belongs to devices, which are few and looked at one after the other when it has come. Both are part of
//! `Turn::next`. A table at rest (all entries stale, addresses on no trial) has no deadline. Work is bounded by the entries
//! that are due; a clock that leaps fires each armed entry once.

use linerate_base::Instant;

use super::table::Due;
use super::{addrconf, ether, group, output};
use crate::core_state::Core;

/// Rounds over the devices in one run.
const MAX_ROUNDS: usize = 4;

/// Does everything that is due at `core.now`.
pub(crate) fn run(core: &mut Core) {
    let now = core.now;
    while let Some(index) = core.links.neigh.table.wheel.pop_expired(now) {
        let Some(key) = core.links.neigh.table.key_of(index) else { continue };
        let Some((ifindex, addr)) = core.links.neigh.table.get(key).map(|n| (n.ifindex, n.addr)) else { continue };
        let random = core.rng.next_u64();
        let Some((ether, neigh)) = core.links.ether_and_neigh(ifindex) else { continue };
        match neigh.table.on_timer(key, now, ether.params_of(addr), random) {
            Due::Nothing => {}
            Due::SolicitAll => output::solicit(core, key, false),
            Due::SolicitOne => output::solicit(core, key, true),
            Due::Failed => output::fail(core, key),
        }
    }
    core.links.neigh.table.periodic_gc(now);
    // What one device's work makes due at once (an address after its trial is reported) is done at once, within reason.
    for _ in 0..MAX_ROUNDS {
        if core.links.neigh.devices_at > now {
            break;
        }
        run_devices(core);
    }
}

fn run_devices(core: &mut Core) {
    core.links.neigh.devices_at = Instant::FAR_FUTURE;
    for ifindex in ether::devices(core) {
        let at = addrconf::run(core, ifindex).min(group::run(core, ifindex));
        core.links.neigh.schedule(at);
    }
}
