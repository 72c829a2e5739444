//! ICMP errors about TCP segments: attempts that end, paths that shrink, forgeries that nobody believes.

use std::vec::Vec;

use linerate_base::Errno;
use linerate_tcp::SocketError;
use linerate_wire::IpRepr;
use linerate_wire::icmp::{Icmpv4Repr, unreach};

use super::{A, B, Net};

/// An ICMP error to a about its packet `about`, as it is on the wire.
fn error(code: u8, mtu: u16, about: &[u8]) -> Vec<u8> {
    let icmp = Icmpv4Repr::Unreachable { code, mtu, quoted: &about[..28] };
    let ip = IpRepr::new(B.parse().unwrap(), A.parse().unwrap(), 1, icmp.emit_len() as u32);
    let mut frame = std::vec![0; 20 + icmp.emit_len()];
    ip.emit(&mut frame[..20]);
    icmp.emit(&mut frame[20..]);
    frame
}

fn last_frame(net: &Net) -> Vec<u8> {
    net.wires[0].lock().unwrap().frames.back().cloned().expect("a frame on the wire")
}

#[test]
fn an_unreachable_host_ends_the_attempt() {
    let mut net = Net::new();
    let c = net.connect(80);
    net.a.turn(net.now, 64);
    let syn = last_frame(&net);
    net.wires[0].lock().unwrap().frames.clear();
    // Somebody who does not know our sequence number.
    let mut forged = syn.clone();
    forged[24..28].copy_from_slice(&[1, 2, 3, 4]);
    net.wires[1].lock().unwrap().frames.push_back(error(unreach::HOST, 0, &forged));
    net.a.turn(net.now, 64);
    assert_eq!((net.a.take_error(c), net.a.mibs().tcp.out_of_window_icmps), (None, 1));
    net.wires[1].lock().unwrap().frames.push_back(error(unreach::HOST, 0, &syn));
    net.a.turn(net.now, 64);
    assert_eq!(net.a.take_error(c), Some(SocketError::Icmp(Errno::EHOSTUNREACH)));
    net.a.close(c).unwrap();
    net.finish();
}

#[test]
fn a_smaller_path_mtu_is_learnt_by_connection_and_route() {
    let mut net = Net::new();
    let (c, s) = net.pair();
    assert_eq!(net.a.conn(c).unwrap().path().mtu_bytes, 1500);
    net.a.write(c, &[7; 5000]).unwrap();
    net.a.turn(net.now, 64);
    let about = last_frame(&net);
    net.wires[0].lock().unwrap().frames.clear();
    net.wires[1].lock().unwrap().frames.push_back(error(unreach::FRAG_NEEDED, 1000, &about));
    net.pass(3_000);
    assert_eq!(net.a.conn(c).unwrap().path().mtu_bytes, 1000);
    assert_eq!(net.b.read(s, &mut [0; 8000]), Ok(5000));
    let next = net.connect(81);
    assert_eq!(net.a.conn(next).unwrap().path().mtu_bytes, 1000, "the route remembers");
    for id in [c, next] {
        net.a.close(id).unwrap();
    }
    net.b.close(s).unwrap();
    net.finish();
}
