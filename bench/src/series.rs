//! A series: all variants of a table in turn, in a shuffled order that is new in each round, so that what else the machine does hits all
//! of them alike. Only ratios within a round mean anything; a table shows their medians.

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};

use crate::seed::Seed;

/// Kind of a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// Our server, our receiver or both.
    Ours,
    /// Software that people use today.
    Peer,
    /// The limit of the system calls alone.
    Limit,
}

/// One measured run.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Sample {
    /// Wall time.
    pub seconds: f64,
    /// Bytes of files that arrived, over all receivers.
    pub bytes: u64,
    pub server_cpu_seconds: Option<f64>,
    pub receiver_cpu_seconds: Option<f64>,
    pub server_peak_bytes: Option<u64>,
    /// Part of the server's that is its store's, where that is a program of its own.
    #[serde(default)]
    pub store_cpu_seconds: Option<f64>,
    /// Requests that were answered; 0 where files are moved.
    #[serde(default)]
    pub requests: u64,
    #[serde(default)]
    pub worker_cpu_seconds: Option<f64>,
    #[serde(default)]
    pub p50_us: Option<f64>,
    #[serde(default)]
    pub p99_us: Option<f64>,
    /// Bytes that crossed loopback, both ways.
    #[serde(default)]
    pub wire_bytes: Option<u64>,
    /// Requests to a store for each piece of its objects.
    #[serde(default)]
    pub gets_per_piece: Option<f64>,
    /// Requests that were sent again.
    #[serde(default)]
    pub resent: Option<u64>,
    /// Replies to an operator who looked meanwhile.
    #[serde(default)]
    pub looks: Option<u64>,
    /// Rounds of the server's event loop that took over 2 ms.
    #[serde(default)]
    pub slow_rounds: Option<u64>,
}

impl Sample {
    /// The time to compare: of one request where requests are counted, since slow peers get fewer.
    fn pace(&self) -> f64 {
        self.seconds / self.requests.max(1) as f64
    }

    /// Requests a second.
    fn per_second(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.requests as f64 / self.seconds)
    }

    /// Microseconds of some CPU time for each request.
    fn per_request_us(&self, cpu_seconds: Option<f64>) -> Option<f64> {
        (self.requests > 0).then(|| Some(cpu_seconds? * 1e6 / self.requests as f64))?
    }
}

/// Something to measure. A run gives a sample for each of the groups, in their order.
pub struct Variant<'a> {
    pub name: String,
    pub kind: Kind,
    /// The commands, for the report.
    pub how: String,
    /// Groups of samples: a size, a number of clients. One empty name if there is only one group.
    pub groups: Vec<String>,
    /// Runs it once. True asks for the contents to be checked too.
    pub run: Box<dyn FnMut(bool) -> Result<Vec<Sample>> + 'a>,
}

/// A variant's samples in one group.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    pub name: String,
    pub group: String,
    pub kind: Kind,
    pub how: String,
    /// One for each round; none where the run failed.
    pub samples: Vec<Option<Sample>>,
    pub not_run: Option<String>,
}

/// Runs each variant once without counting (and checks what arrives), then `rounds` times; fewer if those would take longer than `limit`.
pub fn measure(mut variants: Vec<Variant<'_>>, rounds: usize, limit: Duration, seed: u64) -> Vec<Row> {
    let begin = Instant::now();
    let mut rows: Vec<Vec<Row>> = variants.iter().map(empty_rows).collect();
    let mut seed = Seed::new(seed);
    for round in 0..=rounds {
        let one = begin.elapsed() / u32::try_from(round.max(1)).unwrap_or(u32::MAX);
        if round > 1 && begin.elapsed() + one > limit {
            break;
        }
        let mut order: Vec<usize> = (0..variants.len()).collect();
        seed.shuffle(&mut order);
        for index in order {
            if let (Some(variant), Some(rows)) = (variants.get_mut(index), rows.get_mut(index)) {
                run_once(variant, rows, round);
            }
        }
    }
    rows.into_iter().flatten().collect()
}

fn empty_rows(variant: &Variant<'_>) -> Vec<Row> {
    let row = |group: &String| Row {
        name: variant.name.clone(),
        group: group.clone(),
        kind: variant.kind,
        how: variant.how.clone(),
        samples: Vec::new(),
        not_run: None,
    };
    variant.groups.iter().map(row).collect()
}

