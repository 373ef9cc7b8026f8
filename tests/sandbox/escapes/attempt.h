// Shared by the attempts: reporting and the paths of files.
//
// Exit codes: 0 the escape worked, 42 it was blocked, 43 another process reports the outcome on
// stdout, 44 the workspace is not writable, 77 the attempt cannot work here even without a sandbox,
// or must not be tried; 159 (a death by SIGSYS) counts as blocked. Any other code is a bug in the
// attempt.
#ifndef ATTEMPT_H
#define ATTEMPT_H

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { ESCAPED = 0, BLOCKED = 42, SAID_ELSEWHERE = 43, UNPREPARED = 44, IMPOSSIBLE = 77 };

static inline _Noreturn void end(int code, const char *word, const char *what, int error) {
    printf("%s: %s: %s\n", word, what, error ? strerror(error) : "-");
    fflush(stdout);
    _exit(code);
}

static inline _Noreturn void escaped(const char *what) { end(ESCAPED, "escaped", what, 0); }
static inline _Noreturn void blocked(const char *what) { end(BLOCKED, "blocked", what, errno); }
static inline _Noreturn void impossible(const char *what) { end(IMPOSSIBLE, "impossible", what, errno); }

// Whether the error says that the arguments are invalid or the kernel lacks a feature, and not that
// the call is forbidden.
static inline int is_lack(int error) {
    return error == EINVAL || error == EFAULT || error == EBADF || error == ENOSYS || error == EAFNOSUPPORT ||
           error == EPROTONOSUPPORT || error == ESOCKTNOSUPPORT || error == EOPNOTSUPP || error == ENODEV;
}

// A step of the escape: returns the result, or ends the attempt if the step failed.
static inline long step(long result, const char *what) {
    if (result >= 0) return result;
    if (is_lack(errno)) impossible(what);
    blocked(what);
}

// A step in the workspace, which a sandbox with a writable workspace allows.
static inline long prepare(long result, const char *what) {
    if (result >= 0) return result;
    if (is_lack(errno)) impossible(what);
    end(UNPREPARED, "unprepared", what, errno);
}

// For calls with arguments that cannot work: either of the expected errors shows that the call was
// let through.
static inline _Noreturn void judge_harmless(long result, int expected, int or_expected, const char *what) {
    if (result >= 0 || errno == expected || errno == or_expected) escaped(what);
    if (errno == ENOSYS) impossible(what);
    blocked(what);
}

static inline const char *variable(const char *name) {
    const char *value = getenv(name);
    if (!value) {
        fprintf(stderr, "%s is not set\n", name);
        _exit(1);
    }
    return value;
}

static inline long number(const char *name) { return strtol(variable(name), NULL, 0); }

__attribute__((format(printf, 1, 2))) static inline char *path(const char *format, ...) {
    char *text;
    va_list arguments;
    va_start(arguments, format);
    if (vasprintf(&text, format, arguments) < 0) _exit(1);
    va_end(arguments);
    return text;
}

// A name in a directory that the policy does not make writable.
static inline char *outside(const char *name) { return path("%s/%s", variable("OUTSIDE"), name); }

// A name below /proc of a process outside the sandbox.
static inline char *victim(const char *name) { return path("/proc/%ld/%s", number("VICTIM"), name); }

static inline _Noreturn void write_through(long descriptor, const char *what) {
    step(descriptor, what);
    if (write((int)descriptor, "escaped", 7) != 7) blocked("write");
    escaped(what);
}

static inline _Noreturn void create(const char *where) {
    write_through(open(where, O_WRONLY | O_CREAT, 0600), where);
}

// Ends the attempt: it has escaped if the content of a denied file can be read from the descriptor.
static inline _Noreturn void read_secret(long descriptor, const char *what) {
    char text[16] = {0};
    step(descriptor, what);
    if (read((int)descriptor, text, sizeof text - 1) < 0) blocked("read");
    if (strcmp(text, "hush\n") != 0) blocked("the content differs");
    escaped(what);
}

// Exits with the code of a child that made the attempt. A child killed by a signal was blocked.
static inline _Noreturn void adopt(pid_t child) {
    int status;
    if (waitpid(child, &status, __WALL) != child) impossible("waitpid");
    if (WIFEXITED(status)) _exit(WEXITSTATUS(status));
    end(BLOCKED, "blocked", "the child was killed", 0);
}

// Enters new user and mount namespaces, in which this process may mount.
static inline void enter_new_namespaces(void) {
    uid_t uid = geteuid();
    step(unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare");
    char *map = path("0 %u 1", uid);
    int file = (int)step(open("/proc/self/uid_map", O_WRONLY), "uid_map");
    step(write(file, map, strlen(map)), "uid_map");
    step(mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL), "make private");
}

#endif
