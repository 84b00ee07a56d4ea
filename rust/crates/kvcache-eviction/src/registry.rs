//! Owns the names of the policies.

use crate::{CostAware, EvictionPolicy, Lfu, Lru, PolicyError, PriorityTtl};

/// The names that [`policy_by_name`] takes.
pub const POLICY_NAMES: [&str; 4] = ["lru", "lfu", "priority+ttl", "cost"];

/// Makes a policy for a pool of `num_blocks` blocks.
///
/// Errors: `UnknownName`, `BadSize`.
pub fn policy_by_name(name: &str, num_blocks: usize) -> Result<Box<dyn EvictionPolicy>, PolicyError> {
    Ok(match name {
        "lru" => Box::new(Lru::new(num_blocks)?),
        "lfu" => Box::new(Lfu::new(num_blocks)?),
        "priority+ttl" => Box::new(PriorityTtl::new(num_blocks)?),
        "cost" => Box::new(CostAware::new(num_blocks)?),
        unknown => return Err(PolicyError::UnknownName(unknown.to_owned())),
    })
}
