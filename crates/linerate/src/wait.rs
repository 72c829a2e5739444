//! How a thread that uses a remote socket waits: one parker per thread, and the loop around a `poll_*` verb.
//!
//! Every blocking verb is its `poll_*` verb in this loop, so there is one waiting protocol and it is the one that loom
//! has checked (`linerate_stack::remote`). A thread has one parker for all its sockets; a token that another socket's shard
//! left costs one more poll and is otherwise harmless. The parker sleeps on a futex and holds no descriptor.
//!
//! Limits: the time limit is looked at only when the thread would wait; a verb that makes progress is never cut off.

use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use linerate_host::{Parker, Wait, Woken};

use crate::error::Error;

struct ThreadParker {
    parker: Parker,
    waker: Waker,
}

thread_local! {
    static PARKER: ThreadParker = {
        let parker = Parker::with_futex();
        let waker = parker.unparker().to_waker();
        ThreadParker { parker, waker }
    };
}

/// Polls until ready or until `limit` has passed since now.
pub(crate) fn block_on<T, E: Into<Error>>(
    mode: Wait,
    limit: Option<Duration>,
    mut poll: impl FnMut(&mut Context<'_>) -> Poll<Result<T, E>>,
) -> Result<T, Error> {
    PARKER.with(|p| {
        let mut cx = Context::from_waker(&p.waker);
        // The clock is read only by calls that have a limit and have to wait.
        let mut deadline = None;
        loop {
            if let Poll::Ready(done) = poll(&mut cx) {
                return done.map_err(Into::into);
            }
            let left = limit.map(|limit| {
                let deadline = *deadline.get_or_insert_with(|| Instant::now().checked_add(limit));
                deadline.map_or(Duration::MAX, |d| d.saturating_duration_since(Instant::now()))
            });
            if p.parker.wait(mode, left) == Woken::TimedOut {
                return match poll(&mut cx) {
                    Poll::Ready(done) => done.map_err(Into::into),
                    Poll::Pending => Err(Error::TimedOut),
                };
            }
        }
    })
}
