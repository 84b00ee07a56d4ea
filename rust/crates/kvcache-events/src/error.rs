//! Owns the refusals of the crate. Nothing is changed by a refused call.

/// Why a call was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// A field of an event is outside what it may be.
    #[error("{field}: {reason}")]
    Invalid {
        /// Name of the field.
        field: &'static str,
        /// What it should have been.
        reason: &'static str,
    },
    /// The events from `wanted` on are not all here: dropped (`wanted < oldest`), or not those of this log
    /// (`wanted > next`). The follower must start again from a snapshot.
    #[error("events from {wanted} on were asked for, but {oldest} to {next} (exclusive) are kept")]
    Gap {
        /// First event that was asked for.
        wanted: u64,
        /// First event that is kept.
        oldest: u64,
        /// Number that the next event will get.
        next: u64,
    },
    /// The log keeps no events.
    #[error("the event log is disabled")]
    Disabled,
    /// The bytes are of another version of the format.
    #[error("wire format version {0} is not supported")]
    Version(u64),
    /// The bytes are no batch.
    #[error("byte {at}: {reason}")]
    Malformed {
        /// Position in the bytes.
        at: usize,
        /// What is wrong there.
        reason: &'static str,
    },
}
