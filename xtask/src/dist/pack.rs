//! Lays out what the packages have, and packs it.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::image::image;
use super::notices::notices;
use super::rpm::rpm;
use super::{emptied, has, output};
use crate::python::environment;
use crate::steps::{apt_install, check as run, in_ci};
use crate::{target, workspace};

/// The file of checksums.
pub const SUMS: &str = "SHA256SUMS";

/// Files of the workspace, and where they are in the tarball and in the Debian package.
const FILES: &[(&str, &str, &str)] = &[
    ("LICENSE", "LICENSE", "usr/share/doc/towpath/copyright"),
    ("THIRD-PARTY.md", "THIRD-PARTY.md", "usr/share/doc/towpath/THIRD-PARTY.md"),
    ("README.md", "README.md", "usr/share/doc/towpath/README.md"),
    ("CHANGELOG.md", "CHANGELOG.md", "usr/share/doc/towpath/changelog"),
    ("packaging/systemd/tow-broker.service", "systemd/tow-broker.service", "usr/lib/systemd/system/tow-broker.service"),
    ("packaging/systemd/tow-serve@.service", "systemd/tow-serve@.service", "usr/lib/systemd/system/tow-serve@.service"),
    ("packaging/grafana/towpath.json", "grafana/towpath.json", "usr/share/doc/towpath/examples/grafana.json"),
    (
        "packaging/prometheus/towpath.rules.yml",
        "prometheus/towpath.rules.yml",
        "usr/share/doc/towpath/examples/prometheus.rules.yml",
    ),
];

/// Folders of the workspace that are packed whole, in the tarball under their own names.
const FOLDERS: [&str; 5] = ["docs/guide", "docs/protocol", "docs/formats", "docs/internals", "examples"];

/// Where the Debian package has documents.
const DOCUMENTS: &str = "usr/share/doc/towpath";

/// Shells, and where their completions are in the tarball and in the Debian package.
const COMPLETIONS: [(&str, &str, &str); 3] = [
    ("bash", "completions/tow.bash", "usr/share/bash-completion/completions/tow"),
    ("fish", "completions/tow.fish", "usr/share/fish/vendor_completions.d/tow.fish"),
    ("zsh", "completions/_tow", "usr/share/zsh/vendor-completions/_tow"),
];

/// Scripts that dpkg runs.
const SCRIPTS: [&str; 3] = ["postinst", "prerm", "postrm"];

/// Shared libraries, and the Debian package that each is in.
const LIBRARIES: [(&str, &str); 6] = [
    ("libc.so.", "libc6"),
    ("libm.so.", "libc6"),
    ("libdl.so.", "libc6"),
    ("libpthread.so.", "libc6"),
    ("ld-linux", "libc6"),
    ("libgcc_s.so.", "libgcc-s1"),
];

/// Makes the tarball, the image, the packages where `dpkg-deb` and `rpmbuild` are, the wheels where Python is, and their checksums. Times are `epoch` or earlier, owners root.
pub fn pack(binary: &Path, out: &Path, epoch: &str) -> Result<(), String> {
    fs::create_dir_all(out).map_err(|error| format!("{}: {error}", out.display()))?;
    let version = output(Command::new(binary).arg("--version"))?;
    let version = version.strip_prefix("tow ").ok_or_else(|| format!("this is no tow, but {version}"))?;
    let name = format!("towpath-{version}-linux-{}", std::env::consts::ARCH);
    let stage = emptied(&target().join("dist-stage"))?;
    let (tree, root) = (stage.join(&name), stage.join("debian"));
    lay_out(binary, &tree, &root)?;

    let tarball = out.join(format!("{name}.tar.gz"));
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=gnu", "--sort=name", "--owner=0", "--group=0", "--numeric-owner"]);
    tar.arg(format!("--mtime=@{epoch}")).args(["--use-compress-program", "gzip -n", "--file"]).arg(&tarball);
    run(tar.arg("--directory").arg(&stage).arg(&name))?;
    let mut packages = vec![tarball];
    if has("dpkg-deb") {
        let architecture = output(Command::new("dpkg").arg("--print-architecture"))?;
        let package = out.join(format!("towpath_{version}_{architecture}.deb"));
        let control = control(binary, &root, version, &architecture)?;
        write(&root.join("DEBIAN/control"), &control)?;
        make_readable(&root)?;
        let mut dpkg = Command::new("dpkg-deb");
        dpkg.args(["-Zgzip", "-z6", "--root-owner-group", "--build"]).arg(&root).arg(&package);
        run(dpkg.env("SOURCE_DATE_EPOCH", epoch))?;
        packages.push(package);
    } else {
        println!("no Debian package: dpkg-deb is not here");
    }
    if !has("rpmbuild") {
        apt_install(&["rpm"])?;
    }
    match has("rpmbuild") {
        true => packages.push(rpm(&root, &stage, version, out, epoch)?),
        false => println!("no RPM: rpmbuild is not here"),
    }
    packages.push(image(binary, &root, &stage, version, out, epoch)?);
    packages.extend(wheels(binary, &tree, version, out, epoch)?);
    let names = packages.iter().filter_map(|package| package.file_name());
    let sums = output(Command::new("sha256sum").args(names).current_dir(out))?;
    write(&out.join(SUMS), &(sums + "\n"))
}

