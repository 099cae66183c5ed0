//! The commands, a module each.

pub mod broker;
pub mod call;
mod call_load;
pub mod demo;
pub mod follow;
pub mod get;
pub mod ls;
pub mod serve;
pub mod work;
