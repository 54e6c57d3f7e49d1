//! Gossip alone, for thousands of nodes: how fast they agree on a leader, and how long it lasts.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::rc::Rc;
use std::time::Duration;

use rand::rngs::SmallRng;
use rand::{Rng, SeedableRng};

use super::keys::keys_of;
use super::mistake::Mistake;
use super::network::{Faults, Network};
use super::queue::Queue;
use tenure_core::Tick;
use tenure_gossip::election::{ElectionConfig, Vote};
use tenure_gossip::gossip::{Gossip, GossipOutput};
use tenure_gossip::identity::PeerId;
use tenure_gossip::message::Message;
use tenure_gossip::spray::{SprayConfig, SprayMessage};

/// How a crowd is made.
#[derive(Debug, Clone)]
pub struct CrowdConfig {
    /// Everything random comes from it.
    pub seed: u64,
    /// How many nodes.
    pub nodes: usize,
    /// The election they run.
    pub election: ElectionConfig,
    /// The network.
    pub faults: Faults,
    /// Nodes replaced by new ones every minute, of a thousand.
    pub churn: u32,
    /// Real signatures instead of stand-ins.
    pub real_keys: bool,
    /// A mistake made on purpose.
    pub mistake: Option<Mistake>,
}

impl CrowdConfig {
    /// `nodes` nodes on a good network, the default election.
    #[must_use]
    pub fn calm(seed: u64, nodes: usize) -> Self {
        Self {
            seed,
            nodes,
            election: ElectionConfig::default(),
            faults: Faults::default(),
            churn: 0,
            real_keys: false,
            mistake: None,
        }
    }
}

enum Happening {
    Timer { node: u32, life: u32 },
    Spray { from: u32, to: u32, message: Box<SprayMessage> },
    Churn,
}

struct Member {
    id: PeerId,
    gossip: Option<Gossip>,
    life: u32,
    timer: u64,
}

/// Many nodes that gossip and vote, without a log.
pub struct Crowd {
    config: CrowdConfig,
    now: u64,
    queue: Queue<Happening>,
    network: Network,
    members: Vec<Member>,
    /// Votes on their way to each node or at its door, with their time of arrival. A vote causes
    /// nothing until its receiver's next round, so it is no event: the receiver reads its mail, in order
    /// and as of the times it came, before it does anything by the clock. The trace is the same, and
    /// a node's memory is fetched once for a dozen votes.
    mail: Vec<Vec<(u64, Rc<Vote>)>>,
    /// By the first eight bytes of the name: looked up for every message.
    index_of: HashMap<u64, u32>,
    rng: SmallRng,
    /// Votes and view messages sent.
    pub sent: u64,
    /// Changes of mind on any node.
    pub changes: u64,
    trace: u64,
}

impl Crowd {
    /// A crowd that has joined, one after the other, and starts to vote now.
    #[must_use]
    pub fn new(mut config: CrowdConfig) -> Self {
        if let Some(mistake) = config.mistake {
            mistake.configure(&mut config.election);
        }
        let mut rng = SmallRng::seed_from_u64(config.seed);
        let members: Vec<_> = (0..config.nodes)
            .map(|i| {
                let id = keys_of(i, config.real_keys).id();
                Member { id, gossip: None, life: 0, timer: u64::MAX }
            })
            .collect();
        let index_of = members.iter().enumerate().map(|(i, m)| (m.id.short(), i as u32)).collect();
        let first_churn = rng.random_range(1..1_000_000);
        let mut crowd = Self {
            now: 1_000_000,
            queue: Queue::new(),
            network: Network::new(config.faults),
            mail: vec![Vec::new(); config.nodes],
            members,
            index_of,
            rng,
            sent: 0,
            changes: 0,
            trace: 0xcbf2_9ce4_8422_2325,
            config,
        };
        for i in 0..crowd.config.nodes {
            crowd.join(i, i);
        }
        crowd.sent = 0;
        if crowd.config.churn > 0 {
            crowd.queue.push(crowd.now + first_churn, Happening::Churn);
        }
        crowd
    }

