//! Enumerations whose variants are words in documents and in the configuration.

/// Defines such enumerations, with their schemas.
macro_rules! words {
    ($($definition:tt)*) => {
        model::words! {
            #[derive(utoipa::ToSchema)]
            $($definition)*
        }
    };
}
pub(in crate::v1) use words;
