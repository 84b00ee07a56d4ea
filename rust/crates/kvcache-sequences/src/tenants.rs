//! Owns the names of tenants: who is charged for blocks, how many they may have, how many they may pin.

use std::collections::HashMap;

use kvcache_blocks::AccountId;

use crate::{CacheError, KvCache};

/// Account 0 is of sequences without a tenant.
#[derive(Debug, Default)]
pub(crate) struct Tenants {
    accounts: HashMap<String, AccountId>,
}

impl KvCache {
    /// The account of a tenant, made at the first mention; "" is nobody's. Names are never forgotten.
    pub fn account(&mut self, tenant: &str) -> AccountId {
        if tenant.is_empty() {
            return 0;
        }
        if let Some(account) = self.tenants.accounts.get(tenant) {
            return *account;
        }
        let account = self.tenants.accounts.len() as AccountId + 1;
        self.tenants.accounts.insert(tenant.to_owned(), account);
        account
    }

    /// Charges an open sequence's blocks to an account from now on; before the first is granted.
    pub fn set_account(&mut self, id: i64, account: AccountId) -> Result<(), CacheError> {
        self.sequence_mut(id)?.account = account;
        Ok(())
    }

    /// Limits the blocks charged to a tenant, in use and cached together, or lifts the limit.
    ///
    /// A block is charged to the tenant whose sequence it was allocated for, until it is free again; hits on it by
    /// others cost them nothing. A tenant at its quota evicts its own cached blocks, released first, and is refused
    /// growth beyond.
    pub fn set_quota(&mut self, tenant: &str, blocks: Option<usize>) -> Result<(), CacheError> {
        let account = self.account(tenant);
        let dropped = match self.pool.set_quota(account, blocks) {
            Ok(dropped) => dropped,
            Err(error) => return Err(self.after_policy_error(error.into())),
        };
        for block in dropped {
            self.forget_contents(block)?;
        }
        Ok(())
    }

    /// Blocks that a tenant's sequences may be given now: those that nobody owns, within the tenant's quota.
    pub fn available(&self, tenant: &str) -> usize {
        let account = self.tenants.accounts.get(tenant).copied().unwrap_or(0);
        self.pool.num_available_to(account)
    }

    /// Blocks that a tenant's quota alone leaves it, whoever owns them now; all of the pool without a quota.
    pub fn quota_room(&self, tenant: &str) -> usize {
        let account = self.tenants.accounts.get(tenant).copied().unwrap_or(0);
        self.pool.room_within_quota(account)
    }

    /// Blocks charged to a tenant, in use and cached.
    pub fn usage(&self, tenant: &str) -> usize {
        let account = if tenant.is_empty() {
            Some(0)
        } else {
            self.tenants.accounts.get(tenant).copied()
        };
        account.map_or(0, |account| self.pool.charged(account))
    }
}
