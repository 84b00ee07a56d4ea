//! Owns the part of msgpack that the format uses: the shortest writing of each value, the reading of any.

use crate::EventError;

/// Appends values, each in its shortest form, so that equal batches have equal bytes.
#[derive(Debug, Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    fn tagged(&mut self, tag: u8, value: &[u8]) {
        self.bytes.push(tag);
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    pub(crate) fn boolean(&mut self, value: bool) {
        self.bytes.push(0xc2 + u8::from(value));
    }

    pub(crate) fn uint(&mut self, value: u64) {
        match value {
            0..=0x7f => self.bytes.push(value as u8),
            0x80..=0xff => self.tagged(0xcc, &[value as u8]),
            0x100..=0xffff => self.tagged(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.tagged(0xce, &(value as u32).to_be_bytes()),
            _ => self.tagged(0xcf, &value.to_be_bytes()),
        }
    }

    pub(crate) fn array(&mut self, len: usize) {
        match len {
            0..=15 => self.bytes.push(0x90 | len as u8),
            16..=0xffff => self.tagged(0xdc, &(len as u16).to_be_bytes()),
            _ => self.tagged(0xdd, &(len as u32).to_be_bytes()),
        }
    }

    pub(crate) fn string(&mut self, value: &str) {
        match value.len() {
            len @ 0..=31 => self.bytes.push(0xa0 | len as u8),
            len @ 32..=0xff => self.tagged(0xd9, &[len as u8]),
            len @ 0x100..=0xffff => self.tagged(0xda, &(len as u16).to_be_bytes()),
            len => self.tagged(0xdb, &(len as u32).to_be_bytes()),
        }
        self.bytes.extend_from_slice(value.as_bytes());
    }

    /// Starts a byte string; its bytes follow.
    pub(crate) fn binary(&mut self, len: usize) {
        match len {
            0..=0xff => self.tagged(0xc4, &[len as u8]),
            0x100..=0xffff => self.tagged(0xc5, &(len as u16).to_be_bytes()),
            _ => self.tagged(0xc6, &(len as u32).to_be_bytes()),
        }
    }
}

/// Reads values from the front of some bytes; takes no memory for lengths that the bytes only claim.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    pub(crate) at: usize,
}

type Read<T> = Result<T, EventError>;

