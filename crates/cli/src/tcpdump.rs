//! `linerate tcpdump`: the packets of a running Linerate, printed or written as pcapng.
//!
//! The running process copies what the filter takes and sends it over its control socket; making a file or lines of it is
//! done here. Ctrl-C, or the count, ends the capture in order: the process says what it has left and what was counted, and
//! the file is finished with it. A process that goes away in the middle leaves a file of whole packets and an error.
//!
//! A filter that is wrong is found before anything is asked, and the spot is shown. Names are never looked up, so `-n` changes
//! nothing.

mod file;
mod print;

use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use linerate::control::{CaptureRequest, Client, ControlError, PacketRecord, PointRecord};
use linerate_host::interrupt;
use linerate_stack::tap::{Filter, MAX_SNAPLEN, Point};

use crate::attach::{Target, parse};
use crate::{Failure, Outcome};
use file::PcapFile;

/// How soon Ctrl-C is noticed.
const LOOK: Duration = Duration::from_millis(20);

/// Packets of a running Linerate.
#[derive(Clone, Debug, Args)]
#[command(
    after_help = "Points: rx (as the device gave it), rx-gro (after merging), tx (as the stack gives it to the device),
drop (dropped, with the reason and the place). Without -i: rx, tx and drop of all devices.

Examples:
  linerate tcpdump -c 10 tcp port 443         print ten
  linerate tcpdump -w F -i tun0:rx,tx         write a file for Wireshark
  linerate tcpdump -i drop                    what is dropped, and why
  linerate tcpdump -w - | tshark -r -         read by another program"
)]
pub(crate) struct TcpdumpArgs {
    /// Write pcapng to FILE (- is standard output) instead of printing
    #[arg(short = 'w', value_name = "FILE")]
    write: Option<PathBuf>,
    /// Only of this device, these points, or these points of this device
    #[arg(short = 'i', long = "interface", value_name = "DEVICE|POINTS|DEVICE:POINTS")]
    from: Option<String>,
    /// Bytes taken of a packet; 0: as many as there may be
    #[arg(short = 's', long = "snapshot-length", default_value_t = 0, value_name = "BYTES",
          value_parser = clap::value_parser!(u32).range(..=i64::from(MAX_SNAPLEN)))]
    snaplen: u32,
    /// End after so many
    #[arg(short = 'c', value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Room for packets in the running process
    #[arg(short = 'B', long = "buffer-size", default_value_t = 4096, value_name = "KIB",
          value_parser = clap::value_parser!(u64).range(64..=262_144))]
    buffer_kib: u64,
    /// Do not look up names: always so
    #[arg(short = 'n')]
    _numeric: bool,
    #[command(flatten)]
    target: Target,
    /// Which packets, as in pcap-filter(7): host, net, port, portrange, tcp, udp, icmp, ip6, tcp-syn, and, or, not ...
    #[arg(value_name = "FILTER", trailing_var_arg = true)]
    filter: Vec<String>,
}

/// `tun0`, `rx,drop` or `tun0:rx,tx`: a device and points.
fn selection(text: &str) -> Result<(Option<String>, Vec<String>), String> {
    let points = |text: &str| -> Option<Vec<String>> {
        let known = |name: &str| Point::by_name(name).map(|point| point.name().to_owned());
        text.split(',').map(known).collect()
    };
    if let Some(points) = points(text) {
        return Ok((None, points));
    }
    // A name of a device may have a colon in it.
    let (device, points) = match text.rsplit_once(':').map(|(device, rest)| (device, points(rest))) {
        Some((device, Some(points))) => (device, points),
        Some((_, None)) => {
            let names = Point::ALL.map(Point::name).join(", ");
            return Err(format!("-i {text}: points are {names}"));
        }
        None => (text, Vec::new()),
    };
    Ok(((!matches!(device, "any" | "")).then(|| device.to_owned()), points))
}

impl TcpdumpArgs {
    fn request(&self) -> Result<CaptureRequest, Failure> {
        let mut request = CaptureRequest::default();
        request.filter = self.filter.join(" ");
        Filter::parse(&request.filter)
            .map_err(|e| Failure::Usage(format!("the filter: {}", e.show(&request.filter))))?;
        if let Some(from) = &self.from {
            (request.device, request.points) = selection(from).map_err(Failure::Usage)?;
        }
        request.snaplen = if self.snaplen == 0 { MAX_SNAPLEN } else { self.snaplen };
        request.count = self.count;
        request.buffer_bytes = self.buffer_kib << 10;
        Ok(request)
    }
}

