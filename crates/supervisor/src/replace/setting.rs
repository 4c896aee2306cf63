//! The source of vCPU states in the state file of the version before.

use api::v1::GuestStates;
use api::v1::old_names;
use channel::state::StateFile;
use serde::Deserialize;

/// The parts of a document in the state file that lead to the setting.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    desired: Desired,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Desired {
    switch: Switch,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Switch {
    guest_state: Option<String>,
}

/// Checks that this version knows the configured source of vCPU states.
///
/// # Errors
/// The file cannot be read, or has another source: this version cannot take over, because control
/// would not read the file either.
pub(super) fn check(state: &StateFile) -> Result<(), String> {
    let document = state.load().map_err(|e| format!("the state file: {e}"))?;
    let document = document.as_deref().map(serde_json::from_slice::<Document>);
    let document = document.transpose();
    let document = document.map_err(|e| format!("malformed state file: {e}"))?;
    let word = document.and_then(|document| document.desired.switch.guest_state);
    let unknown = word.filter(|word| GuestStates::from_word(word).is_none());
    let Some(word) = unknown else {
        return Ok(());
    };
    let why = match old_names::old_value(&word, GuestStates::WORDS) {
        Some(row) => row.to_string(),
        None => format!("unknown value {word:?}"),
    };
    Err(format!(
        "the running Lasthop was started with switch.guest_state: {why}; restart it"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(document: &str) -> Result<(), String> {
        let file = StateFile::create().unwrap();
        file.save(document.as_bytes()).unwrap();
        check(&file)
    }

    #[test]
    fn a_removed_source_is_refused_with_the_reason() {
        assert_eq!(check(&StateFile::create().unwrap()), Ok(()));
        let with = |word: &str| format!(r#"{{"desired":{{"switch":{{"guest_state":"{word}"}}}}}}"#);
        for document in ["{}", r#"{"desired":{"switch":{"name":"a"}},"epoch":1}"#] {
            assert_eq!(of(document), Ok(()), "{document}");
        }
        for word in GuestStates::WORDS {
            assert_eq!(of(&with(word)), Ok(()), "{word}");
        }
        let old = of(&with("proc")).unwrap_err();
        assert_eq!(
            old,
            "the running Lasthop was started with switch.guest_state: \"proc\" was removed: no rule \
             could use samples of /proc, write \"auto\" or \"off\" (see docs/user/changed-names.md); \
             restart it"
        );
        assert!(of(&with("x")).unwrap_err().contains("unknown value \"x\""));
        assert!(of("{").unwrap_err().contains("malformed"));
    }
}
