//! Import rules between crates, from what their manifests say.

use std::collections::BTreeMap;

use serde_json::Value;

use super::Problem;
use crate::cargo;

const RULE: &str = "crate-layers";

/// Crates by layer, bottom to top. A crate depends on crates of lower layers only.
const LAYERS: &[&[&str]] = &[
    &[
        "towpath-buffers",
        "towpath-cache",
        "towpath-lease",
        "towpath-outq",
        "towpath-quota",
        "towpath-tcpinfo",
        "towpath-zmtp",
    ],
    &["towpath-blocking", "towpath-objects", "towpath-rules"],
    &["towpath-sockets"],
    &["towpath-files", "towpath-requests"],
    &["towpath-spool"],
    &["towpath-client", "towpath-journal"],
    &["towpath-cell"],
    &["towpath-broker"],
    &["towpath"],
];

/// Pairs that do not know each other though their layers would allow it.
const APART: &[(&str, &str)] = &[
    ("towpath-journal", "towpath-files"),
    ("towpath-spool", "towpath-files"),
    ("towpath-cell", "towpath-files"),
    ("towpath-cell", "towpath-client"),
    ("towpath-client", "towpath-files"),
    ("towpath-broker", "towpath-files"),
    ("towpath-broker", "towpath-client"),
];

/// Crates for tests, benchmarks and development: on top of everything, and below nothing but tests.
const TOOLS: &[&str] = &["towpath-slow-disk", "towpath-far-link", "bench", "xtask"];

/// A crate of the workspace with the workspace's crates that it depends on.
struct Package {
    name: String,
    manifest: String,
    /// Names, and whether it's for tests alone.
    dependencies: Vec<(String, bool)>,
}

pub fn check() -> Result<Vec<Problem>, String> {
    let packages = packages()?;
    Ok(problems(&packages))
}

/// Asks cargo for the workspace's crates.
fn packages() -> Result<Vec<Package>, String> {
    let output = cargo().args(["metadata", "--format-version", "1", "--no-deps", "--offline"]).output();
    let output = output.map_err(|error| format!("cannot run cargo metadata: {error}"))?;
    let metadata: Value =
        serde_json::from_slice(&output.stdout).map_err(|error| format!("cannot read cargo metadata: {error}"))?;
    let root = format!("{}/", metadata["workspace_root"].as_str().unwrap_or_default());
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    let package = |package: &Value| Package {
        name: text(&package["name"]),
        manifest: text(&package["manifest_path"]).trim_start_matches(&root).to_owned(),
        dependencies: list(&package["dependencies"])
            .iter()
            .filter(|dependency| dependency["path"].is_string())
            .map(|dependency| (text(&dependency["name"]), dependency["kind"] == "dev"))
            .collect(),
    };
    Ok(list(&metadata["packages"]).iter().map(package).collect())
}

fn problems(packages: &[Package]) -> Vec<Problem> {
    let layer: BTreeMap<&str, usize> =
        LAYERS.iter().enumerate().flat_map(|(layer, names)| names.iter().map(move |name| (*name, layer))).collect();
    let mut problems = Vec::new();
    for package in packages {
        let name = package.name.as_str();
        let mut report = |advice: String| problems.push(Problem::new(&package.manifest, 0, RULE, advice));
        let Some(own) = layer.get(name) else {
            if !TOOLS.contains(&name) {
                report(format!("add {name} to LAYERS or TOOLS in xtask/src/tidy/layers.rs"));
            }
            continue;
        };
        for (dependency, for_tests) in &package.dependencies {
            let dependency = dependency.as_str();
            // Tests run both sides of a protocol.
            if *for_tests {
                continue;
            }
            if layer.get(dependency).is_none_or(|below| below >= own) {
                report(format!("{name} may not depend on {dependency}, which isn't in a layer below its own"));
            }
            if APART.contains(&(name, dependency)) {
                report(format!("{name} and {dependency} do not know each other; move what both need below them"));
            }
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn advice(name: &str, dependency: &str, for_tests: bool) -> Vec<String> {
        let package =
            Package { name: name.into(), manifest: String::new(), dependencies: vec![(dependency.into(), for_tests)] };
        problems(&[package]).into_iter().map(|problem| problem.advice).collect()
    }

    #[test]
    fn dependencies_point_down() {
        assert!(advice("towpath", "towpath-files", false).is_empty());
        assert_eq!(advice("towpath-zmtp", "towpath-sockets", false).len(), 1);
        assert_eq!(advice("towpath-broker", "towpath-files", false).len(), 1);
        assert_eq!(advice("towpath-broker", "towpath-journal", false).len(), 0);
    }

    #[test]
    fn tools_are_for_tests_alone() {
        assert!(advice("towpath", "towpath-slow-disk", true).is_empty());
        assert_eq!(advice("towpath", "towpath-slow-disk", false).len(), 1);
        assert!(advice("bench", "towpath", false).is_empty());
    }

    #[test]
    fn crates_that_are_not_in_the_table_are_reported() {
        assert_eq!(advice("new", "towpath", false).len(), 1);
    }
}
