//! The flags of `linerate speed`, spelled as in iperf3, ip and ethtool.
//!
//! Only flags and values whose mechanism exists are accepted: an unknown value is a usage error (exit 2), never ignored.
//! Sizes take the suffixes K, M and G (powers of 1024), as iperf3's `-l` and `-w` do.
//!
//! Flags that exclude each other say so to clap, so that a bad combination ends before anything runs. The structure is
//! plain data; what a flag means is in `setup` (the stacks and the NIC), `run` (threads and waiting) and the
//! applications.

use clap::{Args, ValueEnum};

/// What runs over the flow.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Test {
    /// Bulk data in one direction.
    Stream,
    /// Request and response on one connection.
    Rr,
    /// Connect, request, response, close.
    Crr,
    /// Idle established connections: memory and lookup cost.
    Idle,
}

/// What the reader does with the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Touch {
    /// Nothing.
    None,
    /// One pass that reads every byte.
    Read,
    /// Every byte is compared with what was sent.
    Verify,
}

/// How a thread waits when nothing is to be done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum WaitMode {
    /// Sleep at once.
    Block,
    /// Never sleep.
    Spin,
    /// Poll a little, then sleep.
    Adaptive,
}

/// What crosses the software wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum WireMode {
    /// Headers and payload.
    Full,
}

/// A switch as ethtool spells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Switch {
    /// Enabled.
    On,
    /// Disabled.
    Off,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Self::On
    }
}

/// How payload reaches the receiving NIC.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Dma {
    /// Page references cross the wire.
    Ref,
    /// The receiving NIC copies into its own pages.
    Copy,
}

/// What the reader gets.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum RxMode {
    /// A copy in its own buffer.
    Copy,
    /// Nothing: received bytes are discarded in the stack (MSG_TRUNC).
    Trunc,
}

/// What the writer hands over.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum TxMode {
    /// Bytes that are copied into the stack's pages.
    Copy,
}

/// Who merges received frames.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Gro {
    /// Nobody.
    Off,
    /// The stack.
    Sw,
    /// The NIC.
    Hw,
    /// The NIC, and the stack once more.
    #[value(name = "hw+sw")]
    HwSw,
}

/// Who computes and verifies L4 checksums.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Csum {
    /// The NIC.
    Hw,
    /// The stack.
    Sw,
}

/// The queue discipline of each device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Qdisc {
    /// First in, first out.
    Fifo,
}

