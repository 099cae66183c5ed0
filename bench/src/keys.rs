//! Keys and certificates of the servers that encrypt, made again for each table.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};

use crate::programs::Programs;

/// A key of each kind.
#[derive(Debug)]
pub struct Keys {
    /// For CURVE, in Z85: the public key, the secret one, and the file that has both.
    pub public: String,
    pub secret: String,
    pub secret_file: PathBuf,
    /// For TLS: a certificate for 127.0.0.1 that is signed by itself, and its key.
    pub certificate: PathBuf,
    pub certificate_key: PathBuf,
    /// For ssh: the key of host and user. The public one is beside it.
    pub ssh: PathBuf,
}

impl Keys {
    pub fn make(programs: &Programs, folder: &Path) -> Result<Keys> {
        let folder = folder.join("keys");
        std::fs::create_dir_all(&folder)?;
        let (certificate, certificate_key) = (folder.join("certificate.pem"), folder.join("key.pem"));
        let (ssh, curve) = (folder.join("ssh"), folder.join("curve"));
        run(programs.command("tow")?.args(["key", "new"]).arg(&curve))?;
        let secret_file = folder.join("curve_secret");
        let text = std::fs::read_to_string(&secret_file)?;
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name));
            line.map(|line| line.trim_matches('"').to_owned()).context("tow key new wrote no key")
        };
        let (public, secret) = (field("public-key = ")?, field("secret-key = ")?);
        // Without them, the rows that need them say so.
        if let Ok(mut openssl) = programs.command("openssl") {
            openssl.args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:P-256",
                "-nodes",
                "-days",
                "2",
            ]);
            openssl.args(["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1", "-keyout"]);
            run(openssl.arg(&certificate_key).arg("-out").arg(&certificate))?;
        }
        if let Ok(mut keygen) = programs.command("ssh-keygen") {
            run(keygen.args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(&ssh))?;
        }
        Ok(Keys { public, secret, secret_file, certificate, certificate_key, ssh })
    }
}

fn run(command: &mut Command) -> Result<()> {
    let output = command.output()?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
