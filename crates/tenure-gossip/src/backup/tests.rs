use super::survivor::Survivor;
use super::*;
use crate::commit::Entry;
use crate::history::TxId;
use crate::host::folder::Folder;
use crate::kv::{Kv, KvGoal};

fn records(count: u8) -> Vec<Record> {
    let mut chain = Chain::<Kv>::default();
    let next = |n: u8| {
        let goal = KvGoal::Put { key: format!("k{n}"), value: n.into() };
        let record = chain.execute(3, PeerId([1; 32]), TxId([n; 16]), goal.to_bytes());
        chain.apply(&record).expect("the next one");
        record
    };
    (1..=count).map(next).collect()
}

fn backup() -> Backup {
    let last = Position { term: 3, index: 9 };
    let (name, lease) = ("main".to_owned(), Duration::from_secs(1));
    let space = Space { name, term: 5, lease, last, snapshot: None, records: records(4) };
    Backup::new([1; 16], vec![space])
}

#[test]
fn a_file_that_was_changed_is_refused_and_none_is_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backup");
    backup().write(&path).unwrap();
    assert_eq!(Backup::read(&path).unwrap().reach(), backup().reach());
    assert!(matches!(backup().write(&path), Err(BackupError::Io { .. })));
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    assert!(matches!(Backup::read(&path), Err(BackupError::Damaged { .. })));
}

#[test]
fn a_file_of_another_form_is_refused_with_its_number_and_a_remedy() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backup");
    backup().write(&path).unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[MAGIC.len()] = b'1';
    std::fs::write(&path, bytes).unwrap();
    let error = Backup::read(&path).unwrap_err();
    assert!(matches!(error, BackupError::OtherForm { form: '1', .. }), "{error}");
    assert!(error.to_string().contains("use the version that wrote it"), "{error}");
    std::fs::write(&path, b"tenure backup  ").unwrap();
    assert!(matches!(Backup::read(&path), Err(BackupError::Damaged { .. })));
}

#[test]
fn a_generation_begins_beyond_every_number_of_the_former_one() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("new");
    let made = backup().restore::<Kv>(&folder).unwrap();
    assert!(matches!(backup().restore::<Kv>(&folder), Err(BackupError::NotEmpty(_))));
    let again = Backup::of_folder(&folder).unwrap();
    let reach = &again.reach()[0];
    assert_ne!(again.cluster, [1; 16]);
    assert_eq!((reach.index, reach.term), (RECORDS, TERMS));
    let chain = again.spaces[0].chain::<Kv>().unwrap();
    assert_eq!(chain.find(&TxId([4; 16])), Some(4), "what was decided stays decided");
    assert_eq!(made.reach, backup().reach());
    // And a generation of that generation begins beyond it.
    let next = again.restore::<Kv>(&dir.path().join("next")).unwrap();
    assert_ne!(next.cluster, made.cluster);
    let reach = &Backup::of_folder(&dir.path().join("next")).unwrap().reach()[0];
    assert_eq!((reach.index, reach.term), (2 * RECORDS, 2 * TERMS));
}

/// A folder as `restore` leaves it when it is cut short: whole but for the last step.
fn cut_short(folder: &Path) -> [u8; 16] {
    let (unfinished, _, cluster) = backup().draft::<Kv>(folder).unwrap();
    drop(unfinished);
    cluster
}

#[test]
fn a_folder_that_is_not_finished_starts_no_node_is_no_survivor_and_is_filled_again() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("above").join("new");
    let former = cut_short(&folder);
    for resume in [true, false] {
        let refused = Folder::open(&folder, resume).err().unwrap();
        assert!(matches!(refused, HostError::Unfinished(_)), "{refused}");
        assert!(refused.to_string().contains("run it again"), "{refused}");
    }
    assert!(matches!(Backup::of_folder(&folder), Err(BackupError::Unfinished(_))));
    // As earlier crashes leave it: files of the next steps are not there, or not whole.
    std::fs::write(folder.join(STORE), b"not yet a store").unwrap();
    std::fs::rename(folder.join("identity"), folder.join("identity.new")).unwrap();
    std::fs::write(folder.join("0123-4567.part"), b"half").unwrap();
    let made = backup().restore::<Kv>(&folder).unwrap();
    assert_ne!(made.cluster, hex::encode(former));
    assert_eq!(Folder::open(&folder, true).unwrap().keys.id(), made.node);
    let files = std::fs::read_dir(&folder).unwrap().map(|file| file.unwrap().file_name());
    let files: Vec<_> = files.map(|name| name.into_string().unwrap()).collect();
    assert_eq!(files.len(), 3, "{files:?}");
    assert!(matches!(backup().restore::<Kv>(&folder), Err(BackupError::NotEmpty(_))));
}

