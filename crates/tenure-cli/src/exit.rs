//! How the program ends: a code that scripts rely on, and at most one sentence with its remedy.

use std::fmt;
use std::process::ExitCode;

use tenure::TenureError;
use tenure::config::ConfigError;
use tenure_embedded::EmbeddedError;

/// The codes of every command, as `--help` lists them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done, or ended as asked.
    Clean,
    /// It did not succeed: not acquired, an order that was not carried out, an audit with findings.
    Failed,
    /// The command line or the configuration is wrong.
    Usage,
    /// The preflight refused the setup.
    Refused,
    /// Leadership was lost and is not to be won again.
    Lost,
    /// The database cannot be reached, or does not let us in.
    Unreachable,
    /// No leader answers: none leads, or none of the nodes that were asked can be reached.
    NoLeader,
    /// There is no such role, member, transaction, key or namespace.
    NotFound,
    /// It was decided, or refused on its merits: a repetition will not help.
    #[cfg_attr(not(any(feature = "tx", feature = "gossip")), allow(dead_code))]
    Rejected,
    /// A transaction has ended, and what was asked for was not executed.
    #[cfg_attr(not(feature = "tx"), allow(dead_code))]
    NotExecuted,
    /// It may have been done: the same again, under the same id, tells.
    #[cfg_attr(not(feature = "tx"), allow(dead_code))]
    Uncertain,
    /// The child's own.
    Child(u8),
    /// A signal of this number ended it before it was done.
    Signal(u8),
}

/// The table of `--help`; a test compares it with docs/cli.md.
pub(crate) const TABLE: &str = "\
Exit codes:
  0  clean
  1  failed: not acquired, an order not carried out, an audit with findings, a system error
  2  wrong usage or configuration
  3  refused by the preflight: `tenure check` says why
  4  leadership lost, and not to be acquired again
  5  database unreachable
  6  no leader answers
  7  not found: no such role, member, transaction, key or namespace
  8  rejected on its merits: the same again will not do
  9  not executed: the transaction reverted, or ended as a no-op, refused or expired
  10 outcome unknown: ask again under the same id
  A child's own code is passed on (128+n for signal n, 126 not executable, 127 not found).";

impl Exit {
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Clean => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Refused => 3,
            Exit::Lost => 4,
            Exit::Unreachable => 5,
            Exit::NoLeader => 6,
            Exit::NotFound => 7,
            Exit::Rejected => 8,
            Exit::NotExecuted => 9,
            Exit::Uncertain => 10,
            Exit::Child(code) => code,
            Exit::Signal(number) => 128 + number,
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
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Failure { exit, message: message.into() }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Failure::new(Exit::Failed, message)
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
            | TenureError::Statement(_)
            | TenureError::Denied(_) => Exit::Refused,
            TenureError::Connect(_) | TenureError::Session(_) => Exit::Unreachable,
            TenureError::NoLeader(_) => Exit::NoLeader,
            TenureError::NoSuchRole(_) | TenureError::NoSuchMember(_) => Exit::NotFound,
            // `TenureError` may grow; whatever it says, the order was not carried out.
            _ => Exit::Failed,
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
        Failure::failed(format!("the system refused: {error}; try again"))
    }
}

/// An error of a driver, with what lies under it: the outermost text alone often says too little.
#[cfg(any(feature = "tx", feature = "gossip"))]
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}
