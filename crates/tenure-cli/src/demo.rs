//! `tenure demo`: three members as separate processes, a database of their own, and five faults.
//!
//! ```text
//!  north ── link ──┐
//!  east  ── link ──┼──► a private PostgreSQL in a temporary folder
//!  west  ── link ──┘
//! ```
//!
//! Each fault hits the leader (or the database); the demo then waits for the next `acquired` of any
//! member, heals, and waits until all three take part again. It passes if after every fault a member
//! led under a higher epoch, and the audit of the durable record found no overlap.

mod lanes;
mod link;
mod node;
mod view;

use std::net::Ipv4Addr;
use std::rc::Rc;
use std::time::Duration;

use anyhow::Context;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng, rngs::StdRng};
use tenure::RoleName;
use tenure::config::Config;
use tenure::operate::Operator;
use tenure_agent::page::{Page, PageError, PageOptions};
use tenure_embedded::Embedded;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout_at};

use crate::args::Demo;
use crate::exit::{Exit, Failure};
use crate::output::out;
use crate::serve;
use crate::signals::Signals;
use crate::table::{print, table};

use lanes::Phase;
use link::Link;
use node::{MemberEvent, Node};
use view::{Key, View};

const ROLE: &str = "demo";
const NAMES: [&str; 3] = ["north", "east", "west"];
const HEARTBEAT: Duration = Duration::from_millis(400);
const LEASE: Duration = Duration::from_millis(1500);
/// Far beyond every bound: a takeover that takes longer has failed.
const PATIENCE: Duration = Duration::from_secs(20);
/// So that a person can see the leader before the next fault.
const PAUSE: Duration = Duration::from_millis(700);
/// Where the page is shown, if it is free.
const PORT: u16 = 7007;

/// What is done to the leader, or to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    Kill,
    Freeze,
    Partition,
    Handover,
    Restart,
}

impl Fault {
    const ALL: [Fault; 5] =
        [Fault::Kill, Fault::Freeze, Fault::Partition, Fault::Handover, Fault::Restart];

    fn name(self) -> &'static str {
        match self {
            Fault::Kill => "kill -9",
            Fault::Freeze => "freeze",
            Fault::Partition => "partition",
            Fault::Handover => "handover",
            Fault::Restart => "database restart",
        }
    }
}

/// A term, as its member announced it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AnnouncedTerm {
    node: usize,
    epoch: i64,
    /// On the monotonic clock that all processes of a machine share.
    since_ns: u64,
}

/// One fault and what came of it.
#[derive(Debug, Clone)]
struct Outcome {
    fault: Fault,
    before: AnnouncedTerm,
    after: AnnouncedTerm,
    vacancy: Duration,
}

pub(crate) async fn demo(args: Demo) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    let (view, mut keys) = View::open(args.plain, &NAMES).map_err(failed)?;
    // Dropped on every way out: members are killed, the server is stopped, the folder removed.
    let mut stage = tokio::select! {
        stage = Stage::set(view) => stage.map_err(failed)?,
        () = signals.next() => return Ok(Exit::Failed),
        ended = quit(&mut keys, None) => return ended.map(|()| Exit::Failed),
    };
    let view = Rc::clone(&stage.view);
    let page = stage.page().await?;
    view.note(&format!("watch it in a browser, too: {}", page.url()));
    let played = tokio::select! {
        played = stage.play(&args) => played.map_err(failed),
        () = signals.next() => Err(interrupted()),
        // What has happened so far is judged all the same.
        ended = quit(&mut keys, Some(&view)) => ended,
    };
    view.close();
    played?;
    let outcomes = &stage.outcomes;
    print(&table(
        &["fault", "led before", "epoch", "led after", "epoch", "without a leader"],
        outcomes.iter().map(|outcome| {
            vec![
                outcome.fault.name().to_owned(),
                NAMES[outcome.before.node].to_owned(),
                outcome.before.epoch.to_string(),
                NAMES[outcome.after.node].to_owned(),
                outcome.after.epoch.to_string(),
                format!("{:.3} s", outcome.vacancy.as_secs_f64()),
            ]
        }),
    ));
    let audit = stage.audit().await.map_err(failed)?;
    if !audit.violations.is_empty() {
        let found = audit.violations.len();
        return Err(Failure::failed(format!("the audit found {found} violations")));
    }
    out!(
        "audit: {} terms, epochs strictly increase, no two overlap (lease {LEASE:?})",
        audit.terms
    );
    if args.serve {
        out!("the page is at {}; Ctrl-C ends the demo", page.url());
        // The members go on: the page is live.
        tokio::select! {
            () = stage.go_on() => {}
            () = signals.next() => {}
        }
    } else {
        out!("the page was at {}; `tenure demo --serve` keeps it open", page.url());
    }
    Ok(Exit::Clean)
}

