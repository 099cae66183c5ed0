//! A lexer for Rust, as much as the rules need: identifiers, punctuation and comments, with lines.

/// A token and the line on which it begins, counted from 1.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Token {
    pub line: usize,
    pub kind: Kind,
}

/// The kinds of token that rules distinguish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A keyword, an identifier or a number; `r#` is dropped.
    Word(String),
    /// One character of punctuation.
    Punct(char),
    /// A string literal's content, escapes left as they are.
    Text(String),
    /// A comment without its marker.
    Comment { doc: bool, text: String },
}

impl Token {
    pub fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    pub fn is(&self, punct: char) -> bool {
        self.kind == Kind::Punct(punct)
    }
}

/// Splits a source file into tokens. Anything it can't make sense of becomes punctuation.
pub fn lex(source: &str) -> Vec<Token> {
    let mut lexer = Lexer { rest: source, line: 1, tokens: Vec::new() };
    while lexer.step() {}
    lexer.tokens
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
}

impl<'a> Lexer<'a> {
    /// Reads one token or one stretch of white space; false at the end.
    fn step(&mut self) -> bool {
        let Some(first) = self.rest.chars().next() else { return false };
        if first.is_whitespace() {
            self.cut(first.len_utf8());
        } else if self.rest.starts_with("//") {
            self.line_comment();
        } else if self.rest.starts_with("/*") {
            self.block_comment();
        } else if let Some((head, hashes)) = raw_string(self.rest) {
            self.raw_string(head, hashes);
        } else if let Some(head) = ["b\"", "c\"", "\""].into_iter().find(|head| self.rest.starts_with(head)) {
            self.string(head.len());
        } else if self.rest.starts_with("b'") {
            self.cut(1);
        } else if first == '\'' {
            self.quote();
        } else if first.is_alphanumeric() || first == '_' {
            self.word();
        } else {
            self.token(first.len_utf8(), Kind::Punct(first));
        }
        true
    }

    fn cut(&mut self, length: usize) -> &'a str {
        let (cut, rest) = self.rest.split_at(length);
        self.line += cut.bytes().filter(|byte| *byte == b'\n').count();
        self.rest = rest;
        cut
    }

    fn token(&mut self, length: usize, kind: Kind) {
        self.tokens.push(Token { line: self.line, kind });
        self.cut(length);
    }

    fn line_comment(&mut self) {
        let text = self.rest.lines().next().unwrap_or_default();
        let doc = text.starts_with("//!") || (text.starts_with("///") && !text.starts_with("////"));
        let body = if doc { &text[3..] } else { &text[2..] };
        self.token(text.len(), Kind::Comment { doc, text: body.trim().into() });
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        let mut at = 0;
        while at < self.rest.len() {
            if self.rest[at..].starts_with("/*") {
                depth += 1;
                at += 2;
            } else if self.rest[at..].starts_with("*/") {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    break;
                }
            } else {
                at += self.rest[at..].chars().next().map_or(1, char::len_utf8);
            }
        }
        let text = self.rest[..at].trim_matches(['/', '*']).trim().into();
        self.token(at, Kind::Comment { doc: false, text });
    }

    fn raw_string(&mut self, head: usize, hashes: usize) {
        let end = format!("\"{}", "#".repeat(hashes));
        let body = &self.rest[head..];
        let length = body.find(&end).unwrap_or(body.len());
        let text = body[..length].into();
        self.token((head + length + end.len()).min(self.rest.len()), Kind::Text(text));
    }

    fn string(&mut self, head: usize) {
        let body = &self.rest[head..];
        let mut escaped = false;
        let length = body.find(|c| {
            let ends = c == '"' && !escaped;
            escaped = c == '\\' && !escaped;
            ends
        });
        let length = length.unwrap_or(body.len());
        let text = body[..length].into();
        self.token((head + length + 1).min(self.rest.len()), Kind::Text(text));
    }

    /// A character literal, or a lifetime.
    fn quote(&mut self) {
        let mut chars = self.rest.char_indices().skip(1);
        let length = match (chars.next(), chars.next()) {
            (Some((_, '\\')), Some((at, escaped))) => {
                let from = at + escaped.len_utf8();
                self.rest[from..].find('\'').map(|end| from + end + 1)
            }
            (Some(_), Some((at, '\''))) => Some(at + 1),
            _ => None,
        };
        self.cut(length.unwrap_or(1));
    }

    fn word(&mut self) {
        let rest = self.rest.strip_prefix("r#").unwrap_or(self.rest);
        let skipped = self.rest.len() - rest.len();
        let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
        let word = rest[..length].into();
        self.token(skipped + length, Kind::Word(word));
    }
}

/// The length up to and including the opening quote of a raw string, and its number of hashes.
fn raw_string(source: &str) -> Option<(usize, usize)> {
    let head = ["br", "cr", "r"].into_iter().find(|head| source.starts_with(head))?;
    let rest = &source[head.len()..];
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    rest[hashes..].starts_with('"').then_some((head.len() + hashes + 1, hashes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(source: &str) -> Vec<String> {
        let show = |token: Token| match token.kind {
            Kind::Word(word) => word,
            Kind::Punct(punct) => punct.into(),
            Kind::Text(text) => format!("\"{text}\""),
            Kind::Comment { doc, text } => format!("{}{text}", if doc { "///" } else { "//" }),
        };
        lex(source).into_iter().map(show).collect()
    }

    #[test]
    fn splits_code_into_words_and_punctuation() {
        assert_eq!(shown("use a::b_1;"), ["use", "a", ":", ":", "b_1", ";"]);
        assert_eq!(shown("r#type"), ["type"]);
    }

    #[test]
    fn strings_and_characters_are_not_code() {
        assert_eq!(
            shown(r#"f("a \" // b", 'x', '\'', b'"', '"')"#),
            ["f", "(", r#""a \" // b""#, ",", ",", ",", ",", ")"]
        );
        assert_eq!(shown(r##"r#"a " b"# c"##), [r#""a " b""#, "c"]);
        assert_eq!(shown("&'a str"), ["&", "a", "str"]);
        assert_eq!(shown(r"'\u{1F600}' x"), ["x"]);
    }

    #[test]
    fn doc_comments_differ_from_others() {
        assert_eq!(
            shown("/// a\n//! b\n// c\n//// d\n/* e /* f */ */ g"),
            ["///a", "///b", "//c", "//// d", "//e /* f */", "g"]
        );
    }

    #[test]
    fn lines_count_through_strings_and_comments() {
        let tokens = lex("\"a\nb\"\n/*\n*/ x");
        assert_eq!(tokens.last().map(|token| token.line), Some(4));
    }
}
