//! Secrets: texts that only the desired state shows.

use std::fmt;

use serde::{Deserialize, Serialize};

/// A secret text. It is a string in the desired state, and is not shown in debug output.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Shown in place of a secret, in differences, events and errors.
    pub const HIDDEN: &str = "(hidden)";

    /// Returns the text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Self {
        Self(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(Self::HIDDEN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_documents_show_a_secret() {
        let secret = Secret::from("mem".to_owned());
        assert_eq!(format!("{:?}", Some(&secret)), "Some((hidden))");
        assert_eq!(serde_json::to_string(&secret).unwrap(), "\"mem\"");
    }
}
