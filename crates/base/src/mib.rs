//! Counters of the management information base, under the names that `nstat` prints.
//!
//! Theory: one table per protocol declares field, name and meaning; the struct, its iteration, its merging over shards and
//! the help text of `linerate nstat` come from it. Names and meanings are Linux's (`/proc/net/snmp`, `/proc/net/netstat`),
//! so that a reader of one can read the other; a counter that Linux does not have is not declared here.
//!
//! A shard owns its counters and adds to them without atomics. A reader takes a copy per shard and merges the copies. All
//! values only grow, except `TcpCurrEstab`, which is a level; merging adds it up, which is right for both.
//!
//! Units: `*Segs` and `*Octets` count what their names say; a super-packet of 45 segments counts 45 in `TcpInSegs` and
//! `TcpOutSegs`, as in Linux.

/// Declares a struct of `u64` counters: rows of documentation, field and `nstat` name.
#[macro_export]
macro_rules! counters {
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident { $( #[doc = $doc:literal] $field:ident = $text:literal, )+ }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Default, PartialEq, Eq, Debug)]
        $vis struct $name { $( #[doc = $doc] $vis $field: u64, )+ }

        #[allow(dead_code)]
        impl $name {
            /// Names and meanings, in the order of [`Self::iter`].
            $vis const TABLE: &'static [(&'static str, &'static str)] = &[ $( ($text, $doc), )+ ];

            /// All counters as (`nstat` name, value).
            $vis fn iter(&self) -> impl Iterator<Item = (&'static str, u64)> + use<> {
                [ $( ($text, self.$field), )+ ].into_iter()
            }

            /// The counter of that `nstat` name.
            $vis fn get(&self, name: &str) -> Option<u64> {
                match name { $( $text => Some(self.$field), )+ _ => None }
            }

            /// Adds the counts of `other`.
            $vis fn merge(&mut self, other: &Self) {
                $( self.$field = self.$field.wrapping_add(other.$field); )+
            }
        }
    };
}

counters! {
    /// TCP counters: `Tcp` of `/proc/net/snmp` and `TcpExt` of `/proc/net/netstat`.
    pub struct TcpMib {
        /// Connections opened by us.
        active_opens = "TcpActiveOpens",
        /// Connections opened by a peer.
        passive_opens = "TcpPassiveOpens",
        /// Handshakes that failed.
        attempt_fails = "TcpAttemptFails",
        /// Connections reset from ESTABLISHED or CLOSE-WAIT.
        estab_resets = "TcpEstabResets",
        /// Connections in ESTABLISHED or CLOSE-WAIT now: a level.
        curr_estab = "TcpCurrEstab",
        /// Segments received, the bad ones included.
        in_segs = "TcpInSegs",
        /// Segments sent, without retransmissions.
        out_segs = "TcpOutSegs",
        /// Segments retransmitted.
        retrans_segs = "TcpRetransSegs",
        /// Segments received in error.
        in_errs = "TcpInErrs",
        /// Segments sent with RST.
        out_rsts = "TcpOutRsts",
        /// Segments received with a wrong checksum.
        in_csum_errors = "TcpInCsumErrors",
        /// SYN cookies sent.
        syncookies_sent = "TcpExtSyncookiesSent",
        /// SYN cookies that came back good.
        syncookies_recv = "TcpExtSyncookiesRecv",
        /// SYN cookies that came back bad.
        syncookies_failed = "TcpExtSyncookiesFailed",
        /// Half-open connections that a RST ended.
        embryonic_rsts = "TcpExtEmbryonicRsts",
        /// Segments dropped from the receive queue for want of memory.
        prune_called = "TcpExtPruneCalled",
        /// Segments of the receive queue dropped for want of memory.
        rcv_pruned = "TcpExtRcvPruned",
        /// Segments of the out-of-order queue dropped for want of memory.
        ofo_pruned = "TcpExtOfoPruned",
        /// ICMP messages for a sequence number outside of the window.
        out_of_window_icmps = "TcpExtOutOfWindowIcmps",
        /// TIME-WAIT states that ran out by the timer.
        tw = "TcpExtTW",
        /// TIME-WAIT states reused for a new connection.
        tw_recycled = "TcpExtTWRecycled",
        /// Connections in SYN-SENT whose answer PAWS refused.
        paws_active = "TcpExtPAWSActive",
        /// Segments of open connections that PAWS refused.
        paws_estab = "TcpExtPAWSEstab",
        /// Old acknowledgements that PAWS refused.
        paws_old_ack = "TcpExtPAWSOldAck",
        /// Delayed acknowledgements sent.
        delayed_acks = "TcpExtDelayedACKs",
        /// Delayed acknowledgements put off because the application held the connection.
        delayed_ack_locked = "TcpExtDelayedACKLocked",
        /// Delayed acknowledgements that came too late: the peer sent the segment again.
        delayed_ack_lost = "TcpExtDelayedACKLost",
        /// Connections refused because the accept queue was full.
        listen_overflows = "TcpExtListenOverflows",
        /// SYNs and final ACKs that a listener dropped.
        listen_drops = "TcpExtListenDrops",
        /// Segments taken by header prediction.
        hp_hits = "TcpExtTCPHPHits",
        /// Acknowledgements without data that were not predicted.
        pure_acks = "TcpExtTCPPureAcks",
        /// Acknowledgements taken by header prediction.
        hp_acks = "TcpExtTCPHPAcks",
        /// Recoveries begun on duplicate acknowledgements without SACK.
        reno_recovery = "TcpExtTCPRenoRecovery",
        /// Recoveries begun with SACK.
        sack_recovery = "TcpExtTCPSackRecovery",
        /// Peers that dropped data which they had acknowledged by SACK.
        sack_reneging = "TcpExtTCPSACKReneging",
        /// Reordering noticed by SACK.
        sack_reorder = "TcpExtTCPSACKReorder",
        /// Reordering noticed without SACK.
        reno_reorder = "TcpExtTCPRenoReorder",
        /// Reordering noticed by timestamps.
        ts_reorder = "TcpExtTCPTSReorder",
        /// Recoveries undone wholly: no segment was lost.
        full_undo = "TcpExtTCPFullUndo",
        /// Recoveries undone in part.
        partial_undo = "TcpExtTCPPartialUndo",
        /// Recoveries undone because D-SACK answered every retransmission.
        dsack_undo = "TcpExtTCPDSACKUndo",
        /// Timeouts undone on the first partial acknowledgement.
        loss_undo = "TcpExtTCPLossUndo",
        /// Retransmissions that were lost themselves.
        lost_retransmit = "TcpExtTCPLostRetransmit",
        /// Timeouts during recovery without SACK.
        reno_failures = "TcpExtTCPRenoFailures",
        /// Timeouts during recovery with SACK.
        sack_failures = "TcpExtTCPSackFailures",
        /// Timeouts in the Loss state.
        loss_failures = "TcpExtTCPLossFailures",
        /// Fast retransmissions.
        fast_retrans = "TcpExtTCPFastRetrans",
        /// Retransmissions in slow start after a timeout.
        slow_start_retrans = "TcpExtTCPSlowStartRetrans",
        /// Retransmission timeouts.
        timeouts = "TcpExtTCPTimeouts",
        /// Tail loss probes sent.
        loss_probes = "TcpExtTCPLossProbes",
        /// Losses that a tail loss probe repaired.
        loss_probe_recovery = "TcpExtTCPLossProbeRecovery",
        /// Timeouts that F-RTO found to be spurious.
        spurious_rtos = "TcpExtTCPSpuriousRTOs",
        /// D-SACKs sent for old segments.
        dsack_old_sent = "TcpExtTCPDSACKOldSent",
        /// D-SACKs sent for segments above a hole.
        dsack_ofo_sent = "TcpExtTCPDSACKOfoSent",
        /// D-SACKs received for data below the acknowledgement.
        dsack_recv = "TcpExtTCPDSACKRecv",
        /// D-SACKs received for data above the acknowledgement.
        dsack_ofo_recv = "TcpExtTCPDSACKOfoRecv",
        /// D-SACKs ignored: of data before the last undo marker.
        dsack_ignored_old = "TcpExtTCPDSACKIgnoredOld",
        /// D-SACKs ignored: without an undo marker.
        dsack_ignored_no_undo = "TcpExtTCPDSACKIgnoredNoUndo",
        /// Segments that a D-SACK reported as received twice.
        dsack_recv_segs = "TcpExtTCPDSACKRecvSegs",
        /// SACK blocks thrown away as senseless.
        sack_discard = "TcpExtTCPSACKDiscard",
        /// Fragments of skbs shifted between neighbours while marking SACKs.
        sack_shifted = "TcpExtTCPSackShifted",
        /// Skbs merged while marking SACKs.
        sack_merged = "TcpExtTCPSackMerged",
        /// Duplicate acknowledgements of which no skb could be merged.
        sack_shift_fallback = "TcpExtTCPSackShiftFallback",
        /// Connections aborted because data came for a closed socket.
        abort_on_data = "TcpExtTCPAbortOnData",
        /// Connections aborted because unread data was left at close.
        abort_on_close = "TcpExtTCPAbortOnClose",
        /// Connections aborted for want of memory.
        abort_on_memory = "TcpExtTCPAbortOnMemory",
        /// Connections aborted by a timeout.
        abort_on_timeout = "TcpExtTCPAbortOnTimeout",
        /// Connections aborted when the linger time was over.
        abort_on_linger = "TcpExtTCPAbortOnLinger",
        /// Aborts for which no RST could be sent.
        abort_failed = "TcpExtTCPAbortFailed",
        /// Times that memory pressure began.
        memory_pressures = "TcpExtTCPMemoryPressures",
        /// Time under memory pressure, milliseconds.
        memory_pressures_chrono = "TcpExtTCPMemoryPressuresChrono",
        /// Skbs collapsed in the receive queue for want of memory.
        rcv_collapsed = "TcpExtTCPRcvCollapsed",
        /// Skbs merged into their predecessor in the receive queue.
        rcv_coalesce = "TcpExtTCPRcvCoalesce",
        /// Skbs merged into their predecessor in the backlog.
        backlog_coalesce = "TcpExtTCPBacklogCoalesce",
        /// Skbs dropped because the backlog was full.
        backlog_drop = "TcpExtTCPBacklogDrop",
        /// Skbs dropped because the receive queue was full.
        rcvq_drop = "TcpExtTCPRcvQDrop",
        /// Skbs queued out of order.
        ofo_queue = "TcpExtTCPOFOQueue",
        /// Skbs not queued out of order because the buffer was full.
        ofo_drop = "TcpExtTCPOFODrop",
        /// Skbs out of order that others covered.
        ofo_merge = "TcpExtTCPOFOMerge",
        /// Challenge acknowledgements sent (RFC 5961).
        challenge_ack = "TcpExtTCPChallengeACK",
        /// Challenge acknowledgements sent for a SYN (RFC 5961).
        syn_challenge = "TcpExtTCPSYNChallenge",
        /// Acknowledgements to bad segments withheld in SYN-RECEIVED.
        ack_skipped_syn_recv = "TcpExtTCPACKSkippedSynRecv",
        /// Acknowledgements withheld after PAWS.
        ack_skipped_paws = "TcpExtTCPACKSkippedPAWS",
        /// Acknowledgements withheld for a bad sequence number.
        ack_skipped_seq = "TcpExtTCPACKSkippedSeq",
        /// Acknowledgements withheld in FIN-WAIT-2.
        ack_skipped_fin_wait2 = "TcpExtTCPACKSkippedFinWait2",
        /// Acknowledgements withheld in TIME-WAIT.
        ack_skipped_time_wait = "TcpExtTCPACKSkippedTimeWait",
        /// Challenge acknowledgements withheld.
        ack_skipped_challenge = "TcpExtTCPACKSkippedChallenge",
        /// TIME-WAIT states not kept because there were too many.
        time_wait_overflow = "TcpExtTCPTimeWaitOverflow",
        /// SYNs dropped because the request queue was full.
        reqq_full_drop = "TcpExtTCPReqQFullDrop",
        /// SYNs answered with a cookie because the request queue was full.
        reqq_full_do_cookies = "TcpExtTCPReqQFullDoCookies",
        /// Retransmissions of which the first copy had not even left.
        spurious_rtx_host_queues = "TcpExtTCPSpuriousRtxHostQueues",
        /// Retransmissions that failed below TCP.
        retrans_fail = "TcpExtTCPRetransFail",
        /// SYNs and SYN-ACKs retransmitted.
        syn_retrans = "TcpExtTCPSynRetrans",
        /// Segments sent for the first time, with data.
        orig_data_sent = "TcpExtTCPOrigDataSent",
        /// Segments delivered to the peer.
        delivered = "TcpExtTCPDelivered",
        /// Segments delivered to the peer with a CE mark.
        delivered_ce = "TcpExtTCPDeliveredCE",
        /// Acknowledgements saved by compression of SACKs.
        ack_compressed = "TcpExtTCPAckCompressed",
        /// Times that small writes were held back to join.
        auto_corking = "TcpExtTCPAutoCorking",
        /// Times that our window shrank to zero.
        to_zero_window_adv = "TcpExtTCPToZeroWindowAdv",
        /// Times that our window opened from zero.
        from_zero_window_adv = "TcpExtTCPFromZeroWindowAdv",
        /// Times that our window wanted to shrink to zero and may not.
        want_zero_window_adv = "TcpExtTCPWantZeroWindowAdv",
        /// Segments dropped because our window was zero.
        zero_window_drop = "TcpExtTCPZeroWindowDrop",
        /// Segments dropped because their TTL or hop limit was below the socket's least.
        min_ttl_drop = "TcpExtTCPMinTTLDrop",
        /// Zero-window probes sent.
        win_probe = "TcpExtTCPWinProbe",
        /// Keepalive probes sent.
        keep_alive = "TcpExtTCPKeepAlive",
        /// Segments that arrived with an MTU too large to pass before, and smaller ones did.
        mtup_fail = "TcpExtTCPMTUPFail",
        /// MTU probes that succeeded.
        mtup_success = "TcpExtTCPMTUPSuccess",
        /// Slow starts that HyStart ended by the length of an ACK train.
        hystart_train_detect = "TcpExtTCPHystartTrainDetect",
        /// Sum of cwnd where trains ended slow start, segments.
        hystart_train_cwnd = "TcpExtTCPHystartTrainCwnd",
        /// Slow starts that HyStart ended by growing delay.
        hystart_delay_detect = "TcpExtTCPHystartDelayDetect",
        /// Sum of cwnd where delay ended slow start, segments.
        hystart_delay_cwnd = "TcpExtTCPHystartDelayCwnd",
        /// Fast Open: SYNs with data that the peer took.
        fast_open_active = "TcpExtTCPFastOpenActive",
        /// Fast Open: SYNs with data that the peer did not take.
        fast_open_active_fail = "TcpExtTCPFastOpenActiveFail",
        /// Fast Open: connections accepted with data.
        fast_open_passive = "TcpExtTCPFastOpenPassive",
        /// Fast Open: cookies that were wrong.
        fast_open_passive_fail = "TcpExtTCPFastOpenPassiveFail",
        /// Fast Open: requests for a cookie.
        fast_open_cookie_reqd = "TcpExtTCPFastOpenCookieReqd",
        /// Path rehashes on a timeout.
        timeout_rehash = "TcpExtTcpTimeoutRehash",
        /// Path rehashes on duplicate data received.
        duplicate_data_rehash = "TcpExtTcpDuplicateDataRehash",
    }
}

counters! {
    /// IP counters, IPv4 and IPv6 each: `Ip` of `/proc/net/snmp`, `IpExt` of `/proc/net/netstat`.
    pub struct IpMib {
        /// Packets received.
        in_receives = "IpInReceives",
        /// Packets with a bad header.
        in_hdr_errors = "IpInHdrErrors",
        /// Packets for an address that is not ours.
        in_addr_errors = "IpInAddrErrors",
        /// Packets of an unknown transport protocol.
        in_unknown_protos = "IpInUnknownProtos",
        /// Packets discarded for want of resources.
        in_discards = "IpInDiscards",
        /// Packets handed to a transport protocol.
        in_delivers = "IpInDelivers",
        /// Packets that our transports asked to send.
        out_requests = "IpOutRequests",
        /// Packets discarded on the way out for want of resources.
        out_discards = "IpOutDiscards",
        /// Packets without a route.
        out_no_routes = "IpOutNoRoutes",
        /// Packets handed to a device.
        out_transmits = "IpOutTransmits",
        /// Fragments received to be put together.
        reasm_reqds = "IpReasmReqds",
        /// Fragments that could not be put together.
        reasm_fails = "IpReasmFails",
        /// Packets put together from fragments.
        reasm_oks = "IpReasmOKs",
        /// Packets given up because their fragments did not come in time.
        reasm_timeout = "IpReasmTimeout",
        /// Packets cut to fragments.
        frag_oks = "IpFragOKs",
        /// Fragments made.
        frag_creates = "IpFragCreates",
        /// Packets that could not be cut.
        frag_fails = "IpFragFails",
        /// Packets that no route wanted on the way in.
        in_no_routes = "IpExtInNoRoutes",
        /// Fragments that overlapped others of their packet.
        reasm_overlaps = "IpExtReasmOverlaps",
        /// Packets shorter than their header says.
        in_truncated_pkts = "IpExtInTruncatedPkts",
        /// Multicast packets received.
        in_mcast_pkts = "IpExtInMcastPkts",
        /// Broadcast packets received.
        in_bcast_pkts = "IpExtInBcastPkts",
        /// Bytes received.
        in_octets = "IpExtInOctets",
        /// Bytes sent.
        out_octets = "IpExtOutOctets",
        /// Packets with a wrong checksum.
        in_csum_errors = "IpExtInCsumErrors",
        /// Packets received as not ECN-capable.
        in_no_ect_pkts = "IpExtInNoECTPkts",
        /// Packets received with ECT(1).
        in_ect1_pkts = "IpExtInECT1Pkts",
        /// Packets received with ECT(0).
        in_ect0_pkts = "IpExtInECT0Pkts",
        /// Packets received with congestion experienced.
        in_ce_pkts = "IpExtInCEPkts",
    }
}

counters! {
    /// ICMP counters: `Icmp` of `/proc/net/snmp`.
    pub struct IcmpMib {
        /// Messages received.
        in_msgs = "IcmpInMsgs",
        /// Messages received in error.
        in_errors = "IcmpInErrors",
        /// Messages with a wrong checksum.
        in_csum_errors = "IcmpInCsumErrors",
        /// Destination unreachable, received.
        in_dest_unreachs = "IcmpInDestUnreachs",
        /// Time exceeded, received.
        in_time_excds = "IcmpInTimeExcds",
        /// Parameter problem, received.
        in_parm_probs = "IcmpInParmProbs",
        /// Redirect, received.
        in_redirects = "IcmpInRedirects",
        /// Echo requests received.
        in_echos = "IcmpInEchos",
        /// Echo replies received.
        in_echo_reps = "IcmpInEchoReps",
        /// Messages sent.
        out_msgs = "IcmpOutMsgs",
        /// Messages not sent because of an error.
        out_errors = "IcmpOutErrors",
        /// Messages withheld by the limit of all replies.
        out_rate_limit_global = "IcmpOutRateLimitGlobal",
        /// Messages withheld by the limit of replies to one host.
        out_rate_limit_host = "IcmpOutRateLimitHost",
        /// Destination unreachable, sent.
        out_dest_unreachs = "IcmpOutDestUnreachs",
        /// Time exceeded, sent.
        out_time_excds = "IcmpOutTimeExcds",
        /// Echo requests sent.
        out_echos = "IcmpOutEchos",
        /// Echo replies sent.
        out_echo_reps = "IcmpOutEchoReps",
    }
}

counters! {
    /// UDP counters: `Udp` of `/proc/net/snmp`.
    pub struct UdpMib {
        /// Datagrams delivered to sockets.
        in_datagrams = "UdpInDatagrams",
        /// Datagrams for a port without a socket.
        no_ports = "UdpNoPorts",
        /// Datagrams received in error.
        in_errors = "UdpInErrors",
        /// Datagrams sent.
        out_datagrams = "UdpOutDatagrams",
        /// Datagrams dropped because the receive buffer was full.
        rcvbuf_errors = "UdpRcvbufErrors",
        /// Datagrams not sent because the send buffer was full.
        sndbuf_errors = "UdpSndbufErrors",
        /// Datagrams with a wrong checksum.
        in_csum_errors = "UdpInCsumErrors",
        /// Multicast datagrams that no socket ignored knowingly.
        ignored_multi = "UdpIgnoredMulti",
        /// Datagrams dropped for want of memory.
        mem_errors = "UdpMemErrors",
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn well_formed(table: &[(&str, &str)], prefixes: &[&str]) {
        let names: BTreeSet<_> = table.iter().map(|r| r.0).collect();
        assert_eq!(names.len(), table.len(), "a name occurs twice");
        for (name, doc) in table {
            assert!(prefixes.iter().any(|p| name.starts_with(p)), "{name}");
            assert!(name.chars().all(|c| c.is_ascii_alphanumeric()) && doc.trim_end().ends_with('.'), "{name}: {doc}");
        }
    }

    #[test]
    fn tables_are_well_formed() {
        well_formed(TcpMib::TABLE, &["Tcp"]);
        well_formed(IpMib::TABLE, &["Ip"]);
        well_formed(IcmpMib::TABLE, &["Icmp"]);
        well_formed(UdpMib::TABLE, &["Udp"]);
    }

    #[test]
    fn iterates_gets_and_merges() {
        let mut a = TcpMib { retrans_segs: 3, timeouts: 1, ..TcpMib::default() };
        let b = TcpMib { retrans_segs: 4, ..TcpMib::default() };
        a.merge(&b);
        assert_eq!(a.get("TcpRetransSegs"), Some(7));
        assert_eq!((a.get("TcpExtTCPTimeouts"), a.get("TcpExtNoSuch")), (Some(1), None));
        assert_eq!(a.iter().map(|c| c.1).sum::<u64>(), 8);
        assert!(a.iter().map(|c| c.0).eq(TcpMib::TABLE.iter().map(|r| r.0)));
    }
}