impl<'a> Reader<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    pub(crate) fn malformed<T>(&self, reason: &'static str) -> Read<T> {
        Err(EventError::Malformed { at: self.at, reason })
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.at
    }

    fn peek(&self) -> Read<u8> {
        self.bytes
            .get(self.at)
            .map_or_else(|| self.malformed("the bytes end here"), |tag| Ok(*tag))
    }

    fn take(&mut self, len: usize) -> Read<&'a [u8]> {
        if len > self.remaining() {
            return self.malformed("a value is longer than the bytes");
        }
        let taken = &self.bytes[self.at..self.at + len];
        self.at += len;
        Ok(taken)
    }

    /// The tag and, after it, a big endian number of `width` bytes.
    fn number(&mut self, width: usize) -> Read<u64> {
        let bytes = self.take(1 + width)?;
        Ok(bytes[1..]
            .iter()
            .fold(0, |number, byte| number << 8 | u64::from(*byte)))
    }

    /// Any integer that is not negative, in any width.
    pub(crate) fn uint(&mut self) -> Read<u64> {
        let start = self.at;
        let (width, is_signed) = match self.peek()? {
            tag @ 0..=0x7f => {
                self.at += 1;
                return Ok(u64::from(tag));
            }
            tag @ 0xcc..=0xcf => (1_usize << (tag - 0xcc), false),
            tag @ 0xd0..=0xd3 => (1_usize << (tag - 0xd0), true),
            _ => return self.malformed("must be an integer that is not negative"),
        };
        let number = self.number(width)?;
        if is_signed && number >> (8 * width - 1) == 1 {
            self.at = start;
            return self.malformed("must be an integer that is not negative");
        }
        Ok(number)
    }

    pub(crate) fn uint32(&mut self) -> Read<u32> {
        let start = self.at;
        u32::try_from(self.uint()?).or_else(|_| {
            self.at = start;
            self.malformed("must fit into 32 bits")
        })
    }

    pub(crate) fn boolean(&mut self) -> Read<bool> {
        match self.peek()? {
            tag @ (0xc2 | 0xc3) => {
                self.at += 1;
                Ok(tag == 0xc3)
            }
            _ => self.malformed("must be true or false"),
        }
    }

    pub(crate) fn array(&mut self) -> Read<usize> {
        match self.peek()? {
            tag @ 0x90..=0x9f => {
                self.at += 1;
                Ok(usize::from(tag & 15))
            }
            0xdc => self.number(2).map(|len| len as usize),
            0xdd => self.number(4).map(|len| len as usize),
            _ => self.malformed("must be an array"),
        }
    }

    pub(crate) fn string(&mut self) -> Read<&'a str> {
        let start = self.at;
        let len = match self.peek()? {
            tag @ 0xa0..=0xbf => {
                self.at += 1;
                u64::from(tag & 31)
            }
            0xd9 => self.number(1)?,
            0xda => self.number(2)?,
            0xdb => self.number(4)?,
            _ => return self.malformed("must be a string"),
        };
        std::str::from_utf8(self.take(len as usize)?).or_else(|_| {
            self.at = start;
            self.malformed("must be UTF-8")
        })
    }

    pub(crate) fn binary(&mut self) -> Read<&'a [u8]> {
        let len = match self.peek()? {
            0xc4 => self.number(1)?,
            0xc5 => self.number(2)?,
            0xc6 => self.number(4)?,
            _ => return self.malformed("must be a byte string"),
        };
        self.take(len as usize)
    }

    /// Whether nil comes next; it is then read.
    pub(crate) fn is_nil(&mut self) -> Read<bool> {
        let is_nil = self.peek()? == 0xc0;
        self.at += usize::from(is_nil);
        Ok(is_nil)
    }

    /// Passes over one value of any kind, nested ones without recursion.
    pub(crate) fn skip(&mut self) -> Read<()> {
        let mut todo = 1_u64;
        while todo > 0 {
            todo = todo - 1 + self.skip_head()?;
        }
        Ok(())
    }

    /// Passes over a value but not the values in it, and returns how many of those follow.
    fn skip_head(&mut self) -> Read<u64> {
        let (payload, inner) = match self.peek()? {
            0..=0x7f | 0xe0..=0xff | 0xc0 | 0xc2 | 0xc3 => (1, 0),
            tag @ 0x80..=0x8f => (1, 2 * u64::from(tag & 15)),
            tag @ 0x90..=0x9f => (1, u64::from(tag & 15)),
            tag @ 0xa0..=0xbf => (1 + usize::from(tag & 31), 0),
            tag @ 0xcc..=0xd3 => (1 + (1 << (tag & 3)), 0),
            0xca => (5, 0),
            0xcb => (9, 0),
            tag @ 0xd4..=0xd8 => (2 + (1 << (tag - 0xd4)), 0),
            tag @ 0xc4..=0xc6 => (self.number(1 << (tag - 0xc4))? as usize, 0),
            tag @ 0xc7..=0xc9 => (1 + self.number(1 << (tag - 0xc7))? as usize, 0),
            tag @ 0xd9..=0xdb => (self.number(1 << (tag - 0xd9))? as usize, 0),
            tag @ (0xdc | 0xdd) => (0, self.number(2 << (tag - 0xdc))?),
            tag @ (0xde | 0xdf) => (0, 2 * self.number(2 << (tag - 0xde))?),
            0xc1 => return self.malformed("no value starts with this byte"),
        };
        self.take(payload)?;
        Ok(inner)
    }
}
