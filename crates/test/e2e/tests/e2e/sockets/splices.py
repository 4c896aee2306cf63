"""splice(2) between pipes and a socket, against echo.py at the address and port of its arguments."""

import errno
import os
import socket
import sys

SERVER = (sys.argv[1], int(sys.argv[2]))
NOW = os.SPLICE_F_NONBLOCK


def error_of(*arguments, **options):
    try:
        os.splice(*arguments, **options)
        return None
    except OSError as error:
        return errno.errorcode[error.errno]


out, into = os.pipe()
back, there = os.pipe()
with socket.create_connection(SERVER) as sock:
    payload = bytes(range(256)) * 200
    for _ in range(3):
        os.write(into, payload)
        sent = 0
        while sent < len(payload):
            sent += os.splice(out, sock.fileno(), len(payload) - sent)
        got = b""
        while len(got) < len(payload):
            moved = os.splice(sock.fileno(), there, 1 << 20)
            got += os.read(back, moved)
        assert got == payload
    print("ok: a pipe, the socket, a pipe")
    assert error_of(out, sock.fileno(), 10, flags=NOW) == "EAGAIN"
    assert error_of(sock.fileno(), there, 10, flags=NOW) == "EAGAIN"
    print("ok: nothing is there")
    # A pipe that is full takes nothing, and what was received stays.
    os.set_blocking(there, False)
    try:
        while True:
            os.write(there, b"z" * 4096)
    except BlockingIOError:
        pass
    sock.sendall(b"kept")
    sock.recv(1, socket.MSG_PEEK)
    assert error_of(sock.fileno(), there, 10, flags=NOW) == "EAGAIN"
    assert sock.recv(4, socket.MSG_WAITALL) == b"kept"
    print("ok: a full pipe")
    with open(sys.argv[0], "rb") as file:
        assert error_of(file.fileno(), sock.fileno(), 10) == "EINVAL"
        assert error_of(out, sock.fileno(), 10, offset_dst=3) == "ESPIPE"
    with socket.socket() as other:
        os.write(into, b"waits")
        assert error_of(out, other.fileno(), 10) in ("ENOTCONN", "EPIPE")
        assert os.read(out, 10) == b"waits"
    print("ok: errors")
    sock.shutdown(socket.SHUT_WR)
    assert os.splice(sock.fileno(), there, 10) == 0
    print("ok: the end")
