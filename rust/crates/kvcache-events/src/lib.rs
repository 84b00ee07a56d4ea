//! Owns the log of cache events: sequence numbers, replay buffer, wire format.
