//! Replays what fuzzing found worth keeping, on a stable compiler; see `fuzz/README.md`.

mod fuzz_bodies;

use std::path::Path;

#[test]
fn every_kept_input_holds() {
    for (name, body) in fuzz_bodies::TARGETS {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(name);
        let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
        let mut replayed = 0;
        for entry in entries {
            let path = entry.expect("a readable folder").path();
            // Printed only if it fails: the input's name.
            println!("{}", path.display());
            body(&std::fs::read(&path).expect("a readable file"));
            replayed += 1;
        }
        assert!(replayed > 0, "{name} has no corpus");
    }
}

/// The same bodies on random octets: a corpus says nothing of an input that nobody has met yet.
#[test]
fn random_inputs_hold() {
    use proptest::prelude::*;
    proptest!(ProptestConfig::with_cases(400), |(data in prop::collection::vec(any::<u8>(), 0..400))| {
        for (_, body) in fuzz_bodies::TARGETS {
            body(&data);
        }
    });
}
