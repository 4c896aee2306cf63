//! Metrics on the socket of the API and on their own socket, across restarts of the processes.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::path::Path;

use rustix::process::Signal;
use testkit::lasthop::{Place, Running, port};
use testkit::metrics::Metrics;
use testkit::wait::wait_until;

const ASK: &[u8] = b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";

/// Returns the body of an answer with this status.
fn body(mut stream: impl Read + Write, ask: &[u8], status: &str) -> String {
    stream.write_all(ask).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").expect(&answer);
    assert!(head.starts_with(&format!("HTTP/1.1 {status}")), "{head}");
    body.to_owned()
}

fn over_unix(path: &Path) -> Metrics {
    let page = body(UnixStream::connect(path).unwrap(), ASK, "200");
    Metrics::read(&page).unwrap()
}

fn over_tcp(address: &str) -> Metrics {
    let page = body(TcpStream::connect(address).unwrap(), ASK, "200");
    Metrics::read(&page).unwrap()
}

/// Returns a free address of this host.
fn free() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().to_string()
}

fn config(listen: &str) -> String {
    let head = format!("[metrics]\nlisten = \"{listen}\"\n[switch]\nname = \"host1\"\n");
    format!("{head}{}", port("vm1", ""))
}

fn restarts(metrics: &Metrics, process: &str) -> f64 {
    metrics.get(&format!(
        "lasthop_process_restarts_total{{process=\"{process}\"}}"
    ))
}

fn write(place: &Place, text: &str) {
    std::fs::write(place.path("lasthop.toml"), text).unwrap();
}

#[test]
fn metrics_survive_restarts_and_an_upgrade() {
    let place = Place::new();
    let address = free();
    let mut lasthop = place.start(&config(&address));
    let first = over_tcp(&address);
    assert_eq!(
        first.get("lasthop_port_state{port=\"vm1\",state=\"waiting\"}"),
        1.0
    );
    let version = env!("CARGO_PKG_VERSION");
    let build = format!("lasthop_build_info{{version=\"{version}\",name=\"host1\"}}");
    assert_eq!(first.get(&build), 1.0);
    // The rate of the cycle counter is measured at run time.
    let names =
        |page: Metrics| -> Vec<String> { page.names().into_iter().map(str::to_owned).collect() };
    wait_until("the rate of the counter is known", || {
        names(over_tcp(&address)).contains(&"lasthop_cpu_cycles_per_second".to_owned())
    });
    let same = over_unix(&place.run_dir().join("api.sock"));
    assert_eq!(names(same), names(over_tcp(&address)));

    for process in ["supervisor", "control", "switch"] {
        let sample = |what| first.get(&format!("lasthop_process_{what}{{process=\"{process}\"}}"));
        let resident = sample("resident_memory_bytes");
        assert!(sample("anonymous_memory_bytes") > 0.0 && resident < f64::from(1 << 30));
        assert!(resident > sample("anonymous_memory_bytes"), "{process}");
    }
    let spent = "lasthop_process_cpu_seconds_total{process=\"control\"}";
    wait_until("control has spent time", || {
        over_tcp(&address).get(spent) > 0.0
    });

    lasthop.kill_and_wait("control");
    assert_eq!(restarts(&over_tcp(&address), "control"), 1.0);
    lasthop.kill_and_wait("switch");
    let later = over_tcp(&address);
    assert_eq!(restarts(&later, "switch"), 1.0);
    lasthop.prints("upgrade");
    let last = over_tcp(&address);
    // Counters of threads and processes start with the process.
    let begins = [
        "lasthop_worker_",
        "lasthop_process_cpu_",
        "lasthop_process_wakeups_",
    ];
    let mut fallen = last.fallen_since(&later);
    fallen.retain(|name| !begins.iter().any(|begin| name.starts_with(begin)));
    assert_eq!(fallen, [""; 0]);
    nothing_but_metrics(&address);
    lasthop.end(Signal::TERM);
    assert!(TcpStream::connect(&address).is_err());
}

/// Checks that the socket serves nothing but metrics.
fn nothing_but_metrics(address: &str) {
    for ask in [
        &b"GET /v1/status"[..],
        b"PUT /v1/state",
        b"DELETE /v1/ports/vm1",
        b"GET /",
    ] {
        let ask = [ask, b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"].concat();
        body(TcpStream::connect(address).unwrap(), &ask, "404");
    }
    let ask = b"POST /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    body(TcpStream::connect(address).unwrap(), ask, "405");
}

fn reload(lasthop: &Running) -> String {
    lasthop.prints("reload")
}

#[test]
fn the_socket_can_change_while_it_runs() {
    let place = Place::new();
    let mut lasthop = place.start(&config("unix:m.sock"));
    let socket = place.run_dir().join("m.sock");
    over_unix(&socket);
    let address = free();
    write(&place, &config(&address));
    let output = format!("~ metrics: listen unix:m.sock -> {address}\n1 change applied\n");
    assert_eq!(reload(&lasthop), output);
    wait_until("the other one is served", || {
        TcpStream::connect(&address).is_ok()
    });
    over_tcp(&address);
    assert!(!socket.exists());

    // An address in use changes nothing.
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    write(&place, &config(&taken.local_addr().unwrap().to_string()));
    let refused = lasthop.cli("reload");
    assert_eq!(refused.status.code(), Some(2));
    let output = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        output.contains("nothing was changed: metrics.listen: 127.0.0.1:"),
        "{output}"
    );
    over_tcp(&address);
    write(&place, &port("vm1", ""));
    reload(&lasthop);
    wait_until("the socket is closed", || {
        TcpStream::connect(&address).is_err()
    });
    over_unix(&place.run_dir().join("api.sock"));
    lasthop.end(Signal::TERM);
}

#[test]
fn an_address_that_is_taken_or_not_our_own_is_refused_at_the_start() {
    let place = Place::new();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let (status, output) = place.refuses(&config(&address));
    assert_eq!(status, Some(2));
    assert!(
        output.contains(
            "lasthop.toml:2:10: metrics.listen: expected an address or a path where a socket"
        ),
        "{output}"
    );
    let (status, output) = place.refuses(&config("0.0.0.0:9464"));
    assert_eq!(status, Some(2));
    assert!(output.contains("found \"0.0.0.0:9464\""), "{output}");
    assert_eq!(place.left(), [""; 0]);
}
