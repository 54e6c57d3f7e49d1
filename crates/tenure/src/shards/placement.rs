//! Where the roles of a spread set should be, and which of them a holder hands over: pure.
//!
//! A matter of manners, never of safety: whatever is decided here, the election alone decides which member
//! leads. So members may disagree for a while, and nothing is worse than uneven.
//!
//! Where a role should be is a function of the set's roles and its settled members (live and ready for two
//! leases): greedily in the roles' order, each goes to the member with the highest weight of (role, instance)
//! that has fewer than ⌈roles / members⌉. The weight is a hash, so a join or a leave moves little more than
//! it must. Members that are not settled take no part in it, so one that comes and goes moves nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tenure_core::clock::Tick;
use tenure_core::retry::ExponentialBackoff;

/// How many hand-overs of one holder are under way at once, if it has few to make.
pub const IN_FLIGHT: usize = 8;
/// A holder with many to make has this part of them under way, to the last of them: a round trip carries many roles as
/// quickly as one, and a large set must be even as soon as a small one.
const AT_ONCE: usize = 8;
/// How long a member must have been there before a role is placed with it, in leases.
const SETTLED: u32 = 2;
/// How long a role that was handed over stays where it is, in leases, unless its holder has too many.
const RESTS: u32 = 10;
/// After so many looks at which it had taken none of what was handed to it, a member is left in peace. Once is
/// no sign: a successor has a heartbeat's head start, and a busy machine may be later.
const PATIENCE: u32 = 3;
/// For how long.
const SHUNNED: ExponentialBackoff =
    ExponentialBackoff::new(Duration::from_secs(60), Duration::from_secs(366 * 86_400));

/// A live candidate of the set.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Place {
    /// The member's identity, which is new at every start.
    pub member: String,
    /// What survives its restarts: its instance name.
    pub instance: String,
}

/// Which place each role should be at, by its index; none without places.
#[must_use]
pub fn place(roles: &[String], places: &[Place]) -> Vec<usize> {
    Layout::new(roles, places, &mut Weights::default()).target
}

/// The weights of every role at an instance, kept: a hash is the dear part.
#[derive(Debug, Default)]
struct Weights(BTreeMap<String, Vec<u64>>);

impl Weights {
    fn learn(&mut self, roles: &[String], places: &[Place]) {
        self.0.retain(|instance, _| places.iter().any(|place| place.instance == *instance));
        for place in places {
            if !self.0.contains_key(&place.instance) {
                let weights = roles.iter().map(|role| weight(role, &place.instance)).collect();
                self.0.insert(place.instance.clone(), weights);
            }
        }
    }
}

fn weight(role: &str, instance: &str) -> u64 {
    let digest =
        Sha256::new().chain_update(role).chain_update([0]).chain_update(instance).finalize();
    u64::from_be_bytes(digest[..8].try_into().expect("a digest has 32 bytes"))
}

/// Where every role should be among these places, and where it would be without one of them.
#[derive(Debug, Default)]
struct Layout {
    places: Vec<Place>,
    /// By role.
    target: Vec<usize>,
    /// By place that would be gone, then by role.
    without: Vec<Vec<usize>>,
}

impl Layout {
    fn new(roles: &[String], places: &[Place], weights: &mut Weights) -> Self {
        weights.learn(roles, places);
        let columns: Vec<&Vec<u64>> =
            places.iter().map(|place| &weights.0[&place.instance]).collect();
        let order = |role: usize| {
            let mut order: Vec<usize> = (0..places.len()).collect();
            // Members that share an instance name are told apart by their identity.
            let weight = |at: &usize| (columns[*at][role], &places[*at].member);
            order.sort_by(|a, b| weight(b).cmp(&weight(a)));
            order
        };
        let orders: Vec<Vec<usize>> = (0..roles.len()).map(order).collect();
        let target = greedy(&orders, places.len(), None);
        let without = (0..places.len()).map(|gone| greedy(&orders, places.len(), Some(gone)));
        Layout { places: places.to_vec(), target, without: without.collect() }
    }

    /// The most roles that one place should have.
    fn share(&self) -> usize {
        self.target.len().div_ceil(self.places.len().max(1))
    }
}