/// Returns when a person wants to leave; draws anew when the terminal has another size.
async fn quit(keys: &mut mpsc::UnboundedReceiver<Key>, view: Option<&View>) -> Result<(), Failure> {
    loop {
        match (keys.recv().await, view) {
            (Some(Key::Quit), _) => return Ok(()),
            (Some(Key::Interrupt), _) => return Err(interrupted()),
            (Some(Key::Resized), Some(view)) => view.redraw(),
            (Some(Key::Resized), None) => {}
            // There is no keyboard.
            (None, _) => std::future::pending().await,
        }
    }
}

fn interrupted() -> Failure {
    Failure::failed("the demo was interrupted")
}

fn failed(error: anyhow::Error) -> Failure {
    Failure::failed(format!("the demo failed: {error:#}"))
}

/// Everything the demo runs.
struct Stage {
    view: Rc<View>,
    nodes: Vec<Node>,
    links: Vec<Link>,
    events: mpsc::UnboundedReceiver<(usize, MemberEvent)>,
    outcomes: Vec<Outcome>,
    /// The latest term that a member announced, and when each member's last one ended.
    leader: Option<AnnouncedTerm>,
    ended_ns: [u64; 3],
    config: Config,
    server: Server,
}

/// The server in its folder; both go when this is dropped.
struct Server {
    embedded: Embedded,
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.embedded.stop();
    }
}

impl Stage {
    async fn set(view: View) -> anyhow::Result<Self> {
        use std::os::unix::fs::PermissionsExt;
        // The server's account must be able to pass through.
        let passable = std::fs::Permissions::from_mode(0o711);
        let folder =
            tempfile::Builder::new().prefix("tenure-demo-").permissions(passable).tempdir()?;
        let data = folder.path().join("pg");
        view.note("starting a private PostgreSQL");
        let embedded =
            tokio::task::spawn_blocking(|| Embedded::start_or_attach(Some(data))).await??;
        let server = Server { embedded, _folder: folder };
        let config = Config::builder().dsn(server.embedded.dsn()?).build()?;
        let (sender, events) = mpsc::unbounded_channel();
        let mut links = Vec::new();
        let mut nodes = Vec::new();
        let upstream = server.embedded.path().join("run").join(link::SOCKET);
        for (index, name) in NAMES.iter().enumerate() {
            let place = server._folder.path().join(name);
            std::fs::create_dir(&place)?;
            links.push(Link::open(&place, &upstream)?);
            let dsn = format!("host='{}' user=tenure dbname=postgres", place.display());
            nodes.push(Node::start(index, name, &dsn, sender.clone())?);
        }
        Ok(Stage {
            view: Rc::new(view),
            nodes,
            links,
            events,
            outcomes: Vec::new(),
            leader: None,
            ended_ns: [0; 3],
            config,
            server,
        })
    }

    async fn play(&mut self, args: &Demo) -> anyhow::Result<()> {
        let seed = args.seed.unwrap_or_else(|| rand::rng().random());
        let mut random = StdRng::seed_from_u64(seed);
        let until = Instant::now() + Duration::from_secs(args.seconds);
        self.led_above(0).await.context("no member led at first")?;
        loop {
            let mut faults = Fault::ALL;
            if args.seed.is_some() || !self.outcomes.is_empty() {
                faults.shuffle(&mut random);
            }
            for fault in faults {
                self.settle().await?;
                let outcome = self.suffer(fault).await.with_context(|| fault.name().to_owned())?;
                self.view.outcome(&format!(
                    "{}: {} (epoch {}) -> {} (epoch {}), {:.3} s without a leader",
                    fault.name(),
                    NAMES[outcome.before.node],
                    outcome.before.epoch,
                    NAMES[outcome.after.node],
                    outcome.after.epoch,
                    outcome.vacancy.as_secs_f64()
                ));
                self.outcomes.push(outcome);
            }
            if Instant::now() >= until {
                return Ok(());
            }
        }
    }

