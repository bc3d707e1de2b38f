//! Tables that become messages and enumerations: one line gives number, name and codec.

/// An enum of messages with their numbers and their codec, from one table.
#[macro_export]
macro_rules! messages {
    ($(#[$doc:meta])* $enum:ident {
        $($(#[$vdoc:meta])* $number:literal $variant:ident { $($field:ident: $type:ty),* $(,)? })*
    }) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub enum $enum { $($(#[$vdoc])* $variant { $($field: $type),* }),* }

        impl $enum {
            /// Number of this message on the wire.
            pub fn kind(&self) -> u16 {
                match self { $($enum::$variant { .. } => $number),* }
            }

            /// Name of this message, for logs and counters.
            pub fn name(&self) -> &'static str {
                match self { $($enum::$variant { .. } => stringify!($variant)),* }
            }

            /// Appends the fields.
            pub fn encode(&self, out: &mut Vec<u8>) {
                match self { $($enum::$variant { $($field),* } => { $($crate::Field::put($field, out);)* let _ = &out; }),* }
            }

            /// Reads the fields of a message of this `kind`; all bytes must be used.
            pub fn decode(kind: u16, bytes: &[u8]) -> Result<$enum, $crate::DecodeError> {
                let mut from = $crate::Reader::new(bytes);
                let message = match kind {
                    $($number => $enum::$variant { $($field: $crate::Field::get(&mut from)?),* },)*
                    _ => return Err($crate::DecodeError::Invalid("message kind")),
                };
                from.finish()?;
                Ok(message)
            }

            /// Every (number, name), for the specification's test.
            pub const KINDS: &'static [(u16, &'static str)] = &[$(($number, stringify!($variant))),*];
        }
    };
}

pub(crate) use messages;

macro_rules! enum_field {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $number:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
        pub enum $name { $($(#[$vdoc])* $variant),* }
        impl $crate::Field for $name {
            fn put(&self, out: &mut Vec<u8>) {
                out.push(match self { $($name::$variant => $number),* });
            }
            fn get(from: &mut $crate::Reader<'_>) -> Result<$name, $crate::DecodeError> {
                match <u8 as $crate::Field>::get(from)? {
                    $($number => Ok($name::$variant),)*
                    _ => Err($crate::DecodeError::Invalid(stringify!($name))),
                }
            }
        }
    };
}

pub(crate) use enum_field;
