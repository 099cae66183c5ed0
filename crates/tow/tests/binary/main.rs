//! Tests of the real `tow` binary: what it promises, bad input, and faults. Each test starts its own
//! processes on ports that the system picks, and kills them when it is over.

mod support;

mod admin;
mod calls;
mod changing_files;
mod commands;
mod connections;
mod crashes;
mod demo;
mod destination;
mod endless_server;
mod failover;
mod fairness;
mod features;
mod file_fairness;
mod following;
mod following_faults;
mod following_options;
mod handshake_flood;
mod hanging_disk;
mod hard_links;
mod help;
mod hostile_publisher;
mod hostile_server;
mod keys;
mod limits;
mod links;
mod local_users;
mod logins;
mod metadata;
mod older_copies;
mod one_name;
mod other_users;
mod paths;
mod pipes;
mod pushing;
mod refused_keys;
mod replies;
mod requests;
mod rules;
mod serving;
mod slow_disk;
mod special_files;
mod wrong_peers;
