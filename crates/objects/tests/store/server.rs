//! A store on loopback, with the part of S3's protocol that reading needs. Answers fail on command.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Entries of a page.
const PAGE_ENTRIES: usize = 100;

/// A request, without what signs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub key: String,
    pub query: BTreeMap<String, String>,
    pub range: Option<(usize, usize)>,
    pub if_match: Option<String>,
}

/// A fault: it comes in place of the answer, or with it.
#[derive(Clone, Debug)]
pub enum Fault {
    /// A status and an error code.
    Status(u16, &'static str),
    /// This part of the body, and then the end of the connection.
    Cut(usize),
    /// Another version is there from now on, before this request is answered.
    Replaced(Vec<u8>),
    /// A page of a listing without entries, that isn't the last.
    EmptyPage,
}

type Faults = Box<dyn FnMut(&Request) -> Option<Fault> + Send>;

pub struct Store {
    pub endpoint: String,
    state: Mutex<State>,
}

struct State {
    objects: BTreeMap<String, (Arc<[u8]>, u64)>,
    puts: u64,
    requests: Vec<Request>,
    faults: Faults,
}

impl Store {
    pub fn start() -> Arc<Store> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let faults: Faults = Box::new(|_| None);
        let state = State { objects: BTreeMap::new(), puts: 0, requests: Vec::new(), faults };
        let store = Arc::new(Store { endpoint, state: Mutex::new(state) });
        let weak = Arc::downgrade(&store);
        std::thread::spawn(move || {
            for connection in listener.incoming().flatten() {
                let Some(store) = weak.upgrade() else { return };
                std::thread::spawn(move || while store.answer(&connection).is_ok() {});
            }
        });
        store
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub fn put(&self, key: &str, content: impl Into<Arc<[u8]>>) {
        let mut state = self.lock();
        state.puts += 1;
        let version = state.puts;
        state.objects.insert(key.to_owned(), (content.into(), version));
    }

    pub fn fail(&self, faults: impl FnMut(&Request) -> Option<Fault> + Send + 'static) {
        self.lock().faults = Box::new(faults);
    }

    /// Requests so far with this method.
    pub fn requests(&self, method: &str) -> Vec<Request> {
        self.lock().requests.iter().filter(|request| request.method == method).cloned().collect()
    }

    fn answer(&self, connection: &TcpStream) -> std::io::Result<()> {
        let request = read(connection)?;
        let mut state = self.lock();
        state.requests.push(request.clone());
        let fault = (state.faults)(&request);
        let mut cut = usize::MAX;
        match fault {
            Some(Fault::Status(status, code)) => {
                drop(state);
                let body = format!("<Error><Code>{code}</Code><Message>words</Message></Error>");
                return send(connection, status, &[], body.as_bytes(), &request.method);
            }
            Some(Fault::Cut(bytes)) => cut = bytes,
            Some(Fault::EmptyPage) => {
                drop(state);
                // A mark before all names.
                let more = "<IsTruncated>true</IsTruncated><NextContinuationToken>!</NextContinuationToken>";
                let body = format!("<ListBucketResult>{more}</ListBucketResult>");
                return send(connection, 200, &[], body.as_bytes(), &request.method);
            }
            Some(Fault::Replaced(content)) => {
                state.puts += 1;
                let version = state.puts;
                state.objects.insert(request.key.clone(), (content.into(), version));
            }
            None => {}
        }
        if request.query.contains_key("list-type") {
            let body = list(&state.objects, &request.query);
            drop(state);
            return send(connection, 200, &[], body.as_bytes(), &request.method);
        }
        let Some((content, version)) = state.objects.get(&request.key).cloned() else {
            drop(state);
            return send(connection, 404, &[], b"<Error><Code>NoSuchKey</Code></Error>", &request.method);
        };
        drop(state);
        let tag = format!("\"v{version}\"");
        if request.if_match.as_ref().is_some_and(|wanted| *wanted != tag) {
            return send(connection, 412, &[], b"<Error><Code>PreconditionFailed</Code></Error>", &request.method);
        }
        let of_version = [("ETag", tag), ("Last-Modified", "Mon, 06 May 2024 07:08:09 GMT".to_owned())];
        let (status, body, mut headers) = match request.range {
            None => (200, &content[..], of_version.to_vec()),
            Some((from, to)) => {
                let to = to.min(content.len().saturating_sub(1));
                let of_range = ("Content-Range", format!("bytes {from}-{to}/{}", content.len()));
                (206, &content[from..=to], of_version.into_iter().chain([of_range]).collect())
            }
        };
        headers.push(("Content-Length", body.len().to_string()));
        if cut < body.len() {
            head(connection, status, &headers)?;
            (&*connection).write_all(&body[..cut])?;
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        send(connection, status, &headers, body, &request.method)
    }
}

fn read(connection: &TcpStream) -> std::io::Result<Request> {
    let mut lines = BufReader::new(connection).lines();
    let mut line = || lines.next().unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()));
    let first = line()?;
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let key = decode(path.split('/').skip(2).collect::<Vec<_>>().join("/").as_str());
    let query =
        query.split('&').filter_map(|pair| pair.split_once('=')).map(|(name, value)| (name.to_owned(), decode(value)));
    let mut request = Request { method, key, query: query.collect(), range: None, if_match: None };
    loop {
        let line = line()?;
        let Some((name, value)) = line.split_once(": ") else { return Ok(request) };
        match &*name.to_lowercase() {
            "range" => {
                let (from, to) = value.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
                request.range = Some((from.parse().unwrap(), to.parse().unwrap()));
            }
            "if-match" => request.if_match = Some(value.to_owned()),
            _ => {}
        }
    }
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let mut digit = || char::from(rest.next().unwrap()).to_digit(16).unwrap() as u8;
        bytes.push(if byte == b'%' { digit() * 16 + digit() } else { byte });
    }
    String::from_utf8(bytes).unwrap()
}

