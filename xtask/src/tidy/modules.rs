//! Import rules between the top-level modules of a crate.

use std::collections::{BTreeMap, BTreeSet};

use super::Problem;
use super::paths::{Path, paths};
use super::source::{File, Tree};

const RULE: &str = "module-layers";

/// The modules of one crate.
struct Crate {
    folder: &'static str,
    /// Top-level modules by layer, bottom to top, layers parted by `|`. A module imports from lower layers only.
    layers: &'static str,
}

const CRATES: &[Crate] = &[
    Crate {
        folder: "crates/zmtp",
        layers: "crypto deviations random | keys | error frame limits liveness secret socket_type \
            | credentials seal metadata greeting | command inbox outbox | event mechanism | config | connection",
    },
    Crate {
        folder: "crates/sockets",
        layers: "message peer_id random waker | error event handle options unsent | disk net options_check | auth relay | peer | hub | on_tokio | socket",
    },
    Crate {
        folder: "crates/files",
        layers: "path counted | fields random | root | record_log | digest | limits | filter protocol | catalogue error | relay transfer | disk | client server",
    },
    Crate { folder: "crates/requests", layers: "limits | body | assembler numbered | message | majordomo" },
    Crate {
        folder: "crates/journal",
        layers: "block file_lock | storage | read | error | types | record | queue recover | segments | directory index \
            | compaction inspect replay shared_bodies | content writer | discard",
    },
    Crate { folder: "crates/cell", layers: "block | order | member | figures questions | nats" },
    Crate {
        folder: "crates/objects",
        layers: "url | error | profile | settings | store | request | list upload | bucket | version",
    },
    Crate { folder: "crates/client", layers: "connection | client worker | sans_io" },
    Crate { folder: "crates/broker", layers: "core | access store transport | stats | services | dispatch | server" },
    Crate { folder: "crates/tow", layers: "cli | runtime | admin | commands" },
];

pub fn check(tree: &Tree) -> Vec<Problem> {
    CRATES.iter().flat_map(|krate| problems(tree, krate)).collect()
}

fn problems(tree: &Tree, krate: &Crate) -> Vec<Problem> {
    let layer: BTreeMap<&str, usize> = krate
        .layers
        .split('|')
        .enumerate()
        .flat_map(|(layer, modules)| modules.split_whitespace().map(move |module| (module, layer)))
        .collect();
    let imports = imports(tree, krate.folder);
    let mut problems = Vec::new();
    for Import { file, line, from, to } in &imports {
        let mut report = |advice: String| problems.push(Problem::new(file, *line, RULE, advice));
        let (Some(own), Some(other)) = (layer.get(from.as_str()), layer.get(to.as_str())) else {
            let unknown = if layer.contains_key(from.as_str()) { to } else { from };
            report(format!("add module {unknown} to the layers of {} in xtask/src/tidy/modules.rs", krate.folder));
            continue;
        };
        if own > other {
            continue;
        }
        report(format!("{from} may not import from {to}, which isn't in a layer below its own"));
    }
    problems
}

/// An import of one top-level module by another.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Import {
    file: String,
    line: usize,
    from: String,
    to: String,
}

/// All imports between different top-level modules of a crate, names that the root re-exports resolved.
fn imports(tree: &Tree, folder: &str) -> Vec<Import> {
    let mut modules = BTreeSet::new();
    let mut exports = BTreeMap::new();
    for file in tree.product(folder) {
        let module = module_of(file, folder);
        match module.first() {
            Some(top) => _ = modules.insert(top.clone()),
            None => exports.extend(paths(&file.code()).into_iter().filter_map(export)),
        }
    }
    let mut imports = Vec::new();
    for file in tree.product(folder) {
        let module = module_of(file, folder);
        let Some(from) = module.first() else { continue };
        for path in paths(&file.code()) {
            let Some(name) = top_level_name(&path, module.len()) else { continue };
            let to = exports.get(name).map_or(name, String::as_str);
            if to != from && modules.contains(to) {
                imports.push(Import { file: file.path.clone(), line: path.line, from: from.clone(), to: to.into() });
            }
        }
    }
    imports
}

/// A file's module path; empty for the crate's root.
fn module_of(file: &File, folder: &str) -> Vec<String> {
    let path = file.path.trim_start_matches(folder).trim_start_matches("/src/").trim_end_matches(".rs");
    let mut segments: Vec<String> = path.split('/').map(str::to_owned).collect();
    if segments.last().is_some_and(|last| last == "mod") || ["lib", "main"].contains(&path) {
        segments.pop();
    }
    segments
}

/// The name and the module of what a path in the crate's root may re-export.
fn export(path: Path) -> Option<(String, String)> {
    let mut segments = path.segments.into_iter().skip_while(|segment| ["crate", "self"].contains(&segment.as_str()));
    let module = segments.next()?;
    Some((segments.last()?, module))
}

/// The name below the crate's root that a path in a module `depth` levels down begins with.
fn top_level_name(path: &Path, depth: usize) -> Option<&str> {
    let ups = path.segments.iter().take_while(|segment| *segment == "super").count();
    let name = if path.starts_with(&["crate"]) {
        path.segments.get(1)
    } else if ups == depth {
        path.segments.get(ups)
    } else {
        None
    };
    name.map(String::as_str)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(files: &[(&str, &str)]) -> Tree {
        Tree::new(files.iter().map(|(path, text)| (format!("c/src/{path}"), (*text).to_owned())))
    }

    fn krate(layers: &'static str) -> Crate {
        Crate { folder: "c", layers }
    }

    #[test]
    fn imports_point_down() {
        let tree = tree(&[("lib.rs", ""), ("a.rs", "use crate::b::X;"), ("b.rs", "")]);
        assert!(problems(&tree, &krate("b | a")).is_empty());
        assert_eq!(problems(&tree, &krate("a | b")).len(), 1);
        assert_eq!(problems(&tree, &krate("a b")).len(), 1);
    }

    #[test]
    fn supers_and_exported_names_are_resolved() {
        let tree = tree(&[
            ("lib.rs", "mod a; mod b; pub use b::Thing; pub use crate::d::{Other, x::Deep};"),
            ("a.rs", "use crate::Thing; fn f() -> super::Other {}"),
            ("a/x.rs", "use super::y; use super::super::c; type T = crate::Deep;"),
            ("b.rs", "#[cfg(test)] mod tests { use crate::a; }"),
            ("c/mod.rs", "use super::b;"),
            ("d.rs", ""),
        ]);
        let pairs: BTreeSet<_> = imports(&tree, "c").into_iter().map(|i| format!("{} {}", i.from, i.to)).collect();
        assert_eq!(pairs.into_iter().collect::<Vec<_>>(), ["a b", "a c", "a d", "c b"]);
    }

    #[test]
    fn modules_that_are_not_in_the_table_are_reported() {
        let tree = tree(&[("lib.rs", ""), ("a.rs", "use crate::b::X;"), ("b.rs", "")]);
        assert_eq!(problems(&tree, &krate("a")).len(), 1);
    }
}