fn run_once(variant: &mut Variant<'_>, rows: &mut [Row], round: usize) {
    if rows.iter().any(|row| row.not_run.is_some()) {
        return;
    }
    let begin = Instant::now();
    let outcome = (variant.run)(round == 0).and_then(|samples| {
        if samples.len() != rows.len() {
            bail!("{} samples for {} groups", samples.len(), rows.len());
        }
        Ok(samples)
    });
    let where_it_is = format!("{} {}", variant.name, variant.groups.join(" "));
    match &outcome {
        Ok(samples) => {
            let shown: Vec<String> = samples
                .iter()
                .map(|sample| match sample.per_second() {
                    Some(rate) => format!("{rate:.0}/s"),
                    None => format!("{:.3} ms", sample.seconds * 1e3),
                })
                .collect();
            eprintln!(
                "  round {round}: {where_it_is}: {} ({:.1} s in all)",
                shown.join(" "),
                begin.elapsed().as_secs_f64()
            );
        }
        Err(error) => eprintln!("  round {round}: {where_it_is}: {error:#}"),
    }
    for (index, row) in rows.iter_mut().enumerate() {
        match &outcome {
            Ok(samples) if round > 0 => row.samples.push(samples.get(index).copied()),
            Ok(_) => {}
            // What does not work once is not tried again; what works and then fails is counted as failed.
            Err(error) if round == 0 => row.not_run = Some(format!("{error:#}")),
            Err(_) => row.samples.push(None),
        }
    }
}

/// The middle of some numbers.
pub fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    let upper = *values.get(middle)?;
    if values.len() % 2 == 1 {
        return Some(upper);
    }
    Some((upper + values.get(middle - 1)?) / 2.0)
}

impl Row {
    /// A figure of every run that succeeded.
    pub fn each(&self, figure: impl Fn(&Sample) -> Option<f64>) -> Vec<f64> {
        self.samples.iter().flatten().filter_map(figure).collect()
    }

    /// The median of a figure.
    pub fn median_of(&self, figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        median(self.each(figure))
    }

    pub fn seconds(&self) -> Option<f64> {
        self.median_of(|sample| Some(sample.seconds))
    }

    /// The fastest and the slowest run.
    pub fn spread(&self) -> Option<(f64, f64)> {
        let mut seconds = self.each(|sample| Some(sample.seconds));
        seconds.sort_by(f64::total_cmp);
        Some((*seconds.first()?, *seconds.last()?))
    }

    /// Bytes a second, at the median time.
    pub fn rate(&self) -> Option<f64> {
        self.median_of(|sample| Some(sample.bytes as f64 / sample.seconds))
    }

    /// Requests a second.
    pub fn per_second(&self) -> Option<f64> {
        self.median_of(Sample::per_second)
    }

    /// The slowest and the fastest run, in requests a second.
    pub fn rates(&self) -> Option<(f64, f64)> {
        let mut rates = self.each(Sample::per_second);
        rates.sort_by(f64::total_cmp);
        Some((*rates.first()?, *rates.last()?))
    }

    /// Microseconds of the broker's CPU time for a request.
    pub fn broker_us(&self) -> Option<f64> {
        self.median_of(|sample| sample.per_request_us(sample.server_cpu_seconds))
    }

    /// The part of these that is the store's.
    pub fn stores_us(&self) -> Option<f64> {
        self.median_of(|sample| sample.per_request_us(sample.store_cpu_seconds))
    }

    /// Microseconds of the workers' CPU time for a request.
    pub fn workers_us(&self) -> Option<f64> {
        self.median_of(|sample| sample.per_request_us(sample.worker_cpu_seconds))
    }

    /// Microseconds of the clients' CPU time for a request.
    pub fn clients_us(&self) -> Option<f64> {
        self.median_of(|sample| sample.per_request_us(sample.receiver_cpu_seconds))
    }

    pub fn server_cpu(&self) -> Option<f64> {
        self.median_of(|sample| sample.server_cpu_seconds)
    }

    pub fn receiver_cpu(&self) -> Option<f64> {
        self.median_of(|sample| sample.receiver_cpu_seconds)
    }

    /// The most memory that the server had in any run.
    pub fn server_peak(&self) -> Option<f64> {
        self.each(|sample| sample.server_peak_bytes.map(|bytes| bytes as f64)).into_iter().reduce(f64::max)
    }

    /// Bytes that crossed loopback, both ways.
    pub fn wire_bytes(&self) -> Option<f64> {
        self.median_of(|sample| sample.wire_bytes.map(|bytes| bytes as f64))
    }

    /// Seconds of the server's CPU time that are its store's.
    pub fn store_cpu(&self) -> Option<f64> {
        self.median_of(|sample| sample.store_cpu_seconds)
    }

