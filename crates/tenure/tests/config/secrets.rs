//! Passwords never appear: not in Debug, not in Display, not in an error.

use std::time::Duration;

use proptest::prelude::*;
use tenure::config::Config;
use tenure_connect::dsn::{Dsn, NoEnv};
use tenure_connect::{Connector, TlsOptions};

use crate::env;

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\\', r"\\").replace('\'', r"\'"))
}

/// Whatever a parsed or refused DSN, and the configuration around it, can show.
fn shown(text: &str) -> Vec<String> {
    let mut all = Vec::new();
    match Dsn::parse_with(text, &NoEnv) {
        Ok(dsn) => {
            all.extend([format!("{dsn}"), format!("{dsn:?}"), format!("{dsn:#?}")]);
            if let Ok(connector) = Connector::new(&dsn, TlsOptions::new().insecure(true)) {
                all.push(format!("{connector:?}"));
            }
        }
        Err(error) => all.extend([format!("{error}"), format!("{error:?}")]),
    }
    let builder = Config::builder().env(env([("PG_DSN", text)])).dsn(text);
    all.push(format!("{builder:?}"));
    match builder.build() {
        Ok(config) => all.push(format!("{config:?}")),
        Err(error) => all.extend([format!("{error}"), format!("{error:?}")]),
    }
    // In the right place, in the wrong place, and in text that is no TOML at all.
    for file in [
        format!("[database]\ndsn = {text:?}\n"),
        format!("database = {text:?}\n"),
        format!("[database]\ndsn = {text}\n"),
        format!("[member]\nheartbeat = {text:?}\n"),
        format!("[[role]]\nname = \"a\"\npolicy = [{text:?}]\n"),
    ] {
        let built =
            Config::builder().toml(&file, "tenure.toml").and_then(|builder| builder.build());
        match built {
            Ok(config) => all.push(format!("{config:?}")),
            Err(error) => all.extend([format!("{error}"), format!("{error:?}")]),
        }
    }
    all
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_password_is_never_shown(password in "[!-~]{6,24}") {
        let encoded = percent(&password);
        for text in [
            format!("postgresql://leader:{encoded}@localhost:5432/app"),
            format!("host=localhost user=leader dbname=app password={}", quoted(&password)),
            format!("postgresql://leader@localhost/app?password={encoded}"),
            // Neither encoded nor quoted.
            format!("postgresql://leader:{password}@localhost:5432/app"),
            format!("host=localhost password={password} dbname=app"),
            format!("postgresql://leader:{encoded}@localhost:bad/app"),
            format!("postgresql://leader:{encoded}@localhost/app?sslmod=x"),
        ] {
            for output in shown(&text) {
                prop_assert!(!output.contains(&password), "{password} in {output}");
                prop_assert!(!output.contains(&encoded), "{encoded} in {output}");
            }
        }
    }
}

#[test]
fn a_password_with_spaces_that_was_not_quoted_is_not_echoed() {
    for text in [
        "host=a password=horse battery staple",
        "host=a password=horse battery=staple",
        "postgres://u:horse/battery@a/db",
        "postgres://u:12/battery@a/db",
        "postgres://u:horse?battery=1@a/db",
    ] {
        let error = Dsn::parse_with(text, &NoEnv).unwrap_err();
        for output in [format!("{error}"), format!("{error:?}")] {
            assert!(!output.contains("horse") && !output.contains("battery"), "{output}");
        }
    }
}

#[tokio::test]
async fn a_failed_connection_does_not_show_the_password() {
    // Port 1 of this machine: no program listens there.
    let dsn = Dsn::parse_with("postgres://u:horsebattery@127.0.0.1:1/db", &NoEnv).unwrap();
    let connector = Connector::new(&dsn, TlsOptions::new()).unwrap();
    let error = connector.connect("test", Duration::from_secs(5)).await.unwrap_err();
    assert!(error.is_unreachable(), "{error}");
    for output in [format!("{error}"), format!("{error:?}")] {
        assert!(!output.contains("horsebattery"), "{output}");
    }
}
