//! Owns who is charged for blocks: counts, quotas, and the cached blocks of accounts that have a quota.

use std::collections::HashMap;

use kvcache_eviction::{Links, List};

use crate::BlockId;

/// Who is charged for a block: a tenant, or 0 for nobody in particular.
pub type AccountId = u32;

#[derive(Debug)]
struct Limited {
    quota: usize,
    /// Its cached blocks, least recently released first.
    cached: List,
    num_cached: usize,
}

/// The books. A block that is not free is charged to the account that it was allocated for.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    /// By account; grows as accounts appear.
    charged: Vec<usize>,
    limited: HashMap<AccountId, Limited>,
    /// Made with the first quota.
    links: Option<Links>,
}

impl Accounts {
    pub(crate) fn charge(&mut self, account: AccountId) {
        let index = account as usize;
        if index >= self.charged.len() {
            self.charged.resize(index + 1, 0);
        }
        self.charged[index] += 1;
    }

    pub(crate) fn discharge(&mut self, account: AccountId) {
        self.charged[account as usize] -= 1;
    }

    pub(crate) fn charged(&self, account: AccountId) -> usize {
        self.charged.get(account as usize).copied().unwrap_or(0)
    }

    pub(crate) fn quota(&self, account: AccountId) -> Option<usize> {
        self.limited.get(&account).map(|limited| limited.quota)
    }

    /// Whether the account has as much as it may, so that only one of its own blocks can make room.
    pub(crate) fn is_full(&self, account: AccountId) -> bool {
        self.quota(account)
            .is_some_and(|quota| self.charged(account) >= quota)
    }

    /// Whether the account has more than it may.
    pub(crate) fn is_over(&self, account: AccountId) -> bool {
        self.quota(account)
            .is_some_and(|quota| self.charged(account) > quota)
    }

    /// Blocks that the account may still be given: below its quota, or in place of its own cached ones.
    pub(crate) fn room(&self, account: AccountId) -> usize {
        let Some(limited) = self.limited.get(&account) else {
            return usize::MAX;
        };
        (limited.quota + limited.num_cached).saturating_sub(self.charged(account))
    }

    /// Sets a quota; `cached` are the account's cached blocks by recency, least recent first.
    pub(crate) fn set_quota(
        &mut self,
        account: AccountId,
        quota: Option<usize>,
        num_blocks: usize,
        cached: impl Iterator<Item = BlockId>,
    ) {
        let Some(quota) = quota else {
            if let (Some(mut limited), Some(links)) = (self.limited.remove(&account), &mut self.links) {
                while let Some(block) = limited.cached.front() {
                    limited.cached.remove(links, block);
                }
            }
            return;
        };
        if let Some(limited) = self.limited.get_mut(&account) {
            limited.quota = quota;
            return;
        }
        let links = self.links.get_or_insert_with(|| Links::new(num_blocks));
        let mut limited = Limited {
            quota,
            cached: List::EMPTY,
            num_cached: 0,
        };
        for block in cached {
            limited.cached.push_back(links, block);
            limited.num_cached += 1;
        }
        self.limited.insert(account, limited);
    }

    pub(crate) fn became_cached(&mut self, account: AccountId, block: BlockId) {
        if let (Some(limited), Some(links)) = (self.limited.get_mut(&account), &mut self.links) {
            limited.cached.push_back(links, block);
            limited.num_cached += 1;
        }
    }

    pub(crate) fn left_cached(&mut self, account: AccountId, block: BlockId) {
        if let (Some(limited), Some(links)) = (self.limited.get_mut(&account), &mut self.links) {
            limited.cached.remove(links, block);
            limited.num_cached -= 1;
        }
    }

    /// The cached block of a limited account that was released first.
    pub(crate) fn oldest_cached(&self, account: AccountId) -> Option<BlockId> {
        self.limited.get(&account)?.cached.front()
    }

    /// The accounts that have a quota, with their cached blocks.
    pub(crate) fn limited(&self) -> impl Iterator<Item = (AccountId, Vec<BlockId>)> + '_ {
        self.limited.iter().map(|(account, limited)| {
            let links = self.links.as_ref();
            (
                *account,
                links.map_or_else(Vec::new, |links| limited.cached.iter(links).collect()),
            )
        })
    }

    /// Whether the lists' links, ends and lengths agree.
    pub(crate) fn is_consistent(&self) -> bool {
        let consistent = |limited: &Limited| {
            self.links
                .as_ref()
                .is_some_and(|links| limited.cached.consistent_len(links) == Some(limited.num_cached))
        };
        self.limited.values().all(consistent)
    }

    /// Blocks charged, by account.
    pub(crate) fn charges(&self) -> &[usize] {
        &self.charged
    }
}
