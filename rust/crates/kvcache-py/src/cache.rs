//! Owns the Python class around one cache and its lock.

use std::sync::Mutex;

use kvcache_sequences::{CacheConfig, CacheError, KvCache, Sequence};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::Keys;
use crate::arrays::{chain_keys, count, counts, token_ids};
use crate::errors::{fence, to_py};

type Int32Array<'py> = Bound<'py, PyArray1<i32>>;
/// `ok`, `new_blocks`, `offsets`, and `replaced` flat as (row, position, block) triples.
type GrowthArrays<'py> = (
    Bound<'py, PyArray1<bool>>,
    Int32Array<'py>,
    Int32Array<'py>,
    Int32Array<'py>,
);
/// In the order of the fields of `llm_kvcache.Stats`.
type StatsTuple = (usize, usize, usize, usize, u64, u64, u64, usize);

/// A cache that threads may share: each call holds the lock, and not the GIL.
#[pyclass(frozen, module = "llm_kvcache._native")]
pub(crate) struct Cache {
    config: CacheConfig,
    cache: Mutex<KvCache>,
}

impl Cache {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut KvCache) -> Result<T, CacheError> + Send,
    ) -> PyResult<T> {
        let locked = || {
            fence(|| {
                let poisoned =
                    |_| CacheError::Invariant("an earlier call panicked; the state is lost".into());
                work(&mut *self.cache.lock().map_err(poisoned)?)
            })
        };
        py.detach(locked).map_err(|error| to_py(&error))
    }
}

fn int32(values: impl IntoIterator<Item = u32>) -> Vec<i32> {
    values.into_iter().map(|value| value as i32).collect()
}

fn argument(field: &'static str, value: i64) -> PyResult<usize> {
    count(field, value).map_err(|error| to_py(&error))
}

#[pymethods]
impl Cache {
    #[new]
    fn new(block_size: i64, num_blocks: i64, prefix_caching: bool) -> PyResult<Self> {
        let block_size = argument("block_size", block_size)?;
        let num_blocks = argument("num_blocks", num_blocks)?;
        let config = CacheConfig {
            block_size,
            num_blocks,
            prefix_caching,
        };
        let cache = fence(|| KvCache::new(config)).map_err(|error| to_py(&error))?;
        Ok(Self {
            config,
            cache: Mutex::new(cache),
        })
    }

    fn open(&self, py: Python<'_>, tokens: PyReadonlyArray1<'_, i32>, keys: Keys) -> PyResult<i64> {
        let (tokens, keys) = (
            token_ids(&tokens)?,
            chain_keys(keys).map_err(|error| to_py(&error))?,
        );
        // Hashing a long prompt takes a while: outside the lock.
        let made = py.detach(|| fence(|| Sequence::new(&self.config, tokens, keys)));
        let sequence = made.map_err(|error| to_py(&error))?;
        self.with(py, |cache| cache.open(sequence))
    }

    #[pyo3(name = "match")]
    fn match_prefix(&self, py: Python<'_>, seq: i64, max_tokens: Option<i64>) -> PyResult<usize> {
        let max_tokens = max_tokens.map(|n| argument("max_tokens", n)).transpose()?;
        self.with(py, |cache| cache.match_prefix(seq, max_tokens))
    }

    fn grow(&self, py: Python<'_>, seq: i64, n: i64) -> PyResult<bool> {
        let n = argument("n", n)?;
        self.with(py, |cache| cache.grow(seq, n))
    }

