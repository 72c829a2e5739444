//! Two connections and a wire: whole lives, with loss.

use crate::config::TcpConfig;
use crate::conn::{Closing, RecvError};
use crate::state::State;
use crate::testing::{Pair, bytes};
use crate::tx::SendFlags;
use linerate_base::rng::Rng;
use std::boxed::Box;
use std::vec;

/// Sends `total` bytes from the client and closes; returns whether the server got all of them and both ends closed.
fn transfer(pair: &mut Pair, total: usize) -> bool {
    let mut written = 0;
    let mut closed = false;
    pair.drive(200_000, |p| {
        if p.client.conn.state() == State::Established && written < total {
            let n = (total - written).min(50_000);
            let data = bytes(written as u64, n);
            if let Ok(n) = p.client.conn.write(&mut p.client.w.cx(), &data, SendFlags::default()) {
                written += n;
            }
        }
        if written == total && !closed && p.client.conn.state() == State::Established {
            closed = true;
            p.client.conn.close(&mut p.client.w.cx());
        }
        let Some(s) = &mut p.server else { return false };
        s.read_all();
        let mut one = vec![0; 1];
        if s.conn.state() == State::CloseWait && s.read(&mut one) == Ok(0) {
            assert_eq!(s.conn.close(&mut s.w.cx()), Closing::Orphan);
        }
        closed && s.conn.state() == State::Closed
    });
    pair.server.as_ref().is_some_and(|s| s.read_pos == total as u64 && s.conn.state() == State::Closed)
}

#[test]
fn a_whole_life() {
    let mut pair = Pair::new(&TcpConfig::default());
    assert!(transfer(&mut pair, 300_000));
    assert_eq!(pair.client.conn.state(), State::TimeWait);
    let server = pair.server.as_ref().unwrap();
    assert_eq!(server.w.mib.ofo_queue, 0);
    assert!(server.w.mib.hp_hits > 0, "the predicted path was used");
    assert_eq!(server.conn.info(server.w.now).bytes_received, 300_000);
    pair.finish();
}

#[test]
fn a_whole_life_with_loss() {
    for seed in 0..8 {
        let mut pair = Pair::new(&TcpConfig::default());
        let mut rng = Rng::new(seed);
        pair.lose = Box::new(move |_, _, _| rng.chance(0.05));
        assert!(transfer(&mut pair, 200_000), "seed {seed}");
        pair.finish();
    }
}

#[test]
fn the_handshake_survives_the_loss_of_each_segment() {
    for lost in 1..=3 {
        let mut pair = Pair::new(&TcpConfig::default());
        pair.lose = Box::new(move |n, _, _| n == lost);
        assert!(transfer(&mut pair, 10_000), "segment {lost} lost");
        pair.finish();
    }
}

#[test]
fn nothing_to_read_would_block() {
    let mut pair = Pair::new(&TcpConfig::default());
    assert!(pair.drive(100, |p| p.client.conn.state() == State::Established));
    assert_eq!(pair.client.read(&mut [0; 8]), Err(RecvError::WouldBlock));
    pair.finish();
}
