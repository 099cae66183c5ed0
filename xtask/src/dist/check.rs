//! Tries the packages: the same bytes twice, and what is in them works.

use std::path::Path;
use std::process::Command;

use super::pack::{SUMS, files_in, pack, read};
use super::{emptied, has, output};
use crate::python::environment;
use crate::steps::check as run;
use crate::target;

/// The exposure of a unit, in tenths, as `systemd-analyze security` rates it: 0 is safest, 100 nothing is restricted.
const EXPOSURE_MAX: &str = "16";

/// Packs a binary twice, and looks at what is in the packages.
pub fn check(binary: &Path, epoch: &str) -> Result<(), String> {
    let folder = emptied(&target().join("dist-check"))?;
    let [first, second] = ["first", "second"].map(|name| folder.join(name));
    pack(binary, &first, epoch)?;
    pack(binary, &second, epoch)?;
    let (sums, again) = (read(&first.join(SUMS))?, read(&second.join(SUMS))?);
    if sums != again {
        return Err(format!("packed twice, and not the same:\n{sums}{again}"));
    }
    let packages = files_in(&first)?;
    if let Some(wheel) = packages.iter().find(|path| path.extension().is_some_and(|suffix| suffix == "whl")) {
        import(wheel, &folder.join("site"))?;
    }
    let Some(package) = packages.iter().find(|path| path.extension().is_some_and(|suffix| suffix == "deb")) else {
        return Ok(());
    };
    let root = folder.join("root");
    run(Command::new("dpkg-deb").arg("--extract").arg(package).arg(&root))?;
    run(Command::new("dpkg-deb").arg("--info").arg(package))?;
    output(Command::new(root.join("usr/bin/tow")).arg("--version"))?;
    manual(&root)?;
    units(&root)
}

/// The wheel is installed and imported, with all of its modules.
fn import(wheel: &Path, site: &Path) -> Result<(), String> {
    let python = environment()?;
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index", "--target"]);
    run(pip.arg(site).arg(wheel))?;
    let mut python = Command::new(python);
    python.args(["-I", "-c", "import sys; sys.path.insert(0, sys.argv[1]); import towpath, towpath.aio, towpath.fsspec as f; print(f.__file__)"]);
    let place = output(python.arg(site))?;
    if !Path::new(&place).starts_with(site) {
        return Err(format!("{place} was imported, and not what was installed in {}", site.display()));
    }
    Ok(())
}

/// Each page has a name that `man -k` finds, and groff has nothing to say about it.
fn manual(root: &Path) -> Result<(), String> {
    let pages = files_in(&root.join("usr/share/man/man1"))?;
    if !has("lexgrog") || !has("man") {
        println!("skipped: man-db is not here, so nobody has looked at the manual");
        return Ok(());
    }
    output(Command::new("lexgrog").args(&pages))?;
    for page in &pages {
        // With -Z, for no device: it isn't shown.
        silent(Command::new("man").args(["--warnings", "--encoding=UTF-8", "-Tutf8", "-Z", "--local-file"]).arg(page))?;
    }
    println!("{} manual pages", pages.len());
    Ok(())
}

/// systemd knows all that the units say, and doesn't find them exposed.
fn units(root: &Path) -> Result<(), String> {
    if !has("systemd-analyze") {
        println!("skipped: systemd-analyze is not here, so nobody has looked at the units");
        return Ok(());
    }
    let program = root.join("usr/bin/tow").display().to_string();
    let copies = emptied(&target().join("dist-units"))?;
    for unit in files_in(&root.join("usr/lib/systemd/system"))? {
        // The command must be there.
        let copy = copies.join(unit.file_name().unwrap_or_default());
        let text = read(&unit)?.replace("/usr/bin/tow", &program);
        std::fs::write(&copy, text).map_err(|error| format!("{}: {error}", copy.display()))?;
        silent(Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(&copy))?;
        let mut security = Command::new("systemd-analyze");
        security.args(["security", "--offline=true", "--no-pager", "--threshold", EXPOSURE_MAX]).arg(&unit);
        let rated = output(&mut security)?;
        println!("{}", rated.lines().last().unwrap_or_default().trim());
    }
    Ok(())
}

/// Runs a command that says what is wrong, whatever its status is.
fn silent(command: &mut Command) -> Result<(), String> {
    let shown = crate::steps::show(command);
    let output = command.env("LC_ALL", "C.UTF-8").output().map_err(|error| format!("{shown}: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    if output.status.success() && said.trim().is_empty() {
        return Ok(());
    }
    Err(format!("{shown}: {}: {}", output.status, said.trim()))
}
