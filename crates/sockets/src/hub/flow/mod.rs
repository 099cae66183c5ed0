//! Flow control: how much is read from each peer and queued for it, and for all of them together.

pub(in crate::hub) mod read_budget;
pub(in crate::hub) mod reassembly;
mod reassembly_queue;
pub(in crate::hub) mod send_queues;

use reassembly::ReadPermit;

/// A peer's state in the hub's flow control.
pub(in crate::hub) struct FlowState {
    /// The application wants no more for now.
    pub(in crate::hub) paused: bool,
    /// Its larger messages wait when the application defers them.
    pub(in crate::hub) deferrable: bool,
    pub(in crate::hub) permit: ReadPermit,
    /// Bytes of it in the reassembly budget.
    pub(in crate::hub) reassembly_bytes: usize,
    /// Bytes of it in the sum of all send queues.
    pub(in crate::hub) queued_bytes: usize,
    /// A send was refused since the last [`crate::Event::Writable`].
    pub(in crate::hub) was_full: bool,
    /// [`crate::Event::HungUp`] was reported.
    pub(in crate::hub) hang_up_reported: bool,
}

impl Default for FlowState {
    fn default() -> Self {
        FlowState {
            paused: false,
            deferrable: true,
            permit: ReadPermit::default(),
            reassembly_bytes: 0,
            queued_bytes: 0,
            was_full: false,
            hang_up_reported: false,
        }
    }
}
