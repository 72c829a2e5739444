//! What a request becomes: a [`Command`], made by a row of [`VERBS`].
//!
//! A command lives on the server's thread. [`Command::advance`] is called at its start, whenever the bell rang, and whenever
//! its client made room; it does what can be done without waiting and says how it stands. It never blocks: what it
//! wants from a shard it asks for by [`Cx::ask`] and finds later in the [`Answer`]. A command whose client is gone is
//! dropped, and must then undo by `Drop` what it set up in shards (it can keep [`Cx::doors`] for that).
//!
//! ```text
//!   advance ─▶ ask ─▶ Wait ··· bell ··· advance ─▶ Answer: emit, has_room? ask ─▶ Wait ··· bell or room ··· ─▶ Done
//! ```
//! Invariants: after [`Step::Done`] or a refusal `advance` is not called again. A command that emits without looking at
//! [`Cx::has_room`] emits a bounded amount.

use linerate_base::Errno;
use linerate_stack::Shard;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};

use super::door::{Answer, Bell, Door, Reply};
use super::proto::{About, Refusal, SCHEMA};
use super::{capture, counters, devices, drops, sockets};

/// How a command stands.
#[derive(Debug)]
pub(crate) enum Step {
    /// It goes on when the bell has rung, or when there is room again.
    Wait,
    /// It is over; what `{"done":...}` shall say.
    Done(Value),
}

/// A request in progress. See the module head.
pub(crate) trait Command: Send {
    /// Does what can be done now.
    fn advance(&mut self, cx: &mut Cx<'_>) -> Result<Step, Refusal>;
}

/// What a command may use while it advances.
pub(crate) struct Cx<'a> {
    pub(super) doors: &'a [Door],
    pub(super) bell: &'a Bell,
    pub(super) out: &'a mut Vec<u8>,
    /// Bytes in `out` at which its client has enough to read.
    pub(super) mark: usize,
    /// The client has closed its sending side.
    pub(super) eof: bool,
}

impl Cx<'_> {
    /// The shards of this stack.
    pub(crate) fn doors(&self) -> &[Door] {
        self.doors
    }
    /// What wakes the server, for a stream that shards feed.
    pub(crate) fn bell(&self) -> &Bell {
        self.bell
    }
    /// Runs `f` on shard number `shard`; `None` when there is none of that number.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        shard: usize,
        f: impl FnOnce(&mut Shard) -> T + Send + 'static,
    ) -> Option<Answer<T>> {
        Some(Answer::ask(self.doors.get(shard)?, self.bell, f))
    }
    /// Runs `f` on all shards.
    pub(crate) fn ask_all<T: Send + 'static>(
        &self,
        f: impl FnOnce(&mut Shard) -> T + Clone + Send + 'static,
    ) -> Gather<T> {
        Gather {
            waiting: self.doors.iter().map(|door| Some(Answer::ask(door, self.bell, f.clone()))).collect(),
            got: Vec::new(),
        }
    }
    /// Has the client closed its sending side? That is how it asks a command without an end to come to one.
    pub(crate) fn is_client_done(&self) -> bool {
        self.eof
    }
    /// Does the client want more? What is emitted beyond is kept for it all the same.
    pub(crate) fn has_room(&self) -> bool {
        self.out.len() < self.mark
    }
    /// A line with one key.
    pub(crate) fn emit(&mut self, key: &str, value: &impl Serialize) -> Result<(), Refusal> {
        // Into a buffer it fails only if a map has keys that are no text.
        let start = self.out.len();
        let line = write_line(self.out, key, value);
        line.map_err(|e| {
            self.out.truncate(start);
            Refusal::new(Errno::EPROTO, format!("the answer has no JSON form: {e}"), "report this as a bug")
        })
    }
}

fn write_line(out: &mut Vec<u8>, key: &str, value: &impl Serialize) -> Result<(), serde_json::Error> {
    out.push(b'{');
    serde_json::to_writer(&mut *out, key)?;
    out.push(b':');
    serde_json::to_writer(&mut *out, value)?;
    out.extend_from_slice(b"}\n");
    Ok(())
}

/// No shard is left to answer.
pub(crate) fn all_ended() -> Refusal {
    Refusal::new(Errno::ECONNABORTED, "the threads of this stack have ended", "start the process anew")
}

/// The answers of all shards to one question, in their order.
pub(crate) struct Gather<T> {
    waiting: Vec<Option<Answer<T>>>,
    got: Vec<(usize, T)>,
}

impl<T: Send + 'static> Gather<T> {
    /// All answers once the last is here, with the numbers of their shards; `None` before. A shard that has ended has none.
    ///
    /// # Errors
    /// [`all_ended`].
    pub(crate) fn poll(&mut self) -> Result<Option<Vec<(usize, T)>>, Refusal> {
        for (shard, slot) in self.waiting.iter_mut().enumerate() {
            let Some(answer) = slot else { continue };
            match answer.take() {
                Reply::Pending => return Ok(None),
                Reply::Ready(value) => self.got.push((shard, value)),
                Reply::Gone => {}
            }
            *slot = None;
        }
        let got = std::mem::take(&mut self.got);
        if got.is_empty() { Err(all_ended()) } else { Ok(Some(got)) }
    }
}

