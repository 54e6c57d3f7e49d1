//! The roles as their handles see them: states, events, answers to `start`, health.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tenure_core::clock::Tick;
use tenure_core::engine::Engine;
use tenure_core::epoch::Epoch;
use tenure_core::key::{LockKey, RoleName};
use tenure_core::lifecycle::{LockState, Notice};
use tenure_core::protocol::RegisterRefusal;

use super::RoleHealth;
use super::command::{Answer, Stopped};
use crate::error::TenureError;
use crate::metrics;
use crate::publisher::Publisher;

#[derive(Default)]
pub(super) struct Roles(BTreeMap<RoleName, Box<Role>>);

struct Role {
    publisher: Arc<Publisher>,
    /// Callers of `start` that wait for the registration.
    starts: Vec<Answer>,
    /// Callers of `shutdown` and of `while_leading` that wait for the next stop.
    stops: Vec<Stopped>,
    /// Starts that came while the role was released for a stop: they are carried out after it.
    held: Vec<(Answer, Option<Stopped>)>,
    /// When the term began that goes on.
    led_since: Option<Tick>,
    /// The attempts to lead since the last term.
    attempts: u32,
    /// What stands before the role and cannot be ended from here.
    obstacle: Option<String>,
}

/// Whether the driver ends well or is aborted: its handles find their roles stopped.
impl Drop for Roles {
    fn drop(&mut self) {
        for role in self.0.values() {
            role.publisher.stop();
        }
    }
}

impl Role {
    fn end_term(&mut self) {
        if self.led_since.take().is_some() {
            metrics::tenure(&self.publisher.name, Duration::ZERO);
        }
    }
}

impl Roles {
    pub(super) fn add(&mut self, publisher: Arc<Publisher>) {
        metrics::role_added(&publisher.name);
        let role = Role {
            starts: Vec::new(),
            stops: Vec::new(),
            held: Vec::new(),
            led_since: None,
            attempts: 0,
            obstacle: None,
            publisher,
        };
        self.0.insert(role.publisher.name.clone(), Box::new(role));
    }

    /// The answer comes when the database has taken the registration, or could not be asked.
    pub(super) fn await_registration(&mut self, role: &RoleName, answer: Answer) {
        match self.0.get_mut(role) {
            Some(role) => role.starts.push(answer),
            None => drop(answer.send(Err(TenureError::Stopped))),
        }
    }

    /// The answer comes when the role has stopped, and its handles see it.
    pub(super) fn await_stop(&mut self, role: &RoleName, stopped: Stopped) {
        if let Some(role) = self.0.get_mut(role) {
            // Callers may have gone: one that begins its work anew for every term must not fill the list.
            role.stops.retain(|waiting| !waiting.is_closed());
            role.stops.push(stopped);
        }
    }

    /// The start waits for the end of the stop under way.
    pub(super) fn hold_start(&mut self, role: &RoleName, answer: Answer, stopped: Option<Stopped>) {
        if let Some(role) = self.0.get_mut(role) {
            role.held.push((answer, stopped));
        }
    }

    /// The starts that waited for the stop, in their order.
    pub(super) fn held_starts(&mut self, role: &RoleName) -> Vec<(Answer, Option<Stopped>)> {
        self.0.get_mut(role).map(|role| std::mem::take(&mut role.held)).unwrap_or_default()
    }

    /// A stop follows the starts that wait for one: the stop under way serves both, and they are answered with it.
    pub(super) fn take_back_starts(&mut self, role: &RoleName) {
        for (answer, stopped) in self.held_starts(role) {
            self.await_registration(role, answer);
            if let Some(stopped) = stopped {
                self.await_stop(role, stopped);
            }
        }
    }

    pub(super) fn registered(
        &mut self,
        name: &RoleName,
        result: Result<(), RegisterRefusal>,
        now: Tick,
    ) {
        let Some(role) = self.0.get_mut(name) else { return };
        let result = result.map_err(|why| TenureError::Registration { role: name.clone(), why });
        if let Err(error) = &result {
            role.publisher.publish(Notice::Error(error.to_string()), now);
        }
        // Its memory goes too: there may be ten thousand roles.
        for waiting in std::mem::take(&mut role.starts) {
            let _ = waiting.send(result.clone());
        }
        // Before the role's stop is told, which follows a refusal.
        role.publisher.set_refusal(result.err());
    }

