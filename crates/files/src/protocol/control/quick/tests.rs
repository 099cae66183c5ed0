//! The quick way and the general one say the same.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;
use serde::Serialize;

use super::{confirm, fetch, files_reply, list_page};
use crate::protocol::control::request::{RawConfirm, RawFetch};
use crate::protocol::control::{
    Base, Confirm, ConfirmedFile, EntryKind, FilesReply, ListPage, PageWriter, Reply, Request,
};
use crate::protocol::tests::{digests, fetches, file_answers, list_entries, paths};

/// What serde makes of a message.
fn general(tag: &'static str, value: &'static str, body: &impl Serialize) -> String {
    let body = serde_json::to_string(body).unwrap();
    format!("{{\"{tag}\":\"{value}\",{}", &body[1..])
}

fn text(json: Vec<u8>) -> String {
    String::from_utf8(json).unwrap()
}

fn confirms() -> impl Strategy<Value = Confirm> {
    let file = (any::<u32>(), paths(), option::of(digests()), any::<bool>());
    let file = file.prop_map(|(n, path, digest, durable)| ConfirmedFile { n, path, digest, durable });
    (any::<u32>(), vec(file, 0..4)).prop_map(|(id, files)| Confirm { id, files })
}

fn pages() -> impl Strategy<Value = ListPage> {
    let base = prop::sample::select(vec![Base::Dir, Base::File, Base::Link, Base::Glob]);
    (any::<u32>(), base, vec(list_entries(), 0..4), any::<bool>()).prop_map(|(id, base, entries, more)| ListPage {
        id,
        base,
        entries,
        more,
    })
}

fn files_replies() -> impl Strategy<Value = FilesReply> {
    (any::<u32>(), vec(file_answers(), 0..4)).prop_map(|(id, files)| FilesReply { id, files })
}

/// A few changes of a JSON text: octets that are other ones, are missing, or are too many.
fn changes() -> impl Strategy<Value = Vec<(prop::sample::Index, u8, u8)>> {
    let octet = prop::sample::select(br#"09-.eE+"\,:[]{} atn/u"#.to_vec());
    vec((any::<prop::sample::Index>(), octet, 0u8..3), 0..3)
}

fn changed(mut json: Vec<u8>, changes: Vec<(prop::sample::Index, u8, u8)>) -> Vec<u8> {
    for (at, octet, how) in changes {
        let at = at.index(json.len());
        match how {
            0 => json[at] = octet,
            1 => json.insert(at, octet),
            _ => drop(json.remove(at)),
        }
    }
    json
}

proptest! {
    #[test]
    fn what_is_written_is_the_same(page in pages(), files in files_replies(), fetch in fetches(), confirm in confirms()) {
        let mut writer = PageWriter::new(page.id, page.base);
        prop_assert!(page.entries.iter().all(|entry| writer.push(entry)));
        prop_assert_eq!(text(writer.finish(page.more)), general("re", "list", &page));
        prop_assert_eq!(general("re", "files", &files), text(Reply::Files(files).encode()));
        prop_assert_eq!(general("op", "fetch", &fetch), text(Request::Fetch(fetch).encode()));
        prop_assert_eq!(general("op", "confirm", &confirm), text(Request::Confirm(confirm).encode()));
    }

    #[test]
    fn what_is_read_of_a_page_is_the_same(page in pages(), changes in changes()) {
        let json = changed(Reply::List(page).encode(), changes);
        if let Some(quick) = list_page(&json) {
            prop_assert_eq!(quick, serde_json::from_slice::<ListPage>(&json).unwrap());
        }
    }

    #[test]
    fn what_is_read_of_metadata_is_the_same(files in files_replies(), changes in changes()) {
        let json = changed(Reply::Files(files).encode(), changes);
        if let Some(quick) = files_reply(&json) {
            prop_assert_eq!(quick, serde_json::from_slice::<FilesReply>(&json).unwrap());
        }
    }

    #[test]
    fn what_is_read_of_a_fetch_is_the_same(request in fetches(), changes in changes()) {
        let json = changed(Request::Fetch(request).encode(), changes);
        if let Some(quick) = fetch(&json) {
            prop_assert_eq!(quick, serde_json::from_slice::<RawFetch>(&json).unwrap().check().unwrap());
        }
    }

    #[test]
    fn what_is_read_of_a_confirmation_is_the_same(request in confirms(), changes in changes()) {
        let json = changed(Request::Confirm(request).encode(), changes);
        if let Some(quick) = confirm(&json) {
            prop_assert_eq!(quick, serde_json::from_slice::<RawConfirm>(&json).unwrap().check().unwrap());
        }
    }

    #[test]
    fn what_this_program_writes_is_read_quickly(
        page in pages(), files in files_replies(), request in fetches(), confirmed in confirms()
    ) {
        prop_assert_eq!(list_page(&Reply::List(page.clone()).encode()), Some(page));
        prop_assert_eq!(files_reply(&Reply::Files(files.clone()).encode()), Some(files));
        prop_assert_eq!(fetch(&Request::Fetch(request.clone()).encode()), Some(request));
        prop_assert_eq!(confirm(&Request::Confirm(confirmed.clone()).encode()), Some(confirmed));
    }
}

#[test]
fn numbers_and_texts_are_as_strict() {
    let page = |number: &str, path: &str| {
        format!(
            r#"{{"re":"list","id":1,"base":"dir","entries":[{{"path":"{path}","type":"file","size":{number},"mtime":[1,2],"mode":420}}],"more":false}}"#
        )
    };
    for number in ["0", "7", "9223372036854775807", "1000000000000000000"] {
        assert!(list_page(page(number, "a").as_bytes()).is_some(), "{number}");
    }
    let long = "1".repeat(30);
    for number in ["", "-1", "-0", "00", "01", "1.0", "1e3", "+1", "9223372036854775808", &long] {
        assert_eq!(list_page(page(number, "a").as_bytes()), None, "{number}");
    }
    let directory = page("7", "a").replace("\"file\"", "\"dir\"");
    let kind = list_page(directory.as_bytes()).and_then(|page| page.entries.first().map(|entry| entry.kind));
    assert_eq!(kind, Some(EntryKind::Dir));
    // Escapes are for the general parser, which has them right.
    let escaped = list_page(page("7", r"\u0061\n").as_bytes()).unwrap();
    assert_eq!(escaped.entries[0].path.as_bytes(), b"a\n");
    assert_eq!(list_page(page("7", "a\nb").as_bytes()), None);
    assert_eq!(list_page(page("7", &"a".repeat(5000)).as_bytes()), None);
    let mut octets = page("7", "aa").into_bytes();
    let at = octets.windows(2).position(|pair| pair == b"aa").unwrap();
    octets[at] = 0xff;
    assert_eq!(list_page(&octets), None);
}
