//! Connection strings that Python gives anew before every session.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};

use tenure::connect::{Dsn, Renewal};
use tokio::sync::oneshot;

use crate::mailbox::{Letter, Post};
use crate::settings::Libpq;

type Given = Result<String, String>;

/// Asks Python by letter; the answer comes through [`Wanted::answer`].
pub(crate) struct Wanted {
    post: Arc<Post>,
    questions: Mutex<(u64, HashMap<u64, oneshot::Sender<Given>>)>,
}

impl Wanted {
    pub(crate) fn new(post: Arc<Post>) -> Arc<Self> {
        Arc::new(Wanted { post, questions: Mutex::default() })
    }

    /// Hands a connection string, or why there is none, to the session that waits for it.
    pub(crate) fn answer(&self, id: u64, given: Given) {
        let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(waiting) = questions.1.remove(&id) {
            // The session may have given up: its deadline passed.
            let _ = waiting.send(given);
        }
    }
}

impl fmt::Debug for Wanted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("connect_fn")
    }
}

impl Renewal for Wanted {
    fn renew(&self) -> Pin<Box<dyn Future<Output = Result<Dsn, String>> + Send + '_>> {
        Box::pin(async move {
            let (sender, answer) = oneshot::channel();
            let id = {
                let mut questions = self.questions.lock().unwrap_or_else(PoisonError::into_inner);
                // Questions that timed out leave nothing behind.
                questions.1.retain(|_, waiting| !waiting.is_closed());
                questions.0 += 1;
                let id = questions.0;
                questions.1.insert(id, sender);
                id
            };
            self.post.send(Letter::Renew { id });
            let text = answer.await.map_err(|_| "the lock was stopped".to_owned())??;
            // The parser's error names keys, never values.
            Dsn::parse_with(&text, &Libpq).map_err(|error| error.to_string())
        })
    }
}
