//! The process and the system that it runs on: signals, limits, the log, threads that may hang.

pub mod log;
pub mod log_format;
pub mod log_output;
mod log_rate;
pub mod reload;
pub mod rlimits;
pub mod screen;
pub mod signals;
pub mod watchdog;
pub mod which;
