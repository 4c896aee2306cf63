"""The checks of a program with sockets, against echo.py at the address and port of its arguments."""

import asyncio
import errno
import os
import select
import socket
import subprocess
import sys
import tempfile
import threading
import time

SERVER = (sys.argv[1], int(sys.argv[2]))
PAYLOAD = bytes(range(256)) * 256


def check(what, holds):
    if not holds:
        sys.exit(f"failed: {what}")
    print(f"ok: {what}", flush=True)


def receive_all(sock, count):
    got = b""
    while len(got) < count:
        part = sock.recv(count - len(got))
        if not part:
            break
        got += part
    return got


def echoes(sock, payload=PAYLOAD):
    thread = threading.Thread(target=sock.sendall, args=(payload,))
    thread.start()
    got = receive_all(sock, len(payload))
    thread.join()
    return got == payload


def one_connection():
    with socket.create_connection(SERVER) as sock:
        check("bytes come back", echoes(sock))
        check("the peer has its address", sock.getpeername() == SERVER)
        check("the socket has the port's", sock.getsockname()[0] == "10.0.0.1")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        check("an option stays", sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY) == 1)
        check("there is no error", sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0)
        with tempfile.TemporaryFile() as file:
            file.write(b"of a file")
            file.seek(0)
            check("a file is sent", sock.sendfile(file) == 9)
        check("a file comes back", receive_all(sock, 9) == b"of a file")
        sock.sendmsg([b"in ", b"two"])
        rooms = [bytearray(3), bytearray(9)]
        check("two buffers are sent and filled", sock.recvmsg_into(rooms)[0] == 6)
        check("in their order", rooms[0] == b"in " and rooms[1][:3] == b"two")
        sock.settimeout(0.05)
        try:
            sock.recv(1)
            check("a time limit ends a call", False)
        except TimeoutError:
            check("a time limit ends a call", True)
        sock.settimeout(None)
        copy = sock.dup()
        sock.sendall(b"copy")
        check("a duplicate is the same socket", receive_all(copy, 4) == b"copy")
        copy.close()
        file = sock.makefile("rwb")
        file.write(b"a line\n")
        file.flush()
        check("a file object reads lines", file.readline() == b"a line\n")
        sock.shutdown(socket.SHUT_WR)
        check("a half that is closed ends the echo", sock.recv(1) == b"")


def many_connections():
    async def one(number):
        reader, writer = await asyncio.open_connection(*SERVER)
        payload = number.to_bytes(2, "big") * 8192
        writer.write(payload)
        await writer.drain()
        got = await reader.readexactly(len(payload))
        writer.close()
        return got == payload

    async def run(count):
        return await asyncio.gather(*(one(number) for number in range(count)))

    check("128 connections by epoll", all(asyncio.run(run(128))))

    results = []

    def blocking():
        with socket.create_connection(SERVER) as sock:
            results.append(echoes(sock))

    threads = [threading.Thread(target=blocking) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    check("8 threads that block", results == [True] * 8)


def datagrams():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.sendto(b"one", SERVER)
        readable, writable, _ = select.select([sock], [], [], 5)
        check("select finds a datagram", readable == [sock])
        check("it has its sender", sock.recvfrom(100) == (b"one", SERVER))
        sock.connect(SERVER)
        sock.send(b"two")
        poll = select.poll()
        poll.register(sock, select.POLLIN)
        check("poll finds a datagram", poll.poll(5000) == [(sock.fileno(), select.POLLIN)])
        check("it is whole", sock.recv(100) == b"two")


def other_descriptors():
    ours = socket.create_connection(SERVER)
    here, there = socket.socketpair()
    there.send(b"x")
    readable, _, _ = select.select([ours, here], [], [], 5)
    check("a socket of the kernel is ready beside ours", readable == [here])
    here.recv(1)
    ours.send(b"x")
    readable, _, _ = select.select([ours, here], [], [], 5)
    check("ours is ready beside one of the kernel", readable == [ours])
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname()) as client:
            accepted, _ = server.accept()
            client.sendall(b"here")
            check("loopback is the kernel's", receive_all(accepted, 4) == b"here")
            accepted.close()
    edge = select.epoll()
    edge.register(ours, select.EPOLLIN | select.EPOLLET)
    check("an edge is reported", len(edge.poll(5)) == 1)
    check("once", edge.poll(0.05) == [])
    ours.send(b"y")
    check("and the next one again", len(edge.poll(5)) == 1)
    edge.close()
    ours.close()


def waiting_threads():
    epoll = select.epoll()

    def woken_by(change):
        found = []
        thread = threading.Thread(target=lambda: found.extend(epoll.poll(10)))
        thread.start()
        # It waits by then; if not, the check says nothing.
        time.sleep(0.2)
        change()
        thread.join()
        return [fd for fd, _ in found]

    with socket.create_connection(SERVER) as one, socket.create_connection(SERVER) as other:
        first = woken_by(lambda: epoll.register(one, select.EPOLLOUT))
        check("a first socket wakes a thread that waits", first == [one.fileno()])
        epoll.modify(one, select.EPOLLIN)
        second = woken_by(lambda: epoll.register(other, select.EPOLLOUT))
        check("so does another one", second == [other.fileno()])
        epoll.unregister(other)
        changed = woken_by(lambda: epoll.modify(one, select.EPOLLOUT))
        check("and other events", changed == [one.fileno()])
        epoll.unregister(one)
        here, there = socket.socketpair()
        epoll.register(here, select.EPOLLIN)
        kernels = woken_by(lambda: there.send(b"x"))
        check("one of the kernel does as before", kernels == [here.fileno()])
    epoll.close()


def errors():
    with socket.socket() as sock:
        for attempt in ("a refusal", "the next one"):
            code = sock.connect_ex((SERVER[0], 9))
            check(f"{attempt} is one", code == errno.ECONNREFUSED)
        try:
            sock.recv(1)
            check("there is no connection", False)
        except OSError as error:
            check("there is no connection", error.errno == errno.ENOTCONN)
    with socket.socket() as sock:
        try:
            sock.bind(("10.9.9.9", 1))
            check("a foreign address is refused", False)
        except OSError as error:
            check("a foreign address is refused", error.errno == errno.EADDRNOTAVAIL)
    sockets = []
    try:
        while len(sockets) < 300:
            sockets.append(socket.socket())
    except OSError as error:
        check("the last socket but one", error.errno == errno.EMFILE)
    check("was the 256th", len(sockets) == 256)
    for sock in sockets:
        sock.close()


def processes():
    with socket.create_connection(SERVER) as sock:
        check("a program is run", subprocess.run(["true"]).returncode == 0)
        check("and the socket stays", echoes(sock, b"after"))
        child = os.fork()
        if child == 0:
            try:
                sock.send(b"child")
                os._exit(1)
            except OSError as error:
                os._exit(0 if error.errno == errno.EBADF else 2)
        _, status = os.waitpid(child, 0)
        check("a child has no socket", status == 0)
        check("the parent has it yet", echoes(sock, b"parent"))


def wide():
    with socket.socket(socket.AF_INET6) as sock:
        sock.connect(("::ffff:" + SERVER[0], SERVER[1]))
        check("IPv4 in IPv6", echoes(sock, b"mapped"))
        check("stays there", sock.getpeername()[0] == "::ffff:" + SERVER[0])


for step in (
    one_connection,
    many_connections,
    datagrams,
    other_descriptors,
    waiting_threads,
    errors,
    processes,
    wide,
):
    step()
