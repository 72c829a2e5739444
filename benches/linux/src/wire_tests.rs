//! The wire over socket pairs, without a kernel's TCP: numbering, losses, order, delay and the bottleneck.

use std::sync::atomic::AtomicBool;

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::*;

const MAP: Lanes = Lanes { first_port: 5000, stride: 10, count: 20 };

fn spec(loss: f64) -> WireSpec {
    let one_way = Duration::from_millis(5);
    WireSpec { loss, one_way, rate_bps: 100_000_000, queue_bytes: 15_000, late: one_way, seed: 7 }
}

/// A TCP frame from end `from` to end `to`, with a number in its payload.
fn frame(from: u8, to: u8, ports: (u16, u16), flags: u8, number: u32) -> Vec<u8> {
    let mut f = vec![0; 40];
    (f[0], f[9], f[33], f[32]) = (0x45, 6, flags, 5 << 4);
    f[12..16].copy_from_slice(&[10, 0, from + 1, 1]);
    f[16..20].copy_from_slice(&[10, 0, to + 1, 1]);
    f[20..22].copy_from_slice(&ports.0.to_be_bytes());
    f[22..24].copy_from_slice(&ports.1.to_be_bytes());
    f.extend(number.to_be_bytes());
    f
}

fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[40..44].try_into().expect("four bytes"))
}

fn pair() -> (OwnedFd, OwnedFd) {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).expect("a pair")
}

/// Runs a wire between two ends while `f` plays both; gives what the wire says.
fn with_wire(spec: WireSpec, f: impl FnOnce(&OwnedFd, &OwnedFd)) -> WireReport {
    let ((a, wire_a), (b, wire_b)) = (pair(), pair());
    let stop = AtomicBool::new(false);
    std::thread::scope(|s| {
        let wire = Wire::new(spec, MAP, vec![End::Pair(wire_a), End::Pair(wire_b)]);
        let wire = s.spawn(|| wire.run(&stop).expect("the wire runs"));
        f(&a, &b);
        stop.store(true, Ordering::Relaxed);
        wire.join().expect("no panic")
    })
}

/// The next frame, or nothing for a quarter of a second.
fn receive(fd: &OwnedFd) -> Option<Vec<u8>> {
    let mut buf = vec![0; FRAME_MAX];
    let until = Instant::now() + Duration::from_millis(250);
    while Instant::now() < until {
        match rustix::io::read(fd, &mut buf[..]) {
            Ok(n) => return Some(buf[..n].to_vec()),
            Err(Errno::AGAIN) => std::thread::sleep(Duration::from_micros(200)),
            Err(e) => panic!("{e}"),
        }
    }
    None
}

#[test]
fn frames_cross_in_order_after_the_delay_and_strangers_do_not() {
    let report = with_wire(spec(0.0), |a, b| {
        let sent = Instant::now();
        for n in 0..5 {
            rustix::io::write(a, &frame(0, 1, (40_000, 5003), 16, n)).expect("room");
        }
        rustix::io::write(a, &frame(0, 1, (40_000, 9), 16, 99)).expect("room");
        rustix::io::write(a, &frame(0, 7, (40_000, 5003), 16, 99)).expect("room");
        for n in 0..5 {
            assert_eq!(receive(b).map(|f| number_of(&f)), Some(n));
            assert!(sent.elapsed() >= Duration::from_millis(5));
        }
        assert_eq!(receive(b), None);
        rustix::io::write(b, &frame(1, 0, (5003, 40_000), 16, 6)).expect("room");
        assert_eq!(receive(a).map(|f| number_of(&f)), Some(6));
    });
    assert_eq!((report.delivered, report.strangers, report.full_ends), (6, 2, 0));
    let lane = |frames| LaneStats { frames, payload_bytes: 4 * frames, ..LaneStats::default() };
    assert_eq!(report.lanes[3], [lane(5), lane(1)]);
}

/// Which of the first numbers of a lane are lost.
fn lost_numbers(flow: u64, back: u64) -> Vec<u64> {
    (0..3000).filter(|&n| is_lost(&spec(0.03), flow, back, n)).collect()
}

#[test]
fn the_same_numbers_are_lost_whoever_sends() {
    let report = with_wire(spec(0.2), |a, b| {
        // The same flow of two arrangements: ports 5004 and 5014.
        for port in [5004, 5014] {
            let (sent, mut got) = (0..40, Vec::new());
            for n in sent {
                rustix::io::write(a, &frame(0, 1, (40_000, port), 16, n)).expect("room");
            }
            while let Some(f) = receive(b) {
                got.push(number_of(&f));
            }
            let want: Vec<u32> = (0..40).filter(|&n| !is_lost(&spec(0.2), 4, 0, n.into())).collect();
            assert_eq!(got, want);
            assert!(want.len() < 40);
        }
    });
    assert_eq!(report.lanes[4], report.lanes[14]);
    assert_ne!(lost_numbers(4, 0), lost_numbers(5, 0));
    assert_ne!(lost_numbers(4, 0), lost_numbers(4, 1));
    // 3 % of 3000, within four standard deviations.
    assert!((52..=128).contains(&lost_numbers(4, 0).len()), "{}", lost_numbers(4, 0).len());
}

#[test]
fn a_handshake_is_spared() {
    let report = with_wire(spec(1.0), |a, b| {
        rustix::io::write(a, &frame(0, 1, (40_000, 5000), 2, 1)).expect("room");
        assert_eq!(receive(b).map(|f| number_of(&f)), Some(1));
        rustix::io::write(a, &frame(0, 1, (40_000, 5000), 16, 2)).expect("room");
        assert_eq!(receive(b), None);
    });
    assert_eq!((report.lanes[0][0].frames, report.lanes[0][0].lost), (2, 1));
}

#[test]
fn a_bottleneck_spaces_its_own_lane_and_drops_beyond_its_queue() {
    // 44 bytes at 352 kbit/s are 1 ms; ten of them may wait.
    let slow = WireSpec { rate_bps: 352_000, queue_bytes: 440, ..spec(0.0) };
    let report = with_wire(slow, |a, b| {
        let sent = Instant::now();
        for n in 0..30 {
            rustix::io::write(a, &frame(0, 1, (40_000, 5001), 16, n)).expect("room");
        }
        rustix::io::write(a, &frame(0, 1, (40_000, 5002), 16, 77)).expect("room");
        let mut got = Vec::new();
        while let Some(f) = receive(b) {
            let due = if number_of(&f) == 77 { 6 } else { 6 + u64::from(number_of(&f)) };
            assert!(sent.elapsed() >= Duration::from_millis(due));
            got.push(number_of(&f));
        }
        // The other lane has an idle bottleneck of its own.
        assert!(got.iter().position(|&n| n == 77).is_some_and(|at| at <= 2) || report_is_late(sent), "{got:?}");
    });
    let lane = report.lanes[1][0];
    assert!(lane.queue_drops >= 10 && lane.frames == 30, "{lane:?}");
}

/// A machine that stood still for milliseconds may deliver all at once; then order is not what is judged.
fn report_is_late(since: Instant) -> bool {
    since.elapsed() > Duration::from_millis(600)
}
