//! Reads the key-value section of a GGUF file. Knows nothing of tensors or of what the keys mean.

use std::collections::HashMap;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::Path;

use crate::error::{Error, Result};

const MAGIC: [u8; 4] = *b"GGUF";
/// Nesting of arrays; real files have one level.
const MAX_ARRAY_DEPTH: usize = 4;
/// A buffer is never sized from a number in the file alone; it grows in parts of this many bytes.
const READ_PART_BYTES: u64 = 1 << 20;

/// A metadata value. Integers of all widths are widened.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// Any signed or unsigned integer.
    Int(i128),
    /// A float of 4 or 8 bytes.
    Float(f64),
    /// A truth value.
    Bool(bool),
    /// UTF-8 text.
    Text(String),
    /// A list of values of one type.
    List(Vec<Value>),
}

/// All key-value pairs of a file.
pub type Metadata = HashMap<String, Value>;

/// Read the metadata of the file at `path`.
pub fn read_metadata(path: &Path) -> Result<Metadata> {
    let file = File::open(path)
        .map_err(|reason| Error::File(format!("cannot open {}: {reason}", path.display())))?;
    let size = file
        .metadata()
        .map_err(|reason| Error::File(reason.to_string()))?
        .len();
    let mut reader = Reader {
        source: BufReader::with_capacity(1 << 18, file),
        left: size,
        place: "the header".to_owned(),
    };
    reader
        .read_all()
        .map_err(|reason| Error::File(format!("{}: {reason}", path.display())))
}

struct Reader<R> {
    source: R,
    left: u64,
    place: String,
}

impl<R: Read> Reader<R> {
    fn read_all(&mut self) -> std::result::Result<Metadata, String> {
        if self.bytes(4)? != MAGIC {
            return Err("not a GGUF file (wrong first four bytes)".to_owned());
        }
        let version = self.u32()?;
        if !(2..=3).contains(&version) {
            return Err(format!("GGUF version {version} is not supported (2 and 3 are)"));
        }
        let _tensors = self.u64()?;
        let pairs = self.u64()?;
        let mut metadata = Metadata::new();
        for index in 0..pairs {
            self.place = format!("key {index} of {pairs}");
            let key = self.text()?;
            self.place = format!("the value of {key}");
            let kind = self.u32()?;
            let value = self.value(kind, 0)?;
            if metadata.insert(key.clone(), value).is_some() {
                return Err(format!("corrupt GGUF metadata: the key {key} appears twice"));
            }
        }
        Ok(metadata)
    }

    fn value(&mut self, kind: u32, depth: usize) -> std::result::Result<Value, String> {
        Ok(match kind {
            0 => Value::Int(self.array::<1>()?[0].into()),
            1 => Value::Int(i8::from_le_bytes(self.array()?).into()),
            2 => Value::Int(u16::from_le_bytes(self.array()?).into()),
            3 => Value::Int(i16::from_le_bytes(self.array()?).into()),
            4 => Value::Int(self.u32()?.into()),
            5 => Value::Int(i32::from_le_bytes(self.array()?).into()),
            6 => Value::Float(f32::from_le_bytes(self.array()?).into()),
            7 => Value::Bool(self.array::<1>()?[0] != 0),
            8 => Value::Text(self.text()?),
            9 => self.list(depth)?,
            10 => Value::Int(self.u64()?.into()),
            11 => Value::Int(i64::from_le_bytes(self.array()?).into()),
            12 => Value::Float(f64::from_le_bytes(self.array()?)),
            _ => {
                return Err(format!(
                    "corrupt GGUF metadata: unknown value type {kind} in {}",
                    self.place
                ));
            }
        })
    }

    fn list(&mut self, depth: usize) -> std::result::Result<Value, String> {
        if depth >= MAX_ARRAY_DEPTH {
            return Err(format!(
                "corrupt GGUF metadata: arrays too deep in {}",
                self.place
            ));
        }
        let kind = self.u32()?;
        let length = self.u64()?;
        // Each element takes at least one byte, so a longer list cannot be in the file.
        if length > self.left {
            return Err(self.truncated());
        }
        let mut values = Vec::with_capacity(length.min(READ_PART_BYTES / 32) as usize);
        for _ in 0..length {
            values.push(self.value(kind, depth + 1)?);
        }
        Ok(Value::List(values))
    }

    fn text(&mut self) -> std::result::Result<String, String> {
        let length = self.u64()?;
        let bytes = self.bytes(length)?;
        String::from_utf8(bytes).map_err(|_| format!("corrupt GGUF metadata: {} is not UTF-8", self.place))
    }

    fn u32(&mut self) -> std::result::Result<u32, String> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    fn u64(&mut self) -> std::result::Result<u64, String> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    fn array<const N: usize>(&mut self) -> std::result::Result<[u8; N], String> {
        let mut bytes = [0; N];
        self.fill(&mut bytes)?;
        Ok(bytes)
    }

    fn bytes(&mut self, length: u64) -> std::result::Result<Vec<u8>, String> {
        if length > self.left {
            return Err(self.truncated());
        }
        let mut bytes = Vec::new();
        let mut missing = length;
        while missing > 0 {
            let part = missing.min(READ_PART_BYTES) as usize;
            let start = bytes.len();
            bytes.resize(start + part, 0);
            self.fill(&mut bytes[start..])?;
            missing -= part as u64;
        }
        Ok(bytes)
    }

    fn fill(&mut self, bytes: &mut [u8]) -> std::result::Result<(), String> {
        if bytes.len() as u64 > self.left {
            return Err(self.truncated());
        }
        self.source
            .read_exact(bytes)
            .map_err(|reason| format!("cannot read {}: {reason}", self.place))?;
        self.left -= bytes.len() as u64;
        Ok(())
    }

    fn truncated(&self) -> String {
        format!("truncated or corrupt GGUF file: it ends inside {}", self.place)
    }
}
