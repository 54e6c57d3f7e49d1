//! A signer that is a program of yours.

use std::borrow::Cow;
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, Command};

use super::line::Line;
use super::signer::runtime_for;
use super::{SubstrateChain, call, compact_length, extrinsic_hash};
use crate::account::{AccountId, SignError, Signed, Signer, Unsigned};
use crate::chain::Block;
use crate::status::{Hash, unhex};

/// `EX_DATAERR` of sysexits.h.
const MALFORMED: i32 = 65;

/// The longest answer: an extrinsic of 4 MiB in hex, and some.
const MAX_ANSWER: u64 = 16 << 20;

/// Signs by running a program of yours, once for each signature.
///
/// How an extrinsic is encoded, and what a signature covers, is written in the runtime's metadata
/// and changes with its upgrades; keys live in keystores, devices and services. The program knows the
/// runtime and holds the key; this process never sees it.
///
/// ```text
/// stdin   {"account":"0x…","nonce":7,"tip":"0","call":"0x…","best":{"number":9,"hash":"0x…"},"finalized":{…}}
/// stdout  0x<signed extrinsic> [last valid block]
/// ```
///
/// `call` is the SCALE-encoded call (one by name is encoded with the chain's metadata first), or null for a
/// no-op (`System::remark` of nothing, say). Exit code 65 says that the call is malformed; any other but 0,
/// that it could not sign now. Its standard error is that of this process.
///
/// With [`CommandSigner::encoding_for`], what it printed is read with the chain's metadata: bytes for another
/// nonce could execute one request twice. Those of an account, nonce or call that was not asked for are
/// refused.
///
/// The caller bounds its time: dropping the future kills the program.
#[derive(Clone)]
pub struct CommandSigner {
    account: AccountId,
    program: String,
    arguments: Vec<String>,
    /// The chain whose metadata encodes calls by name, and reads what was signed.
    line: Option<Arc<Line>>,
    /// It was told that what the program signs cannot be read.
    unread: Arc<AtomicBool>,
}

impl std::fmt::Debug for CommandSigner {
    // Its arguments may hold a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CommandSigner").field("account", &self.account).finish_non_exhaustive()
    }
}

impl CommandSigner {
    /// Names the program and its arguments, separated by white space. There is no shell in
    /// between: what needs quoting goes into a script.
    ///
    /// # Errors
    /// [`SignError::Key`] if nothing is named.
    pub fn new(account: AccountId, command: &str) -> Result<Self, SignError> {
        let mut words = command.split_whitespace().map(str::to_owned);
        let program = words.next().ok_or_else(|| {
            SignError::Key("the signer's command is empty; name a program".to_owned())
        })?;
        let (arguments, unread) = (words.collect(), Arc::default());
        Ok(CommandSigner { account, program, arguments, line: None, unread })
    }

    /// Calls by name are encoded with this chain's metadata before the program is asked, and what it signed
    /// is read with it. Without a chain calls by name are refused, and nothing is read.
    #[must_use]
    pub fn encoding_for(self, chain: &SubstrateChain) -> Self {
        CommandSigner { line: Some(Arc::clone(&chain.line)), ..self }
    }

    /// The call in SCALE, which is all that the program is to know.
    async fn encoded<'a>(&self, call: &'a [u8], best: Hash) -> Result<Cow<'a, [u8]>, SignError> {
        if !call::is_named(call) {
            return Ok(Cow::Borrowed(call));
        }
        let Some(line) = &self.line else {
            let why = "a call by name needs the chain's metadata; send it in SCALE".to_owned();
            return Err(SignError::Malformed(why));
        };
        match runtime_for(line, best).await {
            Ok(runtime) => runtime.call_of(Some(call)).map(Cow::Owned),
            Err(SignError::Key(_)) => Err(SignError::Malformed(
                "this chain's metadata cannot be read; send the call in SCALE".to_owned(),
            )),
            Err(error) => Err(error),
        }
    }

    /// Refuses bytes of another account, nonce or call. A no-op may be any call.
    ///
    /// A program may sign for a runtime that cannot be read here: then its word counts, and that is told.
    fn check(&self, raw: &[u8], nonce: u64, call: Option<&[u8]>) -> Result<(), SignError> {
        let Some(line) = &self.line else { return Ok(()) };
        let runtimes = line.runtimes();
        let read = runtimes.iter().find_map(|runtime| runtime.parse(raw).ok());
        let Some((signed, read)) = read.and_then(|read| Some((read.nonce?, read))) else {
            if !self.unread.swap(true, Ordering::Relaxed) {
                tracing::warn!(
                    event = "tx_signed_unread",
                    nonce,
                    "WHAT THE SIGNER'S COMMAND SIGNS CANNOT BE READ with this chain's metadata: that it is \
                     of the account, nonce and call it was asked for is not checked"
                );
            }
            return Ok(());
        };
        let other = if read.account != self.account.as_bytes() {
            format!("account 0x{}, asked was {}", hex::encode(read.account), self.account)
        } else if signed != nonce {
            format!("nonce {signed}, asked was {nonce}")
        } else if call.is_some_and(|call| call != read.call) {
            "another call than was asked".to_owned()
        } else {
            return Ok(());
        };
        Err(SignError::Mismatch(format!("the program signed {other}")))
    }

    async fn ask(&self, question: String) -> Result<String, SignError> {
        let failed = |what: &str, e: std::io::Error| {
            SignError::Unavailable(format!("the signer's command {what}: {e}; check the program"))
        };
        let mut child = Command::new(&self.program)
            .args(&self.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            // Its standard error is for its owner; it is never quoted.
            .stderr(Stdio::inherit())
            .kill_on_drop(true)
            .spawn()
            .map_err(|error| failed("cannot be started", error))?;
        let answer =
            converse(&mut child, question).await.map_err(|error| failed("broke off", error))?;
        let status = child.wait().await.map_err(|error| failed("broke off", error))?;
        match status.code() {
            Some(0) => Ok(answer),
            Some(MALFORMED) => {
                let why =
                    "the signer's command says so (exit code 65); its standard error may tell more";
                Err(SignError::Malformed(why.to_owned()))
            }
            Some(_) | None => Err(SignError::Unavailable(format!(
                "the signer's command ended with {status}; its standard error may tell why"
            ))),
        }
    }
}

