//! The other end: what `linerate ss` and its like speak with.
//!
//! [`Client::request`] sends one request and hands each line of its answer to the caller as it comes, until the server
//! says that it is done. It blocks; a server that says nothing for [`PATIENCE`] is an error, unless the request is a stream
//! ([`Client::stream`]), which may be silent for ever. Lines with keys that the caller does not know are its own to skip.
//!
//! Limits: an answer's line of at most [`MAX_ANSWER_BYTES`]: what listens at a path may be anything.

use std::fmt;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::Serialize;
use serde_json::{Map, Value};

use super::path::Running;
use super::proto::{About, Refusal, SCHEMA};

/// How long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(10);
/// Longest line of an answer.
const MAX_ANSWER_BYTES: u64 = 16 << 20;

/// Why there is no answer.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// The socket: nobody listens, not ours, broken.
    Io(PathBuf, io::Error),
    /// The server refused, and says why.
    Refused(Refusal),
    /// What came is not this language.
    Garbage(String),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(path, e) => {
                let advice = match e.kind() {
                    io::ErrorKind::NotFound => "; is the process running, with a control socket?",
                    io::ErrorKind::ConnectionRefused => "; the process that made it is gone",
                    io::ErrorKind::PermissionDenied => "; only the user who runs the process may ask it",
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => "; the process does not answer",
                    _ => "",
                };
                write!(f, "{}: {e}{advice}", path.display())
            }
            Self::Refused(refusal) => refusal.fmt(f),
            Self::Garbage(why) => write!(f, "what listens there speaks another language: {why}"),
        }
    }
}

impl std::error::Error for ControlError {}

/// See [`Client::stopper`]. For another thread than the one that reads the stream.
#[derive(Debug)]
pub struct Stopper(UnixStream);

impl Stopper {
    /// Asks the server to come to an end. No further request of this client can be sent.
    pub fn stop(&self) {
        // It fails when the server is gone, and then the stream ends, too.
        let _ = self.0.shutdown(std::net::Shutdown::Write);
    }
}

/// A connection to a [`Server`](super::Server).
#[derive(Debug)]
pub struct Client {
    path: PathBuf,
    stream: BufReader<UnixStream>,
}

impl Client {
    /// Connects to the socket at `path`.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub fn connect(path: &Path) -> Result<Self, ControlError> {
        let stream = UnixStream::connect(path).map_err(|e| ControlError::Io(path.to_owned(), e))?;
        Ok(Self { path: path.to_owned(), stream: BufReader::new(stream) })
    }

    /// Sends the request `cmd` with `fields` (an object, or nothing) and gives `each` line of the answer: its key and its
    /// value. Returns what `done` says.
    ///
    /// # Errors
    /// See [`ControlError`]; the first error of `each` ends it, too.
    pub fn request(
        &mut self,
        cmd: &str,
        fields: &impl Serialize,
        each: impl FnMut(&str, Value) -> Result<(), ControlError>,
    ) -> Result<Value, ControlError> {
        self.exchange(cmd, fields, Some(PATIENCE), each)
    }

    /// As [`Self::request`], for an answer that may pause for any time.
    ///
    /// # Errors
    /// As there.
    pub fn stream(
        &mut self,
        cmd: &str,
        fields: &impl Serialize,
        each: impl FnMut(&str, Value) -> Result<(), ControlError>,
    ) -> Result<Value, ControlError> {
        self.exchange(cmd, fields, None, each)
    }

    /// What ends a [stream](Self::stream) that has no end of its own: the server then says what it has left, and `done`.
    ///
    /// # Errors
    /// [`ControlError::Io`], for want of descriptors.
    pub fn stopper(&self) -> Result<Stopper, ControlError> {
        self.stream.get_ref().try_clone().map(Stopper).map_err(|e| self.io(e))
    }

    /// Who is there?
    ///
    /// # Errors
    /// See [`ControlError`].
    pub fn about(&mut self) -> Result<About, ControlError> {
        let mut about = None;
        self.request("about", &(), |key, value| {
            if key == "about" {
                about = Some(from_value(value)?);
            }
            Ok(())
        })?;
        about.ok_or_else(|| ControlError::Garbage("no `about` in the answer".into()))
    }

    fn exchange(
        &mut self,
        cmd: &str,
        fields: &impl Serialize,
        patience: Option<Duration>,
        mut each: impl FnMut(&str, Value) -> Result<(), ControlError>,
    ) -> Result<Value, ControlError> {
        let mut request = match serde_json::to_value(fields) {
            Ok(Value::Object(fields)) => fields,
            Ok(Value::Null) => Map::new(),
            _ => return Err(ControlError::Garbage("the fields of a request are an object".into())),
        };
        request.insert("schema".into(), SCHEMA.into());
        request.insert("cmd".into(), cmd.into());
        let line = Value::Object(request).to_string() + "\n";
        let sent = self.stream.get_ref().set_read_timeout(patience);
        // A server that refuses this client has answered before it was asked, and hung up: read on.
        let sent = sent.and_then(|()| match self.stream.get_mut().write_all(line.as_bytes()) {
            Err(e) if matches!(e.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => Ok(()),
            done => done,
        });
        sent.map_err(|e| self.io(e))?;
        loop {
            let (key, value) = self.line()?;
            match key.as_str() {
                "done" => return Ok(value),
                "error" => return Err(ControlError::Refused(from_value(value)?)),
                _ => each(&key, value)?,
            }
        }
    }

    /// The next line: an object with one key.
    fn line(&mut self) -> Result<(String, Value), ControlError> {
        let mut line = Vec::new();
        let read = (&mut self.stream).take(MAX_ANSWER_BYTES).read_until(b'\n', &mut line);
        read.map_err(|e| self.io(e))?;
        if line.pop() != Some(b'\n') {
            let cut = io::Error::new(io::ErrorKind::UnexpectedEof, "the connection ended in the middle of an answer");
            return Err(self.io(cut));
        }
        let value: Map<String, Value> =
            serde_json::from_slice(&line).map_err(|e| ControlError::Garbage(e.to_string()))?;
        value.into_iter().next().ok_or_else(|| ControlError::Garbage("an empty object".into()))
    }

    fn io(&self, e: io::Error) -> ControlError {
        ControlError::Io(self.path.clone(), e)
    }
}

/// A value as what it should be.
pub(super) fn from_value<T: serde::de::DeserializeOwned>(value: Value) -> Result<T, ControlError> {
    serde_json::from_value(value).map_err(|e| ControlError::Garbage(e.to_string()))
}

impl Running {
    /// Connects to it.
    ///
    /// # Errors
    /// [`ControlError::Io`].
    pub fn connect(&self) -> Result<Client, ControlError> {
        Client::connect(&self.path)
    }
}
