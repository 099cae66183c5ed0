//! Plots as SVG: bars for one series, lines over groups. Plain enough to write by hand, and readable on a light or dark page.

use std::fmt::Write;

const WIDTH: f64 = 860.0;
const MARGIN: f64 = 24.0;
const TITLE_BASELINE: f64 = 34.0;
const FONT: &str = "font-family=\"system-ui, -apple-system, 'Segoe UI', 'DejaVu Sans', sans-serif\"";
const INK: &str = "#1c2733";
const FAINT_INK: &str = "#5d6b79";
const GRID: &str = "#e3e8ed";

/// A colour for our own, one for limits; peers get the rest in turn.
const OURS: [&str; 3] = ["#0b7a75", "#19a89f", "#7cc6b9"];
const LIMIT: [&str; 3] = ["#8a6d1f", "#c49a2a", "#dfc477"];
const PEERS: [&str; 6] = ["#4a5a8a", "#8a94b8", "#b5658a", "#d59bb5", "#7a7f87", "#b3b8be"];

/// Kind of a mark, which decides its colour.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    Ours,
    Peer,
    Limit,
}

impl Tone {
    /// The colour of the n-th of its tone.
    fn colour(self, n: usize) -> &'static str {
        let colours: &[&str] = match self {
            Self::Ours => &OURS,
            Self::Peer => &PEERS,
            Self::Limit => &LIMIT,
        };
        colours[n % colours.len()]
    }
}

/// A bar with the range of its runs.
pub struct Bar {
    pub label: String,
    pub tone: Tone,
    pub value: f64,
    pub range: (f64, f64),
    /// Written at the end of the bar.
    pub note: String,
}

/// Quantity that the bars show.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Measure {
    /// Less is better; the lengths can be compared.
    Time,
    /// Less is better; they lie so far apart that the scale is logarithmic.
    Pause,
    /// More is better, on the same scale.
    Rate,
}

/// Horizontal bars, the best first.
pub fn bars(title: &str, unit: &str, measure: Measure, mut list: Vec<Bar>) -> String {
    const ROW: f64 = 30.0;
    const TOP: f64 = 66.0;
    const CHARACTER: f64 = 6.7;
    list.sort_by(|a, b| a.value.total_cmp(&b.value));
    if measure == Measure::Rate {
        list.reverse();
    }
    let longest = list.iter().map(|bar| bar.label.chars().count()).max().unwrap_or(0) as f64;
    let left = MARGIN + longest * CHARACTER + 10.0;
    let right = WIDTH - 150.0;
    let height = TOP + ROW * list.len() as f64 + 30.0;
    let most = list.iter().map(|bar| bar.range.1.max(bar.value)).fold(0.0, f64::max);
    let ticks = match measure {
        Measure::Time => even_ticks(most),
        Measure::Pause | Measure::Rate => {
            powers_of_ten(list.iter().map(|bar| bar.range.0.min(bar.value)).fold(most, f64::min), most)
        }
    };
    let (first, last) = (ticks.first().copied().unwrap_or(0.0), ticks.last().copied().unwrap_or(1.0));
    let share = |value: f64| match measure {
        Measure::Time => value / last,
        Measure::Pause | Measure::Rate => (value / first).ln() / (last / first).ln(),
    };
    let x = |value: f64| left + (right - left) * share(value);
    let scale = if measure == Measure::Time { "" } else { " (logarithmic)" };
    let subtitle = format!("{unit}{scale}; bars are medians, whiskers the fastest and the slowest run");
    let mut svg = begin(height, title, &subtitle);
    let bottom = TOP + ROW * list.len() as f64;
    for value in ticks {
        line(&mut svg, (x(value), TOP - 6.0), (x(value), bottom), GRID, 1.0);
        text(&mut svg, (x(value), bottom + 16.0), "middle", 11.0, FAINT_INK, &number(value));
    }
    for (index, bar) in list.iter().enumerate() {
        let y = TOP + ROW * index as f64;
        let middle = y + ROW / 2.0 - 2.0;
        text(&mut svg, (left - 8.0, middle + 4.0), "end", 12.5, INK, &bar.label);
        let _ = writeln!(
            svg,
            r#"<rect x="{left:.1}" y="{:.1}" width="{:.1}" height="{:.1}" rx="3" fill="{}"/>"#,
            y + 4.0,
            (x(bar.value) - left).max(1.0),
            ROW - 12.0,
            bar.tone.colour(0)
        );
        let (least, most) = (x(bar.range.0), x(bar.range.1));
        line(&mut svg, (least, middle), (most, middle), INK, 1.2);
        for end in [least, most] {
            line(&mut svg, (end, middle - 4.0), (end, middle + 4.0), INK, 1.2);
        }
        text(&mut svg, (most.max(x(bar.value)) + 8.0, middle + 4.0), "start", 12.0, INK, &bar.note);
    }
    legend_of_tones(&mut svg, &list);
    svg.push_str("</svg>\n");
    svg
}

