//! How each server is started. All listen on 127.0.0.1 and on a port that was free.

use std::ffi::OsStr;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::keys::Keys;
use crate::process::{Life, Ready, ServerSpec};
use crate::programs::{Programs, peers_folder};

const LOCAL: &str = "127.0.0.1";

/// `tow serve` of a file or folder.
pub fn tow(programs: &Programs, path: &Path) -> Result<ServerSpec> {
    tow_at(programs, path, LOCAL)
}

/// The same on another address.
pub fn tow_at(programs: &Programs, path: &Path, address: &str) -> Result<ServerSpec> {
    let mut command = programs.command("tow")?;
    command.arg("serve").arg(path).args(["--bind", &format!("tcp://{address}:0")]);
    Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
}

/// The file server on libzmq.
pub fn libzmq(programs: &Programs, chunk_bytes: u64, file: &Path) -> Result<ServerSpec> {
    let mut command = programs.command("zmq_server")?;
    command.args(["--chunk", &chunk_bytes.to_string()]).arg(file);
    Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
}

/// The same with a key.
pub fn libzmq_encrypted(programs: &Programs, chunk_bytes: u64, file: &Path, keys: &Keys) -> Result<ServerSpec> {
    let mut spec = libzmq(programs, chunk_bytes, file)?;
    spec.command.args(["--curve", &keys.secret]);
    Ok(spec)
}

/// The file server without a messaging layer.
pub fn raw<P: AsRef<OsStr>>(programs: &Programs, options: &[&str], files: &[P]) -> Result<ServerSpec> {
    let mut command = programs.command("raw_server")?;
    command.args(options).args(files);
    Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
}

/// The same for one file, hashing it meanwhile, or `--known` beforehand.
pub fn raw_verified(programs: &Programs, file: &Path, options: &[&str]) -> Result<ServerSpec> {
    let mut command = programs.command("raw_verified")?;
    command.arg("serve").arg(file).args(options);
    Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
}

/// The Java server: `copy` or `transfer`.
pub fn java<P: AsRef<OsStr>>(programs: &Programs, how: &str, files: &[P]) -> Result<ServerSpec> {
    let mut command = programs.command("java")?;
    command.arg(peers_folder().join("TransferServer.java")).arg(how).args(files);
    Ok(ServerSpec { command, ready: Ready::Line, life: Life::Long })
}

/// The same with a key.
pub fn tow_encrypted(programs: &Programs, path: &Path, keys: &Keys) -> Result<ServerSpec> {
    let mut spec = tow(programs, path)?;
    spec.command.arg("--key").arg(&keys.secret_file).arg("--anyone");
    Ok(spec)
}

/// The same with CURVE's own cipher for everybody.
pub fn tow_without_aes(programs: &Programs, path: &Path, keys: &Keys) -> Result<ServerSpec> {
    let mut spec = tow_encrypted(programs, path, keys)?;
    spec.command.env("TOW_WITHOUT_AES", "1");
    Ok(spec)
}

/// nginx with sendfile and one worker, serving a folder.
pub fn nginx(programs: &Programs, state: &Path, root: &Path) -> Result<ServerSpec> {
    nginx_with(programs, state, root, "")
}

/// The same with more directives for all that it serves.
pub fn nginx_with(programs: &Programs, state: &Path, root: &Path, directives: &str) -> Result<ServerSpec> {
    nginx_listening(programs, state, root, (LOCAL, directives, ""))
}

/// The same on another address.
pub fn nginx_at(programs: &Programs, state: &Path, root: &Path, address: &str) -> Result<ServerSpec> {
    nginx_listening(programs, state, root, (address, "", ""))
}

/// The same over TLS.
pub fn nginx_encrypted(programs: &Programs, state: &Path, root: &Path, keys: &Keys) -> Result<ServerSpec> {
    let (certificate, key) = (keys.certificate.display(), keys.certificate_key.display());
    let directives = format!("ssl_certificate {certificate};\n  ssl_certificate_key {key};");
    nginx_listening(programs, state, root, (LOCAL, &directives, "ssl"))
}

