//! Names of switches, segments and ports.

/// Maximum length of the name of a switch, a segment or a port, in characters.
pub const NAME_MAX: usize = 32;

/// Returns whether `name` may name a switch, a segment or a port: 1 to [`NAME_MAX`] characters out
/// of `A-Z a-z 0-9 _ . -`, at least one of them not a dot (`.` and `..` vanish from a URL's path).
///
/// ```
/// assert!(model::valid_name("vm-1.lan"));
/// assert!(!model::valid_name("vm 1"));
/// assert!(!model::valid_name(".."));
/// ```
pub fn valid_name(name: &str) -> bool {
    let known = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-');
    (1..=NAME_MAX).contains(&name.len())
        && name.bytes().all(known)
        && name.bytes().any(|b| b != b'.')
}
