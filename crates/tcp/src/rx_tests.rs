//! Conversations with the receiver half: fabricated segments in, what is sent and delivered out.
//!
//! Numbers are relative to both ISNs, as in packetdrill scripts: the first byte of either stream is 1. Both ISNs lie just
//! below 2^32, so that every longer conversation crosses the wrap. Each test ends with `finish`, which demands that all
//! skbs, pages and charged bytes came home.

mod ack;
mod close;
mod handshake;
mod hostile;
mod minisocks;
mod ofo;
mod pair;
mod reading;
mod validate;
mod window;
