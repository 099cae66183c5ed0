//! Output of `tow call`.

use crate::support::broker::{Broker, call, work};
use crate::support::process::run;

#[test]
fn names_in_json_are_escaped() {
    let broker = Broker::start();
    let service = "evil\u{9b}2J\u{202e}";
    let _evil = work(&[&broker], &[service, "--echo"]);
    for dialect in ["auto", "mdp01"] {
        let outcome = run(&mut call(&[&broker], &["mmi.services", "--dialect", dialect])).expect_code(0);
        assert_eq!(outcome.summary()[0], service);
        assert!(outcome.stdout.is_ascii(), "{:?}", String::from_utf8_lossy(&outcome.stdout));
    }
}

#[test]
fn reply_over_the_limit_is_refused() {
    let broker = Broker::start();
    let _large = work(&[&broker], &["large", "--", "head", "-c", "3000000", "/dev/zero"]);
    let _small = work(&[&broker], &["small", "--", "echo", "small"]);
    for (service, limit) in [("large", "2M"), ("small", "5")] {
        let outcome = run(&mut call(&[&broker], &[service, "x", "--max-reply", limit])).expect_code(5);
        assert!(outcome.stdout.is_empty() && outcome.stderr.contains("--max-reply"), "{}", outcome.stderr);
    }
    for (service, limit, bytes) in [("large", "3000000", 3_000_000), ("small", "6", 6)] {
        let outcome = run(&mut call(&[&broker], &[service, "x", "--max-reply", limit])).expect_code(0);
        assert_eq!(outcome.stdout.len(), bytes);
    }
}
