//! `initdb` once per version, then copies.

use std::{fs, path::Path};

use tenure_embedded::{InitOptions, Server};

use crate::{KitError, cluster::SUPERUSER, home::Home};

/// Changes when the template's content does, so that an old one is not used.
const REVISION: u32 = 1;

/// Fills the server's data folder: a copy of the template, or a cluster of its own.
pub(crate) fn fill(home: &Home, server: &Server, own_identity: bool) -> Result<(), KitError> {
    if own_identity {
        return make(server);
    }
    let name = format!("template-{}-{REVISION}", server.binaries().version());
    let template = home.root().join(&name);
    if !template.join("PG_VERSION").exists() {
        let lock = fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(home.root().join(format!("{name}.lock")))?;
        lock.lock()?;
        if !template.join("PG_VERSION").exists() {
            // Made under another name: a test that is killed half way leaves no half template.
            let making = home.folder("template")?;
            let draft = Server::new(
                server.binaries().clone(),
                home.account().clone(),
                making.join("new"),
                making.join("log"),
            );
            make(&draft)?;
            fs::rename(making.join("new"), &template)?;
            fs::remove_dir_all(making)?;
        }
    }
    copy(home, &template, server.data())
}

fn make(server: &Server) -> Result<(), KitError> {
    server.initialise(&InitOptions { superuser: SUPERUSER.into(), sync: false })?;
    let path = server.data().join("postgresql.conf");
    let text = fs::read_to_string(&path)?;
    server.write("postgresql.conf", &format!("{text}\ninclude_if_exists = 'tenure.conf'\n"))?;
    Ok(())
}

fn copy(home: &Home, from: &Path, to: &Path) -> Result<(), KitError> {
    let mut command = home.account().command("cp");
    command.arg("-R").arg("-p");
    if cfg!(target_os = "linux") {
        command.arg("--reflink=auto");
    }
    let output = command.arg(from).arg(to).output()?;
    if output.status.success() {
        return Ok(());
    }
    Err(KitError::Setup(format!("cp failed: {}", String::from_utf8_lossy(&output.stderr).trim())))
}
