//! Work that runs only while its member leads.

use std::future::Future;
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

use tenure_core::epoch::Epoch;
use tenure_core::gate::{Act, LeaderToken};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::LeaderLock;
use crate::error::TenureError;

/// The gate is looked at this often although nothing wakes the task: the runtime's timers do not
/// count the time that the machine was suspended.
const LOOK: Duration = Duration::from_secs(1);
/// The same while the role drains, until the last act has ended.
const LOOK_DRAINING: Duration = Duration::from_millis(5);

impl LeaderLock {
    /// Runs `work` while this process leads: calls it when the gate opens, drops its future when the
    /// gate shuts, and calls it again when the gate opens again. Starts the role if it is not started.
    ///
    /// Returns when the role has stopped: [`LeaderLock::shutdown`], the member's end, a loss or step-down
    /// without `auto_reacquire`, or a registration that the database refuses ([`LeaderLock::refusal`]
    /// tells). Work that returns earlier is done for this term, and is called again in the next one.
    ///
    /// ```no_run
    /// # async fn run() -> Result<(), Box<dyn std::error::Error>> {
    /// use std::time::Duration;
    ///
    /// let (_member, lock) = tenure::lead("postgresql://localhost/app", "scheduler").await?;
    /// lock.while_leading(|term| async move {
    ///     loop {
    ///         println!("epoch {}: one job after another", term.epoch);
    ///         tokio::time::sleep(Duration::from_secs(1)).await;
    ///     }
    /// })
    /// .await?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # What cancel means
    ///
    /// The future is dropped at an `await`. Work that blocks its thread is not interrupted, and tasks
    /// that it spawned live on: keep them in the future (a `JoinSet` aborts its tasks when it is
    /// dropped).
    ///
    /// - *The role is let go in good order* (step-down, shutdown): the work counts as an act. The future is
    ///   dropped as soon as no other act of the role is in flight, and the release waits for that. So
    ///   the next leader starts after the future was dropped. An act that the work has begun may end,
    ///   within the role's drain limit.
    /// - *The lease ends* (no heartbeat succeeds, the session is lost, the process was frozen): the
    ///   future is dropped without being polled again, and by the task that runs this function alone:
    ///   the deadline is a timer of its own, and the gate is asked before every poll.
    ///
    /// A process may still be paused while the work is between two `await`s, and wake up when another
    /// member leads. Effects that must not happen then are written through the [`crate::fence`] under
    /// `term.epoch`, or begin with [`LeaderLock::begin_act`] and end with
    /// [`Act::finish`](crate::Act::finish), which tells that the effect is uncertain.
    ///
    /// Dropping the returned future drops the work too; the role goes on.
    ///
    /// # Errors
    /// As [`LeaderLock::start`].
    pub async fn while_leading<W, F>(&self, mut work: W) -> Result<(), TenureError>
    where
        W: FnMut(LeaderToken) -> F,
        F: Future<Output = ()>,
    {
        let (stopped, mut told) = oneshot::channel();
        self.join(Some(stopped)).await?;
        let mut finished = None;
        loop {
            let token = tokio::select! {
                biased;
                // Told, or dropped with the driver.
                _ = &mut told => return Ok(()),
                // Both branches are cancel-safe: they only look.
                opened = self.opened(finished) => match opened {
                    Ok(token) => token,
                    Err(_) => return Ok(()),
                },
            };
            // Shut again at once: wait for the next opening.
            let Ok(act) = self.publisher.gate.begin_act(Duration::ZERO) else { continue };
            if act.epoch() != token.epoch {
                continue;
            }
            let epoch = token.epoch;
            if self.run_until_shut(&act, work(token)).await {
                finished = Some(epoch);
            }
            // After the work: the release waits for this act.
            drop(act);
        }
    }

    /// Polls the work to its end (true), or until its term is over (false). The work is dropped before
    /// this returns.
    async fn run_until_shut(&self, act: &Act, work: impl Future<Output = ()>) -> bool {
        let gate = &self.publisher.gate;
        let mut work = pin!(work);
        // Its own act apart, none is in flight that a drain would wait for.
        let is_over = || act.check().is_err() || (!gate.is_leader() && gate.in_flight() <= 1);
        loop {
            let changed = self.publisher.changed();
            if is_over() {
                return false;
            }
            let left = gate.remaining();
            let look = if left.is_zero() { LOOK_DRAINING } else { left.min(LOOK) };
            let poll = poll_fn(|context| {
                if act.check().is_err() {
                    return Poll::Ready(false);
                }
                match work.as_mut().poll(context) {
                    Poll::Ready(()) => Poll::Ready(true),
                    Poll::Pending if is_over() => Poll::Ready(false),
                    Poll::Pending => Poll::Pending,
                }
            });
            // Every branch is cancel-safe; the work is kept and only borrowed.
            tokio::select! {
                biased;
                () = changed => {}
                () = sleep(look) => {}
                finished = poll => return finished,
            }
        }
    }

