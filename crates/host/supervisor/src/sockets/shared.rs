//! Sockets of ports that processes of more than one user can connect to: each of these users can be
//! the guest of the port. Root, which is trusted, does not count.
//!
//! The supervisor looks at files here because a client asks for the status, so it waits for no
//! file system: it takes what the kernel has cached. A socket that is bound keeps its directories
//! cached.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Mode, OFlags, ResolveFlags, StatxFlags, openat2, statx};

use super::Sockets;

/// Permission to write, of others, and to search a directory.
const WRITE: u32 = 0o2;
const SEARCH: u32 = 0o1;

/// Owner, group and mode of a socket's file, or of a directory above it.
#[derive(Clone, Copy, Debug)]
struct Access {
    user: u32,
    group: u32,
    mode: u32,
}

impl Access {
    /// Returns the access to a file; `None` if there is none, or if the kernel would ask a file
    /// system that may not answer (`RESOLVE_CACHED`, Linux 5.12).
    fn of(path: &Path) -> Option<Self> {
        let flags = OFlags::PATH | OFlags::CLOEXEC;
        let file = openat2(CWD, path, flags, Mode::empty(), ResolveFlags::CACHED).ok()?;
        let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
        let fields = StatxFlags::UID | StatxFlags::GID | StatxFlags::MODE;
        let file = statx(&file, c"", flags, fields).ok()?;
        Some(Self {
            user: file.stx_uid,
            group: file.stx_gid,
            mode: file.stx_mode.into(),
        })
    }

    /// Returns the users that have a permission; `None`: all.
    fn permits(self, permission: u32, users: &Users) -> Option<BTreeSet<u32>> {
        if self.mode & permission != 0 {
            return None;
        }
        let mut some = BTreeSet::new();
        if self.mode & permission << 3 != 0 {
            some.extend(users.members(self.group));
        }
        if self.mode & permission << 6 != 0 {
            some.insert(self.user);
        }
        Some(some)
    }
}

/// Users of this host: those of `/etc/passwd`, and the members of groups in `/etc/group`.
#[derive(Debug, Default)]
struct Users {
    /// Name, number, number of the group.
    users: Vec<(String, u32, u32)>,
    /// Number of a group, and name of a member.
    members: Vec<(u32, String)>,
}

impl Users {
    fn now() -> Self {
        let text = |file| fs::read(file).unwrap_or_default();
        let [users, groups] = ["/etc/passwd", "/etc/group"].map(text);
        Self::read(
            &String::from_utf8_lossy(&users),
            &String::from_utf8_lossy(&groups),
        )
    }

    /// Reads both files (passwd(5), group(5)).
    fn read(users: &str, groups: &str) -> Self {
        let user = |line: &str| {
            let fields: Vec<_> = line.split(':').collect();
            let number = |at: usize| fields.get(at)?.parse().ok();
            Some((fields[0].to_owned(), number(2)?, number(3)?))
        };
        let group = |line: &str| {
            let fields: Vec<_> = line.split(':').collect();
            let number: u32 = fields.get(2)?.parse().ok()?;
            let names = fields.get(3)?.split(',').map(str::to_owned);
            Some(names.map(|name| (number, name)).collect::<Vec<_>>())
        };
        Self {
            users: users.lines().filter_map(user).collect(),
            members: groups.lines().filter_map(group).flatten().collect(),
        }
    }

    /// Returns the members of a group, those whose own group it is among them.
    fn members(&self, group: u32) -> BTreeSet<u32> {
        let is_listed = |name: &str| {
            let mut members = self.members.iter();
            members.any(|(of, member)| *of == group && member == name)
        };
        let users = self.users.iter();
        let members = users.filter(|(name, _, own)| *own == group || is_listed(name));
        members.map(|(_, number, _)| *number).collect()
    }

    fn name(&self, number: u32) -> String {
        let known = self.users.iter().find(|(_, of, _)| *of == number);
        known.map_or_else(|| number.to_string(), |(name, ..)| name.clone())
    }
}

/// Returns the users besides root that can connect to a socket below these directories; `None`:
/// all. A process needs write permission for the one, and search permission for the others
/// (unix(7), path_resolution(7)).
fn users_of(socket: Access, dirs: &[Access], users: &Users) -> Option<BTreeSet<u32>> {
    let dirs = dirs.iter().map(|dir| dir.permits(SEARCH, users));
    let all = dirs.chain([socket.permits(WRITE, users)]).flatten();
    let some = all.reduce(|one, other| &one & &other)?;
    Some(some.into_iter().filter(|user| *user != 0).collect())
}

