//! The fuzzing targets' bodies on inputs that need no fuzzer, for the tests of the crates that they are of.

use std::path::Path;

/// A target's name, which its corpus has too, and what is done with an input.
type Target = (&'static str, fn(&[u8]));

/// Replays what fuzzing found worth keeping.
pub fn kept(targets: &[Target]) {
    for (name, body) in targets {
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

/// The same on random bytes: a corpus says nothing of an input that nobody has met yet.
pub fn random(targets: &[Target]) {
    use proptest::prelude::*;
    proptest!(ProptestConfig::with_cases(400), |(data in prop::collection::vec(any::<u8>(), 0..400))| {
        for (_, body) in targets {
            body(&data);
        }
    });
}
