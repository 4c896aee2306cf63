//! Enumerations whose variants are words in documents and in the configuration.

/// Defines such enumerations, with the word of each variant.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident {
        $($(#[$of_variant:meta])* $variant:ident = $word:tt,)*
    }) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[derive(serde::Serialize, serde::Deserialize)]
        $(#[$meta])*
        pub enum $name {
            $($(#[$of_variant])* #[serde(rename = $word)] $variant,)*
        }

        impl $name {
            /// All of them, in their order.
            pub const ALL: &[Self] = &[$(Self::$variant),*];
            /// The words of all of them.
            pub const WORDS: &[&str] = &[$($word),*];

            /// Returns the word in documents and in the configuration.
            #[must_use]
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $word,)*
                }
            }

            /// Returns the one with this word.
            #[must_use]
            pub fn from_word(word: &str) -> Option<Self> {
                Self::ALL.iter().copied().find(|one| one.as_str() == word)
            }
        }
    };
}
