//! Pushes a file, a directory, or with - standard input:
//! `cargo run -p towpath-files --example push -- tcp://127.0.0.1:5571 FILE PATH`

use std::error::Error;
use std::path::Path;
use towpath_files::client::push::{PushEvent, PushFile, PushOptions, PushSource};
use towpath_files::client::{ConnectOptions, FileClient, Filter};
use towpath_files::path::RelPath;

fn main() -> Result<(), Box<dyn Error>> {
    let [_, endpoint, local, path] = &std::env::args().collect::<Vec<_>>()[..] else {
        return Err("usage: push ENDPOINT FILE PATH".into());
    };
    let remote = RelPath::new(path.as_str())?;
    let source = match Path::new(local) {
        _ if local == "-" => PushSource::Reader { reader: Box::new(std::io::stdin()), remote },
        dir if dir.is_dir() => PushSource::Tree { local: dir.into(), remote, filter: Filter::default() },
        file => PushSource::File(PushFile { local: file.into(), remote }),
    };
    let client = FileClient::connect(ConnectOptions::new(endpoint.parse()?))?;
    let mut failed = 0;
    let mut on_event = |event| {
        match event {
            PushEvent::Pushed { file, size, same, .. } => {
                println!("{} {size} bytes{}", file.remote, if same { ", there before" } else { "" });
            }
            PushEvent::Failed { file, reason, .. } => {
                eprintln!("{}: {reason}", file.local.display());
                failed += 1;
            }
            PushEvent::Interrupted { reason } | PushEvent::Warning(reason) => eprintln!("{reason}"),
            _ => {}
        }
        Ok(())
    };
    client.push(PushOptions::new(vec![source]), &mut on_event, &mut |_| {})?;
    if failed > 0 { Err("some files failed".into()) } else { Ok(()) }
}
