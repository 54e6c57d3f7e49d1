//! The README's cluster without a database, by the one program.

use rustix::process::Signal;
use tenure_testkit::Child;

use crate::kit::{SOON, code, ends, program, refuses, stderr, stdout};

#[tokio::test]
async fn three_commands_make_a_cluster_that_answers_on_any_node() {
    let folder = tempfile::tempdir().expect("a folder");
    let node = |name: &str, more: &[&str]| {
        let mut command = tokio::process::Command::new(program());
        command.args(["gossip", "node", "--listen", "127.0.0.1:0", "--data"]);
        command.arg(folder.path().join(name)).args(more);
        Child::spawn(command).expect("it runs")
    };
    let mut first = node("a", &["--bootstrap"]);
    let address = address_of(&mut first).await;
    let mut second = node("b", &["--join", &address]);
    let other = address_of(&mut second).await;
    let _third = node("c", &["--join", &address]);

    let put = ends(&["gossip", "submit", "--node", &other, "put", "greeting", "\"hello\""]).await;
    assert_eq!(code(&put), 0, "{}", stderr(&put));
    let history = stdout(&ends(&["gossip", "history", "--node", &address]).await);
    assert!(history.contains("greeting"), "{history}");
    first.signal(Signal::KILL);
    first.wait(SOON).await.expect("it ends");
    let late = ends(&["gossip", "status", "--node", &address]).await;
    refuses(&late, 6, "is a node running there?");
}

/// Where a node listens: `ready ADDRESS ID` is its first word.
async fn address_of(node: &mut Child) -> String {
    let line = node.wait_line(|line| line.starts_with("ready "), SOON).await.expect("a line");
    line.split(' ').nth(1).expect("an address").to_owned()
}
