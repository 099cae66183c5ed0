//! Flow control: how much is read and queued for each peer and for all of them.

pub(in crate::hub) mod read_budget;
pub(in crate::hub) mod reassembly;
mod reassembly_queue;
pub(in crate::hub) mod send_queues;
