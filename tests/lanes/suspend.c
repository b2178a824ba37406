/*
 * For LD_PRELOAD: a machine that is suspended, as one process of it sees it. The clock that counts suspension jumps
 * ahead by the nanoseconds in the file of SUSPENDED; the one that timers run by does not.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <time.h>

static const volatile int64_t *suspended;

__attribute__((constructor)) static void begin(void)
{
    const char *path = getenv("SUSPENDED");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = mmap(NULL, sizeof *suspended, PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        abort();
    suspended = map;
}

int clock_gettime(clockid_t clock, struct timespec *time)
{
    static int (*original)(clockid_t, struct timespec *);
    if (!original)
        original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = original(clock, time);
    if (result == 0 && clock == CLOCK_BOOTTIME && suspended) {
        int64_t nanos = time->tv_nsec + *suspended;
        time->tv_sec += nanos / 1000000000;
        time->tv_nsec = nanos % 1000000000;
    }
    return result;
}
