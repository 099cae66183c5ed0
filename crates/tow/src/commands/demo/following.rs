//! Second part of the demo: a directory that three followers keep copies of, one behind a relay, while one of them is killed; and a version of it.

use super::running::{Processes, Running};
use super::this_program;
use crate::cli::exit::Failure;
use crate::cli::output::print_line;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const FOLLOWERS: usize = 3;
const FILES: usize = 300;
const LARGE_BYTES: usize = 32 << 20;
/// Longest wait for a copy.
const COPIES_MAX: Duration = Duration::from_secs(60);
/// Time between looks at the copies.
const LOOK: Duration = Duration::from_millis(1);

/// Publishes a directory in `folder`, and follows it.
pub fn run(processes: &Processes, folder: &Path) -> Result<(), Failure> {
    let source = folder.join("published");
    let mut copies: Vec<_> = (1..FOLLOWERS).map(|number| folder.join(format!("copy-{number}"))).collect();
    let (relayed, behind, versions) = (folder.join("relay"), folder.join("behind"), folder.join("versions"));
    let socket = |name: &str| format!("ipc://{}", folder.join(name).display());
    std::fs::create_dir(&source).map_err(Failure::failed)?;
    for index in 0..FILES {
        write(&source.join(format!("{index}.txt")), &vec![b'a' + (index % 26) as u8; 10 * index])?;
    }
    print_line(format_args!(
        "1. tow serve --watch {}, with {FILES} files, and {FOLLOWERS} times tow follow, one behind a relay",
        source.display()
    ))?;
    let mut server = this_program()?;
    server.arg("serve").arg(&source).args(["--watch", "--bind", "tcp://127.0.0.1:0", "--bind", &socket("server.sock")]);
    server.arg("--admin-socket").arg(folder.join("following.admin"));
    let (_server, endpoint) = processes.start_listening(server.arg("--state").arg(folder.join("state")))?;
    let follow = |endpoint: &str, copy: &Path, options: &[&str]| -> Result<Running, Failure> {
        let mut follower = this_program()?;
        follower.arg("follow").arg(format!("{endpoint}/")).arg(copy).args(options);
        processes.start(follower.stdout(Stdio::null()).stderr(Stdio::null()))
    };
    let start = |copy: &Path| follow(&endpoint, copy, &["--mirror"]);
    let begun = Instant::now();
    let _relay = follow(&endpoint, &relayed, &["--mirror", "--serve", &socket("relay.sock")])?;
    let mut followers = copies.iter().map(|copy| start(copy)).collect::<Result<Vec<_>, _>>()?;
    while !folder.join("relay.sock").exists() && begun.elapsed() < COPIES_MAX {
        processes.check()?;
        std::thread::sleep(LOOK);
    }
    let _behind = follow(&format!("{}:", socket("relay.sock")), &behind, &["--mirror"])?;
    copies.extend([behind, relayed]);
    wait_same(processes, &source, &copies)?;
    print_line(format_args!("   all copies are the same after {:.0} ms", millis(begun)))?;

    print_line("2. a file of 32 MiB is renamed into it")?;
    write(&folder.join("large"), &vec![7; LARGE_BYTES])?;
    let begun = Instant::now();
    std::fs::rename(folder.join("large"), source.join("large.bin")).map_err(Failure::failed)?;
    wait_same(processes, &source, &copies)?;
    print_line(format_args!("   whole and verified in all copies after {:.0} ms", millis(begun)))?;

    print_line("3. a follower is killed, and files are changed, added, renamed and deleted meanwhile")?;
    if let Some(follower) = followers.first_mut() {
        follower.crash();
    }
    for index in 0..FILES / 3 {
        write(&source.join(format!("{index}.txt")), b"changed")?;
        write(&source.join(format!("new-{index}.txt")), b"new")?;
    }
    std::fs::remove_file(source.join("299.txt")).map_err(Failure::failed)?;
    std::fs::rename(source.join("large.bin"), source.join("larger.bin")).map_err(Failure::failed)?;
    let others = copies.get(1..).unwrap_or_default();
    wait_same(processes, &source, others)?;
    if let (Some(follower), Some(copy)) = (followers.first_mut(), copies.first()) {
        let begun = Instant::now();
        *follower = start(copy)?;
        wait_same(processes, &source, &copies)?;
        print_line(format_args!("   started again, its copy is the same as the others after {:.0} ms", millis(begun)))?;
    }
    print_line("4. tow publish freezes it as version v1, for tow follow --versions")?;
    let _versions = follow(&endpoint, &versions, &["--versions", "--name", "demo"])?;
    let begun = Instant::now();
    let mut publish = this_program()?;
    publish.arg("publish").arg(format!("{}:/", socket("server.sock"))).arg("v1").stdout(Stdio::null());
    if !processes.start(&mut publish)?.finish()? {
        return Err(Failure::failed("the version could not be published"));
    }
    wait_same(processes, &source, &[versions.join("current")])?;
    print_line(format_args!(
        "   in place as a whole, with the same content as all copies, after {:.0} ms",
        millis(begun)
    ))?;
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Failure> {
    std::fs::write(path, bytes).map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
}

fn millis(begun: Instant) -> f64 {
    begun.elapsed().as_secs_f64() * 1e3
}

/// Waits until all copies have what the source has.
fn wait_same(processes: &Processes, source: &Path, copies: &[PathBuf]) -> Result<(), Failure> {
    let begun = Instant::now();
    let wanted = contents(source);
    let mut left: Vec<_> = copies.iter().collect();
    loop {
        processes.check()?;
        // By size first: reading everything again and again would take the processors from the copies.
        left.retain(|copy| sizes(copy) != sizes(source) || contents(copy) != wanted);
        if left.is_empty() {
            return Ok(());
        }
        if begun.elapsed() > COPIES_MAX {
            return Err(Failure::failed("a copy is still not the same"));
        }
        std::thread::sleep(LOOK);
    }
}

/// Names and sizes, without what the follower itself keeps there.
fn sizes(folder: &Path) -> Vec<(std::ffi::OsString, u64)> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let sizes = entries.filter_map(|entry| Some((entry.file_name(), entry.metadata().ok()?.len())));
    let mut sizes: Vec<_> = sizes.filter(|(name, _)| !name.as_encoded_bytes().starts_with(b".tow-")).collect();
    sizes.sort();
    sizes
}

fn contents(folder: &Path) -> Vec<Option<Vec<u8>>> {
    sizes(folder).into_iter().map(|(name, _)| std::fs::read(folder.join(name)).ok()).collect()
}
