//! A node's timings come from the option, else from the environment, as every member's do.

use std::time::Duration;

use tenure_testkit::anvil::Anvil;
use tenure_testkit::{Child, Signal, shared_cluster};

use crate::kit::program;

#[tokio::test]
async fn the_environments_lease_reaches_a_node_unless_an_option_says_more() {
    let anvil = Anvil::start(&[]).await;
    for (option, expected) in [(None, 7_000), (Some("6s"), 6_000)] {
        let database = shared_cluster().await.database().await.expect("a database");
        let mut command = program();
        command.env("TENURE_LEASE", "7s").args(["node", "--rpc", &anvil.url]);
        command.args(["--key-env", "RELAYER_KEY", "--dsn", &database.dsn()]);
        // A name is as good as an address.
        command.args(["--listen", "localhost:0"]);
        command.args(option.map(|lease| ["--lease", lease]).into_iter().flatten());
        let mut node = Child::spawn(command).expect("starts");
        let listening = |line: &str| line.contains("listening");
        node.wait_line(listening, Duration::from_secs(30)).await.expect("listens");
        let client = database.client().await.expect("a session");
        let row = client.query_one("select lease_ms from tenure.member", &[]).await.expect("a row");
        assert_eq!(row.get::<_, i32>(0), expected);
        node.signal(Signal::TERM);
        node.wait(Duration::from_secs(30)).await.expect("ends");
    }
}
