//! Microbenchmarks of what runs once a message or once a request: `cargo xtask bench micro [FILTER]`.

mod core;
mod records;
mod zmtp;

fn main() {
    divan::main();
}
