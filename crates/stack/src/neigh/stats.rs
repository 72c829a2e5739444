//! What the neighbour table counted, under names in the manner of `/proc/net/stat/arp_cache`.
//!
//! One set for both families and all devices of a shard. All values only grow. What died on the way (skbs) is counted by
//! drop reasons beside the others; here is what happened to entries and claims.

linerate_base::counters! {
    /// Counters of the neighbour table.
    pub struct NeighStats {
        /// Entries made.
        allocs = "NeighAllocs",
        /// Entries forgotten.
        destroys = "NeighDestroys",
        /// Resolutions that failed.
        res_failed = "NeighResFailed",
        /// Entries that were not made because the table was full.
        table_fulls = "NeighTableFulls",
        /// Searches of a full table.
        forced_gcs = "NeighForcedGcs",
        /// Claims that contradict what is known, or that nobody asked for, and were not believed.
        claims_refused = "NeighClaimsRefused",
        /// Claims of our own addresses by others.
        conflicts = "NeighConflicts",
        /// ARP messages received.
        arp_rcvd = "NeighArpRcvd",
        /// Messages of neighbour and router discovery received.
        ndisc_rcvd = "NeighNdiscRcvd",
        /// Messages of both that fit no rule.
        invalid = "NeighInvalid",
        /// Solicitations sent.
        solicits_sent = "NeighSolicitsSent",
        /// Answers sent.
        answers_sent = "NeighAnswersSent",
        /// Addresses that somebody else had already.
        dad_failures = "NeighDadFailures",
    }
}
