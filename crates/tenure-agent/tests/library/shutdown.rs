//! The end of an agent.

use std::path::Path;
use std::time::Duration;

use tenure::config::Config;
use tenure_agent::{Agent, Events, Plan};
use tenure_testkit::{Database, PATIENCE, shared_cluster};
use tokio::time::timeout;

async fn agent(database: &Database) -> Agent {
    let text = r#"
        [[schedule]]
        name = "s"
        role = "cron"
        cron = "@every 1h"
        run = "true""#;
    let plan = Plan::from_toml(text, Path::new("tenure.toml")).expect("valid");
    let config = plan.specs().fold(Config::builder(), |config, role| config.role(role));
    let config = config.dsn(database.dsn()).build().expect("valid");
    Agent::start(config, plan, Events::channel().0).await.expect("it starts")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_that_has_not_campaigned_leaves_at_once() {
    let database = shared_cluster().await.database().await.expect("a database");
    let agent = agent(&database).await;
    agent.shutdown(Duration::from_secs(15)).await.expect("nothing runs");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shutdown_may_have_no_limit() {
    let database = shared_cluster().await.database().await.expect("a database");
    let agent = agent(&database).await;
    agent.campaign().await.expect("it takes part");
    let left = timeout(PATIENCE, agent.shutdown(Duration::MAX)).await;
    left.expect("it ends").expect("it leaves");
}
