//! Options of a cell's log: where it is, and how to get at it.

use crate::cli::exit::Failure;
use crate::cli::units::{duration, positive};
use std::path::{Path, PathBuf};
#[cfg(feature = "nats")]
use std::sync::Arc;
use std::time::Duration;
use towpath_broker::store::CellOptions;
#[cfg(feature = "nats")]
use towpath_spool::{SharedBodies, SharedDir};

/// Silence of a leader that can't be shorter: it shows every second that it is there.
const TAKEOVER_MIN: Duration = Duration::from_secs(2);

/// Options of `tow queue`, and of brokers in a cell.
#[derive(clap::Args)]
#[command(next_help_heading = "Cell")]
pub struct QueueArgs {
    /// NATS servers that have the queue of a cell, nats://HOST:4222, with commas between them.
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "cell")]
    pub queue: Vec<String>,
    /// Name of the cell.
    #[arg(long, value_name = "NAME", requires = "queue")]
    pub cell: Option<String>,
    /// Replicas that the queue must have; with fewer than 3 it is lost with a disk.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = positive::<u64>, requires = "queue")]
    pub queue_replicas: u64,
    /// How long a leader may be silent; from 2s on.
    #[arg(long, value_name = "TIME", default_value = "3s", value_parser = takeover, requires = "queue")]
    pub takeover_after: Duration,
    /// Durable directory or s3://BUCKET/PREFIX, shared by all brokers, for bodies over 16 MiB.
    #[arg(long, value_name = "DIR|URL", requires = "queue")]
    bodies: Option<PathBuf>,
    /// Monitoring ports of NATS, http://HOST:8222, to see how it syncs.
    #[arg(long, value_name = "URL", value_delimiter = ',', requires = "queue")]
    queue_monitor: Vec<String>,
    /// File of credentials for NATS.
    #[arg(long, value_name = "FILE", requires = "queue")]
    queue_creds: Option<PathBuf>,
    /// File of certificates that sign those of the NATS servers.
    #[arg(long, value_name = "FILE", requires = "queue")]
    queue_ca: Option<PathBuf>,
    /// File of this broker's certificate for NATS.
    #[arg(long, value_name = "FILE", requires = "queue_key")]
    queue_cert: Option<PathBuf>,
    /// File of its key.
    #[arg(long, value_name = "FILE", requires = "queue_cert")]
    queue_key: Option<PathBuf>,
}

fn takeover(text: &str) -> Result<Duration, String> {
    match duration(text)? {
        time if time < TAKEOVER_MIN => {
            Err("a leader shows every second that it is there: give it 2s at least".to_owned())
        }
        time => Ok(time),
    }
}

/// Where a cell has large bodies.
#[cfg(feature = "nats")]
fn bodies(place: &Path, cell: &str, spool: Option<&Path>) -> Result<Arc<dyn SharedBodies>, Failure> {
    match place.to_str().filter(|place| place.starts_with("s3://")) {
        Some(url) => bodies_in_bucket(url, cell, spool),
        None => Ok(Arc::new(SharedDir::new(place, cell))),
    }
}

#[cfg(all(feature = "nats", feature = "s3"))]
fn bodies_in_bucket(url: &str, cell: &str, spool: Option<&Path>) -> Result<Arc<dyn SharedBodies>, Failure> {
    Ok(Arc::new(super::bucket_bodies::BucketBodies::open(url, cell, spool).map_err(Failure::usage)?))
}

#[cfg(all(feature = "nats", not(feature = "s3")))]
fn bodies_in_bucket(_: &str, _: &str, _: Option<&Path>) -> Result<Arc<dyn SharedBodies>, Failure> {
    Err(Failure::usage("s3://: this build of tow has no S3; build it with `cargo build --release --features nats,s3`"))
}

impl QueueArgs {
    /// The cell, if one is named. `endpoint`: where clients and workers reach this broker. `spool`: its directory for large bodies.
    #[cfg(feature = "nats")]
    pub fn options(self, endpoint: &str, spool: Option<&Path>) -> Result<Option<CellOptions>, Failure> {
        let Some(cell) = self.cell else { return Ok(None) };
        let bodies = self.bodies.map(|place| bodies(&place, &cell, spool)).transpose()?;
        let options = CellOptions {
            servers: self.queue,
            cell,
            replicas: self.queue_replicas,
            takeover_after: self.takeover_after,
            endpoint: endpoint.to_owned(),
            credentials: self.queue_creds,
            ca: self.queue_ca,
            bodies,
            monitors: self.queue_monitor,
            certificate: self.queue_cert.zip(self.queue_key),
        };
        options.check().map_err(Failure::usage)?;
        Ok(Some(options))
    }

    /// No cell; an error if one is named.
    #[cfg(not(feature = "nats"))]
    pub fn options(self, _: &str, _: Option<&Path>) -> Result<Option<CellOptions>, Failure> {
        let QueueArgs {
            cell,
            queue_creds: _,
            queue_ca: _,
            queue_cert: _,
            queue_key: _,
            queue_monitor: _,
            bodies: _,
            ..
        } = self;
        match cell {
            None => Ok(None),
            Some(_) => Err(Failure::usage(
                "--queue: this build of tow has no NATS; build it with `cargo build --release --features nats`",
            )),
        }
    }
}
