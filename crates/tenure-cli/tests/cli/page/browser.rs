//! The page in a real Chromium: `make page`, `make page-all`. The scenes are in the page's own folder; here the
//! group is started, and done to it what a scene asks for.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tenure_testkit::{Child, Cluster, Signal, Stop};
use tokio::task::JoinHandle;
use tokio::time::sleep;
use tokio_postgres::Client;

use super::Served;
use crate::kit::{SOON, event, member, program, until};

/// A name that would be a tag if the page took it for one.
const ODD: &str = "<img src=x onerror=alert(1)>";
/// The longest that one scene takes; a browser is slow on a busy machine.
const SCENE: Duration = Duration::from_secs(180);

pub(super) fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A group with two members of three roles, and an agent with a schedule that works and one that does not.
struct Group {
    cluster: Cluster,
    members: Vec<(String, Child)>,
    agents: Vec<Child>,
    folder: tempfile::TempDir,
    load: Option<JoinHandle<()>>,
    /// Open for reading.
    page: Served,
    /// With TLS on every address: nothing is shown without a token.
    secure: Served,
}

impl Group {
    async fn start() -> Self {
        let cluster = Cluster::start().await.expect("a server");
        let dsn = cluster.dsn();
        let mut members = Vec::new();
        for (role, names) in
            [("export", ["north", "east"]), (ODD, ["east", "north"]), ("mail", ["north", "east"])]
        {
            for (place, name) in names.into_iter().enumerate() {
                let mut child = member(&[
                    "--role",
                    role,
                    "--instance",
                    name,
                    "--dsn",
                    &dsn,
                    "--cool-down",
                    "1s",
                ]);
                if place == 0 {
                    event(&mut child, "acquired").await;
                }
                if role == "export" {
                    members.push((name.to_owned(), child));
                } else {
                    members.push((format!("{role} {name}"), child));
                }
            }
        }
        let folder = tempfile::tempdir().expect("a folder");
        let text = "[[schedule]]\nname = 'tick'\nrole = 'scheduler'\ncron = '@every 2s'\nrun = 'echo tock'\n\
            [[schedule]]\nname = 'broken'\nrole = 'scheduler'\ncron = '@every 1h'\n\
            run = 'echo ERROR: no such table; exit 3'\n";
        let agents = vec![agent(&dsn, folder.path(), "west", text)];
        let client = cluster.client("postgres").await.expect("a session");
        let count = async |sql: &str| {
            client.query_one(sql, &[]).await.map_or(-1, |row| row.get::<_, i64>(0))
        };
        let led = "select count(*) from tenure.role r join tenure.term t on t.role = r.name and t.epoch = r.epoch \
                   where t.acting_at is not null and t.ended_at is null and r.name not like 'tenure:%'";
        until("four roles that are led", async || count(led).await >= 4).await;
        until("a schedule", async || {
            count("select count(*) from tenure_agent.slot where state = 'succeeded'").await > 0
        })
        .await;
        let order = "select tenure_agent.order_run('broken', null, 'the test')";
        client.query_one(order, &[]).await.expect("ordered");
        until("a dead letter", async || {
            count("select count(*) from tenure_agent.slot where state = 'failed'").await > 0
        })
        .await;
        let page = Served::new(&dsn, &[]).await;
        let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let file = |name: &str| folder.path().join(name);
        std::fs::write(file("cert.pem"), made.cert.pem()).expect("written");
        std::fs::write(file("key.pem"), made.signing_key.serialize_pem()).expect("written");
        let secure = secure(&dsn, folder.path(), "0").await;
        Group { cluster, members, agents, folder, load: None, page, secure }
    }

