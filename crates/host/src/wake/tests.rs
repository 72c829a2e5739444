use std::sync::atomic::{AtomicBool, AtomicU64};

use super::*;

fn parkers() -> [Parker; 2] {
    [Parker::with_eventfd().unwrap(), Parker::with_futex()]
}

const MODES: [Wait; 3] = [Wait::Block, Wait::Spin, Wait::Adaptive];
const LONG: Option<Duration> = Some(Duration::from_secs(60));

#[test]
fn a_token_left_before_the_wait_is_kept_and_consumed_once() {
    for parker in parkers() {
        for mode in MODES {
            let unparker = parker.unparker();
            unparker.unpark();
            unparker.unpark();
            assert_eq!(parker.wait(mode, LONG), Woken::Unparked);
            assert_eq!(parker.wait(mode, Some(Duration::from_millis(2))), Woken::TimedOut);
            assert_eq!(parker.wait(mode, Some(Duration::ZERO)), Woken::TimedOut);
        }
    }
}

#[test]
fn timeouts_are_kept() {
    for parker in parkers() {
        for mode in MODES {
            let start = Instant::now();
            assert_eq!(parker.wait(mode, Some(Duration::from_millis(10))), Woken::TimedOut);
            assert!(start.elapsed() >= Duration::from_millis(10));
        }
    }
}

#[test]
fn a_condition_that_holds_needs_no_token() {
    for parker in parkers() {
        for mode in MODES {
            assert_eq!(parker.wait_until(mode, LONG, || true), Woken::Ready);
            // True at the second look, which is the one after the sleeper has said that it sleeps.
            let mut looks = 0;
            let woken = parker.wait_until(mode, LONG, || {
                looks += 1;
                looks > 1
            });
            assert_eq!(woken, Woken::Ready);
            assert!(!parker.unparker().unpark_if_asleep(), "awake again");
        }
    }
}

#[test]
fn a_sleeper_is_woken_from_another_thread() {
    for parker in parkers() {
        let unparker = parker.unparker();
        let waker = std::thread::spawn(move || {
            while !unparker.unpark_if_asleep() {
                std::thread::yield_now();
            }
        });
        assert_eq!(parker.wait(Wait::Block, None), Woken::Unparked);
        waker.join().unwrap();
    }
}

/// One producer publishes numbers, the consumer waits for each: a lost wake-up shows as a timeout.
fn stream(parker: &Parker, mode: Wait, tokens: bool) {
    const COUNT: u64 = 2_000;
    let published = Arc::new(AtomicU64::new(0));
    let consumed = Arc::new(AtomicU64::new(0));
    let (unparker, to, from) = (parker.unparker(), Arc::clone(&published), Arc::clone(&consumed));
    let producer = std::thread::spawn(move || {
        for i in 1..=COUNT {
            to.store(i, Relaxed);
            if tokens {
                unparker.unpark();
            } else {
                unparker.unpark_if_asleep();
            }
            // Often let the consumer run dry, so that sleeps really happen.
            while i % 3 == 0 && from.load(Acquire) < i {
                std::thread::yield_now();
            }
        }
    });
    let mut last = 0;
    while last < COUNT {
        let woken = if tokens {
            parker.wait(mode, LONG)
        } else {
            parker.wait_until(mode, LONG, || published.load(Relaxed) > last)
        };
        assert_ne!(woken, Woken::TimedOut, "lost wake-up at {last}");
        let now = published.load(Relaxed);
        assert!(now >= last);
        last = now;
        consumed.store(last, std::sync::atomic::Ordering::Release);
    }
    producer.join().unwrap();
}

#[test]
fn no_wake_up_is_lost_with_tokens() {
    for parker in parkers() {
        for mode in MODES {
            stream(&parker, mode, true);
            // The last token may be left over.
            let _ = parker.wait(mode, Some(Duration::ZERO));
        }
    }
}

#[test]
fn no_wake_up_is_lost_when_only_sleepers_are_woken() {
    for parker in parkers() {
        for mode in MODES {
            stream(&parker, mode, false);
        }
    }
}

#[test]
fn a_stale_descriptor_write_is_not_reported() {
    let parker = Parker::with_eventfd().unwrap();
    let unparker = parker.unparker();
    // The write of a waker that was late: the word says EMPTY, the descriptor is readable.
    unparker.inner.end_sleep();
    assert_eq!(parker.wait(Wait::Block, Some(Duration::from_millis(5))), Woken::TimedOut);
}

#[test]
fn an_event_loop_can_sleep_by_itself() {
    let parker = Parker::with_eventfd().unwrap();
    let unparker = parker.unparker();
    unparker.unpark();
    assert!(!parker.prepare_sleep(), "a token forbids the sleep");
    assert!(parker.prepare_sleep());
    assert!(unparker.unpark_if_asleep());
    let fd = parker.fd().unwrap();
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 60, tv_nsec: 0 })).unwrap(), 1);
    assert!(parker.finish_sleep());
    assert_eq!(poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap(), 0, "readable after finish_sleep");
}

#[test]
fn a_waker_of_a_future_leaves_a_token() {
    let parker = Parker::with_futex();
    let waker = parker.unparker().to_waker();
    let done = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&done);
    let thread = std::thread::spawn(move || {
        flag.store(true, SeqCst);
        waker.wake();
    });
    assert_eq!(parker.wait(Wait::Adaptive, LONG), Woken::Unparked);
    assert!(done.load(SeqCst));
    thread.join().unwrap();
}

#[test]
fn modes_are_spelled_as_on_the_command_line() {
    assert_eq!("block".parse(), Ok(Wait::Block));
    assert_eq!("spin".parse(), Ok(Wait::Spin));
    assert_eq!("adaptive".parse(), Ok(Wait::Adaptive));
    assert!("sleep".parse::<Wait>().unwrap_err().contains("adaptive"));
}
