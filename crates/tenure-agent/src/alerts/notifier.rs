//! Notifiers: where messages go, and the secrets that it takes.
//!
//! | in the file | what is sent | acknowledged by |
//! |---|---|---|
//! | `pagerduty` | an event of PagerDuty's API, version 2 | status 2xx |
//! | `slack:#channel` | a message of the bot whose token is given | `"ok": true` |
//! | `webhook:URL` | the message as JSON | status 2xx |
//! | `command:TEXT` | the message as JSON, on standard input of `sh -c TEXT` | exit code 0 |
//!
//! A URL may be a secret of its own: `webhook:env:NAME` and `webhook:file:PATH` say where it is kept. No
//! secret and no URL is in a name, an error, a log or a table. Every request has a deadline.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::pin::pin;
use std::process::Stdio;
use std::time::Duration;

use reqwest::redirect::Policy;
use reqwest::{Client, RequestBuilder, Url};
use rustix::process::{Pid, Signal, kill_process_group};
use serde_json::Value;
use sha2::{Digest, Sha256};
use tenure::connect::dsn::{Env, Secret};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{ChildStderr, Command};
use tokio::time::timeout;

use super::engine::Message;
use super::message;

/// How long a notifier may take to answer.
pub const DEADLINE: Duration = Duration::from_secs(15);
/// How much of a command's standard error is told, the end of it.
const SAID: usize = 300;
/// A word that is shorter than this is no secret.
const SECRET_WORD: usize = 8;
/// How long a command's standard error is read after the command has ended.
const REST: Duration = Duration::from_millis(200);
/// More of an answer is not read.
const ANSWER: usize = 64 * 1024;
/// A secret is not longer.
const SECRET: u64 = 16 * 1024;
const PAGERDUTY: &str = "https://events.pagerduty.com/v2/enqueue";
const SLACK: &str = "https://slack.com/api/chat.postMessage";
/// The variables that hold secrets; a command is not given them.
const VARIABLES: [&str; 3] = ["TENURE_PAGERDUTY_KEY", "TENURE_SLACK_TOKEN", "TENURE_WEBHOOK_TOKEN"];

/// A notifier as the file names it.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Target {
    /// PagerDuty, by its events API.
    PagerDuty,
    /// A channel of Slack, with its `#`.
    Slack(String),
    /// A request to a URL.
    Webhook(Place),
    /// A text for `sh -c`.
    Command(String),
}

/// Where a webhook's URL is.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// In the file itself.
    Here(String),
    /// In a variable of the environment.
    Variable(String),
    /// In a file of its own.
    File(PathBuf),
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}

impl Target {
    /// Reads a notifier as the file names it: the first column of the table of the [module](self).
    ///
    /// # Errors
    /// What is wrong with it, and what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        const FORMS: &str = "write pagerduty, slack:#channel, webhook:URL or command:TEXT";
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match (kind, rest) {
            ("pagerduty", "") if text == "pagerduty" => Ok(Target::PagerDuty),
            ("slack", channel) if channel.len() > 1 && channel.starts_with('#') => {
                Ok(Target::Slack(channel.to_owned()))
            }
            ("slack", _) => Err("a channel of Slack is written slack:#channel".to_owned()),
            ("webhook", place) => match place.split_once(':') {
                Some(("env", name)) if !name.is_empty() => {
                    Ok(Target::Webhook(Place::Variable(name.to_owned())))
                }
                Some(("file", path)) if !path.is_empty() => {
                    Ok(Target::Webhook(Place::File(path.into())))
                }
                _ => url(place).map(|_| Target::Webhook(Place::Here(place.to_owned()))),
            },
            ("command", command) if !command.trim().is_empty() => {
                Ok(Target::Command(command.to_owned()))
            }
            _ => Err(format!("there is no such notifier; {FORMS}")),
        }
    }

    /// Its name for tables and people, without what may be secret.
    #[must_use]
    pub fn name(&self) -> String {
        let mark = |text: &str| hex::encode(&Sha256::digest(text)[..4]);
        match self {
            Target::PagerDuty => "pagerduty".to_owned(),
            Target::Slack(channel) => format!("slack:{channel}"),
            Target::Webhook(Place::Here(text)) => {
                let host = url(text).ok().and_then(|url| url.host_str().map(str::to_owned));
                format!("webhook:{}#{}", host.unwrap_or_default(), mark(text))
            }
            Target::Webhook(Place::Variable(name)) => format!("webhook:env:{name}"),
            Target::Webhook(Place::File(path)) => format!("webhook:file:{}", path.display()),
            // No word of it: the first may set a variable to a secret.
            Target::Command(text) => format!("command#{}", mark(text)),
        }
    }
}

