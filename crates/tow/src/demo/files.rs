//! The first half: a file is made, served, got and compared, beside a plain copy.

use super::{Running, this_program};
use crate::exit::Failure;
use crate::progress::{Bar, human_bytes};
use crate::resources::{Usage, usage_of};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Stdio;
use std::time::Instant;

/// Moves a file of `size` octets in `folder`.
pub fn run(folder: &Path, size: u64) -> Result<(), Failure> {
    let free = free_bytes(folder)?;
    // The file, a plain copy of it, and what was got.
    if free < size.saturating_mul(3).saturating_add(64 << 20) {
        return Err(Failure::failed(format!(
            "{} has {} free, and the demo needs three times {}; use --size or --folder",
            folder.display(),
            human_bytes(free),
            human_bytes(size)
        )));
    }

    println!("1. {} of random data in {}", human_bytes(size), folder.display());
    let served = folder.join("served");
    std::fs::create_dir(&served).map_err(Failure::failed)?;
    make_noise(&served.join("data.bin"), size).map_err(|error| Failure::failed(format!("cannot write it: {error}")))?;

    println!("2. a plain copy of it on this disk");
    let copy = folder.join("copy.bin");
    let started = Instant::now();
    std::fs::copy(served.join("data.bin"), &copy).map_err(|error| Failure::failed(format!("cannot copy: {error}")))?;
    let copy_seconds = started.elapsed().as_secs_f64();
    std::fs::remove_file(&copy).map_err(Failure::failed)?;

    println!("3. tow serve {}", served.display());
    let (server, endpoint) = start_server(&served)?;
    println!("   serving on {endpoint}");

    println!("4. tow get {endpoint}/data.bin, verified against its BLAKE3 digest");
    let got = folder.join("got.bin");
    let summary = get(&format!("{endpoint}/data.bin"), &got)?;
    let server_usage = usage_of(server.0.id());
    drop(server);

    println!("5. compared octet by octet");
    compare(&served.join("data.bin"), &got)?;
    report(size, copy_seconds, &summary, server_usage);
    Ok(())
}

fn free_bytes(folder: &Path) -> Result<u64, Failure> {
    let space = rustix::fs::statvfs(folder).map_err(Failure::failed)?;
    Ok(space.f_bavail.saturating_mul(space.f_frsize))
}

fn make_noise(path: &Path, size: u64) -> std::io::Result<()> {
    let mut noise = File::open("/dev/urandom")?;
    let mut file = File::create(path)?;
    let mut buffer = vec![0; 256 * 1024];
    let bar = Bar::new(false);
    let mut done = 0;
    while done < size {
        let now = buffer.len().min(usize::try_from(size - done).unwrap_or(buffer.len()));
        noise.read_exact(&mut buffer[..now])?;
        file.write_all(&buffer[..now])?;
        done += now as u64;
        bar.set(done, size, String::new());
    }
    bar.finish();
    Ok(())
}

fn start_server(folder: &Path) -> Result<(Running, String), Failure> {
    let mut server = this_program()?;
    server.arg("serve").arg(folder).args(["--bind", "tcp://127.0.0.1:0"]);
    Running::listening(server)
}

fn get(location: &str, destination: &Path) -> Result<serde_json::Value, Failure> {
    let mut client = this_program()?;
    client.arg("get").arg(location).arg(destination).arg("--json");
    let output = client.stderr(Stdio::inherit()).output().map_err(Failure::failed)?;
    if !output.status.success() {
        return Err(Failure::failed("getting it failed"));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| Failure::failed(format!("an unreadable summary: {error}")))
}

fn compare(one: &Path, other: &Path) -> Result<(), Failure> {
    let mut files = [File::open(one).map_err(Failure::failed)?, File::open(other).map_err(Failure::failed)?];
    let lengths = files.each_ref().map(|file| file.metadata().map(|metadata| metadata.len()).unwrap_or(u64::MAX));
    if lengths[0] != lengths[1] {
        return Err(Failure::failed(format!("what came has {} octets instead of {}", lengths[1], lengths[0])));
    }
    let mut buffers = [vec![0; 256 * 1024], vec![0; 256 * 1024]];
    let mut position = 0;
    while position < lengths[0] {
        let now = buffers[0].len().min(usize::try_from(lengths[0] - position).unwrap_or(usize::MAX));
        for (file, buffer) in files.iter_mut().zip(&mut buffers) {
            file.read_exact(&mut buffer[..now]).map_err(Failure::failed)?;
        }
        if buffers[0][..now] != buffers[1][..now] {
            return Err(Failure::failed(format!("what came differs in the {now} octets from {position}")));
        }
        position += now as u64;
    }
    Ok(())
}

fn report(size: u64, copy_seconds: f64, summary: &serde_json::Value, server: Usage) {
    let number = |name: &str| summary.get(name).and_then(serde_json::Value::as_f64).unwrap_or(0.0);
    let rate = |seconds: f64| if seconds > 0.0 { size as f64 / seconds / 1e6 } else { 0.0 };
    let seconds = number("seconds");
    println!();
    println!("{:24} {:>9} {:>10} {:>9} {:>12}", "", "seconds", "MB/s", "CPU s", "peak memory");
    println!("{:24} {copy_seconds:>9.3} {:>10.0}", "plain copy", rate(copy_seconds));
    let peak = |octets: u64| human_bytes(octets);
    println!(
        "{:24} {seconds:>9.3} {:>10.0} {:>9.2} {:>12}",
        "tow get, verified",
        rate(seconds),
        number("cpu_seconds"),
        peak(number("peak_memory_bytes") as u64)
    );
    println!(
        "{:24} {:>9} {:>10} {:>9.2} {:>12}",
        "tow serve",
        "",
        "",
        server.cpu_seconds,
        peak(server.peak_memory_bytes)
    );
    println!();
    println!(
        "The server's CPU time includes hashing the file once; it remembers the digest for everybody who comes after."
    );
}
