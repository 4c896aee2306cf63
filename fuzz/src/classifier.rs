//! Access lists: models, changes and keys out of the input, compared with an oracle that evaluates
//! every rule for every key. The same decisions by the same rules; the same for all keys that agree
//! in the mask's bits; no decision by a rule reported as never reached; and after a change the
//! rules of the compiled changed model. And decisions about frames of connections, likewise.

/// Bytes that `policy::acl::oracle` makes a case of.
pub fn run(data: &[u8]) {
    policy::acl::oracle::check(data);
    policy::acl::oracle::check_connections(data);
    policy::acl::oracle::check_denied(data);
}
