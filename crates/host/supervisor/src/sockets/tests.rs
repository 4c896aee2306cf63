//! Paths that may be bound and dialled. The tests connect only to their own sockets.

use std::io::ErrorKind;
use std::os::unix::fs::symlink;
use std::os::unix::net::{UnixListener, UnixStream};

use ipc::owners::SocketKey;
use ipc::sockets::{ADMIN_SOCKET, API_SOCKET, LOCK_FILE};

use super::*;

const PORT: PortId = PortId(3);
const STREAM: SocketType = SocketType::Stream;

/// Runtime directory, a permitted directory for sockets, and another directory.
struct World {
    root: tempfile::TempDir,
    sockets: Sockets,
}

fn world() -> World {
    let root = tempfile::tempdir().unwrap();
    for name in ["run", "vms", "host"] {
        std::fs::create_dir(root.path().join(name)).unwrap();
    }
    let below = |path: &Path| SocketDir {
        path: path.display().to_string(),
        below: true,
    };
    let run = root.path().join("run").canonicalize().unwrap();
    let dirs = vec![below(&run), below(&root.path().join("vms"))];
    let mut sockets = Sockets::new(Paths::of(&run, dirs));
    sockets.settled();
    for name in [API_SOCKET, ADMIN_SOCKET] {
        sockets.listen_for_owner(name).unwrap();
    }
    World { root, sockets }
}

impl World {
    fn path(&self, name: &str) -> String {
        self.root.path().join(name).display().to_string()
    }

    /// Returns a listener that must get no connections by mistake.
    fn listener(&self, name: &str) -> UnixListener {
        let listener = UnixListener::bind(self.path(name)).unwrap();
        listener.set_nonblocking(true).unwrap();
        listener
    }

    fn register(&mut self, path: &str) -> io::Result<()> {
        self.sockets.register(vec![(PORT, path.to_owned())])
    }

    /// Returns the reason why the port cannot be dialled.
    fn dial_error(&self) -> String {
        self.sockets.dial(PORT).unwrap_err().to_string()
    }
}

fn has_no_connection(listener: &UnixListener) {
    let error = listener.accept().map(drop).unwrap_err().kind();
    assert_eq!(error, ErrorKind::WouldBlock);
}

#[test]
fn only_registered_paths_are_dialled() {
    let mut world = world();
    let run = world.listener("run/vm.sock");
    let vms = world.listener("vms/vm.sock");
    assert!(world.dial_error().contains("registered"));
    for (path, listener) in [
        ("vm.sock".to_owned(), &run),
        (world.path("vms/vm.sock"), &vms),
    ] {
        has_no_connection(listener);
        world.register(&path).unwrap();
        assert!(world.sockets.dial(PortId(4)).is_err());
        has_no_connection(listener);
        world.sockets.dial(PORT).unwrap();
        listener.accept().unwrap();
    }
    world.sockets.register(Vec::new()).unwrap();
    assert!(world.dial_error().contains("registered"));
    has_no_connection(&run);
}

#[test]
fn foreign_and_own_paths_cannot_be_registered() {
    let mut world = world();
    let host = world.listener("host/docker.sock");
    world.register("vm.sock").unwrap();
    let own = [API_SOCKET, ADMIN_SOCKET, LOCK_FILE];
    let own = own.into_iter().flat_map(|name| {
        let whole = world.path(&format!("run/{name}"));
        [name.to_owned(), format!("./{name}"), whole]
    });
    let beyond = [
        "../host/docker.sock".to_owned(),
        world.path("host/docker.sock"),
        world.path("vms/../host/docker.sock"),
        world.path("vms"),
        "/".to_owned(),
        String::new(),
    ];
    for path in own.chain(beyond).collect::<Vec<_>>() {
        assert!(world.register(&path).is_err(), "{path:?}");
        assert_eq!(world.sockets.dialled(PORT), Some("vm.sock"));
    }
    assert!(
        world
            .sockets
            .register(vec![(PortId(1 << 20), "a".to_owned())])
            .is_err()
    );
    has_no_connection(&host);
}