fn legend_of_tones(svg: &mut String, list: &[Bar]) {
    let mut x = WIDTH - MARGIN;
    for (tone, name) in [(Tone::Limit, "limit"), (Tone::Peer, "peers"), (Tone::Ours, "Towpath")] {
        if list.iter().any(|bar| bar.tone == tone) {
            text(svg, (x, TITLE_BASELINE - 2.0), "end", 12.0, INK, name);
            x -= name.len() as f64 * 7.2 + 16.0;
            let _ = writeln!(
                svg,
                r#"<rect x="{x:.1}" y="{:.1}" width="11" height="11" rx="2" fill="{}"/>"#,
                TITLE_BASELINE - 12.0,
                tone.colour(0)
            );
            x -= 14.0;
        }
    }
}

/// A line over the groups; none where it has no value.
pub struct Line {
    pub label: String,
    pub tone: Tone,
    pub values: Vec<Option<f64>>,
}

/// Lines over evenly spaced groups.
pub fn lines(title: &str, unit: &str, groups: &[String], list: &[Line], logarithmic: bool) -> String {
    const TOP: f64 = 72.0;
    const PLOT: f64 = 330.0;
    const LEGEND_ROW: f64 = 20.0;
    let (left, right) = (MARGIN + 52.0, WIDTH - MARGIN - 10.0);
    let legend_rows = list.len().div_ceil(2) as f64;
    let height = TOP + PLOT + 48.0 + legend_rows * LEGEND_ROW + 12.0;
    let values = || list.iter().flat_map(|line| line.values.iter().flatten().copied()).filter(|value| *value > 0.0);
    let most = values().fold(0.0, f64::max);
    let ticks = if logarithmic { log_ticks(values().fold(f64::MAX, f64::min), most) } else { even_ticks(most) };
    let (least, top) = (ticks.first().copied().unwrap_or(0.0), ticks.last().copied().unwrap_or(1.0));
    let share = |value: f64| {
        if logarithmic { (value / least).ln() / (top / least).ln() } else { value / top }
    };
    let y = |value: f64| TOP + PLOT - PLOT * share(value);
    let gap = (right - left) / groups.len().max(1) as f64;
    let x = |index: usize| left + gap * (index as f64 + 0.5);
    let scale = if logarithmic { "logarithmic" } else { "linear" };
    let mut svg = begin(height, title, &format!("{unit} ({scale})"));
    for &tick in &ticks {
        line(&mut svg, (left, y(tick)), (right, y(tick)), GRID, 1.0);
        text(&mut svg, (left - 8.0, y(tick) + 4.0), "end", 11.0, FAINT_INK, &number(tick));
    }
    for (index, group) in groups.iter().enumerate() {
        text(&mut svg, (x(index), TOP + PLOT + 20.0), "middle", 12.0, INK, group);
    }
    let mut of_tone = [0_usize; 3];
    for (index, entry) in list.iter().enumerate() {
        let nth = &mut of_tone[entry.tone as usize];
        let colour = entry.tone.colour(*nth);
        *nth += 1;
        let width = if entry.tone == Tone::Ours { 3.0 } else { 1.8 };
        let points: Vec<(f64, f64)> =
            entry.values.iter().enumerate().filter_map(|(index, value)| Some((x(index), y((*value)?)))).collect();
        let path: Vec<String> = points.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
        let _ = writeln!(
            svg,
            r#"<polyline points="{}" fill="none" stroke="{colour}" stroke-width="{width}" stroke-linejoin="round"/>"#,
            path.join(" ")
        );
        for (x, y) in points {
            let _ = writeln!(svg, r#"<circle cx="{x:.1}" cy="{y:.1}" r="{:.1}" fill="{colour}"/>"#, width + 1.2);
        }
        let column = left + (right - left) / 2.0 * (index % 2) as f64;
        let row = TOP + PLOT + 48.0 + LEGEND_ROW * (index / 2) as f64;
        line(&mut svg, (column, row - 4.0), (column + 22.0, row - 4.0), colour, width);
        text(&mut svg, (column + 30.0, row), "start", 12.0, INK, &entry.label);
    }
    svg.push_str("</svg>\n");
    svg
}

fn begin(height: f64, title: &str, subtitle: &str) -> String {
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" height=\"{height:.0}\" {FONT}>\n\
         <rect width=\"{WIDTH}\" height=\"{height:.0}\" rx=\"8\" fill=\"#ffffff\"/>\n"
    );
    let _ = writeln!(
        svg,
        r#"<text x="{MARGIN}" y="{TITLE_BASELINE}" font-size="17" font-weight="600" fill="{INK}">{}</text>"#,
        escape(title)
    );
    text(&mut svg, (MARGIN, TITLE_BASELINE + 18.0), "start", 12.0, FAINT_INK, subtitle);
    svg
}

