// A process of the same user outside the sandbox, which the attempts attack.
// It prints how to reach it, passes a writable descriptor to every process that connects, and lives
// until it is killed.
#include <stddef.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/un.h>

#include "escapes/attempt.h"

static char treasure[] = "treasure";

static int listen_at(const char *name, size_t len, int type) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, name, len);
    int descriptor = socket(AF_UNIX, type, 0);
    socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + len);
    if (bind(descriptor, (struct sockaddr *)&address, size) < 0) _exit(1);
    if (type == SOCK_STREAM && listen(descriptor, 8) < 0) _exit(1);
    return descriptor;
}

static void give(int connection, int descriptor) {
    char byte = 'x', control[CMSG_SPACE(sizeof(int))] = {0};
    struct iovec iov = {&byte, 1};
    struct msghdr message = {
        .msg_iov = &iov, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    struct cmsghdr *header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
    sendmsg(connection, &message, MSG_NOSIGNAL);
}

int main(void) {
    // With Yama, a process is traced only by its ancestors unless it permits others.
    prctl(PR_SET_PTRACER, -1UL, 0, 0, 0);
    int file = open(outside("file"), O_RDWR);
    char *stream = outside("stream"), *datagram = outside("datagram");
    int listener = listen_at(stream, strlen(stream), SOCK_STREAM);
    listen_at(datagram, strlen(datagram), SOCK_DGRAM);
    char *abstract = path("%cexec-server-victim-%d", 0, getpid());
    listen_at(abstract, 1 + strlen(abstract + 1), SOCK_STREAM);
    // The segment is destroyed with the last process that uses it; until then any process that
    // knows its number can attach.
    int segment = shmget(IPC_PRIVATE, 4096, 0600);
    if (shmat(segment, NULL, 0) == (void *)-1) _exit(1);
    shmctl(segment, IPC_RMID, NULL);
    int terminal = posix_openpt(O_RDWR | O_NOCTTY);
    grantpt(terminal);
    unlockpt(terminal);
    struct stat memory = {0};
    stat("/dev/shm", &memory);
    printf("%d %p %d %d %s %ld\n", getpid(), (void *)treasure, file, segment, ptsname(terminal),
           (long)memory.st_dev);
    fflush(stdout);
    for (;;) {
        int connection = accept(listener, NULL, NULL);
        give(connection, file);
        close(connection);
    }
}
