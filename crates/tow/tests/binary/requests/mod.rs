//! Requests, workers and brokers.

mod bad_requests;
mod calls;
mod commands;
mod failover;
mod fairness;
mod printed_replies;
mod vanished_clients;
