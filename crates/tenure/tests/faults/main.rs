//! Faults on real servers, with members in processes of their own.
//!
//! A *node* ([`node`]) is this very binary, started again with a variable set: one member, whose
//! gates a thread of its own asks about every millisecond, outside the runtime, so that a yes is seen
//! even when no task runs. The instants at which gates said yes are printed, and the history checker
//! reads them: no two gates of a role ever open at the same instant, epochs increase. That assertion
//! has no slack. The time to the next leader is held to the bound of the design's table plus
//! [`group::SLACK`], because a busy machine may be late but never wrong.
//!
//! Timing-sensitive: run with `--test-threads=1`. One test gives a node a clock that lies, to see that
//! the checker catches it.

mod chaos;
mod claimants;
mod copies;
mod database;
mod group;
mod network;
mod node;
mod peers;
mod process;
mod replicas;
mod roles;
mod seat_states;
mod wire;
