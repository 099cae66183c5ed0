//! A world with brokers, clients, workers, and everything that goes wrong between them, in virtual time: one seed decides it
//! all. The brokers run the dispatch of the real one. What happened is checked against what is promised (history.rs).
//!
//! Each test runs some seeds that are always the same, and some random ones, which it prints. TOWPATH_SEED=N runs one again,
//! TOWPATH_SEEDS=N sets how many are random (`cargo xtask test --long`: 3000). With TOWPATH_SEED,
//! TOWPATH_TRACE=1 shows all that is said, and TOWPATH_CLIENT and TOWPATH_NUMBER the history of one request.
#![allow(clippy::unwrap_used)]

mod cell;
mod client;
mod disk;
mod ends;
mod history;
mod link;
mod node;
mod real;
mod rng;
mod stock;
mod worker;
mod world;

use cell::Broken;
use node::Fault;
use std::hash::{BuildHasher, RandomState};
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{Plan, Sim, Tally};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn plan(seed: u64, nodes: usize, journal: bool) -> Plan {
    let length = 1_500 + seed % 2_000;
    Plan { seed, nodes, journal, shared: false, fault: Fault::None, chaos: true, length, first_stops: None }
}

/// Runs a world; a panic is an error too.
fn run(plan: Plan) -> Result<Tally, String> {
    catch_unwind(AssertUnwindSafe(|| {
        let mut sim = Sim::new(plan);
        sim.run()?;
        Ok(sim.totals())
    }))
    .unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        Err(format!("panic: {}", text.or(panic.downcast_ref::<&str>().copied()).unwrap_or_default()))
    })
}

/// Random seeds of a test, unless a variable sets their number.
fn random_count() -> u64 {
    number("TOWPATH_SEEDS").unwrap_or(30)
}

/// Runs the seeds from 1 to `fixed`, and random ones. Nothing comes of a seed that is run again.
fn run_all(fixed: u64, make: impl Fn(u64) -> Plan) -> Option<Tally> {
    if let Some(seed) = number("TOWPATH_SEED") {
        run_again(make(seed));
        return None;
    }
    let (first, count) = (RandomState::new().hash_one(0) >> 16, random_count());
    println!("random seeds: {count} from {first}");
    let mut all = Tally::default();
    for seed in (1..=fixed).chain(first..first + count) {
        let plan = make(seed);
        match run(plan.clone()) {
            Ok(tally) => all.add(&tally),
            Err(why) => panic!("TOWPATH_SEED={seed}, {plan:?}: {why}"),
        }
    }
    println!("{all:?}");
    Some(all)
}

fn run_again(plan: Plan) {
    let mut sim = Sim::new(plan.clone());
    if let Err(why) = sim.run() {
        if let (Some(client), Some(number)) = (number("TOWPATH_CLIENT"), number("TOWPATH_NUMBER")) {
            sim.history.of((client as usize, number)).iter().for_each(|event| println!("{event}"));
        }
        panic!("{plan:?}: {why}");
    }
}

#[test]
fn promises_hold_with_a_journal() {
    run_all(200, |seed| plan(seed, 1, true));
}

#[test]
fn promises_hold_without_a_journal() {
    run_all(100, |seed| plan(seed, 1, false));
}

#[test]
fn promises_hold_with_two_brokers() {
    run_all(100, |seed| plan(seed, 2, seed % 2 == 0));
}

fn shared_plan(seed: u64) -> Plan {
    Plan { shared: true, ..plan(seed, 2 + seed as usize % 2, true) }
}

/// Brokers that share a log are as one, whichever of them leads.
#[test]
fn promises_hold_across_changes_of_leader() {
    let tally = run_all(100, shared_plan);
    assert!(tally.is_none_or(|tally| tally.terms > 200), "{tally:?}");
}

#[test]
fn nothing_goes_wrong_where_nothing_is_wrong() {
    run_all(5, |seed| Plan { chaos: false, ..plan(seed, 1, true) });
}

/// One client that reads nothing, while its requests are executed, doesn't keep the others from theirs.
#[test]
fn a_client_that_stops_reading_stops_only_itself() {
    let of_others = |first_stops: Option<u64>| -> u64 {
        let runs = (1..=12).map(|seed| run(Plan { chaos: false, first_stops, ..plan(seed, 1, true) }));
        runs.map(|tally| tally.unwrap().of_others).sum()
    };
    let (all, beside) = (of_others(None), of_others(Some(60)));
    assert!(beside * 10 >= all * 9, "{beside} outcomes instead of {all}");
}

/// The checker finds what it is there to find.
#[test]
fn broken_brokers_are_found() {
    // Each with a seed from which on it is found soon.
    let faults = [
        (Fault::SwapReplies, 1, "(2)"),
        (Fault::LoseEntries, 1, "(4)"),
        (Fault::AnswerTwice, 1, "(3)"),
        (Fault::SwallowReplies, 1, "(1)"),
        (Fault::LoseParts, 1, "(2)"),
        (Fault::ReuseSlots, 1, "(5)"),
        (Fault::Breaks(Broken::FirstBehind), 80, "(3)"),
        (Fault::Breaks(Broken::Epochs), 860, "(4)"),
    ];
    for (fault, first, promise) in faults {
        let mut all = Vec::new();
        let make = |seed| if matches!(fault, Fault::Breaks(_)) { shared_plan(seed) } else { plan(seed, 1, true) };
        let found = (first..first + 1_000).filter_map(|seed| run(Plan { fault, ..make(seed) }).err()).any(|why| {
            all.push(why);
            all.iter().any(|why| why.contains(promise))
        });
        assert!(found, "{fault:?} isn't found as {promise}: {all:?}");
    }
}
