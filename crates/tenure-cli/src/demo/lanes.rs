//! What each member did, as one lane of bars over time. Pure: times come with what is told.
//!
//! No instant has two leaders here. A member that leads under a higher epoch ends the bar of every
//! other one, a fault ends the bar of the member it hits, and word of a term that is over comes too
//! late to be shown.

use super::node::MemberEvent;

/// What a member does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// Not there yet.
    Away,
    Waits,
    Leads {
        epoch: i64,
    },
    Killed,
    Frozen,
    CutOff,
}

impl Phase {
    pub(super) fn word(self) -> &'static str {
        match self {
            Phase::Away => "starting",
            Phase::Waits => "waits",
            Phase::Leads { .. } => "LEADS",
            Phase::Killed => "killed",
            Phase::Frozen => "frozen",
            Phase::CutOff => "cut off",
        }
    }

    /// One column of its bar.
    pub(super) fn mark(self) -> char {
        match self {
            Phase::Away => ' ',
            Phase::Waits => '·',
            Phase::Leads { .. } => '█',
            Phase::Killed => 'x',
            Phase::Frozen => '~',
            Phase::CutOff => '/',
        }
    }
}

/// One member.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) name: &'static str,
    /// From when on which phase; times never decrease.
    phases: Vec<(u64, Phase)>,
    /// When its last bar as a leader ended.
    led_until: u64,
}

impl Lane {
    pub(super) fn now(&self) -> Phase {
        self.phases.last().map_or(Phase::Away, |(_, phase)| *phase)
    }

    pub(super) fn at(&self, ns: u64) -> Phase {
        let begun = self.phases.iter().rev().find(|(from, _)| *from <= ns);
        begun.map_or(Phase::Away, |(_, phase)| *phase)
    }

    fn enter(&mut self, at: u64, phase: Phase) {
        let last = self.phases.last().map_or(0, |(from, _)| *from);
        if self.now() == phase {
            return;
        }
        if let Phase::Leads { .. } = self.now() {
            self.led_until = at.max(last);
        }
        self.phases.push((at.max(last), phase));
    }
}

/// All members.
#[derive(Debug)]
pub(super) struct Lanes {
    pub(super) lanes: Vec<Lane>,
    /// The highest epoch under which a member led.
    epoch: i64,
}

impl Lanes {
    pub(super) fn new(names: &[&'static str]) -> Self {
        let lane = |name: &&'static str| Lane { name, phases: Vec::new(), led_until: 0 };
        Lanes { lanes: names.iter().map(lane).collect(), epoch: 0 }
    }

    /// What a member says of itself.
    pub(super) fn heard(&mut self, node: usize, event: &MemberEvent) {
        let at = event.mono_ns;
        match (event.event.as_str(), event.epoch) {
            ("acquired" | "well" | "recovered", Some(epoch)) if epoch >= self.epoch => {
                self.epoch = epoch;
                for (other, lane) in self.lanes.iter_mut().enumerate() {
                    if other != node && matches!(lane.now(), Phase::Leads { .. }) {
                        lane.enter(at, Phase::Waits);
                    }
                }
                // Word of an end may come before word of the next beginning, whatever their times.
                let free = self.lanes.iter().map(|lane| lane.led_until).max().unwrap_or(0);
                self.lanes[node].enter(at.max(free), Phase::Leads { epoch });
            }
            ("released" | "lost" | "late" | "stopped", _) => {
                if let Phase::Leads { .. } = self.lanes[node].now() {
                    self.lanes[node].enter(at, Phase::Waits);
                }
            }
            ("state_change", _) if self.lanes[node].now() == Phase::Away => {
                self.lanes[node].enter(at, Phase::Waits);
            }
            _ => {}
        }
    }

    /// What is done to a member; from outside it leads no more.
    pub(super) fn hit(&mut self, node: usize, at: u64, phase: Phase) {
        self.lanes[node].enter(at, phase);
    }

    /// A killed member is started again, a frozen one thawed, a cut-off one joined.
    pub(super) fn heal(&mut self, node: usize, at: u64) {
        let phase = match self.lanes[node].now() {
            Phase::Killed => Phase::Away,
            Phase::Frozen | Phase::CutOff => Phase::Waits,
            same @ (Phase::Away | Phase::Waits | Phase::Leads { .. }) => same,
        };
        self.lanes[node].enter(at, phase);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(name: &str, epoch: i64, mono_ns: u64) -> MemberEvent {
        let epoch = Some(epoch);
        MemberEvent { event: name.to_owned(), epoch, reason: None, mono_ns }
    }

    fn leaders(lanes: &Lanes, at: u64) -> usize {
        lanes.lanes.iter().filter(|lane| matches!(lane.at(at), Phase::Leads { .. })).count()
    }

    #[test]
    fn no_instant_has_two_leaders_whatever_is_heard_in_whatever_order() {
        use rand::rngs::StdRng;
        use rand::{Rng, SeedableRng};
        const WORDS: [&str; 6] = ["acquired", "well", "lost", "late", "released", "state_change"];
        for seed in 0..500 {
            let mut random = StdRng::seed_from_u64(seed);
            let mut lanes = Lanes::new(&["north", "east", "west"]);
            for step in 0..200_u64 {
                let node = random.random_range(0..3);
                // Events of one member come late, and not in the order of the others.
                let at = (step * 10).saturating_sub(random.random_range(0..40));
                match random.random_range(0..10) {
                    0 => lanes.hit(node, at, Phase::Frozen),
                    1 => lanes.hit(node, at, Phase::Killed),
                    2 => lanes.heal(node, at),
                    _ => {
                        let word = WORDS[random.random_range(0..WORDS.len())];
                        lanes.heard(node, &event(word, random.random_range(1..20), at));
                    }
                }
            }
            for at in 0..2100 {
                assert!(leaders(&lanes, at) <= 1, "seed {seed}, {at}");
            }
        }
    }

    #[test]
    fn a_killed_leader_does_not_lead_and_neither_does_its_late_word() {
        let mut lanes = Lanes::new(&["north", "east"]);
        lanes.heard(0, &event("acquired", 1, 10));
        assert_eq!(lanes.lanes[0].now(), Phase::Leads { epoch: 1 });
        lanes.hit(0, 20, Phase::Killed);
        assert_eq!((lanes.lanes[0].now().word(), leaders(&lanes, 25)), ("killed", 0));
        lanes.heard(1, &event("acquired", 2, 30));
        lanes.heal(0, 40);
        lanes.heard(0, &event("well", 1, 41));
        assert_eq!(lanes.lanes[0].now(), Phase::Away);
        lanes.heard(0, &event("state_change", 0, 42));
        assert_eq!((lanes.lanes[0].now(), leaders(&lanes, 50)), (Phase::Waits, 1));
    }
}
