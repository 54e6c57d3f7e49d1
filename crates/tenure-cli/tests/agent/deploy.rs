//! The examples of a deployment, as their readers take them; and what a service manager is told.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tenure_testkit::{Child, Proxy, Signal, shared_cluster};
use tokio::net::UnixDatagram;
use tokio::process::Command;
use tokio::time::timeout;

use crate::files::check;
use crate::kit::{SOON, Stage, agent_command, bare, event_of, finish, program, said};

fn example(name: &str) -> String {
    let folder = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/deploy"));
    std::fs::read_to_string(folder.join(name)).expect("the example")
}

#[tokio::test]
async fn the_files_of_the_examples_are_what_an_agent_takes() {
    let (code, said) = check(&example("tenure.toml")).await;
    assert_eq!(code, 0, "{said}");
    let inner: String = example("kubernetes.yaml")
        .lines()
        .skip_while(|line| !line.contains("tenure.toml: |"))
        .skip(1)
        .take_while(|line| line.starts_with("    "))
        .map(|line| format!("{}\n", line.trim_start()))
        .collect();
    let (code, said) = check(&inner).await;
    assert_eq!(code, 0, "{said}");
}

#[tokio::test]
async fn the_container_starts_the_agent_as_the_program_takes_it() {
    let file = example("Containerfile");
    let words = |keyword: &str| -> Vec<String> {
        let line = file.lines().find_map(|line| line.strip_prefix(keyword)).expect("the line");
        serde_json::from_str(line).expect("a list of words")
    };
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("tenure.toml");
    std::fs::write(&config, example("tenure.toml")).expect("written");
    let entry = words("ENTRYPOINT");
    assert_eq!(entry[0], "/usr/local/bin/tenure");
    let here = config.to_str().expect("text");
    let mut command = bare();
    command.args(entry[1..].iter().map(|word| word.replace("/etc/tenure/tenure.toml", here)));
    command.args(words("CMD")).args(["--check", "--dsn", "postgresql://localhost/none"]);
    let output = finish(command).await;
    assert!(output.status.success(), "{}", said(&output));
    // What the image has is where the program looks for it.
    for copied in
        ["target/release/tenure /usr/local/bin/tenure", "tenure.toml /etc/tenure/tenure.toml"]
    {
        assert!(file.contains(copied), "{copied}");
    }
}

/// Compares manifests with the schemas of one version of Kubernetes.
async fn validate(version: &str, path: &Path) -> std::process::Output {
    let tool =
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../.tools/kubernetes/bin/kubernetes-validate");
    assert!(Path::new(tool).exists(), "{tool} is missing; run scripts/setup.sh deploy");
    let mut command = Command::new(tool);
    command.args(["--strict", "--kubernetes-version", version]).arg(path);
    finish(command).await
}

#[tokio::test]
async fn the_manifests_follow_the_schemas_of_kubernetes() {
    let folder = tempfile::tempdir().expect("a folder");
    let (good, bad) = (folder.path().join("good.yaml"), folder.path().join("bad.yaml"));
    let manifests = example("kubernetes.yaml");
    std::fs::write(&good, &manifests).expect("written");
    std::fs::write(&bad, manifests.replace("periodSeconds", "periodSecs")).expect("written");
    for version in ["1.28", "1.37"] {
        let output = validate(version, &good).await;
        let told = said(&output);
        assert!(output.status.success(), "{told}");
        for resource in ["configmap/tenure-agent", "deployment/tenure-agent", "service/relayer"] {
            assert!(told.contains(&format!("passed for resource {resource}")), "{told}");
        }
        // The checker is one: a word that is not Kubernetes' is found.
        assert!(!validate(version, &bad).await.status.success(), "a wrong manifest passed");
    }
}

#[tokio::test]
async fn the_unit_is_one_of_systemd() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure-agent.service");
    // With a program that is there.
    let here = program();
    let unit = example("tenure-agent.service")
        .replace("/usr/local/bin/tenure", here.to_str().expect("text"));
    std::fs::write(&path, unit).expect("written");
    let mut verify = Command::new("systemd-analyze");
    verify.arg("verify").arg(&path);
    let output = verify.output().await.expect("systemd-analyze; install systemd");
    assert!(output.status.success(), "{}", said(&output));
}

/// Followers are never ready where readiness means leadership: a rollout that keeps a pod available would wait
/// for them for ever.
#[test]
fn a_rollout_of_the_manifests_does_not_wait_for_followers_to_be_ready() {
    let manifests = example("kubernetes.yaml");
    let number = |key: &str| -> u32 {
        let value = manifests.lines().find_map(|line| line.trim().strip_prefix(key));
        value.and_then(|value| value.trim().parse().ok()).expect("a number")
    };
    assert!(manifests.contains("path: /leader/"), "a pod is ready while it leads");
    assert!(number("maxUnavailable:") >= number("replicas:"), "no pod has to be available");
    assert!(
        number("maxSurge:") >= number("replicas:"),
        "the new pods are there when the old ones go"
    );
}

async fn datagram(socket: &UnixDatagram) -> String {
    let mut buffer = [0_u8; 256];
    let received = timeout(SOON, socket.recv(&mut buffer)).await.expect("in time");
    String::from_utf8_lossy(&buffer[..received.expect("received")]).into_owned()
}

/// Passes over the watchdog's food.
async fn news(socket: &UnixDatagram) -> String {
    loop {
        let text = datagram(socket).await;
        if text != "WATCHDOG=1" {
            return text;
        }
    }
}

