"""What a program reaches without the library: the host's loopback (port), an abstract socket of the host (name), a
socket of the host by its path, a host outside, and itself. Prints a line for each."""

import errno
import os
import socket
import sys

port, abstract, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]


def attempt(what, kind, address, family=socket.AF_INET):
    with socket.socket(family, kind) as sock:
        code = sock.connect_ex(address)
    print(f"{what}: {errno.errorcode.get(code, 'reached')}")


def itself(family, address):
    try:
        with socket.create_server((address, 0), family=family) as server:
            with socket.create_connection(server.getsockname()[:2]) as client:
                accepted, _ = server.accept()
                client.sendall(b"here")
                return accepted.recv(4) == b"here"
    except OSError as error:
        return error


print("library:", "there" if "liblasthop_net" in open("/proc/self/maps").read() else "not there")
attempt("loopback of the host", socket.SOCK_STREAM, ("127.0.0.1", port))
attempt("abstract socket of the host", socket.SOCK_STREAM, "\0" + abstract, socket.AF_UNIX)
attempt("path of the host", socket.SOCK_STREAM, path, socket.AF_UNIX)
attempt("outside", socket.SOCK_DGRAM, ("192.0.2.1", 9))
print("127.0.0.1:", itself(socket.AF_INET, "127.0.0.1"))
if os.path.exists("/proc/net/if_inet6"):
    print("::1:", itself(socket.AF_INET6, "::1"))
print("user and group:", os.getuid(), os.geteuid(), os.getgid(), os.getegid())
print("interfaces:", *(name for _, name in socket.if_nameindex()))
