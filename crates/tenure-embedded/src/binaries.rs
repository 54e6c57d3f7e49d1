//! Where the server's programs are.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use crate::EmbeddedError;

/// A version of PostgreSQL: `15.18`, or `19beta1` as 19.0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// What decides whether data and binaries fit.
    pub major: u32,
    /// The bug-fix release.
    pub minor: u32,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

impl Version {
    /// Reads what `postgres --version` prints, e.g. `postgres (PostgreSQL) 15.18 (Debian 15.18-0)`.
    fn parse(answer: &str) -> Option<Self> {
        let text = answer.split("(PostgreSQL)").nth(1)?.trim_start();
        let number = |s: &str| {
            let digits: String = s.chars().take_while(char::is_ascii_digit).collect();
            digits.parse().ok()
        };
        let major = number(text)?;
        let rest = text.trim_start_matches(|c: char| c.is_ascii_digit());
        Some(Self { major, minor: rest.strip_prefix('.').and_then(number).unwrap_or(0) })
    }
}

/// A folder with the programs of one PostgreSQL installation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binaries {
    folder: PathBuf,
    version: Version,
}

impl Binaries {
    /// The first complete installation of: `TENURE_PG_BIN`, `pg_config --bindir`, the
    /// distribution's folders (newest first), `PATH`.
    ///
    /// # Errors
    /// [`EmbeddedError::NoBinaries`], which names the package to install. A `TENURE_PG_BIN` that
    /// holds no installation is an error too: what was asked for is never silently replaced.
    pub fn find() -> Result<Self, EmbeddedError> {
        if let Some(folder) = std::env::var_os("TENURE_PG_BIN") {
            return Self::at(folder);
        }
        places().into_iter().find_map(|folder| Self::at(folder).ok()).ok_or_else(|| {
            EmbeddedError::NoBinaries {
                looked_at: places()
                    .iter()
                    .map(|p| p.display().to_string())
                    .collect::<Vec<_>>()
                    .join(", "),
            }
        })
    }

    /// Every complete installation, in the order of preference of [`Binaries::find`].
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut found: Vec<Self> = Vec::new();
        for folder in places() {
            if let Ok(binaries) = Self::at(folder)
                && !found.contains(&binaries)
            {
                found.push(binaries);
            }
        }
        found
    }

    /// The installation in `folder`.
    ///
    /// # Errors
    /// [`EmbeddedError::NoBinaries`] or [`EmbeddedError::UnknownVersion`].
    pub fn at(folder: impl Into<PathBuf>) -> Result<Self, EmbeddedError> {
        let folder = folder.into();
        let none = || EmbeddedError::NoBinaries { looked_at: folder.display().to_string() };
        // Where `initdb` really is: a link in a folder of PATH stands alone, and a server looks for
        // its libraries beside the program.
        let real = fs::canonicalize(folder.join("initdb")).map_err(|_| none())?;
        let folder = real.parent().ok_or_else(none)?.to_path_buf();
        if !["postgres", "pg_ctl"].iter().all(|program| folder.join(program).is_file()) {
            return Err(none());
        }
        let program = folder.join("postgres");
        let answer = Command::new(&program)
            .arg("--version")
            .output()
            .map_err(EmbeddedError::file("cannot run", &program))?;
        let answer = String::from_utf8_lossy(&answer.stdout).into_owned();
        match Version::parse(&answer) {
            Some(version) => Ok(Self { folder, version }),
            None => Err(EmbeddedError::UnknownVersion { program, answer }),
        }
    }

    /// Where the server's programs are.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The version of the server.
    #[must_use]
    pub fn version(&self) -> Version {
        self.version
    }

    /// The path of one program. It need not exist: some packages carry no `pg_basebackup`.
    #[must_use]
    pub fn program(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

/// Folders that may hold an installation, best first.
fn places() -> Vec<PathBuf> {
    let mut places: Vec<PathBuf> =
        std::env::var_os("TENURE_PG_BIN").map(Into::into).into_iter().collect();
    if let Ok(output) = Command::new("pg_config").arg("--bindir").output()
        && output.status.success()
    {
        places.push(String::from_utf8_lossy(&output.stdout).trim().into());
    }
    // Debian and Ubuntu; Fedora and RHEL (PGDG); Homebrew on both kinds of Mac; Alpine.
    for (parent, prefix) in [
        ("/usr/lib/postgresql", ""),
        ("/usr", "pgsql-"),
        ("/opt/homebrew/opt", "postgresql@"),
        ("/usr/local/opt", "postgresql@"),
        ("/usr/libexec", "postgresql"),
    ] {
        places.extend(numbered(Path::new(parent), prefix));
    }
    places.extend(["/opt/homebrew/opt/postgresql/bin", "/usr/local/pgsql/bin"].map(PathBuf::from));
    if let Some(path) = std::env::var_os("PATH") {
        places.extend(std::env::split_paths(&path));
    }
    places
}

/// The folders `parent/<prefix><number>` with or without `bin` below, highest number first.
fn numbered(parent: &Path, prefix: &str) -> Vec<PathBuf> {
    let mut found: Vec<(u32, PathBuf)> = fs::read_dir(parent)
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            let bin = entry.path().join("bin");
            Some((number, if bin.is_dir() { bin } else { entry.path() }))
        })
        .collect();
    found.sort_by_key(|(number, _)| std::cmp::Reverse(*number));
    found.into_iter().map(|(_, path)| path).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_the_distributions_print_them() {
        let read = |s| Version::parse(s).map(|v| (v.major, v.minor));
        assert_eq!(read("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)\n"), Some((15, 18)));
        assert_eq!(read("postgres (PostgreSQL) 18.4\n"), Some((18, 4)));
        assert_eq!(read("postgres (PostgreSQL) 19beta2\n"), Some((19, 0)));
        assert_eq!(read("postgres (GreenPlum) 6\n"), None);
        assert_eq!(read(""), None);
    }

    #[test]
    fn newest_folder_comes_first_by_number_not_by_letter() {
        let dir = tempfile::tempdir().expect("temp dir");
        for name in ["9", "15", "18", "not-a-version"] {
            fs::create_dir_all(dir.path().join(name).join("bin")).expect("mkdir");
        }
        let names: Vec<_> = numbered(dir.path(), "")
            .iter()
            .map(|p| {
                p.parent()
                    .and_then(Path::file_name)
                    .and_then(|n| n.to_str())
                    .unwrap_or("")
                    .to_owned()
            })
            .collect();
        assert_eq!(names, ["18", "15", "9"]);
    }

    #[test]
    fn an_installation_is_found_and_its_link_is_followed() {
        let found = Binaries::find().expect("PostgreSQL is installed");
        assert!(found.program("postgres").is_file());
        let dir = tempfile::tempdir().expect("temp dir");
        std::os::unix::fs::symlink(found.program("initdb"), dir.path().join("initdb"))
            .expect("link");
        assert_eq!(Binaries::at(dir.path()).expect("through the link"), found);
    }

    #[test]
    fn a_folder_without_a_server_is_refused_with_a_remedy() {
        let dir = tempfile::tempdir().expect("temp dir");
        let error = Binaries::at(dir.path()).expect_err("empty folder").to_string();
        assert!(error.contains("TENURE_PG_BIN") && error.contains("install"), "{error}");
    }
}