#[tokio::test]
async fn a_service_manager_is_told_when_the_agent_is_ready_reloads_lives_and_stops() {
    let stage = Stage::new().await;
    let file = stage.file("tenure.toml", "[[role]]\nname = 'r'\n");
    let path = stage.path("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut command = agent_command(&stage.database.dsn(), &file, &[]);
    command.env("NOTIFY_SOCKET", &path).env("WATCHDOG_USEC", "600000");
    let mut agent = Child::spawn(command).expect("it runs");
    assert_eq!(news(&socket).await, "READY=1");
    for _ in 0..3 {
        assert_eq!(datagram(&socket).await, "WATCHDOG=1");
    }
    agent.signal(Signal::HUP);
    let reloading = news(&socket).await;
    assert!(reloading.starts_with("RELOADING=1\nMONOTONIC_USEC="), "{reloading}");
    assert_eq!(news(&socket).await, "READY=1");
    agent.signal(Signal::TERM);
    assert_eq!(news(&socket).await, "STOPPING=1");
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn an_agent_whose_database_does_not_answer_says_so_and_is_not_ready() {
    let stage = Stage::new().await;
    let file = stage.file("tenure.toml", "[[role]]\nname = 'r'\n");
    let path = stage.path("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut command = agent_command("postgresql://localhost:1/none", &file, &[]);
    command.env("NOTIFY_SOCKET", &path);
    let mut agent = Child::spawn(command).expect("it runs");
    event_of(&mut agent, "error", |event| event["role"] == "r").await;
    // Longer than a start waits for its answer: four statement deadlines. Time is the subject.
    let nothing = timeout(Duration::from_secs(5), socket.recv(&mut [0_u8; 64])).await;
    assert!(nothing.is_err(), "it said that it is ready");
    agent.signal(Signal::TERM);
    assert_eq!(news(&socket).await, "STOPPING=1");
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
}

#[tokio::test]
async fn an_agent_is_ready_once_the_database_has_taken_its_roles_and_a_refusal_ends_it() {
    let stage = Stage::new().await;
    let proxy = Proxy::start(shared_cluster().await.addr()).await.expect("a proxy");
    proxy.refuse(true).await.expect("it refuses");
    let dsn = proxy.dsn(stage.database.name());
    let start = |text: &str, name: &str| {
        let file = stage.file(&format!("{name}.toml"), text);
        let path = stage.path(name);
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let mut command = agent_command(&dsn, &file, &["--instance", name]);
        command.env("NOTIFY_SOCKET", &path);
        (Child::spawn(command).expect("it runs"), socket)
    };
    let command = "[[command]]\nrole = 'r'\nrun = 'exec sleep 600'\n";
    let (mut agent, socket) = start(command, "one");
    event_of(&mut agent, "error", |event| event["role"] == "r").await;
    // What is changed meanwhile is taken over as soon as it is ready.
    stage.file("one.toml", &command.replace("600", "601"));
    agent.signal(Signal::HUP);
    proxy.heal();
    assert_eq!(news(&socket).await, "READY=1");
    event_of(&mut agent, "reloaded", |_| true).await;
    let leads = "select count(*) from tenure.role where name = 'r' and debtor = holder";
    stage.at_least(leads, 1).await;

    // The database knows the role otherwise: found only once it answers.
    proxy.refuse(true).await.expect("it refuses");
    let fenced = "[[role]]\nname = 'r'\npolicy = 'fenced'\n";
    let (mut other, socket) = start(fenced, "two");
    event_of(&mut other, "error", |event| event["role"] == "r").await;
    proxy.heal();
    assert_eq!(news(&socket).await, "STOPPING=1");
    assert_eq!(other.wait(SOON).await.expect("it ends").code(), Some(3));

    // And long after the start, with a new session: what leads ends in order, and the reason is told.
    proxy.refuse(true).await.expect("it refuses");
    proxy.reset();
    stage.client.execute("update tenure.role set policy = 'fenced'", &[]).await.expect("changed");
    proxy.heal();
    let reason = "role r was refused: the group knows it with policy fenced";
    agent.wait_line(|line| line.contains(reason), SOON).await.expect("the reason");
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(3));
}

#[tokio::test]
async fn a_role_that_is_refused_ends_an_agent_although_another_waits_for_its_registration() {
    let stage = Stage::new().await;
    let roles = "[[role]]\nname = 'a'\n[[role]]\nname = 'b'\n";
    let file = stage.file("tenure.toml", roles);
    let mut agent = stage.agent(&file, &[]);
    stage
        .at_least(
            "select count(*) from tenure.role where debtor = holder and name in ('a', 'b')",
            2,
        )
        .await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(0));
    // A registration has to change the row of the one, and cannot; of the other the database knows better.
    let short = "update tenure.role set lease_ms = 1 where name = 'b'";
    stage.client.batch_execute(short).await.expect("changed");
    let held = "begin; select from tenure.role where name = 'b' for update";
    stage.client.batch_execute(held).await.expect("held");
    stage.file("tenure.toml", &roles.replace("'a'\n", "'a'\npolicy = 'fenced'\n"));
    let mut agent = stage.agent(&file, &[]);
    assert_eq!(agent.wait(SOON).await.expect("it ends").code(), Some(3));
    stage.client.batch_execute("rollback").await.expect("let go");
}
