use crate::{Origin, Permissions, Rules, Verb};
use proptest::prelude::*;

const KEY: &str = "rq:rM>}U?@Lns47E1%kR.o@n%FcmmsL/@{H8]yf7";
const OTHER: &str = "Yne@$w-vo<fVvi]a<NY6T1ed:M$fCG*[IaLV{hID";

fn of(rules: &Rules, name: &str, address: &str) -> Permissions {
    rules.permissions(Some(name.as_bytes()).filter(|name| !name.is_empty()), address.parse::<Origin>().unwrap())
}

#[test]
fn rules_read_like_sentences() {
    let text = format!(
        "# who\nkey alice {KEY}\n  key gpu\t{OTHER}\nuser ci bob\ngroup lab = alice, gpu\n\n# what\n\
         allow lab to read models/** README\n\
         allow alice from 10.0.0.0/8, ipc to list, push \"in box/{{name}}\"\n\
         allow gpu to work resize stats.*\n\
         deny gpu to read models/secret\n\
         allow anyone to call mmi.* echo\n\
         allow anonymous to list public\n\
         deny ci to call echo\n"
    );
    let rules = Rules::parse(&text).unwrap();
    assert_eq!((rules.keys(), rules.groups(), rules.lines()), (2, 1, 7));
    assert_eq!(rules.name_of(&OTHER.parse().unwrap()), Some("gpu"));
    assert_eq!(rules.names().collect::<Vec<_>>(), ["alice", "bob", "ci", "gpu"]);
    for (name, address, verb, subject, is_allowed, line) in [
        ("alice", "ipc", Verb::Read, "models/secret/x", true, Some(8)),
        ("gpu", "ipc", Verb::Read, "models/secret/x", false, Some(11)),
        ("gpu", "ipc", Verb::Follow, "models/secret", false, Some(11)),
        // The name may be seen: what is denied is its content.
        ("gpu", "ipc", Verb::List, "models/secret", true, Some(8)),
        ("gpu", "ipc", Verb::Follow, "models/a", false, None),
        ("gpu", "ipc", Verb::List, "README", true, Some(8)),
        ("gpu", "ipc", Verb::Work, "stats.x.y", true, Some(10)),
        ("gpu", "ipc", Verb::Call, "resize", false, None),
        ("alice", "10.1.1.1", Verb::Push, "in box/alice/x", true, Some(9)),
        ("alice", "11.1.1.1", Verb::Push, "in box/alice/x", false, None),
        ("alice", "ipc", Verb::Push, "in box/gpu", false, None),
        ("bob", "ipc", Verb::Read, "README", false, None),
        // A user of passwords, say, who has a group's name, isn't in the group.
        ("lab", "ipc", Verb::Read, "README", false, None),
        ("bob", "ipc", Verb::Call, "echo", true, Some(12)),
        ("ci", "ipc", Verb::Call, "echo", false, Some(14)),
        ("", "::1", Verb::Call, "echo", true, Some(12)),
        ("", "::1", Verb::List, "public/a", true, Some(13)),
        ("bob", "::1", Verb::List, "public/a", false, None),
    ] {
        let decision = of(&rules, name, address).decide(verb, subject.as_bytes());
        let decided = (decision.is_allowed, decision.line.map(|line| line.number));
        assert_eq!(decided, (is_allowed, line), "{name} {verb} {subject}");
    }
    assert!(Permissions::unrestricted().may(Verb::Admin, b"anything"));
}

#[test]
fn directories_on_the_way_are_reached_unless_they_are_denied() {
    let rules = Rules::parse("allow anyone to read a/b/c d/e\ndeny anyone to list d\n").unwrap();
    let anyone = of(&rules, "", "ipc");
    for (dir, is_reached) in [("", true), ("a", true), ("a/b", true), ("a/x", false), ("d", false), ("d/e", false)] {
        assert_eq!(anyone.may_reach(Verb::List, dir.as_bytes()), is_reached, "{dir}");
    }
    assert!(!anyone.may_reach(Verb::Push, b"a"));
}

