//! How each receiver is started, given the port of its server.

use std::path::Path;
use std::process::Command;

use anyhow::Result;

use crate::ends;
use crate::keys::Keys;
use crate::programs::Programs;

/// Requests that a receiver keeps in flight where the model allows more than one.
pub const AHEAD: u64 = 10;

/// How a receiver on libzmq asks for a file.
#[derive(Clone, Copy)]
pub struct Asking {
    /// 1: everything at once; 2: a chunk at a time; 3: [`AHEAD`] chunks ahead.
    pub model: u8,
    pub chunk_bytes: u64,
    pub clients: u64,
}

/// Stock receivers on libzmq, in one process.
pub fn libzmq(programs: &Programs, port: u16, size: u64, asking: Asking, to: Option<&Path>) -> Result<Command> {
    let mut command = programs.command("zmq_client")?;
    command.args(["--endpoint", &format!("tcp://127.0.0.1:{port}"), "--size", &size.to_string()]);
    command.args(["--model", &asking.model.to_string()]);
    if asking.model > 1 {
        command.args(["--chunk", &asking.chunk_bytes.to_string()]);
    }
    if asking.model == 3 {
        command.args(["--ahead", &AHEAD.to_string()]);
    }
    if asking.clients > 1 {
        command.args(["--clients", &asking.clients.to_string()]);
    }
    if let Some(path) = to {
        command.arg("--to").arg(path);
    }
    Ok(command)
}

/// The same with the server's key.
pub fn libzmq_encrypted(
    programs: &Programs,
    port: u16,
    size: u64,
    asking: Asking,
    to: Option<&Path>,
    keys: &Keys,
) -> Result<Command> {
    let mut command = libzmq(programs, port, size, asking, to)?;
    command.args(["--curve", &keys.public]);
    Ok(command)
}

/// The same receiver for all servers, which drops what it gets: one large file over each of some connections.
pub fn dropping(programs: &Programs, protocol: &str, port: u16, size: u64, options: &[&str]) -> Result<Command> {
    let mut command = programs.command("receiver")?;
    command.args(["--protocol", protocol, "--port", &port.to_string(), "--size", &size.to_string()]);
    command.args(options);
    Ok(command)
}

/// The same receiver, getting many files over one connection.
pub fn dropping_files(
    programs: &Programs,
    protocol: &str,
    port: u16,
    options: &[&str],
    files: &[String],
) -> Result<Command> {
    let mut command = programs.command("receiver")?;
    command.args(["--protocol", protocol, "--port", &port.to_string()]);
    command.args(options).args(files);
    Ok(command)
}

/// The receiver that writes what `raw_server` sends to a file: `copy`, `threads` or `splice`.
pub fn raw_to_file(programs: &Programs, port: u16, how: &str, to: &Path) -> Result<Command> {
    let mut command = programs.command("file_receiver")?;
    command.args(["--port", &port.to_string(), "--how", how, "--to"]).arg(to);
    Ok(command)
}

/// The receiver that hashes what `raw_verified` sends, and writes it to a file: `buffers` or `splice`.
pub fn raw_verified(programs: &Programs, port: u16, how: &str, to: &Path) -> Result<Command> {
    let mut command = programs.command("raw_verified")?;
    command.args(["get", "--port", &port.to_string(), "--how", how, "--to"]).arg(to);
    Ok(command)
}

/// `tow get`, to a file or folder, or dropping what it gets.
pub fn tow(programs: &Programs, port: u16, path: &str, to: Option<&Path>, options: &[&str]) -> Result<Command> {
    let mut command = programs.command("tow")?;
    command.args(["get", &format!("tcp://127.0.0.1:{port}/{path}")]);
    match to {
        Some(to) => command.arg(to),
        None => command.arg("--discard"),
    };
    command.arg("--json").args(options);
    Ok(command)
}

/// The same with the server's key.
pub fn tow_encrypted(
    programs: &Programs,
    port: u16,
    path: &str,
    to: Option<&Path>,
    options: &[&str],
    keys: &Keys,
) -> Result<Command> {
    let mut command = tow(programs, port, path, to, options)?;
    command.args(["--server-key", &keys.public]);
    Ok(command)
}

/// PINGs to a server that sends 16 MiB frames of a file meanwhile, to another connection or to the same one.
pub fn pings(programs: &Programs, port: u16, size: u64, pings: u64, keys: &Keys, options: &[&str]) -> Result<Command> {
    let mut command = programs.command("tow_pings")?;
    command.args(["--port", &port.to_string(), "--server-key", &keys.public, "--size", &size.to_string()]);
    command.args(["--pings", &pings.to_string()]).args(options);
    Ok(command)
}

/// `tow ls --digest`: the server computes a digest, and remembers it.
pub fn tow_digest(programs: &Programs, port: u16, path: &str) -> Result<Command> {
    let mut command = programs.command("tow")?;
    command.args(["ls", &format!("tcp://127.0.0.1:{port}/{path}"), "--digest"]);
    Ok(command)
}

/// curl, to a file.
pub fn curl(programs: &Programs, port: u16, path: &str, to: &Path) -> Result<Command> {
    let mut command = programs.command("curl")?;
    command.args(["--silent", "--fail", "--output"]).arg(to);
    command.arg(format!("http://127.0.0.1:{port}/{path}"));
    Ok(command)
}

/// curl over TLS.
pub fn curl_encrypted(programs: &Programs, port: u16, path: &str, to: &Path, keys: &Keys) -> Result<Command> {
    let mut command = programs.command("curl")?;
    command.args(["--silent", "--fail", "--cacert"]).arg(&keys.certificate).arg("--output").arg(to);
    command.arg(format!("https://127.0.0.1:{port}/{path}"));
    Ok(command)
}

/// rsync over ssh.
pub fn rsync_ssh(programs: &Programs, port: u16, file: &Path, to: &Path, keys: &Keys) -> Result<Command> {
    let ssh = programs.command("ssh")?;
    let shell = format!(
        "{} -p {port} -i {} -F /dev/null -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
        ssh.get_program().display(),
        keys.ssh.display()
    );
    let mut command = programs.command("rsync")?;
    command.args(["-t", "--whole-file", "--inplace", "--rsh", &shell]);
    command.arg(format!("127.0.0.1:{}", file.display())).arg(to);
    Ok(command)
}

/// rsync, of a path in the module `files`.
pub fn rsync(programs: &Programs, port: u16, path: &str, to: &Path, options: &[&str]) -> Result<Command> {
    let mut command = programs.command("rsync")?;
    command.args(options).arg(format!("rsync://127.0.0.1:{port}/files/{path}")).arg(to);
    Ok(command)
}

/// tar of what comes over a connection.
pub fn tar(programs: &Programs, port: u16, to: &Path) -> Result<Command> {
    let mut command = programs.command("socket_exec")?;
    command.args(["connect", &port.to_string(), "tar", "-xf", "-", "-C"]).arg(to);
    Ok(command)
}

/// A receiver in Python, on this library; see bench/peers/python_files.py.
pub fn python(programs: &Programs, library: &str, port: u16, path: &str) -> Result<Command> {
    let mut command = ends::python(programs, "python_files.py")?;
    command.args([library, "--port", &port.to_string(), "--path", path]);
    Ok(command)
}
