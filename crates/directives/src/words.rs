//! Words of a line of text, as task lists (`docs/formats/15-task-lists.md`) and directives are made of.

/// Offset in the line, and what is wrong there.
pub type Wrong = (usize, String);

/// A word and where it starts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Word {
    pub at: usize,
    pub text: Vec<u8>,
    /// `key=value` is an option, `"key=value"` a path.
    pub quoted: bool,
}

/// Words between blanks. `"` starts and ends a quotation, in which `\` starts `\"`, `\\`, `\n`, `\t` and `\xHH`;
/// `#` at the start of a word begins a comment.
pub fn words(line: &[u8]) -> Result<Vec<Word>, Wrong> {
    let mut words = Vec::new();
    let mut at = 0;
    while at < line.len() {
        match line[at] {
            blank if blank.is_ascii_whitespace() => at += 1,
            b'#' => break,
            _ => {
                let (word, end) = word(line, at)?;
                words.push(word);
                at = end;
            }
        }
    }
    Ok(words)
}

fn word(line: &[u8], start: usize) -> Result<(Word, usize), Wrong> {
    let (mut text, mut at) = (Vec::new(), start);
    let mut quotation: Option<usize> = None;
    let mut quoted = false;
    while at < line.len() {
        match (line[at], quotation) {
            (b'"', None) => (quotation, quoted) = (Some(at), true),
            (b'"', Some(_)) => quotation = None,
            (b'\\', Some(_)) => {
                let (byte, length) = escape(&line[at..]).ok_or_else(|| (at, ESCAPES.to_string()))?;
                text.push(byte);
                at += length - 1;
            }
            (b'\n', Some(_)) => break,
            (0, _) => return Err((at, "a word has no zero bytes".into())),
            (blank, None) if blank.is_ascii_whitespace() => break,
            (byte, _) => text.push(byte),
        }
        at += 1;
    }
    match quotation {
        Some(opened) => Err((opened, "this quotation does not end".into())),
        None => Ok((Word { at: start, text, quoted }, at)),
    }
}

const ESCAPES: &str = "after a backslash comes \", \\, n, t, or x and two hexadecimal digits other than 00";

/// The byte that an escape stands for, and the escape's length.
fn escape(from: &[u8]) -> Option<(u8, usize)> {
    match from.get(1)? {
        b'"' => Some((b'"', 2)),
        b'\\' => Some((b'\\', 2)),
        b'n' => Some((b'\n', 2)),
        b't' => Some((b'\t', 2)),
        b'x' => {
            let digit = |at: usize| from.get(at).and_then(|digit| char::from(*digit).to_digit(16));
            let byte = u8::try_from(digit(2)? * 16 + digit(3)?).ok().filter(|byte| *byte != 0)?;
            Some((byte, 4))
        }
        _ => None,
    }
}

/// A text as one word: as it is when it is plain, else in quotation marks.
pub fn show_word(text: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/:._-@%+,".contains(byte);
    if text.iter().all(plain) {
        return String::from_utf8_lossy(text).into_owned();
    }
    let each = |byte: &u8| match byte {
        b'"' | b'\\' => format!("\\{}", *byte as char),
        0x20..=0x7e => (*byte as char).to_string(),
        byte => format!("\\x{byte:02X}"),
    };
    format!("\"{}\"", text.iter().map(each).collect::<String>())
}
