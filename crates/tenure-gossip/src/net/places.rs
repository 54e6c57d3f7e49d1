//! Places for connections: some for those that have proven nothing yet, some for keys without a right, some for
//! clients, some for nodes.
//! A crowd from one address takes the places of that address, and of no other.

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;

/// Connections that have not proven anything yet, of all addresses and of one.
const GREETING: usize = 64;
const GREETING_OF_ONE: usize = 16;
/// Connections of keys that have proven themselves and have no right: they may redeem an invitation, and little
/// else. Of all addresses and of one.
const STRANGERS: usize = 64;
const STRANGERS_OF_ONE: usize = 16;
/// Connections of clients, of all addresses and of one.
const CLIENTS: usize = 1_024;
const CLIENTS_OF_ONE: usize = 768;
/// Connections of operators beyond those: a crowd of clients does not keep them out.
const OPERATORS: usize = 64;
/// Connections of nodes. Clients do not count against them.
const NODES: usize = 1_024;

/// The places of one listener.
#[derive(Default)]
pub(crate) struct Places {
    greeting: VecDeque<(IpAddr, oneshot::Sender<()>)>,
    kept: Arc<Mutex<Kept>>,
}

#[derive(Default)]
struct Kept {
    nodes: usize,
    clients: Count,
    strangers: Count,
}

/// How many there are, and of which address.
#[derive(Default)]
struct Count {
    all: usize,
    of: BTreeMap<IpAddr, usize>,
}

impl Count {
    fn of(&self, address: &IpAddr) -> usize {
        self.of.get(address).copied().unwrap_or(0)
    }

    fn enter(&mut self, address: IpAddr) {
        self.all += 1;
        *self.of.entry(address).or_default() += 1;
    }

    fn leave(&mut self, address: &IpAddr) {
        self.all -= 1;
        if let Some(of_one) = self.of.get_mut(address) {
            *of_one -= 1;
            if *of_one == 0 {
                self.of.remove(address);
            }
        }
    }
}

/// The place of one connection, until it is dropped.
pub(crate) struct Place {
    from: IpAddr,
    kept: Arc<Mutex<Kept>>,
    holds: Mutex<Option<Held>>,
}

#[derive(Clone, Copy)]
enum Held {
    Node,
    Client,
    Stranger,
}

impl Places {
    /// A place for a connection that has proven nothing yet. The receiver ends when it is taken away: the
    /// connection of the same address that has taken longest makes room, because an honest peer needs
    /// milliseconds.
    pub(crate) fn take(&mut self, from: IpAddr) -> (Place, oneshot::Receiver<()>) {
        let from = neighbourhood(from);
        self.greeting.retain(|(_, stays)| !stays.is_closed());
        let of = |address: &IpAddr| self.greeting.iter().filter(|(a, _)| a == address).count();
        let crowded = if of(&from) >= GREETING_OF_ONE {
            Some(from)
        } else if self.greeting.len() >= GREETING {
            self.greeting.iter().map(|(address, _)| *address).max_by_key(of)
        } else {
            None
        };
        if let Some(place) =
            crowded.and_then(|address| self.greeting.iter().position(|(a, _)| *a == address))
        {
            self.greeting.remove(place);
        }
        let (stays, evicted) = oneshot::channel();
        self.greeting.push_back((from, stays));
        (Place { from, kept: self.kept.clone(), holds: Mutex::new(None) }, evicted)
    }
}

impl Place {
    /// Whether there is a place for one more node.
    pub(crate) fn keep_as_node(&self) -> bool {
        let mut kept = self.kept.lock().expect("nothing panics while it is held");
        if kept.nodes >= NODES {
            return false;
        }
        kept.nodes += 1;
        self.hold(Held::Node);
        true
    }

    /// Whether there is a place for one more client, or operator.
    pub(crate) fn keep_as_client(&self, operator: bool) -> bool {
        let mut kept = self.kept.lock().expect("nothing panics while it is held");
        let room = if operator {
            kept.clients.all < CLIENTS + OPERATORS
        } else {
            kept.clients.all < CLIENTS && kept.clients.of(&self.from) < CLIENTS_OF_ONE
        };
        if !room {
            return false;
        }
        kept.clients.enter(self.from);
        self.hold(Held::Client);
        true
    }

