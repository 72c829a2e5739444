//! The flags of `linerate iperf3`, spelled as in iperf3, with those of a TUN besides.
//!
//! One of `-s` and `-c HOST` says which end this is; a flag of the other end is bad usage, as in iperf3. Sizes take the
//! suffixes K, M and G in powers of 1024; rates take them in powers of 1000 (iperf3 does the same). The structure is plain
//! data; [`IperfArgs::check`] finds what contradicts itself, and the meaning of each flag is in `run` and `proto`.
//!
//! Of iperf3's flags these are not here, and refused: files, affinity, pid files, authentication, SCTP, flow labels.

use std::net::IpAddr;

use clap::{ArgGroup, Args};
use linerate_wire::Cidr;

use super::proto::{
    OMIT_MAX, PORT, Params, Protocol, SECS_MAX, TCP_BLOCK, TCP_BLOCK_MAX, UDP_BLOCK_MAX, UDP_BLOCK_MIN, UDP_RATE,
};
use crate::speed::args::{Csum, Gro, Switch, WaitMode, parse_size};

/// The protocol of iperf3 over this stack and a TUN device: stock iperf3 can be the peer.
#[derive(Clone, Debug, Args)]
#[command(
    group(ArgGroup::new("role").required(true).args(["server", "client"])),
    after_help = "Examples (root, or CAP_NET_ADMIN in a network namespace):
  linerate iperf3 -s --tun lin0 --addr 10.9.0.2/24 --host-addr 10.9.0.1/24      then: iperf3 -c 10.9.0.2
  iperf3 -s      then: linerate iperf3 -c 10.9.0.1 --tun lin0 --addr 10.9.0.2/24 --host-addr 10.9.0.1/24 -R -P 4"
)]
pub(crate) struct IperfArgs {
    /// Serve clients, one at a time
    #[arg(short = 's', long = "server", help_heading = "Role")]
    pub(crate) server: bool,
    /// Run a test with the server HOST: an address, or a name that this host can resolve
    #[arg(short = 'c', long = "client", value_name = "HOST", help_heading = "Role")]
    pub(crate) client: Option<String>,

    /// Name of the TUN device, which is made if it is not there; lin%d takes the first free number
    #[arg(long, value_name = "NAME", help_heading = "Device")]
    pub(crate) tun: Option<String>,
    /// Name of a TAP device instead: Ethernet frames, neighbours found by ARP and neighbour discovery; it may be in a bridge
    #[arg(long, value_name = "NAME", conflicts_with = "tun", help_heading = "Device")]
    pub(crate) tap: Option<String>,
    /// Addresses of this stack, IPv4 or IPv6
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',', value_parser = parse_cidr, help_heading = "Device")]
    pub(crate) addr: Vec<Cidr>,
    /// Addresses of the kernel's end, which is brought up; without them it is left as it is
    #[arg(long, value_name = "CIDR[,CIDR]", value_delimiter = ',', value_parser = parse_cidr, help_heading = "Device")]
    pub(crate) host_addr: Vec<Cidr>,
    /// Where this stack sends what is not on the device's networks
    #[arg(long, value_name = "IP", help_heading = "Device")]
    pub(crate) gw: Vec<IpAddr>,
    /// MTU of the device, bytes [default: the device's, 1500 for a new one]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1280..=65535), help_heading = "Device")]
    pub(crate) mtu: Option<u32>,
    /// Super-packets cross the device uncut, in both directions; off: every packet is one frame
    #[arg(long, default_value = "on", help_heading = "Device")]
    pub(crate) tso: Switch,
    /// Checksums cross the device unfinished
    #[arg(long, default_value = "hw", help_heading = "Device")]
    pub(crate) csum: Csum,
    /// Who merges received frames: hw is the kernel, which goes with --tso on; sw is this stack [default: hw, with --tso off sw]
    #[arg(long, help_heading = "Device")]
    pub(crate) gro: Option<Gro>,
    /// How the thread waits for work
    #[arg(long, default_value = "adaptive", help_heading = "Device")]
    pub(crate) wait: WaitMode,

    /// Where `linerate ss`, `nstat` and the like ask this run [default: where they look]
    #[arg(long, value_name = "PATH", help_heading = "Device")]
    pub(crate) control: Option<std::path::PathBuf>,
    /// Nobody can ask this run
    #[arg(long, conflicts_with = "control", help_heading = "Device")]
    pub(crate) no_control: bool,

    /// Port to listen on or to connect to
    #[arg(short = 'p', long = "port", default_value_t = PORT, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) port: u16,
    /// Seconds between reports, 0 for none
    #[arg(short = 'i', long = "interval", default_value_t = 1.0, value_name = "SECS", value_parser = parse_interval)]
    pub(crate) interval: f64,
    /// Source address, or address to listen on
    #[arg(short = 'B', long = "bind", value_name = "IP")]
    pub(crate) bind: Option<IpAddr>,
    /// IPv4 only
    #[arg(short = '4', long = "version4", conflicts_with = "v6")]
    pub(crate) v4: bool,
    /// IPv6 only
    #[arg(short = '6', long = "version6")]
    pub(crate) v6: bool,
    /// Print JSON in iperf3's shape
    #[arg(short = 'J', long)]
    pub(crate) json: bool,
    /// Throw received TCP bytes away in the stack, without a copy
    #[arg(long)]
    pub(crate) skip_rx_copy: bool,
    /// Send TCP by reference to one page, without a copy
    #[arg(short = 'Z', long)]
    pub(crate) zerocopy: bool,

    /// End after one test
    #[arg(short = '1', long, conflicts_with = "client", help_heading = "Server")]
    pub(crate) one_off: bool,

    #[command(flatten)]
    pub(crate) test: TestArgs,
}

