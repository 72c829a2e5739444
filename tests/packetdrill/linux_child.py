#!/usr/bin/env python3
"""Drives the Linux kernel's own TCP for `drill`'s process backend.

Runs in a fresh network namespace (`unshare -n`, needs root) with one TUN device, and speaks one JSON object per line on
stdin and one answer per line on stdout (see crates/sim/src/drill/process.rs). Calls go through libc unchanged, so that
pointers, lengths and errno are exactly the kernel's. Time is real. It is the judge of the scripts in this directory: a
script that does not pass here does not describe Linux.
"""
import ctypes, fcntl, json, os, queue, socket, struct, subprocess, sys, threading, time

C = ctypes
libc = C.CDLL(None, use_errno=True)
ORIGIN = time.monotonic_ns()
PROFILE = {
    "tcp_rmem": "4096 540000 15728640", "tcp_wmem": "4096 262144 4194304", "tcp_timestamps": 1, "tcp_syn_retries": 5,
    "tcp_synack_retries": 5, "tcp_frto": 2, "tcp_sack": 1, "tcp_dsack": 1, "tcp_reordering": 3,
    "tcp_congestion_control": "cubic", "tcp_slow_start_after_idle": 0, "tcp_early_retrans": 4, "tcp_recovery": 1,
    "tcp_tso_win_divisor": 3, "tcp_ecn": 0, "tcp_pacing_ss_ratio": 200, "tcp_pacing_ca_ratio": 120,
    "tcp_notsent_lowat": 4294967295, "tcp_fastopen": 3, "tcp_syncookies": 1,
    "tcp_fastopen_key": "a1a1a1a1-b2b2b2b2-c3c3c3c3-d4d4d4d4",
}


def now_us():
    return (time.monotonic_ns() - ORIGIN) // 1000


def sysctl(name, value):
    with open("/proc/sys/" + name.replace(".", "/"), "w") as f:
        f.write(str(value))


def profile():
    for name, value in PROFILE.items():
        if name != "tcp_congestion_control":
            sysctl("net.ipv4." + name, value)


def sh(*args):
    subprocess.run(args, check=True, stdout=subprocess.DEVNULL)


def open_tun(a):
    tun = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(tun, 0x400454CA, struct.pack("16sH22x", b"tun0", 0x1001))
    six = ":" in a["local"]
    sh("ip", "link", "set", "dev", "tun0", "mtu", str(a["mtu"]))
    # A link-local address would send router solicitations into the script.
    sysctl("net.ipv6.conf.tun0.addr_gen_mode", 1)
    sysctl("net.ipv6.conf.tun0.accept_dad", 0)
    sh("ip", "link", "set", "dev", "tun0", "up")
    sh("ip", "addr", "add", "%s/%d" % (a["local"], a["prefix"]), "dev", "tun0", *(["nodad"] if six else []))
    sh("ip", *(["-6"] if six else []), "route", "add", "default", "dev", "tun0")
    sh("tc", "qdisc", "add", "dev", "tun0", "root", "pfifo", "limit", "1000")
    return tun


def sockaddr(a):
    """None = NULL; "unspec"; [ip, port]."""
    if a is None:
        return None, 0
    if a == "unspec":
        return C.create_string_buffer(struct.pack("H14x", 0)), 16
    ip, port = a
    if ":" in ip:
        raw = struct.pack("=H", 10) + struct.pack("!HI16sI", port, 0, socket.inet_pton(socket.AF_INET6, ip), 0)
    else:
        raw = struct.pack("=H", 2) + struct.pack("!H4s8x", port, socket.inet_aton(ip))
    return C.create_string_buffer(raw, len(raw)), len(raw)


def address(raw):
    family = struct.unpack("=H", raw[:2])[0] if len(raw) >= 2 else 0
    port = struct.unpack("!H", raw[2:4])[0] if len(raw) >= 4 else 0
    if family == 2:
        return "addr %s %d" % (socket.inet_ntoa(raw[4:8]), port)
    if family == 10:
        return "addr %s %d" % (socket.inet_ntop(socket.AF_INET6, raw[8:24]), port)
    return "none"


def buf(b):
    null, n = b
    return None if null else C.create_string_buffer(max(n, 1) if n < 1 << 30 else 1)


class Iovec(C.Structure):
    _fields_ = [("base", C.c_void_p), ("len", C.c_size_t)]


