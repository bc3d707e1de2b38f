//! The language of questions.
//!
//! ```text
//! query     = ["hosts"] ["with" | "where"] any
//! any       = all { "or" all }
//! all       = one { ("and" | ",") one }
//! one       = "not" one | "(" any ")" | phrase | place
//! phrase    = [compare] size "free" "on" word        free space of a file system on disks of a kind, or at a path
//!           | [compare] size "free" | [compare] size ["free"] "memory"
//!           | [compare] number ("cores" | "threads" | "sockets" | "gpus" | "disks" | "switches")
//! place     = name { "." name } ( compare literal | "[" inner "]" [compare number] )
//! inner     = as any, with places of the elements only
//! compare   = ">=" | ">" | "<=" | "<" | "=" | "!=" | "~"
//! ```
//! The first name of a place is an extractor's. Sizes have units (`500GB`, `512KiB`); without a comparison a phrase
//! means at least so much.

use super::{Compare, Condition, Inner, Literal, Query};
use crate::system::clip;

/// Most bytes of a question.
const QUERY_MAX: usize = 64 << 10;
/// How deep its parts may lie in each other.
const DEPTH_MAX: usize = 64;
/// What an extractor's data keep in a list of the same name, so that `disks[...]` means `disks.disks[...]`.
const LISTS: &[(&str, &str)] = &[
    ("disks", "disks"),
    ("filesystems", "filesystems"),
    ("gpus", "gpus"),
    ("mounts", "mounts"),
    ("network", "interfaces"),
];

/// Why a question is none, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BadQuery {
    /// Bytes before the place.
    pub at: usize,
    pub why: String,
}

impl std::fmt::Display for BadQuery {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at byte {}: {}", self.at, self.why)
    }
}

impl std::error::Error for BadQuery {}

type Parsed<T> = Result<T, BadQuery>;

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// A name, a number, a size, a path.
    Word(String),
    /// In quotes: a text whatever it looks like.
    Text(String),
    Compare(Compare),
    Sign(char),
}

fn bad<T>(at: usize, why: impl Into<String>) -> Parsed<T> {
    Err(BadQuery { at, why: why.into() })
}

/// Words, signs and texts, with where they begin.
fn tokens(text: &str) -> Parsed<Vec<(usize, Token)>> {
    let mut tokens = Vec::new();
    let mut at = 0;
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let (len, token) = match c {
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            '(' | ')' | '[' | ']' | ',' => (1, Token::Sign(c)),
            '"' | '\'' => match rest[1..].find(c) {
                Some(end) => (end + 2, Token::Text(rest[1..=end].to_string())),
                None => return bad(at, format!("no second {c}")),
            },
            '<' | '>' | '=' | '!' | '~' => match compare(rest) {
                Some((len, compare)) => (len, Token::Compare(compare)),
                None => return bad(at, "'!' stands before '=' only"),
            },
            _ => {
                let end = rest.find(|c: char| c.is_whitespace() || "()[],\"'<>=!~".contains(c));
                let len = end.unwrap_or(rest.len());
                (len, Token::Word(rest[..len].to_string()))
            }
        };
        tokens.push((at, token));
        at += len;
    }
    Ok(tokens)
}

fn compare(text: &str) -> Option<(usize, Compare)> {
    const SIGNS: &[(&str, Compare)] = &[
        (">=", Compare::AtLeast),
        ("<=", Compare::AtMost),
        ("!=", Compare::Other),
        ("==", Compare::Equal),
        (">", Compare::More),
        ("<", Compare::Less),
        ("=", Compare::Equal),
        ("~", Compare::Contains),
    ];
    SIGNS.iter().find(|(sign, _)| text.starts_with(sign)).map(|(sign, compare)| (sign.len(), *compare))
}

struct Parser {
    tokens: Vec<(usize, Token)>,
    next: usize,
    end: usize,
    depth: usize,
}

