//! Files as they are fetched and pushed: what arrives, where, and through which faults.

mod caching;
mod changing;
mod crashes;
pub mod destination;
mod fairness;
mod far;
mod fetching;
pub mod hanging_disk;
mod hard_links;
mod links;
mod metadata;
mod older_copies;
mod one_name;
pub mod progress;
mod pushing;
mod pushing_trees;
mod rate_limits;
mod selecting;
mod serving;
mod silent_server;
mod slow_disk;
mod special_files;
