//! What may be wrong with a DSN.

use std::path::PathBuf;

/// Why a DSN was refused. Nothing was opened; a retry helps only after the text was changed.
///
/// No variant carries the DSN's text: whatever stands where a password may stand is left out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DsnError {
    /// The text is neither a URL nor key=value pairs.
    #[error(
        "the DSN is malformed: {reason}; write postgresql://user:password@host:5432/database, or host=… user=… dbname=…, and percent-encode (URL) or quote (key=value) special characters"
    )]
    Syntax {
        /// What is wrong, without the text itself.
        reason: &'static str,
    },
    /// A key that libpq does not know.
    #[error(
        "`{key}` is no connection parameter; remove it from the DSN or the service file, or correct its spelling"
    )]
    UnknownKey {
        /// The key as written.
        key: String,
    },
    /// A key libpq knows and this driver cannot honour.
    #[error("the connection parameter `{key}` is not supported: {reason}; remove it")]
    Unsupported {
        /// The key or the variable.
        key: String,
        /// Why it cannot be honoured.
        reason: &'static str,
    },
    /// A value outside its range.
    #[error(
        "`{key}` must be {expected}; correct it in the DSN, the service file or the environment"
    )]
    Value {
        /// The key whose value is bad.
        key: &'static str,
        /// What is accepted.
        expected: &'static str,
    },
    /// Lists of different length.
    #[error(
        "the DSN's hosts ({hosts}) and its {key} values ({others}) are not as many; give one {key} for all hosts, or one for each"
    )]
    Count {
        /// `port` or `hostaddr`.
        key: &'static str,
        /// The number of hosts.
        hosts: usize,
        /// The number of the other entries.
        others: usize,
    },
    /// A service that no file defines.
    #[error("the service `{service}` is not defined in {}; add a [{service}] section or correct PGSERVICE", files(.searched))]
    NoService {
        /// The service's name.
        service: String,
        /// The files that were read.
        searched: Vec<PathBuf>,
    },
    /// A service file with an error in it.
    #[error("the service file {} is malformed at line {line}: {reason}; correct the file", .path.display())]
    ServiceFile {
        /// The file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
        /// What is wrong.
        reason: &'static str,
    },
    /// A file that cannot be read.
    #[error("cannot read {}: {source}; check the path and its permissions", .path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
}

fn files(paths: &[PathBuf]) -> String {
    if paths.is_empty() {
        return "any service file (none was found)".into();
    }
    let names: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
    names.join(" or ")
}
