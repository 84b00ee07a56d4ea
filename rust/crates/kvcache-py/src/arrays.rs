//! Owns the conversion of numpy arrays and Python numbers into checked Rust values.

use kvcache_prefix::{ChainKeys, Media};
use kvcache_sequences::{CacheError, GroupSpec, Keeps, Layout};
use numpy::{PyReadonlyArray1, PyUntypedArrayMethods};
use pyo3::PyResult;

use crate::Keys;
use crate::errors::to_py;

/// A count given as a Python integer.
pub(crate) fn count(field: &'static str, value: i64) -> Result<usize, CacheError> {
    usize::try_from(value).map_err(|_| CacheError::invalid(field, value, "must not be negative"))
}

/// A copy of an array of counts.
pub(crate) fn counts(field: &'static str, array: &PyReadonlyArray1<'_, i32>) -> PyResult<Vec<usize>> {
    let values = array.as_slice()?.iter();
    let checked = values
        .map(|value| count(field, i64::from(*value)))
        .collect::<Result<_, _>>();
    checked.map_err(|error| to_py(&error))
}

/// A copy of an array of token ids.
pub(crate) fn token_ids(array: &PyReadonlyArray1<'_, i32>) -> PyResult<Vec<u32>> {
    let mut tokens = Vec::with_capacity(array.len());
    for token in array.as_slice()? {
        let id = u32::try_from(*token).map_err(|_| {
            to_py(&CacheError::invalid(
                "token_ids",
                i64::from(*token),
                "must not be negative",
            ))
        })?;
        tokens.push(id);
    }
    Ok(tokens)
}

/// The extra keys, media items sorted by offset.
pub(crate) fn chain_keys((salt, lora, media): Keys) -> Result<ChainKeys, CacheError> {
    let items = media.into_iter().map(|(offset, digest)| {
        Ok(Media {
            offset: count("media", offset)?,
            digest,
        })
    });
    let mut media = items.collect::<Result<Vec<_>, CacheError>>()?;
    media.sort_by_key(|item| item.offset);
    Ok(ChainKeys { salt, lora, media })
}

/// The groups, as (kind, block size, and the size of the kind or 0).
pub(crate) fn groups(groups: Vec<(String, i64, i64)>) -> Result<Vec<GroupSpec>, CacheError> {
    let one = |(kind, block_size, size): (String, i64, i64)| {
        let size = |field| count(field, size);
        let keeps = match kind.as_str() {
            "full" => Keeps::All,
            "window" => Keeps::Window(size("window")?),
            "chunk" => Keeps::Chunk(size("chunk_size")?),
            "state" => Keeps::State,
            "encoder" => Keeps::Encoder,
            _ => {
                return Err(CacheError::invalid(
                    "groups",
                    block_size,
                    format!("unknown kind {kind}"),
                ));
            }
        };
        Ok(GroupSpec {
            block_size: count("block_size", block_size)?,
            keeps,
        })
    };
    groups.into_iter().map(one).collect()
}

/// The layout of one group that keeps all blocks, for hashing alone.
pub(crate) fn hashing_layout(block_size: i64) -> Result<Layout, CacheError> {
    Layout::new(vec![GroupSpec::full(count("block_size", block_size)?)], true)
}
