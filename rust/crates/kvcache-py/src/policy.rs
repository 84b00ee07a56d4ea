//! Owns the adapter that lets a policy written in Python order evictions.

use std::cell::Cell;

use kvcache_sequences::{BlockInfo, EvictionPolicy, PolicyError};
use pyo3::prelude::*;

thread_local! {
    /// Whether this thread is inside a call of a policy, and so holds the lock of its cache.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether the calling thread is inside a policy: a cache that it called now would wait for itself.
pub(crate) fn is_inside() -> bool {
    INSIDE.get()
}

/// A Python object with the methods of `llm_kvcache.EvictionPolicy`.
#[derive(Debug)]
pub(crate) struct PythonPolicy {
    object: Py<PyAny>,
    name: String,
    has_touch: bool,
    has_forget: bool,
    has_set_time: bool,
    len: usize,
}

impl PythonPolicy {
    pub(crate) fn new(object: &Bound<'_, PyAny>) -> PyResult<Self> {
        let has = |name| object.hasattr(name);
        Ok(Self {
            name: object.get_type().qualname()?.to_string(),
            has_touch: has("touch")?,
            has_forget: has("forget")?,
            has_set_time: has("set_time")?,
            object: object.clone().unbind(),
            len: 0,
        })
    }

    /// Runs Python under the GIL; its exceptions become errors that quote them.
    fn call<T>(
        &self,
        method: &str,
        work: impl FnOnce(Python<'_>, &Bound<'_, PyAny>) -> PyResult<T>,
    ) -> Result<T, PolicyError> {
        Python::attach(|py| {
            INSIDE.set(true);
            let result = work(py, self.object.bind(py));
            INSIDE.set(false);
            result.map_err(|error| PolicyError::Failed {
                policy: self.name.clone(),
                reason: format!("{method}: {error}"),
            })
        })
    }
}

impl EvictionPolicy for PythonPolicy {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> usize {
        self.len
    }

    fn insert(&mut self, block: u32, info: &BlockInfo) -> Result<(), PolicyError> {
        let fields = (info.priority, info.expires_at, info.cost, info.parent);
        self.call("insert", |py, object| {
            let info = py
                .import("llm_kvcache.policies")?
                .getattr("BlockInfo")?
                .call1(fields)?;
            object.call_method1("insert", (block, info)).map(drop)
        })?;
        self.len += 1;
        Ok(())
    }

    fn touch(&mut self, block: u32) -> Result<(), PolicyError> {
        if self.has_touch {
            self.call("touch", |_, object| {
                object.call_method1("touch", (block,)).map(drop)
            })?;
        }
        Ok(())
    }

    fn remove(&mut self, block: u32) -> Result<(), PolicyError> {
        self.call("remove", |_, object| {
            object.call_method1("remove", (block,)).map(drop)
        })?;
        self.len -= 1;
        Ok(())
    }

    fn forget(&mut self, block: u32) -> Result<(), PolicyError> {
        if self.has_forget {
            self.call("forget", |_, object| {
                object.call_method1("forget", (block,)).map(drop)
            })?;
        }
        Ok(())
    }

    fn evict(&mut self) -> Result<Option<u32>, PolicyError> {
        if self.len == 0 {
            return Ok(None);
        }
        let block = self.call("evict", |_, object| object.call_method0("evict")?.extract())?;
        self.len -= 1;
        Ok(Some(block))
    }

    fn set_time(&mut self, now_s: f64) -> Result<(), PolicyError> {
        if self.has_set_time {
            self.call("set_time", |_, object| {
                object.call_method1("set_time", (now_s,)).map(drop)
            })?;
        }
        Ok(())
    }

    fn order(&self) -> Result<Vec<u32>, PolicyError> {
        self.call("order", |_, object| object.call_method0("order")?.extract())
    }
}