/// Where packets go.
enum Sink {
    File(PcapFile),
    Lines,
}

impl Sink {
    fn packet(&mut self, packet: &PacketRecord) -> Result<(), String> {
        match self {
            Self::File(file) => file.packet(packet),
            // A reader that went away ends the capture.
            Self::Lines => {
                let mut out = std::io::stdout().lock();
                writeln!(out, "{}", print::line(packet)).map_err(|e| format!("standard output: {e}"))
            }
        }
    }
}

/// What a capture came to.
#[derive(Default)]
struct Sums {
    taken: u64,
    points: Vec<PointRecord>,
}

/// Runs the verb.
pub(crate) fn main(args: &TcpdumpArgs) -> Outcome {
    let request = args.request()?;
    let mut client = args.target.connect()?;
    let mut sink = match &args.write {
        Some(path) => Sink::File(PcapFile::create(path, &request)?),
        None => Sink::Lines,
    };
    let ran = run(&mut client, &request, &mut sink);
    let sums = match &ran {
        Ok(sums) | Err((sums, _)) => sums,
    };
    if let Sink::File(file) = &mut sink {
        file.finish(&sums.points)?;
    }
    let sum = |of: fn(&PointRecord) -> u64| sums.points.iter().map(of).sum::<u64>();
    let (seen, matched, lost) = (sum(|p| p.seen_skbs), sum(|p| p.matched_skbs), sum(|p| p.lost_skbs));
    let taken = sums.taken;
    match ran {
        Ok(_) => {
            let said = format!(
                "{taken} skbs taken; {seen} came by, {matched} matched the filter, {lost} lost for want of room"
            );
            let _ = writeln!(std::io::stderr(), "{said}");
            Ok(())
        }
        Err((_, why)) => Err(Failure::Failed(why)),
    }
}

fn run(client: &mut Client, request: &CaptureRequest, sink: &mut Sink) -> Result<Sums, (Sums, String)> {
    let mut sums = Sums::default();
    let stopper = match client.stopper() {
        Ok(stopper) => stopper,
        Err(e) => return Err((sums, e.to_string())),
    };
    // It looks until the process ends: reading the answer can not be interrupted, and looking costs nothing.
    std::thread::spawn(move || {
        while !interrupt::caught() {
            std::thread::sleep(LOOK);
        }
        stopper.stop();
    });
    let mut failed = None;
    let done = client.stream("capture", request, |key, value| {
        match key {
            "packet" => {
                let packet = parse(value)?;
                if let Err(why) = sink.packet(&packet) {
                    failed = Some(why.clone());
                    // Any error ends the stream; this one is told instead of it.
                    return Err(ControlError::Garbage(why));
                }
                sums.taken += 1;
            }
            "capturing" => crate::usage::complain("capturing; Ctrl-C ends it"),
            "point" => sums.points.push(parse(value)?),
            _ => {}
        }
        Ok(())
    });
    match (done, failed) {
        (Ok(_), _) => Ok(sums),
        // `| head` has seen enough.
        (Err(_), Some(_)) if matches!(sink, Sink::Lines) => Ok(sums),
        (Err(_), Some(why)) => Err((sums, why)),
        (Err(e), None) => Err((sums, e.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_and_points_are_told_apart() {
        let is = |text: &str, device: Option<&str>, points: &[&str]| {
            let (d, p) = selection(text).expect(text);
            assert_eq!(
                (d.as_deref(), p.iter().map(String::as_str).collect::<Vec<_>>()),
                (device, points.to_vec()),
                "{text}"
            );
        };
        is("tun0", Some("tun0"), &[]);
        is("rx", None, &["rx"]);
        is("tx,drop", None, &["tx", "drop"]);
        is("tun0:rx-gro", Some("tun0"), &["rx-gro"]);
        is("eth0:1:rx,tx", Some("eth0:1"), &["rx", "tx"]);
        is("any", None, &[]);
        is("any:drop", None, &["drop"]);
        assert!(selection("tun0:wire").is_err_and(|e| e.contains("rx, rx-gro, tx, drop")));
    }
}
