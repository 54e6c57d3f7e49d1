//! Connection strings mean what libpq says they mean.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use proptest::prelude::*;
use tenure_connect::dsn::{Dsn, DsnError, NoEnv, SslMode, TargetSessionAttrs};

use crate::env;

fn parse(text: &str) -> Dsn {
    Dsn::parse_with(text, &NoEnv).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn hosts(dsn: &Dsn) -> String {
    dsn.hosts().iter().map(ToString::to_string).collect::<Vec<_>>().join(" ")
}

#[test]
fn url_and_key_value_mean_the_same() {
    let url = parse("postgres://a%40b:p%2Fw@db1:5433,[::1]:5434/my%20db?sslmode=verify-ca");
    let pairs = parse(
        r"host='db1,::1' port=5433,5434 user=a@b password=p/w dbname='my db' sslmode = verify-ca",
    );
    assert_eq!(url, pairs);
    assert_eq!(hosts(&url), "db1:5433 [::1]:5434");
    assert_eq!((url.user(), url.database()), ("a@b", "my db"));
    assert_eq!(url.ssl_mode(), Some(SslMode::VerifyCa));
}

#[test]
fn quotes_and_backslashes_of_key_value_are_read() {
    let dsn = parse(r"user='o\'brien' dbname=a\ b host='h' password=''");
    assert_eq!((dsn.user(), dsn.database()), ("o'brien", "a b"));
}

#[test]
fn a_unix_socket_is_a_path_in_either_form() {
    for text in [
        "host=/run/pg port=5433 user=u",
        "postgresql://u@%2Frun%2Fpg:5433",
        "postgresql:///?host=/run/pg&port=5433&user=u",
    ] {
        let dsn = parse(text);
        assert!(dsn.hosts()[0].is_unix(), "{text}");
        assert_eq!(hosts(&dsn), "/run/pg:5433", "{text}");
    }
}

#[test]
fn ports_may_be_one_for_all_or_one_each() {
    assert_eq!(hosts(&parse("host=a,b,c port=1")), "a:1 b:1 c:1");
    assert_eq!(hosts(&parse("host=a,b,c port=1,,3")), "a:1 b:5432 c:3");
    assert_eq!(hosts(&parse("hostaddr=10.0.0.1,10.0.0.2")), "10.0.0.1:5432 10.0.0.2:5432");
    let error = Dsn::parse_with("host=a,b,c port=1,2", &NoEnv).unwrap_err();
    assert!(matches!(error, DsnError::Count { key: "port", hosts: 3, others: 2 }), "{error}");
    assert!(Dsn::parse_with("host=a,b hostaddr=10.0.0.1", &NoEnv).is_err());
    assert!(Dsn::parse_with("host=a port=70000", &NoEnv).is_err());
}

#[test]
fn an_unknown_key_is_named() {
    for text in ["host=a hots=b", "postgres://a/db?hots=b"] {
        let error = Dsn::parse_with(text, &NoEnv).unwrap_err();
        assert!(error.to_string().contains("`hots`"), "{error}");
    }
}

#[test]
fn a_key_that_cannot_be_honoured_is_refused_with_the_reason() {
    let error = Dsn::parse_with("host=a sslcrl=/x", &NoEnv).unwrap_err();
    assert!(error.to_string().contains("`sslcrl`"), "{error}");
    assert!(error.to_string().contains("revocation"), "{error}");
    assert!(Dsn::parse_with("host=a gssencmode=require", &NoEnv).is_err());
    assert!(Dsn::parse_with("host=a gssencmode=disable", &NoEnv).is_ok());
}

#[test]
fn a_bad_value_says_what_is_accepted() {
    for (text, accepted) in [
        ("host=a sslmode=on", "verify-full"),
        ("host=a target_session_attrs=master", "prefer-standby"),
        ("host=a channel_binding=yes", "require"),
        ("host=a connect_timeout=soon", "seconds"),
        ("host=a load_balance_hosts=yes", "random"),
        ("host=a sslkey=/k", "together"),
        ("host=a sslrootcert=system sslmode=require", "verify-full"),
        ("host=a sslnegotiation=direct sslmode=prefer", "require"),
        ("mysql://a/b", "postgresql://"),
        ("postgres://[::1/b", "IPv6"),
        ("postgres://a/%zz", "hexadecimal"),
        ("host", "no ="),
        ("host='a", "closing"),
    ] {
        let error = Dsn::parse_with(text, &NoEnv).unwrap_err().to_string();
        assert!(error.contains(accepted), "{text}: {error}");
    }
}

#[test]
fn every_target_and_mode_of_libpq_is_known() {
    for name in ["any", "read-write", "read-only", "primary", "standby", "prefer-standby"] {
        let dsn = parse(&format!("host=a target_session_attrs={name}"));
        assert_eq!(dsn.target_session_attrs().as_str(), name);
    }
    for name in ["disable", "allow", "prefer", "require", "verify-ca", "verify-full"] {
        let dsn = parse(&format!("host=a sslmode={name}"));
        assert_eq!(dsn.ssl_mode().map(SslMode::as_str), Some(name));
    }
}

#[test]
fn several_hosts_mean_the_primary_unless_told_otherwise() {
    assert_eq!(parse("host=a").target_session_attrs(), TargetSessionAttrs::Any);
    assert_eq!(parse("host=a,b").target_session_attrs(), TargetSessionAttrs::Primary);
    let any = parse("host=a,b target_session_attrs=any");
    assert_eq!(any.target_session_attrs(), TargetSessionAttrs::Any);
}

#[test]
fn libpq_variables_fill_what_the_dsn_leaves_out() {
    let env = env([
        ("PGHOST", "db"),
        ("PGPORT", "6000"),
        ("PGDATABASE", "app"),
        ("PGUSER", "leader"),
        ("PGSSLMODE", "verify-ca"),
        ("PGTARGETSESSIONATTRS", "read-write"),
        ("PGAPPNAME", "billing"),
        ("PGCONNECT_TIMEOUT", "7"),
    ]);
    let dsn = Dsn::parse_with("", &env).unwrap();
    assert_eq!(dsn.to_string(), "postgresql://leader@db:6000/app?sslmode=verify-ca");
    assert_eq!(dsn.target_session_attrs(), TargetSessionAttrs::ReadWrite);
    assert_eq!(dsn.application_name(), Some("billing"));
    let dsn = Dsn::parse_with("postgres://me@other/db2?sslmode=disable", &env).unwrap();
    assert_eq!(dsn.to_string(), "postgresql://me@other:6000/db2?sslmode=disable");
}

#[test]
fn a_bad_variable_is_an_error_too() {
    let error = Dsn::parse_with("", &env([("PGSSLMODE", "yes")])).unwrap_err();
    assert!(error.to_string().contains("environment"), "{error}");
}

#[test]
fn a_variable_that_asks_for_more_strictness_is_not_ignored() {
    for name in ["PGREQUIREAUTH", "PGREQUIREPEER", "PGSSLCRL", "PGSSLCRLDIR"] {
        let error = Dsn::parse_with("host=a", &env([(name, "x")])).unwrap_err();
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[test]
fn a_service_fills_what_the_dsn_leaves_out_before_the_environment_does() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("services.conf");
    fs::write(
        &file,
        "# comment\n[other]\nhost=wrong\n\n[mine]\nhost = svc\nport=7000\nuser=svcuser\n[mine]\nhost=second\n",
    )
    .unwrap();
    let file = file.to_str().unwrap();
    let variables = env([("PGSERVICEFILE", file), ("PGUSER", "env"), ("PGDATABASE", "env")]);
    let dsn = Dsn::parse_with("service=mine port=7001", &variables).unwrap();
    assert_eq!(dsn.to_string(), "postgresql://svcuser@svc:7001/env");
    let by_variable = env([("PGSERVICEFILE", file), ("PGSERVICE", "mine")]);
    assert_eq!(hosts(&Dsn::parse_with("", &by_variable).unwrap()), "svc:7000");

    let error = Dsn::parse_with("service=absent", &variables).unwrap_err();
    assert!(matches!(&error, DsnError::NoService { service, .. } if service == "absent"));
    assert!(error.to_string().contains("services.conf"), "{error}");
}

#[test]
fn a_malformed_service_file_is_an_error_with_its_line() {
    let folder = tempfile::tempdir().unwrap();
    let home = folder.path();
    fs::write(home.join(".pg_service.conf"), "[mine]\nhost=a\nservice=mine\n").unwrap();
    let variables = env([("HOME", home.to_str().unwrap())]);
    let error = Dsn::parse_with("service=mine", &variables).unwrap_err();
    assert!(matches!(error, DsnError::ServiceFile { line: 3, .. }), "{error}");
}

#[test]
fn home_certificates_are_found_as_libpq_finds_them() {
    let folder = tempfile::tempdir().unwrap();
    let dot = folder.path().join(".postgresql");
    fs::create_dir(&dot).unwrap();
    fs::write(dot.join("postgresql.crt"), "").unwrap();
    let variables = env([("HOME", folder.path().to_str().unwrap())]);
    // A certificate without its key cannot be used.
    assert!(Dsn::parse_with("host=a", &variables).is_err());
    fs::write(dot.join("postgresql.key"), "").unwrap();
    assert!(Dsn::parse_with("host=a", &variables).is_ok());
}

#[test]
fn nothing_at_all_is_the_local_socket() {
    let dsn = parse("");
    let folder = dsn.hosts()[0].name.clone();
    assert!(["/var/run/postgresql", "/tmp"].contains(&folder.as_str()), "{folder}");
    assert_eq!(dsn.database(), dsn.user());
    assert!(Path::new(&folder).is_absolute());
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_makes_the_parser_panic(text in "\\PC{0,60}", query in "[a-z=&%?@:/,\\[\\]']{0,30}") {
        let _ = Dsn::parse_with(&text, &NoEnv);
        let _ = Dsn::parse_with(&query, &NoEnv);
        let _ = Dsn::parse_with(&format!("postgres://{text}{query}"), &NoEnv);
    }

    #[test]
    fn any_value_survives_both_forms(user in "\\PC{1,12}", password in "\\PC{1,12}", name in "\\PC{1,12}") {
        let percent = |text: &str| text.bytes().map(|b| format!("%{b:02x}")).collect::<String>();
        let quote = |text: &str| format!("'{}'", text.replace('\\', "\\\\").replace('\'', "\\'"));
        let url = format!(
            "postgres://{}:{}@h:5433/{}", percent(&user), percent(&password), percent(&name),
        );
        let pairs = format!(
            "host=h port=5433 user={} password={} dbname={}",
            quote(&user), quote(&password), quote(&name),
        );
        let url = Dsn::parse_with(&url, &NoEnv).unwrap();
        prop_assert_eq!(&url, &Dsn::parse_with(&pairs, &NoEnv).unwrap());
        prop_assert_eq!((url.user(), url.database()), (user.as_str(), name.as_str()));
    }
}

/// A password file in `folder` with the given mode.
pub fn passfile(folder: &Path, line: &str, mode: u32) -> String {
    let path = folder.join("pass");
    fs::write(&path, line).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
    path.to_str().unwrap().to_owned()
}