    /// Does what a scene asks for.
    async fn obey(&mut self, wish: &str) {
        match wish {
            "kill-leader" => {
                let client = self.cluster.client("postgres").await.expect("a session");
                let sql = "select holder from tenure.role where name = 'export'";
                let holder: String = client.query_one(sql, &[]).await.expect("a row").get(0);
                let (_, child) = self
                    .members
                    .iter_mut()
                    .find(|(name, _)| holder.contains(&format!("-{name}-")))
                    .expect("it is one of ours");
                child.kill().await.expect("killed");
            }
            "freeze-page" => self.page.child.signal(Signal::STOP),
            "thaw-page" => self.page.child.signal(Signal::CONT),
            "restart-secure" => {
                self.secure.child.kill().await.expect("killed");
                let port = self.secure.address.rsplit_once(':').expect("a port").1.to_owned();
                self.secure = secure(&self.cluster.dsn(), self.folder.path(), &port).await;
            }
            "sixty-vacant" => {
                let sql = "insert into tenure.role (name, key, policy, lease_ms, epoch, last_holder, released_at) \
                    select 'import:tenant-' || lpad(n::text, 2, '0'), 100000 + n, 'exclusive', 3000, 3, \
                        'tenure-harbor-9-00000000-0000-4000-8000-000000000009', now() - interval '49 s' \
                    from generate_series(1, 60) n; \
                    insert into tenure.term (role, epoch, member, claimed_at, acting_at, ended_at, how) \
                    select name, 3, last_holder, now() - interval '1 h', now() - interval '1 h', released_at, 'replaced' \
                    from tenure.role where name like 'import:%'";
                self.cluster.sql(sql).await.expect("rows");
            }
            "stop-database" => self.cluster.stop(Stop::Immediate).await.expect("it stops"),
            "start-database" => self.cluster.start_again().await.expect("it starts"),
            "thousand-roles" => {
                let client = self.cluster.client("postgres").await.expect("a session");
                self.load = Some(thousand_roles(client).await);
            }
            "every-card" => {
                let text = "[[shards]]\nname = 'ingest'\ncount = 16\nrun = 'exec sleep 600'\n\
                    [alerting]\ninterval = '1s'\n[[alerts]]\nname = 'dead_letters'\nfor = '0s'\n\
                    condition = 'sum by (schedule) (tenure_schedule_dead_letters) > 0'\n\
                    severity = 'warning'\nnotify = ['command:true']\n";
                for name in ["south", "center"] {
                    let agent = agent(&self.cluster.dsn(), self.folder.path(), name, text);
                    self.agents.push(agent);
                }
                let client = self.cluster.client("postgres").await.expect("a session");
                transactions(&client, "mail").await;
            }
            other => panic!("the scene asks for {other}"),
        }
    }
}

async fn secure(dsn: &str, folder: &Path, port: &str) -> Served {
    let file = |name: &str| folder.join(name).to_str().expect("text").to_owned();
    let (cert, key) = (file("cert.pem"), file("key.pem"));
    let tls = ["--tls-cert", &cert, "--tls-key", &key, "--name", "localhost"];
    let title = ["--title", "orders-prod"];
    Served::at(&format!("0.0.0.0:{port}"), dsn, &[&tls[..], &title].concat()).await
}

fn agent(dsn: &str, folder: &Path, name: &str, text: &str) -> Child {
    let file = folder.join(format!("{name}.toml"));
    let member = format!("[member]\ninstance = '{name}'\nheartbeat = '700ms'\nlease = '3s'\n");
    std::fs::write(&file, member + text).expect("written");
    let mut command = tokio::process::Command::new(program());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.args(["agent", "--dsn", dsn, "--config"]).arg(&file).stderr(Stdio::null());
    Child::spawn(command).expect("it runs")
}

/// The tables of transactions as they are, with an account of which one transaction is stuck and one ended.
pub(super) async fn transactions(client: &Client, role: &str) {
    client.batch_execute("create schema tenure_tx").await.expect("a schema");
    for file in ["0001_pending_transactions.sql", "0002_writers.sql"] {
        let path = root().join("crates/tenure-tx/sql").join(file);
        let sql = std::fs::read_to_string(path).expect("a file");
        client.batch_execute(&sql).await.expect("tables");
    }
    let sql = "insert into tenure_tx.account (account_id, role, chain) \
            values (decode(repeat('ab', 20), 'hex'), '{role}', '31337 0xfeed'); \
        insert into tenure_tx.pending_transactions (account_id, nonce, hash, state, block_hash, tip, attempts, \
            request_id, creator_id, epoch, built_at_block, created_at, ended_at) \
        select decode(repeat('ab', 20), 'hex'), n, sha256(n::text::bytea), \
            (array['finalized', 'broadcast', 'in_block'])[n], case when n <> 2 then sha256('block') end, 1, '[]', \
            'payment-' || n, 'north', 1, 1, now() - interval '1 minute' * (4 - n) * 2, case when n = 1 then now() end \
        from generate_series(1, 3) n";
    client.batch_execute(&sql.replace("{role}", role)).await.expect("rows");
}

