//! Ways to read: copying, peeking, taking references.

use crate::conn::RecvError;
use crate::testing::{Host, bytes};
use linerate_skb::Frag;
use linerate_wire::TcpFlags;
use std::vec::Vec;

#[test]
fn peeking_moves_nothing() {
    let mut host = Host::new();
    host.data(1, 3000).unwrap();
    host.data(3001, 1000).unwrap();
    let mut buf = [0; 3500];
    assert_eq!(host.conn.read(&mut host.w.cx(), &mut buf, true), Ok(3500));
    assert_eq!(&buf[..], bytes(0, 3500));
    assert_eq!(host.conn.inq_bytes(), 4000);
    assert_eq!(host.read_all(), 4000);
    host.finish();
}

/// References: the pages themselves, cut where the limit falls; bytes that travelled in the head are copied.
#[test]
fn references_are_handed_out_in_order() {
    let mut host = Host::new();
    let h = host.header(TcpFlags::ACK, 1, 1);
    let mut skb = host.w.skb(&h, &bytes(40, 2960), 0);
    assert!(skb.put_head_from(&bytes(0, 40)));
    host.conn.rcv(&mut host.w.cx(), Default::default(), &h, skb).map_err(|e| e.1).unwrap();
    host.data(3001, 10_000).unwrap();
    let mut got: Vec<Frag> = Vec::new();
    for max in [20, 1000, 5000, 100_000] {
        let n = host.conn.read_frags(&mut host.w.cx(), max, &mut |f| got.push(f)).unwrap();
        assert!(n > 0 && n <= max);
    }
    let flat: Vec<u8> = got.iter().flat_map(|f| f.as_slice().iter().copied()).collect();
    assert_eq!(flat, bytes(0, 13_000));
    assert_eq!(host.conn.read_frags(&mut host.w.cx(), 1, &mut |_| ()), Err(RecvError::WouldBlock));
    assert_eq!(host.conn.rx.rmem_alloc, 0);
    for f in got {
        host.w.pool.recycle(f);
    }
    host.finish();
}

/// A reader with a small buffer gets every byte, and memory goes home skb by skb.
#[test]
fn small_reads_of_large_skbs() {
    let mut host = Host::new();
    let h = host.header(TcpFlags::ACK, 1, 1);
    host.deliver(&h, &bytes(0, 40_000), 1448).unwrap();
    let mut buf = [0; 777];
    while host.conn.inq_bytes() > 0 {
        assert!(host.read(&mut buf).unwrap() > 0);
    }
    assert_eq!(host.read_pos, 40_000);
    assert_eq!(host.read(&mut buf), Err(RecvError::WouldBlock));
    host.finish();
}

/// Neighbours share one descriptor as long as their fragments fit.
#[test]
fn neighbours_are_coalesced_without_copying() {
    let mut host = Host::new();
    for i in 0..10 {
        host.data(1 + i * 1448, 1448).unwrap();
    }
    assert_eq!(host.conn.rx.queue.len(), 1);
    assert_eq!(host.conn.rx.rmem_alloc, 640 + 10 * 2048, "nine descriptors saved");
    assert_eq!(host.w.mib.rcv_coalesce, 9);
    assert_eq!(host.read_all(), 14_480);
    host.finish();
}
