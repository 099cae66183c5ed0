//! The values of figures at one moment, and their renderings.

use super::{About, Figure, Kind, Values, Zero};
use serde_json::{Value, json};
use std::time::Duration;

/// A value of a figure.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Number {
    Whole(u64),
    Fraction(f64),
    Flag(bool),
    /// Not known: null in JSON, and no metric.
    Unknown,
}

/// Labels of a sample.
pub type Labels = Vec<(&'static str, String)>;

/// A value of a figure, with its labels.
#[derive(Debug)]
pub struct Sample {
    pub about: &'static About,
    pub labels: Labels,
    pub value: Number,
    member: &'static str,
}

/// The figures of a server at one moment.
#[derive(Debug, Default)]
pub struct Snapshot {
    pub samples: Vec<Sample>,
}

impl Snapshot {
    /// Adds the figures of a table.
    pub fn add<S>(&mut self, table: &'static [Figure<S>], of: &S) {
        self.add_labelled(table, &[], of);
    }

    /// Adds the figures of a table for one of several things.
    pub fn add_labelled<S>(&mut self, table: &'static [Figure<S>], labels: &[(&'static str, &str)], of: &S) {
        let labels: Labels = labels.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
        for Figure { about, values } in table {
            let mut push = |own: Option<&str>, member, read: fn(&S) -> Number| {
                let own = own.map(|value| (about.label, value.to_owned()));
                let labels = labels.iter().cloned().chain(own).collect();
                self.samples.push(Sample { about, labels, value: read(of), member });
            };
            match values {
                Values::One(member, read) => push(None, member, *read),
                Values::By(values) => values.iter().for_each(|(value, member, read)| push(Some(value), member, *read)),
            }
        }
    }

    /// Figures that have a member in JSON; a dot in its name stands for a nested object.
    pub fn json(&self) -> Value {
        let mut object = json!({});
        for Sample { member, value, .. } in &self.samples {
            if !member.is_empty() {
                *member.split('.').fold(&mut object, |object, name| &mut object[name]) = value.json();
            }
        }
        object
    }

    /// Figures that should be zero, with sums over all labels.
    pub fn should_be_zero(&self) -> Value {
        let mut found: Vec<(&About, &Zero, u64)> = Vec::new();
        for Sample { about, labels, value, .. } in &self.samples {
            let Some(zero) = about.zero.as_ref() else { continue };
            if !zero.of.is_empty() && labels.last().is_none_or(|(_, value)| value != zero.of) {
                continue;
            }
            match found.iter_mut().find(|(known, ..)| std::ptr::eq(*known, *about)) {
                Some((.., sum)) => *sum += value.whole(),
                None => found.push((about, zero, value.whole())),
            }
        }
        let listed = |(about, zero, value): (&About, &Zero, u64)| {
            json!({
                "name": about.name,
                "title": zero.title,
                "about": zero.about,
                "now": about.kind == Kind::Gauge,
                "value": value,
            })
        };
        found.into_iter().map(listed).collect()
    }
}

/// The members that a table has, of one thing.
pub fn json<S>(table: &'static [Figure<S>], of: &S) -> Value {
    let mut snapshot = Snapshot::default();
    snapshot.add(table, of);
    snapshot.json()
}

impl Number {
    fn json(self) -> Value {
        match self {
            Number::Whole(value) => value.into(),
            // To the microsecond.
            Number::Fraction(value) => ((value * 1e6).round() / 1e6).into(),
            Number::Flag(value) => value.into(),
            Number::Unknown => Value::Null,
        }
    }

    /// Without what is beyond the point.
    pub fn whole(self) -> u64 {
        match self {
            Number::Whole(value) => value,
            Number::Fraction(value) => value as u64,
            Number::Flag(value) => u64::from(value),
            Number::Unknown => 0,
        }
    }
}

macro_rules! numbers {
    ($($from:ty: $value:ident => $number:expr;)*) => {
        $(impl From<$from> for Number {
            fn from($value: $from) -> Number {
                $number
            }
        })*
    };
}

numbers! {
    u64: value => Number::Whole(value);
    usize: value => Number::Whole(value as u64);
    f64: value => Number::Fraction(value);
    bool: value => Number::Flag(value);
    Duration: value => Number::Fraction(value.as_secs_f64());
}

impl<T: Into<Number>> From<Option<T>> for Number {
    fn from(value: Option<T>) -> Number {
        value.map_or(Number::Unknown, Into::into)
    }
}
