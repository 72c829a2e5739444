//! A stack in a child process, in real time: the Linux kernel as the judge of scripts.
//!
//! The same script runs on Linerate in virtual time and on Linux in real time; only then does a script describe Linux. The
//! child (`tests/packetdrill/linux_child.py`, started in a fresh network namespace) owns a TUN device and makes the calls;
//! it reads one JSON object a line and answers one line: `ok`, `none`, `blocked`, `error TEXT`, `US PACKET-HEX`, or
//! `done US RET ERRNO OUTPUT`. Invariants: requests and answers alternate; all times are microseconds of the child's
//! clock, whose zero both sides set at `open`. Limits: times carry the host's scheduling noise (a script's tolerance is
//! 4 ms); a child that dies fails its script by a panic of the backend, which `run_paths` reports.

use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use linerate_base::Instant;

use super::backend::{
    Addr, Backend, BlockToken, Buf, Call, CallState, Cmsg, Completion, EpollEvent, Outcome, Output, ShellOp,
};
use super::config::VariantConfig;

/// How often a waiting runner looks for packets.
const POLL_US: u64 = 300;

/// A backend whose stack lives in another process.
pub struct ProcessBackend {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    origin: std::time::Instant,
}

impl ProcessBackend {
    /// Starts `command` (words; the first is the program) and opens its device for one variant.
    ///
    /// # Errors
    /// The program cannot be started, or it refused to open its device (no root, no TUN).
    pub fn start(command: &[String], cfg: &VariantConfig) -> io::Result<Self> {
        let (program, args) = command.split_first().ok_or_else(|| io::Error::other("no command"))?;
        let mut child = Command::new(program).args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (Some(to), Some(from)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(io::Error::other("no pipes to the child"));
        };
        let mut it = Self { child, to, from: BufReader::new(from), origin: std::time::Instant::now() };
        let open =
            format!(r#"{{"op":"open","local":"{}","prefix":{},"mtu":{}}}"#, cfg.local_ip, cfg.prefix_len, cfg.mtu);
        let answer = it.ask(&open)?;
        it.origin = std::time::Instant::now();
        if answer == "ok" { Ok(it) } else { Err(io::Error::other(answer)) }
    }

    fn ask(&mut self, request: &str) -> io::Result<String> {
        writeln!(self.to, "{request}")?;
        self.to.flush()?;
        let mut line = String::new();
        if self.from.read_line(&mut line)? == 0 {
            return Err(io::Error::other("the child has gone"));
        }
        Ok(line.trim_end().to_owned())
    }

    /// As [`Self::ask`]; a child that does not answer ends this case.
    fn must(&mut self, request: &str) -> String {
        match self.ask(request) {
            Ok(answer) => answer,
            Err(e) => panic!("process backend: {e}"),
        }
    }

    fn simple(&mut self, request: &str) -> Result<(), String> {
        match self.must(request).as_str() {
            "ok" => Ok(()),
            other => Err(other.to_owned()),
        }
    }
}

impl Drop for ProcessBackend {
    fn drop(&mut self) {
        // Our own child only; it may be asleep in a call that never returns.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if (c as u32) < 0x20 => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            c => out.push(c),
        }
    }
    out + "\""
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        let _ = write!(out, "{b:02x}");
        out
    })
}

fn unhex(text: &str) -> Vec<u8> {
    let digit = |b: &u8| (*b as char).to_digit(16).unwrap_or(0) as u8;
    text.as_bytes().chunks(2).filter_map(|p| Some(digit(p.first()?) << 4 | digit(p.get(1)?))).collect()
}

fn addr(a: &Addr) -> String {
    match a {
        Addr::Null => "null".into(),
        Addr::Unspec => "\"unspec\"".into(),
        Addr::Inet(a) => format!("[\"{}\",{}]", a.ip(), a.port()),
    }
}

fn buf(b: &Buf) -> String {
    format!("[{},{}]", b.null, b.len.min(i64::MAX as usize))
}

fn array<T>(items: &[T], one: impl Fn(&T) -> String) -> String {
    format!("[{}]", items.iter().map(one).collect::<Vec<_>>().join(","))
}

fn event(e: &EpollEvent) -> String {
    format!("[{},{}]", e.events, e.data)
}

