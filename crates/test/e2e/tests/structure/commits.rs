//! Messages of commits, checked by the script that the hook of `make setup` runs.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use e2e::paths::root;
use testkit::skip::skipped;

const SCRIPT: &str = "scripts/check-message";

/// Returns the output of git in a folder; `None` if it fails, or there is no git.
fn git(folder: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    // A hook that runs the tests has these set.
    for variable in ["GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"] {
        command.env_remove(variable);
    }
    let output = command.args(arguments).current_dir(folder).output().ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    output.status.success().then_some(text)
}

/// Runs the script with a message and the paths that the commit changes.
fn check(folder: &Path, message: &str, paths: &str) -> Output {
    let file = folder.join("message");
    fs::write(&file, message).expect("a temporary file");
    let mut script = Command::new(root().join(SCRIPT));
    let script = script
        .arg(&file)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped());
    let mut script = script.spawn().expect("bash runs");
    let mut stdin = script.stdin.take().expect("a pipe");
    // It may have ended before it reads the paths.
    let _ = stdin.write_all(paths.as_bytes());
    drop(stdin);
    script.wait_with_output().expect("it ends")
}

#[test]
fn commits_since_the_rule_have_short_titles_and_reasons() {
    let added = ["log", "--diff-filter=A", "--format=%H", "--", SCRIPT];
    let Some(added) = git(root(), &added) else {
        return skipped("no clone of git");
    };
    // In a shallow clone the first commit adds all files: those after it are checked.
    let Some(rule) = added.lines().last() else {
        return skipped("the history does not have the commit that adds the rule");
    };
    let range = format!("{rule}..HEAD");
    let all = git(root(), &["rev-list", "--no-merges", &range]).expect("a history");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let mut wrong = Vec::new();
    for commit in all.lines() {
        let message = git(root(), &["show", "-s", "--format=%B", commit]).expect("a commit");
        let names = ["show", "--format=", "--name-only", "--no-renames", commit];
        let paths = git(root(), &names).expect("a commit");
        let done = check(folder.path(), &message, &paths);
        if !done.status.success() {
            let error = String::from_utf8_lossy(&done.stderr);
            wrong.push(format!("{commit}: {error}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.concat());
}

#[test]
fn a_message_has_a_short_title_and_a_reason() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let code = "crates/lib/wire/src/lib.rs\ncrates/wire/src/tests.rs\n";
    let tests = "docs/dev/testing.md\ncrates/e2e/tests/user.rs\ncrates/wire/src/tests.rs\n";
    let title = "wire: checksums of fragments";
    let longest = format!("wire: {}", "é".repeat(66));
    let long = format!("{longest}e");
    let why = format!("{title}\n\nA receiver adds them up.\n");
    let comment = format!("# a comment\n\n{why}");
    let verbose =
        format!("{title}\n\n# Please\n# ------------------------ >8 ------------------------\nx\n");
    let fixup = format!("fixup! {long}");
    let trailers = format!("{title}\n\nSigned-off-by: A <a@example.org>\nFixes: 1234\n");
    for (message, paths, expected) in [
        (&*why, code, ""),
        (&*comment, code, ""),
        (title, tests, ""),
        (&*longest, tests, ""),
        (title, "", ""),
        ("Merge branch 'other'", code, ""),
        (&*fixup, code, ""),
        (title, code, "a change of code needs a body"),
        (&*trailers, code, "a change of code needs a body"),
        (&*verbose, code, "a change of code needs a body"),
        (&*long, tests, "the title has 73 characters, and at most 72"),
        ("wire: a change.", tests, "ends with a full stop"),
        ("A change", tests, "does not begin with a crate or folder"),
        ("wire: a\nchange", tests, "the second line is not empty"),
        ("\n# nothing\n", tests, "it is empty"),
    ] {
        let done = check(folder.path(), message, paths);
        let error = String::from_utf8_lossy(&done.stderr);
        assert_eq!(
            done.status.success(),
            expected.is_empty(),
            "{message}: {error}"
        );
        assert!(error.contains(expected), "{message}: {error}");
    }
}

#[test]
fn the_hook_is_on_in_a_clone_of_this_repository_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (clone, outer) = (folder.path().join("clone"), folder.path().join("outer"));
    let inner = outer.join("lasthop");
    for part in [&clone, &inner] {
        let scripts = part.join("scripts/hooks");
        fs::create_dir_all(&scripts).expect("a temporary folder");
        for file in ["check-message", "git-hooks", "hooks/commit-msg"] {
            let from = root().join("scripts").join(file);
            fs::copy(from, part.join("scripts").join(file)).expect("a script");
        }
    }
    if git(&clone, &["init", "-q"]).is_none() {
        return skipped("no git");
    }
    git(&outer, &["init", "-q"]).expect("a repository");
    let set_up = |part: &Path| {
        let done = Command::new(part.join("scripts/git-hooks")).output();
        let done = done.expect("bash runs");
        assert!(done.status.success(), "{done:?}");
        String::from_utf8_lossy(&done.stdout).into_owned()
    };
    let path = |part: &Path| git(part, &["config", "--local", "--get", "core.hooksPath"]);
    for _ in 0..2 {
        assert_eq!(set_up(&clone), "");
        assert_eq!(path(&clone).as_deref(), Some("scripts/hooks\n"));
    }
    set_up(&inner);
    assert_eq!(path(&outer), None);
    let commit = |message: &str| {
        let name = ["-c", "user.name=a", "-c", "user.email=a@example.org"];
        git(
            &clone,
            &[&name[..], &["commit", "-q", "-m", message]].concat(),
        )
    };
    git(&clone, &["add", "scripts"]).expect("files");
    assert_eq!(commit("scripts: checks of messages"), None, "no body");
    let message = "scripts: checks of messages\n\nA title alone says nothing of the reason.";
    assert!(commit(message).is_some());
    git(&clone, &["config", "core.hooksPath", "own"]).expect("a setting");
    assert!(set_up(&clone).contains("core.hooksPath is own"));
}
