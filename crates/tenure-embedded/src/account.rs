//! Which account the server runs as.
//!
//! PostgreSQL refuses root. A caller that is root gets a server that runs as `postgres`, else as
//! `nobody`, in folders that account can reach; any other caller runs it under its own account.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use nix::unistd::{User, geteuid};

use crate::EmbeddedError;

/// An account of the operating system that may run a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Account {
    name: String,
    uid: u32,
    gid: u32,
    /// Set when the caller is root and must become this account first.
    drops: bool,
}

impl Account {
    /// The account under which this process may run a server.
    ///
    /// # Errors
    /// [`EmbeddedError::NoAccount`] for root without another account,
    /// [`EmbeddedError::NoUserName`] for a user id without a name.
    pub fn for_server() -> Result<Self, EmbeddedError> {
        if geteuid().is_root() {
            let found =
                ["postgres", "nobody"].iter().find_map(|name| User::from_name(name).ok().flatten());
            return found.map(|user| Self::of(user, true)).ok_or(EmbeddedError::NoAccount);
        }
        Ok(Self::of(caller()?, false))
    }

    fn of(user: User, drops: bool) -> Self {
        Self { name: user.name, uid: user.uid.as_raw(), gid: user.gid.as_raw(), drops }
    }

    /// Its name in the user database.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The account's user id.
    #[must_use]
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// A command that runs as this account, with messages in English and nothing of the caller's
    /// libpq or PostgreSQL settings.
    #[must_use]
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let mut command = Command::new(program.as_ref());
        // `initdb` and `postgres` read these, and a stray one would move the server.
        for (name, _) in std::env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        command.env("LC_ALL", "C").current_dir("/");
        if self.drops {
            // The standard library drops the supplementary groups when root sets a user id.
            command.uid(self.uid).gid(self.gid).env_remove("HOME");
        }
        command
    }

    /// Creates `path` with its parents, owned by this account, with mode 0700.
    ///
    /// # Errors
    /// [`EmbeddedError::NotPrivate`] if it exists and is not so; [`EmbeddedError::File`].
    pub fn private_dir(&self, path: &Path) -> Result<(), EmbeddedError> {
        use std::os::unix::fs::DirBuilderExt;
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).map_err(EmbeddedError::file("cannot create", parent))?;
        }
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => self.own(path)?,
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => self.adopt(path)?,
            Err(error) => return Err(EmbeddedError::file("cannot create", path)(error)),
        }
        // Not the target of a link: a stranger's link must not be followed.
        let meta = fs::symlink_metadata(path).map_err(EmbeddedError::file("cannot read", path))?;
        if !meta.is_dir() || meta.uid() != self.uid || meta.mode() & 0o077 != 0 {
            return Err(EmbeddedError::NotPrivate {
                path: path.into(),
                account: self.name.clone(),
            });
        }
        Ok(())
    }

    /// Root's folder that another process has just made and not yet given away. Only an empty and
    /// private one: a folder in use keeps its owner.
    fn adopt(&self, path: &Path) -> Result<(), EmbeddedError> {
        let read = EmbeddedError::file("cannot read", path);
        let meta = fs::symlink_metadata(path).map_err(read)?;
        let made_by_us = meta.is_dir() && meta.uid() == 0 && meta.mode() & 0o077 == 0;
        if self.drops && made_by_us {
            let mut entries =
                fs::read_dir(path).map_err(EmbeddedError::file("cannot read", path))?;
            if entries.next().is_none() {
                self.own(path)?;
            }
        }
        Ok(())
    }

    /// Gives `path` to this account. Does nothing unless the caller is root.
    ///
    /// # Errors
    /// [`EmbeddedError::File`].
    pub fn own(&self, path: &Path) -> Result<(), EmbeddedError> {
        if self.drops {
            std::os::unix::fs::chown(path, Some(self.uid), Some(self.gid))
                .map_err(EmbeddedError::file("cannot change the owner of", path))?;
        }
        Ok(())
    }

    /// Whether this account may enter every existing folder on the way to `path`.
    #[must_use]
    pub fn can_reach(&self, path: &Path) -> bool {
        path.ancestors().filter_map(|p| fs::metadata(p).ok()).filter(|m| m.is_dir()).all(|m| {
            let bit = match () {
                () if m.uid() == self.uid => 0o100,
                () if m.gid() == self.gid => 0o010,
                () => 0o001,
            };
            m.mode() & bit != 0
        })
    }
}

/// The name of the calling user, as PostgreSQL's `peer` authentication will see it.
pub(crate) fn caller_name() -> Result<String, EmbeddedError> {
    caller().map(|user| user.name)
}

fn caller() -> Result<User, EmbeddedError> {
    let uid = geteuid();
    let found = User::from_uid(uid).ok().flatten();
    found.ok_or(EmbeddedError::NoUserName { uid: uid.as_raw() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_server_never_runs_as_root() {
        let account = Account::for_server().expect("this machine has an account");
        assert_ne!(account.uid(), 0);
        let output = account.command("id").arg("-u").output().expect("id runs");
        assert_eq!(String::from_utf8_lossy(&output.stdout).trim(), account.uid().to_string());
        let groups = account.command("id").arg("-G").output().expect("id runs");
        let groups = String::from_utf8_lossy(&groups.stdout).trim().to_owned();
        assert!(!groups.split(' ').any(|g| g == "0"), "kept root's group: {groups}");
    }

    #[test]
    fn a_folder_behind_a_closed_door_is_unreachable() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().expect("temp dir");
        let mut account = Account::for_server().expect("account");
        account.uid = 4_242_424; // a stranger
        account.gid = 4_242_424;
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
        assert!(account.can_reach(&dir.path().join("not/yet/there")));
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o700)).expect("chmod");
        assert!(!account.can_reach(&dir.path().join("not/yet/there")));
    }

    #[test]
    fn a_folder_open_to_others_is_not_private() {
        use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
        let dir = tempfile::tempdir().expect("temp dir");
        let account = Account::for_server().expect("account");
        let path = dir.path().join("run");
        account.private_dir(&path).expect("created");
        account.private_dir(&path).expect("still private");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("chmod");
        assert!(matches!(account.private_dir(&path), Err(EmbeddedError::NotPrivate { .. })));

        // As another process leaves it for an instant: made, and not yet given away.
        let made = dir.path().join("made");
        fs::DirBuilder::new().mode(0o700).create(&made).expect("made");
        account.private_dir(&made).expect("adopted");
        if account.drops {
            let used = dir.path().join("used");
            fs::DirBuilder::new().mode(0o700).create(&used).expect("made");
            fs::write(used.join("file"), "").expect("written");
            assert!(matches!(account.private_dir(&used), Err(EmbeddedError::NotPrivate { .. })));
        }
    }
}