    /// Waits for an open gate, of another term than `finished`.
    pub(super) async fn opened(&self, finished: Option<Epoch>) -> Result<LeaderToken, TenureError> {
        loop {
            // Before the gate is asked: what changes afterwards wakes this task. That is also a late
            // heartbeat, which opens a gate again whose deadline had passed.
            let changed = self.publisher.changed();
            let leads = self.publisher.view().leading.is_leader;
            // The gate alone is a moment ahead of the state: a step-down would not find a leader yet.
            if leads
                && let Ok(token) = self.publisher.gate.peek()
                && finished != Some(token.epoch)
            {
                return Ok(token);
            }
            tokio::select! {
                () = changed => {}
                () = self.member.commands.closed() => return Err(TenureError::Stopped),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures_util::future::BoxFuture;
    use tenure_core::clock::{BootClock, Clock, Tick};
    use tenure_core::gate::{GateKeeper, LeaderGate};
    use tenure_core::identity::Identity;
    use tenure_core::key::RoleName;
    use tenure_core::lease::{Lease, LeaseSpec};
    use tenure_core::retry::ExponentialBackoff;
    use tokio::sync::mpsc;
    use tokio::time::timeout;

    use super::*;
    use crate::driver::{Command, Handle};
    use crate::lock::{Leader, LeaderSource, Observed};
    use crate::publisher::Publisher;

    const LEASE: Duration = Duration::from_millis(100);
    const PATIENCE: Duration = Duration::from_secs(20);

    /// A leading role that no driver looks after: nothing tells the handle that the lease has ended.
    struct Unattended {
        lock: LeaderLock,
        keeper: GateKeeper,
        deadline: Tick,
        commands: mpsc::UnboundedReceiver<crate::driver::Command>,
    }

    fn unattended() -> Unattended {
        let identity = Identity::generate("test").expect("a name");
        let (mut keeper, gate) = LeaderGate::pair(Arc::new(BootClock), identity.clone());
        let deadline = BootClock.now() + LEASE;
        assert!(keeper.open(Epoch(7), deadline));
        let name = RoleName::new("r").expect("a name");
        let key = name.key();
        let publisher = Publisher::new(name, key, gate);
        publisher.set_leading(Some(Epoch(7)));
        let (commands, inbox) = mpsc::unbounded_channel();
        let short = LeaseSpec {
            heartbeat: Some(LEASE / 5),
            lease: Some(LEASE),
            statement_deadline: Some(LEASE / 20),
            ..LeaseSpec::default()
        };
        let lease = short.resolve().expect("a lease");
        let member = Arc::new(Handle {
            commands,
            clock: Arc::new(BootClock),
            identity,
            lease,
            retry: Arc::new(ExponentialBackoff::default()),
            enabled: true,
            patience: None,
            observed: Observed::new(Arc::new(NoLeaders), Lease::default()),
        });
        let lock = LeaderLock { publisher, member };
        Unattended { lock, keeper, deadline, commands: inbox }
    }

    struct NoLeaders;

    impl LeaderSource for NoLeaders {
        fn leaders<'a>(
            &'a self,
            _roles: &'a [RoleName],
            _again: &'a (dyn Fn() -> bool + Sync),
        ) -> BoxFuture<'a, Result<BTreeMap<RoleName, Leader>, TenureError>> {
            Box::pin(std::future::ready(Ok(BTreeMap::new())))
        }

        fn close(&self) -> BoxFuture<'_, ()> {
            Box::pin(std::future::ready(()))
        }
    }

    /// Tells when it was dropped.
    struct Guard(mpsc::UnboundedSender<Tick>);

    impl Drop for Guard {
        fn drop(&mut self) {
            let _ = self.0.send(BootClock.now());
        }
    }

    #[tokio::test]
    async fn a_deadline_that_passes_without_any_event_drops_the_work() {
        let mut role = unattended();
        let (ended, mut ends) = mpsc::unbounded_channel();
        let lock = role.lock.clone();
        let task = tokio::spawn(async move {
            lock.while_leading(|_| {
                let guard = Guard(ended.clone());
                async move {
                    let _guard = guard;
                    std::future::pending::<()>().await;
                }
            })
            .await
        });
        let end = timeout(PATIENCE, ends.recv()).await.expect("it is dropped").expect("an end");
        assert!(end >= role.deadline, "not before the deadline");
        assert_eq!(role.lock.gate().in_flight(), 0);
        // A late heartbeat opens the gate again, and the work is called again.
        let deadline = BootClock.now() + LEASE;
        assert!(role.keeper.extend(Epoch(7), deadline));
        role.lock.publisher.publish_deadline();
        let end = timeout(PATIENCE, ends.recv()).await.expect("it is dropped").expect("an end");
        assert!(end >= deadline);
        task.abort();
    }

    #[tokio::test]
    async fn a_role_that_is_stopped_before_it_began_ends_its_work() {
        let mut role = unattended();
        role.lock.publisher.set_leading(None);
        let lock = role.lock.clone();
        let task =
            tokio::spawn(async move { lock.while_leading(|_| std::future::pending()).await });
        // The answer to the start is kept: it never comes.
        let Some(Command::Start { stopped: Some(stopped), answer: _answer, .. }) =
            role.commands.recv().await
        else {
            panic!("it asks to start")
        };
        stopped.send(()).expect("it waits for the stop");
        timeout(PATIENCE, task).await.expect("it returns").expect("no panic").expect("no error");
    }

    #[tokio::test]
    async fn work_that_was_frozen_over_its_deadline_is_not_polled_again() {
        let role = unattended();
        let polls = Arc::new(AtomicUsize::new(0));
        let (ended, mut ends) = mpsc::unbounded_channel();
        let work = role.lock.while_leading(|_| {
            let (polls, guard) = (polls.clone(), Guard(ended.clone()));
            poll_fn(move |context| {
                let _guard = &guard;
                polls.fetch_add(1, Ordering::SeqCst);
                std::thread::sleep(LEASE * 2);
                context.waker().wake_by_ref();
                Poll::<()>::Pending
            })
        });
        tokio::select! {
            ended = work => panic!("the role goes on: {ended:?}"),
            end = timeout(PATIENCE, ends.recv()) => end.expect("it is dropped").expect("an end"),
        };
        assert_eq!(polls.load(Ordering::SeqCst), 1);
    }
}