fn url(text: &str) -> Result<Url, String> {
    let wrong = || "a webhook is written webhook:https://host/path".to_owned();
    let url = Url::parse(text).map_err(|_| wrong())?;
    if matches!(url.scheme(), "http" | "https") && url.has_host() { Ok(url) } else { Err(wrong()) }
}

fn is_private(url: &Url) -> bool {
    url.scheme() == "https"
        || matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]" | "::1"))
}

/// What the file says about the services: files of secrets, and other addresses than the services' own.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Services {
    /// The file with PagerDuty's routing key.
    pub pagerduty_key: Option<PathBuf>,
    /// Another address than PagerDuty's own.
    pub pagerduty_url: Option<String>,
    /// The file with the token of Slack's bot.
    pub slack_token: Option<PathBuf>,
    /// Another address than Slack's own.
    pub slack_url: Option<String>,
    /// The file with a bearer token for all webhooks.
    pub webhook_token: Option<PathBuf>,
}

/// Why a notifier cannot be used. Nothing was sent.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NotifierError {
    /// A secret that the notifier needs is neither in a variable nor in a file.
    #[error("{notifier} needs a secret: set {variable}, or write `{key}` with the path of a file")]
    NoSecret {
        /// The notifier, as the file names it.
        notifier: String,
        /// The variable that may hold it.
        variable: String,
        /// The key of the file's `[alerting]`.
        key: &'static str,
    },
    /// A file of a secret cannot be read.
    #[error("{path}: {why}; it must hold the secret alone")]
    File {
        /// The path of the file.
        path: String,
        /// What the system said, or that the file is empty.
        why: String,
    },
    /// An address is wrong.
    #[error("{0}")]
    Address(String),
    /// The token would travel in the open.
    #[error("{0} has a token and no TLS; write https, or take the token away")]
    Open(String),
    /// TLS cannot be used.
    #[error("requests over HTTPS are not possible here: {0}; install the system's CA certificates")]
    Client(String),
}

enum Way {
    PagerDuty { url: Url, key: Secret },
    Slack { url: Url, token: Secret, channel: String },
    Webhook { url: Url, token: Option<Secret> },
    Command(String),
}

/// The notifiers of a file, ready to send.
pub struct Notifiers {
    client: Client,
    ways: BTreeMap<String, Way>,
    group: String,
}

impl fmt::Debug for Notifiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.ways.keys()).finish()
    }
}

struct Vault<'a> {
    env: &'a dyn Env,
}

impl Vault<'_> {
    fn find(&self, variable: &str, file: Option<&Path>) -> Result<Option<Secret>, NotifierError> {
        if let Some(path) = file {
            return self.read(path).map(Some);
        }
        let text = self.env.var(variable).map(|text| text.trim().to_owned());
        Ok(text.filter(|text| !text.is_empty()).map(Secret::new))
    }

    fn read(&self, path: &Path) -> Result<Secret, NotifierError> {
        let wrong = |why: String| NotifierError::File { path: path.display().to_string(), why };
        let size = std::fs::metadata(path).map_err(|error| wrong(error.to_string()))?.len();
        if size > SECRET {
            return Err(wrong("it is longer than 16 KiB".to_owned()));
        }
        let text = std::fs::read_to_string(path).map_err(|error| wrong(error.to_string()))?;
        let text = text.trim();
        if text.is_empty() { Err(wrong("it is empty".to_owned())) } else { Ok(Secret::new(text)) }
    }

    fn required(
        &self,
        notifier: &Target,
        variable: &str,
        file: Option<&Path>,
        key: &'static str,
    ) -> Result<Secret, NotifierError> {
        self.find(variable, file)?.ok_or_else(|| NotifierError::NoSecret {
            notifier: notifier.name(),
            variable: variable.to_owned(),
            key,
        })
    }
}

