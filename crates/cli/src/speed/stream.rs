//! Bulk data: writers and readers of one end.
//!
//! An end may hold both (`--bidir`). A writer hands over one `-l` chunk per step and socket, so that the bytes it has
//! just copied are still in the cache when the stack sends them; a reader takes everything that has arrived.
//!
//! A stream is endless bytes, or a file once with a SHA-256 at both ends. With `--touch read` every byte is read once
//! after the copy, with `--touch verify` it is compared with what the pattern says for its offset: a wrong byte fails the
//! run. Bytes are counted when a verb has taken or given them, not when they cross the wire.

use std::fs::File;
use std::io::Read as _;
use std::sync::Arc;

use linerate_base::Instant;
use linerate_stack::{RecvError, SendError, Shard, SockId};
use sha2::{Digest, Sha256};

use super::app::{App, Counters, Pattern, touch_bytes};
use super::args::{RxMode, Touch};

/// Where a writer's bytes come from.
pub(crate) enum Source {
    /// The same `-l` bytes again and again.
    Same(Vec<u8>),
    /// A stream that the reader can verify.
    Pattern(Arc<Pattern>),
    /// A file, once.
    File(File),
}

struct Writer {
    sock: SockId,
    offset: u64,
}

struct Reader {
    sock: SockId,
    offset: u64,
    open: bool,
}

/// One end of bulk flows.
pub(crate) struct Stream {
    writers: Vec<Writer>,
    readers: Vec<Reader>,
    source: Option<Source>,
    len: usize,
    /// Bytes of a file chunk read but not yet accepted by the stack: `pending[start..end]`.
    pending: Vec<u8>,
    pending_range: std::ops::Range<usize>,
    buf: Vec<u8>,
    touch: Touch,
    rx: RxMode,
    pattern: Option<Arc<Pattern>>,
    hash: Option<Sha256>,
    counters: Arc<Counters>,
}

impl Stream {
    pub(crate) fn new(len: usize, touch: Touch, rx: RxMode, pattern: Option<Arc<Pattern>>) -> Self {
        Self {
            writers: Vec::new(),
            readers: Vec::new(),
            source: None,
            len,
            pending: Vec::new(),
            pending_range: 0..0,
            buf: vec![0; len],
            touch,
            rx,
            pattern,
            hash: None,
            counters: Arc::default(),
        }
    }
    pub(crate) fn add_writer(&mut self, sock: SockId) {
        self.writers.push(Writer { sock, offset: 0 });
    }
    pub(crate) fn add_reader(&mut self, sock: SockId) {
        self.readers.push(Reader { sock, offset: 0, open: true });
    }
    pub(crate) fn set_source(&mut self, source: Source) {
        self.source = Some(source);
    }
    /// Digest everything that is sent or received.
    pub(crate) fn hash(&mut self) {
        self.hash = Some(Sha256::new());
    }

    fn write_all_sockets(&mut self, shard: &mut Shard) -> Result<bool, String> {
        let mut progress = false;
        for at in 0..self.writers.len() {
            progress |= self.write_one(at, shard)?;
        }
        Ok(progress)
    }

    fn write_one(&mut self, at: usize, shard: &mut Shard) -> Result<bool, String> {
        if let Some(Source::File(_)) = self.source {
            return self.write_file(at, shard);
        }
        let writer = &mut self.writers[at];
        let chunk: &[u8] = match &self.source {
            Some(Source::Same(bytes)) => bytes,
            Some(Source::Pattern(pattern)) => pattern.at(writer.offset, self.len),
            _ => return Ok(false),
        };
        match shard.write(writer.sock, chunk) {
            Ok(wrote) => {
                writer.offset += wrote as u64;
                Counters::add(&self.counters.written, wrote as u64);
                Ok(wrote > 0)
            }
            Err(SendError::WouldBlock) => Ok(false),
            Err(error) => Err(format!("write: {error}")),
        }
    }

    fn write_file(&mut self, at: usize, shard: &mut Shard) -> Result<bool, String> {
        let Some(Source::File(file)) = &mut self.source else { return Ok(false) };
        if self.pending_range.is_empty() {
            self.pending.resize(self.len, 0);
            let got = file.read(&mut self.pending).map_err(|e| format!("reading the file: {e}"))?;
            if got == 0 {
                let sock = self.writers[at].sock;
                self.source = None;
                shard.shutdown(sock, linerate_stack::How::Wr).map_err(|e| format!("shutdown: {e}"))?;
                return Ok(true);
            }
            if let Some(hash) = &mut self.hash {
                hash.update(&self.pending[..got]);
            }
            self.pending_range = 0..got;
        }
        match shard.write(self.writers[at].sock, &self.pending[self.pending_range.clone()]) {
            Ok(wrote) => {
                self.pending_range.start += wrote;
                Counters::add(&self.counters.written, wrote as u64);
                Ok(wrote > 0)
            }
            Err(SendError::WouldBlock) => Ok(false),
            Err(error) => Err(format!("write: {error}")),
        }
    }

    fn read_one(&mut self, at: usize, shard: &mut Shard) -> Result<bool, String> {
        let reader = &mut self.readers[at];
        let mut progress = false;
        while reader.open {
            let result = match self.rx {
                RxMode::Copy => shard.read(reader.sock, &mut self.buf),
                RxMode::Trunc => shard.read_discard(reader.sock, self.len),
            };
            match result {
                Ok(0) => {
                    reader.open = false;
                    Counters::add(&self.counters.finished, 1);
                    progress = true;
                }
                Ok(got) => {
                    if self.rx == RxMode::Copy {
                        examine(&self.buf[..got], reader.offset, self.touch, self.pattern.as_deref(), &self.counters);
                        if let Some(hash) = &mut self.hash {
                            hash.update(&self.buf[..got]);
                        }
                    }
                    reader.offset += got as u64;
                    Counters::add(&self.counters.read, got as u64);
                    progress = true;
                    if got < self.len {
                        break;
                    }
                }
                Err(RecvError::WouldBlock) => break,
                Err(error) => return Err(format!("read: {error}")),
            }
        }
        Ok(progress)
    }
}

fn examine(bytes: &[u8], offset: u64, touch: Touch, pattern: Option<&Pattern>, counters: &Counters) {
    match (touch, pattern) {
        (Touch::Read, _) => {
            touch_bytes(bytes);
        }
        (Touch::Verify, Some(pattern)) if pattern.at(offset, bytes.len()) != bytes => {
            let expected = pattern.at(offset, bytes.len());
            let wrong = bytes.iter().zip(expected).filter(|(a, b)| a != b).count();
            Counters::add(&counters.corrupted, wrong as u64);
        }
        _ => {}
    }
}

impl App for Stream {
    fn step(&mut self, shard: &mut Shard, _now: Instant) -> Result<bool, String> {
        let mut progress = self.write_all_sockets(shard)?;
        for at in 0..self.readers.len() {
            progress |= self.read_one(at, shard)?;
        }
        Ok(progress)
    }
    fn counters(&self) -> &Arc<Counters> {
        &self.counters
    }
    fn first_socket(&self) -> Option<SockId> {
        self.writers.first().map(|w| w.sock)
    }
    fn digest(&mut self) -> Option<String> {
        let digest = self.hash.take()?.finalize();
        Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}