/// Reads a question.
pub fn parse(text: &str) -> Result<Query, BadQuery> {
    if text.len() > QUERY_MAX {
        return bad(QUERY_MAX, format!("a question has at most {QUERY_MAX} bytes"));
    }
    let mut parser = Parser { tokens: tokens(text)?, next: 0, end: text.len(), depth: 0 };
    parser.take_word("hosts");
    if !parser.take_word("with") {
        parser.take_word("where");
    }
    let query = parser.any()?;
    match parser.peek() {
        None => Ok(query),
        Some(_) => bad(parser.at(), "'and', 'or' or the end is missing here"),
    }
}

/// Parts of either kind, put together.
trait Part: Sized {
    fn all(parts: Vec<Self>) -> Self;
    fn any(parts: Vec<Self>) -> Self;
    fn not(part: Self) -> Self;
    fn one(parser: &mut Parser) -> Parsed<Self>;
}

impl Part for Query {
    fn all(parts: Vec<Query>) -> Query {
        Query::All(parts)
    }
    fn any(parts: Vec<Query>) -> Query {
        Query::Any(parts)
    }
    fn not(part: Query) -> Query {
        Query::Not(Box::new(part))
    }
    fn one(parser: &mut Parser) -> Parsed<Query> {
        match parser.phrase()? {
            Some(query) => Ok(query),
            None => parser.place(),
        }
    }
}

