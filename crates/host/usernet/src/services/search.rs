//! The search domains of guests, so that `vm1` is a name: offered by DHCP (RFC 2132, RFC 3397),
//! DHCPv6 (RFC 3646), and router advertisements (RFC 8106).

use std::str::FromStr;

use super::dns::DOMAIN;

/// Maximum number of domains: as many as each C library takes.
const DOMAINS_MAX: usize = 6;
/// Maximum number of bytes of all domains in a message: with them one of DHCP has its 576 bytes.
const WIRE_MAX: usize = 128;
/// Maximum number of bytes of a label (RFC 1035, section 2.3.4).
const LABEL_MAX: usize = 63;

/// A text that has no domains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to 6 domains of 128 bytes in all, with blanks between them")]
pub struct SearchError;

/// See the module. The default is `internal`, the domain of the names of ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Search {
    domains: Vec<String>,
}

impl Default for Search {
    fn default() -> Self {
        Self {
            domains: vec![DOMAIN.to_owned()],
        }
    }
}

impl FromStr for Search {
    type Err = SearchError;

    fn from_str(text: &str) -> Result<Self, SearchError> {
        let domains = text.split_ascii_whitespace();
        let domains = domains.map(|domain| domain.strip_suffix('.').unwrap_or(domain));
        let search = Self {
            domains: domains.map(str::to_ascii_lowercase).collect(),
        };
        let is_good = (1..=DOMAINS_MAX).contains(&search.domains.len())
            && search.domains.iter().all(|domain| is_domain(domain))
            && search.wire().len() <= WIRE_MAX;
        match is_good {
            true => Ok(search),
            false => Err(SearchError),
        }
    }
}

impl Search {
    /// No domains.
    #[must_use]
    pub fn none() -> Self {
        Self {
            domains: Vec::new(),
        }
    }

    /// All domains.
    pub(super) fn domains(&self) -> &[String] {
        &self.domains
    }

    /// All domains as labels with their lengths (RFC 1035, section 3.1), which are not compressed.
    pub(super) fn wire(&self) -> Vec<u8> {
        let domain = |domain: &String| {
            let labels = domain.split('.');
            let mut bytes: Vec<u8> = labels
                .flat_map(|label| [&[label.len() as u8], label.as_bytes()].concat())
                .collect();
            bytes.push(0);
            bytes
        };
        self.domains.iter().flat_map(domain).collect()
    }
}

fn is_domain(text: &str) -> bool {
    let is_good = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_');
    let is_label =
        |label: &str| (1..=LABEL_MAX).contains(&label.len()) && label.bytes().all(is_good);
    text.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn domains_are_labels_with_their_lengths() {
        let search: Search = "internal  Example.ORG.".parse().unwrap();
        assert_eq!(search.domains(), ["internal", "example.org"]);
        assert_eq!(search.wire(), b"\x08internal\0\x07example\x03org\0");
        assert_eq!(Search::default().wire(), b"\x08internal\0");
        assert_eq!(Search::none().wire(), b"");
    }

    #[test]
    fn what_is_no_domain_is_refused() {
        let long = "a".repeat(64);
        let many = "a ".repeat(7);
        let all = format!("{0} {0} {0}", "a".repeat(60));
        for text in [
            "",
            " ",
            ".",
            "a..b",
            ".a",
            "a/b",
            "caf\u{e9}",
            "a,b",
            &*long,
            &*many,
            &*all,
        ] {
            assert_eq!(text.parse::<Search>(), Err(SearchError), "{text}");
        }
        assert!("a.b_c-d a b c d e".parse::<Search>().is_ok());
    }
}
