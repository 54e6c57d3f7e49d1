//! Help is contract: a change of it shows as a change of a file.

use crate::kit::{code, ends, stdout};

const COMMANDS: [&str; 26] = [
    "run",
    "acquire",
    "agent",
    "schedule",
    "alerts",
    "events",
    "prune",
    "serve",
    "status",
    "step-down",
    "history",
    "audit",
    "check",
    "pause",
    "resume",
    "release",
    "lower-lease",
    "alter",
    "forget",
    "doctor",
    "migrate",
    "key",
    "embedded",
    "demo",
    "completions",
    "man",
];

#[tokio::test]
async fn help_is_as_it_was() {
    // With fewer features there are fewer commands.
    if cfg!(all(feature = "gossip", feature = "tx")) {
        insta::assert_snapshot!("tenure", stdout(&ends(&["--help"]).await));
    }
    for command in COMMANDS {
        insta::assert_snapshot!(command, stdout(&ends(&[command, "--help"]).await));
    }
}

#[tokio::test]
async fn help_tells_the_exit_codes_and_what_the_guardian_cannot_cover() {
    let help = stdout(&ends(&["--help"]).await);
    let guide = include_str!("../../../../docs/cli.md");
    let codes = help.lines().filter_map(|line| line.trim().split_once(' '));
    let codes = codes.filter(|(code, _)| code.parse::<u8>().is_ok());
    let mut count = 0;
    for (code, meaning) in codes {
        let row =
            format!("| {code} | {}", meaning.trim().split([':', ',']).next().unwrap_or_default());
        assert!(guide.contains(&row), "docs/cli.md has no row that begins {row:?}");
        count += 1;
    }
    assert_eq!(count, 11, "{help}");
    let run = stdout(&ends(&["run", "--help"]).await);
    assert!(run.contains("It cannot cover a pause of the whole"), "{run}");
    assert!(run.contains("overlaps it by its --grace"), "{run}");
}

#[tokio::test]
async fn a_program_without_a_command_shows_its_help_and_is_wrong_usage() {
    assert_eq!(code(&ends(&[]).await), 2);
    let help = ends(&["help", "run"]).await;
    assert_eq!(code(&help), 0);
    assert!(stdout(&help).contains("--no-auto-reacquire"), "{}", stdout(&help));
}

#[tokio::test]
async fn completions_and_manual_pages_cover_every_command() {
    for shell in ["bash", "zsh", "fish"] {
        let script = stdout(&ends(&["completions", shell]).await);
        assert!(COMMANDS.iter().all(|command| script.contains(command)), "{shell}");
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_str().expect("text");
    assert_eq!(code(&ends(&["man", path]).await), 0);
    for command in COMMANDS {
        assert!(folder.path().join(format!("tenure-{command}.1")).exists(), "{command}");
    }
    assert!(stdout(&ends(&["man"]).await).contains(".TH tenure 1"));
}

#[tokio::test]
async fn a_key_is_the_one_of_the_published_vectors() {
    let output = ends(&["key", "scheduler"]).await;
    let said = stdout(&output);
    let mut lines = said.lines();
    assert_eq!(lines.next(), Some("-6905248152981328462"));
    let sql = lines.next().expect("the SQL");
    let client = crate::kit::database().await.client().await.expect("a session");
    let key: i64 = client.query_one(sql, &[]).await.expect("it runs").get(0);
    assert_eq!(key, -6905248152981328462);
}
