//! What can go wrong on the way to a running server, each with its remedy.

use std::{io, path::PathBuf, time::Duration};

/// Why there is no server.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EmbeddedError {
    /// No server binaries were found. Nothing was touched.
    #[error(
        "no PostgreSQL server binaries were found (looked at {looked_at}); {}, or set TENURE_PG_BIN \
         to the folder that holds `initdb` and `postgres`, or give a DSN",
        install_hint()
    )]
    NoBinaries {
        /// The places that were searched.
        looked_at: String,
    },

    /// A program answered something that is not a version.
    #[error(
        "`{program} --version` answered {answer:?}, which names no PostgreSQL version; set TENURE_PG_BIN to a complete installation"
    )]
    UnknownVersion {
        /// The program that was asked.
        program: PathBuf,
        /// What it said.
        answer: String,
    },

    /// The data folder was made by a major version that is not installed. Nothing was touched.
    #[error(
        "the data in {data} was made by PostgreSQL {made_by}, but only {found} was found; install PostgreSQL {made_by}, or move the folder away to begin with an empty one"
    )]
    DataVersion {
        /// The data folder.
        data: PathBuf,
        /// Its major version.
        made_by: String,
        /// The major versions that are installed.
        found: String,
    },

    /// The server must not run as root, and there is no other account.
    #[error(
        "PostgreSQL refuses to run as root and this machine has neither an account `postgres` nor `nobody`; run as another user, or give a DSN"
    )]
    NoAccount,

    /// The calling user has no name in the user database.
    #[error(
        "user id {uid} has no entry in the user database, which PostgreSQL requires; add one, or give a DSN"
    )]
    NoUserName {
        /// The user's number.
        uid: u32,
    },

    /// There is no folder to keep the data in.
    #[error("neither XDG_DATA_HOME nor HOME is set; set one of them, or name the folder")]
    NoHome,

    /// The account that runs the server cannot enter the folder. Nothing was touched.
    #[error(
        "the account `{account}` that runs the server cannot reach {path}; choose a folder whose parents it may enter, such as /var/lib/tenure"
    )]
    Unreachable {
        /// The account's name.
        account: String,
        /// The folder.
        path: PathBuf,
    },

    /// A folder that must be ours alone belongs to another account or is open to others.
    #[error(
        "{path} must belong to `{account}` with mode 0700, and does not; another account may have made it: inspect it and remove it"
    )]
    NotPrivate {
        /// The folder.
        path: PathBuf,
        /// The account it must belong to.
        account: String,
    },

    /// A file operation failed.
    #[error("{doing} {path}: {source}")]
    File {
        /// What was tried.
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },

    /// A program could not be run, or said no.
    #[error("`{program}` failed: {message}")]
    Program {
        /// The path of the program that was run.
        program: PathBuf,
        /// Its own words.
        message: String,
    },

    /// The server ended before it was ready.
    #[error("the server ended while starting; the end of {log} says: {tail}")]
    StartFailed {
        /// The log file.
        log: PathBuf,
        /// Its last lines.
        tail: String,
    },

    /// Something took too long. A retry may help: it attaches to what has come up meanwhile.
    #[error("{doing} took longer than {after:?}; see {log}, and try again on a less busy machine")]
    TimedOut {
        /// What was waited for.
        doing: &'static str,
        /// How long.
        after: Duration,
        /// Where to look.
        log: PathBuf,
    },
}

impl EmbeddedError {
    pub(crate) fn file(
        doing: &'static str,
        path: impl Into<PathBuf>,
    ) -> impl FnOnce(io::Error) -> Self {
        let path = path.into();
        move |source| Self::File { doing, path, source }
    }
}

/// Names the package, in the words of the package manager that is there.
fn install_hint() -> &'static str {
    let there = |path: &str| std::path::Path::new(path).exists();
    if there("/usr/bin/apt-get") {
        "run `apt-get install postgresql`"
    } else if there("/usr/bin/dnf") {
        "run `dnf install postgresql-server`"
    } else if there("/sbin/apk") {
        "run `apk add postgresql`"
    } else if there("/opt/homebrew/bin/brew") || there("/usr/local/bin/brew") {
        "run `brew install postgresql`"
    } else {
        "install your distribution's PostgreSQL server package (often `postgresql` or `postgresql-server`)"
    }
}
