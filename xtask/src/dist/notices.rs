//! The licences of all crates that are linked into `tow`, as their packages have them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::Value;

use super::output;
use super::pack::{files_in, read};
use crate::cargo;
use crate::steps::{FEATURES, locked};

/// How the names of files with licences and notices begin, in lower case.
const NAMES: [&str; 5] = ["license", "licence", "copying", "notice", "unlicense"];

/// Each text once, below the crates that have it.
pub fn notices() -> Result<String, String> {
    let mut tree = cargo();
    tree.args(["tree", "--package", "towpath", "--features", FEATURES, "--edges", "normal"]);
    tree.args(["--prefix", "none", "--format", "{p}"]);
    let tree = output(tree.args(locked()))?;
    // "name v1.2.3", and more for the workspace's own crates and those that build code.
    let name = |line: &str| line.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let linked: BTreeSet<String> = tree.lines().map(name).collect();
    let metadata = output(cargo().args(["metadata", "--format-version", "1"]).args(locked()))?;
    let metadata: Value = serde_json::from_str(&metadata).map_err(|error| format!("cargo metadata: {error}"))?;

    let mut crates_by_text: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for package in metadata["packages"].as_array().into_iter().flatten() {
        let text = |member: &str| package[member].as_str().unwrap_or_default();
        let name = format!("{} v{}", text("name"), text("version"));
        // The workspace's own have the licence beside this file.
        if !linked.contains(&name) || package["source"].is_null() {
            continue;
        }
        let texts = licences(Path::new(text("manifest_path")))?;
        if texts.is_empty() {
            return Err(format!("{name} ({}) has no file with its licence", text("license")));
        }
        for licence in texts {
            crates_by_text.entry(licence).or_default().push(format!("{name} ({})", text("license")));
        }
    }
    let mut sections: Vec<_> = crates_by_text.into_iter().map(|(text, crates)| (crates.join(", "), text)).collect();
    sections.sort();
    let sections = sections.into_iter().map(|(crates, text)| format!("{crates}:\n\n{text}\n"));
    let rule = format!("\n{}\n\n", "-".repeat(80));
    Ok(format!("Licences of the crates that tow is built from\n{rule}{}", sections.collect::<Vec<_>>().join(&rule)))
}

/// The texts beside a crate's manifest, without the spaces around them.
fn licences(manifest: &Path) -> Result<BTreeSet<String>, String> {
    let is_licence = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().to_lowercase();
        path.is_file() && NAMES.iter().any(|beginning| name.starts_with(beginning))
    };
    let files = files_in(manifest.parent().unwrap_or(manifest))?;
    let texts = files.iter().filter(|path| is_licence(path)).map(|path| read(path));
    texts.map(|text| text.map(|text| text.replace('\r', "").trim().to_owned())).collect()
}