fn line(svg: &mut String, from: (f64, f64), to: (f64, f64), colour: &str, width: f64) {
    let _ = writeln!(
        svg,
        r#"<line x1="{:.1}" y1="{:.1}" x2="{:.1}" y2="{:.1}" stroke="{colour}" stroke-width="{width}"/>"#,
        from.0, from.1, to.0, to.1
    );
}

fn text(svg: &mut String, at: (f64, f64), anchor: &str, size: f64, colour: &str, words: &str) {
    let _ = writeln!(
        svg,
        r#"<text x="{:.1}" y="{:.1}" text-anchor="{anchor}" font-size="{size}" fill="{colour}">{}</text>"#,
        at.0,
        at.1,
        escape(words)
    );
}

fn escape(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// A step of 1, 2 or 5 times a power of ten with four to eight of them up to a value, and where the last one is.
fn linear_ticks(most: f64) -> (f64, f64) {
    if most <= 0.0 {
        return (1.0, 1.0);
    }
    let power = 10_f64.powf((most / 5.0).log10().floor());
    let step = [1.0, 2.0, 5.0, 10.0]
        .into_iter()
        .map(|factor| factor * power)
        .find(|step| most / step <= 7.0)
        .unwrap_or(10.0 * power);
    (step, (most / step).ceil() * step)
}

fn even_ticks(most: f64) -> Vec<f64> {
    let (step, top) = linear_ticks(most);
    (0..=(top / step).round() as usize).map(|tick| step * tick as f64).collect()
}

/// Powers of ten around some values, with 2 and 5 between them where there are few.
fn log_ticks(least: f64, most: f64) -> Vec<f64> {
    if least > most {
        return vec![1.0, 10.0];
    }
    let candidates = (-9..15).flat_map(|power| [1.0, 2.0, 5.0].map(|factor| factor * 10_f64.powi(power)));
    let all: Vec<f64> = candidates.collect();
    let from = all.iter().rposition(|tick| *tick <= least).unwrap_or(0);
    let to = all.iter().position(|tick| *tick >= most).unwrap_or(all.len() - 1);
    all.get(from..=to.max(from + 1)).unwrap_or(&all).to_vec()
}

/// Powers of ten around some values.
fn powers_of_ten(least: f64, most: f64) -> Vec<f64> {
    if least <= 0.0 || least > most {
        return vec![1.0, 10.0];
    }
    let from = (least * 0.999).log10().floor() as i32;
    let to = (most.log10().ceil() as i32).max(from + 1);
    (from..=to).map(|power| 10_f64.powi(power)).collect()
}

/// A number without more digits than it needs.
fn number(value: f64) -> String {
    let text = if value >= 100.0 || value.fract() == 0.0 {
        format!("{value:.0}")
    } else {
        format!("{value:.3}").trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if value < 10_000.0 {
        return text;
    }
    let mut grouped = String::new();
    for (index, digit) in text.chars().enumerate() {
        if index > 0 && (text.len() - index) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_cover_the_values_and_are_few() {
        for most in [0.003, 0.9, 7.0, 12.0, 199.0, 6800.0] {
            let (step, top) = linear_ticks(most);
            assert!(top >= most && top / step <= 8.0, "{most}: {step} to {top}");
        }
        assert_eq!(powers_of_ten(7_200.0, 3e6), [1e3, 1e4, 1e5, 1e6, 1e7]);
        assert_eq!(powers_of_ten(100.0, 100.0), [10.0, 100.0]);
        assert_eq!(log_ticks(1.7, 58.0), [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0]);
    }

    #[test]
    fn numbers_have_the_digits_that_they_need() {
        assert_eq!(number(0.2), "0.2");
        assert_eq!(number(50.0), "50");
        assert_eq!(number(1_234_567.0), "1,234,567");
    }

    #[test]
    fn labels_cannot_break_the_markup() {
        let bar =
            Bar { label: "a<b & c".to_owned(), tone: Tone::Peer, value: 1.0, range: (1.0, 1.0), note: String::new() };
        assert!(bars("t", "u", Measure::Time, vec![bar]).contains("a&lt;b &amp; c"));
    }
}
