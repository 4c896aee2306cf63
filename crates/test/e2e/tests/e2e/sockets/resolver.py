"""A resolver at the address of its first argument: every name has the address of the second."""

import socket
import sys

server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind((sys.argv[1], 53))
print("ready", flush=True)
while True:
    question, sender = server.recvfrom(512)
    is_ipv4 = question[-4:-2] == b"\0\1"
    head = question[:2] + b"\x81\x80\0\1" + (b"\0\1" if is_ipv4 else b"\0\0") + b"\0\0\0\0"
    record = b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + socket.inet_aton(sys.argv[2])
    server.sendto(head + question[12:] + (record if is_ipv4 else b""), sender)