    async fn suffer(&mut self, fault: Fault) -> anyhow::Result<Outcome> {
        let before = self.leader.context("no member leads")?;
        let began_ns = now_ns();
        let victim = NAMES[before.node];
        match fault {
            Fault::Kill => {
                self.view.fault(&format!("{victim}: kill -9"));
                self.view.hit(before.node, Phase::Killed);
                self.nodes[before.node].kill().await;
            }
            Fault::Freeze => {
                self.view.fault(&format!("{victim}: frozen (SIGSTOP)"));
                self.view.hit(before.node, Phase::Frozen);
                self.nodes[before.node].freeze();
            }
            Fault::Partition => {
                self.view.fault(&format!("{victim}: cut off from the database"));
                self.view.hit(before.node, Phase::CutOff);
                self.links[before.node].hold();
            }
            Fault::Handover => {
                self.view.fault(&format!("{victim}: asked to hand over"));
                let operator = Operator::connect(&self.config).await?;
                operator.step_down(&RoleName::new(ROLE)?, None).await?;
                operator.close().await;
            }
            Fault::Restart => {
                self.view.fault("database: restarted");
                let server = self.server.embedded.clone();
                let folder = server.path().to_owned();
                tokio::task::spawn_blocking(move || {
                    server.stop()?;
                    Embedded::start_or_attach(Some(folder))
                })
                .await??;
            }
        }
        let after = self.led_above(before.epoch).await?;
        // Without a word of its own the old leader could act until it was hit.
        let ended = self.ended_ns[before.node];
        let ended = if (began_ns..after.since_ns).contains(&ended) { ended } else { began_ns };
        let vacancy = Duration::from_nanos(after.since_ns.saturating_sub(ended));
        match fault {
            Fault::Kill => self.nodes[before.node].start_again()?,
            Fault::Freeze => self.nodes[before.node].thaw(),
            Fault::Partition => self.links[before.node].heal(),
            Fault::Handover | Fault::Restart => {}
        }
        self.view.healed(before.node);
        Ok(Outcome { fault, before, after, vacancy })
    }

    /// Until all three take part, and for a moment to look at.
    async fn settle(&mut self) -> anyhow::Result<()> {
        let until = Instant::now() + PATIENCE;
        let role = RoleName::new(ROLE)?;
        let operator = Operator::connect(&self.config).await?;
        loop {
            let roles = operator.status(Some(&role)).await?;
            let known = roles.first().filter(|role| role.acting).map(|role| {
                (role.epoch.get(), role.waiting.len(), self.leader.map(|leader| leader.epoch))
            });
            if let Some((epoch, 2, Some(heard))) = known
                && epoch == heard
            {
                break;
            }
            anyhow::ensure!(Instant::now() < until, "the members did not come together again");
            self.listen(Duration::from_millis(50)).await;
        }
        operator.close().await;
        self.listen(PAUSE).await;
        Ok(())
    }

    async fn led_above(&mut self, epoch: i64) -> anyhow::Result<AnnouncedTerm> {
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(term) = self.leader.filter(|term| term.epoch > epoch) {
                return Ok(term);
            }
            anyhow::ensure!(Instant::now() < until, "no member took over within {PATIENCE:?}");
            self.listen(Duration::from_millis(20)).await;
        }
    }

    /// Takes in what the members say for a while.
    async fn listen(&mut self, time: Duration) {
        let until = Instant::now() + time;
        while let Ok(Some((node, event))) = timeout_at(until, self.events.recv()).await {
            self.heard(node, &event);
        }
        self.view.draw();
    }

    fn heard(&mut self, node: usize, event: &MemberEvent) {
        match event.event.as_str() {
            "acquired" => {
                let epoch = event.epoch.unwrap_or(0);
                if self.leader.is_none_or(|leader| epoch > leader.epoch) {
                    self.leader = Some(AnnouncedTerm { node, epoch, since_ns: event.mono_ns });
                }
            }
            "released" | "lost" | "late" => self.ended_ns[node] = event.mono_ns,
            _ => {}
        }
        self.view.heard(node, event);
    }

    /// The demo's own timeline in a browser.
    async fn page(&self) -> Result<Page, Failure> {
        let mut options = PageOptions::at((Ipv4Addr::LOCALHOST, PORT).into());
        let page = match Page::open(&self.config, &options).await {
            // Another page is at home there.
            Err(PageError::Listen { .. }) => {
                options.listen.set_port(0);
                Page::open(&self.config, &options).await
            }
            other => other,
        };
        page.map_err(serve::failed)
    }

    /// Takes in what the members say, for as long as this is awaited.
    async fn go_on(&mut self) {
        loop {
            self.listen(Duration::from_secs(1)).await;
        }
    }

    async fn audit(&self) -> anyhow::Result<tenure::operate::Audit> {
        let operator = Operator::connect(&self.config).await?;
        let audit = operator.audit(Some(&RoleName::new(ROLE)?)).await?;
        operator.close().await;
        Ok(audit)
    }
}

fn now_ns() -> u64 {
    use rustix::time::{ClockId, clock_gettime};
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}