#[test]
fn links_do_not_leave_permitted_directories() {
    let mut world = world();
    let host = world.listener("host/docker.sock");
    symlink(world.path("host/docker.sock"), world.path("vms/link.sock")).unwrap();
    symlink(world.path("host"), world.path("vms/dir")).unwrap();
    for path in ["vms/link.sock", "vms/dir/docker.sock"] {
        world.register(&world.path(path)).unwrap();
        assert!(world.dial_error().contains("socket_dirs"), "{path}");
    }
    has_no_connection(&host);
    drop(host);
    for path in [
        "vms/dir/docker.sock",
        "vms/dir/new.sock",
        "host/docker.sock",
    ] {
        let path = world.path(path);
        assert!(world.sockets.listen(&path).is_err(), "{path}");
    }
    let left = std::path::PathBuf::from(world.path("host/docker.sock"));
    assert!(left.exists(), "files of others stay");
    assert!(!std::path::Path::new(&world.path("host/new.sock")).exists());
    // Links to permitted paths work.
    let vm = world.listener("vms/vm.sock");
    symlink(world.path("vms/vm.sock"), world.path("run/vm.sock")).unwrap();
    world.register("vm.sock").unwrap();
    world.sockets.dial(PORT).unwrap();
    vm.accept().unwrap();
}

#[test]
fn own_sockets_are_no_front_ends_under_any_name() {
    let mut world = world();
    let vm = UnixListener::from(world.sockets.listen("vm.sock").unwrap().vouch());
    let admin = UnixListener::from(
        world.sockets.listening[ADMIN_SOCKET]
            .socket
            .try_clone()
            .unwrap()
            .vouch(),
    );
    for listener in [&vm, &admin] {
        listener.set_nonblocking(true).unwrap();
    }
    symlink(
        world.path("run/supervisor.sock"),
        world.path("vms/link.sock"),
    )
    .unwrap();
    std::fs::hard_link(
        world.path("run/supervisor.sock"),
        world.path("vms/hard.sock"),
    )
    .unwrap();
    let names = ["vms/link.sock", "vms/hard.sock", "run/vm.sock"];
    for path in names.map(|name| world.path(name)) {
        world.register(&path).unwrap();
        assert!(world.dial_error().contains("Lasthop's own"), "{path}");
    }
    has_no_connection(&vm);
    has_no_connection(&admin);
}

#[test]
fn own_sockets_cannot_be_bound_or_removed() {
    let mut world = world();
    for name in [API_SOCKET, ADMIN_SOCKET, LOCK_FILE] {
        for path in [
            name.to_owned(),
            format!("./{name}"),
            world.path(&format!("run/{name}")),
        ] {
            assert!(world.sockets.listen(&path).is_err(), "{path}");
            assert!(world.sockets.unlisten(&path).is_err(), "{path}");
        }
    }
    for name in [API_SOCKET, ADMIN_SOCKET] {
        let path = world.path(&format!("run/{name}"));
        assert!(UnixStream::connect(path).is_ok(), "{name} answers");
    }
}

#[test]
fn sockets_are_made_in_permitted_directories_and_removed() {
    let mut world = world();
    std::fs::create_dir(world.path("vms/one")).unwrap();
    let paths = ["run/a.sock", "vms/b.sock", "vms/one/c.sock"].map(|name| world.path(name));
    for path in &paths {
        drop(UnixListener::bind(path).unwrap());
        world.sockets.listen(path).unwrap();
        assert!(
            UnixStream::connect(path).is_ok(),
            "in place of the dead one"
        );
    }
    world.sockets.unlisten(&paths[0]).unwrap();
    let left = |world: &World| {
        let exists = |path: &&String| std::path::Path::new(path).exists();
        let _ = world;
        paths.iter().filter(exists).count()
    };
    assert_eq!(left(&world), 2);
    let World { root, sockets } = world;
    drop(sockets);
    assert!(
        paths
            .iter()
            .all(|path| !std::path::Path::new(path).exists())
    );
    drop(root);
}

