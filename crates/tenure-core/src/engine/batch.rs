//! How many roles one round trip carries: as many as are answered well within its deadline.
//!
//! A round trip that outlasts its deadline costs the seat, and with it every term. So its size follows from
//! the last answers: how long they took, and of how many roles. It never decides what is asked, only how
//! much of it at once.

use std::time::Duration;

use crate::protocol::Op;

/// The most: the beat waits behind a round trip.
const MOST: usize = 1000;
/// The first ones are small: nothing is known yet of this server and its load.
const FIRST: usize = 250;
/// So few are never too many.
const LEAST: usize = 25;
/// The part of its deadline that a round trip should take at most. The rest is for a server that is suddenly
/// busy with every other member's question: after a death all of them ask at once.
const PART: u32 = 4;

#[derive(Debug)]
pub(super) struct Batch {
    size: usize,
    deadline: Duration,
}

impl Batch {
    pub(super) fn new(deadline: Duration) -> Self {
        Batch { size: FIRST, deadline }
    }

    pub(super) fn size(&self) -> usize {
        self.size
    }

    pub(super) fn answered(&mut self, op: &Op, took: Duration) {
        let (rows, enough) = (rows(op), self.deadline / PART);
        if took > enough {
            if rows > LEAST {
                let fit = (rows as f64 * enough.as_secs_f64() / took.as_secs_f64()) as usize;
                self.size = fit.clamp(LEAST, self.size.max(LEAST));
            }
        } else if rows == self.size && took * 2 <= enough {
            self.size = (self.size * 2).min(MOST);
        }
    }

    /// The seat went with this one under way: perhaps it was too much.
    pub(super) fn lost(&mut self, op: &Op) {
        if rows(op) > LEAST {
            self.size = (rows(op) / 2).clamp(LEAST, self.size.max(LEAST));
        }
    }
}

/// The roles whose number is chosen here: a beat has none, and an inspection has all.
fn rows(op: &Op) -> usize {
    match op {
        Op::Register(rows) => rows.len(),
        Op::Claim { rows, .. } => rows.len(),
        Op::MarkActing(rows) => rows.len(),
        Op::Release(rows) => rows.len(),
        Op::Beat | Op::Inspect(_) | Op::LeaveSeat => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epoch::Epoch;
    use crate::key::RoleName;
    use crate::protocol::TermRow;

    const DEADLINE: Duration = Duration::from_millis(500);

    fn marks(count: usize) -> Op {
        let role = RoleName::new("r").expect("a good name");
        let term = TermRow { key: role.key(), role, epoch: Epoch(1) };
        Op::MarkActing(vec![term; count])
    }

    /// A server that takes so long for each role.
    fn settle(batch: &mut Batch, each: Duration) {
        for _ in 0..20 {
            let rows = batch.size();
            batch.answered(&marks(rows), each * u32::try_from(rows).expect("few"));
        }
    }

    #[test]
    fn a_quick_server_gets_a_thousand_after_two_answers() {
        let mut batch = Batch::new(DEADLINE);
        for size in [250, 500, 1000, 1000] {
            assert_eq!(batch.size(), size);
            batch.answered(&marks(size), Duration::from_micros(60) * size as u32);
        }
    }

    #[test]
    fn a_slow_server_gets_as_many_as_it_answers_in_a_quarter_of_the_deadline() {
        for micros in [50, 200, 500, 1000, 5000] {
            let (mut batch, each) = (Batch::new(DEADLINE), Duration::from_micros(micros));
            settle(&mut batch, each);
            let takes = each * u32::try_from(batch.size()).expect("few");
            assert!(takes <= DEADLINE / PART, "{micros}: {takes:?}");
            assert!(batch.size() == MOST || takes * 3 >= DEADLINE / PART, "{micros}: {takes:?}");
        }
    }

    #[test]
    fn few_roles_say_nothing_about_many_and_are_never_made_fewer() {
        let mut batch = Batch::new(DEADLINE);
        batch.answered(&marks(3), Duration::ZERO);
        batch.answered(&marks(3), DEADLINE);
        batch.lost(&marks(3));
        batch.answered(&Op::Beat, DEADLINE);
        assert_eq!(batch.size(), FIRST);
        settle(&mut batch, DEADLINE);
        assert_eq!(batch.size(), LEAST);
    }

    #[test]
    fn what_was_under_way_when_the_seat_was_lost_is_halved_and_grows_again() {
        let mut batch = Batch::new(DEADLINE);
        settle(&mut batch, Duration::from_micros(10));
        batch.lost(&marks(1000));
        assert_eq!(batch.size(), 500);
        batch.lost(&marks(400));
        assert_eq!(batch.size(), 200);
        settle(&mut batch, Duration::from_micros(10));
        assert_eq!(batch.size(), MOST);
    }
}