    /// Requests to a store for each piece of its objects.
    pub fn gets_per_piece(&self) -> Option<f64> {
        self.median_of(|sample| sample.gets_per_piece)
    }

    /// Rounds of the server's event loop that took over 2 ms.
    pub fn slow_rounds(&self) -> Option<f64> {
        self.median_of(|sample| sample.slow_rounds.map(|count| count as f64))
    }

    pub fn failures(&self) -> usize {
        self.samples.iter().filter(|sample| sample.is_none()).count()
    }

    /// How many times less of a figure this row has than a peer: the median over the rounds in which both ran.
    pub fn times_less(&self, peer: &Self, figure: impl Fn(&Sample) -> Option<f64>) -> Option<f64> {
        let ratios = self
            .samples
            .iter()
            .zip(&peer.samples)
            .filter_map(|(own, other)| Some(figure(other.as_ref()?)? / figure(own.as_ref()?)?))
            .filter(|ratio| ratio.is_finite())
            .collect();
        median(ratios)
    }

    /// How many times faster this row is than a peer.
    pub fn times_faster(&self, peer: &Self) -> Option<f64> {
        self.times_less(peer, |sample| Some(sample.pace()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seconds: &[Option<f64>]) -> Row {
        let sample = |seconds| Sample { seconds, ..Sample::default() };
        Row {
            name: String::new(),
            group: String::new(),
            kind: Kind::Peer,
            how: String::new(),
            samples: seconds.iter().map(|seconds| seconds.map(sample)).collect(),
            not_run: None,
        }
    }

    #[test]
    fn a_median_is_the_middle_or_between_the_two_in_the_middle() {
        assert_eq!(median(vec![]), None);
        assert_eq!(median(vec![3.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), Some(2.5));
    }

    #[test]
    fn ratios_are_taken_within_a_round_and_without_failed_runs() {
        // The machine became twice as slow in the second round: the ratio stays.
        let fast = row(&[Some(1.0), Some(2.0), None, Some(1.0)]);
        let slow = row(&[Some(3.0), Some(6.0), Some(100.0), None]);
        assert_eq!(fast.times_faster(&slow), Some(3.0));
        assert_eq!(fast.failures(), 1);
    }

    #[test]
    fn requests_are_compared_by_the_time_of_one() {
        let requests = |row: Row, requests| Row {
            samples: row.samples.into_iter().map(|sample| Some(Sample { requests, ..sample? })).collect(),
            ..row
        };
        let fast = requests(row(&[Some(1.0), Some(2.0)]), 1000);
        let slow = requests(row(&[Some(1.0), Some(1.0)]), 100);
        assert_eq!(fast.times_faster(&slow), Some(7.5));
        assert_eq!(fast.per_second(), Some(750.0));
        assert_eq!(fast.rates(), Some((500.0, 1000.0)));
    }

    #[test]
    fn a_variant_that_fails_at_first_is_not_run_again_and_says_why() {
        let mut runs = 0;
        let variant = Variant {
            name: "broken".to_owned(),
            kind: Kind::Peer,
            how: String::new(),
            groups: vec![String::new()],
            run: Box::new(|_| {
                runs += 1;
                bail!("missing")
            }),
        };
        let rows = measure(vec![variant], 3, Duration::MAX, 1);
        assert_eq!(rows.first().and_then(|row| row.not_run.as_deref()), Some("missing"));
        assert_eq!(runs, 1);
    }

    #[test]
    fn every_round_counts_but_the_first() {
        let mut checks = Vec::new();
        let variant = Variant {
            name: "works".to_owned(),
            kind: Kind::Ours,
            how: String::new(),
            groups: vec!["a".to_owned(), "b".to_owned()],
            run: Box::new(|check| {
                checks.push(check);
                Ok(vec![Sample::default(); 2])
            }),
        };
        let rows = measure(vec![variant], 3, Duration::MAX, 1);
        assert_eq!(rows.iter().map(|row| row.samples.len()).collect::<Vec<_>>(), [3, 3]);
        assert_eq!(checks, [true, false, false, false]);
    }

    #[test]
    fn no_round_begins_that_would_end_after_the_limit() {
        let variant = || Variant {
            name: "works".to_owned(),
            kind: Kind::Ours,
            how: String::new(),
            groups: vec!["a".to_owned()],
            run: Box::new(|_| Ok(vec![Sample::default()])),
        };
        // One is counted in any case.
        for (limit, rounds) in [(Duration::ZERO, 1), (Duration::from_secs(3600), 3)] {
            let rows = measure(vec![variant()], 3, limit, 1);
            assert_eq!(rows.first().map(|row| row.samples.len()), Some(rounds));
        }
    }
}
