//! Valid conversations, mutated at random: frames lost, doubled, reordered, cut, flipped, overwritten, invented.
//!
//! Two honest shards, one in each role, talk through a carrier that does not mean well. With *accidents* (what links do:
//! checksums are left as they are) both streams must be prefixes of what was sent, whatever happens. With *forgery* (the
//! carrier sums again) contents are his, but the shards must survive: no panic, invariants after every exchange, every
//! drop counted, memory home at the end. A failing case is minimised by proptest and replays from its seed.

use linerate_base::{DropReason, Rng};
use linerate_stack::SockOpts;
use proptest::prelude::*;

use crate::exhaustion::{App, Duo, faithful};
use crate::lab::{PORT, Setup, fix_sums, stream};

/// What happens to frame number `at` of a conversation.
#[derive(Clone, Debug)]
enum Mishap {
    Lose,
    Double,
    /// Held back until this many others have passed.
    Delay(u8),
    Flip(u16),
    Cut(u16),
    Pad(u8),
    /// Four bytes of a header, anywhere in the first 80.
    Overwrite(u8, u32),
    /// A byte of a header.
    Byte(u8, u8),
    /// A copy with these changes goes in front of the frame.
    Evil(u8, u32),
    /// A frame of noise that begins like IP.
    Noise(u8, u64),
}

fn mishap() -> impl Strategy<Value = Mishap> {
    prop_oneof![
        Just(Mishap::Lose),
        Just(Mishap::Double),
        (1u8..8).prop_map(Mishap::Delay),
        any::<u16>().prop_map(Mishap::Flip),
        any::<u16>().prop_map(Mishap::Cut),
        any::<u8>().prop_map(Mishap::Pad),
        (0u8..80, prop_oneof![any::<u32>(), Just(0), Just(u32::MAX), Just(1 << 31)])
            .prop_map(|(at, v)| Mishap::Overwrite(at, v)),
        (0u8..80, any::<u8>()).prop_map(|(at, v)| Mishap::Byte(at, v)),
        (0u8..80, any::<u32>()).prop_map(|(at, v)| Mishap::Evil(at, v)),
        (any::<u8>(), any::<u64>()).prop_map(|(len, seed)| Mishap::Noise(len, seed)),
    ]
}

fn put(frame: &mut [u8], at: usize, bytes: &[u8]) {
    for (place, b) in frame.iter_mut().skip(at).zip(bytes) {
        *place = *b;
    }
}

/// The carrier: applies mishaps by frame number.
struct Carrier {
    plan: Vec<(u8, Mishap)>,
    forger: bool,
    n: usize,
    held: Vec<(usize, Vec<u8>)>,
}

impl Carrier {
    fn carry(&mut self, frame: Vec<u8>, out: &mut dyn FnMut(Vec<u8>)) {
        self.n += 1;
        let n = self.n;
        let mut due: Vec<_> = self.held.extract_if(.., |(at, _)| *at <= n).map(|(_, f)| f).collect();
        let found: Vec<_> = self.plan.iter().filter(|(at, _)| usize::from(*at) == n).map(|(_, m)| m.clone()).collect();
        let mut frames = vec![frame];
        let mut changed = false;
        for m in found {
            // Two flipped bits of one column cancel out in the checksum: one change of bytes is an accident, two are luck.
            let changes = !self.forger && matches!(m, Mishap::Flip(_) | Mishap::Byte(..));
            if !(changes && changed) {
                self.apply(&m, &mut frames);
            }
            changed |= changes;
        }
        frames.append(&mut due);
        frames.into_iter().filter(|f| !f.is_empty()).for_each(out);
    }

