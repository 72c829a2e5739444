use super::super::ast::Action;
use super::super::backend::{Outcome, Output};
use super::super::config::variants;
use super::super::parse::parse;
use super::*;

fn spec(text: &str) -> CallSpec {
    let script = parse(&format!("0 {text}"), &HashMap::new()).unwrap_or_else(|e| panic!("{}", e.text));
    match script.events.into_iter().next().unwrap().action {
        Action::Call(c) => c,
        other => panic!("{other:?}"),
    }
}

fn resolve_in(variant: usize, text: &str) -> Result<Call, String> {
    let fds = HashMap::from([(3, 103), (4, 104)]);
    let cfg = &variants()[variant];
    Env { cfg, fds: &fds }.resolve(&spec(text))
}

fn resolve(text: &str) -> Call {
    resolve_in(0, text).unwrap()
}

fn judge(text: &str, got: &Outcome) -> Result<(), String> {
    check::outcome(&spec(text), got)
}

#[test]
fn the_variant_fills_in_addresses() {
    let domain = |v| match resolve_in(v, "socket(..., SOCK_STREAM, IPPROTO_TCP) = 3") {
        Ok(Call::Socket { domain, kind: 1, protocol: 6 }) => domain,
        other => panic!("{other:?}"),
    };
    assert_eq!([domain(0), domain(1), domain(2)], [2, 10, 10]);
    let bound = |v| match resolve_in(v, "bind(3, ..., ...) = 0") {
        Ok(Call::Bind { fd: 103, addr: Addr::Inet(a) }) => a.to_string(),
        other => panic!("{other:?}"),
    };
    assert_eq!(bound(0), "192.168.0.1:8080");
    assert_eq!(bound(1), "[::ffff:192.168.0.1]:8080");
    assert_eq!(bound(2), "[fd3d:a0b:17d6::1]:8080");
    let text = r#"bind(3, {sa_family=AF_INET, sin_port=htons(99), sin_addr=inet_addr("1.2.3.4")}, ...) = 0"#;
    assert_eq!(resolve(text), Call::Bind { fd: 103, addr: Addr::Inet("1.2.3.4:99".parse().unwrap()) });
    let text = "bind(3, {sa_family=AF_INET, sin_port=htons(1), sin_addr=htonl(INADDR_LOOPBACK)}, ...) = 0";
    assert_eq!(resolve(text), Call::Bind { fd: 103, addr: Addr::Inet("127.0.0.1:1".parse().unwrap()) });
    assert_eq!(resolve("connect(3, AF_UNSPEC, ...) = 0"), Call::Connect { fd: 103, addr: Addr::Unspec });
}

#[test]
fn buffers_options_and_structs() {
    assert_eq!(resolve("write(4, ..., 10) = 10"), Call::Write { fd: 104, buf: Buf { null: false, len: 10 } });
    assert_eq!(resolve("read(9, NULL, 5) = -1 EFAULT"), Call::Read { fd: 1_000_009, buf: Buf { null: true, len: 5 } });
    let iov = vec![Buf { null: false, len: 10 }, Buf { null: true, len: 5 }];
    assert_eq!(resolve("writev(4, [{..., 10}, {NULL, 5}], 2) = 15"), Call::Writev { fd: 104, iov });
    let option = |text: &str| match resolve(text) {
        Call::SetSockOpt { value, len, .. } => (value, len),
        other => panic!("{other:?}"),
    };
    assert_eq!(
        option("setsockopt(3, SOL_SOCKET, SO_LINGER, {onoff=1, linger=2}, 8) = 0"),
        (Some(vec![1, 0, 0, 0, 2, 0, 0, 0]), 8)
    );
    assert_eq!(option("setsockopt(3, IPPROTO_TCP, TCP_CORK, [1], 1) = 0"), (Some(vec![1, 0, 0, 0]), 1));
    assert_eq!(option("setsockopt(3, SOL_TCP, TCP_CONGESTION, \"reno\", 4) = 0"), (Some(b"reno\0".to_vec()), 4));
    assert_eq!(option("setsockopt(3, SOL_TCP, TCP_CORK, NULL, 4) = -1 EFAULT"), (None, 4));
    assert!(matches!(
        resolve("epoll_ctl(3, EPOLL_CTL_ADD, 4, {events=EPOLLIN|EPOLLET, fd=4}) = 0"),
        Call::EpollCtl { epfd: 103, op: 1, fd: 104, event: Some(EpollEvent { events: 0x8000_0001, data: 4 }) }
    ));
    assert!(resolve_in(0, "splice(3, NULL, 4, NULL, 10, 0) = 10").unwrap_err().contains("not supported"));
    assert!(resolve_in(0, "close(3, 4) = 0").unwrap_err().contains("arguments"));
    assert!(resolve_in(0, "shutdown(3, SHUT_NONSENSE) = 0").unwrap_err().contains("unknown symbol"));
}

