//! Trees of small files to disk.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use super::{Bound, Content, Layout, Plan, Rows, Target, size_text, variant};
use crate::Bench;
use crate::folder::{fill_cache, keep, write_random};
use crate::process::run;
use crate::receivers;
use crate::seed::Seed;
use crate::series::{Kind, Variant};
use crate::servers;
use crate::transfer::Transfer;

const FOLDERS: u64 = 100;
const FILES: u64 = 10_000;
const FILE_BYTES: u64 = 4096;

const RSYNC: &str = "rsync daemon, -a";
const RSYNC_NO_DELAY: &str = "rsync daemon, -a, TCP_NODELAY";
const TAR: &str = "tar over a socket";
const OURS: &str = "tow get, verified";

/// A tree to copy.
#[derive(Clone, Copy)]
pub(super) struct Tree {
    /// Its folder in the bench's folder.
    name: &'static str,
    pub path: &'static Path,
    pub files: u64,
    pub bytes: u64,
}

pub fn plan(bench: &Bench) -> Result<Plan<'_>> {
    let trees = [small_files(bench)?, sources(bench)?];
    let mut variants = Vec::new();
    for tree in trees {
        variants.extend(of_tree(bench, tree)?);
    }
    Ok(Plan { content: content(&trees), variants, targets })
}

fn of_tree(bench: &Bench, tree: Tree) -> Result<Vec<Variant<'_>>> {
    let programs = &bench.programs;
    let root = bench.folder.path();
    let to = keep(bench.folder.empty_destination()?);
    let Tree { name, path, bytes, .. } = tree;
    let mut variants = Vec::new();
    for (row, options) in [(OURS, &[][..]), ("tow get --no-verify", &["--no-verify"])] {
        let transfer = Transfer::new(
            bench,
            bytes,
            move || servers::tow(programs, path),
            move |port| receivers::tow(programs, port, "", Some(to), options),
        );
        variants.push(variant(Kind::Ours, row, name, transfer.to(to, path)));
    }
    for (row, no_delay, options) in
        [(RSYNC, false, &["-a"][..]), (RSYNC_NO_DELAY, true, &["-a", "--sockopts=TCP_NODELAY"])]
    {
        let transfer = Transfer::new(
            bench,
            bytes,
            move || servers::rsync(programs, root, root, no_delay),
            move |port| receivers::rsync(programs, port, &format!("{name}/"), to, options),
        );
        variants.push(variant(Kind::Peer, row, name, transfer.to(to, path)));
    }
    for (row, option) in [("cp -r", "-r"), ("cp -a", "-a")] {
        let transfer = Transfer::local(bench, bytes, move || {
            let mut command = programs.command("cp")?;
            command.arg(option).args([path, to]);
            Ok(command)
        });
        variants.push(variant(Kind::Peer, row, name, transfer.to(to, path)));
    }
    let tar = Transfer::new(
        bench,
        bytes,
        move || servers::tar(programs, path),
        move |port| receivers::tar(programs, port, to),
    );
    variants.push(variant(Kind::Peer, TAR, name, tar.to(to, path).into_made_folder()));
    Ok(variants)
}

pub(super) fn small_files(bench: &Bench) -> Result<Tree> {
    let path = bench.folder.join("small");
    let mut seed = Seed::new(FILES);
    let in_folder = if bench.quick { 10 } else { FILES / FOLDERS };
    for folder in 0..FOLDERS {
        let folder = path.join(format!("{folder:02}"));
        fs::create_dir_all(&folder)?;
        for file in 0..in_folder {
            write_random(&folder.join(format!("{file:03}.bin")), FILE_BYTES, &mut seed)?;
        }
    }
    tree(bench, "small", path)
}

/// Real files of all sizes: the sources of this workspace's dependencies, as cargo has unpacked them.
fn sources(bench: &Bench) -> Result<Tree> {
    let home = env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(PathBuf::from(env::var_os("HOME")?).join(".cargo"))).context("no home folder")?;
    let registries = home.join("registry/src");
    let registry = fs::read_dir(&registries)?.next().context("cargo has unpacked no sources")??.path();
    let path = bench.folder.join("sources");
    if bench.quick {
        let crates: Vec<_> = fs::read_dir(&registry)?.take(5).collect::<Result<_, _>>()?;
        fs::create_dir_all(&path)?;
        for folder in crates {
            copy_tree(bench, &folder.path(), &path.join(folder.file_name()))?;
        }
    } else {
        copy_tree(bench, &registry, &path)?;
    }
    tree(bench, "sources", path)
}

fn copy_tree(bench: &Bench, from: &Path, to: &Path) -> Result<()> {
    if to.exists() {
        return Ok(());
    }
    let mut command = bench.programs.command("cp")?;
    command.arg("-r").args([from, to]);
    run(command, bench.folder.path()).map(|_| ())
}

fn tree(bench: &Bench, name: &'static str, path: PathBuf) -> Result<Tree> {
    bench.folder.flush()?;
    fill_cache(&path)?;
    let path = keep(path);
    let (files, bytes) = count(path)?;
    if files == 0 {
        bail!("no files in {}", path.display());
    }
    Ok(Tree { name, path, files, bytes })
}

/// Files below a folder, and their bytes.
fn count(folder: &Path) -> Result<(u64, u64)> {
    let mut total = (0, 0);
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let facts = entry.metadata()?;
        let (files, bytes) = if facts.is_dir() { count(&entry.path())? } else { (1, facts.len()) };
        total = (total.0 + files, total.1 + bytes);
    }
    Ok(total)
}

fn content(trees: &[Tree]) -> Content {
    let described: Vec<String> = trees
        .iter()
        .map(|tree| format!("`{}`: {} files, {} MB", tree.name, tree.files, tree.bytes.div_ceil(1_000_000)))
        .collect();
    Content {
        title: "Trees of small files".to_owned(),
        about: format!(
            "Whole trees from the page cache to the same disk. {}. The first has files of {} in {FOLDERS} folders, the second the \
             sources of this workspace's dependencies.",
            described.join("; "),
            size_text(FILE_BYTES),
        ),
        peer: RSYNC.to_owned(),
        layout: Layout::Full,
    }
}

fn targets(rows: &Rows<'_>) -> Vec<Target> {
    let faster = |tree: &str, (peer, least)| {
        let text = format!("{tree}: verified, times faster than {peer}");
        rows.compared(&text, Bound::AtLeast(least), (OURS, peer, tree), |row, peer| row.times_faster(peer))
    };
    let peers = [(RSYNC, 2.0), (RSYNC_NO_DELAY, 2.0), (TAR, 1.0)];
    ["small", "sources"].into_iter().flat_map(|tree| peers.map(|peer| faster(tree, peer))).collect()
}
