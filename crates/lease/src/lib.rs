//! Whether a file is open for writing, or mapped for writing, anywhere on this machine: fcntl(2) with F_SETLEASE, which rustix lacks.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

/// Which signal is sent: <asm-generic/fcntl.h>, which the libc crate lacks.
const F_SETSIG: libc::c_int = 10;

/// Whether anybody has a file open for writing, or a shared writable map of it. The file itself is open for reading only.
///
/// A read lease can be had only if nobody has; it is released at once.
///
/// # Errors
/// It can't be found out: the file is another user's, or its file system has no leases.
pub fn is_open_for_writing(file: &File) -> io::Result<bool> {
    // Opening the file for writing meanwhile makes the kernel send a signal. The default one would end this process; this one is ignored.
    fcntl(file, F_SETSIG, libc::SIGURG)?;
    match fcntl(file, libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => fcntl(file, libc::F_SETLEASE, libc::F_UNLCK).map(|()| false),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        Err(error) => Err(error),
    }
}

#[allow(unsafe_code)]
fn fcntl(file: &File, command: libc::c_int, argument: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open for as long as `file` is borrowed, and these commands take a number, no memory.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    if result == -1 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_writer_is_noticed_until_it_closes() {
        let temp = tempfile::tempdir().expect("a directory");
        let path = temp.path().join("f");
        let writer = File::create(&path).expect("create");
        let reader = File::open(&path).expect("open");
        let Ok(is_open) = is_open_for_writing(&reader) else {
            let in_ci = std::env::var_os("CI").is_some_and(|value| value == "true");
            assert!(!in_ci, "no leases, and in CI this may not be skipped");
            println!("skipped: this file system has no leases");
            return;
        };
        assert!(is_open);
        drop(writer);
        assert!(!is_open_for_writing(&reader).expect("a lease"));
        // It was released: nobody waits for it.
        let writer = File::options().write(true).open(&path).expect("open for writing");
        assert!(is_open_for_writing(&reader).expect("a lease"));
        drop(writer);
    }
}
