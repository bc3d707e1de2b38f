//! Answers of a service: a small tree of XML, whatever was sent.

use quick_xml::events::Event;
use quick_xml::{Reader, escape};

/// Elements within each other; S3's answers have four.
const DEPTH_MAX: usize = 16;
/// Elements of one answer: a page of 1,000 uploads has fewer.
const ELEMENTS_MAX: usize = 20_000;

/// An element, without its attributes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Element {
    pub name: String,
    pub text: String,
    pub children: Vec<Element>,
}

impl Element {
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a Element> {
        self.children.iter().filter(move |child| child.name == name)
    }

    /// Text of a child; empty when there is none.
    pub fn text_of<'a>(&'a self, name: &'a str) -> &'a str {
        self.all(name).next().map_or("", |child| child.text.trim())
    }

    pub fn says_true(&self, name: &str) -> bool {
        self.text_of(name) == "true"
    }
}

/// The element that an answer consists of.
pub(crate) fn parse(answer: &[u8]) -> Result<Element, String> {
    let mut reader = Reader::from_reader(answer);
    let mut open: Vec<Element> = Vec::new();
    let mut elements = 0;
    loop {
        let event = reader.read_event().map_err(|error| error.to_string())?;
        let closed = match event {
            Event::Start(start) => {
                open.push(named(start.local_name().as_ref()));
                None
            }
            Event::Empty(empty) => Some(named(empty.local_name().as_ref())),
            Event::End(_) => open.pop(),
            Event::Text(text) => add(&mut open, &text.decode().map_err(|error| error.to_string())?),
            Event::GeneralRef(name) => {
                let name = name.decode().map_err(|error| error.to_string())?;
                let text =
                    escape::unescape(&format!("&{name};")).map_err(|error| error.to_string())?.into_owned();
                add(&mut open, &text)
            }
            Event::DocType(_) => return Err("it has a document type, which S3's answers never have".into()),
            Event::Eof => return Err("it ends in the middle".into()),
            _ => None,
        };
        if open.len() > DEPTH_MAX {
            return Err(format!("it has more than {DEPTH_MAX} elements within each other"));
        }
        let Some(element) = closed else { continue };
        elements += 1;
        if elements > ELEMENTS_MAX {
            return Err(format!("it has more than {ELEMENTS_MAX} elements"));
        }
        match open.last_mut() {
            Some(parent) => parent.children.push(element),
            None => return Ok(element),
        }
    }
}

fn named(name: &[u8]) -> Element {
    Element { name: String::from_utf8_lossy(name).into_owned(), ..Element::default() }
}

fn add(open: &mut [Element], text: &str) -> Option<Element> {
    if let Some(element) = open.last_mut() {
        element.text.push_str(text);
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_answer_is_read() {
        let answer = br#"<?xml version="1.0" encoding="UTF-8"?>
<List xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><IsTruncated>true</IsTruncated>
  <Part><ETag>&quot;a&amp;b&#x41;&quot;</ETag><Size> 7 </Size></Part><Part/></List>"#;
        let list = parse(answer).unwrap();
        assert!(list.name == "List" && list.says_true("IsTruncated"));
        let parts: Vec<_> =
            list.all("Part").map(|part| (part.text_of("ETag"), part.text_of("Size"))).collect();
        assert_eq!(parts, [("\"a&bA\"", "7"), ("", "")]);
    }

    #[test]
    fn hostile_answers_are_refused() {
        let deep = "<a>".repeat(100_000);
        let many = format!("<a>{}</a>", "<b/>".repeat(ELEMENTS_MAX + 1));
        let bomb = "<!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>";
        for answer in [&deep, &many, "<a><b>", "<a></b>", "", "no", "<a>&b;</a>", bomb] {
            assert!(parse(answer.as_bytes()).is_err(), "{}", &answer[..answer.len().min(40)]);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_harm(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn any_tags_are_read_without_harm(text in "(<[ab/!?]{0,3}>?|&[a;]{0,2}|x){0,20}") {
            let _ = parse(text.as_bytes());
        }
    }
}
