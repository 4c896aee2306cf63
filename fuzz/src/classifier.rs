//! Access lists: models, changes and keys out of the input, held against an oracle that reads every rule for every key. The same
//! decisions by the same rules; the same for all keys that agree in what was looked at; no decision by a rule that was said to be
//! never reached; and after a change what the changed model compiles to.

/// Bytes that `policy::acl::oracle` makes a case of.
pub fn run(data: &[u8]) {
    policy::acl::oracle::check(data);
}
