//! Memory and pages: who owns a byte, and when its page is used again.
//!
//! Payload lives in pages of pools. A fragment ([`Frag`](crate::Frag)) is a counted reference to a range of a page; moving
//! bytes through the stack moves fragments. Bytes are copied in two places only, each on the thread of the caller: `write`
//! copies into pages of *its own handle's* pool, `read` copies out of the pages that the packets arrived in.
//!
//! ```text
//!   writer's thread            stack                    far stack              reader's thread
//!   write: copy -> page ---Frag---> retransmit queue ---wire---> receive queue ---Frag---> read: copy
//!         ^                            (until acknowledged)                          (until read)
//!         +------------------- the page comes home when the last reference is dropped ----+
//! ```
//!
//! - **Over a by-reference wire** the reader at the far end holds the *writer's* pages. A reader that keeps fragments
//!   ([`try_read_frags`](crate::ReadHalf::try_read_frags)) keeps them from being used again; a writer whose pool is empty
//!   waits, and polls, until they come home.
//! - **Without any copy**: [`try_write_frag`](crate::WriteHalf::try_write_frag) and
//!   [`try_read_frags`](crate::ReadHalf::try_read_frags) move references both ways; a proxy that does so never touches payload.
//! - **Limits**: [`Builder::write_pool`](crate::Builder::write_pool) bounds each socket's pages, `SO_SNDBUF` and
//!   `SO_RCVBUF` ([`SockOpts`](crate::SockOpts)) bound its queues, `tcp_mem_bytes` bounds all of a stack, a
//!   named group ([`SockOpts::mem_group`](crate::SockOpts)) those of some sockets together. Pages are taken when first needed
//!   and kept for reuse; an idle socket that never wrote holds none.
//! - **Pages outlive their pool.** A pool that is dropped while pages are out is freed when the last one comes home.
//!
//! The working set decides speed: a few hundred KB that stay in the L2 cache beat megabytes that do not. Do not raise
//! buffers beyond the bandwidth-delay product.