impl Part for Inner {
    fn all(parts: Vec<Inner>) -> Inner {
        Inner::All(parts)
    }
    fn any(parts: Vec<Inner>) -> Inner {
        Inner::Any(parts)
    }
    fn not(part: Inner) -> Inner {
        Inner::Not(Box::new(part))
    }
    fn one(parser: &mut Parser) -> Parsed<Inner> {
        let path = parser.path("a field of the list's elements")?;
        parser.condition(path).map(Inner::Is)
    }
}

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.next).map(|(_, token)| token)
    }

    fn at(&self) -> usize {
        self.tokens.get(self.next).map_or(self.end, |(at, _)| *at)
    }

    fn take(&mut self) -> Option<Token> {
        let token = self.peek().cloned()?;
        self.next += 1;
        Some(token)
    }

    fn take_sign(&mut self, sign: char) -> bool {
        let there = self.peek() == Some(&Token::Sign(sign));
        self.next += usize::from(there);
        there
    }

    fn take_word(&mut self, word: &str) -> bool {
        let there = matches!(self.peek(), Some(Token::Word(w)) if w.eq_ignore_ascii_case(word));
        self.next += usize::from(there);
        there
    }

    fn take_compare(&mut self) -> Option<Compare> {
        match self.peek() {
            Some(Token::Compare(compare)) => {
                let compare = *compare;
                self.next += 1;
                Some(compare)
            }
            _ => None,
        }
    }

    fn any<P: Part>(&mut self) -> Parsed<P> {
        let mut parts = vec![self.all()?];
        while self.take_word("or") {
            parts.push(self.all()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { P::any(parts) })
    }

    fn all<P: Part>(&mut self) -> Parsed<P> {
        let mut parts = vec![self.one()?];
        while self.take_word("and") || self.take_sign(',') {
            parts.push(self.one()?);
        }
        Ok(if parts.len() == 1 { parts.remove(0) } else { P::all(parts) })
    }

    fn one<P: Part>(&mut self) -> Parsed<P> {
        if self.depth == DEPTH_MAX {
            return bad(self.at(), format!("more than {DEPTH_MAX} parts lie in each other"));
        }
        self.depth += 1;
        let one = if self.take_word("not") {
            self.one().map(P::not)
        } else if self.take_sign('(') {
            let inner = self.any();
            inner.and_then(
                |inner| if self.take_sign(')') { Ok(inner) } else { bad(self.at(), "')' is missing") },
            )
        } else {
            P::one(self)
        };
        self.depth -= 1;
        one
    }

    /// A phrase begins with a comparison or a number; `None` when there is neither.
    fn phrase(&mut self) -> Parsed<Option<Query>> {
        let begins = match self.peek() {
            Some(Token::Compare(_)) => true,
            Some(Token::Word(word)) => word.starts_with(|c: char| c.is_ascii_digit()),
            _ => false,
        };
        if !begins {
            return Ok(None);
        }
        let compare = self.take_compare().unwrap_or(Compare::AtLeast);
        let at = self.at();
        let amount = match self.take() {
            Some(Token::Word(word)) => number(&word),
            _ => None,
        };
        let Some(amount) = amount else { return bad(at, "a number or a size such as 500GB is missing here") };
        self.quantity(compare, amount).map(Some)
    }

    /// What there is so much of.
    fn quantity(&mut self, compare: Compare, amount: f64) -> Parsed<Query> {
        let at = self.at();
        let word = match self.take() {
            Some(Token::Word(word)) => word.to_lowercase(),
            _ => String::new(),
        };
        let value =
            |extractor: &str, path: &str| data(extractor, compared(path, compare, Literal::Number(amount)));
        let count = |extractor: &str, path: &str| {
            let path = vec![path.to_string()];
            data(extractor, Condition::Count { path, inner: None, compare, to: amount })
        };
        Ok(match word.as_str() {
            "free" if self.take_word("memory") => value("memory-use", "available_bytes"),
            "free" if self.take_word("on") => self.free_on(compare, amount)?,
            "free" => free(compare, amount, None),
            "memory" => value("memory", "total_bytes"),
            "core" | "cores" => value("cpu", "cores"),
            "thread" | "threads" => value("cpu", "threads"),
            "socket" | "sockets" => value("cpu", "sockets"),
            "gpu" | "gpus" => count("gpus", "gpus"),
            "disk" | "disks" => count("disks", "disks"),
            "switch" | "switches" => count("fabric", "switches"),
            _ => {
                return bad(
                    at,
                    "free, memory, cores, threads, sockets, gpus, disks or switches is missing here",
                );
            }
        })
    }

    fn free_on(&mut self, compare: Compare, amount: f64) -> Parsed<Query> {
        let at = self.at();
        match self.take() {
            Some(Token::Word(place) | Token::Text(place)) => Ok(free(compare, amount, Some(place))),
            _ => bad(at, "a kind of disk (nvme, ssd, hdd) or a path is missing here"),
        }
    }

    fn path(&mut self, what: &str) -> Parsed<Vec<String>> {
        let at = self.at();
        let Some(Token::Word(word)) = self.take() else { return bad(at, format!("{what} is missing here")) };
        let path: Vec<String> = word.split('.').map(String::from).collect();
        if path.iter().any(String::is_empty) {
            return bad(at, format!("'{}' has an empty name", clip(&word)));
        }
        Ok(path)
    }

    fn place(&mut self) -> Parsed<Query> {
        let mut path = self.path("an extractor's name")?;
        let extractor = path.remove(0);
        let of_list = LISTS.iter().find(|(name, _)| *name == extractor);
        if let (Some((_, list)), Some(Token::Sign('['))) = (of_list.filter(|_| path.is_empty()), self.peek())
        {
            path.push((*list).into());
        }
        self.condition(path).map(|condition| data(&extractor, condition))
    }

    fn condition(&mut self, path: Vec<String>) -> Parsed<Condition> {
        if self.take_sign('[') {
            let inner = self.any::<Inner>()?;
            if !self.take_sign(']') {
                return bad(self.at(), "']' is missing");
            }
            return self.count(path, inner);
        }
        let Some(compare) = self.take_compare() else {
            return bad(self.at(), "a comparison (>=, =, ~ ...) or [ is missing here");
        };
        let at = self.at();
        let to = match self.take() {
            Some(Token::Text(text)) => Literal::Text(text),
            Some(Token::Word(word)) => literal(word),
            _ => return bad(at, "something to compare with is missing here"),
        };
        if compare == Compare::Contains && !matches!(to, Literal::Text(_)) {
            return bad(at, "'~' looks for a text; put it in quotes");
        }
        Ok(Condition::Compare { path, compare, to })
    }

    /// How many elements are to meet the condition: one, when nothing is said.
    fn count(&mut self, path: Vec<String>, inner: Inner) -> Parsed<Condition> {
        let inner = Some(Box::new(inner));
        let Some(compare) = self.take_compare() else {
            return Ok(Condition::Count { path, inner, compare: Compare::AtLeast, to: 1.0 });
        };
        let at = self.at();
        match self.take() {
            Some(Token::Word(word)) if number(&word).is_some() => {
                Ok(Condition::Count { path, inner, compare, to: number(&word).unwrap_or_default() })
            }
            _ => bad(at, "a number of elements is missing here"),
        }
    }
}