/// Each role goes to the first place of its order that has room; none without places.
fn greedy(orders: &[Vec<usize>], places: usize, gone: Option<usize>) -> Vec<usize> {
    let there = places - usize::from(gone.is_some());
    if there == 0 {
        return Vec::new();
    }
    let most = orders.len().div_ceil(there);
    let mut counts = vec![0_usize; places];
    orders
        .iter()
        .map(|order| {
            let mut free = order.iter().filter(|at| Some(**at) != gone && counts[**at] < most);
            let at = *free.next().expect("the places have room for all roles");
            counts[at] += 1;
            at
        })
        .collect()
}

/// A member that acts in a role, and its term.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// The member's identity.
    pub member: String,
    /// The term's epoch.
    pub epoch: i64,
}

/// What the database says of a set.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    /// The live and ready candidates.
    pub places: Vec<Place>,
    /// Which member acts in which role.
    pub held: BTreeMap<String, Holding>,
    /// How many roles have no leader, and are neither paused nor on their way to a successor.
    pub unled: usize,
}

/// What a member should do about a set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Wishes {
    /// The roles for which this member should have the head start, when they are free.
    pub wanted: BTreeSet<String>,
    /// The roles to hand over, and to which member.
    pub moves: Vec<(String, String)>,
}

/// One member's decisions about one set.
#[derive(Debug)]
pub struct Mover {
    me: String,
    roles: Vec<String>,
    lease: Duration,
    weights: Weights,
    layout: Layout,
    seen: BTreeMap<String, Tick>,
    held: BTreeMap<String, Holding>,
    /// When a role was handed to this member.
    arrived: BTreeMap<String, Tick>,
    /// The hand-overs that are under way.
    leaving: BTreeMap<String, Leaving>,
    /// The most that there were to make since there were none.
    most: usize,
    refusals: BTreeMap<String, Refusals>,
}

/// How often in a row a member took nothing, and until when it is left in peace.
#[derive(Debug, Default)]
struct Refusals {
    count: u32,
    until: Tick,
}

#[derive(Debug)]
struct Leaving {
    to: String,
    /// The term that ends.
    epoch: i64,
    since: Tick,
}

impl Mover {
    /// For a member and the roles of a set, in their order.
    #[must_use]
    pub fn new(me: &str, roles: Vec<String>, lease: Duration) -> Self {
        Mover {
            me: me.to_owned(),
            roles,
            lease,
            weights: Weights::default(),
            layout: Layout::default(),
            seen: BTreeMap::new(),
            held: BTreeMap::new(),
            arrived: BTreeMap::new(),
            leaving: BTreeMap::new(),
            most: 0,
            refusals: BTreeMap::new(),
        }
    }

    /// Whether hand-overs are under way.
    #[must_use]
    pub fn is_moving(&self) -> bool {
        !self.leaving.is_empty()
    }

    /// Decides by what the database says now.
    pub fn decide(&mut self, standing: &Standing, now: Tick) -> Wishes {
        self.learn(standing, now);
        // While a role of the set is unled, its takeover comes first.
        let moves = if standing.unled == 0 { self.moves(now) } else { Vec::new() };
        for (role, to) in &moves {
            let Some(holding) = self.held.get(role) else { continue };
            let leaving = Leaving { to: to.clone(), epoch: holding.epoch, since: now };
            self.leaving.insert(role.clone(), leaving);
        }
        Wishes { wanted: self.wanted(), moves }
    }

    fn moves(&mut self, now: Tick) -> Vec<(String, String)> {
        let mine = self.held.values().filter(|holding| holding.member == self.me).count();
        let stays = mine.saturating_sub(self.leaving.len());
        let rests =
            |role: &String| self.arrived.get(role).is_some_and(|at| now < *at + self.lease * RESTS);
        let mut ready = Vec::new();
        let mut resting = Vec::new();
        for (role, at) in self.roles.iter().zip(&self.layout.target) {
            let to = &self.layout.places[*at].member;
            let is_mine = self.held.get(role).is_some_and(|holding| holding.member == self.me);
            let is_shunned = self.refusals.get(to).is_some_and(|refusals| now < refusals.until);
            if !is_mine || *to == self.me || is_shunned || self.leaving.contains_key(role) {
                continue;
            }
            let list = if rests(role) { &mut resting } else { &mut ready };
            list.push((role.clone(), to.clone()));
        }
        // What rests goes only as far as this member has more than its share without it.
        let surplus = stays.saturating_sub(ready.len()).saturating_sub(self.layout.share());
        resting.truncate(surplus);
        ready.extend(resting);
        // Again as many only when half of them are over: every hand-over wakes all members, which claim what was
        // let go together by one statement. One that drains for long does not hold up the others.
        let all = ready.len() + self.leaving.len();
        self.most = if all == 0 { 0 } else { self.most.max(all) };
        let at_once = IN_FLIGHT.max(self.most / AT_ONCE);
        let fresh = self.leaving.values().filter(|leaving| now < leaving.since + self.lease);
        if fresh.count() * 2 > at_once {
            return Vec::new();
        }
        ready.truncate(at_once.saturating_sub(self.leaving.len()));
        ready
    }

