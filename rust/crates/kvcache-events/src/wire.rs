//! Owns the wire format of batches, version 1, so that a follower in any language can read them.
//!
//! A batch is one msgpack value. `[…]` is an array, `bin` a byte string, `str` UTF-8, `uint` an integer that is not
//! negative; `x?` is `x` or nil.
//!
//! ```text
//! batch    = [version uint (1), epoch uint64, seq uint64, is_snapshot bool, [event …]]
//! event    = stored | removed | moved | cleared
//! stored   = [0, keys, parent?, tokens, block_size uint32, group uint32, tier str, lora str?, has_extra_keys bool]
//! removed  = [1, keys, group uint32, tier str]
//! moved    = [2, keys, group uint32, from str, to str, is_copy bool]
//! cleared  = [3, tier str?]
//! keys     = bin, 16 bytes for each block hash, one after the other; at least one
//! parent   = bin of 16 bytes
//! tokens   = bin, 4 bytes for each token id, little endian; as many as keys times block_size, or none
//! ```
//!
//! `seq` numbers the first event, the others follow without holes; a snapshot's events have no numbers and `seq` is that
//! of the first event after it. `epoch` grows from one life of the cache to the next. Later minor versions may append elements to any of these arrays: readers pass over what
//! they do not know. A reader refuses another `version`, another kind of event, and bytes after the batch.
//! Writers use the shortest form of every value, so equal batches have equal bytes; readers take any form.

use crate::msgpack::{Reader, Writer};
use crate::{Batch, Event, EventError, Key, Name, Stored};

/// Version of the wire format.
pub const WIRE_VERSION: u64 = 1;

const STORED: u64 = 0;
const REMOVED: u64 = 1;
const MOVED: u64 = 2;
const CLEARED: u64 = 3;

type Read<T> = Result<T, EventError>;

/// The bytes of a batch.
pub fn encode(batch: &Batch) -> Read<Vec<u8>> {
    let mut writer = Writer::default();
    writer.array(5);
    writer.uint(WIRE_VERSION);
    writer.uint(batch.epoch);
    writer.uint(batch.seq);
    writer.boolean(batch.is_snapshot);
    check_length("events", batch.events.len())?;
    writer.array(batch.events.len());
    for event in &batch.events {
        event.validate()?;
        write_event(&mut writer, event)?;
    }
    Ok(writer.bytes)
}

fn check_length(field: &'static str, len: usize) -> Read<()> {
    if u32::try_from(len).is_err() {
        let reason = "is too long: msgpack ends at 2^32 - 1 elements or bytes";
        return Err(EventError::Invalid { field, reason });
    }
    Ok(())
}

fn write_event(writer: &mut Writer, event: &Event) -> Read<()> {
    match event {
        Event::Stored(stored) => write_stored(writer, stored)?,
        Event::Removed { keys, group, tier } => {
            writer.array(4);
            writer.uint(REMOVED);
            write_keys(writer, keys)?;
            writer.uint(u64::from(*group));
            writer.string(tier);
        }
        Event::Moved {
            keys,
            group,
            from,
            to,
            is_copy,
        } => {
            writer.array(6);
            writer.uint(MOVED);
            write_keys(writer, keys)?;
            writer.uint(u64::from(*group));
            writer.string(from);
            writer.string(to);
            writer.boolean(*is_copy);
        }
        Event::Cleared { tier } => {
            writer.array(2);
            writer.uint(CLEARED);
            write_option(writer, tier.as_ref(), |writer, tier| writer.string(tier));
        }
    }
    Ok(())
}

fn write_stored(writer: &mut Writer, stored: &Stored) -> Read<()> {
    writer.array(9);
    writer.uint(STORED);
    write_keys(writer, &stored.keys)?;
    write_option(writer, stored.parent.as_ref(), |writer, parent| {
        writer.binary(parent.len());
        writer.bytes.extend_from_slice(parent);
    });
    check_length("token_ids", stored.token_ids.len().saturating_mul(4))?;
    writer.binary(4 * stored.token_ids.len());
    let tokens = stored.token_ids.iter().flat_map(|token| token.to_le_bytes());
    writer.bytes.extend(tokens);
    writer.uint(u64::from(stored.block_size));
    writer.uint(u64::from(stored.group));
    writer.string(&stored.tier);
    write_option(writer, stored.lora.as_ref(), |writer, lora| writer.string(lora));
    writer.boolean(stored.has_extra_keys);
    Ok(())
}

fn write_keys(writer: &mut Writer, keys: &[Key]) -> Read<()> {
    check_length("keys", keys.len().saturating_mul(16))?;
    writer.binary(16 * keys.len());
    writer.bytes.extend_from_slice(keys.as_flattened());
    Ok(())
}

