//! The package for Fedora and its relatives, with what the Debian package has.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::pack::{all_files_in, install, make_readable, read, write};
use super::{emptied, output};
use crate::steps::check as run;
use crate::workspace;

/// Beginnings of paths that other distributions have elsewhere than Debian.
const MOVED: [(&str, &str); 2] = [
    ("usr/share/doc/towpath/copyright", "usr/share/licenses/towpath/LICENSE"),
    ("usr/share/zsh/vendor-completions/", "usr/share/zsh/site-functions/"),
];

/// Scripts that rpm runs.
const SCRIPTS: [&str; 3] = ["post", "preun", "postun"];

/// Directories that are the package's own. Other files are in directories of other packages.
const OWN: [&str; 2] = ["usr/share/doc/towpath", "usr/share/licenses/towpath"];

/// Macros with which the same files give the same bytes, and are packed as they are.
const MACROS: [(&str, &str); 9] = [
    ("_build_name_fmt", "%%{NAME}-%%{VERSION}-%%{RELEASE}.%%{ARCH}.rpm"),
    ("_buildhost", "localhost"),
    ("_binary_payload", "w9.gzdio"),
    ("_build_id_links", "none"),
    ("__os_install_post", "%{nil}"),
    ("__requires_exclude_from", "^/usr/share/doc/"),
    ("clamp_mtime_to_source_date_epoch", "1"),
    ("debug_package", "%{nil}"),
    ("use_source_date_epoch_as_buildtime", "1"),
];

/// Makes the package of the Debian package's root directory.
pub fn rpm(root: &Path, stage: &Path, version: &str, out: &Path, epoch: &str) -> Result<PathBuf, String> {
    let folder = emptied(&stage.join("rpm"))?;
    let tree = folder.join("tree");
    for file in all_files_in(root)? {
        let place = file.strip_prefix(root).unwrap_or(&file).display().to_string();
        if place.starts_with("DEBIAN/") {
            continue;
        }
        let moved = MOVED.iter().find_map(|(from, to)| Some(format!("{to}{}", place.strip_prefix(from)?)));
        install(&file, &tree.join(moved.unwrap_or(place)))?;
    }
    make_readable(&tree)?;
    // A hyphen would begin the release.
    let version = version.replace('-', "~");
    let spec = folder.join("towpath.spec");
    write(&spec, &text(&tree, &version)?)?;
    let mut build = Command::new("rpmbuild");
    build.args(["-bb", "--quiet"]).env("SOURCE_DATE_EPOCH", epoch);
    for (name, value) in MACROS {
        build.args(["--define", &format!("{name} {value}")]);
    }
    for (name, value) in [("_topdir", folder.as_path()), ("_rpmdir", out)] {
        build.arg("--define").arg(format!("{name} {}", value.display()));
    }
    run(build.arg("--buildroot").arg(folder.join("root")).arg(spec))?;
    Ok(out.join(format!("towpath-{version}-1.{}.rpm", std::env::consts::ARCH)))
}

/// Installs it into a root directory of its own, where the program runs and rpm finds all as it was packed.
pub fn check(package: &Path, root: &Path) -> Result<(), String> {
    run(Command::new("rpm").args(["--query", "--info", "--requires", "--package"]).arg(package))?;
    if output(Command::new("id").arg("--user"))? != "0" {
        println!("skipped: only root can install a package into another root directory");
        return Ok(());
    }
    let root = emptied(root)?;
    let rpm = |words: &[&str]| {
        let mut command = Command::new("rpm");
        command.arg("--root").arg(&root).args(words);
        command
    };
    // What it requires isn't in there. Debian's rpm wants to be asked twice.
    let install = ["--install", "--nodeps", "--noscripts"];
    let debian =
        if output(Command::new("rpm").arg("--help"))?.contains("force-debian") { &["--force-debian"][..] } else { &[] };
    run(rpm(&install).args(debian).arg(package))?;
    run(&mut rpm(&["--verify", "--nodeps", "towpath"]))?;
    output(Command::new(root.join("usr/bin/tow")).arg("--version")).map(drop)
}

/// The description that rpmbuild reads.
fn text(tree: &Path, version: &str) -> Result<String, String> {
    let mut spec = format!(
        "Name: towpath\nVersion: {version}\nRelease: 1\nSummary: Files and requests over ZeroMQ's wire protocol\nLicense: MIT\n\
         %description\nOne program, tow: a file server and its client, publishing and following of\n\
         directories, a broker of requests, its workers and clients.\n\
         %install\nmkdir -p %{{buildroot}}\ncp -a '{}/.' %{{buildroot}}\n",
        tree.display()
    );
    for script in SCRIPTS {
        spec += &format!("%{script}\n{}", read(&workspace().join("packaging/rpm").join(script))?);
    }
    spec += "%files\n%defattr(-,root,root,-)\n";
    for own in OWN {
        spec += &format!("/{own}\n");
    }
    for file in all_files_in(tree)? {
        let place = file.strip_prefix(tree).unwrap_or(&file);
        if !OWN.iter().any(|own| place.starts_with(own)) {
            spec += &format!("\"/{}\"\n", place.display());
        }
    }
    Ok(spec)
}
