//! A network that can be cut: nodes reach each other through relays that hold what they carry.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{read_dir, read_link, read_to_string};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// The number of a place: a node may be replaced there by another.
pub(super) type Place = usize;

/// The whole network.
#[derive(Clone)]
pub(super) struct Network {
    /// The places that are cut off from the others.
    group: watch::Sender<BTreeSet<Place>>,
    /// The process in each place.
    processes: Arc<Mutex<BTreeMap<Place, u32>>>,
}

impl Network {
    pub(super) fn new() -> Self {
        Self { group: watch::channel(BTreeSet::new()).0, processes: Arc::default() }
    }

    /// Cuts `group` off from the rest; an empty one heals the network.
    pub(super) fn cut(&self, group: BTreeSet<Place>) {
        self.group.send_replace(group);
    }

    /// The node at `place` runs as this process.
    pub(super) fn runs(&self, place: Place, pid: u32) {
        self.processes.lock().expect("nothing panics while it is held").insert(place, pid);
    }

    /// A relay to the port of `place`. Returns where others reach it.
    pub(super) async fn relay(&self, place: Place, port: u16) -> std::io::Result<String> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let network = self.clone();
        tokio::spawn(async move {
            loop {
                match listener.accept().await {
                    Ok((caller, _)) => {
                        drop(tokio::spawn(network.clone().carry(caller, place, port)))
                    }
                    // A caller that is gone already, or no descriptor left: the place stays reachable.
                    Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
                }
            }
        });
        Ok(address)
    }

    async fn carry(self, caller: TcpStream, to: Place, port: u16) -> Option<()> {
        let from = self.caller(&caller)?;
        let mut group = self.group.subscribe();
        pass(&mut group, from, to).await;
        let callee = TcpStream::connect(("127.0.0.1", port)).await.ok()?;
        let (caller_read, caller_write) = caller.into_split();
        let (callee_read, callee_write) = callee.into_split();
        let back = pump(callee_read, caller_write, group.clone(), from, to);
        let there = pump(caller_read, callee_write, group, from, to);
        // The connection ends with either direction.
        tokio::select! {
            () = there => {}
            () = back => {}
        }
        Some(())
    }

    /// The place of the process that called: keys are encrypted, so the kernel is asked.
    fn caller(&self, stream: &TcpStream) -> Option<Place> {
        let port = |address: &str| u16::from_str_radix(address.rsplit_once(':')?.1, 16).ok();
        let ends = (stream.peer_addr().ok()?.port(), stream.local_addr().ok()?.port());
        let table = read_to_string("/proc/net/tcp").ok()?;
        let inode = table.lines().skip(1).find_map(|line| {
            let fields: Vec<_> = line.split_whitespace().collect();
            let found = (port(fields.get(1)?)?, port(fields.get(2)?)?) == ends;
            found.then(|| fields.get(9).map(ToString::to_string))?
        })?;
        let socket = format!("socket:[{inode}]");
        let processes = self.processes.lock().expect("nothing panics while it is held").clone();
        let holds = |pid: u32| {
            let files = read_dir(format!("/proc/{pid}/fd")).ok()?;
            let same = |path| read_link(path).is_ok_and(|to| to.as_os_str() == socket.as_str());
            files.flatten().any(|file| same(file.path())).then_some(())
        };
        processes.into_iter().find(|(_, pid)| holds(*pid).is_some()).map(|(place, _)| place)
    }
}

/// Waits while the way between the two is cut. Bytes are held and not lost: TCP would send them again.
async fn pass(group: &mut watch::Receiver<BTreeSet<Place>>, from: Place, to: Place) {
    let open = |group: &BTreeSet<Place>| group.contains(&from) == group.contains(&to);
    let _ = group.wait_for(open).await;
}

async fn pump(
    mut from: OwnedReadHalf,
    mut to: OwnedWriteHalf,
    mut group: watch::Receiver<BTreeSet<Place>>,
    caller: Place,
    callee: Place,
) {
    let mut chunk = vec![0; 16 * 1_024];
    while let Ok(n @ 1..) = from.read(&mut chunk).await {
        pass(&mut group, caller, callee).await;
        if to.write_all(&chunk[..n]).await.is_err() {
            return;
        }
    }
}
