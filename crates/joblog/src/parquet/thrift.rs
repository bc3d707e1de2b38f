//! Thrift's compact protocol, in which Parquet tells about itself: structs as lists of numbered fields.

/// Structs within structs; Parquet needs six.
const DEPTH_MAX: usize = 16;

/// A value. What is not needed here is skipped, and is [`Value::Other`].
#[derive(Clone, PartialEq, Debug)]
pub enum Value<'a> {
    Int(i64),
    Bytes(&'a [u8]),
    List(Vec<Value<'a>>),
    Struct(Vec<(i16, Value<'a>)>),
    Other,
}

impl<'a> Value<'a> {
    pub fn field(&self, id: i16) -> Option<&Value<'a>> {
        let Value::Struct(fields) = self else { return None };
        fields.iter().find(|(of, _)| *of == id).map(|(_, value)| value)
    }

    pub fn int(&self, id: i16) -> Option<i64> {
        match self.field(id)? {
            Value::Int(int) => Some(*int),
            _ => None,
        }
    }

    pub fn bytes(&self, id: i16) -> Option<&'a [u8]> {
        match self.field(id)? {
            Value::Bytes(bytes) => Some(bytes),
            _ => None,
        }
    }

    pub fn list(&self, id: i16) -> &[Value<'a>] {
        match self.field(id) {
            Some(Value::List(list)) => list,
            _ => &[],
        }
    }
}

const STOP: u8 = 0;
const TRUE: u8 = 1;
const FALSE: u8 = 2;
const BYTE: u8 = 3;
const I16: u8 = 4;
const I32: u8 = 5;
const I64: u8 = 6;
const DOUBLE: u8 = 7;
const BINARY: u8 = 8;
const LIST: u8 = 9;
const SET: u8 = 10;
const STRUCT: u8 = 12;

/// The struct at the beginning, and how many bytes it takes.
pub fn read(bytes: &[u8]) -> Option<(Value<'_>, usize)> {
    let mut at = Cursor { bytes, at: 0 };
    let value = at.fields(0)?;
    Some((value, at.at))
}

struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Cursor<'a> {
    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn take(&mut self, count: u64) -> Option<&'a [u8]> {
        let end = self.at.checked_add(usize::try_from(count).ok()?)?;
        let taken = self.bytes.get(self.at..end)?;
        self.at = end;
        Some(taken)
    }

    fn varint(&mut self) -> Option<u64> {
        varint(self.bytes, &mut self.at)
    }

    fn zigzag(&mut self) -> Option<i64> {
        let raw = self.varint()?;
        Some((raw >> 1) as i64 ^ -((raw & 1) as i64))
    }

    fn fields(&mut self, depth: usize) -> Option<Value<'a>> {
        if depth > DEPTH_MAX {
            return None;
        }
        let (mut fields, mut id) = (Vec::new(), 0i16);
        loop {
            let head = self.byte()?;
            if head == STOP {
                return Some(Value::Struct(fields));
            }
            id = match head >> 4 {
                0 => i16::try_from(self.zigzag()?).ok()?,
                delta => id.checked_add(delta.into())?,
            };
            let value = match head & 0x0f {
                kind @ (TRUE | FALSE) => Value::Int((kind == TRUE).into()),
                kind => self.value(kind, depth)?,
            };
            fields.push((id, value));
        }
    }

    fn value(&mut self, kind: u8, depth: usize) -> Option<Value<'a>> {
        Some(match kind {
            TRUE | FALSE | BYTE => Value::Int(self.byte()?.into()),
            I16 | I32 | I64 => Value::Int(self.zigzag()?),
            DOUBLE => {
                self.take(8)?;
                Value::Other
            }
            BINARY => {
                let count = self.varint()?;
                Value::Bytes(self.take(count)?)
            }
            LIST | SET => {
                let head = self.byte()?;
                let count = match head >> 4 {
                    15 => self.varint()?,
                    count => count.into(),
                };
                // Each takes a byte at least: no list is longer than what is there.
                if count > (self.bytes.len() - self.at) as u64 || depth > DEPTH_MAX {
                    return None;
                }
                let values: Option<Vec<Value<'a>>> =
                    (0..count).map(|_| self.value(head & 0x0f, depth + 1)).collect();
                Value::List(values?)
            }
            STRUCT => self.fields(depth + 1)?,
            // Maps: Parquet has none.
            _ => return None,
        })
    }
}

