//! Pushes of clients that send anything.

use super::model::fuzz_body;
use super::*;
use proptest::prelude::*;

#[test]
fn what_is_missing_is_all_that_is_not_there() {
    let range = |(offset, length)| Range { offset, length };
    for (have, size, expected) in [
        (&[][..], 0, &[][..]),
        (&[], 5, &[(0, 5)]),
        (&[(0, 5)], 5, &[]),
        (&[(1, 2)], 5, &[(0, 1), (3, 2)]),
        (&[(0, 1), (4, 1)], 5, &[(1, 3)]),
    ] {
        let have: Vec<Range> = have.iter().copied().map(range).collect();
        assert_eq!(missing(&have, size), expected.iter().copied().map(range).collect::<VecDeque<_>>());
    }
}

#[test]
fn fuzz_corpus_passes() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/files_push");
    let inputs: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    assert!(!inputs.is_empty());
    for path in inputs {
        println!("{}", path.display());
        fuzz_body(&std::fs::read(&path).unwrap());
    }
}

proptest! {
    /// Whatever clients send: only the next missing bytes are written, within the credit, and memory within the window.
    #[test]
    fn pushes_stay_within_order_credit_and_window(steps in proptest::collection::vec((0u8..8, 0u8..10, any::<[u8; 4]>()), 0..200)) {
        let tape: Vec<u8> = steps.iter().flat_map(|(what, id, numbers)| [&[*what, *id][..], numbers].concat()).collect();
        fuzz_body(&tape);
    }
}