impl Notifiers {
    /// Finds every secret, in files and in `env`, and makes the notifiers ready. `group` is what messages call this
    /// group. It blocks for as long as the disk does.
    ///
    /// # Errors
    /// [`NotifierError`]; nothing was sent.
    pub fn open<'a>(
        targets: impl Iterator<Item = &'a Target>,
        services: &Services,
        group: &str,
        env: &dyn Env,
    ) -> Result<Self, NotifierError> {
        let vault = Vault { env };
        let mut ways = BTreeMap::new();
        for target in targets {
            ways.insert(target.name(), way(target, services, &vault)?);
        }
        let client = Client::builder()
            .timeout(DEADLINE)
            .connect_timeout(DEADLINE / 2)
            .redirect(Policy::none())
            .user_agent(concat!("tenure/", env!("CARGO_PKG_VERSION")))
            .build()
            .map_err(|error| NotifierError::Client(error.without_url().to_string()))?;
        Ok(Notifiers { client, ways, group: group.to_owned() })
    }

    /// Their names, as [`Target::name`] gives them.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        self.ways.keys()
    }

    /// Sends a message and waits for the acknowledgement, at most [`DEADLINE`]. Dropped, it may have been
    /// sent all the same.
    ///
    /// # Errors
    /// Why it was not acknowledged, without secrets; it may have arrived. What a command wrote to its standard error is
    /// in it, without URLs and without words of the command's own text.
    pub async fn send(&self, message: &Message) -> Result<(), String> {
        let Some(way) = self.ways.get(&message.notifier) else {
            return Err("the file does not have this notifier any more".to_owned());
        };
        let late = || format!("no answer within {} s", DEADLINE.as_secs());
        timeout(DEADLINE, self.deliver(way, message)).await.map_err(|_| late())?
    }

    async fn deliver(&self, way: &Way, message: &Message) -> Result<(), String> {
        match way {
            Way::PagerDuty { url, key } => {
                let body = message::pagerduty(message, &self.group, key.reveal());
                self.accepted(self.client.post(url.clone()), &body).await.map(drop)
            }
            Way::Slack { url, token, channel } => {
                let request = self.client.post(url.clone()).bearer_auth(token.reveal());
                let body = message::slack(message, &self.group, channel);
                let answer = self.accepted(request, &body).await?;
                let answer: Value = serde_json::from_slice(&answer).unwrap_or_default();
                if answer["ok"] == true {
                    return Ok(());
                }
                let why = answer["error"].as_str().unwrap_or("an answer that is none of its own");
                Err(format!("Slack says: {}", message::one_line(why)))
            }
            Way::Webhook { url, token } => {
                let mut request = self.client.post(url.clone());
                request = request.header("Idempotency-Key", message::idempotency_key(message));
                if let Some(token) = token {
                    request = request.bearer_auth(token.reveal());
                }
                self.accepted(request, &message::webhook(message, &self.group)).await.map(drop)
            }
            Way::Command(text) => command(text, message, &self.group).await,
        }
    }

    /// Sends a request; the answer's body if its status is 2xx.
    async fn accepted(&self, request: RequestBuilder, body: &Value) -> Result<Vec<u8>, String> {
        let request = request.header("Content-Type", "application/json; charset=utf-8");
        let sent = request.body(body.to_string()).send().await;
        // The address may be a secret.
        let mut answer = sent.map_err(|error| failed(&error.without_url()))?;
        let status = answer.status();
        if !status.is_success() {
            return Err(format!("status {}", status.as_u16()));
        }
        let mut read = Vec::new();
        while let Some(part) = answer.chunk().await.map_err(|error| failed(&error.without_url()))? {
            read.extend_from_slice(&part);
            if read.len() > ANSWER {
                read.truncate(ANSWER);
                break;
            }
        }
        Ok(read)
    }
}

/// What went wrong, with its causes: the outermost sentence alone says little.
fn failed(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    message::one_line(&text)
}

