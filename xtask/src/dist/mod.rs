//! `cargo xtask dist`: the program as a tarball, a Debian package, an RPM, a wheel and an image for containers, and the package for Python. The
//! same commit gives the same bytes.

mod check;
mod image;
mod notices;
mod pack;
mod rpm;

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::python::environment_of;
use crate::steps::{FEATURES, check as run, show};
use crate::{cargo, target, workspace};

/// The options of `cargo xtask dist`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// Where the packages go.
    pub out: Option<PathBuf>,
    /// The program to pack instead of building a release.
    pub binary: Option<PathBuf>,
    /// Pack twice, compare, and try what is in the packages.
    pub check: bool,
}

/// Makes the packages, or checks them.
pub fn dist(options: &Options) -> Result<(), String> {
    let epoch = epoch()?;
    let binary = match &options.binary {
        Some(binary) => stripped(binary)?,
        None => stripped(&build(&epoch)?)?,
    };
    if options.check {
        return check::check(&binary, &epoch);
    }
    let out = options.out.clone().unwrap_or_else(|| target().join("packages"));
    pack::pack(&binary, &out, &epoch)?;
    let sums = pack::read(&out.join(pack::SUMS))?;
    println!("{}:\n{sums}", out.display());
    Ok(())
}

/// The time of the commit, in seconds since 1970, or what the environment says.
fn epoch() -> Result<String, String> {
    if let Ok(epoch) = std::env::var("SOURCE_DATE_EPOCH") {
        return Ok(epoch);
    }
    let log = output(Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(workspace()));
    log.map_err(|why| format!("{why}; without git, set SOURCE_DATE_EPOCH"))
}

/// The oldest libc that the program runs with: that of manylinux2014, and the oldest of Rust's own library.
const LIBC: &str = "2.17";
/// Zig links with an older libc than this machine's.
const ZIG: &str = "xtask/src/dist/requirements.txt";

/// Builds the program so that nothing in it depends on where it is built, whatever the environment's own flags are.
fn build(epoch: &str) -> Result<PathBuf, String> {
    let home = std::env::var_os("HOME").unwrap_or_default();
    let registry = std::env::var_os("CARGO_HOME").map_or_else(|| Path::new(&home).join(".cargo"), PathBuf::from);
    // Of those that match, the last counts.
    let places = [(workspace(), "/towpath"), (&target(), "/towpath/target"), (&registry, "/cargo")];
    let rust = places.map(|(from, to)| format!("--remap-path-prefix={}={to}", from.display()));
    let c = places.map(|(from, to)| format!("-ffile-prefix-map={}={to}", from.display()));
    let zig = environment_of("zig", ZIG)?;
    let mut path = zig.parent().unwrap_or(&zig).as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
    let mut command = cargo();
    command.args(["zigbuild", "--release", "--locked", "--package", "towpath", "--bin", "tow", "--features", FEATURES]);
    command.args(["--target", &format!("{triple}.{LIBC}")]).env("PATH", path);
    command.env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f")).env("CFLAGS", c.join(" "));
    run(command.env("SOURCE_DATE_EPOCH", epoch))?;
    Ok(target().join(triple).join("release/tow"))
}

/// A copy without symbols.
fn stripped(binary: &Path) -> Result<PathBuf, String> {
    let copy = emptied(&target().join("dist-stripped"))?.join("tow");
    run(Command::new("strip").arg("-o").arg(&copy).arg(binary))?;
    Ok(copy)
}

/// A folder of this command's own, of which nothing is left from before.
fn emptied(folder: &Path) -> Result<PathBuf, String> {
    let _ = std::fs::remove_dir_all(folder);
    std::fs::create_dir_all(folder).map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder.to_owned())
}

/// Output of a command, without the spaces around it.
fn output(command: &mut Command) -> Result<String, String> {
    let shown = show(command);
    let output = command.stderr(Stdio::inherit()).output().map_err(|error| format!("{shown}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{shown}: {}", output.status));
    }
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether a program is there.
fn has(program: &str) -> bool {
    let asked = Command::new(program).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
    asked.is_ok_and(|status| status.success())
}
