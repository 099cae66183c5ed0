//! `tow queue`: the log of a cell of brokers.

use crate::cli::exit::Failure;
use crate::cli::queue_args::QueueArgs;
use crate::cli::units::size_from_1m;
use std::process::ExitCode;

/// Arguments of `tow queue`.
#[derive(clap::Args)]
pub struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Make the queue of a cell, once.
    Init {
        #[command(flatten)]
        queue: QueueArgs,
        /// Space that NATS reserves for it.
        #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = size_from_1m)]
        queue_size: u64,
    },
    /// Show who leads, and how much is in the queue. Exit status 1: nobody leads.
    Status {
        #[command(flatten)]
        queue: QueueArgs,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
    /// Check the settings of the queue. Exit status 1: some are wrong.
    Check {
        #[command(flatten)]
        queue: QueueArgs,
        /// Print a JSON object.
        #[arg(long)]
        json: bool,
    },
}

/// Does it.
pub fn run(arguments: Arguments) -> Result<ExitCode, Failure> {
    match arguments.command {
        Command::Init { queue, queue_size } => real::init(queue, queue_size),
        Command::Status { queue, json } => real::status(queue, json),
        Command::Check { queue, json } => real::check(queue, json),
    }
}

#[cfg(not(feature = "nats"))]
mod real {
    use super::{ExitCode, Failure, QueueArgs};

    pub fn init(queue: QueueArgs, _: u64) -> Result<ExitCode, Failure> {
        queue.options("", None).map(|_| ExitCode::SUCCESS)
    }

    pub fn status(queue: QueueArgs, _: bool) -> Result<ExitCode, Failure> {
        queue.options("", None).map(|_| ExitCode::SUCCESS)
    }

    pub fn check(queue: QueueArgs, _: bool) -> Result<ExitCode, Failure> {
        queue.options("", None).map(|_| ExitCode::SUCCESS)
    }
}

#[cfg(feature = "nats")]
mod real {
    use super::{ExitCode, Failure, QueueArgs};
    use crate::admin::{members_json, monitored_json, stream_json};
    use crate::cli::escape::{Json, Line};
    use crate::cli::output::{eprint_line, print_line};
    use crate::commands::operator::cell;
    use serde_json::json;
    use towpath_broker::Sync;
    use towpath_broker::store::CellOptions;
    use towpath_cell::nats::{self, NatsError};

    /// Said wherever settings are, since NATS doesn't show it to its clients.
    const SYNC: &str = "sync_interval of the NATS servers is unknown: only their monitoring ports show it (--queue-monitor http://HOST:8222)";
    const SYNC_ALWAYS: &str = "it is to be `always` in their configuration (jetstream { sync_interval: always }), else what was accepted may \
                               be lost when all machines lose power";

    fn options(queue: QueueArgs) -> Result<CellOptions, Failure> {
        queue.options("", None)?.ok_or_else(|| Failure::usage("--queue and --cell say which queue"))
    }

    fn failure(error: NatsError) -> Failure {
        match error {
            NatsError::Name | NatsError::Address(_) => Failure::usage(error),
            error => Failure::failed(error),
        }
    }

    pub fn init(queue: QueueArgs, bytes: u64) -> Result<ExitCode, Failure> {
        let options = options(queue)?;
        let is_new = nats::init(&options, bytes).map_err(failure)?;
        if options.replicas < 3 {
            let copies =
                if options.replicas == 1 { "one copy".to_owned() } else { format!("{} copies", options.replicas) };
            eprint_line(format_args!(
                "tow: the queue has {copies}: what was accepted is lost with a disk, and nothing is accepted while a node is away"
            ));
        }
        eprint_line(format_args!("tow: {SYNC}; {SYNC_ALWAYS}"));
        let what = if is_new { "made" } else { "is there already, with the right settings" };
        print_line(format_args!("the queue of the cell {}: {what}", options.cell))?;
        Ok(ExitCode::SUCCESS)
    }

    pub fn check(queue: QueueArgs, json: bool) -> Result<ExitCode, Failure> {
        let (stream, monitored) = nats::check(&options(queue)?).map_err(failure)?;
        let rare = monitored.iter().filter(|server| matches!(server.sync, Sync::Every(_))).count();
        let is_right = stream.wrong.is_empty() && rare == 0;
        let monitored = json!(monitored_json(&monitored));
        if json {
            let mut object = stream_json(&stream);
            object["monitored"] = monitored;
            print_line(Json(object))?;
        } else {
            for wrong in &stream.wrong {
                print_line(format_args!("wrong: {}", Line(wrong)))?;
            }
            if rare > 0 {
                print_line(format_args!("wrong: sync_interval: {}; {SYNC_ALWAYS}", Line(&cell::sync(&monitored))))?;
            }
            for (name, why) in stream.followers.iter().filter_map(|(name, why)| Some((name, (*why)?))) {
                print_line(format_args!("a replica of the queue is {why}: {}", Line(name)))?;
            }
            if is_right {
                print_line("the settings of the queue are right")?;
            }
            match monitored.as_array().is_some_and(Vec::is_empty) {
                true => eprint_line(format_args!("tow: {SYNC}; {SYNC_ALWAYS}")),
                false if rare == 0 => print_line(format_args!("sync_interval: {}", Line(&cell::sync(&monitored))))?,
                false => {}
            }
        }
        Ok(if is_right { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    pub fn status(queue: QueueArgs, json: bool) -> Result<ExitCode, Failure> {
        let options = options(queue)?;
        let state = nats::status(&options).map_err(failure)?;
        let (epoch, endpoint) = state.leader.clone().unwrap_or_default();
        let mut stream = stream_json(&state.stream);
        stream["needed_bytes"] = state.needed_bytes.into();
        let members = json!(members_json(&state.members));
        if json {
            let more = json!({
                "cell": options.cell, "format": state.format, "is_led": state.is_led, "epoch": epoch, "leader": endpoint,
                "requests": state.requests, "failure": state.failure, "members": members,
            });
            if let (Some(object), Some(more)) = (stream.as_object_mut(), more.as_object()) {
                object.extend(more.clone());
            }
            print_line(Json(stream))?;
        } else {
            let leader = match (state.is_led, epoch) {
                (_, 0) => "nobody has led yet".to_owned(),
                (true, _) => format!("{endpoint} leads, epoch {epoch}"),
                (false, _) => format!("nobody leads; the last one was {endpoint}, epoch {epoch}"),
            };
            let mut lines = vec![("cell", format!("{}: {leader}", options.cell))];
            lines.extend(cell::members(&members).into_iter().map(|member| ("member", member)));
            lines.push(("requests", state.requests.to_string()));
            lines.push(("queue", cell::queue(&stream)));
            lines.push(("NATS", cell::nats(&stream, "")));
            lines.extend(state.stream.wrong.iter().chain(&state.failure).map(|wrong| ("WRONG", wrong.clone())));
            for (name, value) in lines {
                print_line(format_args!("{name:<10}{}", Line(&value)))?;
            }
        }
        Ok(if state.is_led && state.failure.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}