class Msghdr(C.Structure):
    _fields_ = [("name", C.c_void_p), ("namelen", C.c_uint), ("iov", C.c_void_p), ("iovlen", C.c_size_t),
                ("control", C.c_void_p), ("controllen", C.c_size_t), ("flags", C.c_int)]


def iovec(list_):
    keep = [buf(b) for b in list_]
    arr = (Iovec * max(len(list_), 1))()
    for i, (b, (_, n)) in enumerate(zip(keep, list_)):
        arr[i].base = C.addressof(b) if b is not None else None
        arr[i].len = n
    return arr, keep


def cmsg_bytes(list_):
    out = b""
    for level, kind, data in list_:
        data = bytes.fromhex(data)
        out += struct.pack("=QII", 16 + len(data), level, kind) + data + b"\0" * (-len(data) % 8)
    return out


def cmsg_text(raw):
    out, at = [], 0
    while at + 16 <= len(raw):
        n, level, kind = struct.unpack("=QII", raw[at:at + 16])
        if n < 16:
            break
        out.append("%d:%d:%s" % (level, kind, raw[at + 16:at + n].hex()))
        at += (n + 7) & ~7
    return ",".join(out) or "-"


def message(a, fd, sending):
    arr, keep = iovec(a["iov"])
    m = Msghdr()
    m.iov, m.iovlen = C.addressof(arr), len(a["iov"])
    name, n = sockaddr(a.get("addr")) if sending else (C.create_string_buffer(128), 128)
    if name is not None:
        m.name, m.namelen = C.addressof(name), n
    raw = cmsg_bytes(a["control"]) if sending else b"\0" * a["control_len"]
    control = C.create_string_buffer(raw, len(raw)) if raw else None
    if control is not None:
        m.control, m.controllen = C.addressof(control), len(raw)
    f = libc.sendmsg if sending else libc.recvmsg
    f.restype = C.c_ssize_t
    r = f(fd, C.byref(m), a["flags"])
    e = C.get_errno()
    if sending or r < 0:
        return r, e, "none"
    return r, e, "msg %d %s" % (m.flags, cmsg_text(control.raw[:m.controllen] if control else b""))


def vectored(a, fd, f):
    arr, keep = iovec(a["iov"])
    return f(fd, C.byref(arr), len(a["iov"])), C.get_errno(), "none"


def poll(a):
    n = len(a["fds"])
    arr = C.create_string_buffer(b"".join(struct.pack("=ihh", fd, ev, 0) for fd, ev in a["fds"]), max(8 * n, 1))
    r = libc.poll(arr, C.c_ulong(n), a["timeout"])
    e = C.get_errno()
    rev = [struct.unpack_from("=ihh", arr.raw, 8 * i)[2] & 0xffff for i in range(n)]
    return r, e, "revents " + ",".join(map(str, rev))


def epoll_wait(a):
    n = a["max"]
    arr = C.create_string_buffer(12 * max(n, 1))
    r = libc.epoll_wait(a["epfd"], arr, n, a["timeout"])
    e = C.get_errno()
    ev = ["%d:%d" % struct.unpack_from("=IQ", arr.raw, 12 * i) for i in range(max(r, 0))]
    return r, e, "events " + (",".join(ev) or "-")