/// Copies everything into the folder of the tarball, and into the root directory of the Debian package.
fn lay_out(binary: &Path, tree: &Path, root: &Path) -> Result<(), String> {
    install(binary, &tree.join("tow"))?;
    install(binary, &root.join("usr/bin/tow"))?;
    for (from, in_tree, in_root) in FILES {
        install(&workspace().join(from), &tree.join(in_tree))?;
        install(&workspace().join(from), &root.join(in_root))?;
    }
    let documents = root.join(DOCUMENTS);
    for folder in FOLDERS {
        for file in all_files_in(&workspace().join(folder))? {
            let place = file.strip_prefix(workspace()).unwrap_or(&file);
            install(&file, &tree.join(place))?;
            install(&file, &documents.join(place))?;
        }
    }
    let notices = notices()?;
    write(&tree.join("LICENCES-OF-CRATES"), &notices)?;
    write(&documents.join("LICENCES-OF-CRATES"), &notices)?;
    for (shell, in_tree, in_root) in COMPLETIONS {
        let script = output(Command::new(binary).args(["completions", shell]))? + "\n";
        write(&tree.join(in_tree), &script)?;
        write(&root.join(in_root), &script)?;
    }
    let pages = root.join("usr/share/man/man1");
    output(Command::new(binary).arg("manual").arg(&pages))?;
    let mut gzip = Command::new("gzip");
    gzip.arg("-9n").arg(documents.join("changelog")).arg(documents.join("LICENCES-OF-CRATES"));
    for page in files_in(&pages)? {
        install(&page, &tree.join("man").join(page.file_name().unwrap_or_default()))?;
        gzip.arg(page);
    }
    output(&mut gzip)?;
    for script in SCRIPTS {
        install(&workspace().join("packaging/debian").join(script), &root.join("DEBIAN").join(script))?;
    }
    make_readable(tree)
}

/// The package for Python, for all systems, and the program as a wheel for this one; none without Python.
fn wheels(binary: &Path, tree: &Path, version: &str, out: &Path, epoch: &str) -> Result<Vec<PathBuf>, String> {
    let python = match environment() {
        Ok(python) => python,
        Err(why) if in_ci() => return Err(why),
        Err(why) => {
            println!("no wheels: {why}");
            return Ok(Vec::new());
        }
    };
    let mut pip = Command::new(&python);
    pip.args(["-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-build-isolation"]);
    pip.arg("--wheel-dir").arg(out).arg(workspace().join("python"));
    run(pip.env("SOURCE_DATE_EPOCH", epoch))?;
    let wheel = out.join(format!("towpath-{version}-py3-none-any.whl"));
    if !wheel.exists() {
        return Err(format!("{} is missing: the version in python/pyproject.toml is another one", wheel.display()));
    }
    let (major, minor) = libc_version(&needs(binary)?)?;
    let tag = format!("py3-none-manylinux_{major}_{minor}_{}", std::env::consts::ARCH);
    let mut script = Command::new(python);
    script.args(["-c", include_str!("wheel.py")]).arg(binary).args([version, &tag, epoch]).arg(out);
    output(script.args(["LICENSE", "LICENCES-OF-CRATES"].map(|name| tree.join(name))))?;
    Ok(vec![wheel, out.join(format!("towpath_bin-{version}-{tag}.whl"))])
}

