//! Sources, precedence, and what is refused.

use std::fs;
use std::time::Duration;

use tenure::config::{Config, ConfigError, RoleSpec};
use tenure_core::key::LockKey;
use tenure_core::lease::TakeoverPolicy;

use crate::env;

const FILE: &str = r#"
[database]
dsn = "postgresql://file@db/app"
application_dsn = "postgresql://app@pooler:6432/app"

[member]
scope = "billing"
heartbeat = "500ms"
lease = 2
channel = "from_file"

[[role]]
name = "scheduler"
policy = "fenced"
priority = 7
candidate = true
preempt = true
cool_down = "10s"
drain_limit = 1.5

[[role]]
name = "reaper"
key = 0x464F524745_0001

[retry]
strategy = "fixed"
interval = "250ms"
"#;

fn millis(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn refused(toml: &str) -> String {
    let built = Config::builder().toml(toml, "tenure.toml").and_then(|builder| builder.build());
    built.map(|_| ()).expect_err(toml).to_string()
}

#[test]
fn a_file_says_everything() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tenure.toml");
    fs::write(&path, FILE).unwrap();
    let config = Config::builder().file(&path).unwrap().build().unwrap();
    assert_eq!(config.dsn().unwrap().user(), "file");
    assert_eq!(config.application_dsn().unwrap().hosts()[0].port, 6432);
    assert_eq!(config.scope(), "billing");
    assert_eq!((config.lease().heartbeat(), config.lease().lease()), (millis(500), millis(2000)));
    let [scheduler, reaper] = config.roles() else { panic!("{:?}", config.roles()) };
    assert_eq!(scheduler.name().as_str(), "scheduler");
    assert_eq!(scheduler.key(), LockKey::of_name("scheduler"));
    assert_eq!(scheduler.policy(), TakeoverPolicy::Fenced);
    assert_eq!((scheduler.priority(), scheduler.preempts()), (7, true));
    assert_eq!((scheduler.cool_down(), scheduler.drain_limit()), (millis(10_000), millis(1500)));
    assert_eq!(reaper.key(), LockKey::Big(0x0046_4F52_4745_0001));
    assert_eq!(reaper.policy(), TakeoverPolicy::Exclusive);
    assert!(reaper.is_candidate() && reaper.auto_reacquire() && config.is_enabled());
    assert!(format!("{:?}", config.retry()).contains("250ms"));
}

#[test]
fn defaults_are_those_of_the_documents() {
    let config = Config::builder().build().unwrap();
    assert!(config.dsn().is_none() && config.application_dsn().is_none());
    assert_eq!((config.scope(), config.channel()), ("tenure", "tenure"));
    assert_eq!((config.lease().heartbeat(), config.lease().lease()), (millis(1000), millis(3000)));
    assert_eq!(config.lease().margin(), millis(550));
    assert_eq!(config.poll(), config.lease().lease());
    assert!(config.is_enabled() && !config.is_lock_only() && config.roles().is_empty());
    assert!(config.acquire_timeout().is_none() && config.stale_after().is_none());
    assert_eq!(
        format!("{:?}", config.retry()),
        "ExponentialBackoff { base: 200ms, max: 5s, multiplier: 2.0, jitter: 0.2 }"
    );
}

#[test]
fn the_later_source_wins_whatever_the_order_of_calls() {
    let variables = || {
        env([("TENURE_CHANNEL", "from_env"), ("TENURE_SCOPE", "env"), ("TENURE_DSN", "host=env")])
    };
    let config = Config::builder()
        .scope("own")
        .role(RoleSpec::named("scheduler").priority(9))
        .env(variables())
        .toml(FILE, "tenure.toml")
        .unwrap()
        .build()
        .unwrap();
    assert_eq!(config.scope(), "own");
    assert_eq!(config.channel(), "from_env");
    assert_eq!(config.dsn().unwrap().hosts()[0].name, "env");
    assert_eq!(config.lease().heartbeat(), millis(500));
    assert_eq!(config.roles().len(), 2);
    assert_eq!(config.roles()[0].priority(), 9);
    assert_eq!(config.roles()[0].policy(), TakeoverPolicy::Fenced);
}

#[test]
fn the_first_dsn_variable_that_is_set_wins() {
    let all = ["TENURE_DSN", "PG_DSN", "PG_CONN_STRING", "SH_PENDING_DB_URL"];
    for from in 0..all.len() {
        let set = all[from..].to_vec();
        let variables =
            move |name: &str| set.contains(&name).then(|| format!("host={}", name.to_lowercase()));
        let config = Config::builder().env(variables).build().unwrap();
        assert_eq!(config.dsn().unwrap().hosts()[0].name, all[from].to_lowercase());
    }
}

#[test]
fn libpq_variables_alone_are_a_database() {
    let config = Config::builder().env(env([("PGHOST", "db"), ("PGUSER", "u")])).build().unwrap();
    assert_eq!(config.dsn().unwrap().to_string(), "postgresql://u@db:5432/u");
    let config = Config::builder().env(env([("PGUSER", "u")])).build().unwrap();
    assert!(config.dsn().is_none());
}

#[test]
fn the_election_may_have_another_database_than_the_application() {
    let config = Config::builder()
        .dsn("host=direct")
        .env(env([("TENURE_APPLICATION_DSN", "host=pooler")]))
        .build()
        .unwrap();
    assert_eq!(config.dsn().unwrap().hosts()[0].name, "direct");
    assert_eq!(config.application_dsn().unwrap().hosts()[0].name, "pooler");
    let config = Config::builder().dsn("host=direct").build().unwrap();
    assert_eq!(config.application_dsn(), config.dsn());
}

