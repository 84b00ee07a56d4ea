//! Owns the fast byte-level BPE: pre-tokenizers as hand-written scanners and the merge loop.