/// What a client asks for.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Client")]
pub(crate) struct TestArgs {
    /// UDP instead of TCP
    #[arg(short = 'u', long, conflicts_with = "server")]
    pub(crate) udp: bool,
    /// Seconds to send, 0 for no end [default: 10]
    #[arg(short = 't', long = "time", value_name = "SECS", conflicts_with = "server", value_parser = clap::value_parser!(u64).range(..=SECS_MAX))]
    pub(crate) time: Option<u64>,
    /// Bytes to send in all, instead of -t
    #[arg(short = 'n', long = "bytes", value_name = "BYTES", conflicts_with_all = ["server", "time", "blocks"], value_parser = parse_count)]
    pub(crate) bytes: Option<u64>,
    /// Blocks (writes or datagrams) to send in all, instead of -t
    #[arg(short = 'k', long = "blockcount", value_name = "BLOCKS", conflicts_with_all = ["server", "time"], value_parser = parse_count)]
    pub(crate) blocks: Option<u64>,
    /// Seconds at the beginning that are not counted
    #[arg(short = 'O', long = "omit", default_value_t = 0, value_name = "SECS", conflicts_with = "server", value_parser = clap::value_parser!(u64).range(..=OMIT_MAX))]
    pub(crate) omit: u64,
    /// Bytes of a write or datagram [default: 128K for TCP, as many as fit a frame for UDP]
    #[arg(short = 'l', long = "length", value_name = "LEN", conflicts_with = "server", value_parser = parse_size)]
    pub(crate) len: Option<usize>,
    /// Rate of each stream in bits per second, 0 for no limit, and blocks sent at once [default: 0 for TCP, 1M for UDP]
    #[arg(short = 'b', long = "bitrate", value_name = "RATE[/BURST]", conflicts_with = "server", value_parser = parse_rate)]
    pub(crate) rate: Option<Rate>,
    /// Parallel streams
    #[arg(short = 'P', long = "parallel", default_value_t = 1, value_name = "STREAMS", conflicts_with = "server", value_parser = clap::value_parser!(u64).range(1..=128))]
    pub(crate) parallel: u64,
    /// The server sends
    #[arg(short = 'R', long, conflicts_with = "server")]
    pub(crate) reverse: bool,
    /// Both ends send
    #[arg(long, conflicts_with_all = ["server", "reverse"])]
    pub(crate) bidir: bool,
    /// Socket buffers at both ends; default: autotuning
    #[arg(short = 'w', long = "window", value_name = "WINDOW", conflicts_with = "server", value_parser = parse_size)]
    pub(crate) window: Option<usize>,
    /// Congestion control at both ends; here cubic or reno
    #[arg(short = 'C', long = "congestion", value_name = "CC", conflicts_with_all = ["server", "udp"], value_parser = ["cubic", "reno"])]
    pub(crate) congestion: Option<String>,
    /// Maximum segment size
    #[arg(short = 'M', long = "set-mss", value_name = "MSS", conflicts_with_all = ["server", "udp"], value_parser = clap::value_parser!(u16).range(88..=9216))]
    pub(crate) mss: Option<u16>,
    /// No delay of small segments (Nagle's algorithm off)
    #[arg(short = 'N', long, conflicts_with_all = ["server", "udp"])]
    pub(crate) no_delay: bool,
    /// TOS or traffic class, 0 to 255
    #[arg(short = 'S', long = "tos", default_value_t = 0, value_name = "N", conflicts_with = "server")]
    pub(crate) tos: u8,
    /// Source port of the first stream; each further one takes the next
    #[arg(long, value_name = "PORT", conflicts_with = "server", value_parser = clap::value_parser!(u16).range(1..))]
    pub(crate) cport: Option<u16>,
    /// Milliseconds until a server that does not answer is given up
    #[arg(long, default_value_t = 10_000, value_name = "MS", conflicts_with = "server", value_parser = clap::value_parser!(u64).range(1..=600_000))]
    pub(crate) connect_timeout: u64,
    /// Print what the server printed
    #[arg(long, conflicts_with = "server")]
    pub(crate) get_server_output: bool,
    /// 64-bit counts in datagrams
    #[arg(long, conflicts_with = "server", requires = "udp")]
    pub(crate) udp_counters_64bit: bool,
}

