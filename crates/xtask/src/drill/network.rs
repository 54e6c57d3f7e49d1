//! The machines of a drill: network namespaces on a switch, with no way out.
//!
//! The switch is a namespace too, with two bridges. A partition puts the ports of some machines on the second
//! bridge: they still see each other.

use std::sync::OnceLock;
use std::time::Duration;

use anyhow::{Context as _, bail, ensure};
use tokio::process::Command;
use tokio::time::timeout;

/// Every machine, in the order of their addresses.
pub(super) const MACHINES: [&str; 8] = ["etcd", "n1", "n2", "n3", "m1", "m2", "m3", "op"];

/// What the names of the namespaces begin with. Drills of different configurations may run at the same time.
static PREFIX: OnceLock<String> = OnceLock::new();
const PATIENCE: Duration = Duration::from_secs(20);

/// The namespaces. They are removed by the next drill if this one does not come to it.
pub(super) struct Network;

/// The namespaces of this process are those of one configuration, or of all.
pub(super) fn name(config: Option<&str>) {
    let name =
        config.map_or_else(|| "tenure-drill".to_owned(), |config| format!("tenure-drill-{config}"));
    PREFIX.get_or_init(|| name);
}

fn prefix() -> &'static str {
    PREFIX.get().map_or("tenure-drill", String::as_str)
}

/// Whether this process may make namespaces.
pub(super) async fn privilege() -> anyhow::Result<()> {
    let probe = format!("{}-probe", prefix());
    let made = ip(&["netns", "add", &probe]).await;
    let _ = ip(&["netns", "del", &probe]).await;
    made.map_err(|error| {
        anyhow::anyhow!(
            "network namespaces cannot be made here ({error}); run it as root, with iproute2 installed"
        )
    })
}

pub(super) fn namespace(machine: &str) -> String {
    format!("{}-{machine}", prefix())
}

pub(super) fn address(machine: &str) -> String {
    let index = MACHINES.iter().position(|name| *name == machine);
    format!("10.99.77.{}", 10 + index.expect("a machine of the drill"))
}

/// A command on one of the machines. It becomes that program: its process id is the program's.
pub(super) fn on(machine: &str, program: impl AsRef<std::ffi::OsStr>) -> Command {
    let mut command = Command::new("ip");
    command.args(["netns", "exec", &namespace(machine)]).arg(program);
    command
}

impl Network {
    pub(super) async fn build() -> anyhow::Result<Self> {
        Network.remove().await;
        let switch = namespace("switch");
        ip(&["netns", "add", &switch]).await?;
        for bridge in ["whole", "apart"] {
            ip(&["-n", &switch, "link", "add", bridge, "type", "bridge"]).await?;
            ip(&["-n", &switch, "link", "set", bridge, "up"]).await?;
        }
        for machine in MACHINES {
            let space = namespace(machine);
            ip(&["netns", "add", &space]).await?;
            ip(&["-n", &space, "link", "set", "lo", "up"]).await?;
            // The end in the switch has the machine's name.
            ip(&[
                "-n", &switch, "link", "add", machine, "type", "veth", "peer", "name", "eth0",
                "netns", &space,
            ])
            .await?;
            ip(&["-n", &switch, "link", "set", machine, "master", "whole", "up"]).await?;
            let address = format!("{}/24", address(machine));
            ip(&["-n", &space, "address", "add", &address, "dev", "eth0"]).await?;
            ip(&["-n", &space, "link", "set", "eth0", "up"]).await?;
        }
        Ok(Network)
    }

    /// Those machines see each other, and no other.
    pub(super) async fn cut_off(&self, machines: &[&str]) -> anyhow::Result<()> {
        for machine in machines {
            ip(&["-n", &namespace("switch"), "link", "set", machine, "master", "apart"]).await?;
        }
        Ok(())
    }

    pub(super) async fn heal(&self) -> anyhow::Result<()> {
        for machine in MACHINES {
            ip(&["-n", &namespace("switch"), "link", "set", machine, "master", "whole"]).await?;
        }
        Ok(())
    }

    pub(super) async fn remove(&self) {
        for machine in MACHINES.iter().chain(&["switch"]) {
            let _ = ip(&["netns", "del", &namespace(machine)]).await;
        }
    }
}

async fn ip(args: &[&str]) -> anyhow::Result<()> {
    let output = timeout(PATIENCE, Command::new("ip").args(args).output()).await;
    let output = output.context("`ip` does not return")?.context("`ip` does not run")?;
    let words = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {}: {}", args.join(" "), words.trim());
    if !words.trim().is_empty() {
        bail!("ip {}: {}", args.join(" "), words.trim());
    }
    Ok(())
}