    /// One round of the election.
    #[must_use]
    pub fn round(&self) -> Duration {
        self.config.election.delta_r
    }

    /// Milliseconds since the start.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        (self.now - 1_000_000) / 1_000
    }

    /// A hash of everything that happened: the same for the same seed.
    #[must_use]
    pub fn trace(&self) -> u64 {
        self.trace
    }

    /// The most named leader that runs, and how many of the running nodes name it.
    #[must_use]
    pub fn plurality(&self) -> Option<(usize, usize)> {
        let mut count: BTreeMap<u32, usize> = BTreeMap::new();
        for gossip in self.members.iter().filter_map(|m| m.gossip.as_ref()) {
            let leader = self.index_of[&gossip.election().leader().short()];
            if self.members[leader as usize].gossip.is_some() {
                *count.entry(leader).or_default() += 1;
            }
        }
        count.into_iter().max_by_key(|(_, n)| *n).map(|(i, n)| (i as usize, n))
    }

    /// The leader that every running node names, if they do.
    #[must_use]
    pub fn agreed(&self) -> Option<usize> {
        self.plurality().filter(|(_, n)| *n == self.running()).map(|(i, _)| i)
    }

    /// How many nodes run.
    #[must_use]
    pub fn running(&self) -> usize {
        self.members.iter().filter(|m| m.gossip.is_some()).count()
    }

    /// The mean number of arcs in a view.
    #[must_use]
    pub fn mean_view(&self) -> f64 {
        let arcs: usize =
            self.members.iter().filter_map(|m| m.gossip.as_ref()).map(|g| g.spray().arcs()).sum();
        arcs as f64 / self.running().max(1) as f64
    }

    /// Node `i` is gone without a word.
    pub fn kill(&mut self, i: usize) {
        self.members[i].gossip = None;
        self.members[i].life += 1;
    }

    /// Cuts the first `n` nodes off from the others, or heals the network (0).
    pub fn split(&mut self, n: usize) {
        self.network.heal();
        if n > 0 {
            self.network.split(&(0..n).collect(), self.members.len());
        }
    }

    /// Lets time pass.
    pub fn run(&mut self, time: Duration) {
        let end = self.now + time.as_micros() as u64;
        while self.queue.next_at().is_some_and(|at| at <= end) {
            self.step();
        }
        self.now = end;
    }

    /// Rounds until every running node names the same running leader; `None`: not within `limit`.
    pub fn rounds_to_agreement(&mut self, limit: u32) -> Option<u32> {
        for rounds in 0..=limit {
            if self.agreed().is_some() {
                return Some(rounds);
            }
            self.run(self.round());
        }
        None
    }

    fn join(&mut self, i: usize, among: usize) {
        let seed = self.rng.random();
        let mut spray = SprayConfig::default();
        spray.memory = 32;
        let life = self.members[i].life + 1;
        let keys = keys_of(i, self.config.real_keys);
        let keys = match self.config.mistake {
            Some(mistake) => mistake.keys(keys),
            None => keys,
        };
        let mut gossip = Gossip::new(
            keys,
            "sim",
            self.config.election.clone(),
            spray,
            life.into(),
            tick(self.now),
            SmallRng::seed_from_u64(seed),
        );
        let start = if among > 0 { self.rng.random_range(0..among) } else { 0 };
        let contact = (0..among)
            .map(|k| (start + k) % among)
            .find(|c| *c != i && self.members[*c].gossip.is_some());
        if let Some(contact) = contact {
            gossip.join(self.members[contact].id);
        }
        self.members[i].gossip = Some(gossip);
        self.members[i].life = life;
        self.members[i].timer = u64::MAX;
        // What came before it did is lost.
        self.mail[i].retain(|(at, _)| *at > self.now);
        // The messages of a join are delivered at once: what is measured is the election.
        let mut queue = VecDeque::from([i]);
        while let Some(at) = queue.pop_front() {
            while let Some(output) = self.members[at].gossip.as_mut().and_then(Gossip::poll_output)
            {
                if let GossipOutput::Send(to, Message::Spray(m)) = output {
                    let from = self.members[at].id;
                    let to = self.index_of[&to.short()] as usize;
                    if let Some(gossip) = self.members[to].gossip.as_mut() {
                        gossip.handle_spray(from, m);
                        queue.push_back(to);
                    }
                }
            }
        }
        self.schedule(i);
    }

    fn step(&mut self) {
        let Some((at, happening)) = self.queue.pop() else { return };
        self.now = at;
        let now = tick(at);
        match happening {
            Happening::Timer { node, life } => {
                let m = &mut self.members[node as usize];
                if m.life != life || m.timer != at {
                    return;
                }
                m.timer = u64::MAX;
                if let Some(gossip) = &mut m.gossip {
                    let mail = &mut self.mail[node as usize];
                    mail.sort_by_key(|(at, _)| *at);
                    let arrived = mail.partition_point(|(arrival, _)| *arrival <= at);
                    for (arrival, vote) in mail.drain(..arrived) {
                        let _ = gossip.handle_vote(tick(arrival), vote.voter, &*vote);
                    }
                    gossip.handle_timeout(now);
                }
                self.after(node as usize);
            }
            Happening::Spray { from, to, message } => {
                let id = self.members[from as usize].id;
                if let Some(gossip) = self.members[to as usize].gossip.as_mut() {
                    gossip.handle_spray(id, *message);
                    self.after(to as usize);
                }
            }
            Happening::Churn => {
                let victim = self.rng.random_range(0..self.members.len());
                self.kill(victim);
                self.join(victim, self.members.len());
                let per_minute = u64::from(self.config.churn) * self.members.len() as u64;
                let gap = 60_000_000 * 1_000 / per_minute.max(1);
                let jitter = self.rng.random_range(0..=gap);
                self.queue.push(self.now + gap / 2 + jitter, Happening::Churn);
            }
        }
    }

    fn after(&mut self, i: usize) {
        let Some(gossip) = self.members[i].gossip.as_mut() else { return };
        if let Some((peers, mut vote)) = gossip.poll_vote() {
            if let Some(mistake) = self.config.mistake {
                mistake.alter(&mut vote);
            }
            let vote = Rc::new(vote);
            for to in peers {
                self.send(i, to, |crowd, arrival, to| {
                    crowd.mail[to].push((arrival, vote.clone()));
                });
            }
        }
        while let Some(output) = self.members[i].gossip.as_mut().and_then(Gossip::poll_output) {
            match output {
                GossipOutput::Send(to, Message::Spray(m)) => self.send(i, to, |crowd, at, to| {
                    let message = Box::new(m.clone());
                    crowd
                        .queue
                        .push(at, Happening::Spray { from: i as u32, to: to as u32, message });
                }),
                GossipOutput::Send(_, other) => unreachable!("a {} without a node", other.kind()),
                GossipOutput::Leader(change) => {
                    self.changes += 1;
                    self.mark(change.to.short());
                }
            }
        }
        self.schedule(i);
    }

    fn send(&mut self, from: usize, to: PeerId, arrive: impl Fn(&mut Self, u64, usize)) {
        self.sent += 1;
        let to = self.index_of[&to.short()] as usize;
        for delay in self.network.deliveries(from, to, &mut self.rng) {
            let arrival = self.now + delay;
            self.mark(arrival << 32 ^ (from as u64) << 16 ^ to as u64);
            arrive(self, arrival, to);
        }
    }

    fn mark(&mut self, word: u64) {
        self.trace = (self.trace ^ word).wrapping_mul(0x0100_0000_01b3);
    }

    fn schedule(&mut self, i: usize) {
        let m = &mut self.members[i];
        let Some(gossip) = m.gossip.as_ref() else { return };
        let at = gossip.poll_timeout().as_nanos().div_ceil(1_000).max(self.now + 1);
        if at < m.timer {
            m.timer = at;
            self.queue.push(at, Happening::Timer { node: i as u32, life: m.life });
        }
    }
}

/// The simulation counts microseconds.
fn tick(micros: u64) -> Tick {
    Tick::from_nanos(micros * 1_000)
}

#[cfg(test)]
mod tests;