#[test]
fn an_unknown_key_is_an_error_that_names_file_line_and_path() {
    let message = refused("[member]\nscope = \"a\"\nhart_beat = 3\n");
    for part in ["tenure.toml", "line 3", "member", "hart_beat"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    let message = refused("[[role]]\nname=\"a\"\n[[role]]\nname=\"b\"\npolicy=\"loose\"\n");
    for part in ["line 5", "role[1].policy", "loose", "exclusive"] {
        assert!(message.contains(part), "{part}: {message}");
    }
    assert!(refused("[members]\n").contains("members"));
    assert!(refused("[member]\nlease = \"soon\"\n").contains("length of time"));
    assert!(refused("[member]\nlease = -1\n").contains("length of time"));
}

#[test]
fn a_missing_file_is_named() {
    let error = Config::builder().file("/nonexistent/tenure.toml").unwrap_err();
    assert!(matches!(error, ConfigError::Read { .. }));
    assert!(error.to_string().contains("/nonexistent/tenure.toml"));
}

#[test]
fn contradicting_values_name_field_bound_and_reason() {
    for (toml, parts) in [
        ("[member]\nheartbeat=\"3s\"\nlease=\"3s\"", vec!["lease", "4.6s", "gate has shut"]),
        ("[member]\nheartbeat=\"1ms\"", vec!["heartbeat", "20ms"]),
        ("[member]\nlease=\"2h\"", vec!["lease", "3600s"]),
        ("[member]\nmargin=0", vec!["margin", "30ms", "clock"]),
        ("[member]\npoll=\"4s\"", vec!["member.poll", "3s", "repair"]),
        ("[member]\nstale_after=1", vec!["member.stale_after", "1.2s", "healthy"]),
        ("[member]\nchannel=\"\"", vec!["member.channel", "63"]),
        ("[member]\nscope=\"\"", vec!["scope"]),
        (
            "[member]\nlock_only=true\n[[role]]\nname=\"a\"\npolicy=\"fenced\"",
            vec!["role[0].policy", "epoch"],
        ),
        ("[member]\nlock_only=true\n[[role]]\nname=\"a\"\npriority=1", vec!["role[0].priority"]),
        ("[member]\nlock_only=true\n[[role]]\nname=\"a\"\npreempt=true", vec!["role[0].preempt"]),
        ("[[role]]\nname=\"\"", vec!["role[0].name", "empty"]),
        ("[[role]]\npriority=1", vec!["role[0].name", "key"]),
        ("[[role]]\nname=\"a\"\nkey1=1", vec!["role[0].key2"]),
        ("[[role]]\nname=\"a\"\nkey2=1", vec!["role[0].key1"]),
        ("[[role]]\nname=\"a\"\nkey=1\nkey1=1\nkey2=2", vec!["role[0].key", "alone"]),
        ("[[role]]\nname=\"a\"\nkey=\"x\"", vec!["`a`", "64-bit"]),
        ("[[role]]\nname=\"a\"\n[[role]]\nname=\"a\"\nkey=2", vec!["role", "`a`"]),
        ("[[role]]\nname=\"a\"\nkey=2\n[[role]]\nname=\"b\"\nkey=2", vec!["role[1].key", "`a`"]),
        ("[[role]]\nname=\"a\"\ncool_down=\"2h\"", vec!["role[0].cool_down", "1h"]),
        ("[retry]\nbase=\"2s\"\nmax=\"1s\"", vec!["retry.max", "base"]),
        ("[retry]\nbase=0", vec!["retry.base", "above 0"]),
        ("[retry]\nmultiplier=0.5", vec!["retry.multiplier", "between 1 and 100"]),
        ("[retry]\nstrategy=\"fixed\"\nmultiplier=2.0", vec!["retry.multiplier", "does not use"]),
        ("[database]\ndsn=\"host=a sslmode=x\"", vec!["database.dsn", "sslmode"]),
    ] {
        let message = refused(toml);
        for part in parts {
            assert!(message.contains(part), "{toml}: {part} is not in: {message}");
        }
    }
}

#[test]
fn a_variable_that_cannot_be_read_is_named() {
    for (name, value) in [
        ("TENURE_LEASE", "soon"),
        ("HEARTBEAT_INTERVAL_MS", "1s"),
        ("TENURE_ENABLED", "perhaps"),
        ("SH_DB_TLS_INSECURE", "ture"),
    ] {
        let error = Config::builder().env(env([(name, value)])).build().unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn an_unwise_lease_is_warned_of() {
    assert!(Config::builder().build().unwrap().warnings().is_empty());
    let config = Config::builder().heartbeat(millis(1000)).lease(millis(2000)).build().unwrap();
    assert!(config.warnings()[0].contains("missed beat"), "{:?}", config.warnings());
}

#[test]
fn the_identity_names_scope_and_instance() {
    let config = Config::builder().scope("net-5F").instance("node-2").build().unwrap();
    let identity = config.identity().unwrap();
    assert_eq!(identity.hostname("net-5F"), Some("node-2"));
    assert_eq!(identity.pid(), std::process::id());
    assert_ne!(identity, config.identity().unwrap());
}
