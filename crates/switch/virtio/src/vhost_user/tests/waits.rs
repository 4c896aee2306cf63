//! A file may lie on a hostile file system that blocks (FUSE): only the kernel may handle the calls
//! on a descriptor whose kind is not checked yet.

use super::*;

/// Calls that a file system may answer, on a descriptor.
const OF_A_FILE_SYSTEM: [libc::c_long; 10] = [
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_fstatfs,
    libc::SYS_lseek,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_fsync,
    libc::SYS_fallocate,
    libc::SYS_ftruncate,
];

/// Error that these calls return in this thread.
const FORBIDDEN: i32 = libc::EXDEV;

/// Has the system refuse them to this thread.
fn forbid() {
    const LOAD_NUMBER: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const ANSWER: u32 = libc::BPF_RET | libc::BPF_K;
    let filter = |code: u32, k: u32, jt, jf| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut program = vec![filter(LOAD_NUMBER, 0, 0, 0)];
    for call in OF_A_FILE_SYSTEM {
        let refuse = libc::SECCOMP_RET_ERRNO | FORBIDDEN as u32;
        program.push(filter(EQUAL, call as u32, 0, 1));
        program.push(filter(ANSWER, refuse, 0, 0));
    }
    program.push(filter(ANSWER, libc::SECCOMP_RET_ALLOW, 0, 0));
    let all = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: `all` describes `program`, and both outlive the calls, which concern this thread
    // only.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(
                libc::PR_SET_SECCOMP,
                libc::SECCOMP_MODE_FILTER,
                &raw const all,
            ) == 0
    };
    assert!(done, "{}", std::io::Error::last_os_error());
}

#[test]
fn no_message_asks_a_file_system_for_anything_before_it_knows_which() {
    let region = [GPA, MEM, UVA, 0];
    let messages = [
        (code::SET_MEM_TABLE, mem_table(&[region])),
        (code::ADD_MEM_REG, single(region)),
        (code::SET_LOG_BASE, u64s(&[4096, 0])),
        (code::SET_INFLIGHT_FD, inflight(1 << 20, 0, 4, 256)),
        (code::SET_BACKEND_REQ_FD, vec![]),
        (code::SET_VRING_KICK, u64s(&[0])),
        (code::SET_VRING_CALL, u64s(&[0])),
        (code::SET_VRING_ERR, u64s(&[0])),
    ];
    // The only kind of file here that is neither memory nor an event, and is gone with its name.
    let path = std::env::temp_dir().join(format!("lasthop-waits-{}", std::process::id()));
    let file = std::fs::File::create(&path).expect("a file");
    std::fs::remove_file(&path).expect("its name");
    let file = OwnedFd::from(file);
    let (pipe, _watch) = watched();
    for not_known in [file, pipe] {
        let messages = messages.clone();
        let all = std::thread::spawn(move || {
            forbid();
            messages.map(|(code, payload)| {
                let fd = not_known.try_clone().expect("a copy");
                let mut rig = Rig::fresh();
                rig.protocol(ProtocolFeatures::all());
                rig.features(Features::VERSION_1, F_PROTOCOL_FEATURES);
                let fault = rig.send(code, payload, vec![fd]);
                (code, fault.expect_err("it is refused").to_string())
            })
        });
        let forbidden = std::io::Error::from_raw_os_error(FORBIDDEN).to_string();
        for (code, reason) in all.join().expect("all were answered") {
            let asked = reason.contains(&forbidden) || reason.contains("os error 18");
            assert!(!asked, "message {code}: {reason}");
        }
    }
}