fn way(target: &Target, services: &Services, vault: &Vault<'_>) -> Result<Way, NotifierError> {
    let address = |text: &str| url(text).map_err(NotifierError::Address);
    Ok(match target {
        Target::PagerDuty => Way::PagerDuty {
            url: address(services.pagerduty_url.as_deref().unwrap_or(PAGERDUTY))?,
            key: vault.required(
                target,
                VARIABLES[0],
                services.pagerduty_key.as_deref(),
                "alerting.pagerduty.key_file",
            )?,
        },
        Target::Slack(channel) => Way::Slack {
            url: address(services.slack_url.as_deref().unwrap_or(SLACK))?,
            token: vault.required(
                target,
                VARIABLES[1],
                services.slack_token.as_deref(),
                "alerting.slack.token_file",
            )?,
            channel: channel.clone(),
        },
        Target::Webhook(place) => {
            let text = match place {
                Place::Here(text) => Secret::new(text.clone()),
                Place::Variable(name) => vault.required(target, name, None, "webhook:file:PATH")?,
                Place::File(path) => vault.read(path)?,
            };
            let url = address(text.reveal())?;
            let token = vault.find(VARIABLES[2], services.webhook_token.as_deref())?;
            if token.is_some() && !is_private(&url) {
                return Err(NotifierError::Open(target.name()));
            }
            Way::Webhook { url, token }
        }
        Target::Command(text) => Way::Command(text.clone()),
    })
}

/// Ends a command with all that it started, also if the future that waits for it is dropped.
struct Ended(Option<Pid>);

impl Drop for Ended {
    fn drop(&mut self) {
        if let Some(group) = self.0 {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }
}

async fn command(text: &str, message: &Message, group: &str) -> Result<(), String> {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", text]);
    for variable in VARIABLES {
        command.env_remove(variable);
    }
    command
        .env("TENURE_ALERT_KEY", &message.key)
        .env("TENURE_ALERT_STATUS", message::status(message.kind))
        .env("TENURE_ALERT_RULE", &message.rule)
        .env("TENURE_ALERT_SEVERITY", message.severity.as_str())
        .stdin(Stdio::piped())
        // Standard output is that of the commands of roles.
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| error.to_string())?;
    let pid = child.id().and_then(|pid| Pid::from_raw(i32::try_from(pid).ok()?));
    let _ended = Ended(pid);
    let (input, errors) = (child.stdin.take(), child.stderr.take());
    let mut said = Vec::new();
    let status = {
        let mut reading = pin!(keep_end(errors, &mut said));
        let mut ending = pin!(async {
            if let Some(mut input) = input {
                let body = message::webhook(message, group).to_string();
                // A command that does not read its input may succeed all the same.
                let _ = input.write_all(body.as_bytes()).await;
            }
            child.wait().await
        });
        tokio::select! {
            status = &mut ending => {
                // What it left running may keep the pipe open.
                let _ = timeout(REST, reading).await;
                status
            }
            () = &mut reading => ending.await,
        }
    };
    let status = status.map_err(|error| error.to_string())?;
    let said = String::from_utf8_lossy(&said);
    let said = match message::one_line(&hidden(&said, text)) {
        said if said.is_empty() => said,
        said => format!(": {said}"),
    };
    match status.code() {
        Some(0) => Ok(()),
        Some(code) => Err(format!("exit code {code}{said}")),
        None => Err(format!("ended by a signal{said}")),
    }
}

/// What a command said, with `…` for each word that is a URL or has a part of the command's text in it: a shell prints
/// the line that it cannot read, and other programs print their arguments. Either may be a secret.
fn hidden(said: &str, text: &str) -> String {
    let is_told = |part: &str| part.len() >= SECRET_WORD && text.contains(part);
    let is_secret = |word: &str| {
        let mut parts = word.split(|c: char| !c.is_alphanumeric() && c != '-' && c != '_');
        word.contains("://")
            || is_told(word.trim_matches(|c: char| !c.is_alphanumeric()))
            || parts.any(is_told)
    };
    let words = said.split_whitespace().map(|word| if is_secret(word) { "…" } else { word });
    words.collect::<Vec<_>>().join(" ")
}