/// Seven bits a byte, the least first.
pub fn varint(bytes: &[u8], at: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Writes structs.
#[derive(Default)]
pub struct Writer {
    pub bytes: Vec<u8>,
    /// The number of the last field, for each struct that is open.
    last: Vec<i16>,
}

impl Writer {
    pub fn varint(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes.push(value as u8 | 0x80);
            value >>= 7;
        }
        self.bytes.push(value as u8);
    }

    fn zigzag(&mut self, value: i64) {
        self.varint((value << 1 ^ value >> 63) as u64);
    }

    pub fn open(&mut self) {
        self.last.push(0);
    }

    pub fn close(&mut self) {
        self.bytes.push(STOP);
        self.last.pop();
    }

    fn head(&mut self, id: i16, kind: u8) {
        let last = self.last.last_mut().expect("a struct is open");
        let delta = id - *last;
        *last = id;
        // Fields come in ascending order, with small steps.
        self.bytes.push((delta as u8) << 4 | kind);
    }

    pub fn int32(&mut self, id: i16, value: i32) {
        self.head(id, I32);
        self.zigzag(value.into());
    }

    pub fn int64(&mut self, id: i16, value: i64) {
        self.head(id, I64);
        self.zigzag(value);
    }

    pub fn text(&mut self, id: i16, text: &[u8]) {
        self.head(id, BINARY);
        self.text_alone(text);
    }

    /// In a list.
    pub fn text_alone(&mut self, text: &[u8]) {
        self.varint(text.len() as u64);
        self.bytes.extend(text);
    }

    /// A struct as a field; close it.
    pub fn open_field(&mut self, id: i16) {
        self.head(id, STRUCT);
        self.open();
    }

    pub fn list_of_structs(&mut self, id: i16, count: usize) {
        self.list(id, count, STRUCT);
    }

    pub fn list_of_texts(&mut self, id: i16, count: usize) {
        self.list(id, count, BINARY);
    }

    pub fn list_of_ints(&mut self, id: i16, ints: &[i32]) {
        self.list(id, ints.len(), I32);
        ints.iter().for_each(|int| self.zigzag((*int).into()));
    }

    fn list(&mut self, id: i16, count: usize, kind: u8) {
        self.head(id, LIST);
        if count < 15 {
            self.bytes.push((count as u8) << 4 | kind);
        } else {
            self.bytes.push(0xf0 | kind);
            self.varint(count as u64);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn structs_are_these_bytes() {
        let mut writer = Writer::default();
        writer.open();
        writer.int32(1, -3);
        writer.text(3, b"ab");
        writer.open_field(4);
        writer.int64(1, 300);
        writer.close();
        writer.list_of_ints(5, &[0, 1]);
        writer.close();
        let bytes = [0x15, 5, 0x28, 2, b'a', b'b', 0x1c, 0x16, 0xd8, 4, 0, 0x19, 0x25, 0, 2, 0];
        assert_eq!(writer.bytes, bytes);
        let (value, took) = read(&bytes).unwrap();
        assert_eq!((took, value.int(1), value.bytes(3)), (bytes.len(), Some(-3), Some(&b"ab"[..])));
        assert_eq!(value.field(4).and_then(|inner| inner.int(1)), Some(300));
        assert_eq!(value.list(5), [Value::Int(0), Value::Int(1)]);
    }

    #[test]
    fn hostile_bytes_are_refused() {
        let deep = vec![0x1c; 1000];
        let deep_lists = vec![0x19; 1000];
        let long_list = [0x19, 0xfc, 0xff, 0xff, 0xff, 0xff, 0x0f];
        let long_text = [0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1];
        for bytes in [&deep[..], &deep_lists, &long_list, &long_text, &[], &[0x1b, 0], &[0x16, 0x80]] {
            assert_eq!(read(bytes), None, "{bytes:?}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_struct_or_none(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = read(&bytes);
        }
    }
}