/// `-b`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Rate {
    /// Bits per second, 0 = no limit.
    pub(crate) bits: u64,
    /// Blocks sent at once.
    pub(crate) burst: u32,
}

impl IperfArgs {
    /// What contradicts itself, in one line with the way out.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.tun.is_none() && self.tap.is_none() {
            return Err(
                "a device is needed: --tun NAME (or --tap NAME) --addr CIDR, and mostly --host-addr CIDR".into()
            );
        }
        if self.addr.is_empty() {
            return Err("this stack needs an address: --addr CIDR, as 10.9.0.2/24".into());
        }
        for (family, wanted, other) in [("-4", self.v4, "IPv4"), ("-6", self.v6, "IPv6")] {
            if wanted && !self.addr.iter().any(|cidr| cidr.addr().is_ipv4() == self.v4) {
                return Err(format!("{family} needs an {other} address of this stack: --addr"));
            }
        }
        if let Some(ip) = self.bind.filter(|ip| !self.addr.iter().any(|cidr| cidr.addr() == *ip)) {
            return Err(format!("-B {ip} is none of the addresses that --addr gives"));
        }
        let t = &self.test;
        let udp_len = t.len.is_some_and(|len| !(UDP_BLOCK_MIN..=UDP_BLOCK_MAX).contains(&(len as u64)));
        let contradictions = [
            (
                self.gro.is_some_and(|gro| self.tso.is_on() == matches!(gro, Gro::Off | Gro::Sw)),
                "a TUN has one switch for both directions: --gro hw and hw+sw go with --tso on, off and sw with --tso off",
            ),
            (t.udp && udp_len, "-l of a datagram is 16 to 65507 bytes"),
            (!t.udp && t.len.is_some_and(|len| len as u64 > TCP_BLOCK_MAX), "-l is at most 1M"),
            (t.window.is_some_and(|w| w > 512 << 20), "-w is at most 512M"),
            (
                t.udp && (self.zerocopy || self.skip_rx_copy),
                "--zerocopy and --skip-rx-copy are for TCP; leave them out",
            ),
        ];
        match contradictions.iter().find(|(wrong, _)| *wrong) {
            Some((_, why)) => Err((*why).to_owned()),
            None => Ok(()),
        }
    }

    /// What the client asks for. A `len` of 0 is chosen by the path.
    pub(crate) fn params(&self) -> Params {
        let t = &self.test;
        let sized = t.bytes.is_some() || t.blocks.is_some();
        let rate = t.rate.unwrap_or(Rate { bits: if t.udp { UDP_RATE } else { 0 }, burst: 1 });
        Params {
            protocol: if t.udp { Protocol::Udp } else { Protocol::Tcp },
            omit_secs: t.omit,
            secs: if sized { 0 } else { t.time.unwrap_or(10) },
            num_bytes: t.bytes.unwrap_or(0),
            blocks: t.blocks.unwrap_or(0),
            parallel: t.parallel,
            reverse: t.reverse,
            bidir: t.bidir,
            len: t.len.unwrap_or(if t.udp { 0 } else { TCP_BLOCK }),
            rate: rate.bits,
            burst: rate.burst,
            window: t.window.unwrap_or(0) as u32,
            mss: t.mss.unwrap_or(0),
            nodelay: t.no_delay,
            tos: t.tos,
            congestion: t.congestion.clone(),
            udp_64bit: t.udp_counters_64bit,
            get_server_output: t.get_server_output,
        }
    }
}

