/* Sockets over a port of Lasthop, for programs that are linked with liblasthop_net.so: the
 * functions of the C library for sockets (socket, connect, send, poll, ...) are those of a TCP/IP
 * stack in this process. See docs/user/sockets.md. */
#ifndef LASTHOP_NET_H
#define LASTHOP_NET_H

#ifdef __cplusplus
extern "C" {
#endif

/* Plugs in. Settings are lines of KEY=VALUE:
 *
 *     SOCKET=/run/lasthop/app1.sock
 *     ADDRESS=10.0.0.5/24
 *
 * and ROUTE, DNS, MAC, MTU, BUFFER, SPIN_US, as the environment variables LASTHOP_NET_*, in whose
 * place they count. Returns 0, or -1 with errno: EINVAL, a setting is wrong; EALREADY, there
 * are settings already; ENETDOWN, the port cannot be used. */
int lasthop_net_open(const char *settings);

#ifdef __cplusplus
}
#endif

#endif
