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

/// Returns the configured source of vCPU states.
///
/// # Errors
/// The file cannot be read, or has a source that this version does not know: it cannot take over,
/// because control would not read the file either.
pub(super) fn guest_states(state: &StateFile) -> Result<GuestStates, String> {
    let document = state.load().map_err(|e| format!("the state file: {e}"))?;
    let document = document.as_deref().map(serde_json::from_slice::<Document>);
    let document = document.transpose();
    let document = document.map_err(|e| format!("malformed state file: {e}"))?;
    let word = document.and_then(|document| document.desired.switch.guest_state);
    let Some(word) = word else {
        return Ok(GuestStates::default());
    };
    GuestStates::from_word(&word).ok_or_else(|| {
        let why = match old_names::old_value(&word, GuestStates::WORDS) {
            Some(row) => row.to_string(),
            None => format!("unknown value {word:?}"),
        };
        format!("the running Lasthop was started with switch.guest_state: {why}; restart it")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(document: &str) -> Result<GuestStates, String> {
        let file = StateFile::create().unwrap();
        file.save(document.as_bytes()).unwrap();
        guest_states(&file)
    }

    #[test]
    fn the_setting_of_the_version_before_is_read() {
        let empty = StateFile::create().unwrap();
        assert_eq!(guest_states(&empty), Ok(GuestStates::Auto));
        let with =
            |word| format!(r#"{{"desired":{{"switch":{{"name":"a","guest_state":{word}}}}}}}"#);
        for (document, expected) in [
            ("{}".to_owned(), GuestStates::Auto),
            (
                r#"{"desired":{"switch":{"name":"a"}},"epoch":1}"#.to_owned(),
                GuestStates::Auto,
            ),
            (with("\"bpf\""), GuestStates::Bpf),
            (with("\"off\""), GuestStates::Off),
        ] {
            assert_eq!(of(&document), Ok(expected), "{document}");
        }
        let old = of(&with("\"proc\"")).unwrap_err();
        assert_eq!(
            old,
            "the running Lasthop was started with switch.guest_state: \"proc\" was removed: no rule \
             could use samples of /proc, write \"auto\" or \"off\" (see docs/user/changed-names.md); \
             restart it"
        );
        assert!(
            of(&with("\"x\""))
                .unwrap_err()
                .contains("unknown value \"x\"")
        );
        assert!(of("{").unwrap_err().contains("malformed"));
    }
}