fn data(extractor: &str, condition: Condition) -> Query {
    Query::Data { extractor: extractor.into(), condition }
}

fn compared(path: &str, compare: Compare, to: Literal) -> Condition {
    Condition::Compare { path: vec![path.into()], compare, to }
}

/// Space in one file system: on disks of a kind, at a path, or anywhere.
fn free(compare: Compare, amount: f64, place: Option<String>) -> Query {
    let space = Inner::Is(compared("available_bytes", compare, Literal::Number(amount)));
    let writable = Inner::Is(compared("read_only", Compare::Equal, Literal::Truth(false)));
    let at = place.map(|place| {
        let field = if place.starts_with('/') { "target" } else { "disk_kind" };
        Inner::Is(compared(field, Compare::Equal, Literal::Text(place)))
    });
    let inner = Inner::All([Some(space), Some(writable), at].into_iter().flatten().collect());
    let path = vec!["filesystems".into()];
    let inner = Some(Box::new(inner));
    data("filesystems", Condition::Count { path, inner, compare: Compare::AtLeast, to: 1.0 })
}

fn literal(word: String) -> Literal {
    match (word.as_str(), number(&word)) {
        ("true" | "yes", _) => Literal::Truth(true),
        ("false" | "no", _) => Literal::Truth(false),
        (_, Some(number)) => Literal::Number(number),
        _ => Literal::Text(word),
    }
}

