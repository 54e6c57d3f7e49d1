//! The demo is a test of its own: it passes only if no two terms overlapped.

use std::process::Stdio;

use serde_json::Value;
use tenure_testkit::{Child, Signal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::kit::{SOON, program, until};

#[tokio::test]
async fn the_demo_survives_every_fault_and_keeps_its_page_open_until_it_is_interrupted() {
    let mut command = tokio::process::Command::new(program());
    command.env_clear().env("PATH", std::env::var_os("PATH").unwrap_or_default());
    command.args(["demo", "--seed", "7", "--serve"]);
    let mut demo = Child::spawn(command).expect("it runs");
    let at = demo.wait_line(|line| line.contains("the page is at "), SOON * 4).await;
    let at = at.expect("the demo passes");
    let told = demo.lines().join("\n");
    for fault in ["kill -9", "freeze", "partition", "handover", "database restart"] {
        assert!(told.contains(&format!("== {fault}:")), "{fault}: {told}");
    }
    assert!(told.contains("no two overlap"), "{told}");
    assert!(told.contains("WITHOUT A LEADER"), "{told}");
    // The page is live, and has the timeline of what happened.
    let address = at.split("http://").nth(1).and_then(|rest| rest.split('/').next());
    let address = address.expect("an address");
    until("the demo on its page", async || {
        let picture = picture(address).await;
        let rows = picture["roles"].as_array().cloned().unwrap_or_default();
        let ended = picture["terms"].as_array().map_or(0, Vec::len);
        rows.iter().any(|row| row[0] == "demo" && row[1] == "led") && ended >= 5
    })
    .await;
    demo.signal(Signal::INT);
    let status = demo.wait(SOON).await.expect("it ends");
    assert_eq!(status.code(), Some(0), "{:?}", demo.lines());
    assert!(TcpStream::connect(address).await.is_err(), "the page is gone with the demo");
}

async fn picture(address: &str) -> Value {
    let ask = async {
        let mut stream = TcpStream::connect(address).await.ok()?;
        let request = format!(
            "GET /api/v1/snapshot HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.ok()?;
        serde_json::from_str(answer.split_once("\r\n\r\n")?.1).ok()
    };
    tokio::time::timeout(SOON, ask).await.ok().flatten().unwrap_or_default()
}

#[tokio::test]
async fn the_demo_survives_a_resize_and_a_key_ends_it_on_a_terminal_and_what_was_seen_is_judged() {
    // `script` gives it a terminal, and passes its exit code on.
    let folder = tempfile::tempdir().expect("a folder");
    let tty = folder.path().join("tty");
    let mut command = tokio::process::Command::new("script");
    let program = program();
    let (tells, runs) = (tty.display(), program.display());
    let demo = format!("stty rows 24 cols 80; tty >{tells}; {runs} demo --seconds 600");
    command.args(["-qec", &demo, "/dev/null"]).env("TERM", "xterm").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut demo = command.spawn().expect("script runs");
    let mut keys = demo.stdin.take().expect("piped");
    let mut screen = demo.stdout.take().expect("piped");
    let mut seen = Vec::new();
    let shows = |seen: &[u8], word: &str| String::from_utf8_lossy(seen).contains(word);
    let watched = tokio::time::timeout(SOON * 2, async {
        // Where the picture of the small terminal begins, and where it was whole.
        let (mut resized, mut whole) = (None, None);
        while screen.read_buf(&mut seen).await.expect("bytes") > 0 {
            match resized {
                None if shows(&seen, "LEADS") => {
                    resized = Some(seen.len());
                    let tty = std::fs::read_to_string(&tty).expect("its terminal");
                    let resize = ["-F", tty.trim(), "rows", "16", "cols", "50"];
                    let set = std::process::Command::new("stty").args(resize).status();
                    assert!(set.expect("it runs").success());
                }
                Some(from) if whole.is_none() => {
                    let after = String::from_utf8_lossy(&seen[from..]).into_owned();
                    let fresh = after.rsplit_once("\x1b[2J").map(|(_, fresh)| fresh);
                    // The last corner of the last box.
                    if let Some(fresh) = fresh.filter(|fresh| fresh.contains('┘')) {
                        whole = Some(fresh.to_owned());
                        keys.write_all(b"q").await.expect("pressed");
                    }
                }
                None | Some(_) => {}
            }
        }
        (demo.wait().await.expect("a status"), whole.expect("another picture"))
    });
    let (status, picture) = watched.await.expect("in time");
    assert_eq!(status.code(), Some(0), "{}", String::from_utf8_lossy(&seen));
    assert!(shows(&seen, "no two overlap"), "{}", String::from_utf8_lossy(&seen));
    let page = "the page was at http://127.0.0.1:";
    assert!(shows(&seen, page), "{}", String::from_utf8_lossy(&seen));
    // Every place that was written to is on the terminal as it is now: `ESC [ row ; column H`.
    let places = picture.split("\x1b[").skip(1).filter_map(|part| {
        let (row, column) = part.split_once('H')?.0.split_once(';')?;
        Some((row.parse::<u16>().ok()?, column.parse::<u16>().ok()?))
    });
    let places: Vec<_> = places.collect();
    assert!(places.len() > 10, "{picture:?}");
    assert!(places.iter().all(|(row, column)| *row <= 16 && *column <= 50), "{places:?}");
}
