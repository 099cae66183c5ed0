//! The bodies of the fuzz targets in `fuzz/`. `tests/corpus.rs` runs them on the kept inputs, so that the two can't drift apart.

use towpath_rules::{Origin, Rules, Verb};

/// A fuzz target's name and body.
pub type Target = (&'static str, fn(&[u8]));

/// Every target, by the name of its corpus folder.
#[allow(dead_code, reason = "each fuzz target uses its own body")]
pub const TARGETS: [Target; 1] = [("rules_text", rules_text)];

/// Bytes as a file of rules. A decision for a path is one for everything below it, unless another line is about that.
pub fn rules_text(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let rules = match Rules::parse(&text) {
        Ok(rules) => rules,
        Err(error) => {
            let lines = text.lines().count().max(1);
            assert!(!error.0.is_empty() && error.0.iter().all(|error| (1..=lines).contains(&error.line)));
            return;
        }
    };
    for name in rules.names().map(|name| Some(name.as_bytes())).take(8).chain([None]) {
        let permissions = rules.permissions(name, Origin::Local);
        for verb in Verb::ALL {
            for subject in [&b""[..], b"a", b"a/b", b"dlq.a"] {
                let decision = permissions.decide(verb, subject);
                assert_eq!(decision.is_allowed, permissions.may(verb, subject));
                assert!(decision.line.is_some() || !decision.is_allowed, "what no line allows is refused");
                // A verb includes these.
                for other in Verb::ALL.into_iter().filter(|other| verb.includes(*other)) {
                    assert!(!decision.is_allowed || permissions.may(other, subject));
                }
                if verb.is_of_paths() && decision.is_allowed {
                    assert!(permissions.may_reach(verb, subject));
                }
            }
        }
    }
}
