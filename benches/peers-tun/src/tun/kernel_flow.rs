//! The kernel against itself: over a veth pair between two network namespaces, and over the loopback.
//!
//! Both ends are the plain program of [`kernel_end`](super::kernel_end), each on its own thread, both with CUBIC. A veth
//! pair hands super-packets over whole and never sums them, as a TUN with a virtio header does; so its flow is what a
//! stack in user space can be measured with, its system calls and copies included.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::mpsc;
use std::thread;

use linerate_host::netns;
use linerate_host::rtnl::{LinkChange, Rtnl};

use super::kernel_end::{Metered, connect_and_measure, oppose, prepare};
use super::{CONTENDER, Contender, End, Error, KERNEL, PORT, Plan, WARM_UP, pin};

type Run = Result<(Metered, String), Error>;

/// Over 127.0.0.1. Both directions are the same; the meter reads or writes as in the other rows.
pub(crate) fn loopback(plan: &Plan) -> Run {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let to = listener.local_addr()?;
    Ok((flow(plan, to, move || Ok(listener))?, "kernel, loopback, cubic".into()))
}

/// Over a veth pair of this MTU.
pub(crate) fn veth(plan: &Plan) -> Run {
    let mtu = plan.mtu;
    let metered = flow(plan, (CONTENDER, PORT).into(), move || {
        let home = std::fs::File::open("/proc/self/ns/net")?;
        netns::enter_fresh_network()?;
        let mut rtnl = Rtnl::open()?;
        rtnl.add_veth("peers1", "peers0", &home).map_err(|e| Error::Unavailable(format!("a veth pair: {e}")))?;
        set_up(&mut rtnl, "peers1", CONTENDER, mtu)?;
        Ok(TcpListener::bind((CONTENDER, PORT))?)
    })?;
    Ok((metered, "kernel, veth between two namespaces, cubic".into()))
}

fn set_up(rtnl: &mut Rtnl, name: &str, address: Ipv4Addr, mtu: u32) -> Result<(), Error> {
    let ifindex = rtnl.link(name)?.ifindex;
    let address = format!("{address}/24").parse().map_err(|e| Error::Failed(format!("{address}: {e:?}")))?;
    rtnl.add_address(ifindex, address)?;
    Ok(rtnl.set_link(ifindex, LinkChange { up: Some(true), mtu_bytes: Some(mtu), ..LinkChange::default() })?)
}

/// `listen` runs on the thread of the far end, in whatever namespace it enters.
fn flow(
    plan: &Plan,
    to: SocketAddr,
    listen: impl FnOnce() -> Result<TcpListener, Error> + Send,
) -> Result<Metered, Error> {
    let (ready, far_is_ready) = mpsc::channel();
    thread::scope(|s| {
        // It takes the place of the contender.
        let far = s.spawn(move || -> Result<f64, Error> {
            pin(End::Contender);
            let listener = listen()?;
            prepare(&listener)?;
            let _ = ready.send(());
            let stream = listener.accept()?.0;
            let (cpu, since) = (linerate_host::cpu_time(), std::time::Instant::now());
            oppose(stream, plan.dir)?;
            Ok((linerate_host::cpu_time() - cpu).as_secs_f64() / since.elapsed().as_secs_f64())
        });
        let near = (|| -> Result<Metered, Error> {
            // Without a word the far end ended; why, is its own result.
            pin(End::Kernel);
            far_is_ready.recv().map_err(|_| Error::Failed("the far end did not come up".into()))?;
            if plan.contender == Contender::Veth {
                set_up(&mut Rtnl::open()?, "peers0", KERNEL, plan.mtu)?;
            }
            Ok(connect_and_measure(to, plan.dir, [WARM_UP, plan.time])?)
        })();
        let far = far.join().map_err(|_| Error::Failed("the far end panicked".into()))?;
        // When the far end failed, what this end saw is only a consequence.
        let cores = far?;
        near.map(|metered: Metered| Metered { cores_contender: Some(cores), ..metered })
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tun::Dir;
    use std::time::Duration;

    #[test]
    fn the_kernel_moves_the_stream_intact_over_its_loopback() {
        for dir in [Dir::To, Dir::From] {
            let plan = Plan { time: Duration::from_millis(20), ..Plan::new(Contender::Loopback, dir) };
            // CUBIC is a privilege where it is not the default; in a namespace of our own it is not.
            match loopback(&plan) {
                Ok((metered, _)) => assert!(metered.bits_per_second > 0.0),
                Err(e) if std::env::var("LINERATE_REQUIRE").is_ok_and(|v| v == "all") => panic!("{e}"),
                Err(e) => println!("skipped: {e}"),
            }
        }
    }
}