/// The members of a call's JSON object behind `"op":"call",`.
fn data_call(call: &Call) -> Option<String> {
    Some(match call {
        Call::Read { fd, buf: b } => format!(r#""c":"read","fd":{fd},"buf":{}"#, buf(b)),
        Call::Write { fd, buf: b } => format!(r#""c":"write","fd":{fd},"buf":{}"#, buf(b)),
        Call::Readv { fd, iov } => format!(r#""c":"readv","fd":{fd},"iov":{}"#, array(iov, buf)),
        Call::Writev { fd, iov } => format!(r#""c":"writev","fd":{fd},"iov":{}"#, array(iov, buf)),
        Call::Recv { fd, buf: b, flags } => format!(r#""c":"recv","fd":{fd},"buf":{},"flags":{flags}"#, buf(b)),
        Call::RecvFrom { fd, buf: b, flags } => format!(r#""c":"recvfrom","fd":{fd},"buf":{},"flags":{flags}"#, buf(b)),
        Call::Send { fd, buf: b, flags } => format!(r#""c":"send","fd":{fd},"buf":{},"flags":{flags}"#, buf(b)),
        Call::SendTo { fd, buf: b, flags, addr: a } => {
            format!(r#""c":"sendto","fd":{fd},"buf":{},"flags":{flags},"addr":{}"#, buf(b), addr(a))
        }
        Call::RecvMsg { fd, iov, flags, control_len } => {
            let iov = array(iov, buf);
            format!(r#""c":"recvmsg","fd":{fd},"iov":{iov},"flags":{flags},"control_len":{control_len}"#)
        }
        Call::SendMsg { fd, iov, flags, addr: a, control } => {
            let control = array(control, |c: &Cmsg| format!("[{},{},\"{}\"]", c.level, c.kind, hex(&c.data)));
            let (iov, a) = (array(iov, buf), addr(a));
            format!(r#""c":"sendmsg","fd":{fd},"iov":{iov},"flags":{flags},"addr":{a},"control":{control}"#)
        }
        _ => return None,
    })
}

fn control_call(call: &Call) -> String {
    match call {
        Call::Socket { domain, kind, protocol } => {
            format!(r#""c":"socket","domain":{domain},"kind":{kind},"protocol":{protocol}"#)
        }
        Call::Bind { fd, addr: a } => format!(r#""c":"bind","fd":{fd},"addr":{}"#, addr(a)),
        Call::Connect { fd, addr: a } => format!(r#""c":"connect","fd":{fd},"addr":{}"#, addr(a)),
        Call::Listen { fd, backlog } => format!(r#""c":"listen","fd":{fd},"backlog":{backlog}"#),
        Call::Accept { fd } => format!(r#""c":"accept","fd":{fd}"#),
        Call::Fcntl { fd, cmd, arg } => format!(r#""c":"fcntl","fd":{fd},"cmd":{cmd},"arg":{arg}"#),
        Call::Ioctl { fd, request, value, null } => {
            format!(r#""c":"ioctl","fd":{fd},"request":{request},"value":{value},"null":{null}"#)
        }
        Call::Close { fd } => format!(r#""c":"close","fd":{fd}"#),
        Call::Shutdown { fd, how } => format!(r#""c":"shutdown","fd":{fd},"how":{how}"#),
        Call::GetSockOpt { fd, level, name, null, len } => {
            format!(r#""c":"getsockopt","fd":{fd},"level":{level},"name":{name},"null":{null},"len":{len}"#)
        }
        Call::SetSockOpt { fd, level, name, value, len } => {
            let value = value.as_ref().map_or("null".to_owned(), |v| format!("\"{}\"", hex(v)));
            format!(r#""c":"setsockopt","fd":{fd},"level":{level},"name":{name},"value":{value},"len":{len}"#)
        }
        Call::Poll { fds, timeout_ms } => {
            let fds = array(fds, |p| format!("[{},{}]", p.fd, p.events));
            format!(r#""c":"poll","fds":{fds},"timeout":{timeout_ms}"#)
        }
        Call::EpollCreate { size } => format!(r#""c":"epoll_create","size":{size}"#),
        Call::EpollCtl { epfd, op, fd, event: e } => {
            let e = e.as_ref().map_or("null".to_owned(), event);
            // "op" names the request, so the operation goes by another name.
            format!(r#""c":"epoll_ctl","epfd":{epfd},"what":{op},"fd":{fd},"event":{e}"#)
        }
        Call::EpollWait { epfd, max_events, timeout_ms } => {
            format!(r#""c":"epoll_wait","epfd":{epfd},"max":{max_events},"timeout":{timeout_ms}"#)
        }
        Call::Pipe => r#""c":"pipe""#.into(),
        _ => String::new(),
    }
}

fn output(words: &[&str]) -> Output {
    let list = |text: &str| text.split(',').filter(|t| *t != "-").map(str::to_owned).collect::<Vec<_>>();
    match words {
        ["addr", ip, port] => match (ip.parse(), port.parse()) {
            (Ok(ip), Ok(port)) => Output::Addr(SocketAddr::new(ip, port)),
            _ => Output::None,
        },
        ["bytes", "-"] => Output::Bytes(Vec::new()),
        ["bytes", data] => Output::Bytes(unhex(data)),
        ["int", n] => Output::Int(n.parse().unwrap_or(0)),
        ["revents", all] => {
            Output::Revents(list(all).iter().filter_map(|n| Some(n.parse::<u16>().ok()? as i16)).collect())
        }
        ["events", all] => Output::Events(
            list(all)
                .iter()
                .filter_map(|e| e.split_once(':'))
                .filter_map(|(ev, d)| Some(EpollEvent { events: ev.parse().ok()?, data: d.parse().ok()? }))
                .collect(),
        ),
        ["msg", flags, all] => {
            let one = |text: &String| {
                let mut parts = text.splitn(3, ':');
                let mut number = || parts.next()?.parse::<i32>().ok();
                let (level, kind) = (number()?, number()?);
                Some(Cmsg { level, kind, data: unhex(parts.next()?) })
            };
            Output::Msg {
                flags: flags.parse().unwrap_or(0),
                addr: None,
                control: list(all).iter().filter_map(one).collect(),
            }
        }
        ["pipe", r, w] => Output::Pipe(r.parse().unwrap_or(-1), w.parse().unwrap_or(-1)),
        _ => Output::None,
    }
}

fn completion(answer: &str) -> Option<Completion> {
    let words: Vec<_> = answer.split(' ').collect();
    let ["done", us, ret, errno, rest @ ..] = words.as_slice() else { return None };
    let (ret, errno) = (ret.parse().ok()?, errno.parse().ok()?);
    let at = Instant::from_micros(us.parse().ok()?);
    Some(Completion { at, outcome: Outcome { ret, errno, out: output(rest) } })
}

impl Backend for ProcessBackend {
    fn now(&self) -> Instant {
        Instant::from_micros(self.origin.elapsed().as_micros() as u64)
    }
    fn next_timer(&self) -> Option<Instant> {
        // Nobody knows when a kernel will act: look again soon.
        Some(self.now().plus_micros(POLL_US))
    }
    fn advance(&mut self, until: Instant) {
        let wait = until.since(self.now());
        if wait > Duration::from_micros(200) {
            std::thread::sleep(wait - Duration::from_micros(100));
        }
        while self.now() < until {
            std::hint::spin_loop();
        }
    }
    fn inject(&mut self, packet: &[u8]) {
        let answer = self.must(&format!(r#"{{"op":"inject","packet":"{}"}}"#, hex(packet)));
        assert_eq!(answer, "ok", "the child refused a packet");
    }
    fn next_output(&mut self) -> Option<(Instant, Vec<u8>)> {
        let answer = self.must(r#"{"op":"out"}"#);
        let (us, data) = answer.split_once(' ')?;
        Some((Instant::from_micros(us.parse().ok()?), unhex(data)))
    }
    fn syscall(&mut self, call: &Call) -> CallState {
        let members = data_call(call).unwrap_or_else(|| control_call(call));
        let answer = self.must(&format!(r#"{{"op":"call",{members}}}"#));
        match completion(&answer) {
            Some(done) => CallState::Done(done.outcome),
            None if answer == "blocked" => CallState::Blocked(BlockToken(0)),
            None => panic!("process backend: {answer}"),
        }
    }
    fn poll_blocked(&mut self, _token: BlockToken) -> Option<Completion> {
        let answer = self.must(r#"{"op":"poll"}"#);
        completion(&answer)
    }
    fn shell(&mut self, op: &ShellOp) -> Result<(), String> {
        let run = |program: &str, args: &[String]| {
            let words = std::iter::once(program).chain(args.iter().map(String::as_str)).map(quoted);
            format!(r#"{{"op":"sh","args":[{}]}}"#, words.collect::<Vec<_>>().join(","))
        };
        let request = match op {
            ShellOp::Defaults | ShellOp::RestoreSysctls => r#"{"op":"profile"}"#.to_owned(),
            ShellOp::Sysctl { name, value } => {
                format!(r#"{{"op":"sysctl","name":{},"value":{}}}"#, quoted(name), quoted(value))
            }
            ShellOp::Ip(args) => run("ip", args),
            ShellOp::Tc(args) => run("tc", args),
            ShellOp::Other(words) => return Err(format!("unknown command: {}", words.join(" "))),
        };
        self.simple(&request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_outcomes() {
        let done = |text: &str| completion(text).unwrap();
        assert_eq!(done("done 5 -1 11 none").outcome, Outcome::err(11));
        assert_eq!(done("done 5 0 0 bytes 0100").outcome.out, Output::Bytes(vec![1, 0]));
        assert_eq!(done("done 5 1 0 revents 1,65535").outcome.out, Output::Revents(vec![1, -1]));
        let event = Output::Events(vec![EpollEvent { events: 5, data: 9 }]);
        assert_eq!(done("done 5 1 0 events 5:9").outcome.out, event);
        let out = done("done 5 1 0 msg 32 1:2:ff00").outcome.out;
        let cmsg = Cmsg { level: 1, kind: 2, data: vec![255, 0] };
        assert_eq!(out, Output::Msg { flags: 32, addr: None, control: vec![cmsg] });
        assert_eq!(done("done 7 4 0 addr ::1 80").at, Instant::from_micros(7));
        assert!(completion("none").is_none());
    }

    #[test]
    fn requests_are_json() {
        assert_eq!(quoted("a\"b\\\n"), "\"a\\\"b\\\\\\u000a\"");
        assert_eq!(unhex(&hex(&[0, 255, 16])), vec![0, 255, 16]);
        let call = Call::SetSockOpt { fd: 3, level: 1, name: 2, value: None, len: 4 };
        assert_eq!(control_call(&call), r#""c":"setsockopt","fd":3,"level":1,"name":2,"value":null,"len":4"#);
        assert!(data_call(&call).is_none());
    }
}
