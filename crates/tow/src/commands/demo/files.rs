//! First half of the demo: makes, serves, fetches and compares a file, and copies it for comparison.

use super::running::{Processes, Running};
use super::this_program;
use crate::cli::exit::Failure;
use crate::cli::output::print_line;
use crate::cli::progress::{Bar, human_bytes};
use crate::runtime::rlimits::{Usage, usage_of};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

/// Bytes copied between checks for an interruption.
const PIECE: u64 = 8 << 20;

/// Serves and fetches a file of `size` bytes in `folder`.
pub fn run(processes: &Processes, folder: &Path, size: u64) -> Result<(), Failure> {
    let free = free_bytes(folder)?;
    // The file, its copy, and the fetched one.
    if free < size.saturating_mul(3).saturating_add(64 << 20) {
        return Err(Failure::failed(format!(
            "{} has {} free, but the demo needs three times {}; set --size or --folder",
            folder.display(),
            human_bytes(free),
            human_bytes(size)
        )));
    }

    print_line(format_args!("1. {} of random data in {}", human_bytes(size), folder.display()))?;
    let served = folder.join("served");
    std::fs::create_dir(&served).map_err(Failure::failed)?;
    make_noise(processes, &served.join("data.bin"), size)?;

    print_line(format_args!("2. a plain copy of it on this disk"))?;
    let copy = folder.join("copy.bin");
    let started = Instant::now();
    plain_copy(processes, &served.join("data.bin"), &copy)?;
    let copy_seconds = started.elapsed().as_secs_f64();
    std::fs::remove_file(&copy).map_err(Failure::failed)?;

    print_line(format_args!("3. tow serve {}", served.display()))?;
    let (server, endpoint) = start_server(processes, &served)?;
    print_line(format_args!("   serving on {endpoint}"))?;

    print_line(format_args!("4. tow get {endpoint}/data.bin, verified against its BLAKE3 digest"))?;
    let got = folder.join("got.bin");
    let summary = get(processes, &format!("{endpoint}/data.bin"), &got)?;
    let server_usage = usage_of(server.child.id());
    drop(server);

    print_line(format_args!("5. compared byte by byte"))?;
    compare(processes, &served.join("data.bin"), &got)?;
    report(size, copy_seconds, &summary, server_usage)
}

fn free_bytes(folder: &Path) -> Result<u64, Failure> {
    let space = rustix::fs::statvfs(folder).map_err(Failure::failed)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

fn make_noise(processes: &Processes, path: &Path, size: u64) -> Result<(), Failure> {
    let cannot_write = |error| Failure::failed(format!("cannot write the file: {error}"));
    let mut noise = File::open("/dev/urandom").map_err(cannot_write)?;
    let mut file = File::create(path).map_err(cannot_write)?;
    let mut buffer = vec![0; 256 * 1024];
    let bar = Bar::new(false);
    let mut done = 0;
    while done < size {
        processes.check().inspect_err(|_| bar.finish())?;
        let now = buffer.len().min(usize::try_from(size - done).unwrap_or(buffer.len()));
        noise.read_exact(&mut buffer[..now]).map_err(cannot_write)?;
        file.write_all(&buffer[..now]).map_err(cannot_write)?;
        done += now as u64;
        bar.set(done, size, String::new());
    }
    bar.finish();
    Ok(())
}

/// Copies in the kernel, like cp(1).
fn plain_copy(processes: &Processes, from: &Path, to: &Path) -> Result<(), Failure> {
    let cannot_copy = |error| Failure::failed(format!("cannot copy: {error}"));
    let source = File::open(from).map_err(cannot_copy)?;
    let mut copy = File::create(to).map_err(cannot_copy)?;
    loop {
        processes.check()?;
        if std::io::copy(&mut (&source).take(PIECE), &mut copy).map_err(cannot_copy)? == 0 {
            return Ok(());
        }
    }
}

fn start_server(processes: &Processes, folder: &Path) -> Result<(Running, String), Failure> {
    let mut server = this_program()?;
    server.arg("serve").arg(folder).args(["--bind", "tcp://127.0.0.1:0"]);
    server.arg("--admin-socket").arg(folder.join("files.admin"));
    processes.start_listening(&mut server)
}

fn get(processes: &Processes, location: &str, destination: &Path) -> Result<serde_json::Value, Failure> {
    let mut client = this_program()?;
    client.arg("get").arg(location).arg(destination).arg("--json").stdout(Stdio::piped());
    let mut running = processes.start(&mut client)?;
    let mut summary = Vec::new();
    let output = running.child.stdout.take();
    output.map(|mut output| output.read_to_end(&mut summary)).transpose().map_err(Failure::failed)?;
    if !running.finish()? {
        return Err(Failure::failed("tow get failed"));
    }
    serde_json::from_slice(&summary)
        .map_err(|error| Failure::failed(format!("cannot read the summary of tow get: {error}")))
}

fn compare(processes: &Processes, one: &Path, other: &Path) -> Result<(), Failure> {
    let mut files = [File::open(one).map_err(Failure::failed)?, File::open(other).map_err(Failure::failed)?];
    let lengths = files.each_ref().map(|file| file.metadata().map(|metadata| metadata.len()).unwrap_or(u64::MAX));
    if lengths[0] != lengths[1] {
        return Err(Failure::failed(format!("the fetched file has {} bytes instead of {}", lengths[1], lengths[0])));
    }
    let mut buffers = [vec![0; 256 * 1024], vec![0; 256 * 1024]];
    let mut position = 0;
    while position < lengths[0] {
        processes.check()?;
        let now = buffers[0].len().min(usize::try_from(lengths[0] - position).unwrap_or(usize::MAX));
        for (file, buffer) in files.iter_mut().zip(&mut buffers) {
            file.read_exact(&mut buffer[..now]).map_err(Failure::failed)?;
        }
        if buffers[0][..now] != buffers[1][..now] {
            return Err(Failure::failed(format!("the fetched file differs in the {now} bytes at {position}")));
        }
        position += now as u64;
    }
    Ok(())
}

fn report(size: u64, copy_seconds: f64, summary: &serde_json::Value, server: Usage) -> Result<(), Failure> {
    let number = |name: &str| summary.get(name).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let rate = |seconds: f64| if seconds > 0.0 { size as f64 / seconds / 1e6 } else { 0.0 };
    let seconds = number("seconds");
    print_line("")?;
    print_line(format_args!("{:24} {:>9} {:>10} {:>9} {:>12}", "", "seconds", "MB/s", "CPU s", "peak memory"))?;
    print_line(format_args!("{:24} {copy_seconds:>9.3} {:>10.0}", "plain copy", rate(copy_seconds)))?;
    let peak = |bytes: u64| human_bytes(bytes);
    print_line(format_args!(
        "{:24} {seconds:>9.3} {:>10.0} {:>9.2} {:>12}",
        "tow get, verified",
        rate(seconds),
        number("cpu_seconds"),
        peak(number("peak_memory_bytes") as u64)
    ))?;
    print_line(format_args!(
        "{:24} {:>9} {:>10} {:>9.2} {:>12}",
        "tow serve",
        "",
        "",
        server.cpu_seconds,
        peak(server.peak_memory_bytes)
    ))?;
    print_line("")?;
    print_line(format_args!(
        "The server's CPU time includes hashing the file once; later clients get the remembered digest."
    ))
}