fn mode_of(path: &str) -> u32 {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn with_mode(mode: u16) -> SocketOwner {
    SocketOwner {
        mode: Some(mode),
        ..SocketOwner::default()
    }
}

#[test]
fn the_owner_of_a_socket_is_set_and_can_change() {
    let mut world = world();
    let path = world.path("run/a.sock");
    let (socket, peer) = world
        .sockets
        .listen_as("a.sock", &with_mode(0o600), STREAM)
        .unwrap();
    assert_eq!((mode_of(&path), peer), (0o600, None));
    let listener = UnixListener::from(socket.vouch());
    let client = UnixStream::connect(&path).unwrap();
    let mut other = with_mode(0o640);
    other.peer_user = Some("7".to_owned());
    let (_, peer) = world.sockets.listen_as("a.sock", &other, STREAM).unwrap();
    assert_eq!((mode_of(&path), peer), (0o640, Some(7)));
    listener.accept().unwrap();
    drop(client);
    let default_owner = SocketOwner::default();
    world
        .sockets
        .listen_as("a.sock", &default_owner, STREAM)
        .unwrap();
    world
        .sockets
        .listen_as("b.sock", &default_owner, STREAM)
        .unwrap();
    assert_eq!(mode_of(&path), mode_of(&world.path("run/b.sock")));
}

#[test]
fn a_socket_of_another_type_replaces_one() {
    let mut world = world();
    let path = world.path("run/a.sock");
    let owner = with_mode(0o600);
    let packets = SocketType::SeqPacket;
    let (first, _) = world.sockets.listen_as("a.sock", &owner, packets).unwrap();
    let (again, _) = world.sockets.listen_as("a.sock", &owner, packets).unwrap();
    let inode = |socket: &OwnedFd| rustix::fs::fstat(socket).unwrap().st_ino;
    assert_eq!(inode(&first), inode(&again));
    assert_eq!(mode_of(&path), 0o600);
    let refused = UnixStream::connect(&path).unwrap_err();
    assert_eq!(
        refused.raw_os_error(),
        Some(Errno::PROTOTYPE.raw_os_error())
    );
    world.sockets.listen_as("a.sock", &owner, STREAM).unwrap();
    UnixStream::connect(&path).unwrap();
}

#[test]
fn an_unknown_user_changes_nothing() {
    let mut world = world();
    world
        .sockets
        .listen_as("a.sock", &with_mode(0o600), STREAM)
        .unwrap();
    let mut unknown = with_mode(0o666);
    unknown.user = Some("no-such-user".to_owned());
    for path in ["a.sock", "b.sock"] {
        let no = world.sockets.listen_as(path, &unknown, STREAM).unwrap_err();
        assert_eq!(no.key, SocketKey::User);
    }
    assert_eq!(mode_of(&world.path("run/a.sock")), 0o600);
    assert!(!std::path::Path::new(&world.path("run/b.sock")).exists());
}

#[test]
fn a_file_in_place_of_a_socket_keeps_its_owner() {
    let mut world = world();
    let path = world.path("vms/a.sock");
    world
        .sockets
        .listen_as(&path, &with_mode(0o600), STREAM)
        .unwrap();
    std::fs::rename(&path, world.path("vms/moved")).unwrap();
    let victim = world.path("host/victim");
    std::fs::write(&victim, "").unwrap();
    let before = mode_of(&victim);
    for link in [true, false] {
        if link {
            symlink(&victim, &path).unwrap()
        } else {
            std::fs::hard_link(&victim, &path).unwrap()
        }
        world
            .sockets
            .listen_as(&path, &with_mode(0o604), STREAM)
            .unwrap();
        world
            .sockets
            .listen_as(&path, &with_mode(0o606), STREAM)
            .unwrap();
        assert_eq!(mode_of(&victim), before);
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn root_changes_the_owner_repeatedly() {
    use std::os::unix::fs::MetadataExt;
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not root: left out");
    }
    let mut world = world();
    let path = world.path("run/a.sock");
    let mut owner = with_mode(0o660);
    for (user, group) in [("60001", "60003"), ("60002", "60003"), ("60002", "60004")] {
        (owner.user, owner.group) = (Some(user.to_owned()), Some(group.to_owned()));
        world.sockets.listen_as("a.sock", &owner, STREAM).unwrap();
        let is = std::fs::metadata(&path).unwrap();
        let now = (is.uid().to_string(), is.gid().to_string());
        assert_eq!((&*now.0, &*now.1, mode_of(&path)), (user, group, 0o660));
    }
}

#[test]
fn low_tcp_ports_are_bound_at_the_start_only() {
    use ipc::supervision::tcp_path;
    let mut world = world();
    let low = tcp_path(([127, 0, 0, 1], 7).into());
    world.sockets.settled();
    let refused = world.sockets.listen(&low).unwrap_err().to_string();
    assert!(refused.contains("takes a restart"), "{refused}");
    let any = tcp_path(([0, 0, 0, 0], 0).into());
    assert!(world.sockets.listen(&any).is_err(), "all addresses");
}
