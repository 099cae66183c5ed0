use super::*;
use crate::admin::problems::ALL;
use std::path::Path;

/// A row of the documentation: what the metric's whole name is, its labels, its unit, its help, and which servers have it.
type Row = [String; 5];

/// The rows of a table, whose things have this label of their own.
fn rows<S>(table: &'static [Figure<S>], own_label: &str, of: &str) -> Vec<Row> {
    let row = |Figure { about, values }: &Figure<S>| {
        let name = format!("`{}{}`", about.name, if about.kind == Kind::Counter { "_total" } else { "" });
        let mut labels: Vec<_> = (!own_label.is_empty()).then(|| format!("`{own_label}`")).into_iter().collect();
        if let Values::By(values) = values {
            let values: Vec<_> = values.iter().map(|(value, ..)| format!("`{value}`")).collect();
            labels.push(format!("`{}`: {}", about.label, values.join(", ")));
        }
        [name, labels.join("; "), about.unit.to_string(), about.help.to_owned(), of.to_owned()]
    };
    table.iter().map(row).collect()
}

fn all() -> Vec<Row> {
    let build = ["`build_info`", "`version`, `program`", "", "The program", "both"].map(str::to_owned);
    let tables = [
        vec![build],
        rows(SERVER, "", "both"),
        rows(PROBLEMS, "", "both"),
        rows(HUB, "", "both"),
        rows(FILES, "", "`serve`"),
        rows(POOL, "pool", "`serve`"),
        rows(QUOTA, "quota", "`serve`"),
        rows(CATALOGUE, "", "`serve --watch`"),
        rows(WATCH, "", "`serve --watch`"),
        rows(CACHE, "", "`serve --cache`"),
        rows(BROKER, "", "`broker`"),
        rows(QUEUES, "", "`broker`"),
        rows(JOURNAL, "", "`broker --journal`"),
        rows(RELAY, "", "`broker --queue`"),
        rows(CELL, "", "`broker --queue`"),
        rows(MEMBER, "member", "`broker --queue`"),
        rows(SERVICE, "service", "`broker`, with `?per=service`"),
    ];
    tables.concat()
}

fn line(row: &Row) -> String {
    let cell = |cell: &String| if cell.is_empty() { " |".to_owned() } else { format!(" {cell} |") };
    "|".to_owned() + &row.each_ref().map(cell).concat()
}

fn members<S>(table: &'static [Figure<S>]) -> impl Iterator<Item = &'static str> {
    table.iter().flat_map(|Figure { values, .. }| match values {
        Values::One(member, _) => vec![*member],
        Values::By(values) => values.iter().map(|(_, member, _)| *member).collect(),
    })
}

/// Metrics that should be zero, with the label's value if it is about one.
fn zeros<S>(table: &'static [Figure<S>]) -> impl Iterator<Item = String> {
    table.iter().filter_map(|Figure { about, .. }| {
        let total = if about.kind == Kind::Counter { "_total" } else { "" };
        about.zero.as_ref().map(|Zero { of, .. }| match of {
            &"" => format!("`towpath_{}{total}`", about.name),
            of => format!("`towpath_{}{total}{{{}=\"{of}\"}}`", about.name, about.label),
        })
    })
}

fn document(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs").join(path)).unwrap()
}

#[test]
fn the_documentation_has_each_metric_and_no_other() {
    let text = document("protocol/admin.md");
    let (_, table) = text.split_once("| metric | labels | unit | help | of |\n|---|---|---|---|---|\n").unwrap();
    let documented: Vec<_> = table.lines().take_while(|line| line.starts_with('|')).collect();
    let expected: Vec<_> = all().iter().map(line).collect();
    assert_eq!(documented, expected, "docs/protocol/admin.md should have these rows:\n{}", expected.join("\n"));
}

#[test]
fn the_documentation_has_each_member_of_the_status() {
    let text = document("protocol/admin.md");
    let of_files = members(FILES)
        .chain(members(CATALOGUE))
        .chain(members(WATCH))
        .chain(members(CACHE))
        .chain(members(POOL))
        .chain(members(QUOTA));
    let others =
        members(SERVER).chain(members(HUB)).chain(members(BROKER)).chain(members(JOURNAL)).chain(members(RELAY));
    for member in of_files.chain(others).filter(|member| !member.is_empty() && !member.starts_with("counters.")) {
        let name = member.rsplit('.').next().unwrap();
        assert!(text.contains(&format!("`{name}`")), "docs/protocol/admin.md doesn't have the member {member}");
    }
}

#[test]
fn the_guide_has_each_metric_that_should_be_zero_and_no_other() {
    let text = document("guide/operating.md");
    let (_, list) = text.split_once("These metrics should stay 0:").unwrap();
    let (list, _) = list.split_once(".\n").unwrap();
    let documented: Vec<_> = list.split(',').map(str::trim).collect();
    let of_files = zeros(HUB).chain(zeros(FILES)).chain(zeros(POOL)).chain(zeros(WATCH)).chain(zeros(CACHE));
    let expected: Vec<_> = of_files.chain(zeros(BROKER)).chain(zeros(JOURNAL)).collect();
    assert_eq!(documented, expected, "docs/guide/operating.md should have these:\n{}", expected.join(", "));
}

#[test]
fn problems_of_every_kind_have_a_metric() {
    let Values::By(values) = &PROBLEMS[0].values else { panic!("problems have kinds") };
    assert!(values.iter().map(|(name, ..)| *name).eq(ALL.iter().map(|kind| kind.about().name)));
    for (kind, (name, _, read)) in ALL.iter().zip(*values) {
        assert_eq!(read(&Problems::only(*kind)), Number::Whole(1), "{name}");
    }
}

#[test]
fn names_have_their_units() {
    for [name, _, unit, help, _] in all() {
        for known in ["bytes", "seconds"] {
            assert_eq!(name.contains(known), unit == known, "{name}: {unit}");
        }
        assert!(!help.ends_with('.') && !help.contains(['|', '\\', '\n']), "{name}: {help}");
    }
}

#[test]
fn what_should_be_zero_is_summed_over_all_things() {
    let mut snapshot = Snapshot::default();
    let limits = towpath_blocking::PoolLimits { name: "test", threads_max: 1, hung_max: 1, per_group_max: 1 };
    let mut load = towpath_blocking::BlockingPool::new(limits).load();
    for (pool, hung) in [("a", 1), ("b", 2)] {
        load.hung = hung;
        snapshot.add_labelled(POOL, &[("pool", pool)], &load);
    }
    let zeros = snapshot.should_be_zero();
    assert_eq!(zeros.as_array().map(Vec::len), Some(1));
    assert_eq!(
        (&zeros[0]["name"], &zeros[0]["value"], &zeros[0]["now"]),
        (&"pool_threads_hung".into(), &3.into(), &true.into())
    );
}