    fn learn(&mut self, standing: &Standing, now: Tick) {
        let Standing { places, held, .. } = standing;
        let live: BTreeSet<&String> = places.iter().map(|place| &place.member).collect();
        self.seen.retain(|member, _| live.contains(member));
        for member in &live {
            self.seen.entry((*member).clone()).or_insert(now);
        }
        self.refusals.retain(|member, _| live.contains(member));
        let limit = self.lease * SETTLED;
        let settled: Vec<Place> = places
            .iter()
            .filter(|place| self.seen.get(&place.member).is_some_and(|since| now >= *since + limit))
            .cloned()
            .collect();
        if settled != self.layout.places {
            self.layout = Layout::new(&self.roles, &settled, &mut self.weights);
        }
        for role in &self.roles {
            let holder = |held: &BTreeMap<String, Holding>| {
                held.get(role).map(|holding| holding.member.clone())
            };
            let (before, after) = (holder(&self.held), holder(held));
            if after.as_ref().is_some_and(|after| *after != self.me) {
                self.arrived.remove(role);
            } else if after.is_some()
                && before.is_some_and(|before| before != self.me && live.contains(&before))
            {
                self.arrived.insert(role.clone(), now);
            }
        }
        self.end_moves(held, now);
        // A role that has no leader at this moment had the one before it.
        for (role, holding) in held {
            self.held.insert(role.clone(), holding.clone());
        }
        self.held.retain(|role, holding| held.contains_key(role) || holding.member != self.me);
    }

    /// A hand-over is over when another term has begun. One that takes very long (a drain, a pause) only
    /// gives its turn to others.
    fn end_moves(&mut self, held: &BTreeMap<String, Holding>, now: Tick) {
        let limit = self.lease * RESTS;
        let begun = |role: &String, leaving: &Leaving| {
            held.get(role).filter(|holding| holding.epoch != leaving.epoch)
        };
        let mut ends = BTreeMap::<String, bool>::new();
        self.leaving.retain(|role, leaving| {
            if let Some(holding) = begun(role, leaving) {
                *ends.entry(leaving.to.clone()).or_default() |= holding.member == leaving.to;
                return false;
            }
            now < leaving.since + limit
        });
        for (to, took) in ends {
            if took {
                self.refusals.remove(&to);
                continue;
            }
            let refusals = self.refusals.entry(to).or_default();
            refusals.count += 1;
            if let Some(more) = refusals.count.checked_sub(PATIENCE) {
                refusals.until = now + SHUNNED.bare(more + 1);
            }
        }
    }