/// What a request's fields make.
pub(crate) type Started = Result<Box<dyn Command>, Refusal>;

/// A kind of request.
pub(crate) struct Verb {
    /// The value of `cmd`.
    pub(crate) name: &'static str,
    /// What it answers, one line.
    pub(crate) about: &'static str,
    /// Makes the command from the request's other fields.
    pub(crate) start: fn(Map<String, Value>) -> Started,
}

/// All kinds of requests.
pub(crate) const VERBS: &[Verb] = &[
    Verb { name: "about", about: "this process, its shards, and this list", start: about },
    Verb { name: "sockets", about: "a `socket` line each, as ss shows them", start: sockets::start },
    Verb {
        name: "counters",
        about: "Linux's counters, drops and resets by reason, hand-overs between shards, all summed",
        start: counters::start,
    },
    Verb {
        name: "devices",
        about: "a `device` line for each shard and device, with addresses, features and counters",
        start: devices::start,
    },
    Verb {
        name: "capture",
        about: "a `capturing` line, then a `packet` line each, until the client closes its sending side; then a `point` line for each point",
        start: capture::start,
    },
    Verb {
        name: "drops",
        about: "a `drop` line for each place where skbs were dropped since it was last asked, and drops and resets by reason",
        start: drops::start,
    },
];

/// The fields of a request as `T`, which says which there are.
pub(crate) fn fields<T: DeserializeOwned>(fields: Map<String, Value>) -> Result<T, Refusal> {
    serde_json::from_value(Value::Object(fields)).map_err(|e| {
        Refusal::new(
            Errno::EINVAL,
            e.to_string(),
            "see the documentation of linerate::control for the fields of a request",
        )
    })
}

/// The command that a line asks for.
pub(crate) fn start(line: &[u8]) -> Started {
    let request: Value = serde_json::from_slice(line).map_err(|e| {
        let hint = r#"send one JSON object a line, as {"schema":1,"cmd":"about"}"#;
        Refusal::new(Errno::EINVAL, format!("the request is not JSON: {e}"), hint)
    })?;
    let Value::Object(mut request) = request else {
        let hint = r#"send one JSON object a line, as {"schema":1,"cmd":"about"}"#;
        return Err(Refusal::new(Errno::EINVAL, "the request is not an object", hint));
    };
    match request.remove("schema") {
        Some(schema) if schema == json!(SCHEMA) => {}
        other => {
            let got = other.map_or_else(|| "none".to_owned(), |v| v.to_string());
            let message = format!("this process speaks schema {SCHEMA}, the request says {got}");
            return Err(Refusal::new(
                Errno::EPROTONOSUPPORT,
                message,
                "use the `linerate` of the same version as the process",
            ));
        }
    }
    let name = request.remove("cmd");
    let name = name.as_ref().and_then(Value::as_str).unwrap_or_default();
    let Some(verb) = VERBS.iter().find(|verb| verb.name == name) else {
        let known: Vec<_> = VERBS.iter().map(|verb| verb.name).collect();
        let hint = format!("`cmd` is one of {}", known.join(", "));
        return Err(Refusal::new(Errno::EOPNOTSUPP, format!("no command {name:?}"), hint));
    };
    (verb.start)(request)
}

struct AboutCommand;

impl Command for AboutCommand {
    fn advance(&mut self, cx: &mut Cx<'_>) -> Result<Step, Refusal> {
        let about = About {
            pid: std::process::id(),
            name: process_name(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            schema: SCHEMA,
            shards: cx.doors().len() as u32,
            commands: VERBS.iter().map(|verb| (verb.name.to_owned(), verb.about.to_owned())).collect(),
        };
        cx.emit("about", &about)?;
        Ok(Step::Done(json!({})))
    }
}

fn about(given: Map<String, Value>) -> Started {
    no_fields(given)?;
    Ok(Box::new(AboutCommand))
}

/// For requests that have no fields.
pub(crate) fn no_fields(given: Map<String, Value>) -> Result<(), Refusal> {
    match given.keys().next() {
        None => Ok(()),
        Some(key) => Err(Refusal::new(Errno::EINVAL, format!("unknown field `{key}`"), "this command has no fields")),
    }
}

/// The command line of this process without its path, as far as it is text.
fn process_name() -> String {
    let mut words = std::env::args_os().map(|word| word.to_string_lossy().into_owned());
    let program = words.next().unwrap_or_default();
    let program = program.rsplit('/').next().unwrap_or_default().to_owned();
    std::iter::once(program).chain(words).collect::<Vec<_>>().join(" ").chars().take(200).collect()
}
