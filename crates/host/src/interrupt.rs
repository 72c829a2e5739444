//! Ctrl-C as a question: was it pressed?
//!
//! [`catch`] installs a handler for SIGINT, SIGTERM and SIGHUP that does nothing but note the signal in an atomic word;
//! loops ask [`caught`] where they can stop cleanly and print what they have. The handler resets itself, so the second
//! signal ends the process at once, however deep the first one found it. System calls restart: nobody sees EINTR who did
//! not before. One word for the process, because signals belong to processes; no thread, no pipe, no allocation.

use std::io;
use std::sync::atomic::{AtomicI32, Ordering};

static CAUGHT: AtomicI32 = AtomicI32::new(0);

extern "C" fn note(signal: libc::c_int) {
    CAUGHT.store(signal, Ordering::Relaxed);
}

fn set_handler(signal: libc::c_int, handler: libc::sighandler_t) -> io::Result<()> {
    // SAFETY: all-zero bytes are a valid `sigaction`: no handler, an empty mask, no flags.
    let mut action: libc::sigaction = unsafe { core::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = libc::SA_RESTART | libc::SA_RESETHAND;
    // SAFETY: the action is a local that outlives the call, no old action is asked for, and the only handler given,
    // `note`, stores to a lock-free atomic, which is async-signal-safe.
    let failed = unsafe { libc::sigaction(signal, &raw const action, core::ptr::null_mut()) };
    if failed == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Notes SIGINT, SIGTERM and SIGHUP from now on instead of dying of the first one.
///
/// # Errors
/// Those of `sigaction(2)`.
pub fn catch() -> io::Result<()> {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP] {
        set_handler(signal, note as *const () as libc::sighandler_t)?;
    }
    Ok(())
}

/// Lets Ctrl-C pass: for a child whose parent decides when it ends (the terminal signals the whole process group).
///
/// # Errors
/// Those of `sigaction(2)`.
pub fn ignore() -> io::Result<()> {
    set_handler(libc::SIGINT, libc::SIG_IGN)
}

/// Whether a signal was noted.
pub fn caught() -> bool {
    CAUGHT.load(Ordering::Relaxed) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_noted_once_and_the_process_lives() {
        assert!(!caught());
        set_handler(libc::SIGUSR1, note as *const () as libc::sighandler_t).unwrap();
        rustix::process::kill_process(rustix::process::getpid(), rustix::process::Signal::USR1).unwrap();
        // Delivered to some thread of this process, perhaps a little later.
        for _ in 0..1000 {
            if caught() {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
        panic!("the handler did not run");
    }
}
