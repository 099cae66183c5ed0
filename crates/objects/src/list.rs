//! Listings, page by page.
//!
//! The library refuses a whole page if one key in it is no path. So these requests are our own.

use crate::request::{encode, repeated};
use crate::store::Store;
use crate::{Error, Kind};
use http::Method;
use object_store::client::HttpRequestBody;
use serde::Deserialize;
use std::time::{Duration, SystemTime};

/// Largest answer with a page, in bytes: a thousand keys, each byte of them encoded, take about half.
const PAGE_BYTES_MAX: usize = 8 << 20;

/// Pages without an entry, one after the other, as of very many deleted versions.
const EMPTY_PAGES_MAX: usize = 100;

/// A page of a listing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// In the order of their keys, as are the prefixes.
    pub objects: Vec<Listed>,
    /// Beginnings of keys further below, up to the next slash and with it.
    pub prefixes: Vec<String>,
    /// Where the next page begins; `None` on the last one.
    pub next: Option<String>,
}

/// An object in a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its key, whole.
    pub key: String,
    /// Size in bytes.
    pub size: u64,
    /// When it was put there, in whole seconds, as other answers have it.
    pub modified: SystemTime,
    /// Its entity tag, as in answers to GET.
    pub e_tag: Option<String>,
    /// Whether it has to be restored before it can be read.
    pub is_archived: bool,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Answer {
    #[serde(default)]
    contents: Vec<Contents>,
    #[serde(default)]
    common_prefixes: Vec<CommonPrefix>,
    #[serde(default)]
    next_continuation_token: Option<String>,
    #[serde(default)]
    is_truncated: bool,
    #[serde(default)]
    encoding_type: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Contents {
    key: String,
    #[serde(default)]
    size: u64,
    last_modified: String,
    #[serde(rename = "ETag", default)]
    e_tag: Option<String>,
    #[serde(default)]
    storage_class: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct CommonPrefix {
    prefix: String,
}

impl Store {
    /// The first page that has an entry, or the last one.
    pub(crate) async fn page_with_entries(&self, prefix: &str, mark: Option<&str>, most: u32) -> Result<Page, Error> {
        let mut page = self.page(prefix, mark, most).await?;
        for _ in 0..EMPTY_PAGES_MAX {
            if !page.objects.is_empty() || !page.prefixes.is_empty() || page.next.is_none() {
                return Ok(page);
            }
            page = self.page(prefix, page.next.as_deref(), most).await?;
        }
        Err(Error::new(Kind::Other, self.place(prefix), "too many pages of the listing have no entries"))
    }

    /// The page of what begins with a prefix, up to the next slash, at a mark that the page before had.
    pub(crate) async fn page(&self, prefix: &str, mark: Option<&str>, most: u32) -> Result<Page, Error> {
        repeated(|| self.page_once(prefix, mark, most)).await
    }

    async fn page_once(&self, prefix: &str, mark: Option<&str>, most: u32) -> Result<Page, Error> {
        let url = self.page_url(prefix, mark, most);
        let request = http::Request::builder().method(Method::GET).uri(url).body(HttpRequestBody::empty());
        let body = self.ask(prefix, request, PAGE_BYTES_MAX).await?;
        parse(&body).map_err(|why| Error::new(Kind::Other, self.place(prefix), &why))
    }

    fn page_url(&self, prefix: &str, mark: Option<&str>, most: u32) -> String {
        // In the order of their names, as the signature wants them.
        let most = most.to_string();
        let query = [
            mark.map(|mark| ("continuation-token", mark)),
            Some(("delimiter", "/")),
            Some(("encoding-type", "url")),
            Some(("list-type", "2")),
            Some(("max-keys", &most)),
            Some(("prefix", prefix)),
        ];
        let mut url = format!("{}/?", self.bucket_endpoint);
        for (name, value) in query.into_iter().flatten() {
            if !url.ends_with('?') {
                url.push('&');
            }
            url.push_str(name);
            url.push('=');
            encode(&mut url, value);
        }
        url
    }
}

fn parse(body: &[u8]) -> Result<Page, String> {
    let answer: Answer = quick_xml::de::from_reader(body).map_err(|error| format!("no listing: {error}"))?;
    let is_encoded = answer.encoding_type.as_deref() == Some("url");
    let plain = |text: String| if is_encoded { decode(&text) } else { Ok(text) };
    let listed = |of: Contents| {
        let modified =
            humantime::parse_rfc3339(&of.last_modified).map_err(|error| format!("{}: {error}", of.last_modified))?;
        Ok(Listed {
            key: plain(of.key)?,
            size: of.size,
            modified: whole_seconds(modified),
            e_tag: tag(of.e_tag),
            is_archived: matches!(of.storage_class.as_deref(), Some("GLACIER" | "DEEP_ARCHIVE")),
        })
    };
    let next = answer.next_continuation_token.filter(|_| answer.is_truncated);
    if answer.is_truncated && next.is_none() {
        return Err("it is cut off, and doesn't say where to go on".to_owned());
    }
    Ok(Page {
        objects: answer.contents.into_iter().map(listed).collect::<Result<_, String>>()?,
        prefixes: answer.common_prefixes.into_iter().map(|of| plain(of.prefix)).collect::<Result<_, String>>()?,
        next,
    })
}

/// An entity tag that says something: some stores have empty ones.
pub(crate) fn tag(tag: Option<String>) -> Option<String> {
    tag.filter(|tag| !tag.trim_matches('"').is_empty())
}

/// The same time without the part of a second, which only some answers have.
pub(crate) fn whole_seconds(time: SystemTime) -> SystemTime {
    match time.duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) => SystemTime::UNIX_EPOCH + Duration::from_secs(since.as_secs()),
        Err(_) => SystemTime::UNIX_EPOCH,
    }
}

