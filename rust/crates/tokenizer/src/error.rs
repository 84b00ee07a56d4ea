//! What can go wrong; one variant for each Python exception.

/// Every failure of this crate.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The tokenizer's file or its content cannot be used.
    #[error("{0}")]
    File(String),
    /// An argument of a call is wrong; nothing was changed.
    #[error("{field}: {message}")]
    InvalidArgument {
        /// The argument's name.
        field: &'static str,
        /// What is wrong with it.
        message: String,
    },
    /// The tokenizer library failed on valid arguments.
    #[error("the tokenizer library failed: {0}")]
    Library(String),
}

/// Shorthand used throughout the crate.
pub type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn invalid(field: &'static str, message: impl Into<String>) -> Self {
        Self::InvalidArgument {
            field,
            message: message.into(),
        }
    }
}
