use super::*;

fn seeds(range: std::ops::Range<u64>) -> Vec<(u64, Violation)> {
    range.filter_map(|s| storm(s, Bugs::default()).err().map(|v| (s, v))).collect()
}

#[test]
fn nothing_diverges_and_everything_recovers_in_a_storm_of_faults() {
    let broken = seeds(0..40);
    assert!(broken.is_empty(), "{} broken: {:?}", broken.len(), &broken[..broken.len().min(5)]);
}

#[test]
fn one_seed_is_one_trace() {
    let (a, b) = (storm(7, Bugs::default()), storm(7, Bugs::default()));
    assert_eq!(a.expect("sound").trace, b.expect("sound").trace);
    assert_ne!(storm(8, Bugs::default()).expect("sound").trace, storm(7, Bugs::default()).expect("sound").trace);
}
