//! Owns pins: references that keep the blocks of a prefix from eviction until they are lifted or run out.

use std::collections::HashMap;

use kvcache_blocks::{AccountId, BlockId};

use crate::sequence::Dropped;
use crate::{CacheError, KvCache, Retention};

/// Names a pin.
pub type PinId = i64;

#[derive(Debug)]
struct Pin {
    /// Deepest first.
    blocks: Vec<Dropped>,
    retention: Retention,
    account: AccountId,
    expires_at: Option<f64>,
}

/// All pins and their limits.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    held: HashMap<PinId, Pin>,
    next_id: PinId,
    total: usize,
    by_account: HashMap<AccountId, usize>,
    quota: Option<usize>,
    quotas: HashMap<AccountId, usize>,
}

impl Pins {
    /// References held.
    pub(crate) fn num_blocks(&self) -> usize {
        self.total
    }

    /// The blocks of all pins, each as often as it is pinned.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = BlockId> + '_ {
        self.held
            .values()
            .flat_map(|pin| pin.blocks.iter().map(|dropped| dropped.block))
    }

    fn room(&self, account: AccountId) -> usize {
        let of_all = self
            .quota
            .map_or(usize::MAX, |quota| quota.saturating_sub(self.total));
        let held = self.by_account.get(&account).copied().unwrap_or(0);
        let own = self
            .quotas
            .get(&account)
            .map_or(usize::MAX, |quota| quota.saturating_sub(held));
        of_all.min(own)
    }

    fn add(&mut self, pin: Pin) -> PinId {
        self.total += pin.blocks.len();
        *self.by_account.entry(pin.account).or_default() += pin.blocks.len();
        let id = self.next_id;
        self.next_id += 1;
        self.held.insert(id, pin);
        id
    }

    fn take(&mut self, id: PinId) -> Option<Pin> {
        let pin = self.held.remove(&id)?;
        self.total -= pin.blocks.len();
        if let Some(held) = self.by_account.get_mut(&pin.account) {
            *held -= pin.blocks.len();
        }
        Some(pin)
    }
}

impl KvCache {
    /// Pins the blocks that a hit on a sequence's first `num_tokens` tokens needs, rounded down to the alignment, as
    /// far as they can be found now. Returns the pin and the tokens that it keeps.
    ///
    /// With a time to live it lifts itself at the [`set_time`](Self::set_time) that reaches it.
    pub fn pin(
        &mut self,
        id: i64,
        num_tokens: usize,
        ttl_s: Option<f64>,
    ) -> Result<(PinId, usize), CacheError> {
        check_seconds("ttl_s", ttl_s)?;
        let sequence = self.sequence(id)?;
        let length = self.longest_device_hit(sequence, num_tokens.min(sequence.tokens.len()));
        let blocks = self.blocks_of_hit(sequence, length);
        let (account, retention) = (sequence.account, sequence.retention);
        let room = self.pins.room(account);
        if blocks.len() > room {
            return Err(CacheError::PinQuota {
                wanted: blocks.len(),
                room,
            });
        }
        let mut taken = Vec::with_capacity(blocks.len());
        for dropped in &blocks {
            if let Err(error) = self.pool.acquire(dropped.block) {
                self.undo(&taken)?;
                return Err(error.into());
            }
            taken.push(dropped.block);
        }
        let pin = Pin {
            blocks,
            retention,
            account,
            expires_at: ttl_s.map(|ttl| self.now_s + ttl),
        };
        Ok((self.pins.add(pin), length))
    }

    /// Lifts a pin.
    pub fn unpin(&mut self, id: PinId) -> Result<(), CacheError> {
        let pin = self.pins.take(id).ok_or(CacheError::UnknownPin(id))?;
        self.give_back(&pin.blocks, pin.retention)
    }

    /// Limits the references that pins hold: those of one tenant, or, without a tenant, of all together. Pins that are
    /// there stay.
    pub fn set_pin_quota(&mut self, tenant: Option<&str>, blocks: Option<usize>) {
        let Some(tenant) = tenant else {
            self.pins.quota = blocks;
            return;
        };
        let account = self.account(tenant);
        match blocks {
            Some(quota) => self.pins.quotas.insert(account, quota),
            None => self.pins.quotas.remove(&account),
        };
    }

    /// States how a sequence's blocks are kept once it has given them back.
    pub fn set_retention(&mut self, id: i64, retention: Retention) -> Result<(), CacheError> {
        check_seconds("ttl_s", retention.ttl_s)?;
        self.sequence_mut(id)?.retention = retention;
        Ok(())
    }

    /// Tells the time in seconds, on any clock that does not go back: times to live are measured on it. Returns the
    /// number of pins that ran out.
    pub fn set_time(&mut self, now_s: f64) -> Result<usize, CacheError> {
        if !now_s.is_finite() || now_s < self.now_s {
            let reason = format!("must be finite and at least {}", self.now_s);
            return Err(CacheError::invalid("now_s", now_s as i64, reason));
        }
        self.pool.set_time(now_s)?;
        self.now_s = now_s;
        let has_run_out = |pin: &Pin| pin.expires_at.is_some_and(|at| at <= now_s);
        let mut over = self
            .pins
            .held
            .iter()
            .filter(|(_, pin)| has_run_out(pin))
            .map(|(id, _)| *id)
            .collect::<Vec<_>>();
        over.sort_unstable();
        let mut outcome = Ok(over.len());
        for id in over {
            if let Err(error) = self.unpin(id) {
                outcome = Err(error);
            }
        }
        outcome
    }
}

fn check_seconds(field: &'static str, seconds: Option<f64>) -> Result<(), CacheError> {
    match seconds {
        Some(s) if !s.is_finite() || s < 0.0 => Err(CacheError::invalid(
            field,
            s as i64,
            "must be finite and not negative",
        )),
        _ => Ok(()),
    }
}
