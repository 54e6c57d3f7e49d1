//! How the program ends: a code that scripts rely on, and at most one sentence with its remedy.

use std::fmt;
use std::process::ExitCode;

use tenure::TenureError;
use tenure::config::ConfigError;
use tenure_embedded::EmbeddedError;

/// The codes, as `--help` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, or ended as asked.
    Clean,
    /// Not the leader, not acquired, or an audit that found something.
    NotLeader,
    /// The command line or the configuration is wrong.
    Usage,
    /// The preflight refused the setup.
    Refused,
    /// Leadership was lost and is not to be won again.
    Lost,
    /// The database cannot be reached, or does not let us in.
    Unreachable,
    /// The child's own.
    Child(u8),
}

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Clean => 0,
            Exit::NotLeader => 1,
            Exit::Usage => 2,
            Exit::Refused => 3,
            Exit::Lost => 4,
            Exit::Unreachable => 5,
            Exit::Child(code) => code,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        ExitCode::from(exit.code())
    }
}

/// Why it ended badly.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) exit: Exit,
    message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Failure::new(Exit::Usage, message)
    }
}

/// One line, whatever a driver or a file had to say.
impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words: Vec<&str> = self.message.split_whitespace().collect();
        f.write_str(&words.join(" "))
    }
}

impl From<TenureError> for Failure {
    fn from(error: TenureError) -> Self {
        let exit = match &error {
            TenureError::Config(_) | TenureError::Tls(_) | TenureError::NoDatabase => Exit::Usage,
            TenureError::Refused(_)
            | TenureError::Registration { .. }
            | TenureError::Statement(_) => Exit::Refused,
            TenureError::Connect(_) | TenureError::Session(_) => Exit::Unreachable,
            // `TenureError` may grow; whatever it says, the order was not carried out.
            _ => Exit::NotLeader,
        };
        let remedy = match &error {
            TenureError::Session(_) => "; try again",
            TenureError::Statement(_) => "; `tenure check` may say why",
            TenureError::Timeout { .. } => "; try again with more time",
            _ => "",
        };
        Failure::new(exit, format!("{error}{remedy}"))
    }
}

impl From<ConfigError> for Failure {
    fn from(error: ConfigError) -> Self {
        Failure::usage(error.to_string())
    }
}

impl From<EmbeddedError> for Failure {
    fn from(error: EmbeddedError) -> Self {
        Failure::new(Exit::Unreachable, error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Failure::new(Exit::NotLeader, format!("the system refused: {error}; try again"))
    }
}