    /// No role can be registered: every caller that waits is told why.
    pub(super) fn refused(&mut self, error: &TenureError) {
        for waiting in self.0.values_mut().flat_map(|role| role.starts.drain(..)) {
            let _ = waiting.send(Err(error.clone()));
        }
    }

    pub(super) fn notice(
        &mut self,
        name: &RoleName,
        member: &str,
        epoch: Option<Epoch>,
        notice: Notice,
        logged: bool,
        now: Tick,
    ) {
        let Some(role) = self.0.get_mut(name) else { return };
        match &notice {
            Notice::StateChange { to: LockState::Acquiring, .. } => {
                role.attempts = role.attempts.saturating_add(1);
            }
            Notice::Acquired { .. } => role.led_since = Some(now),
            Notice::Released { .. } | Notice::Lost { .. } | Notice::Stopped => role.end_term(),
            // A term survives a late heartbeat and a lost session that is won back.
            Notice::Late { .. } | Notice::Well { .. } | Notice::Recovered { .. } => {}
            Notice::StateChange { .. } | Notice::AcquireFailed { .. } | Notice::Error(_) => {}
        }
        let Role { publisher, attempts, starts, stops, .. } = &mut **role;
        metrics::notice(name, member, publisher.key, epoch, *attempts, &notice, logged);
        if matches!(notice, Notice::Acquired { .. }) {
            *attempts = 0;
        }
        let has_stopped = matches!(notice, Notice::Stopped);
        if has_stopped {
            publisher.set_leading(None);
        }
        publisher.publish(notice, now);
        if has_stopped {
            for waiting in std::mem::take(stops) {
                let _ = waiting.send(());
            }
            // A registration that did not come to its answer never will; that is no refusal.
            for waiting in std::mem::take(starts) {
                let _ = waiting.send(Ok(()));
            }
        }
    }

    pub(super) fn gate(&mut self, name: &RoleName, epoch: Option<Epoch>) {
        let Some(role) = self.0.get_mut(name) else { return };
        role.publisher.set_leading(epoch);
        metrics::gate(name, epoch);
        if epoch.is_some() {
            role.obstacle = None;
        }
    }

    /// Every open gate has a later deadline.
    pub(super) fn renewed(&self) {
        for role in self.0.values() {
            role.publisher.publish_deadline();
        }
    }

    /// Told once, however often it is found.
    pub(super) fn obstructed(&mut self, name: &RoleName, obstacle: String, now: Tick) -> bool {
        let Some(role) = self.0.get_mut(name) else { return false };
        if role.obstacle.as_ref() == Some(&obstacle) {
            return false;
        }
        role.publisher.publish(Notice::Error(obstacle.clone()), now);
        role.obstacle = Some(obstacle);
        true
    }

    /// How long each term has lasted.
    pub(super) fn meter(&self, now: Tick) {
        for (name, role) in &self.0 {
            if let Some(since) = role.led_since {
                metrics::tenure(name, now.saturating_since(since));
            }
        }
    }

    /// The locks of the roles that follow.
    pub(super) fn waiting_keys(&self, engine: &Engine) -> Vec<LockKey> {
        self.0
            .iter()
            .filter(|(name, _)| matches!(engine.state(name), Some((LockState::Follower, _))))
            .map(|(_, role)| role.publisher.key)
            .collect()
    }

    pub(super) fn health(&self, engine: &Engine) -> Vec<RoleHealth> {
        self.0
            .iter()
            .filter_map(|(name, role)| {
                let (state, epoch) = engine.state(name)?;
                let trouble = role.obstacle.clone().filter(|_| engine.is_blocked(name));
                let is_leader = role.publisher.gate.is_leader();
                Some(RoleHealth { role: name.clone(), state, is_leader, epoch, trouble })
            })
            .collect()
    }
}
