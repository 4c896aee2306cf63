//! A package as `make deb` makes it, of the tested programs: the files that the manifest lists, and
//! the scripts of the folder `packaging`.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use e2e::paths::root;
use testkit::programs::program;

/// Lines of cargo-deb in `packaging/postinst` for a unit that is started once installed.
const SYSTEMD: &str = r#"systemd-sysusers lasthop.conf
systemctl daemon-reload
if [ -z "$2" ]; then
    deb-systemd-helper enable lasthop.service >/dev/null
    deb-systemd-invoke start lasthop.service
fi
"#;
/// The same when it is removed.
const REMOVAL: &str = "\
    #!/bin/sh\nset -e\n[ \"$1\" = remove ] || exit 0\ndeb-systemd-invoke stop lasthop.service\n";

/// Builds a package of this version.
pub(super) fn build(version: &str, package: &Path) {
    let tree = tempfile::tempdir().expect("a folder");
    let install = |from: &Path, to: &str, mode: u32| {
        let to = tree.path().join(to);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(from, &to).unwrap_or_else(|error| panic!("{}: {error}", from.display()));
        fs::set_permissions(&to, fs::Permissions::from_mode(mode)).expect("a file of ours");
    };
    let manifest = fs::read_to_string(root().join("crates/cli/lasthop/Cargo.toml"));
    let manifest = manifest.expect("the manifest");
    let assets = manifest
        .lines()
        .filter_map(|line| line.strip_prefix("    [\""));
    for asset in assets.filter(|asset| !asset.contains('*')) {
        let words: Vec<_> = asset.split('"').step_by(2).collect();
        let [from, to, mode] = words[..] else {
            panic!("{asset}");
        };
        let name = from.rsplit('/').next().expect("a name");
        let path = match from.starts_with("target/release/") {
            true => program(name),
            false => root().join("crates/cli/lasthop").join(from),
        };
        // A debug build has no libraries.
        if from.ends_with(".so") && !path.exists() {
            continue;
        }
        let to = if to.ends_with('/') {
            format!("{to}{name}")
        } else {
            to.to_owned()
        };
        install(&path, &to, u32::from_str_radix(mode, 8).expect("a mode"));
    }
    let packaging = root().join("packaging");
    let unit = "usr/lib/systemd/system/lasthop.service";
    install(&packaging.join("lasthop.service"), unit, 0o644);
    let users = "usr/lib/sysusers.d/lasthop.conf";
    install(&packaging.join("lasthop.sysusers"), users, 0o644);
    fs::create_dir_all(tree.path().join("usr/bin")).expect("a folder");
    let link = tree.path().join("usr/bin/lasthop");
    symlink("../lib/lasthop/lasthop", link).expect("a link");

    let control = tree.path().join("DEBIAN");
    fs::create_dir(&control).expect("a folder");
    let put = |name: &str, text: &str, mode: u32| {
        let path = control.join(name);
        fs::write(&path, text).expect("a file");
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("a file of ours");
    };
    let fields = format!(
        "Package: lasthop\nVersion: {version}\nArchitecture: amd64\nDescription: Lasthop\n\
         Maintainer: Tests <tests@example.org>\n"
    );
    put("control", &fields, 0o644);
    put("conffiles", "/etc/lasthop/lasthop.toml\n", 0o644);
    let script = fs::read_to_string(packaging.join("postinst")).expect("a script");
    put("postinst", &script.replace("#DEBHELPER#", SYSTEMD), 0o755);
    put("prerm", REMOVAL, 0o755);
    let built = Command::new("dpkg-deb")
        .args(["--root-owner-group", "-Znone", "--build"])
        .args([tree.path(), package])
        .output()
        .expect("dpkg-deb");
    let error = String::from_utf8_lossy(&built.stderr);
    assert!(built.status.success(), "{error}");
}