fn nginx_listening(
    programs: &Programs,
    state: &Path,
    root: &Path,
    (address, directives, how): (&str, &str, &str),
) -> Result<ServerSpec> {
    let port = free_port()?;
    let state = state.join("nginx");
    fs::create_dir_all(&state)?;
    let user = first_word(Command::new("id").arg("-un"))?;
    // nginx warns that `user` is of no use unless root starts it; it is needed there to read what root wrote.
    let config = format!(
        "daemon off;\nuser {user};\nworker_processes 1;\npid {state}/pid;\nerror_log stderr warn;\n\
         events {{ worker_connections 8192; }}\n\
         http {{\n  access_log off;\n  {directives}\n  sendfile on;\n  tcp_nopush on;\n  keepalive_requests 100000;\n\
         client_body_temp_path {state}/body;\n  proxy_temp_path {state}/proxy;\n  fastcgi_temp_path {state}/fastcgi;\n\
         uwsgi_temp_path {state}/uwsgi;\n  scgi_temp_path {state}/scgi;\n\
         server {{ listen {address}:{port} {how} backlog=4096; location / {{ root {root}; }} }}\n}}\n",
        state = state.display(),
        root = root.display(),
    );
    let file = state.join("nginx.conf");
    fs::write(&file, config)?;
    let mut command = programs.command("nginx")?;
    command.arg("-p").arg(&state).arg("-e").arg("stderr").arg("-c").arg(&file);
    Ok(ServerSpec { command, ready: Ready::Port(port), life: Life::Long })
}

/// The rsync daemon, serving a folder as the module `files`. As it comes, it loses 40 ms three times to delayed acknowledgements;
/// TCP_NODELAY on both sides prevents that.
pub fn rsync(programs: &Programs, state: &Path, root: &Path, no_delay: bool) -> Result<ServerSpec> {
    rsync_at(programs, state, root, no_delay, LOCAL)
}

/// The same on another address.
pub fn rsync_at(programs: &Programs, state: &Path, root: &Path, no_delay: bool, address: &str) -> Result<ServerSpec> {
    let port = free_port()?;
    let config = format!(
        "use chroot = no\nreverse lookup = no\naddress = {address}\nlog file = /dev/null\nuid = {}\ngid = {}\n{}[files]\npath = {}\nread only = yes\n",
        first_word(Command::new("id").arg("-u"))?,
        first_word(Command::new("id").arg("-g"))?,
        if no_delay { "socket options = TCP_NODELAY\n" } else { "" },
        root.display()
    );
    let file = state.join("rsyncd.conf");
    fs::write(&file, config)?;
    let mut command = programs.command("rsync")?;
    command.args(["--daemon", "--no-detach", "--port", &port.to_string(), "--config"]).arg(file);
    Ok(ServerSpec { command, ready: Ready::Port(port), life: Life::Forks })
}

/// The ssh daemon, for rsync.
pub fn ssh(programs: &Programs, keys: &Keys) -> Result<ServerSpec> {
    let port = free_port()?;
    // It wants this directory, and has no option for another.
    fs::create_dir_all("/run/sshd")?;
    let mut command = programs.command("sshd")?;
    command.args(["-D", "-e", "-f", "/dev/null", "-h"]).arg(&keys.ssh);
    for option in [
        format!("Port={port}"),
        "ListenAddress=127.0.0.1".to_owned(),
        format!("AuthorizedKeysFile={}.pub", keys.ssh.display()),
        "StrictModes=no".to_owned(),
        "PidFile=none".to_owned(),
        "PermitRootLogin=prohibit-password".to_owned(),
        "LogLevel=ERROR".to_owned(),
    ] {
        command.args(["-o", &option]);
    }
    Ok(ServerSpec { command, ready: Ready::Port(port), life: Life::Forks })
}

/// tar of a folder, into the first connection.
pub fn tar(programs: &Programs, root: &Path) -> Result<ServerSpec> {
    let mut command = programs.command("socket_exec")?;
    command.args(["listen", "tar", "-cf", "-", "-C"]).arg(root).arg(".");
    Ok(ServerSpec { command, ready: Ready::Line, life: Life::Once })
}

/// A port that nothing listens on, for servers that can't choose one themselves.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port())
}

fn first_word(command: &mut Command) -> Result<String> {
    let output = command.output()?;
    let text = String::from_utf8(output.stdout)?;
    text.split_whitespace().next().map(str::to_owned).context("id printed nothing")
}
