//! Owns the Python class around one cache and its lock.

use std::sync::{Arc, Mutex};

use kvcache_sequences::{
    CacheConfig, CacheError, EvictionPolicy, KvCache, Layout, PolicyError, Retention, Sequence, Transfer,
    policy_by_name,
};
use numpy::{PyArray1, PyReadonlyArray1};
use pyo3::prelude::*;

use crate::Keys;
use crate::arrays::{chain_keys, count, counts, groups, token_ids};
use crate::errors::{fence, to_py};
use crate::events::{self, BatchTuple, batch_to_py};
use crate::policy::{PythonPolicy, is_inside};

type Int32Array<'py> = Bound<'py, PyArray1<i32>>;
/// `ok`, `new_blocks` group by group, `offsets` likewise, and `replaced` flat as (row, group, position, block).
type GrowthArrays<'py> = (
    Bound<'py, PyArray1<bool>>,
    Int32Array<'py>,
    Int32Array<'py>,
    Int32Array<'py>,
);
/// In the order of the fields of `llm_kvcache.Stats`; twelve is the most that convert.
type StatsTuple = (
    usize,
    usize,
    usize,
    usize,
    u64,
    u64,
    u64,
    usize,
    usize,
    usize,
    usize,
    u64,
);

/// As `llm_kvcache.results` names them.
const COPY: i32 = 0;
const STORE: i32 = 1;
const LOAD: i32 = 2;

/// A cache that threads may share: each call holds the lock, and not the GIL.
#[pyclass(frozen, module = "llm_kvcache._native")]
pub(crate) struct Cache {
    layout: Arc<Layout>,
    cache: Mutex<KvCache>,
}