    fn apply(&mut self, m: &Mishap, frames: &mut Vec<Vec<u8>>) {
        let Some(last) = frames.last_mut() else { return };
        match *m {
            Mishap::Lose => drop(frames.pop()),
            Mishap::Double => {
                let copy = last.clone();
                frames.push(copy);
            }
            Mishap::Delay(by) => {
                let frame = frames.pop().unwrap_or_default();
                self.held.push((self.n + usize::from(by), frame));
            }
            Mishap::Flip(bit) => {
                let bit = usize::from(bit) % (last.len() * 8).max(1);
                if let Some(b) = last.get_mut(bit / 8) {
                    *b ^= 1 << (bit % 8);
                }
                self.sum(last);
            }
            Mishap::Cut(to) => {
                last.truncate(usize::from(to) % last.len().max(1));
                self.sum(last);
            }
            Mishap::Pad(by) => last.extend(std::iter::repeat_n(0xee, usize::from(by))),
            Mishap::Overwrite(at, v) => {
                let undo = last.clone();
                put(last, at.into(), &v.to_be_bytes());
                self.sum(last);
                self.only_if_forger(last, undo);
            }
            Mishap::Byte(at, v) => {
                put(last, at.into(), &[v]);
                self.sum(last);
            }
            Mishap::Evil(at, v) => {
                let mut evil = last.clone();
                put(&mut evil, at.into(), &v.to_be_bytes());
                self.sum(&mut evil);
                if self.forger {
                    let at = frames.len() - 1;
                    frames.insert(at, evil);
                }
            }
            Mishap::Noise(len, seed) => {
                let mut rng = Rng::new(seed);
                let mut noise: Vec<u8> = (0..len).map(|_| rng.next_u64() as u8).collect();
                put(&mut noise, 0, &[if seed % 2 == 0 { 0x45 } else { 0x60 }]);
                self.sum(&mut noise);
                frames.push(noise);
            }
        }
    }

    /// Several changed bytes may leave the checksum as it was, once in 65,536: then an accident is no accident.
    fn only_if_forger(&self, frame: &mut Vec<u8>, undo: Vec<u8>) {
        if !self.forger {
            *frame = undo;
        }
    }

    fn sum(&self, frame: &mut [u8]) {
        if self.forger {
            fix_sums(frame);
        }
    }
}

fn conversation(plan: Vec<(u8, Mishap)>, forger: bool, v6: bool, ts: bool) {
    let mut duo = Duo::new(Setup::tcp(|t| t.timestamps = ts));
    let peer = if v6 { format!("[fd00::2]:{PORT}") } else { format!("10.0.0.2:{PORT}") };
    let id = duo.a.s.tcp_connect(peer.parse().unwrap(), None, &SockOpts::default()).unwrap();
    let texts = [stream(1, 20_000), stream(2, 12_000)];
    let mut apps = [App::new(Some(id), texts[0].clone()), App::new(None, texts[1].clone())];
    let mut carrier = Carrier { plan, forger, n: 0, held: Vec::new() };
    let mut closed = false;
    for _ in 0..300 {
        duo.exchange(&mut apps, &mut |f, out| carrier.carry(f, out));
        let done = apps[0].got.len() >= 12_000 && apps[1].got.len() >= 20_000;
        if done && !closed {
            closed = true;
            duo.a.s.close(id).ok();
            if let Some(id) = apps[1].id {
                duo.b.s.close(id).ok();
            }
            (apps[0].id, apps[1].id) = (None, None);
        }
        if closed && duo.a.s.tcp_counts().0 == 1 && duo.b.s.tcp_counts().0 == 1 {
            break;
        }
        duo.step();
    }
    if !forger {
        assert!(texts[0].starts_with(&apps[1].got) && texts[1].starts_with(&apps[0].got), "a stream was corrupted");
        assert!(closed, "accidents stopped long ago, and the streams are not through");
    }
    for lab in [&duo.a, &duo.b] {
        assert_eq!(lab.drops(DropReason::NotSpecified), 0);
    }
    // The end: everything is reset, and comes home.
    duo.a.s.reset_all();
    duo.b.s.reset_all();
    duo.exchange(&mut [App::new(None, Vec::new()), App::new(None, Vec::new())], &mut faithful);
    duo.a.finish();
    duo.b.finish();
}

fn plans() -> impl Strategy<Value = Vec<(u8, Mishap)>> {
    prop::collection::vec((1u8..60, mishap()), 0..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn accidents_never_corrupt_a_stream(plan in plans(), v6: bool, ts: bool) {
        conversation(plan, false, v6, ts);
    }

    #[test]
    fn forgery_is_survived(plan in plans(), v6: bool, ts: bool) {
        conversation(plan, true, v6, ts);
    }
}
