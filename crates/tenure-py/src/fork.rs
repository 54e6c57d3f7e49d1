//! What happens when the process forks.
//!
//! A child inherits the memory of an open gate, and the socket of the seat. Both are dangerous: the
//! gate says yes until the lease ends although its member lives in another process; the socket keeps
//! the session alive when the parent dies. So the child begins a new *generation*, which every gate
//! compares first, and closes the sockets of the sessions, each only if it still is that socket. `close`
//! of a copy sends nothing: no Terminate, no TLS alert, no FIN. The parent goes on.
//!
//! Two things see to it:
//!
//! 1. A handler of `pthread_atfork` runs in the child before anything else does, also where C forks.
//! 2. The generation lies in a page that the kernel empties in every child (`MADV_WIPEONFORK`), so a
//!    gate is shut also after a fork that runs no handlers (`_Fork`, the bare system call). The sockets are
//!    then closed by the first call that asks for the generation.
//!
//! Nothing else of the parent is touched, and nothing of it is dropped: a lock of its runtime may be
//! held by a thread that does not exist here.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};

use pyo3::PyResult;
use pyo3::exceptions::PyOSError;
use tenure::connect::socket;

/// What a child finds empty.
struct Page {
    /// 0 in a child that has not begun its generation yet.
    generation: AtomicU64,
    /// Not 0 once a thread has begun to begin it.
    begun: AtomicU64,
}

/// Serves until the module is initialised, and where the kernel cannot empty a page: there the handler
/// does.
static PLAIN: Page = Page { generation: AtomicU64::new(1), begun: AtomicU64::new(1) };
static PAGE: AtomicPtr<Page> = AtomicPtr::new((&raw const PLAIN).cast_mut());
/// The number of the latest generation; a child inherits it.
static LATEST: AtomicU64 = AtomicU64::new(1);

fn page() -> &'static Page {
    // SAFETY: it points to `PLAIN`, or to a mapping that is never unmapped and holds a `Page`.
    unsafe { &*PAGE.load(Ordering::Relaxed) }
}

/// The number of this process's generation.
#[inline]
pub(crate) fn generation() -> u64 {
    match page().generation.load(Ordering::Relaxed) {
        0 => begin(),
        number => number,
    }
}

/// Begins the generation of a child, once; its other threads wait for that.
#[cold]
fn begin() -> u64 {
    let page = page();
    if page.begun.swap(1, Ordering::AcqRel) == 0 {
        close_sockets();
        let number = LATEST.fetch_add(1, Ordering::SeqCst) + 1;
        page.generation.store(number, Ordering::SeqCst);
    }
    loop {
        match page.generation.load(Ordering::Acquire) {
            0 => std::thread::yield_now(),
            number => return number,
        }
    }
}

fn close_sockets() {
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

/// Registers the handlers and the page, once.
pub(crate) fn watch() -> PyResult<()> {
    static WATCHED: Once = Once::new();
    let mut answer = 0;
    WATCHED.call_once(|| {
        if let Some(page) = emptied_by_the_kernel() {
            PAGE.store(page, Ordering::SeqCst);
        }
        // SAFETY: the handlers live as long as the program, and only use atomics and `close`.
        answer = unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) };
    });
    match answer {
        0 => Ok(()),
        code => Err(PyOSError::new_err((code, "the fork handlers cannot be registered"))),
    }
}

/// A page with this process's generation that every child finds empty.
#[cfg(target_os = "linux")]
fn emptied_by_the_kernel() -> Option<*mut Page> {
    const SIZE: usize = size_of::<Page>();
    // SAFETY: a new mapping of its own is asked for, and left alone unless it was made. It is as large
    // as a page at least, aligned to one and filled with zeros, which are a `Page`.
    unsafe {
        let (access, kind) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        let made = libc::mmap(std::ptr::null_mut(), SIZE, access, kind, -1, 0);
        if made == libc::MAP_FAILED {
            return None;
        }
        if libc::madvise(made, SIZE, libc::MADV_WIPEONFORK) != 0 {
            libc::munmap(made, SIZE);
            return None;
        }
        let page: *mut Page = made.cast();
        (*page).begun.store(1, Ordering::SeqCst);
        (*page).generation.store(LATEST.load(Ordering::SeqCst), Ordering::SeqCst);
        Some(page)
    }
}

#[cfg(not(target_os = "linux"))]
fn emptied_by_the_kernel() -> Option<*mut Page> {
    None
}

extern "C" fn before() {
    socket::pause();
}

extern "C" fn in_parent() {
    socket::resume();
}

extern "C" fn in_child() {
    let page = page();
    page.generation.store(0, Ordering::SeqCst);
    page.begun.store(0, Ordering::SeqCst);
    begin();
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
