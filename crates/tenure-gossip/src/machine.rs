//! What the history is a history *of*.

/// A state that changes by diffs.
///
/// The leader runs [`StateMachine::execute`] on its copy, the resulting diff is committed, and every
/// node, the leader included, changes its state by [`StateMachine::apply`] and by nothing else. So
/// `execute` may read a clock or draw lots; `apply` must do the same everywhere.
///
/// `Clone` must be cheap (a persistent structure, an `Arc`): the leader keeps a second copy that runs
/// ahead of what is committed, and snapshots are made from a third.
///
/// `execute`, `apply` and `digest` run on the node's one thread, between its heartbeats: what takes long there
/// costs the lease. `query`, `restore` and, as a rule, `snapshot` run on another thread.
pub trait StateMachine: Clone + Send + 'static {
    /// The state before anything happened.
    fn initial() -> Self;

    /// Works out what `goal` (256 KiB at most) would change, without changing anything. A diff of more than
    /// 1 MiB is not committed: its goal is rejected.
    ///
    /// # Errors
    /// The reason, in a sentence, why the goal cannot be reached. It is committed as the goal's outcome, its
    /// first 1,024 characters.
    fn execute(&self, goal: &[u8]) -> Result<Vec<u8>, String>;

    /// Makes the change. Every diff that `execute` returned must be accepted.
    ///
    /// # Errors
    /// What is wrong with the diff; the node then halts rather than diverge: it gives up leadership of the
    /// namespace, and applies and serves nothing of it any more.
    fn apply(&mut self, diff: &[u8]) -> Result<(), String>;

    /// Answers a client's question ([`Ask::Read`](crate::Ask::Read)) about the state, as this node has it. The
    /// default answers none.
    ///
    /// # Errors
    /// Why it cannot be answered; the client gets the text.
    fn query(&self, question: &[u8]) -> Result<Vec<u8>, String> {
        let _ = question;
        Err("this state machine answers no questions; read its history".to_owned())
    }

    /// The whole state as bytes: the same bytes for the same state.
    fn snapshot(&self) -> Vec<u8>;

    /// A hash of the state: the same for the same state, on every node. It is compared at every
    /// checkpoint, so a machine with a large state keeps it up to date with every change instead of
    /// working it out anew, as the default does.
    fn digest(&self) -> [u8; 32] {
        *blake3::hash(&self.snapshot()).as_bytes()
    }

    /// The state that [`StateMachine::snapshot`] wrote, perhaps in another process or on another node.
    ///
    /// # Errors
    /// What is wrong with the bytes. A node that finds them on its own disk does not start.
    fn restore(bytes: &[u8]) -> Result<Self, String>;
}
