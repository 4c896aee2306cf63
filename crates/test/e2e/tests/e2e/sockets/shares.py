"""Sockets that share a port. `server ADDRESS PORT COUNT`: three threads, each with a listening socket and a UDP socket
of its own; prints how many of COUNT connections and of COUNT datagrams came to each. `client ADDRESS PORT COUNT`."""

import socket
import sys
import threading

ROLE, PLACE, COUNT = sys.argv[1], (sys.argv[2], int(sys.argv[3])), int(sys.argv[4])
THREADS = 3


def shared(kind):
    sock = socket.socket(socket.AF_INET, kind)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    sock.bind(PLACE)
    return sock


def serve():
    counts = [[0] * THREADS, [0] * THREADS]
    is_over = threading.Event()
    lock = threading.Lock()

    def note(kind, thread):
        with lock:
            counts[kind][thread] += 1
            if all(sum(count) == COUNT for count in counts):
                is_over.set()

    def accept(thread, listener):
        while True:
            accepted, _ = listener.accept()
            accepted.sendall(b"x")
            accepted.close()
            note(0, thread)

    def receive(thread, sock):
        while True:
            data, sender = sock.recvfrom(100)
            sock.sendto(data, sender)
            note(1, thread)

    for thread in range(THREADS):
        listener = shared(socket.SOCK_STREAM)
        listener.listen()
        for act, sock in ((accept, listener), (receive, shared(socket.SOCK_DGRAM))):
            threading.Thread(target=act, args=(thread, sock), daemon=True).start()
    print("ready", flush=True)
    is_over.wait()
    for count in counts:
        print("each" if all(count) else "not each", sum(count), flush=True)


def ask():
    for _ in range(COUNT):
        with socket.create_connection(PLACE) as sock:
            assert sock.recv(1) == b"x"
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"y", PLACE)
            assert sock.recvfrom(100) == (b"y", PLACE)


serve() if ROLE == "server" else ask()