/// Writes the question while it reads the answer: neither side may wait for the other's pipe.
async fn converse(child: &mut Child, question: String) -> std::io::Result<String> {
    let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
    let write = async {
        if let Some(mut stdin) = stdin {
            match stdin.write_all(question.as_bytes()).await {
                // A program need not read what it does not want to know.
                Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => {}
                other => other?,
            }
        }
        Ok::<_, std::io::Error>(())
    };
    let read = async {
        let mut answer = String::new();
        if let Some(stdout) = stdout {
            stdout.take(MAX_ANSWER).read_to_string(&mut answer).await?;
        }
        Ok::<_, std::io::Error>(answer)
    };
    let ((), answer) = tokio::try_join!(write, read)?;
    Ok(answer)
}

#[async_trait]
impl Signer for CommandSigner {
    fn account(&self) -> &AccountId {
        &self.account
    }

    fn name(&self) -> &str {
        "the signer's command"
    }

    async fn sign(&self, unsigned: Unsigned<'_>) -> Result<Signed, SignError> {
        let call = match unsigned.call {
            Some(call) => Some(self.encoded(call, unsigned.head.best.hash).await?),
            None => None,
        };
        let block = |b: &Block| json!({"number": b.number, "hash": b.hash});
        let question = json!({
            "account": self.account.to_string(),
            "nonce": unsigned.nonce,
            "tip": unsigned.tip.to_string(),
            "call": call.as_ref().map(|call| format!("0x{}", hex::encode(call))),
            "best": block(&unsigned.head.best),
            "finalized": block(&unsigned.head.finalized),
        });
        let answer = self.ask(format!("{question}\n")).await?;
        // Never quoted: whatever it printed instead may be a secret.
        let unclear = || {
            let message = "the signer's command printed something else than an extrinsic in hex; check \
                           what it prints";
            SignError::Unavailable(message.to_owned())
        };
        let mut words = answer.split_whitespace();
        let raw = words.next().and_then(unhex).filter(|raw| compact_length(raw) == Some(raw.len()));
        let raw = raw.ok_or_else(unclear)?;
        let valid_until =
            words.next().map(|word| word.parse::<u64>().map_err(|_| unclear())).transpose()?;
        self.check(&raw, unsigned.nonce, call.as_deref())?;
        Ok(Signed {
            hash: extrinsic_hash(&raw),
            raw: raw.into(),
            valid_until,
            tip: None,
            bid: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Head;
    use std::time::Duration;

    async fn sign(script: &str) -> Result<Signed, SignError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("signer.sh");
        std::fs::write(&path, script).expect("written");
        let account = AccountId::new([7; 32]).expect("32 bytes");
        let signer = CommandSigner::new(account, &format!("sh {}", path.display())).expect("named");
        let head = Head::default();
        let call = Some(b"\x01\x02".as_slice());
        let unsigned = Unsigned { nonce: 3, tip: 5, call, head: &head, replaces: None };
        tokio::time::timeout(Duration::from_secs(20), signer.sign(unsigned)).await.expect("bounded")
    }

    #[tokio::test]
    async fn it_is_told_nonce_tip_and_call_and_answers_with_bytes_and_their_last_block() {
        let all = r#"read -r q
            case "$q" in *'"call":"0x0102"'*'"nonce":3'*'"tip":"5"'*) echo 0x080a0b 77 ;; esac"#;
        let signed = sign(all).await.expect("signed");
        assert_eq!(signed.raw, vec![8, 0x0a, 0x0b]);
        assert_eq!(signed.valid_until, Some(77));
        // It need not read, and need not be mortal.
        assert_eq!(sign("echo 0x080a0b").await.expect("signed").valid_until, None);
    }

    #[tokio::test]
    async fn what_it_prints_or_is_given_never_shows_in_an_error() {
        for (script, malformed) in [
            ("echo secret; exit 1", false),
            ("echo secret; exit 65", true),
            ("echo secret", false),
            ("echo 0x0c0a0b", false),
            ("echo 0x080a0b secret", false),
            ("kill -9 $$", false),
        ] {
            let error = sign(script).await.expect_err(script);
            assert_eq!(matches!(error, SignError::Malformed(_)), malformed, "{script}: {error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
        let account = AccountId::new([7; 32]).expect("32 bytes");
        let signer = CommandSigner::new(account.clone(), "/nowhere --secret").expect("named");
        assert!(!format!("{signer:?}").contains("secret"));
        assert!(CommandSigner::new(account, " ").is_err());
    }
}
