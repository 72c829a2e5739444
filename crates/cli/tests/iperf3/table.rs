//! The whole table of what iperf3 can be asked for, against stock iperf3: every combination of protocol, family, direction,
//! streams, MTU, device, offloads and role, 576 cells.
//!
//! Two forms. The short one, which runs always, is a covering set: of any two columns each pair of values occurs in some
//! cell, which is where faults of combination live, in a fiftieth of the cells. `LINERATE_LONG=1` runs every cell (some
//! minutes). A cell is good when both ends finish without an error, their reports agree about the bytes of each direction,
//! have as many streams as were asked for, and what was to be sent was sent. With `--nocapture` each cell prints its row.
//!
//! Not judged: speed. Rates are low enough, and bytes few enough, that a busy machine passes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Bytes that a TCP cell sends in each direction.
const TCP_BYTES: u64 = 2 << 20;
/// The same of a UDP cell.
const UDP_BYTES: u64 = 300 << 10;

/// How many values each column has.
const COLUMNS: [usize; 8] = [2, 2, 3, 2, 3, 2, 2, 2];

/// One combination: the number of the value in each column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Cell([usize; 8]);

impl Cell {
    fn all() -> impl Iterator<Item = Self> {
        (0..COLUMNS.iter().product()).map(|mut n: usize| {
            Self(COLUMNS.map(|values| {
                let value = n % values;
                n /= values;
                value
            }))
        })
    }
    /// Every two columns with their values.
    fn pairs(self) -> impl Iterator<Item = (usize, usize, usize, usize)> {
        (0..8).flat_map(move |a| (a + 1..8).map(move |b| (a, self.0[a], b, self.0[b])))
    }
    fn is_udp(self) -> bool {
        self.0[0] == 1
    }
    fn is_v6(self) -> bool {
        self.0[1] == 1
    }
    fn direction(self) -> &'static [&'static str] {
        [&[][..], &["-R"], &["--bidir"]][self.0[2]]
    }
    fn streams(self) -> usize {
        [1, 8][self.0[3]]
    }
    fn is_tap(self) -> bool {
        self.0[5] == 1
    }
    fn mtu(self) -> &'static str {
        // Linux counts the Ethernet header into what a TAP may carry at most.
        let longest = if self.is_tap() { "65521" } else { "65535" };
        ["1500", "9000", longest][self.0[4]]
    }
    fn has_offloads(self) -> bool {
        self.0[6] == 0
    }
    fn we(self) -> We {
        [We::Client, We::Server][self.0[7]]
    }
    fn device(self) -> Vec<&'static str> {
        let mut args = vec![if self.is_tap() { "--tap" } else { "--tun" }, "lin%d", "--mtu", self.mtu()];
        // One family, so that nobody waits for the trial of an address that is not used.
        args.extend(match self.is_v6() {
            false => ["--addr", "10.9.0.2/24", "--host-addr", "10.9.0.1/24"],
            true => ["--addr", "fd09::2/64", "--host-addr", "fd09::1/64"],
        });
        if !self.has_offloads() {
            args.extend(["--tso", "off", "--csum", "sw"]);
        }
        args
    }
    fn row(self) -> String {
        format!(
            "{} IPv{} {:<7} -P {} MTU {:<5} {} offloads {:<3} our {:?}",
            if self.is_udp() { "UDP" } else { "TCP" },
            if self.is_v6() { 6 } else { 4 },
            self.direction().first().unwrap_or(&"up"),
            self.streams(),
            self.mtu(),
            if self.is_tap() { "TAP" } else { "TUN" },
            if self.has_offloads() { "on" } else { "off" },
            self.we(),
        )
    }

    /// Runs it; what both ends say has to be the same, and what was asked for.
    fn run(self) {
        let (streams, bytes_all) = (self.streams().to_string(), if self.is_udp() { UDP_BYTES } else { TCP_BYTES });
        let size = bytes_all.to_string();
        let mut args = [&["-n", &size, "-P", &streams], self.direction()].concat();
        if self.is_udp() {
            args.extend(["-u", "-b", "20M"]);
        }
        let (client, server) = agree_on(&self.device(), self.we(), self.is_v6(), &args);
        let both = if self.direction() == ["--bidir"] { 2 } else { 1 };
        for (who, report) in [("client", &client), ("server", &server)] {
            for list in [&report["start"]["connected"], &report["end"]["streams"]] {
                let found = list.as_array().map_or(0, Vec::len);
                assert_eq!(found, self.streams() * both, "streams at the {who}: {list}");
            }
        }
        // Who has as many bytes to send as were asked for, sends them; iperf3 counts those of all streams together, and
        // with --bidir those of either direction.
        let sent: u64 =
            ["sum_sent", "sum_sent_bidir_reverse"].iter().filter_map(|k| client["end"][k]["bytes"].as_u64()).sum();
        assert!(sent >= bytes_all, "{sent} bytes were sent: {}", client["end"]);
        let ours = if self.we() == We::Client { &client } else { &server };
        assert_eq!(ours["end"]["linerate"]["drops"]["NotSpecified"].as_u64().unwrap_or(0), 0, "{}", ours["end"]);
    }
}

/// As few cells as a greedy choice finds in which every pair of values of two columns occurs.
fn covering() -> Vec<Cell> {
    let mut open: Vec<_> = Cell::all().flat_map(Cell::pairs).collect();
    open.sort_unstable();
    open.dedup();
    let mut chosen = Vec::new();
    while !open.is_empty() {
        let gain = |cell: &Cell| cell.pairs().filter(|pair| open.binary_search(pair).is_ok()).count();
        // The first of the best, so that the set is the same everywhere.
        let best = Cell::all().reduce(|a, b| if gain(&b) > gain(&a) { b } else { a }).expect("cells");
        open.retain(|pair| !best.pairs().any(|p| p == *pair));
        chosen.push(best);
    }
    chosen
}

#[test]
fn the_short_table_covers_every_pair() {
    let (short, all) = (covering(), Cell::all().count());
    assert!(all == 576 && short.len() < 20, "{} of {all}", short.len());
    for pair in Cell::all().flat_map(Cell::pairs) {
        assert!(short.iter().any(|cell| cell.pairs().any(|p| p == pair)), "{pair:?}");
    }
}

#[test]
fn every_combination() {
    with_iperf3("table::every_combination", || {
        // The kernel's own trial of its addresses would only take time.
        for which in ["all", "default"] {
            let _ = std::fs::write(format!("/proc/sys/net/ipv6/conf/{which}/accept_dad"), "0");
        }
        let long = std::env::var("LINERATE_LONG").is_ok_and(|v| v == "1");
        let cells = if long { Cell::all().collect() } else { covering() };
        let mut failed = Vec::new();
        for cell in cells {
            let start = Instant::now();
            let good = catch_unwind(AssertUnwindSafe(|| cell.run())).is_ok();
            println!("{} {}  {:.1} s", cell.row(), if good { "ok" } else { "FAILED" }, start.elapsed().as_secs_f64());
            if !good {
                failed.push(cell.row());
            }
        }
        assert!(failed.is_empty(), "{} cells failed:\n{}", failed.len(), failed.join("\n"));
    });
}
