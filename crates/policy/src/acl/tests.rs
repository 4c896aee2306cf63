//! Tests of access lists: the classifier against the oracle, and what is refused.

mod differential;
