//! The configuration file: every text is a checked desired state or an error with its place.

use std::path::Path;

use config::desired;

/// The text of a configuration file.
pub fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else {
        return;
    };
    let (file, runtime_dir) = (Path::new("lasthop.toml"), Path::new("/run/lasthop"));
    match config::parse(text, file, runtime_dir) {
        Ok(state) => {
            assert!(
                desired::check(&state, runtime_dir).is_ok(),
                "a checked state"
            );
            let mut again = state.clone();
            desired::normalise(&mut again);
            assert_eq!(again, state, "normalised once is normalised");
        }
        Err(error) => {
            let (line, column) = error.place.expect("a text has lines");
            assert!(column >= 1 && column <= 1 + text.chars().count());
            assert!(line >= 1 && line <= 1 + text.matches('\n').count());
            assert!(!error.expected.is_empty() && !error.found.is_empty());
            assert!(error.to_string().starts_with("lasthop.toml:"));
        }
    }
}
