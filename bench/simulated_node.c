/* Loaded with LD_PRELOAD into everything that runs on a simulated node: its wall clock is ahead by NODE_AHEAD_NS, and
   every file below NODE_BELOW that it opens for writing, or renames, is noted in the file NODE_NOTES. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static long long ahead;
static const char *below, *notes;

__attribute__((constructor)) static void from_environment(void) {
    const char *nanoseconds = getenv("NODE_AHEAD_NS");
    ahead = nanoseconds ? atoll(nanoseconds) : 0;
    below = getenv("NODE_BELOW");
    notes = getenv("NODE_NOTES");
}

/* Opened each time: programs close descriptors that they do not know. */
static void note(const char *path) {
    char line[4200];
    if (!notes || !below || !path || strncmp(path, below, strlen(below))) return;
    int length = snprintf(line, sizeof line, "%s\n", path);
    int file = (int)syscall(SYS_openat, AT_FDCWD, notes, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    if (length >= (int)sizeof line || file < 0 || syscall(SYS_write, file, line, (size_t)length) != length) abort();
    syscall(SYS_close, file);
}

int clock_gettime(clockid_t clock, struct timespec *found) {
    int result = (int)syscall(SYS_clock_gettime, clock, found);
    if (result || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return result;
    long long moment = found->tv_sec * SECOND + found->tv_nsec + ahead;
    found->tv_sec = moment / SECOND;
    found->tv_nsec = moment % SECOND;
    return 0;
}

int gettimeofday(struct timeval *found, void *zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    found->tv_sec = now.tv_sec;
    found->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *found) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (found) *found = now.tv_sec;
    return now.tv_sec;
}

#define OPENS(name, ...)                                                                                               \
    mode_t mode = 0;                                                                                                   \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        mode = va_arg(rest, mode_t);                                                                                   \
        va_end(rest);                                                                                                  \
    }                                                                                                                  \
    if ((flags & O_ACCMODE) != O_RDONLY) note(path);                                                                   \
    return REAL(name)(__VA_ARGS__, flags, mode);

int open(const char *path, int flags, ...) { OPENS(open, path) }
int open64(const char *path, int flags, ...) { OPENS(open64, path) }
int openat(int folder, const char *path, int flags, ...) { OPENS(openat, folder, path) }
int openat64(int folder, const char *path, int flags, ...) { OPENS(openat64, folder, path) }

int rename(const char *path, const char *target) {
    note(target);
    return REAL(rename)(path, target);
}
