//! What goes wrong.

use std::time::Duration;

use rand::Rng;

use super::world::{Event, World};

/// One thing that goes wrong, or that an operator asks for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Fault {
    /// A process stands still (SIGSTOP, swap, a VM that migrates).
    Pause(usize, Duration),
    /// Packets of one or both directions vanish.
    Cut {
        node: usize,
        up: bool,
        down: bool,
        lasts: Duration,
    },
    /// `pg_terminate_backend`.
    EndSession(usize),
    /// A process dies; whether its socket is closed, or its whole host is gone.
    Die {
        node: usize,
        closes: bool,
        back_after: Duration,
    },
    StepDown(usize),
    StopAndStart(usize, Duration),
    /// An act that takes its time.
    Act(usize, Duration),
    Restart {
        down: Duration,
    },
    Crash {
        lose: usize,
        postmaster: bool,
        down: Duration,
    },
    FailOver {
        lose: usize,
        down: Duration,
    },
    /// Every statement takes long.
    Slow {
        by: Duration,
        lasts: Duration,
    },
}

/// Anything, to that member if it is a member's.
pub(super) fn any(random: &mut impl Rng, node: usize) -> Fault {
    let mut up_to = |limit_ms: u64| Duration::from_millis(random.random_range(1..=limit_ms));
    let (short, long, down) = (up_to(300), up_to(7000), up_to(1500));
    match random.random_range(0..17) {
        0 | 1 => Fault::Pause(node, long),
        2..=4 => {
            let (up, down) =
                [(true, true), (true, false), (false, true)][random.random_range(0..3)];
            Fault::Cut { node, up, down, lasts: long }
        }
        5 | 6 => Fault::EndSession(node),
        7 | 8 => Fault::Die { node, closes: random.random(), back_after: long },
        9 => Fault::StepDown(node),
        10 => Fault::StopAndStart(node, down),
        11 => Fault::Act(node, long / 2),
        12 => Fault::Restart { down },
        13 | 14 => Fault::Crash {
            lose: random.random_range(0..12),
            postmaster: random.random(),
            down: short,
        },
        15 => Fault::FailOver { lose: random.random_range(0..20), down },
        _ => Fault::Slow { by: short, lasts: long },
    }
}

/// A member that does not hear what happens to its session.
pub(super) fn deafness(random: &mut impl Rng, node: usize) -> Fault {
    let lasts = Duration::from_millis(random.random_range(500..7000));
    if random.random() {
        Fault::Pause(node, lasts)
    } else {
        Fault::Cut { node, up: random.random(), down: true, lasts }
    }
}

/// What ends a session at the server.
pub(super) fn severance(random: &mut impl Rng, node: usize) -> Fault {
    let down = Duration::from_millis(random.random_range(1..300));
    let lose = random.random_range(0..20);
    match random.random_range(0..8) {
        0..=3 => Fault::EndSession(node),
        4 => Fault::Restart { down },
        5 | 6 => Fault::Crash { lose, postmaster: random.random(), down },
        _ => Fault::FailOver { lose, down },
    }
}

impl World {
    pub(super) fn strike(&mut self, fault: Fault) {
        match fault {
            Fault::Pause(node, lasts) => self.pause(node, lasts),
            Fault::Cut { node, up, down, lasts } => {
                self.nodes[node].link.up &= !up;
                self.nodes[node].link.down &= !down;
                self.after(lasts, Event::Mend(node));
            }
            Fault::EndSession(node) => {
                if let Some(session) = self.nodes[node].session() {
                    self.end_session(session);
                }
            }
            Fault::Die { node, closes, back_after } => self.die(node, closes, back_after),
            Fault::StepDown(node) => self.step_down(node),
            Fault::StopAndStart(node, pause) => {
                self.stop(node);
                self.after(pause, Event::Start(node));
            }
            Fault::Act(node, lasts) => {
                if self.begin_act(node) {
                    self.after(lasts, Event::EndAct(node));
                }
            }
            Fault::Restart { down } => {
                self.database.restart();
                self.server_down(down);
            }
            Fault::Crash { lose, postmaster, down } => {
                let now = self.server_now();
                self.database.crash(lose, postmaster, now);
                self.server_down(down);
            }
            Fault::FailOver { lose, down } => {
                self.database.fail_over(lose);
                self.server_down(down);
            }
            Fault::Slow { by, lasts } => {
                self.slow = by;
                self.after(lasts, Event::Quick);
            }
        }
    }
}
