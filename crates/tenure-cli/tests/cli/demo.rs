//! The demo is a test of its own: it passes only if no two terms overlapped.

use std::process::Stdio;

use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::kit::{SOON, code, ends, program, stderr, stdout};

#[tokio::test]
async fn the_demo_survives_every_fault_and_leaves_nothing_behind() {
    let output = ends(&["demo", "--seed", "7"]).await;
    let told = stdout(&output);
    assert_eq!(code(&output), 0, "{told}{}", stderr(&output));
    for fault in ["kill -9", "freeze", "partition", "handover", "database restart"] {
        assert!(told.contains(&format!("== {fault}:")), "{fault}: {told}");
    }
    assert!(told.contains("no two overlap"), "{told}");
    assert!(told.contains("WITHOUT A LEADER"), "{told}");
    assert!(told.contains("the page was at http://127.0.0.1:"), "{told}");
}

#[tokio::test]
async fn a_key_ends_the_demo_on_a_terminal_and_what_was_seen_is_judged() {
    // `script` gives it a terminal, and passes its exit code on.
    let mut command = tokio::process::Command::new("script");
    let demo = format!("stty rows 24 cols 80; {} demo --seconds 600", program().display());
    command.args(["-qec", &demo, "/dev/null"]).env("TERM", "xterm").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut demo = command.spawn().expect("script runs");
    let mut keys = demo.stdin.take().expect("piped");
    let mut screen = demo.stdout.take().expect("piped");
    let mut seen = Vec::new();
    let shows = |seen: &[u8], word: &str| String::from_utf8_lossy(seen).contains(word);
    let watched = tokio::time::timeout(SOON * 2, async {
        let mut pressed = false;
        while screen.read_buf(&mut seen).await.expect("bytes") > 0 {
            if !pressed && shows(&seen, "LEADS") {
                pressed = true;
                keys.write_all(b"q").await.expect("pressed");
            }
        }
        demo.wait().await.expect("a status")
    });
    let status = watched.await.expect("in time");
    assert_eq!(status.code(), Some(0), "{}", String::from_utf8_lossy(&seen));
    assert!(shows(&seen, "no two overlap"), "{}", String::from_utf8_lossy(&seen));
}
