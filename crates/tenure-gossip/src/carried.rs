//! What a node carries: the application's state machines, and the cluster's credentials beside them.

use crate::credentials::{Credentials, SNAPSHOT_TAG};
use crate::engine::{Sealed, Snapshot};
use crate::history::Chain;
use crate::identity::PeerId;
use crate::machine::StateMachine;

/// The first byte of a snapshot of an application's state.
const APPLICATION_TAG: u8 = b'A';

/// The state of a namespace.
#[derive(Clone)]
pub(crate) enum Carried<M> {
    /// The state machine that the host was given.
    Application(M),
    /// What keys may do.
    Credentials(Credentials),
}

impl<M> Carried<M> {
    pub(crate) fn application(&self) -> Option<&M> {
        match self {
            Self::Application(machine) => Some(machine),
            Self::Credentials(_) => None,
        }
    }

    /// The credentials of a new generation, whose first node is `founder`; an application's state is as it was.
    pub(crate) fn refound(&mut self, founder: PeerId) {
        if let Self::Credentials(credentials) = self {
            credentials.refound(founder);
        }
    }

    pub(crate) fn credentials(&self) -> Option<&Credentials> {
        match self {
            Self::Application(_) => None,
            Self::Credentials(credentials) => Some(credentials),
        }
    }
}

/// Where the credentials begin: a snapshot before the first record, which makes the state one of credentials.
pub(crate) fn first_credentials() -> Sealed {
    let chain = Chain::<Credentials>::default().freeze();
    Snapshot { index: 0, point: None, barred: Default::default(), chain }.seal()
}

impl<M: StateMachine> StateMachine for Carried<M> {
    fn initial() -> Self {
        Self::Application(M::initial())
    }

    fn execute(&self, goal: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Application(machine) => machine.execute(goal),
            Self::Credentials(credentials) => credentials.execute(goal),
        }
    }

    fn apply(&mut self, diff: &[u8]) -> Result<(), String> {
        match self {
            Self::Application(machine) => machine.apply(diff),
            Self::Credentials(credentials) => credentials.apply(diff),
        }
    }

    fn query(&self, question: &[u8]) -> Result<Vec<u8>, String> {
        match self {
            Self::Application(machine) => machine.query(question),
            Self::Credentials(credentials) => credentials.query(question),
        }
    }

    fn snapshot(&self) -> Vec<u8> {
        match self {
            Self::Application(machine) => {
                let mut bytes = vec![APPLICATION_TAG];
                bytes.extend(machine.snapshot());
                bytes
            }
            Self::Credentials(credentials) => credentials.snapshot(),
        }
    }

    fn digest(&self) -> [u8; 32] {
        match self {
            Self::Application(machine) => machine.digest(),
            Self::Credentials(credentials) => credentials.digest(),
        }
    }

    fn restore(bytes: &[u8]) -> Result<Self, String> {
        match bytes.split_first() {
            Some((&APPLICATION_TAG, rest)) => M::restore(rest).map(Self::Application),
            Some((&SNAPSHOT_TAG, _)) => Credentials::restore(bytes).map(Self::Credentials),
            Some(_) | None => Err("not a snapshot of this version".to_owned()),
        }
    }
}
