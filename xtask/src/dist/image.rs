//! An image for containers, as an OCI archive: the program, the libraries that it needs, and no shell.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::pack::{install, write};
use super::{emptied, output};
use crate::steps::check as run;

/// User and group in a container, who owns the directories of state.
pub const USER: &str = "65532";

/// Directories that the program may write.
const STATE: [&str; 3] = ["run/towpath", "tmp", "var/lib/towpath"];

/// Makes the archive from the files of the Debian package, `root`. Times are `epoch`.
pub fn image(
    binary: &Path,
    root: &Path,
    stage: &Path,
    version: &str,
    out: &Path,
    epoch: &str,
) -> Result<PathBuf, String> {
    let [extra, state, archive] = ["image", "image-state", "image-archive"].map(|name| stage.join(name));
    for folder in [&extra, &state] {
        emptied(folder)?;
    }
    let blobs = emptied(&archive.join("blobs/sha256"))?;
    system(binary, &extra)?;
    for folder in STATE {
        fs::create_dir_all(state.join(folder)).map_err(|error| format!("{folder}: {error}"))?;
    }
    super::pack::make_readable(&extra)?;
    let mut first = tar(epoch, "0");
    first.arg("--file").arg(stage.join("first.tar"));
    run(first.arg("--directory").arg(root).arg("usr").arg("--directory").arg(&extra).args(["etc", "lib", "lib64"]))?;
    let mut second = tar(epoch, USER);
    second.args(["--mode=u=rwx,go=rx", "--file"]).arg(stage.join("second.tar"));
    run(second.arg("--directory").arg(&state).args(["run", "tmp", "var"]))?;

    let (mut layers, mut contents) = (Vec::new(), Vec::new());
    for name in ["first.tar", "second.tar"] {
        let layer = stage.join(name);
        contents.push(digest(&layer)?);
        output(Command::new("gzip").args(["-9n", "--force"]).arg(&layer))?;
        layers.push(blob(&blobs, &stage.join(format!("{name}.gz")), "image.layer.v1.tar+gzip")?);
    }
    let created = output(Command::new("date").args(["--utc", "--date", &format!("@{epoch}"), "+%FT%TZ"]))?;
    let config = put(&blobs, stage, &config(&created, version, &contents), "image.config.v1+json")?;
    let manifest =
        json!({"schemaVersion": 2, "mediaType": media("image.manifest.v1+json"), "config": config, "layers": layers});
    let mut manifest = put(&blobs, stage, &manifest, "image.manifest.v1+json")?;
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": format!("localhost/towpath:{version}")});
    write(&archive.join("index.json"), &json!({"schemaVersion": 2, "manifests": [manifest]}).to_string())?;
    write(&archive.join("oci-layout"), r#"{"imageLayoutVersion":"1.0.0"}"#)?;
    super::pack::make_readable(&archive)?;
    let image = out.join(format!("towpath-{version}-{}.oci.tar", std::env::consts::ARCH));
    run(tar(epoch, "0").arg("--file").arg(&image).arg("--directory").arg(&archive).args([
        "blobs",
        "index.json",
        "oci-layout",
    ]))?;
    Ok(image)
}

/// Libraries, where the program looks for them, and the user.
fn system(binary: &Path, extra: &Path) -> Result<(), String> {
    // "name => path (address)", or "path (address)".
    for line in output(Command::new("ldd").arg(binary))?.lines() {
        let Some(library) = line.split_whitespace().find(|word| word.starts_with('/')) else { continue };
        install(Path::new(library), &extra.join(library.trim_start_matches('/')))?;
    }
    write(&extra.join("etc/passwd"), &format!("towpath:x:{USER}:{USER}::/var/lib/towpath:/usr/sbin/nologin\n"))?;
    write(&extra.join("etc/group"), &format!("towpath:x:{USER}:\n"))
}

fn tar(epoch: &str, owner: &str) -> Command {
    let mut tar = Command::new("tar");
    tar.args(["--create", "--format=gnu", "--sort=name", "--numeric-owner"]);
    tar.args([format!("--owner={owner}"), format!("--group={owner}"), format!("--mtime=@{epoch}")]);
    tar
}

fn config(created: &str, version: &str, contents: &[String]) -> Value {
    let second = 1_000_000_000_u64;
    json!({
        "created": created,
        "architecture": match std::env::consts::ARCH { "x86_64" => "amd64", "aarch64" => "arm64", other => other },
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "WorkingDir": "/var/lib/towpath",
            "Env": ["PATH=/usr/bin", "HOME=/var/lib/towpath", "RUNTIME_DIRECTORY=/run/towpath"],
            "Entrypoint": ["/usr/bin/tow"],
            "Cmd": ["--help"],
            "ExposedPorts": {"5555/tcp": {}, "5571/tcp": {}},
            "Volumes": {"/var/lib/towpath": {}},
            "Healthcheck": {"Test": ["CMD", "/usr/bin/tow", "status", "--check"], "Interval": 30 * second, "Timeout": 10 * second},
            "Labels": {"org.opencontainers.image.title": "towpath", "org.opencontainers.image.version": version},
        },
        "rootfs": {"type": "layers", "diff_ids": contents.iter().map(|digest| format!("sha256:{digest}")).collect::<Vec<_>>()},
        "history": contents.iter().map(|_| json!({"created": created, "created_by": "cargo xtask dist"})).collect::<Vec<_>>(),
    })
}

fn media(kind: &str) -> String {
    format!("application/vnd.oci.{kind}")
}

fn digest(file: &Path) -> Result<String, String> {
    let sum = output(Command::new("sha256sum").arg(file))?;
    Ok(sum.split_whitespace().next().unwrap_or_default().to_owned())
}

/// Stores JSON under its digest; its descriptor.
fn put(blobs: &Path, stage: &Path, content: &Value, kind: &str) -> Result<Value, String> {
    let file = stage.join("content.json");
    write(&file, &content.to_string())?;
    blob(blobs, &file, kind)
}

/// Stores a file under its digest; its descriptor.
fn blob(blobs: &Path, file: &Path, kind: &str) -> Result<Value, String> {
    let digest = digest(file)?;
    let size = fs::metadata(file).map_err(|error| format!("{}: {error}", file.display()))?.len();
    install(file, &blobs.join(&digest))?;
    Ok(json!({"mediaType": media(kind), "digest": format!("sha256:{digest}"), "size": size}))
}
