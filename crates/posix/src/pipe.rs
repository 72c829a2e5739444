//! Pipes: a bounded byte queue between two descriptors (pipe(7)).
//!
//! Capacity is Linux's default of 64 KiB. Both ends share the queue; an end that is closed leaves its mark there: a reader
//! without writers finds the end of the stream, a writer without readers EPIPE. A write of up to PIPE_BUF bytes is atomic.
//! Limits: no packet mode, no resizing (`F_SETPIPE_SZ`), no splice.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use linerate_base::Errno;

use crate::abi::{POLLERR, POLLHUP, POLLIN, POLLOUT, POLLRDNORM, POLLWRNORM};

/// Capacity in bytes.
const CAPACITY: usize = 65_536;
/// Writes up to this many bytes are not split.
const PIPE_BUF: usize = 4096;

#[derive(Default)]
struct Shared {
    bytes: VecDeque<u8>,
    readers: bool,
    writers: bool,
}

/// One end of a pipe.
pub(crate) struct PipeEnd {
    shared: Arc<Mutex<Shared>>,
    pub(crate) is_read: bool,
}

/// A new pipe: read end, write end.
pub(crate) fn pair() -> (PipeEnd, PipeEnd) {
    let shared = Arc::new(Mutex::new(Shared { bytes: VecDeque::new(), readers: true, writers: true }));
    (PipeEnd { shared: shared.clone(), is_read: true }, PipeEnd { shared, is_read: false })
}

impl PipeEnd {
    fn lock(&self) -> MutexGuard<'_, Shared> {
        // Both ends live on one thread; the lock only makes the owner `Send`.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }
    /// Reads up to `max` bytes; an empty vector is the end of the stream.
    pub(crate) fn read(&self, max: usize) -> Result<Vec<u8>, Errno> {
        let mut s = self.lock();
        if s.bytes.is_empty() {
            return if s.writers { Err(Errno::EAGAIN) } else { Ok(Vec::new()) };
        }
        let n = max.min(s.bytes.len());
        Ok(s.bytes.drain(..n).collect())
    }
    /// Writes what fits of `data`.
    pub(crate) fn write(&self, data: &[u8]) -> Result<usize, Errno> {
        let mut s = self.lock();
        if !s.readers {
            return Err(Errno::EPIPE);
        }
        let room = CAPACITY - s.bytes.len();
        if room == 0 || (data.len() <= PIPE_BUF && data.len() > room) {
            return Err(Errno::EAGAIN);
        }
        let part = data.get(..room).unwrap_or(data);
        s.bytes.extend(part);
        Ok(part.len())
    }
    /// Bytes queued.
    pub(crate) fn queued(&self) -> usize {
        self.lock().bytes.len()
    }
    /// What `poll` sees.
    pub(crate) fn mask(&self) -> u32 {
        let s = self.lock();
        let when = |on: bool, bits: u32| if on { bits } else { 0 };
        if self.is_read {
            when(!s.bytes.is_empty(), POLLIN | POLLRDNORM) | when(!s.writers, POLLHUP)
        } else {
            when(s.bytes.len() < CAPACITY, POLLOUT | POLLWRNORM) | when(!s.readers, POLLERR)
        }
    }
}

impl Drop for PipeEnd {
    fn drop(&mut self) {
        let mut s = self.lock();
        if self.is_read { s.readers = false } else { s.writers = false }
    }
}