    /// The roles that are placed here, and those that would be if their holder were gone: then this member
    /// has its head start at the moment of the death.
    fn wanted(&self) -> BTreeSet<String> {
        let Layout { places, target, without } = &self.layout;
        let index: BTreeMap<&str, usize> =
            places.iter().enumerate().map(|(at, place)| (place.member.as_str(), at)).collect();
        let Some(me) = index.get(self.me.as_str()).copied() else { return BTreeSet::new() };
        let heir = |role: usize, name: &String| {
            let holder = self.held.get(name)?;
            without.get(*index.get(holder.member.as_str())?)?.get(role).copied()
        };
        let wanted = |(number, name): &(usize, &String)| {
            target.get(*number) == Some(&me) || heir(*number, name) == Some(me)
        };
        self.roles.iter().enumerate().filter(wanted).map(|(_, name)| name.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const LEASE: Duration = Duration::from_secs(3);

    fn roles(count: usize) -> Vec<String> {
        (0..count).map(|n| format!("ingest-{n}")).collect()
    }

    fn places(count: usize) -> Vec<Place> {
        let place =
            |n: usize| Place { member: format!("m{n}-uuid"), instance: format!("host-{n}") };
        (0..count).map(place).collect()
    }

    fn at(seconds: u64) -> Tick {
        Tick::from_nanos(seconds * 1_000_000_000)
    }

    fn changed(before: &[String], after: &[String]) -> usize {
        before.iter().zip(after).filter(|(a, b)| a != b).count()
    }

    fn instances(roles: &[String], places: &[Place]) -> Vec<String> {
        place(roles, places).into_iter().map(|at| places[at].instance.clone()).collect()
    }

    proptest! {
        #[test]
        fn no_member_has_more_than_its_share(count in 0_usize..300, members in 1_usize..12) {
            let placed = place(&roles(count), &places(members));
            prop_assert_eq!(placed.len(), count);
            for member in 0..members {
                let share = placed.iter().filter(|at| **at == member).count();
                prop_assert!(share <= count.div_ceil(members));
            }
        }
    }

    #[test]
    fn a_join_or_a_leave_of_one_of_ten_moves_at_most_150_of_1000() {
        let (roles, ten) = (roles(1000), places(10));
        let all = instances(&roles, &ten);
        for gone in 0..10 {
            let nine: Vec<Place> = ten
                .iter()
                .enumerate()
                .filter(|(at, _)| *at != gone)
                .map(|(_, place)| place.clone())
                .collect();
            let moved = changed(&all, &instances(&roles, &nine));
            assert!((100..=150).contains(&moved), "{moved} moved without {gone}");
        }
    }

    #[test]
    fn a_restart_moves_nothing_for_good() {
        let (roles, before) = (roles(100), places(3));
        let mut after = before.clone();
        after[1].member = "m1-other-uuid".to_owned();
        assert_eq!(instances(&roles, &before), instances(&roles, &after));
    }

    fn held(roles: &[String], member: &str) -> BTreeMap<String, Holding> {
        let holding = Holding { member: member.to_owned(), epoch: 1 };
        roles.iter().map(|role| (role.clone(), holding.clone())).collect()
    }

    /// A holder of everything, and others that come.
    fn standing(mover: &Mover, places: &[Place]) -> Standing {
        let held = held(&mover.roles, &mover.me);
        Standing { places: places.to_vec(), held, unled: 0 }
    }

    #[test]
    fn a_holder_waits_until_a_member_has_been_there_and_moves_few_at_once() {
        let two = places(2);
        let mut mover = Mover::new(&two[0].member, roles(100), LEASE);
        let standing = standing(&mover, &two);
        assert!(mover.decide(&standing, at(0)).moves.is_empty());
        assert!(mover.decide(&standing, at(5)).moves.is_empty());
        let moves = mover.decide(&standing, at(6)).moves;
        assert_eq!(moves.len(), IN_FLIGHT);
        assert!(moves.iter().all(|(_, to)| *to == two[1].member));
        assert!(mover.decide(&standing, at(6)).moves.is_empty(), "they are under way");
    }

    #[test]
    fn a_holder_of_very_many_moves_an_eighth_of_them_at_once_to_the_last() {
        let two = places(2);
        let mut mover = Mover::new(&two[0].member, roles(1000), LEASE);
        let mut standing = standing(&mover, &two);
        mover.decide(&standing, at(0));
        let mut counts = Vec::new();
        loop {
            let moves = mover.decide(&standing, at(6)).moves;
            assert!(mover.decide(&standing, at(6)).moves.is_empty(), "they are under way");
            if moves.is_empty() {
                break;
            }
            counts.push(moves.len());
            for (role, member) in moves {
                standing.held.insert(role, Holding { member, epoch: 2 });
            }
        }
        assert_eq!(counts, [[500 / AT_ONCE; 8].as_slice(), &[500 % (500 / AT_ONCE)]].concat());
    }

    #[test]
    fn a_member_that_comes_and_goes_moves_nothing() {
        // Two that have settled, and hold what they should.
        let (roles, two) = (roles(100), places(2));
        let target = place(&roles, &two);
        let held: BTreeMap<String, Holding> = roles
            .iter()
            .zip(target)
            .map(|(role, at)| (role.clone(), Holding { member: two[at].member.clone(), epoch: 1 }))
            .collect();
        let mut mover = Mover::new(&two[0].member, roles, LEASE);
        let mut wanted = None;
        for second in 0..60 {
            let mut there = two.clone();
            if second % 2 == 0 {
                there
                    .push(Place { member: format!("m-{second}"), instance: "restless".to_owned() });
            }
            let standing = Standing { places: there, held: held.clone(), unled: 0 };
            let wishes = mover.decide(&standing, at(second));
            assert!(wishes.moves.is_empty(), "{second}: {:?}", wishes.moves);
            if second > 6 {
                assert_eq!(*wanted.get_or_insert(wishes.wanted.clone()), wishes.wanted, "{second}");
            }
        }
    }

    #[test]
    fn nothing_moves_while_a_role_is_unled_and_a_member_that_takes_nothing_is_left_in_peace() {
        let two = places(2);
        let mut mover = Mover::new(&two[0].member, roles(10), LEASE);
        let mut unled = standing(&mover, &two);
        unled.unled = 1;
        mover.decide(&unled, at(0));
        assert!(mover.decide(&unled, at(10)).moves.is_empty());
        let mut led = standing(&mover, &two);
        assert!(!mover.decide(&led, at(11)).moves.is_empty());
        // A drain may take long: that is not the other member's fault.
        assert!(mover.decide(&led, at(18)).moves.is_empty());
        // They are here again, in another term: the other member did not take them. Once may be chance.
        let mut refuse = |epoch: i64, now: u64| {
            for holding in led.held.values_mut() {
                holding.epoch = epoch;
            }
            mover.decide(&led, at(now)).moves.is_empty()
        };
        assert!(!refuse(2, 20));
        assert!(!refuse(3, 21));
        assert!(refuse(4, 22));
        assert!(refuse(4, 81));
        assert!(!refuse(4, 82));
        // Each time for twice as long.
        assert!(refuse(5, 83));
        assert!(refuse(5, 202));
        assert!(!refuse(5, 203));
    }

    #[test]
    fn a_role_that_was_handed_over_rests_unless_its_holder_has_too_many() {
        let two = places(2);
        let roles = roles(10);
        let target = place(&roles, &two);
        // One role of the other member's, which it hands over to this one.
        let strange = target.iter().position(|at| *at == 1).expect("a role");
        let mut settled: BTreeMap<String, Holding> = roles
            .iter()
            .zip(&target)
            .map(|(role, at)| (role.clone(), Holding { member: two[*at].member.clone(), epoch: 1 }))
            .collect();
        let mut mover = Mover::new(&two[0].member, roles.clone(), LEASE);
        let before = Standing { places: two.clone(), held: settled.clone(), unled: 0 };
        mover.decide(&before, at(0));
        settled.insert(roles[strange].clone(), Holding { member: two[0].member.clone(), epoch: 2 });
        // Nor has this one more than its share: the other has one of its roles.
        let ours = target.iter().position(|at| *at == 0).expect("a role");
        let mut held = settled.clone();
        held.insert(roles[ours].clone(), Holding { member: two[1].member.clone(), epoch: 2 });
        let even = Standing { places: two.clone(), held, unled: 0 };
        assert!(mover.decide(&even, at(20)).moves.is_empty());
        assert!(mover.decide(&even, at(49)).moves.is_empty());
        assert_eq!(mover.decide(&even, at(50)).moves.len(), 1);

        let mut mover = Mover::new(&two[0].member, roles.clone(), LEASE);
        mover.decide(&before, at(0));
        let uneven = Standing { places: two.clone(), held: settled, unled: 0 };
        assert_eq!(mover.decide(&uneven, at(20)).moves.len(), 1);
    }

    #[test]
    fn the_heirs_of_a_member_want_its_roles_before_it_dies() {
        let three = places(3);
        let roles = roles(30);
        let target = place(&roles, &three);
        let held: BTreeMap<String, Holding> = roles
            .iter()
            .zip(&target)
            .map(|(role, at)| {
                (role.clone(), Holding { member: three[*at].member.clone(), epoch: 1 })
            })
            .collect();
        let standing = Standing { places: three.clone(), held, unled: 0 };
        let mut heirs = BTreeMap::<String, usize>::new();
        for place in &three {
            let mut mover = Mover::new(&place.member, roles.clone(), LEASE);
            mover.decide(&standing, at(0));
            for role in mover.decide(&standing, at(6)).wanted {
                *heirs.entry(role).or_default() += 1;
            }
        }
        // Its place and one heir.
        assert!(heirs.len() == 30 && heirs.values().all(|count| *count == 2), "{heirs:?}");
    }
}
