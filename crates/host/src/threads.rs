//! Threads: which CPUs this process may use, pinning to one of them, and named threads.
//!
//! A shard belongs to one thread at a time and likes to stay on one core: its pools are warm there. Pinning is a wish of
//! the caller, never a default: on a shared machine a pinned thread waits for its core while others are idle. The masks
//! are the kernel's affinity masks, so a container's limits show; they are read anew at each call.

use std::io;
use std::thread::{Builder, JoinHandle};

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// The CPUs that the calling thread may run on, ascending. Never empty where the kernel answers.
pub fn allowed_cpus() -> io::Result<Vec<usize>> {
    let set = sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|&cpu| set.is_set(cpu)).collect())
}

/// Pins the calling thread to `cpu`, a number of [`allowed_cpus`].
///
/// Errors: `EINVAL` for a CPU that does not exist or is not allowed.
pub fn pin_to_cpu(cpu: usize) -> io::Result<()> {
    if cpu >= CpuSet::MAX_CPU {
        return Err(io::Error::from(rustix::io::Errno::INVAL));
    }
    let mut set = CpuSet::new();
    set.set(cpu);
    Ok(sched_setaffinity(None, &set)?)
}

/// The CPU that the calling thread runs on at this moment.
pub fn current_cpu() -> usize {
    rustix::thread::sched_getcpu()
}

/// The kernel's id of the calling thread, for [`crate::task_cpu_time`].
pub fn current_tid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs()
}

/// Spawns a thread called `name` (the kernel shows the first 15 bytes).
pub fn spawn_named<T, F>(name: impl Into<String>, f: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    Builder::new().name(name.into()).spawn(f)
}

/// Spawns a thread called `name` that pins itself to `cpu` before it runs `f`. A failed pin is handed to `f`, which
/// knows whether that matters (a benchmark says so, a server goes on).
pub fn spawn_pinned<T, F>(name: impl Into<String>, cpu: usize, f: F) -> io::Result<JoinHandle<T>>
where
    F: FnOnce(io::Result<()>) -> T + Send + 'static,
    T: Send + 'static,
{
    spawn_named(name, move || f(pin_to_cpu(cpu)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pinned_thread_stays_and_others_are_untouched() {
        let before = allowed_cpus().unwrap();
        assert!(!before.is_empty());
        let cpu = *before.last().unwrap();
        let (seen, allowed) = spawn_pinned("pinned", cpu, |pinned| {
            pinned.unwrap();
            (current_cpu(), allowed_cpus().unwrap())
        })
        .unwrap()
        .join()
        .unwrap();
        assert_eq!(seen, cpu);
        assert_eq!(allowed, [cpu]);
        assert_eq!(allowed_cpus().unwrap(), before);
    }

    #[test]
    fn an_impossible_cpu_is_an_error() {
        assert!(pin_to_cpu(usize::MAX).is_err());
        assert!(pin_to_cpu(CpuSet::MAX_CPU - 1).is_err());
    }

    #[test]
    fn names_reach_the_kernel() {
        let comm =
            spawn_named("shard-7", || std::fs::read_to_string(format!("/proc/self/task/{}/comm", current_tid())))
                .unwrap()
                .join()
                .unwrap();
        assert_eq!(comm.unwrap().trim(), "shard-7");
    }
}
