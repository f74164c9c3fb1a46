/* The time in ns of CLOCK_MONOTONIC, by the processor's own counter between two looks at the system's clock.

   To ask the system takes four pages of code and data that a training step has pushed out of the caches, at every
   phase; the counter is one instruction. It is believed for WINDOW_NS after each look only, at the rate that it had
   against the system's clock during the last minute, and only where the kernel itself keeps its time by it (`trusted`;
   recorder/native.py finds out). Should the two ever disagree it is left alone until they have agreed for a while. */

#include <time.h>
#if defined(__x86_64__)
#include <x86intrin.h>
#define COUNTER() __rdtsc()
#else
#define COUNTER() 0ULL
#endif

#define WINDOW_NS 20000000LL
#define PROOF_NS 20000000LL     /* how long it must have run beside the clock before its rate is known */
#define MEMORY_NS 60000000000LL /* how long a rate is taken over */
#define PAIR_TICKS 20000ULL     /* a look at both that took longer was interrupted */
#define DISAGREEMENT 0.001

typedef struct {
    unsigned long long ticks, window, scale; /* of the last look; believed so many; ns per tick, times 2**32 */
    long long ns, last;
    unsigned long long since_ticks; /* where the rate's measure begins */
    long long since_ns;
    int trusted;
} Counter;

static Counter counter;

static long long system_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (long long)now.tv_sec * 1000000000LL + now.tv_nsec;
}

/* Forget the counter's rate: it begins to be known from here. */
static void doubt(unsigned long long ticks, long long ns)
{
    counter.window = counter.scale = 0;
    counter.since_ticks = ticks;
    counter.since_ns = ns;
}

/* Take a look at counter and clock together: from it the counter is read on. */
static void anchor(unsigned long long ticks, long long ns)
{
    long long span = ns - counter.since_ns;
    double scale;
    counter.ticks = ticks;
    counter.ns = ns;
    if (!counter.since_ns || ticks <= counter.since_ticks) {
        doubt(ticks, ns);
        return;
    }
    if (span < PROOF_NS) return;
    scale = (double)span / (double)(ticks - counter.since_ticks) * 4294967296.0;
    if (scale > 4294967296.0 || (counter.scale && (scale / (double)counter.scale > 1 + DISAGREEMENT ||
                                                   scale / (double)counter.scale < 1 - DISAGREEMENT))) {
        doubt(ticks, ns);
        return;
    }
    counter.scale = (unsigned long long)scale;
    counter.window = (unsigned long long)((double)WINDOW_NS / scale * 4294967296.0);
    if (span > MEMORY_NS) {
        counter.since_ticks = ticks;
        counter.since_ns = ns;
    }
}

/* Ask the system, and restart the counter from there. */
__attribute__((noinline)) static long long look_at_clock(void)
{
    unsigned long long before = COUNTER();
    long long ns = system_ns();
    unsigned long long after = COUNTER();
    if (!counter.trusted) return ns;
    if (after - before < PAIR_TICKS) anchor(before + (after - before) / 2, ns);
    else counter.window = 0;
    if (ns > counter.last) counter.last = ns;
    return counter.last;
}

__attribute__((hot)) static long long counted_ns(void)
{
    unsigned long long ticks = COUNTER() - counter.ticks;
    long long ns;
    if (ticks >= counter.window) return look_at_clock();
    ns = counter.ns + (long long)((ticks * counter.scale) >> 32);
    if (ns > counter.last) counter.last = ns;
    return counter.last;
}
