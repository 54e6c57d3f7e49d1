//! Bad input: each is one sentence with a remedy and the right exit code.

use crate::kit::{code, database, ends, refuses, stderr, stdout};

#[tokio::test]
async fn contradicting_keys_are_wrong_usage() {
    for args in [
        &["run", "--key", "1", "--key1", "1", "--key2", "2"][..],
        &["run", "--key1", "1"],
        &["run", "--key", "abc"],
        &["run", "--key1", "99999999999", "--key2", "1"],
        &["run", "--role", "r", "--policy", "loose"],
        &["run", "--role", "r", "--lease", "soon"],
        &["run", "--role", "r", "--restart"],
        &["nonsense"],
    ] {
        assert_eq!(code(&ends(args).await), 2, "{args:?}");
    }
}

#[tokio::test]
async fn a_run_needs_a_role_or_a_key() {
    let database = database().await;
    refuses(&ends(&["run", "--dsn", &database.dsn()]).await, 2, "give --role NAME or --key KEY");
    refuses(&ends(&["pause", "--dsn", &database.dsn()]).await, 2, "give --role NAME or --key KEY");
}

/// Of two options that exclude each other, what the one needs is not waived because of the other.
#[tokio::test]
async fn an_option_whose_need_is_excluded_is_refused() {
    for (args, words) in [
        (&["run", "--role", "r", "--observer", "--restart"][..], "--restart"),
        (&["gossip", "node", "--bootstrap", "--invitation", "f"], "--invitation"),
        (&["tx", "send", "--pallet", "System", "--signed", "0x00"], "--pallet"),
    ] {
        let output = ends(args).await;
        let said = stderr(&output);
        assert!(code(&output) == 2 && said.contains(words), "{said}");
    }
}

#[tokio::test]
async fn names_that_cannot_be_are_refused_with_the_bound() {
    let long = "x".repeat(201);
    let dsn = "postgresql://nobody@127.0.0.1:1/none";
    refuses(&ends(&["run", "--dsn", dsn, "--role", &long]).await, 2, "shorten it to 200");
    refuses(&ends(&["status", "--dsn", dsn, "--role", ""]).await, 2, "empty");
    refuses(&ends(&["key", "a\nb"]).await, 2, "control character");
    let long = "i".repeat(300);
    let output = ends(&["run", "--dsn", dsn, "--role", "r", "--instance", &long]).await;
    refuses(&output, 2, "--instance: the identity would have");
}

#[tokio::test]
async fn timings_that_do_not_fit_name_the_field() {
    let dsn = "postgresql://nobody@127.0.0.1:1/none";
    let output =
        ends(&["run", "--dsn", dsn, "--role", "r", "--lease", "1s", "--grace", "2s"]).await;
    refuses(&output, 2, "1.2 × --heartbeat + statement_deadline + --grace is");
    let output = ends(&["run", "--dsn", dsn, "--role", "r", "--retry-base", "0"]).await;
    refuses(&output, 2, "--retry-base");
}

#[tokio::test]
async fn a_bad_file_is_named_with_its_line() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.toml");
    std::fs::write(&path, "[member]\nlese = \"3s\"\n").expect("written");
    let path = path.to_str().expect("text");
    let output = ends(&["run", "--config", path, "--role", "r"]).await;
    refuses(&output, 2, "line 2");
    for (text, expected) in [
        ("[role]\nname = 'r'\n", "a role is written `[[role]]`"),
        ("[[role]]\nname = 'r'\nkey = 99999999999999999999\n", "an integer of 64 bits"),
        ("[member]\nlease = true\n", "a length of time"),
    ] {
        std::fs::write(path, text).expect("written");
        refuses(&ends(&["run", "--config", path, "--role", "r"]).await, 2, expected);
    }
    refuses(&ends(&["run", "--config", "/nowhere", "--role", "r"]).await, 2, "/nowhere");
}

#[tokio::test]
async fn a_role_that_the_file_does_not_list_is_a_slip() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.toml");
    let text = "[database]\ndsn = 'postgresql://nobody@127.0.0.1:1/none'\n\
                [[role]]\nname = 'billing'\n[[role]]\nname = 'reaper'\n";
    std::fs::write(&path, text).expect("written");
    let path = path.to_str().expect("text");
    for command in ["run", "acquire"] {
        let output = ends(&[command, "--config", path, "--role", "biling"]).await;
        refuses(&output, 2, "does not list role biling, only billing, reaper");
    }
    // One that is listed is asked for, at a database that is not there.
    assert_eq!(code(&ends(&["acquire", "--config", path, "--role", "reaper"]).await), 5);
}

#[tokio::test]
async fn an_unreachable_database_is_five_and_its_password_is_never_shown() {
    let dsn = "postgresql://user:hunter2@127.0.0.1:1/none";
    for args in [
        &["acquire", "--role", "r", "--dsn", dsn][..],
        &["status", "--dsn", dsn],
        &["audit", "--dsn", dsn],
        &["check", "--dsn", dsn],
        &["migrate", "--dsn", dsn],
        &["step-down", "--role", "r", "--dsn", dsn],
        &["doctor", "--dsn", dsn],
    ] {
        let output = ends(args).await;
        assert_eq!(code(&output), 5, "{args:?}: {}", stderr(&output));
        let said = format!("{}{}", stdout(&output), stderr(&output));
        assert!(!said.contains("hunter2"), "{said}");
        assert!(said.contains("127.0.0.1:1"), "{said}");
    }
}

