//! TUN devices and network namespaces.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::ioctl::{IntegerSetter, Opcode, Setter, ioctl, opcode};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::time::Duration;

/// Bytes of the header before each packet (virtio_net_hdr).
pub const HEADER_BYTES: usize = 10;

const TUNSETIFF: Opcode = opcode::write::<i32>(b'T', 202);
const TUNSETOFFLOAD: Opcode = opcode::write::<u32>(b'T', 208);
/// IFF_TUN, IFF_NO_PI, IFF_VNET_HDR.
const FLAGS: u16 = 0x0001 | 0x1000 | 0x4000;
/// TUN_F_CSUM, TUN_F_TSO4: packets of up to 64 KiB, which carry several segments.
const OFFLOAD: usize = 1 | 2;

/// The kernel's ifreq.
#[repr(C)]
struct Request {
    name: [u8; 16],
    flags: u16,
    rest: [u8; 22],
}

/// Moves this thread to a network namespace of its own.
#[allow(unsafe_code)]
pub fn own_network() -> io::Result<()> {
    // SAFETY: only the table of descriptors must not be unshared while others may use it; this is the network alone.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWNET) }?)
}

/// Opens a new device in this thread's namespace.
#[allow(unsafe_code)]
pub fn open(name: &str) -> io::Result<File> {
    let device = File::options().read(true).write(true).open("/dev/net/tun")?;
    let mut request = Request { name: [0; 16], flags: FLAGS, rest: [0; 22] };
    request.name.iter_mut().zip(name.bytes().take(15)).for_each(|(to, from)| *to = from);
    // SAFETY: TUNSETIFF reads an ifreq, and writes its name, within what the setter owns.
    unsafe { ioctl(device.as_fd(), Setter::<TUNSETIFF, Request>::new(request)) }?;
    // SAFETY: TUNSETOFFLOAD takes a number.
    unsafe { ioctl(device.as_fd(), IntegerSetter::<TUNSETOFFLOAD>::new_usize(OFFLOAD)) }?;
    Ok(device)
}

/// Waits until a device has a packet, for so long at most.
pub fn is_readable(device: &File, most: Duration) -> bool {
    let mut polled = [PollFd::new(device, PollFlags::IN)];
    let most = Timespec::try_from(most).ok();
    poll(&mut polled, most.as_ref()).is_ok_and(|ready| ready > 0)
}

/// Segments in a packet with its header.
pub fn segments(packet: &[u8]) -> usize {
    let Some([_, kind, _, _, size @ ..]) = packet.first_chunk::<6>() else { return 1 };
    match (kind, usize::from(u16::from_ne_bytes(*size))) {
        (0, _) | (_, 0) => 1,
        (_, size) => packet.len().saturating_sub(HEADER_BYTES + 52).div_ceil(size).max(1),
    }
}