/// Reads to the end, and keeps the last [`SAID`] bytes.
async fn keep_end(errors: Option<ChildStderr>, said: &mut Vec<u8>) {
    let Some(mut errors) = errors else { return };
    let mut part = [0; 4096];
    while let Ok(length @ 1..) = errors.read(&mut part).await {
        said.extend_from_slice(&part[..length]);
        said.drain(..said.len().saturating_sub(SAID));
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;
    use tenure::connect::dsn::NoEnv;

    use super::*;
    use crate::alerts::desk::test_message;
    use crate::alerts::engine::Kind;

    #[tokio::test]
    async fn a_command_that_fails_is_told_with_the_end_of_its_standard_error() {
        let message = test_message("command", "k", Kind::Firing, Timestamp::UNIX_EPOCH);
        let told = async |text: &str| command(text, &message, "g").await;
        assert_eq!(told("echo fine >&2").await, Ok(()));
        let failed = told("printf 'no route\\nto the pager\\n' >&2; exit 3").await;
        assert_eq!(failed, Err("exit code 3: no route to the pager".to_owned()));
        assert_eq!(told("exit 3").await, Err("exit code 3".to_owned()));
        let much =
            told("head -c 1000000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1").await;
        let much = much.expect_err("it fails");
        assert!(much.len() < SAID + 20 && much.ends_with("xthe end"), "{much}");
        // What it left running keeps the pipe open, and does not hold up the answer.
        let begun = std::time::Instant::now();
        let left = told("sleep 100 & echo lost >&2; exit 1").await;
        assert_eq!(left, Err("exit code 1: lost".to_owned()));
        assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
    }

    #[tokio::test]
    async fn what_a_command_says_tells_no_url_and_nothing_of_its_own_text() {
        let message = test_message("command", "k", Kind::Firing, Timestamp::UNIX_EPOCH);
        let told = async |text: &str| command(text, &message, "g").await.expect_err("it fails");
        let url = "echo no route to $(printf https:; echo //example.com/T0) >&2; exit 4";
        assert_eq!(told(url).await, "exit code 4: no route to …");
        let word = "T=hunter2-hunter2; echo \"refused: key='$T', retry\" >&2; exit 1";
        assert_eq!(told(word).await, "exit code 1: refused: … retry");
        let unread = told("/opt/page --key hunter2-hunter2 'https://example.com/").await;
        assert!(unread.starts_with("exit code ") && !unread.contains("hunter2"), "{unread}");
        // As another shell tells a line that it cannot read.
        let text = "TOKEN=hunter2-hunter2 page '";
        let said = format!("sh: -c: line 1: unexpected EOF\nsh: -c: line 1: `{text}'");
        assert_eq!(hidden(&said, text), "sh: -c: line 1: unexpected EOF sh: -c: line 1: … page ''");
    }

    #[test]
    fn notifiers_are_read_and_a_name_tells_no_url() {
        let name = |text: &str| Target::parse(text).map(|target| target.name());
        assert_eq!(name("pagerduty").as_deref(), Ok("pagerduty"));
        assert_eq!(name("slack:#ops").as_deref(), Ok("slack:#ops"));
        assert_eq!(name("webhook:env:HOOK").as_deref(), Ok("webhook:env:HOOK"));
        let hook = name("webhook:https://hooks.example.com/T0/s3cret").expect("valid");
        assert!(
            hook.starts_with("webhook:hooks.example.com#") && !hook.contains("s3cret"),
            "{hook}"
        );
        let command = name("command:TOKEN=s3cret /opt/page --key s3cret").expect("valid");
        assert!(command.starts_with("command#") && !command.contains("s3cret"), "{command}");
        let target = Target::parse("webhook:https://u:s3cret@example.com/").expect("valid");
        assert!(!format!("{target:?}").contains("s3cret"));
        for wrong in [
            "",
            "mail:me",
            "slack:ops",
            "slack:#",
            "webhook:",
            "webhook:ftp://x",
            "command: ",
            "pagerduty:x",
        ] {
            assert!(Target::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_notifier_without_its_secret_is_refused_with_what_to_do() {
        let target = Target::PagerDuty;
        let error = Notifiers::open([&target].into_iter(), &Services::default(), "g", &NoEnv)
            .expect_err("no secret");
        assert_eq!(
            error.to_string(),
            "pagerduty needs a secret: set TENURE_PAGERDUTY_KEY, or write `alerting.pagerduty.key_file` with the \
             path of a file"
        );
    }
}
