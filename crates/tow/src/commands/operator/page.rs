//! `tow page`.

use crate::admin::client::{ServerArgs, find_one};
use crate::admin::own_directory;
use crate::cli::escape::{Json, Line};
use crate::cli::exit::Failure;
use crate::cli::output::{eprint_line, print_line};
use serde_json::json;
use std::io::{self, IsTerminal, Write};
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};

/// The program that opens files and addresses as the user likes it.
const OPENER: &str = "xdg-open";

/// Arguments of `tow page`.
#[derive(clap::Args)]
pub struct PageArguments {
    /// The server, as of --admin.
    #[arg(conflicts_with = "admin")]
    server: Option<String>,
    /// Open it in the browser [default: on a terminal with a display]
    #[arg(long, overrides_with = "no_open")]
    open: bool,
    /// Only print the address.
    #[arg(long)]
    no_open: bool,
    /// Let it show everything, and change nothing.
    #[arg(long)]
    read_only: bool,
    /// Print a JSON object.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    of: ServerArgs,
}

/// Prints an address of a server's page that works as it is, and opens it. The server begins to serve it, if it doesn't yet.
pub fn page(arguments: &PageArguments) -> Result<ExitCode, Failure> {
    let client = find_one(&arguments.of.or(arguments.server.as_deref()), None)?;
    let reply = client.post("/api/v1/page", &json!({ "read_only": arguments.read_only }))?;
    let [page, token] = ["page", "token"].map(|member| reply[member].as_str().unwrap_or_default());
    let address = format!("{page}#token={token}");
    if arguments.json {
        print_line(Json(json!({ "page": page, "token": token, "address": address, "host": reply["host"] })))?;
    } else {
        print_line(Line(&address))?;
        if let Some(port) = local_port(page) {
            let host = reply["host"].as_str().unwrap_or("HOST");
            let tunnel = format!("ssh -L {port}:127.0.0.1:{port} {host}");
            eprint_line(format_args!("On another machine, first: {}", Line(&tunnel)));
        }
    }
    let has_display = ["DISPLAY", "WAYLAND_DISPLAY"].iter().any(|name| std::env::var_os(name).is_some());
    let is_for_person = io::stdout().is_terminal() && has_display && !arguments.json;
    if arguments.open || (is_for_person && !arguments.no_open) {
        match open(&address) {
            Err(error) if arguments.open => return Err(Failure::failed(format!("cannot open it: {error}"))),
            Err(error) => eprint_line(format_args!("tow: it isn't opened: {error}")),
            Ok(()) => {}
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// The port of an address on this machine.
fn local_port(page: &str) -> Option<u16> {
    let (host, port) = page.strip_prefix("http://")?.strip_suffix('/')?.rsplit_once(':')?;
    port.parse().ok().filter(|_| matches!(host, "127.0.0.1" | "localhost" | "[::1]"))
}

/// Opens a file that leads to the address, since others can see the arguments of a process, and so the token.
fn open(address: &str) -> Result<(), String> {
    let file = leading_to(address).map_err(|error| error.to_string())?;
    let opened = Command::new(OPENER)
        .arg(&file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .map_err(|error| format!("{OPENER}: {error}"))?;
    opened.success().then_some(()).ok_or_else(|| format!("{OPENER}: {opened}"))
}

/// Makes the file, for this user alone. The next one replaces it.
fn leading_to(address: &str) -> io::Result<PathBuf> {
    let directory = own_directory().map_err(io::Error::other)?;
    // Addresses have no character that HTML has another meaning for; if the server says otherwise, it isn't tow.
    if !address.bytes().all(|one| one.is_ascii_alphanumeric() || b":/.[]#=-_".contains(&one)) {
        return Err(io::Error::other("the server gives a strange address"));
    }
    let text =
        format!("<!doctype html><meta charset=\"utf-8\"><meta http-equiv=\"refresh\" content=\"0; url={address}\">\n");
    let mut file = tempfile::Builder::new().prefix(".page").tempfile_in(&directory)?;
    file.write_all(text.as_bytes())?;
    let path = directory.join("page.html");
    file.persist(&path).map_err(|failed| failed.error)?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tunnel_is_for_addresses_of_the_machine() {
        assert_eq!(local_port("http://127.0.0.1:41234/"), Some(41234));
        assert_eq!(local_port("http://localhost:5580/"), Some(5580));
        assert_eq!(local_port("https://tow.example.org/"), None);
    }
}
