//! Every setting that keeps its name from another system, one test each, in the order of
//! `docs/configuration.md`.

use std::time::Duration;

use tenure::config::{Config, RoleSpec};
use tenure_core::key::LockKey;

use crate::env;

fn with_env<const N: usize>(pairs: [(&str, &str); N]) -> Config {
    Config::builder().env(env(pairs)).build().unwrap_or_else(|error| panic!("{error}"))
}

fn with_toml(text: &str) -> Config {
    let builder = Config::builder().toml(text, "tenure.toml");
    builder.and_then(|builder| builder.build()).unwrap_or_else(|error| panic!("{error}"))
}

fn retry(config: &Config) -> String {
    format!("{:?}", config.retry())
}

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

// StorageHub's election.

#[test]
fn leader_lock_key() {
    let config = with_env([("LEADER_LOCK_KEY", "0x2a")]);
    assert_eq!(config.roles()[0].key(), LockKey::Big(42));
    assert_eq!(config.roles()[0].name().as_str(), "lock:42");
    // With one role configured it is that role's key; with two it would be unclear whose.
    let one = Config::builder()
        .env(env([("LEADER_LOCK_KEY", "42")]))
        .role(RoleSpec::named("msp"))
        .build()
        .unwrap();
    assert_eq!((one.roles().len(), one.roles()[0].key()), (1, LockKey::Big(42)));
    let two = Config::builder()
        .env(env([("LEADER_LOCK_KEY", "42")]))
        .role(RoleSpec::named("msp"))
        .role(RoleSpec::named("bsp"))
        .build();
    assert!(two.unwrap_err().to_string().contains("LEADER_LOCK_KEY"));
}

#[test]
fn pg_conn_string() {
    let config = with_env([("PG_CONN_STRING", "postgres://u@db/app")]);
    assert_eq!(config.dsn().unwrap().to_string(), "postgresql://u@db:5432/app");
}

#[test]
fn heartbeat_interval_ms() {
    let config = with_env([("HEARTBEAT_INTERVAL_MS", "3000")]);
    assert_eq!((config.lease().heartbeat(), config.lease().lease()), (secs(3), secs(9)));
}

#[test]
fn heartbeat_late_threshold_ms() {
    let config =
        with_env([("HEARTBEAT_INTERVAL_MS", "3000"), ("HEARTBEAT_LATE_THRESHOLD_MS", "6000")]);
    assert_eq!((config.lease().heartbeat(), config.lease().lease()), (secs(3), secs(6)));
}

#[test]
fn acquire_backoff_ms_min_max() {
    let config = with_env([("ACQUIRE_BACKOFF_MS_MIN", "200"), ("ACQUIRE_BACKOFF_MS_MAX", "800")]);
    assert_eq!(retry(&config), "DecorrelatedJitter { base: 200ms, max: 800ms }");
}

#[test]
fn epoch_stale_threshold_ms() {
    let config = with_env([("EPOCH_STALE_THRESHOLD_MS", "9000")]);
    assert_eq!(config.stale_after(), Some(secs(9)));
}

#[test]
fn pg_listen_channel() {
    assert_eq!(
        with_env([("PG_LISTEN_CHANNEL", "msp_leader_change")]).channel(),
        "msp_leader_change"
    );
}

#[test]
fn msp_leader_enabled() {
    // Unset, a node that only has a lock key follows.
    assert!(!with_env([("LEADER_LOCK_KEY", "42")]).is_enabled());
    for (value, enabled) in [("true", true), ("false", false), ("1", true), ("off", false)] {
        let config = with_env([("LEADER_LOCK_KEY", "42"), ("MSP_LEADER_ENABLED", value)]);
        assert_eq!(config.is_enabled(), enabled, "{value}");
    }
    // A role asked for by name is a wish to lead, which the switch still overrules.
    assert!(with_env([("TENURE_ROLE", "msp")]).is_enabled());
    assert!(!with_env([("TENURE_ROLE", "msp"), ("MSP_LEADER_ENABLED", "false")]).is_enabled());
}

// StorageHub's transactions.

#[test]
fn sh_pending_db_url() {
    let config = with_env([("SH_PENDING_DB_URL", "postgres://u@db/app")]);
    assert_eq!(config.dsn().unwrap().database(), "app");
}

#[test]
fn sh_node_instance_id() {
    let config = with_env([("SH_NODE_INSTANCE_ID", "msp-2")]);
    assert_eq!(config.identity().unwrap().hostname("tenure"), Some("msp-2"));
}

