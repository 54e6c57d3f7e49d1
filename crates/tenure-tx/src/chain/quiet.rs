//! A place where clients of nodes run and nothing is logged.
//!
//! HTTP and RPC clients write the addresses they connect to into their own spans and events, at debug
//! and trace, and an address often holds a key. Everything they do, their connections' tasks
//! included, happens on one thread of its own whose subscriber is none. What is worth a line is
//! logged by this crate, without the address.

use std::future::pending;
use std::sync::LazyLock;

use tokio::runtime::{Builder, Handle};
use tokio_util::task::AbortOnDropHandle;
use tracing::subscriber::{NoSubscriber, set_default};

static QUIET: LazyLock<Handle> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread()
        .enable_all()
        // Of the threads that look up names.
        .on_thread_start(|| std::mem::forget(set_default(NoSubscriber::default())))
        .build()
        .expect("a runtime needs a few descriptors; none are left");
    let handle = runtime.handle().clone();
    std::thread::Builder::new()
        .name("tenure-rpc".to_owned())
        .spawn(move || {
            let _silence = set_default(NoSubscriber::default());
            runtime.block_on(pending::<()>());
        })
        .expect("a thread can be started");
    handle
});

/// Runs `work` where nothing is logged. Dropping the future ends it.
pub(crate) async fn quietly<T: Send + 'static>(
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    match AbortOnDropHandle::new(QUIET.spawn(work)).await {
        Ok(done) => done,
        // The runtime never ends, and nothing else aborts the task.
        Err(broken) => std::panic::resume_unwind(broken.into_panic()),
    }
}