#[test]
fn results_and_errnos() {
    assert!(judge("close(3) = 0", &Outcome::ok(0)).is_ok());
    assert!(judge("socket(..., SOCK_STREAM, 0) = 3", &Outcome::ok(77)).is_ok());
    assert!(judge("write(3, ..., 5) = ...", &Outcome::ok(77)).is_ok());
    assert!(judge("close(3) = -1 EBADF (bad)", &Outcome::err(9)).is_ok());
    assert!(judge("close(3) = -1 EBADF (bad)", &Outcome::err(11)).unwrap_err().contains("EAGAIN"));
    assert!(judge("close(3) = 0", &Outcome::err(9)).unwrap_err().contains("expected result 0"));
}

#[test]
fn outputs() {
    let bytes = |v: i32| Outcome::with(0, Output::Bytes(v.to_le_bytes().to_vec()));
    assert!(judge("getsockopt(3, SOL_TCP, TCP_MAXSEG, [1460], [4]) = 0", &bytes(1460)).is_ok());
    assert!(judge("getsockopt(3, SOL_TCP, TCP_MAXSEG, [1460], [4]) = 0", &bytes(1448)).unwrap_err().contains("1448"));
    assert!(judge("getsockopt(3, SOL_TCP, TCP_NOTSENT_LOWAT, [4294967295], [4]) = 0", &bytes(-1)).is_ok());
    assert!(judge("getsockopt(3, SOL_TCP, TCP_MAXSEG, [1], [2]) = 0", &bytes(1)).unwrap_err().contains("length"));
    let text = Outcome::with(0, Output::Bytes(b"cubic\0\0\0".to_vec()));
    assert!(judge("getsockopt(3, SOL_TCP, TCP_CONGESTION, \"cubic\", [8]) = 0", &text).is_ok());
    assert!(judge("getsockopt(3, SOL_TCP, TCP_CONGESTION, \"cu\"..., [8]) = 0", &text).is_ok());
    assert!(judge("getsockopt(3, SOL_TCP, TCP_CONGESTION, \"reno\", [8]) = 0", &text).is_err());
    assert!(judge("ioctl(3, SIOCINQ, [5]) = 0", &Outcome::with(0, Output::Int(6))).is_err());
    let poll = "poll([{fd=3, events=POLLIN, revents=POLLIN}], 1, 0) = 1";
    assert!(judge(poll, &Outcome::with(1, Output::Revents(vec![1]))).is_ok());
    assert!(judge(poll, &Outcome::with(1, Output::Revents(vec![5]))).is_err());
    let event = |events, data| Outcome::with(1, Output::Events(vec![EpollEvent { events, data }]));
    assert!(judge("epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1", &event(1, 4)).is_ok());
    assert!(judge("epoll_wait(5, {events=EPOLLIN, fd=4}, 1, 0) = 1", &event(1, 5)).is_err());
    let msg = |flags| Outcome::with(9, Output::Msg { flags, addr: None, control: Vec::new() });
    let text = "recvmsg(4, {msg_name(...)=..., msg_iov(1)=[{..., 9}], msg_flags=MSG_TRUNC}, 0) = 9";
    assert!(judge(text, &msg(0x20)).is_ok());
    assert!(judge(text, &msg(0)).unwrap_err().contains("msg_flags"));
}
