//! The fuzzing targets on a stable compiler; see `fuzz/README.md`.

mod fuzz_bodies;
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[test]
fn every_kept_input_holds() {
    replay::kept(&fuzz_bodies::TARGETS);
}

#[test]
fn random_inputs_hold() {
    replay::random(&fuzz_bodies::TARGETS);
}
