/* A program with a connection to an address of IPv4: 0, or the number of the error. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

int main(int argc, char **argv)
{
    struct sockaddr_in to = { .sin_family = AF_INET };
    if (argc != 3)
        return 200;
    to.sin_port = htons(atoi(argv[2]));
    to.sin_addr.s_addr = inet_addr(argv[1]);
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    return connect(fd, (struct sockaddr *)&to, sizeof(to)) ? errno : 0;
}