fn parse_cidr(text: &str) -> Result<Cidr, String> {
    // An address alone would be a network of one, from which nobody can be reached.
    let cidr = text.contains('/').then(|| text.parse().ok()).flatten();
    cidr.ok_or_else(|| "expected an address with the length of its prefix, as 10.9.0.2/24 or fd09::2/64".into())
}

fn parse_interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(secs) if secs == 0.0 || (0.1..=60.0).contains(&secs) => Ok(secs),
        _ => Err("expected 0, or seconds between 0.1 and 60".into()),
    }
}

/// A number with an optional suffix, a power of `base`.
fn scaled(text: &str, base: u64) -> Option<u64> {
    let power = match text.as_bytes().last()? {
        b'k' | b'K' => 1,
        b'm' | b'M' => 2,
        b'g' | b'G' => 3,
        b't' | b'T' => 4,
        _ => 0,
    };
    let digits = if power == 0 { text } else { &text[..text.len() - 1] };
    let scale = base.checked_pow(power)?;
    match digits.parse::<u64>() {
        Ok(number) => number.checked_mul(scale),
        // iperf3 takes 1.5G.
        Err(_) => {
            let number = digits.parse::<f64>().ok().filter(|n| n.is_finite() && *n >= 0.0)? * scale as f64;
            (number < 1e18).then_some(number as u64)
        }
    }
}

fn parse_count(text: &str) -> Result<u64, String> {
    scaled(text, 1024).filter(|&n| n > 0).ok_or_else(|| "expected a number above 0, as 1000, 10M or 1G".into())
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    let (rate, burst) = text.split_once('/').unwrap_or((text, "1"));
    let bits = scaled(rate, 1000).filter(|&bits| bits <= 1 << 50);
    let burst = burst.parse::<u32>().ok().filter(|n| (1..=1000).contains(n));
    match (bits, burst) {
        (Some(bits), Some(burst)) => Ok(Rate { bits, burst }),
        _ => Err("expected bits per second, as 100M or 10G, and perhaps /BURST from 1 to 1000".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_and_counts_take_suffixes() {
        assert_eq!(parse_rate("10M"), Ok(Rate { bits: 10_000_000, burst: 1 }));
        assert_eq!(parse_rate("1.5G/20"), Ok(Rate { bits: 1_500_000_000, burst: 20 }));
        assert_eq!(parse_rate("0"), Ok(Rate { bits: 0, burst: 1 }));
        assert_eq!(parse_count("10M"), Ok(10 << 20));
        for bad in ["", "M", "-1", "1Q", "10M/0", "10M/1001", "10M/", "nan", "inf", "99999999999999999999T"] {
            assert!(parse_rate(bad).is_err(), "{bad}");
        }
        assert!(parse_count("0").is_err() && parse_count("1e400").is_err());
        assert_eq!(parse_interval("0.5"), Ok(0.5));
        assert!(parse_interval("0.01").is_err() && parse_interval("61").is_err());
        assert!(parse_cidr("10.9.0.2").is_err() && parse_cidr("fd09::2/64").is_ok());
    }
}
