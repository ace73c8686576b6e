/* Measures the read bandwidth in a separate process. */
#include "cli/bench_bandwidth.h"

#include "base/address_space.h"
#include "base/available.h"
#include "base/memory.h"
#include "base/program.h"
#include "base/team.h"
#include "cli/cli.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PASSES = 5, LINE_WORDS = 8 };

struct reader {
    uint64_t *words; /* 64-byte aligned */
    size_t n_words;  /* a multiple of LINE_WORDS */
    int n_threads;
    uint64_t sums[QN_TEAM_MAX]; /* stored, so that the compiler cannot remove the reads */
};

static void fill(void *context, size_t begin, size_t end, int thread)
{
    struct reader *reader = context;
    (void)thread;
    for (size_t i = begin; i < end; i++)
        reader->words[i] = i;
}

/* Keeps eight sums, which fit in vector registers, and prefetches a few pages ahead, since hardware prefetchers stop at
 * the end of a page. */
static void sum(void *context, size_t begin, size_t end, int thread)
{
    struct reader *reader = context;
    uint64_t sums[LINE_WORDS] = { 0 };
    for (size_t i = begin; i + LINE_WORDS <= end; i += LINE_WORDS) {
        __builtin_prefetch(reader->words + i + 1024);
        for (size_t lane = 0; lane < LINE_WORDS; lane++)
            sums[lane] += reader->words[i + lane];
    }
    for (size_t lane = 0; lane < LINE_WORDS; lane++)
        reader->sums[thread] += sums[lane];
}

/* Returns QN_BENCH_MIB in bytes, else 1 GiB, which exceeds nearly all current caches. */
static size_t wanted_bytes(void)
{
    const char *text = getenv("QN_BENCH_MIB");
    char *end;
    const unsigned long mib = text ? strtoul(text, &end, 10) : 0;
    return mib >= 1 && mib <= 1 << 20 && !*end ? (size_t)mib << 20 : (size_t)1 << 30;
}

/* Allocates the memory that is read; on a small machine a quarter of the free memory must do. */
static bool make_buffer(struct reader *reader)
{
    const uint64_t free_bytes = qn_available_memory();
    size_t bytes = wanted_bytes();
    if (free_bytes / 4 < bytes)
        bytes = (size_t)(free_bytes / 4);
    bytes &= ~(size_t)4095;
    void *memory;
    if (!bytes || qn_alloc(&memory, bytes, 1, "memory that is read"))
        return false;
    qn_advise_huge(memory, bytes); /* if refused, the result is a little lower */
    reader->words = memory;
    reader->n_words = bytes / sizeof *reader->words;
    return true;
}

static double measure(struct reader *reader, int n_threads)
{
    static qn_team *team;
    if (reader->n_threads != n_threads) {
        qn_team_free(team);
        team = NULL;
        if (qn_team_create(n_threads, &team))
            return 0;
        reader->n_threads = n_threads;
        if (!reader->words && !make_buffer(reader))
            return 0;
        qn_team_divide(team, reader->n_words, LINE_WORDS, fill, reader);
    }
    if (!reader->words)
        return 0;
    double best = 0;
    for (int pass = 0; pass < PASSES; pass++) {
        const double start = qn_seconds();
        qn_team_divide(team, reader->n_words, LINE_WORDS, sum, reader);
        const double seconds = qn_seconds() - start;
        const double rate = (double)(reader->n_words * sizeof *reader->words) / seconds;
        best = rate > best ? rate : best;
    }
    return best;
}

/* Reads a message. Messages are smaller than a pipe's atomic size, so reads and writes are whole, and only signals
 * interrupt them. */
static bool receive(int fd, void *message, size_t size)
{
    ssize_t got;
    do
        got = read(fd, message, size);
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)size;
}

static bool transmit(int fd, const void *message, size_t size)
{
    ssize_t put;
    do
        put = write(fd, message, size);
    while (put < 0 && errno == EINTR);
    return put == (ssize_t)size;
}

/* Runs the child: answers each number of threads with a rate, until the pipe is closed. */
static void serve(int in, int out)
{
    static struct reader reader;
    int n_threads;
    while (receive(in, &n_threads, sizeof n_threads)) {
        const double rate = measure(&reader, n_threads);
        if (!transmit(out, &rate, sizeof rate))
            break;
    }
}

bool qn_bandwidth_start(qn_bandwidth *bandwidth)
{
    if (qn_child_start(serve, bandwidth))
        return true;
    qn_cli_error("cannot start the process that measures bandwidth: %s", strerror(errno));
    return false;
}

double qn_bandwidth_measure(qn_bandwidth *bandwidth, int n_threads)
{
    double rate;
    if (!transmit(bandwidth->to, &n_threads, sizeof n_threads) || !receive(bandwidth->from, &rate, sizeof rate))
        return 0;
    return rate;
}

void qn_bandwidth_stop(qn_bandwidth *bandwidth)
{
    qn_child_stop(bandwidth);
}
