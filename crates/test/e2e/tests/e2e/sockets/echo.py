"""An echo server for TCP (epoll, by asyncio) and UDP, at the address and port of its arguments."""

import asyncio
import sys


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


class Datagrams(asyncio.DatagramProtocol):
    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


async def main(address, port):
    server = await asyncio.start_server(echo, address, port, backlog=128)
    loop = asyncio.get_running_loop()
    await loop.create_datagram_endpoint(Datagrams, local_addr=(address, port))
    print("ready", flush=True)
    await server.serve_forever()


asyncio.run(main(sys.argv[1], int(sys.argv[2])))
