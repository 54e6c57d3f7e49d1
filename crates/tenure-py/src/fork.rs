//! What happens when the process forks.
//!
//! A child inherits the memory of an open gate, and the socket of the seat. Both are dangerous: the
//! gate says yes until the lease ends although its member lives in another process; the socket keeps
//! the session alive when the parent dies. So a handler of `pthread_atfork`, which also sees forks
//! that are made in C, runs in the child before anything else does:
//!
//! 1. It moves the *generation*. Every gate compares it first, so each inherited one is shut.
//! 2. It closes the sockets of the sessions, each only if it still is that socket. `close` of a copy
//!    sends nothing: no Terminate, no TLS alert, no FIN. The parent goes on.
//!
//! Nothing else of the parent is touched, and nothing of it is dropped: a lock of its runtime may be
//! held by a thread that does not exist here.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};

use pyo3::PyResult;
use pyo3::exceptions::PyOSError;
use tenure::connect::socket;

static GENERATION: AtomicU64 = AtomicU64::new(1);

/// The number of this process's generation.
pub(crate) fn generation() -> u64 {
    GENERATION.load(Ordering::Relaxed)
}

/// Registers the handlers, once.
pub(crate) fn watch() -> PyResult<()> {
    static WATCHED: Once = Once::new();
    let mut answer = 0;
    WATCHED.call_once(|| {
        // SAFETY: the handlers live as long as the program, and only use atomics and `close`.
        answer = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    match answer {
        0 => Ok(()),
        code => Err(PyOSError::new_err((code, "the fork handlers cannot be registered"))),
    }
}

extern "C" fn before() {
    socket::pause();
}

extern "C" fn in_parent() {
    socket::resume();
}

extern "C" fn in_child() {
    GENERATION.fetch_add(1, Ordering::SeqCst);
    for (descriptor, inode) in socket::open() {
        let mut found = std::mem::MaybeUninit::<libc::stat>::uninit();
        // SAFETY: `fstat` fills what it is given when it returns 0, and both calls are allowed in the
        // child of a process with threads. The inode says that the descriptor is still our socket.
        unsafe {
            if libc::fstat(descriptor, found.as_mut_ptr()) == 0
                && found.assume_init().st_ino == inode
            {
                libc::close(descriptor);
            }
        }
    }
    socket::forget();
}

/// Something that only the process that made it may use or drop.
pub(crate) struct Own<T> {
    generation: u64,
    value: ManuallyDrop<T>,
}

impl<T> Own<T> {
    pub(crate) fn new(value: T) -> Self {
        Own { generation: generation(), value: ManuallyDrop::new(value) }
    }

    /// The value, in the process that made it.
    pub(crate) fn get(&self) -> Option<&T> {
        (self.generation == generation()).then(|| self.value.deref())
    }
}

impl<T> Drop for Own<T> {
    fn drop(&mut self) {
        if self.generation == generation() {
            // SAFETY: this is the only place that drops it, and it runs once.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}
