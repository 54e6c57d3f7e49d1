//! The demo is a test of its own: it passes only if no two terms overlapped.

use crate::kit::{code, ends, stderr, stdout};

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
}
