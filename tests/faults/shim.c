/* Make the n-th call that touches files below a folder fail. Loaded with LD_PRELOAD, armed through ctypes or, for
   processes that the tests do not drive, by the environment: FAULT_BELOW, FAULT_FIRST, FAULT_TIMES, FAULT_ERRNO,
   FAULT_WHILE (a file: calls fail only while it exists). */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define SHORT 0

static char below[4096];
static char only_while[4096];
static long first = 1, times = 0, seen = 0;
static int failure = EIO;
static char last_call[32];

void fault_arm(const char *folder, long from, long count, int error) {
    snprintf(below, sizeof below, "%s", folder);
    __atomic_store_n(&seen, 0, __ATOMIC_SEQ_CST);
    first = from;
    times = count;
    failure = error;
}

void fault_disarm(void) { below[0] = 0; }

long fault_seen(void) { return __atomic_load_n(&seen, __ATOMIC_SEQ_CST); }

const char *fault_call(void) { return last_call; }

__attribute__((constructor)) static void from_environment(void) {
    const char *folder = getenv("FAULT_BELOW");
    if (!folder) return;
    const char *guard = getenv("FAULT_WHILE");
    if (guard) snprintf(only_while, sizeof only_while, "%s", guard);
    fault_arm(folder, atol(getenv("FAULT_FIRST")), atol(getenv("FAULT_TIMES")), atoi(getenv("FAULT_ERRNO")));
}

static int hit(const char *path, const char *call) {
    if (!below[0] || !path || strncmp(path, below, strlen(below))) return 0;
    if (only_while[0] && access(only_while, F_OK)) return 0;
    long number = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (number < first || number >= first + times) return 0;
    snprintf(last_call, sizeof last_call, "%s", call);
    return 1;
}

static int hit_fd(int fd, const char *call) {
    char link[64], path[4096];
    if (!below[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return hit(path, call);
}

#define FAIL_FD(call)                                                                                                  \
    if (hit_fd(fd, call) && failure != SHORT) {                                                                        \
        errno = failure;                                                                                               \
        return -1;                                                                                                     \
    }
#define FAIL_PATH(path, call)                                                                                          \
    if (hit(path, call) && failure != SHORT) {                                                                         \
        errno = failure;                                                                                               \
        return -1;                                                                                                     \
    }

ssize_t write(int fd, const void *data, size_t size) {
    if (hit_fd(fd, "write")) {
        if (failure != SHORT) {
            errno = failure;
            return -1;
        }
        size = size > 1 ? size / 2 : size;
    }
    return REAL(write)(fd, data, size);
}

ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    FAIL_FD("pwrite")
    return REAL(pwrite)(fd, data, size, at);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    FAIL_FD("pwrite")
    return REAL(pwrite64)(fd, data, size, at);
}

int fsync(int fd) {
    FAIL_FD("fsync")
    return REAL(fsync)(fd);
}

int fdatasync(int fd) {
    FAIL_FD("fdatasync")
    return REAL(fdatasync)(fd);
}

int ftruncate(int fd, off_t size) {
    FAIL_FD("ftruncate")
    return REAL(ftruncate)(fd, size);
}

int ftruncate64(int fd, off64_t size) {
    FAIL_FD("ftruncate")
    return REAL(ftruncate64)(fd, size);
}

int posix_fallocate(int fd, off_t at, off_t size) {
    if (hit_fd(fd, "posix_fallocate") && failure != SHORT) return failure;
    return REAL(posix_fallocate)(fd, at, size);
}

int posix_fallocate64(int fd, off64_t at, off64_t size) {
    if (hit_fd(fd, "posix_fallocate") && failure != SHORT) return failure;
    return REAL(posix_fallocate64)(fd, at, size);
}

#define OPENS(name, ...)                                                                                               \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }                                                                                                                  \
    FAIL_PATH(path, "open")                                                                                            \
    return REAL(name)(__VA_ARGS__, flags, mode);

int open(const char *path, int flags, ...) { OPENS(open, path) }
int open64(const char *path, int flags, ...) { OPENS(open64, path) }
int openat(int folder, const char *path, int flags, ...) { OPENS(openat, folder, path) }
int openat64(int folder, const char *path, int flags, ...) { OPENS(openat64, folder, path) }

int rename(const char *path, const char *target) {
    FAIL_PATH(path, "rename")
    return REAL(rename)(path, target);
}

int link(const char *path, const char *target) {
    FAIL_PATH(path, "link")
    return REAL(link)(path, target);
}

int linkat(int from, const char *path, int to, const char *target, int flags) {
    FAIL_PATH(path, "link")
    return REAL(linkat)(from, path, to, target, flags);
}

int unlink(const char *path) {
    FAIL_PATH(path, "unlink")
    return REAL(unlink)(path);
}

int mkdir(const char *path, mode_t mode) {
    FAIL_PATH(path, "mkdir")
    return REAL(mkdir)(path, mode);
}

int chmod(const char *path, mode_t mode) {
    FAIL_PATH(path, "chmod")
    return REAL(chmod)(path, mode);
}
