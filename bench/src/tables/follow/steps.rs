//! The steps that are measured with a system.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Scale;
use super::connections::Connections;
use super::systems::{System, resident, used};
use super::world::{World, are_files, is_file};
use crate::Bench;
use crate::folder::compare;
use crate::process::run;
use crate::series::Sample;

const SMALL_BYTES: u64 = 4096;
/// Of the files of which there are many.
const TINY_BYTES: u64 = 128;

/// Steps with a small file, many small ones, and a large one, whose place is returned too.
fn new_files(world: &mut World, files: usize, size: u64) -> Result<(Vec<Sample>, PathBuf)> {
    let mut samples = Vec::new();
    let small = world.staged_file(SMALL_BYTES)?;
    samples.push(world.moved(&small, "small", SMALL_BYTES, &|at| Ok(is_file(&at.join("small"), SMALL_BYTES)))?);
    let tree = world.staged_files(files, SMALL_BYTES)?;
    let bytes = SMALL_BYTES * files as u64;
    samples.push(world.moved(&tree, "files", bytes, &|at| are_files(&at.join("files"), files))?);
    let large = world.staged_file(size)?;
    samples.push(world.moved(&large, "large", size, &|at| Ok(is_file(&at.join("large"), size)))?);
    Ok((samples, large))
}

/// One subscriber.
pub fn one(bench: &Bench, system: System, check: bool) -> Result<Vec<Sample>> {
    let (files, size) = (Scale::of(bench).files, bench.size);
    let mut world = World::new(bench, system, 1)?;
    world.begin()?;
    let (mut samples, large) = new_files(&mut world, files, size)?;
    let (changed, flipped) = with_two_bytes_changed(bench, &world.places.source.join("large"), &large, size)?;
    samples.push(world.moved(&changed, "large", size, &|at| has_bytes(&at.join("large"), &flipped))?);
    let from = world.places.source.join("large");
    samples.push(world.moved(&from, "renamed", size, &|at| Ok(is_file(&at.join("renamed"), size)))?);
    if check {
        check_all(&world)?;
    }
    Ok(samples)
}

/// Several subscribers.
pub fn several(bench: &Bench, system: System, check: bool) -> Result<Vec<Sample>> {
    let Scale { subscribers, files, .. } = Scale::of(bench);
    let size = bench.size / 8;
    let mut world = World::new(bench, system, subscribers)?;
    world.begin()?;
    let (samples, _) = new_files(&mut world, files, size)?;
    if check {
        check_all(&world)?;
    }
    Ok(samples)
}

/// A directory of many files, one subscriber.
pub fn many(bench: &Bench, system: System, check: bool) -> Result<Vec<Sample>> {
    let Scale { many, idle_seconds, .. } = Scale::of(bench);
    let mut world = many_files(bench, system, 1)?;
    for destination in &world.places.destinations {
        let mut copy = bench.programs.command("cp")?;
        copy.arg("-a").args([&world.places.source, destination]);
        run(copy, bench.folder.path())?;
    }
    // Known from now on, where a system knows anything.
    world.begin()?;
    world.stop();
    let mut samples = Vec::new();
    fs::write(world.places.source.join("meanwhile"), b"later")?;
    samples.push(world.measure(5, World::start, &|at| Ok(is_file(&at.join("meanwhile"), 5)))?);
    // It may still be busy with its start.
    thread::sleep(Duration::from_secs(idle_seconds));
    let idle = Duration::from_secs(idle_seconds);
    let nothing = world.measure(
        0,
        |_| {
            thread::sleep(idle);
            Ok(())
        },
        &|_| Ok(true),
    )?;
    samples.push(nothing);
    world.processes.freeze_source(true);
    let created = world.places.source.join("created");
    world.make_files(&created, many, TINY_BYTES)?;
    let go_on = |world: &mut World<'_>| {
        world.processes.freeze_source(false);
        Ok(())
    };
    samples.push(world.measure(TINY_BYTES * many as u64, go_on, &|at| are_files(&at.join("created"), many))?);
    if check {
        check_all(&world)?;
    }
    Ok(samples)
}

/// Connections that take what comes, and drop it.
pub fn connections(bench: &Bench, system: System, _check: bool) -> Result<Vec<Sample>> {
    let count = Scale::of(bench).connections;
    let mut world = many_files(bench, system, 0)?;
    world.start()?;
    let port = world.processes.port;
    // The first one is up to date when the directory has been read.
    let mut connections = vec![Connections::open(port, 1)?];
    let mut rest = Vec::new();
    let mut open = 1;
    for count in [1, 100.min(count), count] {
        let begin = Instant::now();
        connections.push(Connections::open(port, count - open)?);
        let seconds = begin.elapsed().as_secs_f64();
        open = count;
        let memory = resident(&world.processes.source);
        rest.push(Sample { seconds, server_peak_bytes: Some(memory), ..Sample::default() });
    }
    let small = world.staged_file(SMALL_BYTES)?;
    let before = used(&world.processes.source);
    let begin = Instant::now();
    fs::rename(&small, world.places.source.join("small")).context("mv")?;
    connections.iter_mut().try_for_each(|connections| connections.await_file("small", SMALL_BYTES))?;
    let (seconds, after) = (begin.elapsed().as_secs_f64(), used(&world.processes.source));
    let arrived = Sample {
        seconds,
        bytes: SMALL_BYTES * count as u64,
        server_cpu_seconds: Some(after.cpu_seconds - before.cpu_seconds),
        server_peak_bytes: Some(after.peak_bytes),
        ..Sample::default()
    };
    Ok([vec![arrived], rest].concat())
}

/// A directory of many files, which nobody knows yet.
fn many_files(bench: &Bench, system: System, subscribers: usize) -> Result<World<'_>> {
    let many = Scale::of(bench).many;
    let mut world = World::new(bench, system, subscribers)?;
    let files = world.places.source.join("files");
    world.make_files(&files, many, TINY_BYTES)?;
    bench.folder.flush()?;
    Ok(world)
}

/// Bytes of a file, by offset.
type Flipped = [(u64, u8); 2];

/// A copy with two other bytes.
fn with_two_bytes_changed(
    bench: &Bench,
    original: &Path,
    copy: &Path,
    size: u64,
) -> Result<(std::path::PathBuf, Flipped)> {
    fs::copy(original, copy)?;
    let file = OpenOptions::new().read(true).write(true).open(copy)?;
    let mut flipped = [(size / 3, 0), (size / 3 * 2, 0)];
    for (offset, byte) in &mut flipped {
        let mut there = [0];
        file.read_exact_at(&mut there, *offset)?;
        *byte = !there[0];
        file.write_all_at(&[*byte], *offset)?;
    }
    drop(file);
    bench.folder.flush()?;
    Ok((copy.to_owned(), flipped))
}

fn has_bytes(path: &Path, bytes: &Flipped) -> Result<bool> {
    let Ok(file) = fs::File::open(path) else { return Ok(false) };
    let has = |&(offset, byte): &(u64, u8)| {
        let mut there = [0];
        file.read_exact_at(&mut there, offset).is_ok() && there == [byte]
    };
    Ok(bytes.iter().all(has))
}

fn check_all(world: &World<'_>) -> Result<()> {
    world.places.destinations.iter().try_for_each(|destination| compare(&world.places.source, destination))
}
