//! A world with brokers, clients, workers, and everything that goes wrong between them, in virtual time: one seed decides it
//! all. What happened is checked against what is promised (history.rs). A failure names its seed; TOWPATH_SIM_SEED runs it
//! again (with all that is said if there is TOWPATH_SIM_TRACE, and the history of one request by TOWPATH_SIM_CLIENT and
//! TOWPATH_SIM_NUMBER), TOWPATH_SIM_SEEDS runs so many, from TOWPATH_SIM_FIRST on.
#![allow(clippy::unwrap_used)]

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

use node::Fault;
use std::panic::{AssertUnwindSafe, catch_unwind};
use world::{Plan, Sim, Tally};

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn plan(seed: u64, nodes: usize, journal: bool) -> Plan {
    Plan { seed, nodes, journal, fault: Fault::None, chaos: true, length: 1_500 + seed % 2_000, first_stops: None }
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

fn run_all(ordinary: u64, make: impl Fn(u64) -> Plan) {
    if let Some(seed) = number("TOWPATH_SIM_SEED") {
        let plan = make(seed);
        let mut sim = Sim::new(plan.clone());
        let outcome = sim.run();
        if let Err(why) = outcome {
            if let (Some(client), Some(number)) = (number("TOWPATH_SIM_CLIENT"), number("TOWPATH_SIM_NUMBER")) {
                sim.history.of((client as usize, number)).iter().for_each(|event| println!("{event}"));
            }
            panic!("{plan:?}: {why}");
        }
        return;
    }
    let (mut all, first) = (Tally::default(), number("TOWPATH_SIM_FIRST").unwrap_or(1));
    for seed in first..first + number("TOWPATH_SIM_SEEDS").unwrap_or(ordinary) {
        let plan = make(seed);
        match run(plan.clone()) {
            Ok(tally) => all.add(&tally),
            Err(why) => panic!("TOWPATH_SIM_SEED={seed}, {plan:?}: {why}"),
        }
    }
    println!("{all:?}");
}

#[test]
fn promises_hold_with_a_journal() {
    run_all(300, |seed| plan(seed, 1, true));
}

#[test]
fn promises_hold_without_a_journal() {
    run_all(200, |seed| plan(seed, 1, false));
}

#[test]
fn promises_hold_with_two_brokers() {
    run_all(200, |seed| plan(seed, 2, seed % 2 == 0));
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
    let faults = [
        (Fault::SwapReplies, "(2)"),
        (Fault::LoseEntries, "(4)"),
        (Fault::AnswerTwice, "(3)"),
        (Fault::SwallowReplies, "(1)"),
        (Fault::LoseParts, "(2)"),
    ];
    for (fault, promise) in faults {
        let found = (1..60).filter_map(|seed| run(Plan { fault, ..plan(seed, 1, true) }).err());
        let all: Vec<String> = found.take(8).collect();
        assert!(all.iter().any(|why| why.contains(promise)), "{fault:?} isn't found as {promise}: {all:?}");
    }
}
