//! Commands and views of operators and people at a terminal.

mod demo;
mod examples;
mod failing_followers;
mod file_servers;
mod help;
mod history;
mod http;
mod journal_lines;
pub mod letters_and_drains;
mod pipes;
pub mod problems;
mod requests;
mod restarts;
mod slow_transfers;
pub mod status;
mod system_limits;
mod terminal;
mod wrong_peers;
