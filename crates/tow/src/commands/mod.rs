//! The commands, a module each.

pub mod broker;
#[cfg(feature = "s3")]
mod bucket_push;
#[cfg(feature = "s3")]
mod bucket_source;
mod cache_args;
pub mod call;
mod call_body;
mod call_dialect;
mod call_load;
mod call_waiting;
pub mod completions;
pub mod demo;
pub mod follow;
mod follow_exec;
pub mod get;
pub mod key;
pub mod ls;
pub mod manual;
pub mod operator;
mod origin;
mod outage;
pub mod password;
pub mod publish;
pub mod push;
pub mod queue;
mod relay;
pub mod rules;
pub mod serve;
mod serve_bucket;
pub mod trust;
pub mod versions;
pub mod work;