#[test]
fn errors_name_the_line_and_what_was_meant() {
    for (text, said) in [
        ("alow anyone to read **", "line 1: a line begins with"),
        ("alow anyone to read **", "allow was meant?"),
        ("\n\nallow anyone to raed **", "line 3: \"raed\" is no verb"),
        ("allow anyone to raed **", "read was meant?"),
        ("allow anyone to read, lst **", "list was meant?"),
        ("user alice\nallow alcie to read **", "line 2: nobody is called alcie; alice was meant?"),
        ("allow anyone read **", "no `to`"),
        ("allow to read **", "WHO"),
        ("allow anyone to", "VERB"),
        ("allow anyone to read", "which paths?"),
        ("allow anyone to call", "which services?"),
        ("allow anyone to read, call x", "write two lines"),
        ("allow anyone to read a # all of it", "a comment is a line of its own"),
        ("allow anyone to read a, b", "subjects are parted by spaces"),
        ("allow anyone from to read a", "WHO"),
        ("allow anyone from 10.0.0.1/8 to read a", "behind the first 8"),
        ("allow anyone to read /etc", "no path below the root"),
        ("allow anyone to read ../x", "only go down"),
        ("allow anyone to read \"a b", "isn't closed"),
        ("allow anyone to read a\"b\"", "in the middle"),
        ("key alice", "key NAME KEY"),
        ("key alice abc", "a key has 40"),
        ("key to x", "can't be a name"),
        ("user", "user NAME"),
        ("group lab alice", "group NAME = MEMBER"),
        ("user a\ngroup a = a", "line 2: a is somebody's name"),
        ("user a\ngroup g = a\ngroup h = g", "line 3: the group h has the group g"),
        ("user a\ngroup g = a\ngroup g = a", "line 3: the group g is there already"),
    ] {
        let error = Rules::parse(text).expect_err(text).to_string();
        assert!(error.contains(said), "{text:?}: {error}");
    }
    let twice = format!("key a {KEY}\nkey b {KEY}\nkey c\n");
    let error = Rules::parse(&twice).unwrap_err();
    assert_eq!(error.0.iter().map(|error| error.line).collect::<Vec<_>>(), [2, 3]);
    assert!(!error.to_string().contains(KEY));
}

#[test]
fn permissions_are_the_same_if_the_rights_are() {
    let parse = |text: &str| of(&Rules::parse(text).unwrap(), "", "ipc");
    let one = parse("allow anyone to read a\n");
    let moved = parse("# new\nuser ann\nallow ann to read b\nallow anonymous to read a\n");
    let of_reading = |permissions: &Permissions| permissions.fingerprint(Verb::Read);
    assert!(one == moved && of_reading(&one) == of_reading(&moved));
    for other in ["allow anyone to read b\n", "allow anyone to list a\n", "deny anyone to read a\n", ""] {
        let other = parse(other);
        assert!(one != other && of_reading(&one) != of_reading(&other));
    }
    let calls_too = parse("allow anyone to read a\nallow anyone to call b\n");
    assert!(one != calls_too && of_reading(&one) == of_reading(&calls_too));
    assert!(one != Permissions::unrestricted() && of_reading(&Permissions::unrestricted()) == 0);
}

/// Verbs with those whose right they need, slowly.
fn needs(verb: &str) -> &'static [&'static str] {
    match verb {
        "list" => &["list", "read", "follow"],
        "read" => &["read", "follow"],
        "follow" => &["follow"],
        _ => &["push"],
    }
}

proptest! {
    #[test]
    fn any_text_is_read_or_refused_with_lines(text in "(allow|deny|key|user|group|#)?[ a-z*\"=,{}/.0-9\\PC]{0,60}(\n.{0,40})?") {
        if let Err(error) = Rules::parse(&text) {
            prop_assert!(!error.0.is_empty());
            prop_assert!(error.0.iter().all(|error| (1..=2).contains(&error.line) && !error.message.is_empty()));
        }
    }

    #[test]
    fn decisions_are_those_of_a_naive_evaluator(
        lines in prop::collection::vec((any::<bool>(), 0..4_usize, 0..4_usize, "[ab](/[ab])?"), 0..6),
        who in 0..3_usize, verb in 0..4_usize, path in "[ab](/[ab]){0,2}",
    ) {
        let people = ["ann", "bob", "anyone", "anonymous"];
        let verbs = ["list", "read", "follow", "push"];
        let mut text = "user ann bob\n".to_owned();
        for (is_deny, of, verb, subject) in &lines {
            let first = if *is_deny { "deny" } else { "allow" };
            text += &format!("{first} {} to {} {subject}\n", people[*of], verbs[*verb]);
        }
        let rules = Rules::parse(&text).unwrap();
        let name = ["ann", "bob", ""][who];
        let about = |of: &str| of == "anyone" || of == name || (of == "anonymous" && name.is_empty());
        let covers = |subject: &str| path == *subject || path.starts_with(&format!("{subject}/"));
        let verb = verbs[verb];
        let says = |deny: bool| {
            lines.iter().any(|(is_deny, of, named, subject)| {
                let named = verbs[*named];
                let fits = if deny { needs(named).contains(&verb) } else { needs(verb).contains(&named) };
                *is_deny == deny && about(people[*of]) && fits && covers(subject)
            })
        };
        let decision = of(&rules, name, "ipc").decide(Verb::named(verb).unwrap(), path.as_bytes());
        prop_assert_eq!(decision.is_allowed, says(false) && !says(true), "{}", text);
        prop_assert!(decision.line.is_some() || !decision.is_allowed);
    }
}
