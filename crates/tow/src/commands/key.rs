//! `tow key`: keys of CURVE.

use crate::cli::certificate::{Certificate, paths_of, write_new};
use crate::cli::escape::Line;
use crate::cli::exit::Failure;
use crate::cli::output::print_line;
use crate::cli::secrets;
use serde_json::json;
use std::path::PathBuf;
use std::process::ExitCode;
use towpath_sockets::{SecretKey, system_random};

/// Arguments of `tow key`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make a key: NAME, for everybody, and NAME_secret, for nobody else.
    New {
        /// Name, for ~/.config/tow, or path of the public file.
        #[arg(default_value = "key")]
        name: PathBuf,
    },
    /// Show the public key in a key file.
    Show {
        /// Key file of tow, czmq or pyzmq; of a secret one, the public key is shown.
        file: PathBuf,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// Makes or shows a key.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::New { name } => {
            let (public, secret) = paths_of(&name).map_err(Failure::usage)?;
            secrets::protect();
            let key = SecretKey::generate(&system_random()).map_err(Failure::failed)?;
            let name = name.file_name().unwrap_or_default().to_string_lossy().into_owned();
            write_new(&name, &key, &public, &secret).map_err(Failure::failed)?;
            print_line(format_args!("public  {}", Line(&public.display().to_string())))?;
            print_line(format_args!("secret  {}", Line(&secret.display().to_string())))?;
            print_line(format_args!("key     {}", key.public_key()))?;
        }
        Command::Show { file, json } => {
            let Certificate { name, public, secret } = Certificate::read(&file).map_err(Failure::failed)?;
            if json {
                let hex = public.to_hex();
                print_line(json!({"name": name, "key": public.to_string(), "hex": hex, "secret": secret.is_some()}))?;
            } else {
                print_line(format_args!("name  {}", Line(&name)))?;
                print_line(format_args!("key   {public}"))?;
                print_line(format_args!("hex   {}", public.to_hex()))?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