/// A session that holds a thousand locks and beats, as a member would.
async fn thousand_roles(client: Client) -> JoinHandle<()> {
    let sql = "insert into tenure.member (identity, host, pid, backend_pid, backend_start, seat, key, lease_ms, incarnation) \
            values ('tenure-south-7-00000000-0000-4000-8000-000000000000', 'load', 7, pg_backend_pid(), now(), '', 7, 3000, ''); \
        insert into tenure.role (name, key, policy, lease_ms, epoch, holder, debtor, since) \
            select 'export:tenant-' || lpad(n::text, 4, '0'), n, 'exclusive', 3000, 9, \
                'tenure-south-7-00000000-0000-4000-8000-000000000000', \
                'tenure-south-7-00000000-0000-4000-8000-000000000000', now() from generate_series(1, 1000) n; \
        insert into tenure.term (role, epoch, member, claimed_at, acting_at, ended_at, how) \
            select name, e, holder, now() - (10 - e) * interval '5 minutes', now() - (10 - e) * interval '5 minutes', \
                case when e < 9 then now() - (9 - e) * interval '5 minutes' end, case when e < 9 then 'released' end \
            from tenure.role, generate_series(5, 9) e where name like 'export:tenant-%'; \
        select count(pg_advisory_lock(n)) from generate_series(1, 1000) n";
    client.batch_execute(sql).await.expect("a thousand roles");
    tokio::spawn(async move {
        loop {
            let beat = "update tenure.member set seen_at = clock_timestamp() where host = 'load'";
            if client.batch_execute(beat).await.is_err() {
                return;
            }
            sleep(Duration::from_millis(500)).await;
        }
    })
}

async fn play(scenes: &str) {
    let mut group = Group::start().await;
    let mut command = tokio::process::Command::new("node");
    command.arg(root().join("crates/tenure-agent/page/browser").join(scenes));
    command
        .env("TENURE_PAGE", format!("http://{}/", group.page.address))
        .env("TENURE_SECURE", format!("https://{}/", group.secure.address))
        .env("TENURE_READER", "see-everything")
        .env("TENURE_TOKEN", "do-something");
    let mut browser = Child::spawn(command).expect("node runs; scripts/setup.sh page installs it");
    loop {
        let line = browser.wait_line(|_| true, SCENE).await.expect("the browser goes on");
        #[allow(clippy::print_stdout, reason = "a person waits for it")]
        {
            println!("  {line}");
        }
        match line.strip_prefix("do ") {
            Some(wish) => group.obey(wish).await,
            None if line == "done" => break,
            None => assert!(!line.starts_with("failed"), "{line}"),
        }
    }
    browser.wait(SOON).await.expect("it ends");
    if scenes == "all.mjs" {
        fuzz(&group.page, &group).await;
    }
    if let Some(load) = group.load {
        load.abort();
    }
}

/// The API against its own description: nothing that schemathesis makes up is answered with a 500, or with what
/// is not described.
async fn fuzz(page: &Served, group: &Group) {
    let client = group.cluster.client("postgres").await.expect("a session");
    // Orders that were recorded in the token's name: the description's examples are of this group.
    let ordered = async || {
        let sql = "select count(*) filter (where kind = 'run_schedule'), count(*) from tenure.event \
                   where detail like 'asked by deploy-bot%'";
        let row = client.query_one(sql, &[]).await.expect("a count");
        let (runs, all): (i64, i64) = (row.get(0), row.get(1));
        (runs, all - runs)
    };
    let before = ordered().await;
    let token = "Authorization: Bearer do-something";
    let mut command = tokio::process::Command::new(root().join(".tools/schemathesis/bin/st"));
    command.args(["run", &format!("http://{}/api/v1/openapi.json", page.address)]);
    command.args([
        "--url",
        &format!("http://{}", page.address),
        "-H",
        token,
        "--max-examples",
        "50",
    ]);
    command.args([
        "--exclude-path",
        "/api/v1/events",
        "--no-color",
        "--seed",
        "7",
        "--request-timeout",
        "30",
    ]);
    command.args(["--checks", "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"]);
    // It leaves what it learned in the folder that it runs in.
    command.current_dir(page.folder.path());
    let output = command.stdin(Stdio::null()).output().await.expect("schemathesis runs");
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    let about: Value = page.get("/api/v1/session").await.json();
    assert_eq!(about["tokens"], true, "the page lives on");
    let after = ordered().await;
    assert!(after.0 > before.0, "no run was ordered: {before:?} {after:?} {said}");
    assert!(after.1 > before.1, "no order to a leader was given: {before:?} {after:?} {said}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs node and Chromium: `make page`"]
async fn pass() {
    play("pass.mjs").await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs node, Chromium and schemathesis: `make page-all`"]
async fn all() {
    play("all.mjs").await;
}