#[test]
fn a_file_of_another_owner_in_an_unfinished_folder_is_not_touched() {
    let dir = tempfile::tempdir().unwrap();
    cut_short(dir.path());
    std::fs::write(dir.path().join("letter"), b"dear").unwrap();
    assert!(matches!(backup().restore::<Kv>(dir.path()), Err(BackupError::NotEmpty(_))));
    assert!(dir.path().join(STORE).exists() && dir.path().join("letter").exists());
}

#[test]
fn two_commands_never_fill_one_folder() {
    let dir = tempfile::tempdir().unwrap();
    let folder = dir.path().join("new");
    let (first, node, _) = backup().draft::<Kv>(&folder).unwrap();
    assert!(matches!(backup().restore::<Kv>(&folder), Err(BackupError::Busy(_))));
    first.finish().unwrap();
    assert_eq!(Folder::open(&folder, true).unwrap().keys.id(), node);
}

#[test]
fn a_restore_that_fails_leaves_the_place_as_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let (absent, empty) = (dir.path().join("absent"), dir.path().join("empty"));
    std::fs::create_dir(&empty).unwrap();
    let mut damaged = backup();
    damaged
        .spaces
        .push(Space { snapshot: Some((Hash::default(), vec![1])), ..damaged.spaces[0].clone() });
    assert!(matches!(damaged.restore::<Kv>(&absent), Err(BackupError::Damaged { .. })));
    assert!(matches!(damaged.restore::<Kv>(&empty), Err(BackupError::Damaged { .. })));
    assert!(!absent.exists());
    assert_eq!(std::fs::read_dir(&empty).unwrap().count(), 0);
}

#[test]
fn a_recovery_that_was_cut_short_after_the_old_folder_was_left_behind_is_finished_by_the_next() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    backup().restore::<Kv>(&old).unwrap();
    let made = Survivor::open(&old, &new).unwrap().recover::<Kv>().unwrap();
    let again = Survivor::open(&old, &new).err().unwrap();
    assert!(matches!(again, BackupError::Retired(_)), "{again}");
    // As if the last step had not been taken.
    std::fs::write(new.join(UNFINISHED), b"").unwrap();
    let other = Survivor::open(&old, &dir.path().join("other")).err().unwrap();
    assert!(matches!(other, BackupError::Retired(_)), "{other}");
    let finished = Survivor::open(&old, &new).unwrap().recover::<Kv>().unwrap();
    assert_eq!((&finished.cluster, finished.node), (&made.cluster, made.node));
    assert_eq!(Folder::open(&new, true).unwrap().keys.id(), made.node);
    // Nor is the unfinished folder of another cluster taken for its own.
    let foreign = dir.path().join("foreign");
    cut_short(&foreign);
    let foreign = Survivor::open(&old, &foreign).err().unwrap();
    assert!(matches!(foreign, BackupError::Retired(_)), "{foreign}");
}

#[test]
fn no_node_starts_in_the_old_folder_while_it_is_recovered() {
    let dir = tempfile::tempdir().unwrap();
    let (old, new) = (dir.path().join("old"), dir.path().join("new"));
    backup().restore::<Kv>(&old).unwrap();
    let survivor = Survivor::open(&old, &new).unwrap();
    assert!(matches!(Folder::open(&old, true).err(), Some(HostError::Store(StoreError::Io(_)))));
    survivor.recover::<Kv>().unwrap();
}

#[test]
fn a_survivors_folder_that_cannot_be_looked_into_is_not_called_empty() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("file"), b"").unwrap();
    let error = Backup::of_folder(&dir.path().join("file").join("node")).unwrap_err();
    assert!(matches!(error, BackupError::Folder(_)), "{error}");
    assert!(error.to_string().contains("may make, read and write"), "{error}");
}

