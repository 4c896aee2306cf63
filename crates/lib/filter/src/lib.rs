//! Two small languages about frames: a filter [`expression`] matches frames, in the syntax of
//! pcap-filter(7); [`frame`] describes one frame, much as tcpdump prints it.
//!
//! Texts come from operators and from clients of the API: they are bounded in length and nesting,
//! and errors have a column. No text panics, and none recurses deeper than [`MAX_DEPTH`].
//! To match a frame with a parsed filter allocates nothing.

#![forbid(unsafe_code)]

pub mod expression;
pub mod frame;
mod lexer;

pub use expression::{ConnectionEnds, ConnectionFilter, Filter};
pub use frame::FrameText;

/// Bytes that a text may have.
pub const MAX_TEXT: usize = 1024;
/// Primitives and operators that a filter may have.
pub const MAX_NODES: usize = 128;
/// How deep parentheses and negations may nest.
pub const MAX_DEPTH: usize = 16;

/// Syntax error in a text, with its position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("column {column}: {problem}")]
pub struct ExpressionError {
    /// Position in characters, from 1.
    pub column: usize,
    /// Expected and found tokens.
    pub problem: String,
}
