//! Owns the order in which cached blocks are evicted: one trait and four policies.