/// What a store finds again of a namespace: these records, and a log with those.
fn stored(folder: &Path, sealed: Option<Sealed>, known: &[Record], log: &[Record]) {
    std::fs::create_dir(folder).unwrap();
    let store = Store::open(&folder.join(STORE)).unwrap();
    store.put("cluster", &[1u8; 16]).unwrap();
    let entry = |(n, record): (usize, &Record)| {
        let kind = EntryKind::Command(Command::Record(record.clone()).to_bytes());
        Entry { position: Position { term: 3, index: n as u64 + 1 }, kind }
    };
    let entries = log.iter().enumerate().map(entry).collect();
    let hard = HardState { term: 3, voted_for: None, lease: Duration::ZERO };
    let mut writes = vec![Write::Commit(CommitWrite::Hard(hard))];
    writes.extend(sealed.map(|sealed| Write::Snapshot(sealed, Reset::Keep)));
    writes.extend(known.iter().cloned().map(Write::History));
    writes.push(Write::Commit(CommitWrite::Append { after: Position::default(), entries }));
    let writes: Vec<_> = writes.into_iter().map(|write| ("main".to_owned(), write)).collect();
    store.commit(&writes).unwrap();
}

#[test]
fn what_a_former_leader_never_committed_does_not_keep_its_folder_from_being_recovered() {
    // It was cut off with entries of its own, and heard of the records of its successor before its log was put right.
    let mut chain = Chain::<Carried<Kv>>::default();
    let next = |n: u8, known: &mut Chain<Carried<Kv>>| {
        let goal = KvGoal::Put { key: format!("k{n}"), value: n.into() };
        let record = known.execute(3, PeerId([1; 32]), TxId([n; 16]), goal.to_bytes());
        known.apply(&record).expect("the next one");
        record
    };
    let first = next(1, &mut chain);
    let mut theirs = chain.clone();
    let never: Vec<_> = [7, 8, 9].iter().map(|n| next(*n, &mut theirs)).collect();
    let committed = next(2, &mut chain);
    let log = [std::slice::from_ref(&first), &never].concat();
    let dir = tempfile::tempdir().unwrap();
    let snapshot =
        Snapshot { index: 2, point: None, barred: Default::default(), chain: chain.freeze() };
    for (name, sealed, known) in [
        ("records", None, vec![first.clone(), committed.clone()]),
        ("snapshot", Some(snapshot.seal()), Vec::new()),
    ] {
        let (old, new) = (dir.path().join(name), dir.path().join(format!("{name} new")));
        stored(&old, sealed, &known, &log);
        let survivor = Survivor::open(&old, &new).unwrap();
        assert_eq!(survivor.reach()[0].index, 2, "{name}");
        survivor.recover::<Kv>().unwrap_or_else(|error| panic!("{name}: {error}"));
        let made = Backup::of_folder(&new).unwrap();
        let chain = made.spaces[0].chain::<Kv>().unwrap();
        let decided = |n: u8| chain.find(&TxId([n; 16]));
        assert_eq!((decided(2), decided(7), decided(8)), (Some(2), None, None), "{name}");
    }
    // Without a record that contradicts them they may have been acknowledged, and are kept.
    let (old, new) = (dir.path().join("log"), dir.path().join("log new"));
    stored(&old, None, std::slice::from_ref(&first), &log);
    let survivor = Survivor::open(&old, &new).unwrap();
    assert_eq!(survivor.reach()[0].index, 4);
    survivor.recover::<Kv>().unwrap();
}

#[test]
fn a_generation_is_not_made_inside_the_folder_that_is_to_be_removed() {
    let dir = tempfile::tempdir().unwrap();
    let old = dir.path().join("old");
    backup().restore::<Kv>(&old).unwrap();
    for inside in [old.join("new"), old.join("deep").join("new")] {
        let error = Survivor::open(&old, &inside).unwrap_err();
        assert!(matches!(error, BackupError::Inside(_)), "{error}");
    }
    Survivor::open(&old, &dir.path().join("old too")).unwrap();
}