fn decode(text: &str) -> Result<String, String> {
    let wrong = || format!("{text:?} isn't encoded as a URL");
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        decoded.push(match byte {
            b'+' => b' ',
            b'%' => {
                let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16)).ok_or_else(wrong);
                let (high, low) = (digit(bytes.next())?, digit(bytes.next())?);
                u8::try_from(high * 16 + low).map_err(|_| wrong())?
            }
            byte => byte,
        });
    }
    String::from_utf8(decoded).map_err(|_| wrong())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_page_has_all_keys_whatever_they_are() {
        let body = br#"<?xml version="1.0" encoding="UTF-8"?>
            <ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix></Prefix>
            <CommonPrefixes><Prefix>a%2F</Prefix></CommonPrefixes>
            <Contents><Key>b%2F%2Fc+d%0A</Key><LastModified>2024-05-06T07:08:09.123Z</LastModified><ETag>&quot;x&quot;</ETag><Size>7</Size>
            <StorageClass>DEEP_ARCHIVE</StorageClass></Contents>
            <CommonPrefixes><Prefix>%C3%A4%2F</Prefix></CommonPrefixes>
            <IsTruncated>true</IsTruncated><NextContinuationToken>n</NextContinuationToken><EncodingType>url</EncodingType></ListBucketResult>"#;
        let page = parse(body).unwrap();
        assert_eq!(page.prefixes, ["a/", "\u{e4}/"]);
        assert_eq!(page.next.as_deref(), Some("n"));
        let [object] = &page.objects[..] else { panic!("{page:?}") };
        assert_eq!((object.key.as_str(), object.size, object.e_tag.as_deref()), ("b//c d\n", 7, Some("\"x\"")));
        assert!(object.is_archived);
        assert_eq!(humantime::format_rfc3339(object.modified).to_string(), "2024-05-06T07:08:09Z");
        let plain = b"<ListBucketResult><Contents><Key>a%2Fb+c</Key><LastModified>2024-05-06T07:08:09Z</LastModified><Size>1</Size></Contents></ListBucketResult>";
        assert_eq!(parse(plain).unwrap().objects[0].key, "a%2Fb+c");
        assert_eq!(parse(b"<ListBucketResult/>").unwrap(), Page::default());
        for wrong in [&b"<html>"[..], b"", b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>"] {
            assert!(parse(wrong).is_err(), "{}", String::from_utf8_lossy(wrong));
        }
    }

    #[test]
    fn values_of_a_query_are_encoded() {
        let mut url = String::new();
        encode(&mut url, "a/b c+\u{e4}~");
        assert_eq!(url, "a%2Fb%20c%2B%C3%A4~");
        assert_eq!(decode(&url).unwrap(), "a/b c+\u{e4}~");
        assert!(decode("%").is_err() && decode("%zz").is_err() && decode("%FF").is_err());
    }
}
