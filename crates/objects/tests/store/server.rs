//! A store on loopback, with the part of S3's protocol that we need. Answers fail on command.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Entries of a page.
const PAGE_ENTRIES: usize = 100;

/// A request, without what signs it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    pub method: String,
    pub key: String,
    pub query: BTreeMap<String, String>,
    pub range: Option<(usize, usize)>,
    pub if_match: Option<String>,
    pub if_none_match: bool,
    /// Names and values of metadata.
    pub metadata: Vec<(String, String)>,
    /// Bytes of its body.
    pub length: usize,
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
    /// The request is carried out, and its answer lost.
    Lost,
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
    /// Metadata of objects that were put by requests.
    metadata: BTreeMap<String, Vec<(String, String)>>,
    /// Objects that are being put in parts, by number.
    uploads: BTreeMap<u64, Upload>,
    puts: u64,
    requests: Vec<Request>,
    faults: Faults,
}

struct Upload {
    key: String,
    metadata: Vec<(String, String)>,
    parts: BTreeMap<u64, Vec<u8>>,
}

/// Status, headers and body of an answer.
type Answer = (u16, Vec<(&'static str, String)>, Vec<u8>);

impl State {
    fn put(&mut self, key: &str, content: Arc<[u8]>, metadata: Vec<(String, String)>) -> String {
        self.puts += 1;
        let version = self.puts;
        self.objects.insert(key.to_owned(), (content, version));
        self.metadata.insert(key.to_owned(), metadata);
        format!("\"v{version}\"")
    }

    /// Whether a request's condition is fulfilled.
    fn is_as_expected(&self, request: &Request) -> bool {
        let there = self.objects.get(&request.key).map(|(_, version)| format!("\"v{version}\""));
        (!request.if_none_match || there.is_none())
            && request.if_match.as_ref().is_none_or(|tag| there.as_ref() == Some(tag))
    }

    /// Answers what puts or removes something.
    fn write(&mut self, request: &Request, body: Vec<u8>) -> Answer {
        let error =
            |status, code: &str| (status, Vec::new(), format!("<Error><Code>{code}</Code></Error>").into_bytes());
        let id = request.query.get("uploadId").and_then(|id| id.parse::<u64>().ok());
        let is_checked = request.method == "PUT" || request.method == "POST";
        if is_checked && !request.query.contains_key("partNumber") && !self.is_as_expected(request) {
            return error(412, "PreconditionFailed");
        }
        match (&*request.method, id) {
            ("PUT", Some(id)) => {
                let number: u64 = request.query["partNumber"].parse().unwrap();
                let Some(upload) = self.uploads.get_mut(&id) else { return error(404, "NoSuchUpload") };
                upload.parts.insert(number, body);
                (200, vec![("ETag", format!("\"p{number}\""))], Vec::new())
            }
            ("PUT", None) => {
                let tag = self.put(&request.key, body.into(), request.metadata.clone());
                (200, vec![("ETag", tag)], Vec::new())
            }
            ("POST", None) => {
                self.puts += 1;
                let (id, key, metadata) = (self.puts, request.key.clone(), request.metadata.clone());
                self.uploads.insert(id, Upload { key, metadata, parts: BTreeMap::new() });
                let xml =
                    format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>");
                (200, Vec::new(), xml.into_bytes())
            }
            ("POST", Some(id)) => {
                let Some(upload) = self.uploads.remove(&id) else { return error(404, "NoSuchUpload") };
                let wanted = String::from_utf8_lossy(&body).matches("<PartNumber>").count();
                assert_eq!(wanted, upload.parts.len(), "all parts are named");
                let content: Vec<u8> = upload.parts.into_values().flatten().collect();
                let tag = self.put(&upload.key, content.into(), upload.metadata);
                let tag = tag.replace('"', "&quot;");
                let xml = format!("<CompleteMultipartUploadResult><ETag>{tag}</ETag></CompleteMultipartUploadResult>");
                (200, Vec::new(), xml.into_bytes())
            }
            (_, Some(id)) => {
                self.uploads.remove(&id);
                (204, Vec::new(), Vec::new())
            }
            (_, None) => {
                self.objects.remove(&request.key);
                (204, Vec::new(), Vec::new())
            }
        }
    }
}

impl Store {
    pub fn start() -> Arc<Store> {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let endpoint = format!("http://{}", listener.local_addr().unwrap());
        let faults: Faults = Box::new(|_| None);
        let (objects, metadata, uploads) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let state = State { objects, metadata, uploads, puts: 0, requests: Vec::new(), faults };
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
        self.lock().put(key, content.into(), Vec::new());
    }

    pub fn remove(&self, key: &str) {
        self.lock().objects.remove(key);
    }

    /// The content of an object.
    pub fn content(&self, key: &str) -> Option<Arc<[u8]>> {
        self.lock().objects.get(key).map(|(content, _)| Arc::clone(content))
    }

    /// A value of an object's metadata.
    pub fn metadata(&self, key: &str, name: &str) -> Option<String> {
        let state = self.lock();
        state.metadata.get(key)?.iter().find(|(of, _)| of == name).map(|(_, value)| value.clone())
    }

    pub fn keys(&self) -> Vec<String> {
        self.lock().objects.keys().cloned().collect()
    }

    /// Keys of objects that are being put in parts.
    pub fn uploads(&self) -> Vec<String> {
        self.lock().uploads.values().map(|upload| upload.key.clone()).collect()
    }

    pub fn fail(&self, faults: impl FnMut(&Request) -> Option<Fault> + Send + 'static) {
        self.lock().faults = Box::new(faults);
    }

    /// Requests so far with this method.
    pub fn requests(&self, method: &str) -> Vec<Request> {
        self.lock().requests.iter().filter(|request| request.method == method).cloned().collect()
    }

    fn answer(&self, connection: &TcpStream) -> std::io::Result<()> {
        let (request, body) = read(connection)?;
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
            Some(Fault::Replaced(content)) => drop(state.put(&request.key, content.into(), Vec::new())),
            Some(Fault::EmptyPage) => {
                drop(state);
                // A mark before all names.
                let more = "<IsTruncated>true</IsTruncated><NextContinuationToken>!</NextContinuationToken>";
                let body = format!("<ListBucketResult>{more}</ListBucketResult>");
                return send(connection, 200, &[], body.as_bytes(), &request.method);
            }
            Some(Fault::Lost) => {
                state.write(&request, body);
                return Err(std::io::ErrorKind::ConnectionAborted.into());
            }
            None => {}
        }
        if !matches!(&*request.method, "GET" | "HEAD") {
            let (status, headers, answer) = state.write(&request, body);
            drop(state);
            return send(connection, status, &headers, &answer, &request.method);
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
        let metadata = state.metadata.get(&request.key).cloned().unwrap_or_default();
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
        let names: Vec<_> = metadata.iter().map(|(name, _)| format!("x-amz-meta-{name}")).collect();
        headers.extend(names.iter().zip(&metadata).map(|(name, (_, value))| (&**name, value.clone())));
        if cut < body.len() {
            head(connection, status, &headers)?;
            (&*connection).write_all(&body[..cut])?;
            return Err(std::io::ErrorKind::ConnectionAborted.into());
        }
        send(connection, status, &headers, body, &request.method)
    }
}

fn read(connection: &TcpStream) -> std::io::Result<(Request, Vec<u8>)> {
    let mut reader = BufReader::new(connection);
    let line = |reader: &mut BufReader<&TcpStream>| {
        let mut line = String::new();
        match reader.read_line(&mut line)? {
            0 => Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof)),
            _ => Ok(line.trim_end().to_owned()),
        }
    };
    let first = line(&mut reader)?;
    let mut words = first.split(' ');
    let (method, target) = (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let key = decode(path.split('/').skip(2).collect::<Vec<_>>().join("/").as_str());
    let query =
        query.split('&').filter_map(|pair| pair.split_once('=')).map(|(name, value)| (name.to_owned(), decode(value)));
    let mut request = Request { method, key, query: query.collect(), ..Request::default() };
    loop {
        let line = line(&mut reader)?;
        let Some((name, value)) = line.split_once(": ") else {
            let mut body = vec![0; request.length];
            reader.read_exact(&mut body)?;
            return Ok((request, body));
        };
        let name = name.to_lowercase();
        if let Some(name) = name.strip_prefix("x-amz-meta-") {
            request.metadata.push((name.to_owned(), value.to_owned()));
        }
        match &*name {
            "content-length" => request.length = value.parse().unwrap(),
            "if-none-match" => request.if_none_match = value == "*",
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