impl Sockets {
    /// Returns the sockets without a user that alone may connect, to which more than one can, by
    /// the requested path, with the names of these users; none: all users of the host.
    pub(crate) fn shared(&self) -> Vec<(String, Vec<String>)> {
        let open = self.listening.iter().filter(|(_, listener)| {
            let requested = listener.requested.as_ref();
            requested.is_some_and(|(_, peer)| peer.is_none())
        });
        let mut known = None;
        let shared = open.filter_map(|(path, listener)| {
            let file = &listener.file.as_ref()?.path;
            let users = known.get_or_insert_with(Users::now);
            let dirs: Vec<_> = file.ancestors().skip(1).filter_map(Access::of).collect();
            let names = match users_of(Access::of(file)?, &dirs, users) {
                None => Vec::new(),
                Some(some) if some.len() < 2 => return None,
                Some(some) => some.into_iter().map(|user| users.name(user)).collect(),
            };
            Some((path.clone(), names))
        });
        shared.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;

    const USERS: &str = "root:x:0:0::/root:/bin/sh\nvm1:x:11:11::/:\nvm2:x:12:12::/:\n\
                         qemu:x:13:20::/:\nbad:x:y\n";
    const GROUPS: &str = "root:x:0:\nvm1:x:11:\nkvm:x:20:vm1,vm2\nlasthop:x:21:vm1\nempty:x:22:\n\
                          both:x:23:root,vm2\n";

    /// Returns the users that can connect, with root's open directory above.
    fn users(socket: (u32, u32, u32), dirs: &[(u32, u32, u32)]) -> Option<Vec<u32>> {
        let access = |(user, group, mode)| Access { user, group, mode };
        let root = (0, 0, 0o755);
        let dirs: Vec<_> = dirs.iter().chain([&root]).map(|dir| access(*dir)).collect();
        let users = users_of(access(socket), &dirs, &Users::read(USERS, GROUPS));
        users.map(|users| users.into_iter().collect())
    }

    #[test]
    fn owner_group_and_mode_of_socket_and_directories_decide() {
        let open = (0, 0, 0o755);
        for (socket, dirs, expected) in [
            // The owner alone; root does not count.
            ((0, 0, 0o755), &[open][..], Some(vec![])),
            ((11, 0, 0o600), &[open], Some(vec![11])),
            ((11, 0, 0o400), &[open], Some(vec![])),
            // Groups by their members, and by users whose own group it is.
            ((0, 22, 0o770), &[open], Some(vec![])),
            ((0, 21, 0o770), &[open], Some(vec![11])),
            ((11, 21, 0o660), &[open], Some(vec![11])),
            ((12, 21, 0o660), &[open], Some(vec![11, 12])),
            ((0, 20, 0o660), &[open], Some(vec![11, 12, 13])),
            ((0, 20, 0o640), &[open], Some(vec![])),
            ((0, 23, 0o660), &[open], Some(vec![12])),
            // Others.
            ((0, 0, 0o777), &[open], None),
            ((0, 0, 0o775), &[open], Some(vec![])),
            ((0, 0, 0o602), &[open], None),
            // Directories narrow it down.
            ((0, 0, 0o777), &[(0, 21, 0o750)], Some(vec![11])),
            ((0, 0, 0o777), &[(0, 20, 0o750)], Some(vec![11, 12, 13])),
            ((0, 20, 0o770), &[(0, 21, 0o750)], Some(vec![11])),
            (
                (0, 20, 0o770),
                &[(0, 21, 0o750), (12, 0, 0o700)],
                Some(vec![]),
            ),
            ((0, 20, 0o770), &[(0, 0, 0o700)], Some(vec![])),
            ((0, 20, 0o770), &[(0, 0, 0o744)], Some(vec![])),
        ] {
            assert_eq!(users(socket, dirs), expected, "{socket:?} in {dirs:?}");
        }
    }

    #[test]
    fn access_is_that_of_the_file_and_no_look_up_waits() {
        let path = std::env::temp_dir().join(format!("shared-{}", std::process::id()));
        let socket = std::os::unix::net::UnixListener::bind(&path).unwrap();
        rustix::fs::chmod(&path, Mode::from_raw_mode(0o640)).unwrap();
        let access = Access::of(&path);
        let dir = Access::of(path.parent().unwrap());
        fs::remove_file(&path).unwrap();
        let own = rustix::process::geteuid().as_raw();
        assert!(access.is_some_and(|file| file.user == own && file.mode & 0o777 == 0o640));
        assert!(dir.is_some());
        assert!(Access::of(&path).is_none(), "it has gone");
        // The target of such a link is never cached.
        let link = format!("/proc/self/fd/{}", socket.as_raw_fd());
        assert!(rustix::fs::stat(&link).is_ok());
        assert!(
            Access::of(Path::new(&link)).is_none(),
            "it would be asked for"
        );
    }

    #[test]
    fn users_without_a_line_have_numbers() {
        let users = Users::read(USERS, GROUPS);
        assert_eq!((&*users.name(13), &*users.name(99)), ("qemu", "99"));
    }
}