/// One flow between two complete stacks over the software NIC, beside the host kernel's own loopback flow.
#[derive(Clone, Debug, Args)]
pub(crate) struct SpeedArgs {
    /// Seconds to measure; with --file, seconds without progress after which the run fails
    #[arg(short = 't', default_value_t = 5.0, value_name = "SECS", value_parser = parse_secs)]
    pub(crate) secs: f64,
    /// Parallel flows
    #[arg(short = 'P', default_value_t = 1, value_name = "FLOWS", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub(crate) flows: u32,
    /// The server sends
    #[arg(short = 'R')]
    pub(crate) reverse: bool,
    /// Both ends send
    #[arg(long, conflicts_with = "reverse")]
    pub(crate) bidir: bool,
    /// Bytes per write and read
    #[arg(short = 'l', default_value = "128K", value_name = "LEN", value_parser = parse_message)]
    pub(crate) len: usize,
    /// Socket buffers at both ends; default: autotuning
    #[arg(short = 'w', value_name = "WINDOW", value_parser = parse_size)]
    pub(crate) window: Option<usize>,
    /// Congestion control: cubic or reno
    #[arg(short = 'C', default_value = "cubic", value_name = "CC", value_parser = ["cubic", "reno"])]
    pub(crate) cc: String,
    /// Maximum segment size
    #[arg(short = 'M', value_name = "MSS", value_parser = clap::value_parser!(u16).range(88..=65495))]
    pub(crate) mss: Option<u16>,
    /// Largest IP packet of one wire frame, bytes
    #[arg(long, default_value_t = 1500, value_name = "N", value_parser = clap::value_parser!(u32).range(MIN_MTU..=65535))]
    pub(crate) mtu: u32,
    /// IPv4 (default)
    #[arg(short = '4', conflicts_with = "v6")]
    pub(crate) v4: bool,
    /// IPv6
    #[arg(short = '6')]
    pub(crate) v6: bool,
    /// Print JSON in iperf3's shape
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// One thread for both ends, or one for each
    #[arg(long, default_value_t = 2, value_name = "1|2", value_parser = clap::value_parser!(u8).range(1..=2))]
    pub(crate) threads: u8,
    /// What to run
    #[arg(long, default_value = "stream")]
    pub(crate) test: Test,
    /// Request size of rr and crr, bytes [default: 64 for rr, 1 for crr]
    #[arg(long, value_name = "N", value_parser = parse_message)]
    pub(crate) req: Option<usize>,
    /// Response size of rr and crr, bytes [default: as --req]
    #[arg(long, value_name = "N", value_parser = parse_message)]
    pub(crate) resp: Option<usize>,
    /// Connections of the idle test
    #[arg(long, default_value_t = 1000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4_000_000))]
    pub(crate) conns: u32,
    /// What the reader does with the bytes
    #[arg(long, default_value = "none")]
    pub(crate) touch: Touch,
    /// How a thread waits for work
    #[arg(long, default_value = "adaptive")]
    pub(crate) wait: WaitMode,
    /// Queue discipline
    #[arg(long, default_value = "fifo")]
    pub(crate) qdisc: Qdisc,
    /// What crosses the wire
    #[arg(long, default_value = "full")]
    pub(crate) wire: WireMode,
    /// Cut super-packets into MTU frames on the wire
    #[arg(long, default_value = "off")]
    pub(crate) cut: Switch,
    /// How payload reaches the receiving NIC
    #[arg(long, default_value = "ref")]
    pub(crate) dma: Dma,
    /// What the reader gets
    #[arg(long, default_value = "copy")]
    pub(crate) rx: RxMode,
    /// What the writer hands over
    #[arg(long, default_value = "copy")]
    pub(crate) tx: TxMode,
    /// Who merges received frames
    #[arg(long, default_value = "hw")]
    pub(crate) gro: Gro,
    /// The NIC cuts super-packets; off: the stack does
    #[arg(long, default_value = "on")]
    pub(crate) tso: Switch,
    /// Who computes and verifies checksums
    #[arg(long, default_value = "hw")]
    pub(crate) csum: Csum,
    /// Do not run the kernel's flow
    #[arg(long)]
    pub(crate) no_kernel: bool,
    /// Where the time goes, from one more run with clock reads inside
    #[arg(long)]
    pub(crate) stages: bool,
    /// Send this file and compare SHA-256 at the far end
    #[arg(long, value_name = "PATH", conflicts_with_all = ["reverse", "bidir"])]
    pub(crate) file: Option<std::path::PathBuf>,
    /// Let `linerate ss`, `nstat` and the like ask this run, at PATH
    #[arg(long, value_name = "PATH")]
    pub(crate) control: Option<std::path::PathBuf>,
}

impl SpeedArgs {
    /// Request bytes of rr and crr.
    pub(crate) fn req_bytes(&self) -> usize {
        self.req.unwrap_or(if self.test == Test::Crr { 1 } else { 64 })
    }
    /// Response bytes of rr and crr.
    pub(crate) fn resp_bytes(&self) -> usize {
        self.resp.unwrap_or_else(|| self.req_bytes())
    }
}

/// Least MTU that carries a segment of the least MSS (Linux: TCP_MIN_SND_MSS, 48 bytes with options), bytes.
const MIN_MTU: i64 = 88;
/// Largest `-l`, `--req` and `--resp`, bytes: each end holds a few buffers of this size.
const MESSAGE_MAX_BYTES: usize = 64 << 20;

fn parse_secs(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(secs) if (0.05..=86_400.0).contains(&secs) => Ok(secs),
        _ => Err("expected seconds between 0.05 and 86400".into()),
    }
}

/// Bytes of one write, request or response.
fn parse_message(text: &str) -> Result<usize, String> {
    match parse_size(text) {
        Ok(bytes) if bytes > MESSAGE_MAX_BYTES => Err("expected at most 64M".into()),
        other => other,
    }
}

/// Parses `128K`, `1M`, `65536`: 1 byte to 1 GiB.
pub(crate) fn parse_size(text: &str) -> Result<usize, String> {
    let (digits, shift) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], 20),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 30),
        _ => (text, 0),
    };
    let number: usize = digits.parse().map_err(|_| String::from("expected bytes, as 65536, 128K or 1M"))?;
    number
        .checked_shl(shift)
        .filter(|&bytes| (1..=1 << 30).contains(&bytes) && bytes >> shift == number)
        .ok_or_else(|| String::from("expected between 1 byte and 1G"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_suffixes_and_refuse_nonsense() {
        assert_eq!(parse_size("128K"), Ok(131_072));
        assert_eq!(parse_size("1m"), Ok(1 << 20));
        assert_eq!(parse_size("1G"), Ok(1 << 30));
        assert_eq!(parse_size("7"), Ok(7));
        for bad in ["", "K", "0", "-1", "2G", "1T", "99999999999999999999", "1.5M", "18014398509481985K"] {
            assert!(parse_size(bad).is_err(), "{bad}");
        }
    }
}