fn write_option<T>(writer: &mut Writer, value: Option<T>, write: impl FnOnce(&mut Writer, T)) {
    match value {
        Some(value) => write(writer, value),
        None => writer.nil(),
    }
}

/// The batch that some bytes stand for, checked in full.
pub fn decode(bytes: &[u8]) -> Read<Batch> {
    let mut reader = Reader::new(bytes);
    let len = fields(&mut reader, 5)?;
    let version = reader.uint()?;
    if version != WIRE_VERSION {
        return Err(EventError::Version(version));
    }
    let (epoch, seq, is_snapshot) = (reader.uint()?, reader.uint()?, reader.boolean()?);
    let num_events = reader.array()?;
    // An event takes 3 bytes or more: a length is only trusted as far as the bytes go.
    let mut events = Vec::with_capacity(num_events.min(reader.remaining() / 3));
    for _ in 0..num_events {
        events.push(read_event(&mut reader)?);
    }
    (5..len).try_for_each(|_| reader.skip())?;
    if reader.remaining() > 0 {
        return reader.malformed("bytes follow the batch");
    }
    Ok(Batch {
        epoch,
        seq,
        is_snapshot,
        events,
    })
}

/// Opens an array of at least `least` elements.
fn fields(reader: &mut Reader<'_>, least: usize) -> Read<usize> {
    let at = reader.at;
    let len = reader.array()?;
    if len < least {
        let reason = "the array has too few elements";
        return Err(EventError::Malformed { at, reason });
    }
    Ok(len)
}

fn read_event(reader: &mut Reader<'_>) -> Read<Event> {
    let start = reader.at;
    let len = fields(reader, 2)?;
    let kind = reader.uint()?;
    let known = match kind {
        STORED => 9,
        REMOVED => 4,
        MOVED => 6,
        CLEARED => 2,
        _ => {
            let reason = "this kind of event is unknown";
            return Err(EventError::Malformed { at: start, reason });
        }
    };
    if len < known {
        let reason = "the event has too few elements";
        return Err(EventError::Malformed { at: start, reason });
    }
    let event = match kind {
        STORED => Event::Stored(read_stored(reader)?),
        REMOVED => Event::Removed {
            keys: read_keys(reader)?,
            group: reader.uint32()?,
            tier: reader.string()?.into(),
        },
        MOVED => Event::Moved {
            keys: read_keys(reader)?,
            group: reader.uint32()?,
            from: reader.string()?.into(),
            to: reader.string()?.into(),
            is_copy: reader.boolean()?,
        },
        _ => Event::Cleared {
            tier: read_name(reader)?,
        },
    };
    (known..len).try_for_each(|_| reader.skip())?;
    event.validate()?;
    Ok(event)
}

fn read_stored(reader: &mut Reader<'_>) -> Read<Stored> {
    Ok(Stored {
        keys: read_keys(reader)?,
        parent: if reader.is_nil()? {
            None
        } else {
            Some(read_parent(reader)?)
        },
        token_ids: read_tokens(reader)?,
        block_size: reader.uint32()?,
        group: reader.uint32()?,
        tier: reader.string()?.into(),
        lora: read_name(reader)?,
        has_extra_keys: reader.boolean()?,
    })
}

fn read_name(reader: &mut Reader<'_>) -> Read<Option<Name>> {
    if reader.is_nil()? {
        return Ok(None);
    }
    reader.string().map(|name| Some(name.into()))
}

/// The parts of a byte string that is a whole number of them.
fn read_parts<'a, const N: usize>(reader: &mut Reader<'a>, reason: &'static str) -> Read<&'a [[u8; N]]> {
    let at = reader.at;
    let (parts, rest) = reader.binary()?.as_chunks();
    if !rest.is_empty() {
        return Err(EventError::Malformed { at, reason });
    }
    Ok(parts)
}

fn read_keys(reader: &mut Reader<'_>) -> Read<Vec<Key>> {
    read_parts(reader, "keys must have 16 bytes each").map(<[Key]>::to_vec)
}

fn read_tokens(reader: &mut Reader<'_>) -> Read<Vec<u32>> {
    let tokens = read_parts(reader, "token ids must have 4 bytes each")?;
    Ok(tokens.iter().map(|token| u32::from_le_bytes(*token)).collect())
}

fn read_parent(reader: &mut Reader<'_>) -> Read<Key> {
    let at = reader.at;
    let reason = "the parent must have 16 bytes";
    match read_parts(reader, reason)? {
        [parent] => Ok(*parent),
        _ => Err(EventError::Malformed { at, reason }),
    }
}
