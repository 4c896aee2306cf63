//! Paths: the repository, the guest image, Lasthop's binaries.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// The repository's root.
pub fn root() -> &'static Path {
    static ROOT: OnceLock<PathBuf> = OnceLock::new();
    ROOT.get_or_init(|| {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..");
        root.canonicalize()
            .expect("the repository is where this crate was built")
    })
}

/// A file that `scripts/setup` made.
pub fn cache(name: impl AsRef<Path>) -> PathBuf {
    let path = root().join(".cache").join(name);
    assert!(
        path.exists(),
        "{} is missing: run scripts/setup first",
        path.display()
    );
    path
}

/// Folder of the guest image with a newer kernel than Debian 12's own, below that of all images.
pub(crate) const NEWER_KERNEL: &str = "virtio-iommu";

/// Returns whether the guest image in this folder was made, below that of all images.
pub(crate) fn has_guest_image(folder: &str) -> bool {
    let kernel = root().join(".cache").join(folder).join("vmlinux");
    kernel.exists()
}

/// The accelerator for guests on this machine, `kvm` or `tcg`, as `scripts/accel` finds out.
pub fn accelerator() -> &'static str {
    static ACCELERATOR: OnceLock<String> = OnceLock::new();
    ACCELERATOR.get_or_init(|| {
        let answer = Command::new(root().join("scripts/accel"))
            .output()
            .expect("scripts/accel runs");
        assert!(
            answer.status.success(),
            "scripts/accel: {}",
            String::from_utf8_lossy(&answer.stderr)
        );
        String::from_utf8_lossy(&answer.stdout).trim().to_owned()
    })
}

/// One of Lasthop's binaries. They come from `LASTHOP_BIN` when that is set, else from the release
/// build, which is brought up to date first: a test must not run yesterday's switch.
pub fn binary(name: &str) -> PathBuf {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    let folder = FOLDER.get_or_init(|| match std::env::var_os("LASTHOP_BIN") {
        Some(folder) => folder.into(),
        None => build(),
    });
    folder.join(name)
}

fn build() -> PathBuf {
    // Through make: cargo by itself would choose other features, and build much of it a second
    // time.
    let mut make = Command::new("make");
    make.args(["--silent", "build"])
        .env("CARGO_TERM_QUIET", "true")
        .current_dir(root());
    assert!(
        make.status().expect("make runs").success(),
        "the release build failed"
    );
    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("release")
}
