//! Owns the reading of protobuf's wire format, field by field. Knows nothing of any message.

/// A field's value as it is on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Wire<'a> {
    Varint(u64),
    Fixed32(u32),
    Fixed64(u64),
    Bytes(&'a [u8]),
}

/// The fields of one message, in the order in which they stand.
pub(super) struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    pub(super) fn of(message: &'a [u8]) -> Self {
        Self(message)
    }

    /// The next field's number and value; `Ok(None)` at the end.
    pub(super) fn next(&mut self) -> Result<Option<(u64, Wire<'a>)>, &'static str> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let value = match key & 7 {
            0 => Wire::Varint(self.varint()?),
            1 => Wire::Fixed64(u64::from_le_bytes(self.array()?)),
            2 => {
                let length = self.varint()?;
                Wire::Bytes(self.bytes(usize::try_from(length).unwrap_or(usize::MAX))?)
            }
            5 => Wire::Fixed32(u32::from_le_bytes(self.array()?)),
            _ => return Err("it has a field of an unknown wire type"),
        };
        match key >> 3 {
            0 => Err("it has a field with the number 0"),
            number => Ok(Some((number, value))),
        }
    }

    fn varint(&mut self) -> Result<u64, &'static str> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("it has a number that is too long")
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], &'static str> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or("it is truncated")?;
        self.0 = rest;
        Ok(*first)
    }

    fn bytes(&mut self, length: usize) -> Result<&'a [u8], &'static str> {
        let (first, rest) = self.0.split_at_checked(length).ok_or("it is truncated")?;
        self.0 = rest;
        Ok(first)
    }
}

#[cfg(test)]
mod tests {
    use super::{Fields, Wire};

    #[test]
    fn fields_of_every_wire_type() {
        let message = [
            0x08, 0x96, 0x01, 0x12, 2, b'h', b'i', 0x1d, 1, 0, 0, 0, 0x21, 2, 0, 0, 0, 0, 0, 0, 0,
        ];
        let mut fields = Fields::of(&message);
        assert_eq!(fields.next(), Ok(Some((1, Wire::Varint(150)))));
        assert_eq!(fields.next(), Ok(Some((2, Wire::Bytes(b"hi")))));
        assert_eq!(fields.next(), Ok(Some((3, Wire::Fixed32(1)))));
        assert_eq!(fields.next(), Ok(Some((4, Wire::Fixed64(2)))));
        assert_eq!(fields.next(), Ok(None));
    }

    #[test]
    fn broken_messages() {
        for message in [
            &[0x08][..],
            &[0x08, 0x80],
            &[0x12, 5, b'a'],
            &[0x0b],
            &[0x00, 0x00],
            &[
                0x08, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
            ],
            &[0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
        ] {
            assert!(Fields::of(message).next().is_err(), "{message:?}");
        }
    }
}
