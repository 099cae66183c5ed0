//! Tries the packages: the same bytes twice, and what is in them works.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::pack::{SUMS, files_in, pack, read};
use super::{emptied, has, output, rpm};
use crate::python::environment;
use crate::steps::check as run;
use crate::target;

/// The exposure of a unit, in tenths, as `systemd-analyze security` rates it: 0 is safest, 100 nothing is restricted.
const EXPOSURE_MAX: &str = "16";

/// Runs a program's demonstration in a root directory, as a container does: ROOT USER PROGRAM VARIABLE=VALUE...
const CONTAINER: &str = r#"set -e
root=$0 user=$1 program=$2
shift 2
mount --rbind /dev "$root/dev"
mount --rbind /proc "$root/proc"
chroot=$(command -v chroot)
exec env --ignore-environment "$@" "$chroot" --userspec="$user" "$root" "$program" demo --size 8M --requests 1000"#;

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
    let with_end = |end: &str| packages.iter().find(|path| path.to_string_lossy().ends_with(end));
    if let Some(wheel) = with_end("-any.whl") {
        import(wheel, &folder.join("site"))?;
    }
    if let Some(wheel) = with_end(&format!("_{}.whl", std::env::consts::ARCH)) {
        program_of_wheel(wheel, &folder.join("venv"))?;
    }
    if let Some(package) = with_end(".rpm") {
        rpm::check(package, &folder.join("rpm"))?;
    }
    let image = with_end(".oci.tar").ok_or("there is no image")?;
    container(image, &folder.join("image"))?;
    let Some(package) = with_end(".deb") else {
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

/// The wheel with the program is installed in an environment of its own, and runs.
fn program_of_wheel(wheel: &Path, folder: &Path) -> Result<(), String> {
    output(Command::new("python3").args(["-m", "venv"]).arg(folder))?;
    let program = |name: &str| folder.join("bin").join(name);
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"];
    run(Command::new(program("python")).args(pip).arg(wheel))?;
    let version = output(Command::new(program("tow")).arg("--version"))?;
    let find =
        "import subprocess, towpath_bin as bin; print(subprocess.check_output([bin.path(), '--version'], text=True))";
    let found = output(Command::new(program("python")).args(["-I", "-c", find]))?;
    if version.starts_with("tow ") && version == found {
        return Ok(());
    }
    Err(format!("the wheel's program says {version:?}, and the one that is found {found:?}"))
}

/// The image is unpacked as a container's root, and everything that the program demonstrates works in it, as its user.
fn container(image: &Path, folder: &Path) -> Result<(), String> {
    let (archive, root) = (emptied(&folder.join("archive"))?, emptied(&folder.join("root"))?);
    run(Command::new("tar").arg("--extract").arg("--file").arg(image).arg("--directory").arg(&archive))?;
    let descriptor = |descriptor: &Value| -> Result<PathBuf, String> {
        let digest = descriptor["digest"].as_str().unwrap_or_default().replace(':', "/");
        let blob = archive.join("blobs").join(&digest);
        let sum = output(Command::new("sha256sum").arg(&blob))?;
        let is_intact = sum.split_whitespace().next() == digest.rsplit('/').next();
        if is_intact { Ok(blob) } else { Err(format!("{} has another digest", blob.display())) }
    };
    let parsed = |path: &Path| -> Result<Value, String> {
        serde_json::from_str(&read(path)?).map_err(|error| format!("{}: {error}", path.display()))
    };
    let index = parsed(&archive.join("index.json"))?;
    let manifest = parsed(&descriptor(&index["manifests"][0])?)?;
    let config = parsed(&descriptor(&manifest["config"])?)?;
    for layer in manifest["layers"].as_array().into_iter().flatten() {
        let mut tar = Command::new("tar");
        tar.args(["--extract", "--preserve-permissions", "--numeric-owner", "--file"]).arg(descriptor(layer)?);
        run(tar.arg("--directory").arg(&root))?;
    }
    for folder in ["dev", "proc"] {
        std::fs::create_dir_all(root.join(folder)).map_err(|error| format!("{folder}: {error}"))?;
    }
    let may_mount = Command::new("unshare").args(["--mount", "true"]).status();
    if !may_mount.is_ok_and(|status| status.success()) {
        println!("skipped: mounting isn't allowed, so nobody has run the image's program in its root");
        return Ok(());
    }
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let mut demo = Command::new("unshare");
    demo.args(["--mount", "--propagation", "private", "sh", "-c", CONTAINER]).arg(&root);
    demo.args([text(&config["config"]["User"]), text(&config["config"]["Entrypoint"][0])]);
    run(demo.args(config["config"]["Env"].as_array().into_iter().flatten().map(text)))
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
