/* Starts the program at a path in each way of the C library. Prints for each the number of
   the error, or what echo(1) printed, which the program then is. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define WORDS "echo", "1", "2", "3", "4", "5", "6", "7", "8"

extern char **environ;

static const char *path, *name, *folder;

static int attempt(int way)
{
    char *with[] = { WORDS, NULL };
    switch (way) {
    case 0: return execve(path, with, environ);
    case 1: return execv(path, with);
    case 2: return execvp(name, with);
    case 3: return execvpe(name, with, environ);
    case 4: return execl(path, WORDS, NULL);
    case 5: return execlp(name, WORDS, NULL);
    case 6: return execle(path, WORDS, NULL, environ);
    case 7: return fexecve(open(path, O_RDONLY), with, environ);
    case 8: return execveat(open(folder, O_PATH), name, with, environ, 0);
    case 9: return execveat(open(path, O_PATH), "", with, environ, AT_EMPTY_PATH);
    case 10: return execveat(AT_FDCWD, path, with, environ, 0);
    }
    return -1;
}

static int spawn(int way)
{
    char *with[] = { WORDS, NULL };
    pid_t child;
    int failed = way == 11 ? posix_spawn(&child, path, NULL, NULL, with, environ)
                           : posix_spawnp(&child, name, NULL, NULL, with, environ);
    if (!failed)
        waitpid(child, NULL, 0);
    return failed;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    path = argv[1];
    folder = strdup(path);
    *strrchr(folder, '/') = 0;
    name = strrchr(path, '/') + 1;
    setenv("PATH", folder, 1);
    setvbuf(stdout, NULL, _IONBF, 0);
    for (int way = 0; way <= 12; way++) {
        int failed;
        printf("%d: ", way);
        if (way > 10) {
            failed = spawn(way);
        } else {
            /* Both kinds of children: one with memory of its own, one that has its parent's. */
            pid_t child = way % 2 ? fork() : vfork();
            if (!child) {
                attempt(way);
                _exit(errno);
            }
            int status;
            waitpid(child, &status, 0);
            failed = WEXITSTATUS(status);
        }
        if (failed)
            printf("error %d\n", failed);
    }
    return 0;
}
