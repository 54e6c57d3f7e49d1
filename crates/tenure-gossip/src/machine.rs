//! What the history is a history *of*.

/// A state that changes by diffs.
///
/// The leader runs [`StateMachine::execute`] on its copy, the resulting diff is committed, and every
/// node, the leader included, changes its state by [`StateMachine::apply`] and by nothing else. So
/// `execute` may read a clock or draw lots; `apply` must do the same everywhere.
///
/// `Clone` must be cheap (a persistent structure, an `Arc`): the leader keeps a second copy that runs
/// ahead of what is committed, and snapshots are made from a third.
pub trait StateMachine: Clone + Send + 'static {
    /// The state before anything happened.
    fn initial() -> Self;

    /// Works out what `goal` would change, without changing anything.
    ///
    /// # Errors
    /// The reason, in a sentence, why the goal cannot be reached. It is committed as the goal's outcome.
    fn execute(&self, goal: &[u8]) -> Result<Vec<u8>, String>;

    /// Makes the change. Every diff that `execute` returned must be accepted.
    ///
    /// # Errors
    /// What is wrong with the diff; the node then stops rather than diverge.
    fn apply(&mut self, diff: &[u8]) -> Result<(), String>;

    /// Answers a client's question about the state, as this node has it.
    ///
    /// # Errors
    /// Why it cannot be answered. The default answers nothing.
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

    /// The state that [`StateMachine::snapshot`] wrote.
    ///
    /// # Errors
    /// What is wrong with the bytes.
    fn restore(bytes: &[u8]) -> Result<Self, String>;
}