    /// Whether there is a place for one more key without a right.
    pub(crate) fn keep_as_stranger(&self) -> bool {
        let mut kept = self.kept.lock().expect("nothing panics while it is held");
        if kept.strangers.all >= STRANGERS || kept.strangers.of(&self.from) >= STRANGERS_OF_ONE {
            return false;
        }
        kept.strangers.enter(self.from);
        self.hold(Held::Stranger);
        true
    }

    fn hold(&self, held: Held) {
        *self.holds.lock().expect("nothing panics while it is held") = Some(held);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let held = self.holds.lock().expect("nothing panics while it is held").take();
        let mut kept = self.kept.lock().expect("nothing panics while it is held");
        match held {
            Some(Held::Node) => kept.nodes -= 1,
            Some(Held::Client) => kept.clients.leave(&self.from),
            Some(Held::Stranger) => kept.strangers.leave(&self.from),
            None => {}
        }
    }
}

/// One machine is one address, also where it has 2^64 of them.
fn neighbourhood(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(address) => IpAddr::V4(address),
        IpAddr::V6(address) => {
            IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX)))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(n: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, n])
    }

    #[test]
    fn a_silent_crowd_of_one_address_takes_its_own_places_only() {
        let mut places = Places::default();
        let (_honest, mut stays) = places.take(address(1));
        let crowd: Vec<_> = (0..1_000).map(|_| places.take(address(2))).collect();
        assert!(
            stays.try_recv() == Err(oneshot::error::TryRecvError::Empty),
            "it is still waited for"
        );
        let waited = crowd.into_iter().filter_map(|(_, mut stays)| {
            (stays.try_recv() == Err(oneshot::error::TryRecvError::Empty)).then_some(())
        });
        assert_eq!(waited.count(), GREETING_OF_ONE);
    }

    #[test]
    fn the_address_with_most_makes_room_and_an_ipv6_network_is_one_address() {
        let mut places = Places::default();
        let mut firsts = Vec::new();
        for n in 1..=5 {
            firsts.push(places.take(address(n)));
        }
        let crowd: Vec<_> = (0..200_u128)
            .map(|n| places.take(IpAddr::V6(Ipv6Addr::from_bits((0x2001_u128 << 112) | n))))
            .collect();
        let more: Vec<_> = (6..=60).map(|n| places.take(address(n))).collect();
        for (_, stays) in &mut firsts {
            assert!(stays.try_recv() == Err(oneshot::error::TryRecvError::Empty));
        }
        drop((crowd, more));
    }

    #[test]
    fn clients_do_not_take_the_places_of_nodes_nor_all_of_the_operators() {
        let mut places = Places::default();
        let mut take = |n: u8| places.take(address(n)).0;
        let clients: Vec<_> = (0..2_000).map(|n| (take((n % 2) as u8), n)).collect();
        let seated = clients.iter().filter(|(place, _)| place.keep_as_client(false)).count();
        assert_eq!(seated, CLIENTS);
        assert!(!take(7).keep_as_client(false));
        let operator = take(7);
        assert!(operator.keep_as_client(true));
        let node = take(7);
        assert!(node.keep_as_node());
        let strangers: Vec<_> = (0..200).map(|n| take((n % 9) as u8)).collect();
        let seated = strangers.iter().filter(|place| place.keep_as_stranger()).count();
        assert_eq!(seated, STRANGERS, "keys without a right have places of their own");
        drop(clients);
        let crowd: Vec<_> = (0..200).map(|_| take(8)).collect();
        drop(strangers);
        let seated = crowd.iter().filter(|place| place.keep_as_stranger()).count();
        assert_eq!(seated, STRANGERS_OF_ONE);
        let free = take(7);
        assert!(free.keep_as_client(false), "places come back");
    }
}
