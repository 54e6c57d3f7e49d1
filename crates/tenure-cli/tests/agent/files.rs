//! Files: what is wrong is said with its place; nothing is started without a database.

use std::path::PathBuf;

use crate::kit::{MEMBER, Stage, bare, finish, said};

fn written(text: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("tenure.toml");
    std::fs::write(&path, text).expect("written");
    (folder, path)
}

pub(crate) async fn check(text: &str) -> (i32, String) {
    let (_folder, path) = written(text);
    let mut command = bare();
    command
        .args(["agent", "--check", "--dsn", "postgresql://nobody@localhost/none", "--config"])
        .arg(path);
    let output = finish(command).await;
    (output.status.code().expect("a code"), said(&output))
}

#[tokio::test]
async fn what_is_wrong_is_said_with_file_line_and_column() {
    for (text, place) in [
        ("[[schedule]]\nname = 'a'\nrole = 'r'\nrun = 'x'\ncron = 'never'\n", "line 5, column 8"),
        ("[[command]]\nrole = 'r'\nrun = 'x'\nrestrat = true\n", "line 4, column 1"),
        ("[[role]]\nname = 'r'\n[member]\nheartbaet = '1s'\n", "line 4, column 1"),
        ("[[role]]\nname = 'r'\n[member]\nheartbeat = '5s'\nlease = '2s'\n", "line 5, column 9"),
        (
            "[[role]]\nname = 'r'\n[cluster.leader_election]\nlease_duration = '5s'\nrefresh_interval = '30s'\n",
            "line 4, column 18",
        ),
        ("[[role]]\nname = 'r'\nkey = 'zz'\n", "line 3, column 7"),
        ("[agent]\nhttp = 'here'\n[[role]]\nname = 'r'\n", "line 2, column 8"),
        (
            "[[shards]]\nname = 's'\ncount = 2\nrun = 'x'\n[[role]]\nname = 's-1'\npreempt = true\n",
            "line 7, column 11",
        ),
        ("[[role]\n", "line 1"),
    ] {
        let (code, said) = check(text).await;
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("tenure.toml") && said.contains(place), "{place}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
}

#[tokio::test]
async fn the_files_that_the_page_needs_are_looked_at() {
    use std::os::unix::fs::PermissionsExt as _;
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens");
    let path = tokens.to_str().expect("text");
    let page = format!("[[role]]\nname = 'r'\n[page]\ntokens = '{path}'\n");
    let refused = async |text: &str, words: &str| {
        let (code, said) = check(text).await;
        assert_eq!(code, 2, "{said}");
        assert!(said.contains("tenure.toml line 4, column ") && said.contains(words), "{said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    };
    refused(&page, "No such file").await;
    std::fs::write(&tokens, "# people\nana all 1234\n").expect("written");
    refused(&page, "tokens line 2: the scope is").await;
    std::fs::write(&tokens, format!("ana read {}\n", "ab".repeat(32))).expect("written");
    let mode = |mode| std::fs::set_permissions(&tokens, std::fs::Permissions::from_mode(mode));
    mode(0o666).expect("changed");
    refused(&page, "chmod o-w").await;
    mode(0o600).expect("changed");
    let (code, said) = check(&page).await;
    assert_eq!(code, 0, "{said}");
    let tls = format!("[[role]]\nname = 'r'\n[page]\ntls_cert = '{path}'\ntls_key = '{path}'\n");
    refused(&tls, "give a PEM file").await;
    // A key that cannot be used is told where the key is named.
    let made = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
    let cert = folder.path().join("cert.pem");
    std::fs::write(&cert, made.cert.pem()).expect("written");
    let cert = cert.display();
    let tls = format!("[[role]]\nname = 'r'\n[page]\ntls_key = '{path}'\ntls_cert = '{cert}'\n");
    refused(&tls, "`page.tls_key`: ").await;
}

#[tokio::test]
async fn the_section_of_another_system_is_taken_as_it_stands() {
    let text = "[cluster.leader_election]\n# How often standbys check leader health\ncheck_interval = \"5s\"\n\n\
        # Lease duration (leader must refresh before expiry)\nlease_duration = \"60s\"\n\n\
        # Lease refresh interval\nrefresh_interval = \"30s\"\n\n# Timeout for acquiring lock\nlock_timeout = \"10s\"\n\
        [[role]]\nname = \"scheduler\"\n";
    let (code, said) = check(text).await;
    assert_eq!(code, 0, "{said}");
}

#[tokio::test]
async fn an_agent_without_a_database_or_anything_to_do_refuses_to_start() {
    let (_folder, path) = written("[[command]]\nrole = 'r'\nrun = 'true'\n");
    let mut command = bare();
    command.args(["agent", "--config"]).arg(&path);
    let output = finish(command).await;
    assert_eq!(output.status.code(), Some(2));
    assert!(said(&output).contains("--embedded"), "{}", said(&output));
    let (code, said) = check(MEMBER).await;
    assert_eq!(code, 2);
    assert!(said.contains("nothing to do"), "{said}");
}

#[tokio::test]
async fn a_check_needs_no_database_and_starts_none() {
    let (folder, path) = written("[[command]]\nrole = 'r'\nrun = 'true'\n");
    let mut command = bare();
    command.env("HOME", folder.path()).env("XDG_DATA_HOME", folder.path());
    command.args(["agent", "--check", "--embedded", "--config"]).arg(&path);
    let output = finish(command).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
    let left = std::fs::read_dir(folder.path()).expect("readable").count();
    assert_eq!(left, 1, "the file alone: no server was made");
}

#[tokio::test]
async fn a_group_without_schedules_says_so() {
    let stage = Stage::new().await;
    assert_eq!(stage.ends(&["migrate"]).await.status.code(), Some(0));
    let output = stage.ends(&["schedule", "list"]).await;
    assert_eq!(output.status.code(), Some(1));
    assert!(said(&output).contains("this group has no schedules"), "{}", said(&output));
    let output = stage.ends(&["events"]).await;
    assert_eq!(output.status.code(), Some(0), "{}", said(&output));
}
