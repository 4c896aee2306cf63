/* A program that is linked with the library: sends a line to the echo server at the address and
 * port of its second and third argument, over the port whose settings are the first. */
#include <arpa/inet.h>
#include <lasthop_net.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int count, char **arguments)
{
    struct sockaddr_in to = { .sin_family = AF_INET };
    char answer[64];
    int fd;

    if (count != 4)
        return 2;
    if (lasthop_net_open("SOCKET=\n") != -1 || lasthop_net_open(arguments[1]) != 0) {
        perror("lasthop_net_open");
        return 1;
    }
    inet_pton(AF_INET, arguments[2], &to.sin_addr);
    to.sin_port = htons((unsigned short)atoi(arguments[3]));
    fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0 || connect(fd, (struct sockaddr *)&to, sizeof to) != 0 || write(fd, "line\n", 5) != 5) {
        perror("socket");
        return 1;
    }
    if (recv(fd, answer, 5, MSG_WAITALL) != 5 || memcmp(answer, "line\n", 5) != 0)
        return 1;
    close(fd);
    puts("done");
    return 0;
}