#[test]
fn sh_db_tls_insecure() {
    assert!(
        format!("{:?}", with_env([("SH_DB_TLS_INSECURE", "true")]).tls())
            .contains("insecure: true")
    );
    assert!(format!("{:?}", with_env([]).tls()).contains("insecure: false"));
}

#[test]
fn sh_db_tls_ca_file() {
    let config = with_env([("SH_DB_TLS_CA_FILE", "/etc/ca.pem")]);
    assert!(format!("{:?}", config.tls()).contains("/etc/ca.pem"));
}

// FORGE: its section works as it is.

const FORGE: &str = r#"
[cluster.leader_election]
check_interval = "5s"
lease_duration = "60s"
refresh_interval = "30s"
lock_timeout = "10s"
"#;

#[test]
fn check_interval() {
    assert_eq!(with_toml(FORGE).poll(), secs(5));
}

#[test]
fn lease_duration() {
    assert_eq!(with_toml(FORGE).lease().lease(), secs(60));
}

#[test]
fn refresh_interval() {
    assert_eq!(with_toml(FORGE).lease().heartbeat(), secs(30));
}

#[test]
fn lock_timeout() {
    assert_eq!(with_toml(FORGE).acquire_timeout(), Some(secs(10)));
}

// pgleaderlock.

#[test]
fn dsn_and_pg_dsn() {
    assert_eq!(with_toml("[database]\ndsn = \"host=a\"").dsn().unwrap().hosts()[0].name, "a");
    assert_eq!(with_env([("PG_DSN", "host=b")]).dsn().unwrap().hosts()[0].name, "b");
}

#[test]
fn key1_key2() {
    let config = with_toml("[[role]]\nkey1 = 1234\nkey2 = -5678\n");
    assert_eq!(config.roles()[0].key(), LockKey::Pair(1234, -5678));
    assert_eq!(config.roles()[0].name().as_str(), "lock:1234,-5678");
}

#[test]
fn health_interval_s() {
    let config = with_toml("[member]\nhealth_interval_s = 5.0\n");
    assert_eq!((config.lease().heartbeat(), config.lease().lease()), (secs(5), secs(15)));
}

#[test]
fn reconnect_grace_s() {
    assert_eq!(with_toml("").lease().reconnect_grace(), None);
    let config = with_toml("[member]\nreconnect_grace_s = 2.5\n");
    assert_eq!(config.lease().reconnect_grace(), Some(Duration::from_millis(2500)));
}

#[test]
fn auto_reacquire() {
    assert!(with_toml("[[role]]\nname = \"a\"\n").roles()[0].auto_reacquire());
    let config = with_toml("[[role]]\nname = \"a\"\nauto_reacquire = false\n");
    assert!(!config.roles()[0].auto_reacquire());
}

#[test]
fn retry_strategy() {
    for (name, shown) in [
        ("exponential", "ExponentialBackoff"),
        ("ExponentialBackoff", "ExponentialBackoff"),
        ("fixed", "FixedInterval"),
        ("FixedInterval", "FixedInterval"),
        ("jitter", "DecorrelatedJitter"),
        ("DecorrelatedJitter", "DecorrelatedJitter"),
    ] {
        let config = with_toml(&format!("[retry]\nretry_strategy = \"{name}\"\n"));
        assert!(retry(&config).starts_with(shown), "{name}: {}", retry(&config));
    }
}

#[test]
fn base_s_max_s_multiplier() {
    let config = with_toml("[retry]\nbase_s = 1.0\nmax_s = 30.0\nmultiplier = 2.0\n");
    assert_eq!(
        retry(&config),
        "ExponentialBackoff { base: 1s, max: 30s, multiplier: 2.0, jitter: 0.2 }"
    );
}

#[test]
fn interval_s() {
    assert_eq!(retry(&with_toml("[retry]\ninterval_s = 5.0\n")), "FixedInterval { interval: 5s }");
}

#[test]
fn every_row_of_the_documents_table_has_its_test() {
    let page = include_str!("../../../../docs/configuration.md");
    let tests = include_str!("mapping.rs");
    let mut rows = 0;
    let table = page.split("| from | its key |").nth(1).unwrap();
    for line in table.lines().filter(|line| line.starts_with("| ") && line.contains('`')) {
        let key = line.split('`').nth(1).unwrap().to_lowercase();
        assert!(tests.contains(&format!("#[test]\nfn {key}")), "{key} has no test");
        rows += 1;
    }
    assert_eq!(rows, 24);
}