/// The description that dpkg reads.
fn control(binary: &Path, root: &Path, version: &str, architecture: &str) -> Result<String, String> {
    let depends = dependencies(&needs(binary)?)?;
    let kibibytes = kibibytes(root)?;
    Ok(format!(
        "Package: towpath\nVersion: {version}\nArchitecture: {architecture}\nMaintainer: The Towpath authors\n\
         Installed-Size: {kibibytes}\nDepends: {depends}\nSection: net\nPriority: optional\n\
         Description: files and requests over ZeroMQ's wire protocol\n \
         One program, tow: a file server and its client, publishing and following of\n \
         directories, a broker of requests, its workers and clients.\n"
    ))
}

/// Output of `readelf` about the libraries that a program needs, and their versions.
fn needs(binary: &Path) -> Result<String, String> {
    output(Command::new("readelf").args(["--wide", "--dynamic", "--version-info"]).arg(binary))
}

/// The newest version of libc that `readelf` names.
fn libc_version(read: &str) -> Result<(u32, u32), String> {
    let version = |word: &str| -> Option<(u32, u32)> {
        let (major, minor) = word.strip_prefix("GLIBC_")?.split_once('.')?;
        Some((major.parse().ok()?, minor.split('.').next()?.parse().ok()?))
    };
    read.split_whitespace().filter_map(version).max().ok_or_else(|| "it names no version of libc".to_owned())
}

/// Packages that a program needs, from what `readelf` says of it: those of its libraries, and the newest version of libc that it names.
fn dependencies(read: &str) -> Result<String, String> {
    let libraries = read.lines().filter(|line| line.contains("(NEEDED)"));
    let mut packages = Vec::new();
    for line in libraries {
        let library = line.split(['[', ']']).nth(1).unwrap_or_default();
        let known = LIBRARIES.iter().find(|(name, _)| library.starts_with(name));
        let (_, package) = known.ok_or_else(|| format!("no known package has {library}"))?;
        packages.push((*package).to_owned());
    }
    packages.sort();
    packages.dedup();
    let (major, minor) = libc_version(read)?;
    let libc = packages.iter_mut().find(|package| *package == "libc6").ok_or("it doesn't need libc")?;
    *libc = format!("libc6 (>= {major}.{minor})");
    Ok(packages.join(", "))
}

/// Size of the files below a folder, each rounded up.
fn kibibytes(folder: &Path) -> Result<u64, String> {
    let mut sum = 0;
    for path in files_in(folder)? {
        let facts = fs::symlink_metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        sum += if facts.is_dir() { kibibytes(&path)? } else { facts.len().div_ceil(1024) };
    }
    Ok(sum)
}

/// Everybody may read all of it, and execute what its owner may, whatever the umask is.
pub fn make_readable(folder: &Path) -> Result<(), String> {
    output(Command::new("chmod").args(["--recursive", "u=rwX,go=rX"]).arg(folder)).map(drop)
}

/// Copies a file and whether it may be executed.
pub fn install(from: &Path, to: &Path) -> Result<(), String> {
    let cannot = |error| format!("{} to {}: {error}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(cannot)?;
    fs::copy(from, to).map_err(cannot)?;
    let mode = fs::metadata(from).map_err(cannot)?.permissions().mode() | 0o200;
    fs::set_permissions(to, fs::Permissions::from_mode(mode)).map_err(cannot)
}

/// Writes a file, and makes the directories above it.
pub fn write(to: &Path, text: &str) -> Result<(), String> {
    let cannot = |error| format!("{}: {error}", to.display());
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(cannot)?;
    fs::write(to, text).map_err(cannot)
}

/// The text of a file.
pub fn read(path: &Path) -> Result<String, String> {
    fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
}

/// The files in a folder, in the order of names.
pub fn files_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let cannot = |error| format!("{}: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(cannot)?.map(|entry| entry.map(|entry| entry.path()));
    let mut files = entries.collect::<Result<Vec<_>, _>>().map_err(cannot)?;
    files.sort();
    Ok(files)
}

/// All files below a folder.
pub fn all_files_in(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let mut files = Vec::new();
    for path in files_in(folder)? {
        match path.is_dir() {
            true => files.extend(all_files_in(&path)?),
            false => files.push(path),
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_those_of_the_program() {
        let read = "\
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
  0x0010:   Name: GLIBC_2.9  Flags: none  Version: 8
  0x0020:   Name: GLIBC_2.2.5  Flags: none  Version: 7
  0x0030:   Name: GLIBC_2.34  Flags: none  Version: 6
";
        assert_eq!(dependencies(read), Ok("libc6 (>= 2.34), libgcc-s1".to_owned()));
        let more = read.replace("libgcc_s", "libssl");
        assert_eq!(dependencies(&more), Err("no known package has libssl.so.1".to_owned()));
    }
}
