//! Two hosts, a lossy path, 60 KB: what crosses the wire, line by line, and why.
//!
//! `cargo run -p linerate-sim --example hello [LOST ...]`: the numbers are the data segments that the path loses
//! (by default 4, 5 and the last one, so that a hole, fast recovery and a tail loss probe show).

use std::net::SocketAddr;
use std::time::Duration;

use linerate_base::Instant;
use linerate_sim::apps::Script;
use linerate_sim::link::lock;
use linerate_sim::net::{LinkSpec, Net};
use linerate_sim::tap::Keep;
use linerate_sim::timeline;
use linerate_sim::wire::{Verdict, WireConfig};
use linerate_stack::StackConfig;
use linerate_tcp::SockOpts;

const BYTES: u64 = 60_000;

fn main() {
    let named: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let lost = if named.is_empty() { vec![4, 5, 42] } else { named };
    let wire = WireConfig { rate_bps: 20_000_000, delay: Duration::from_millis(10), ..WireConfig::default() };
    let mut net = Net::pair(1, Keep::Heads, &StackConfig::default(), LinkSpec::symmetric(1500, wire));
    let mut data_segment = 0;
    let filter = move |_, _, bytes: &[u8]| {
        // IPv4 header, TCP header with timestamps: whatever is longer carries data.
        let carries_data = bytes.len() > 100;
        data_segment += u64::from(carries_data);
        if carries_data && lost.contains(&data_segment) { Verdict::Lose } else { Verdict::Pass }
    };
    lock(&net.links[0]).wires[0].set_filter(Some(Box::new(filter)));
    let server = SocketAddr::new(Net::addr(0, 1, false), 80);
    net.listen(1, server, 8, &SockOpts::DEFAULT, |_| Script::sink());
    net.dial(0, Instant::from_secs(1), server, Script::send(BYTES));
    let stop = net.run_until(Instant::from_secs(60), Net::all_done);
    let tcp = net.hosts[0].shard.mibs().tcp.clone();
    net.run_for(Duration::from_secs(1));
    let link = lock(&net.links[0]);
    let events = link.tap.events();
    print!("{}", timeline::render(events, ["A", "B"]));
    let (rows, sum) = timeline::rows(events);
    let took = rows.last().map_or(Duration::ZERO, |last| last.at.since(rows[0].at));
    println!(
        "\n{stop:?}: {BYTES} bytes in {:.1} ms, {:.2} Mbit/s",
        took.as_secs_f64() * 1e3,
        BYTES as f64 * 8.0 / took.as_secs_f64() / 1e6
    );
    println!(
        "A sent {} segments, {} of them again; {} frames were lost",
        sum.wire_pkts[0], sum.retransmitted, sum.lost
    );
    println!("timeouts {}, loss probes {}, fast retransmits {}", tcp.timeouts, tcp.loss_probes, tcp.fast_retrans);
    let stats = link.checker.stats(0);
    println!("retransmissions that were not needed: {}", stats.spurious);
}