def option(a, fd):
    if a["c"] == "setsockopt":
        v = a["value"]
        b = None if v is None else C.create_string_buffer(bytes.fromhex(v), max(len(v) // 2, 1))
        return libc.setsockopt(fd, a["level"], a["name"], b, C.c_uint(a["len"] & 0xffffffff)), C.get_errno(), "none"
    n = C.c_int(a["len"])
    b = None if a["null"] else C.create_string_buffer(max(a["len"], 1))
    r = libc.getsockopt(fd, a["level"], a["name"], b, C.byref(n))
    e = C.get_errno()
    return r, e, "bytes " + (b.raw[:n.value].hex() if b and n.value > 0 and r == 0 else "-")


def with_address(a, fd):
    name, n = C.create_string_buffer(128), C.c_uint(128)
    if a["c"] == "accept":
        r = libc.accept(fd, name, C.byref(n))
    else:
        libc.recvfrom.restype = C.c_ssize_t
        r = libc.recvfrom(fd, buf(a["buf"]), C.c_size_t(a["buf"][1]), a["flags"], name, C.byref(n))
    return r, C.get_errno(), address(name.raw[:n.value]) if r >= 0 else "none"


def simple(a, fd):
    """Calls without outputs."""
    c = a["c"]
    if c == "socket":
        fd = libc.socket(a["domain"], a["kind"], a["protocol"])
        if fd >= 0 and a["kind"] & 15 == 1:
            # A namespace may not make a restricted module its default; a socket of root may choose it.
            libc.setsockopt(fd, 6, 13, b"cubic", 5)
        return fd
    if c in ("bind", "connect"):
        addr, n = sockaddr(a["addr"])
        return getattr(libc, c)(fd, addr, n)
    if c == "listen":
        return libc.listen(fd, a["backlog"])
    if c == "close":
        return libc.close(fd)
    if c == "shutdown":
        return libc.shutdown(fd, a["how"])
    if c == "fcntl":
        return libc.fcntl(fd, a["cmd"], C.c_long(a["arg"]))
    if c in ("read", "write", "recv", "send"):
        f = getattr(libc, c)
        f.restype = C.c_ssize_t
        extra = (a["flags"],) if c in ("recv", "send") else ()
        return f(fd, buf(a["buf"]), C.c_size_t(a["buf"][1]), *extra)
    if c == "sendto":
        libc.sendto.restype = C.c_ssize_t
        addr, n = sockaddr(a["addr"])
        return libc.sendto(fd, buf(a["buf"]), C.c_size_t(a["buf"][1]), a["flags"], addr, n)
    if c == "epoll_create":
        return libc.epoll_create(a["size"])
    if c == "epoll_ctl":
        ev = None if a["event"] is None else C.create_string_buffer(struct.pack("=IQ", *a["event"]), 12)
        return libc.epoll_ctl(a["epfd"], a["what"], fd, ev)
    raise ValueError("unknown call " + c)


def perform(a):
    c, fd = a["c"], a.get("fd", -1)
    C.set_errno(0)
    if c in ("accept", "recvfrom"):
        return with_address(a, fd)
    if c in ("sendmsg", "recvmsg"):
        return message(a, fd, c == "sendmsg")
    if c in ("readv", "writev"):
        return vectored(a, fd, getattr(libc, c))
    if c in ("getsockopt", "setsockopt"):
        return option(a, fd)
    if c == "poll":
        return poll(a)
    if c == "epoll_wait":
        return epoll_wait(a)
    if c == "ioctl":
        n = C.c_int(a["value"])
        r = libc.ioctl(fd, C.c_ulong(a["request"]), None if a["null"] else C.byref(n))
        return r, C.get_errno(), "int %d" % n.value
    if c == "pipe":
        p = (C.c_int * 2)()
        return libc.pipe(p), C.get_errno(), "pipe %d %d" % (p[0], p[1])
    return simple(a, fd), C.get_errno(), "none"


class Worker(threading.Thread):
    """Runs calls, so that one that blocks does not stop the rest."""

    def __init__(self):
        super().__init__(daemon=True)
        self.jobs, self.results = queue.Queue(), queue.Queue()
        self.start()

    def run(self):
        while True:
            a = self.jobs.get()
            r, e, out = perform(a)
            self.results.put((now_us(), r, e if r < 0 else 0, out))


def main():
    global ORIGIN
    outputs, blocked, worker, tun = [], None, Worker(), -1

    def reader():
        while True:
            packet = os.read(tun, 65536)
            outputs.append((now_us(), packet.hex()))

    def say(text):
        sys.stdout.write(text + "\n")
        sys.stdout.flush()

    for line in sys.stdin:
        a = json.loads(line)
        op = a["op"]
        try:
            if op == "open":
                profile()
                tun = open_tun(a)
                threading.Thread(target=reader, daemon=True).start()
                time.sleep(0.01)
                outputs.clear()
                ORIGIN = time.monotonic_ns()
                say("ok")
            elif op == "inject":
                os.write(tun, bytes.fromhex(a["packet"]))
                say("ok")
            elif op == "out":
                say("%d %s" % outputs.pop(0) if outputs else "none")
            elif op == "call":
                worker.jobs.put(a)
                try:
                    say("done %d %d %d %s" % worker.results.get(timeout=0.003))
                except queue.Empty:
                    blocked, worker = worker, Worker()
                    say("blocked")
            elif op == "poll":
                try:
                    say("done %d %d %d %s" % blocked.results.get_nowait())
                except queue.Empty:
                    say("none")
            elif op == "sysctl":
                sysctl(a["name"], a["value"])
                say("ok")
            elif op == "profile":
                profile()
                say("ok")
            elif op == "sh":
                sh(*a["args"])
                say("ok")
        except Exception as e:  # the runner reports it with the script's line
            say("error %s" % e)


main()