    fn grow_many<'py>(
        &self,
        py: Python<'py>,
        seqs: PyReadonlyArray1<'py, i64>,
        ns: PyReadonlyArray1<'py, i32>,
    ) -> PyResult<GrowthArrays<'py>> {
        let (seqs, ns) = (seqs.as_slice()?.to_vec(), counts("ns", &ns)?);
        let growth = self.with(py, |cache| cache.grow_many(&seqs, &ns))?;
        let replaced = growth
            .replaced
            .iter()
            .flat_map(|r| [r.row as u32, r.position as u32, r.block]);
        Ok((
            PyArray1::from_vec(py, growth.ok),
            PyArray1::from_vec(py, int32(growth.new_blocks)),
            PyArray1::from_vec(
                py,
                growth.offsets.into_iter().map(|offset| offset as i32).collect(),
            ),
            PyArray1::from_vec(py, int32(replaced)),
        ))
    }

    fn append(&self, py: Python<'_>, seq: i64, tokens: PyReadonlyArray1<'_, i32>) -> PyResult<()> {
        let tokens = token_ids(&tokens)?;
        self.with(py, |cache| cache.append(seq, &tokens))
    }

    fn append_many(
        &self,
        py: Python<'_>,
        seqs: PyReadonlyArray1<'_, i64>,
        tokens: PyReadonlyArray1<'_, i32>,
        offsets: PyReadonlyArray1<'_, i32>,
    ) -> PyResult<()> {
        let (seqs, offsets) = (seqs.as_slice()?.to_vec(), offsets.as_slice()?.to_vec());
        let tokens = token_ids(&tokens)?;
        self.with(py, |cache| cache.append_many(&seqs, &tokens, &offsets))
    }

    fn commit(&self, py: Python<'_>, seq: i64, num_computed: i64) -> PyResult<()> {
        let num_computed = argument("num_computed", num_computed)?;
        self.with(py, |cache| cache.commit(seq, num_computed))
    }

    fn commit_many(
        &self,
        py: Python<'_>,
        seqs: PyReadonlyArray1<'_, i64>,
        num_computed: PyReadonlyArray1<'_, i32>,
    ) -> PyResult<()> {
        let (seqs, num_computed) = (seqs.as_slice()?.to_vec(), counts("num_computed", &num_computed)?);
        self.with(py, |cache| cache.commit_many(&seqs, &num_computed))
    }

    fn truncate(&self, py: Python<'_>, seq: i64, n: i64) -> PyResult<()> {
        let n = argument("n", n)?;
        self.with(py, |cache| cache.truncate(seq, n))
    }

    fn shrink(&self, py: Python<'_>, seq: i64, n: i64) -> PyResult<()> {
        let n = argument("n", n)?;
        self.with(py, |cache| cache.shrink(seq, n))
    }

    fn fork(&self, py: Python<'_>, seq: i64) -> PyResult<i64> {
        self.with(py, |cache| cache.fork(seq))
    }

    fn release(&self, py: Python<'_>, seq: i64) -> PyResult<()> {
        self.with(py, |cache| cache.release(seq))
    }

    fn release_many(&self, py: Python<'_>, seqs: PyReadonlyArray1<'_, i64>) -> PyResult<()> {
        let seqs = seqs.as_slice()?.to_vec();
        self.with(py, |cache| cache.release_many(&seqs))
    }

    fn block_table<'py>(&self, py: Python<'py>, seq: i64) -> PyResult<Int32Array<'py>> {
        let table = self.with(py, |cache| Ok(int32(cache.block_table(seq)?.iter().copied())))?;
        Ok(PyArray1::from_vec(py, table))
    }

    /// Flat (source, destination) pairs.
    fn take_copies<'py>(&self, py: Python<'py>) -> PyResult<Int32Array<'py>> {
        let copies = self.with(py, |cache| Ok(cache.take_copies()))?;
        let flat = copies.iter().flat_map(|copy| [copy.source, copy.destination]);
        Ok(PyArray1::from_vec(py, int32(flat)))
    }

    fn num_tokens(&self, py: Python<'_>, seq: i64) -> PyResult<usize> {
        self.with(py, |cache| cache.num_tokens(seq))
    }

    fn capacity(&self, py: Python<'_>, seq: i64) -> PyResult<usize> {
        self.with(py, |cache| cache.capacity(seq))
    }

    fn num_reserved(&self, py: Python<'_>, seq: i64) -> PyResult<usize> {
        self.with(py, |cache| cache.num_reserved(seq))
    }

    fn reset_prefix_cache(&self, py: Python<'_>) -> PyResult<bool> {
        self.with(py, KvCache::reset_prefix_cache)
    }

    fn stats(&self, py: Python<'_>) -> PyResult<StatsTuple> {
        let s = self.with(py, |cache| Ok(cache.stats()))?;
        Ok((
            s.num_blocks,
            s.free,
            s.cached,
            s.used,
            s.queries,
            s.hits,
            s.evictions,
            s.sequences,
        ))
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |cache| cache.check())
    }
}
