//! What this process costs the machine: CPU time of threads and of the process, resident memory.
//!
//! Figures are the kernel's own: the CPU clocks of `clock_gettime` for the caller's side, `/proc` for another thread of
//! this process and for memory. They are read at the ends of a measurement, not per packet: a CPU clock is a system
//! call of some 100 ns, a file of `/proc` several microseconds. CPU time includes the system time spent on the caller's
//! behalf; time stolen by a hypervisor is not seen by a guest and is not in it.

use std::time::Duration;
use std::{fs, io};

use rustix::time::{ClockId, Timespec, clock_gettime};

/// CPU time, user and system, of the calling thread since it started.
pub fn cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ThreadCPUTime))
}

/// CPU time, user and system, of all threads of this process, ended ones included.
pub fn process_cpu_time() -> Duration {
    duration(clock_gettime(ClockId::ProcessCPUTime))
}

/// CPU time of another thread of this process, by its [`crate::threads::current_tid`].
///
/// Errors: `NotFound` once the thread has ended, or where the kernel keeps no `schedstat`.
pub fn task_cpu_time(tid: u32) -> io::Result<Duration> {
    let text = fs::read_to_string(format!("/proc/self/task/{tid}/schedstat"))?;
    first_number(&text, 0).map(Duration::from_nanos)
}

/// Resident memory of this process in bytes, shared pages included.
pub fn rss_bytes() -> io::Result<u64> {
    let pages = first_number(&fs::read_to_string("/proc/self/statm")?, 1)?;
    Ok(pages.saturating_mul(rustix::param::page_size() as u64))
}

/// Word number `at` of `text` as a number.
fn first_number(text: &str, at: usize) -> io::Result<u64> {
    text.split_ascii_whitespace()
        .nth(at)
        .and_then(|word| word.parse().ok())
        .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "not a number where the kernel documents one"))
}

fn duration(t: Timespec) -> Duration {
    // CPU clocks start at zero, so neither part is negative.
    Duration::new(t.tv_sec as u64, t.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::threads::current_tid;

    #[test]
    fn work_costs_cpu_time_and_sleep_does_not() {
        // In this order, so that the process is observed for the whole span in which the thread is.
        let process = process_cpu_time();
        let thread = cpu_time();
        let mut x = 1_u64;
        while cpu_time() - thread < Duration::from_millis(5) {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        assert!(process_cpu_time() - process >= Duration::from_millis(5));
        let before = cpu_time();
        std::thread::sleep(Duration::from_millis(50));
        assert!(cpu_time() - before < Duration::from_millis(40));
    }

    #[test]
    fn a_thread_is_seen_from_outside_until_it_ends() {
        match task_cpu_time(current_tid()) {
            Ok(seen) => assert!(seen <= cpu_time()),
            Err(e) => assert_eq!(e.kind(), io::ErrorKind::NotFound, "a kernel without schedstat"),
        }
        let tid = std::thread::spawn(current_tid).join().unwrap();
        // The kernel removes the entry shortly after a join returns.
        for _ in 0..1_000 {
            if task_cpu_time(tid).is_err() {
                return;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        panic!("an ended thread keeps its entry");
    }

    #[test]
    fn touched_memory_is_resident() {
        let before = rss_bytes().unwrap();
        assert!(before > 0);
        let block = std::hint::black_box(vec![1_u8; 32 << 20]);
        let after = rss_bytes().unwrap();
        assert!(after >= before + (24 << 20), "{before} -> {after}");
        drop(block);
    }

    #[test]
    fn malformed_files_are_errors() {
        assert!(first_number("", 0).is_err());
        assert!(first_number("12", 1).is_err());
        assert!(first_number("1 x", 1).is_err());
        assert_eq!(first_number("1 22 3\n", 1).unwrap(), 22);
    }
}