fn head(mut connection: &TcpStream, status: u16, headers: &[(&str, String)]) -> std::io::Result<()> {
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    connection.write_all(format!("HTTP/1.1 {status} Status\r\n{headers}\r\n").as_bytes())
}

fn send(
    mut connection: &TcpStream,
    status: u16,
    headers: &[(&str, String)],
    body: &[u8],
    method: &str,
) -> std::io::Result<()> {
    let mut headers = headers.to_vec();
    if !headers.iter().any(|(name, _)| *name == "Content-Length") {
        headers.push(("Content-Length", body.len().to_string()));
    }
    head(connection, status, &headers)?;
    if method == "HEAD" { Ok(()) } else { connection.write_all(body) }
}

/// A page, with names encoded. The mark is the name that the page before ended with.
fn list(objects: &BTreeMap<String, (Arc<[u8]>, u64)>, query: &BTreeMap<String, String>) -> String {
    let prefix = &query["prefix"];
    let most = query["max-keys"].parse::<usize>().unwrap().min(PAGE_ENTRIES);
    let mut entries: Vec<(String, String)> = Vec::new();
    for (key, (content, version)) in objects.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&**prefix)) {
        let encode = |text: &str| text.bytes().map(|byte| format!("%{byte:02X}")).collect::<String>();
        let (name, xml) = match key[prefix.len()..].split_once('/') {
            Some((name, _)) => {
                let common = format!("{prefix}{name}/");
                (common.clone(), format!("<CommonPrefixes><Prefix>{}</Prefix></CommonPrefixes>", encode(&common)))
            }
            None => {
                let class = if key.ends_with(".archived") { "GLACIER" } else { "STANDARD" };
                let modified = "2024-05-06T07:08:09.123Z";
                let (size, key) = (content.len(), encode(key));
                let fields =
                    format!("<Key>{key}</Key><LastModified>{modified}</LastModified><ETag>\"v{version}\"</ETag>");
                let fields = format!("{fields}<Size>{size}</Size><StorageClass>{class}</StorageClass>");
                (prefix.clone() + &key, format!("<Contents>{fields}</Contents>")).clone()
            }
        };
        let name = if xml.starts_with("<Contents>") { key.clone() } else { name };
        if entries.last().is_none_or(|(last, _)| *last != name) {
            entries.push((name, xml));
        }
    }
    let mark = query.get("continuation-token").cloned().unwrap_or_default();
    let rest: Vec<_> = entries.into_iter().filter(|(name, _)| *name > mark).collect();
    let page = &rest[..most.min(rest.len())];
    let next = match page.last() {
        Some((last, _)) if page.len() < rest.len() => {
            format!("<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>")
        }
        _ => "<IsTruncated>false</IsTruncated>".to_owned(),
    };
    let xml: String = page.iter().map(|(_, xml)| xml.as_str()).collect();
    format!("<ListBucketResult><EncodingType>url</EncodingType>{xml}{next}</ListBucketResult>")
}