/// A number, with a unit of bytes or none.
fn number(word: &str) -> Option<f64> {
    const UNITS: &[(&str, f64)] = &[
        ("", 1.0),
        ("B", 1.0),
        ("KB", 1e3),
        ("MB", 1e6),
        ("GB", 1e9),
        ("TB", 1e12),
        ("PB", 1e15),
        ("KiB", 1024.0),
        ("MiB", 1_048_576.0),
        ("GiB", 1_073_741_824.0),
        ("TiB", 1_099_511_627_776.0),
        ("PiB", 1_125_899_906_842_624.0),
    ];
    let digits = word.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(word.len());
    let (number, unit) = word.split_at(digits);
    let (_, factor) = UNITS.iter().find(|(name, _)| name.eq_ignore_ascii_case(unit))?;
    number.parse::<f64>().ok().map(|number| number * factor).filter(|number| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn holds(text: &str, extractor: &str, data: &Value) -> bool {
        fn eval(query: &Query, name: &str, data: &Value) -> bool {
            match query {
                Query::All(parts) => parts.iter().all(|part| eval(part, name, data)),
                Query::Any(parts) => parts.iter().any(|part| eval(part, name, data)),
                Query::Not(part) => !eval(part, name, data),
                Query::Data { extractor, condition } => extractor == name && condition.holds(data),
            }
        }
        eval(&parse(text).unwrap(), extractor, data)
    }

    fn space(disk: &str, free: u64, read_only: bool) -> Value {
        json!({"filesystems": [
            {"target": "/", "disk_kind": "ssd", "available_bytes": 1, "read_only": false},
            {"target": "/local", "disk_kind": disk, "available_bytes": free, "read_only": read_only},
        ]})
    }

    #[test]
    fn phrases_say_what_people_mean() {
        let text = "hosts with >= 500GB free on nvme";
        assert!(holds(text, "filesystems", &space("nvme", 500_000_000_000, false)));
        assert!(!holds(text, "filesystems", &space("nvme", 499_999_999_999, false)));
        assert!(!holds(text, "filesystems", &space("ssd", 500_000_000_000, false)), "the space is elsewhere");
        assert!(!holds(text, "filesystems", &space("nvme", 500_000_000_000, true)), "nobody can write there");
        assert!(holds("512KiB free on /local", "filesystems", &space("hdd", 524_288, false)));
        assert!(holds("1 free", "filesystems", &space("hdd", 0, false)));
        let cpu = json!({"cores": 32, "threads": 64, "model": "AMD EPYC 9354"});
        assert!(holds(">= 32 cores", "cpu", &cpu) && !holds("> 32 cores", "cpu", &cpu));
        assert!(holds("hosts where 64 threads and cpu.model ~ epyc", "cpu", &cpu));
        assert!(holds("= 2 gpus", "gpus", &json!({"gpus": [{}, {}]})));
        assert!(holds("< 1 gpus", "gpus", &json!({"gpus": []})));
        assert!(holds("64GiB memory", "memory", &json!({"total_bytes": 68_719_476_736u64})));
        assert!(holds("1GB free memory", "memory-use", &json!({"available_bytes": 1e9})));
    }

    #[test]
    fn places_are_looked_up() {
        let network = json!({"interfaces": [
            {"name": "eth0", "kind": "ethernet", "megabits_per_second": 1000, "numa_node": null},
            {"name": "ib0", "kind": "infiniband", "megabits_per_second": 100_000, "numa_node": 1},
        ]});
        for text in [
            "network.interfaces.kind = infiniband",
            "network[kind = infiniband and megabits_per_second >= 100000]",
            "network[kind != infiniband] = 1",
            "network[not (kind = 'ethernet' or name ~ LO)] >= 1",
            "network.interfaces.numa_node = 1",
            "not network.interfaces.kind = loopback",
            "network.interfaces.name = \"ib0\" or nothing.at = all",
        ] {
            assert!(holds(text, "network", &network), "{text}");
        }
        for text in [
            "network[kind = ethernet and megabits_per_second > 1000]",
            "network[kind = ethernet] > 1",
            "network.interfaces.kind = 1",
            "network.interfaces.numa_node = 0",
            "network.nothing = 1",
            "network.interfaces.name ~ 'eth1'",
        ] {
            assert!(!holds(text, "network", &network), "{text}");
        }
    }

    #[test]
    fn and_binds_more_than_or() {
        let cpu = json!({"cores": 1});
        assert!(holds("1 cores or 9 cores and 9 cores", "cpu", &cpu));
        assert!(!holds("(1 cores or 9 cores) and 9 cores", "cpu", &cpu));
        assert!(!holds("not 1 cores or 9 cores", "cpu", &cpu));
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, at, why) in [
            ("", 0, "an extractor's name is missing"),
            ("hosts with", 10, "an extractor's name is missing"),
            (">= 5 apples", 5, "free, memory, cores"),
            (">= many cores", 3, "a number or a size"),
            ("500GB free on", 13, "a kind of disk"),
            ("cpu.cores", 9, "a comparison"),
            ("cpu.cores >=", 12, "something to compare with"),
            ("cpu..cores = 1", 0, "an empty name"),
            ("cpu.cores = 1 cpu.cores = 2", 14, "'and', 'or' or the end"),
            ("network[kind = x", 16, "']' is missing"),
            ("(1 cores", 8, "')' is missing"),
            ("cpu.model = 'x", 12, "no second '"),
            ("cpu.cores ! 3", 10, "before '=' only"),
            ("cpu.cores ~ 3", 12, "put it in quotes"),
            ("network[kind = x] > few", 20, "a number of elements"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.at == at && error.why.contains(why), "{text}: {error}");
        }
        assert!(parse(&"(".repeat(100_000)).is_err());
        assert!(parse(&"not ".repeat(1000)).unwrap_err().why.contains("lie in each other"));
    }

    proptest! {
        #[test]
        fn any_text_is_a_question_or_an_error(text in "[a-z0-9 .,()\\[\\]<>=!~'\"é]{0,60}") {
            if let Err(error) = parse(&text) {
                prop_assert!(error.at <= text.len());
            }
        }

        #[test]
        fn words_of_the_language_in_any_order_are_a_question_or_an_error(
            words in prop::collection::vec(prop::sample::select(vec![
                "hosts", "with", "and", "or", "not", "(", ")", "[", "]", ",", ">=", "5", "5GB", "free", "on", "nvme",
                "cpu.cores", "=", "cores", "'text'", "network", "memory",
            ]), 0..30),
        ) {
            let _ = parse(&words.join(" "));
        }
    }
}
