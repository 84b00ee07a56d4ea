//! Owns the index of blocks over storage tiers and the state machine of their moves.