impl Cache {
    fn with<T: Send>(
        &self,
        py: Python<'_>,
        work: impl FnOnce(&mut KvCache) -> Result<T, CacheError> + Send,
    ) -> PyResult<T> {
        if is_inside() {
            let reason = "an eviction policy must not call a cache";
            return Err(to_py(&CacheError::Policy(PolicyError::Failed {
                policy: "the policy of this thread".into(),
                reason: reason.into(),
            })));
        }
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

fn bad_policy(error: PolicyError) -> CacheError {
    match error {
        PolicyError::BadSize(blocks) => CacheError::invalid("num_blocks", blocks, error.to_string()),
        other => CacheError::Policy(other),
    }
}

#[pymethods]
impl Cache {
    #[new]
    #[allow(clippy::too_many_arguments, reason = "one for each argument of KVCache")]
    fn new(
        groups: Vec<(String, i64, i64)>,
        num_blocks: i64,
        policy: &Bound<'_, PyAny>,
        prefix_caching: bool,
        partial_reuse: bool,
        host_blocks: i64,
    ) -> PyResult<Self> {
        let config = CacheConfig {
            groups: self::groups(groups).map_err(|error| to_py(&error))?,
            num_blocks: argument("num_blocks", num_blocks)?,
            prefix_caching,
            partial_reuse,
            host_blocks: argument("host_blocks", host_blocks)?,
        };
        let policy: Box<dyn EvictionPolicy> = match policy.extract::<String>() {
            Ok(name) => {
                let made = fence(|| policy_by_name(&name, config.num_blocks).map_err(bad_policy));
                made.map_err(|error| to_py(&error))?
            }
            Err(_) => Box::new(PythonPolicy::new(policy)?),
        };
        let cache = fence(|| KvCache::new(config, policy)).map_err(|error| to_py(&error))?;
        Ok(Self {
            layout: Arc::clone(cache.layout()),
            cache: Mutex::new(cache),
        })
    }

    fn open(
        &self,
        py: Python<'_>,
        tokens: PyReadonlyArray1<'_, i32>,
        keys: Keys,
        tenant: &str,
        encoder_tokens: i64,
    ) -> PyResult<i64> {
        let encoder_tokens = argument("encoder_tokens", encoder_tokens)?;
        let (tokens, keys) = (
            token_ids(&tokens)?,
            chain_keys(keys).map_err(|error| to_py(&error))?,
        );
        // Hashing a long prompt takes a while: outside the lock.
        let made = py.detach(|| fence(|| Sequence::new(&self.layout, tokens, keys)));
        let sequence = made
            .map_err(|error| to_py(&error))?
            .with_encoder_tokens(encoder_tokens);
        self.with(py, |cache| {
            let account = cache.account(tenant);
            let id = cache.open(sequence)?;
            cache.set_account(id, account)?;
            Ok(id)
        })
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
            .flat_map(|r| [r.row as u32, r.group as u32, r.position as u32, r.block]);
        let (mut new_blocks, mut offsets) = (Vec::new(), vec![0]);
        for group in &growth.groups {
            let before = new_blocks.len();
            new_blocks.extend(group.new_blocks.iter().map(|block| *block as i32));
            offsets.extend(group.offsets[1..].iter().map(|offset| (before + offset) as i32));
        }
        Ok((
            PyArray1::from_vec(py, growth.ok),
            PyArray1::from_vec(py, new_blocks),
            PyArray1::from_vec(py, offsets),
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

    fn truncate(&self, py: Python<'_>, seq: i64, n: i64) -> PyResult<usize> {
        let n = argument("n", n)?;
        self.with(py, |cache| cache.truncate(seq, n))
    }

    fn shrink(&self, py: Python<'_>, seq: i64, n: i64) -> PyResult<usize> {
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

    /// -1 where no block is needed any more.
    fn block_table<'py>(&self, py: Python<'py>, seq: i64, group: i64) -> PyResult<Int32Array<'py>> {
        let group = argument("group", group)?;
        let table = self.with(py, |cache| {
            Ok(int32(cache.block_table(seq, group)?.iter().copied()))
        })?;
        Ok(PyArray1::from_vec(py, table))
    }

    /// The batch or -1, and flat (kind, source, destination) triples.
    fn take_transfers<'py>(&self, py: Python<'py>) -> PyResult<(i64, Int32Array<'py>)> {
        let transfers = self.with(py, |cache| Ok(cache.take_transfers()))?;
        let flat = transfers.moves.iter().flat_map(|transfer| match *transfer {
            Transfer::Copy { source, destination } => [COPY, source as i32, destination as i32],
            Transfer::Store { source, destination } => [STORE, source as i32, destination as i32],
            Transfer::Load { source, destination } => [LOAD, source as i32, destination as i32],
        });
        let moves = PyArray1::from_vec(py, flat.collect());
        Ok((transfers.batch.unwrap_or(-1), moves))
    }

    fn finish_transfers(&self, py: Python<'_>, batch: i64, succeeded: bool) -> PyResult<Vec<i64>> {
        self.with(py, |cache| cache.finish_transfers(batch, succeeded))
    }

    fn set_retention(&self, py: Python<'_>, seq: i64, priority: i32, ttl_s: Option<f64>) -> PyResult<()> {
        self.with(py, |cache| {
            cache.set_retention(seq, Retention { priority, ttl_s })
        })
    }

    fn pin(&self, py: Python<'_>, seq: i64, n: Option<i64>, ttl_s: Option<f64>) -> PyResult<(i64, usize)> {
        let n = n.map(|n| argument("num_tokens", n)).transpose()?;
        self.with(py, |cache| cache.pin(seq, n.unwrap_or(usize::MAX), ttl_s))
    }

    fn unpin(&self, py: Python<'_>, pin: i64) -> PyResult<()> {
        self.with(py, |cache| cache.unpin(pin))
    }

    fn set_pin_quota(&self, py: Python<'_>, tenant: Option<&str>, blocks: Option<i64>) -> PyResult<()> {
        let blocks = blocks.map(|n| argument("blocks", n)).transpose()?;
        self.with(py, |cache| {
            cache.set_pin_quota(tenant, blocks);
            Ok(())
        })
    }

    fn set_quota(&self, py: Python<'_>, tenant: &str, blocks: Option<i64>) -> PyResult<()> {
        let blocks = blocks.map(|n| argument("blocks", n)).transpose()?;
        self.with(py, |cache| cache.set_quota(tenant, blocks))
    }

    fn available(&self, py: Python<'_>, tenant: &str) -> PyResult<usize> {
        self.with(py, |cache| Ok(cache.available(tenant)))
    }

    fn quota_room(&self, py: Python<'_>, tenant: &str) -> PyResult<usize> {
        self.with(py, |cache| Ok(cache.quota_room(tenant)))
    }

    fn lookup(&self, py: Python<'_>, seq: i64) -> PyResult<usize> {
        self.with(py, |cache| cache.lookup(seq))
    }

    fn usage(&self, py: Python<'_>, tenant: &str) -> PyResult<usize> {
        self.with(py, |cache| Ok(cache.usage(tenant)))
    }

    fn set_time(&self, py: Python<'_>, now_s: f64) -> PyResult<usize> {
        self.with(py, |cache| cache.set_time(now_s))
    }

    fn eviction_order<'py>(&self, py: Python<'py>) -> PyResult<Int32Array<'py>> {
        let order = self.with(py, |cache| cache.eviction_order())?;
        Ok(PyArray1::from_vec(py, int32(order)))
    }

    /// Keeps events from now on; called once, before anything happens.
    fn keep_events(&self, py: Python<'_>, capacity: usize, epoch: u64) -> PyResult<()> {
        self.with(py, |cache| {
            cache.keep_events(capacity, epoch);
            Ok(())
        })
    }

    fn events_since<'py>(
        &self,
        py: Python<'py>,
        seq: u64,
        limit: Option<usize>,
    ) -> PyResult<BatchTuple<'py>> {
        let batch = self.with(py, |cache| {
            Ok(cache.events_since(seq, limit.unwrap_or(usize::MAX)))
        })?;
        batch_to_py(py, &batch.map_err(events::to_py)?)
    }

    fn events_snapshot<'py>(&self, py: Python<'py>) -> PyResult<BatchTuple<'py>> {
        let batch = self.with(py, |cache| Ok(cache.events_snapshot()))?;
        batch_to_py(py, &batch.map_err(events::to_py)?)
    }

    fn num_computed(&self, py: Python<'_>, seq: i64) -> PyResult<usize> {
        self.with(py, |cache| cache.num_computed(seq))
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
            s.pinned,
            s.host_blocks,
            s.host_used,
            s.host_hits,
        ))
    }

    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.with(py, |cache| cache.check())
    }
}