#[tokio::test]
async fn unknown_roles_and_members_are_not_found_and_a_vacant_role_has_no_leader() {
    let database = database().await;
    let dsn = &database.dsn();
    assert_eq!(code(&ends(&["acquire", "--role", "known", "--dsn", dsn]).await), 0);
    for command in ["status", "history", "audit", "pause", "resume", "step-down"] {
        refuses(
            &ends(&[command, "--role", "nope", "--dsn", dsn]).await,
            7,
            "there is no role nope",
        );
    }
    let output = ends(&["release", "--role", "nope", "--force", "--dsn", dsn]).await;
    refuses(&output, 7, "there is no role nope");
    let output = ends(&["step-down", "--role", "known", "--dsn", dsn]).await;
    refuses(&output, 6, "has no leader now");
    let output =
        ends(&["step-down", "--role", "known", "--to", "nobody-at-all", "--dsn", dsn]).await;
    refuses(&output, 7, "no member of role known");
}

#[tokio::test]
async fn a_missing_schema_is_refused_with_the_command_that_makes_it() {
    let database = database().await;
    let dsn = &database.dsn();
    for command in [&["status"][..], &["audit"], &["pause", "--role", "r"]] {
        let output = ends(&[command, &["--dsn", dsn]].concat()).await;
        refuses(&output, 3, "run `tenure migrate`");
    }
    // A member that starts with this login role makes it.
    let output = ends(&["check", "--dsn", dsn]).await;
    assert_eq!(code(&output), 0);
    assert!(stdout(&output).contains("or `tenure migrate` does"), "{}", stdout(&output));
}

#[tokio::test]
async fn a_newer_schema_is_refused_and_nothing_is_done() {
    let database = database().await;
    let dsn = &database.dsn();
    assert_eq!(code(&ends(&["migrate", "--dsn", dsn]).await), 0);
    let client = database.client().await.expect("a session");
    let sql = "insert into tenure.migration (version, name) values (9999, 'future')";
    client.execute(sql, &[]).await.expect("inserted");
    for command in [&["run", "--role", "r"][..], &["acquire", "--role", "r"], &["migrate"]] {
        let output = ends(&[command, &["--dsn", dsn]].concat()).await;
        refuses(&output, 3, "upgrade this program");
    }
}

#[tokio::test]
async fn a_transaction_pooler_is_refused() {
    use tenure_testkit::{PgBouncer, PoolMode, shared_cluster};
    let cluster = shared_cluster().await;
    let database = database().await;
    let pooler = PgBouncer::start(cluster, PoolMode::Transaction, &[]).await.expect("PgBouncer");
    let dsn = pooler.dsn(database.name());
    refuses(&ends(&["run", "--role", "r", "--dsn", &dsn]).await, 3, "pooler");
}

#[tokio::test]
async fn one_file_serves_every_command_and_a_slip_is_still_one() {
    let database = database().await;
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.toml");
    let shared = format!(
        "[database]\ndsn = '{}'\n[[role]]\nname = 'r'\n[tx]\nrpc = 'x'\n[gossip]\n\
         namespaces = ['main']\n[agent]\nlisten = '127.0.0.1:9000'\n[agent.page]\ntitle = 't'\n",
        database.dsn()
    );
    std::fs::write(&path, &shared).expect("written");
    let file = path.to_str().expect("text");
    let output = ends(&["acquire", "--config", file]).await;
    assert_eq!(code(&output), 0, "{}", stderr(&output));
    std::fs::write(&path, format!("{shared}[gosip]\nrounds = 3\n")).expect("written");
    refuses(&ends(&["acquire", "--config", file]).await, 2, "gosip");
    // The same file for another command: no node has run there, but the database is found.
    #[cfg(feature = "tx")]
    {
        std::fs::write(&path, &shared).expect("written");
        let account = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
        let output = ends(&["tx", "list", "--config", file, "--account", account]).await;
        refuses(&output, 7, "start a node on it first");
    }
}

/// The table of exit codes, one question of each group of commands for each code.
#[tokio::test]
async fn every_group_of_commands_uses_the_same_table() {
    let away = "postgresql://app@127.0.0.1:1/app";
    let nowhere = "127.0.0.1:1";
    let account = "0xf39fd6e51aad88f6f4ce6ab8827279cfffb92266";
    let mut cases: Vec<(Vec<&str>, i32)> = vec![
        (vec!["key", "r"], 0),
        (vec!["embedded", "nonsense"], 2),
        (vec!["status", "--dsn", away], 5),
        (vec!["events", "--dsn", away], 5),
        (vec!["events", "--dsn", away, "--since", "soon"], 2),
        (vec!["prune", "--dsn", away], 5),
        (vec!["prune", "--dsn", away, "--older-than", "0s"], 2),
        (vec!["schedule", "list", "--dsn", away], 5),
        (vec!["schedule", "run", "s", "--dsn", away, "--slot", "yesterday"], 2),
        (vec!["serve", "--dsn", away, "--listen", "0.0.0.0:0"], 2),
        (vec!["agent", "--config", "/nowhere/at/all"], 2),
    ];
    if cfg!(feature = "tx") {
        cases.push((vec!["tx", "list", "--account", account, "--dsn", away], 5));
        cases.push((vec!["tx", "drop", "--node", nowhere, "--within", "0s", "3"], 6));
        cases.push((vec!["tx", "list", "--account", "0xzz", "--dsn", away], 2));
    }
    if cfg!(feature = "gossip") {
        cases.push((vec!["gossip", "status", "--node", nowhere], 6));
        cases.push((vec!["gossip", "get", "--node", "nowhere"], 2));
    }
    for (args, expected) in cases {
        let output = ends(&args).await;
        assert_eq!(code(&output), expected, "{args:?}: {}", stderr(&output));
    }
}
