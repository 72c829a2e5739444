//! Why a packet died (SYSTEMS B08).
//!
//! Every packet ends consumed, transmitted, or dropped with one of these reasons. The table below is the only list:
//! the enum, the names, the descriptions and the counters are made from it. Names are the kernel's where the meaning is
//! the kernel's. `NotSpecified` is what a silently lost packet counts as, and every test fails when it is not zero.

use crate::reasons::reasons;

reasons! {
    /// Why a packet was dropped.
    enum DropReason;
    /// Dropped skbs, one counter per reason.
    counters DropCounters;

    /// Freed without a reason: a bug in the stack.
    NotSpecified = "NOT_SPECIFIED",
    /// No socket wanted the packet.
    NoSocket = "NO_SOCKET",
    /// Shorter than its header says.
    PktTooSmall = "PKT_TOO_SMALL",
    /// Longer than the device or the protocol allows.
    PktTooBig = "PKT_TOO_BIG",
    /// Neither IPv4 nor IPv6.
    UnhandledProto = "UNHANDLED_PROTO",
    /// The TCP checksum is wrong.
    TcpCsum = "TCP_CSUM",
    /// The UDP checksum is wrong.
    UdpCsum = "UDP_CSUM",
    /// The ICMP checksum is wrong.
    IcmpCsum = "ICMP_CSUM",
    /// The IPv4 header checksum is wrong.
    IpCsum = "IP_CSUM",
    /// The IP header contradicts itself (version, length, options).
    IpInHdr = "IP_INHDR",
    /// A fragment that contradicts its own header, or where its packet ends.
    IpFragment = "IP_FRAGMENT",
    /// A fragment of bytes that are here already.
    IpDupFrag = "DUP_FRAG",
    /// Fragments that overlap (RFC 5722).
    IpFragOverlap = "IP_FRAG_OVERLAP",
    /// Fragments whose ECN code points no honest path mixes (RFC 3168 section 5.3).
    IpFragEcn = "IP_FRAG_ECN",
    /// The memory for fragments is spent.
    IpFragMem = "IP_FRAG_MEM",
    /// The packet of these fragments was not complete in time.
    FragReasmTimeout = "FRAG_REASM_TIMEOUT",
    /// The destination is not ours and we do not forward.
    IpInAddrErrors = "IP_INADDRERRORS",
    /// No route leads to the destination.
    IpOutNoRoutes = "IP_OUTNOROUTES",
    /// The transport protocol is not spoken here.
    IpNoProto = "IP_NOPROTO",
    /// The source address can not be a sender (multicast, broadcast, unspecified).
    IpInvalidSource = "IP_INVALID_SOURCE",
    /// The TCP header contradicts itself.
    TcpHdr = "TCP_HDR",
    /// TCP flags that no state accepts.
    TcpFlags = "TCP_FLAGS",
    /// Sequence numbers wholly below the receive window: an old duplicate.
    TcpOldData = "TCP_OLD_DATA",
    /// Beyond the receive window.
    TcpOverwindow = "TCP_OVERWINDOW",
    /// Already in the out-of-order queue.
    TcpOfoMerge = "TCP_OFOMERGE",
    /// Older than the last timestamp (PAWS, RFC 7323).
    TcpRfc7323Paws = "TCP_RFC7323_PAWS",
    /// The sequence number is not acceptable (RFC 9293 section 3.10.7.4).
    TcpInvalidSequence = "TCP_INVALID_SEQUENCE",
    /// A RST outside of the exact next sequence number (RFC 5961).
    TcpInvalidRst = "TCP_INVALID_RST",
    /// A SYN in the window of an established connection (RFC 5961).
    TcpInvalidSyn = "TCP_INVALID_SYN",
    /// An acknowledgement below the acceptable range (RFC 5961).
    TcpTooOldAck = "TCP_TOO_OLD_ACK",
    /// An acknowledgement of data never sent.
    TcpAckUnsentData = "TCP_ACK_UNSENT_DATA",
    /// The connection was reset by this segment or is already closed.
    TcpReset = "TCP_RESET",
    /// Closed: data came after the application stopped reading for good.
    TcpAbortOnData = "TCP_ABORT_ON_DATA",
    /// The receive buffer is full.
    SocketRcvbuff = "SOCKET_RCVBUFF",
    /// The memory budget of the stack is spent.
    ProtoMem = "PROTO_MEM",
    /// Dropped from the out-of-order queue to make room.
    TcpOfoQueuePrune = "TCP_OFO_QUEUE_PRUNE",
    /// The accept queue or SYN queue of the listener is full.
    TcpListenOverflow = "TCP_LISTEN_OVERFLOW",
    /// The minisock (SYN-RECEIVED or TIME-WAIT) did not accept the segment.
    TcpMinisock = "TCP_MINISOCK",
    /// A zero window: the segment carried data that may not be accepted.
    TcpZeroWindow = "TCP_ZEROWINDOW",
    /// TTL or hop limit below the socket's least (IP_MINTTL, IPV6_MINHOPCOUNT).
    TcpMinTtl = "TCP_MINTTL",
    /// The ICMP message does not fit any rule.
    IcmpInvalid = "ICMP_INVALID",
    /// The rate limit of replies was reached.
    RateLimited = "RATE_LIMITED",
    /// The queue discipline is full.
    QdiscDrop = "QDISC_DROP",
    /// The transmit ring or device is full or down.
    FullRing = "FULL_RING",
    /// For another shard, whose ring was full.
    CpuBacklog = "CPU_BACKLOG",
    /// No page or descriptor was left in the pool.
    NoMem = "NOMEM",
    /// The device's header contradicts the packet, or the device can not send this and software could not prepare it.
    DevHdr = "DEV_HDR",
    /// GSO could not cut this packet.
    SkbGsoSeg = "SKB_GSO_SEG",
    /// The frame is for another station on the link.
    OtherHost = "OTHERHOST",
    /// No entry for the neighbour could be made: the table is full.
    NeighCreateFail = "NEIGH_CREATEFAIL",
    /// The neighbour does not answer.
    NeighFailed = "NEIGH_FAILED",
    /// Too much waits for the neighbour's hardware address.
    NeighQueueFull = "NEIGH_QUEUEFULL",
    /// A message of neighbour discovery that was forwarded, or contradicts itself.
    NdiscInvalid = "NDISC_INVALID",
    /// The wire lost it: injected by a fault plan.
    WireLoss = "WIRE_LOSS",
    /// The wire was over its queue limit.
    WireQueue = "WIRE_QUEUE",
    /// The stack or the device was shut down with packets in flight.
    Shutdown = "SHUTDOWN",
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_counters_add_up() {
        let names: BTreeSet<_> = DropReason::ALL.iter().map(|r| r.name()).collect();
        assert_eq!(names.len(), DropReason::ALL.len());
        assert!(DropReason::ALL.iter().enumerate().all(|(i, &r)| r as usize == i && !r.describe().is_empty()));
        let (mut a, mut b) = (DropCounters::default(), DropCounters::default());
        a.count(DropReason::TcpCsum);
        b.count(DropReason::TcpCsum);
        b.count(DropReason::Shutdown);
        a.merge(&b);
        assert!(a.iter().eq([(DropReason::TcpCsum, 2), (DropReason::Shutdown, 1)]));
        assert_eq!((a.total(), a.get(DropReason::NotSpecified)), (3, 0));
    }
}
