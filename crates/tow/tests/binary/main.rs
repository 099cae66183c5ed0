//! Tests of the real `tow` binary: what it promises, bad input, and faults. Each test starts its own
//! processes on ports that the system picks, and kills them when it is over.

mod support;

mod files;
mod follow;
mod operator;
mod requests;
mod security;
