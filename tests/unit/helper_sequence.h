/* Sequences on a device of plain memory, each with the history of its tokens. The device stores in a page the tokens
 * of its positions, in a state a hash of all tokens before state_position, and in an open chunk the tokens since.
 * Instead of the convolution's inputs, it stores tokens: those of the TAPS - 1 positions before state_position in
 * the state, and those of the newest positions in a ring of the open chunk. */
#ifndef QN_TESTS_HELPER_SEQUENCE_H
#define QN_TESTS_HELPER_SEQUENCE_H

#include "helper_random.h"

#include "cache/sequence.h"

#include <stdatomic.h>

enum { GRANULE = 4096, MAX_LENGTH = 1000, TAPS = 4, DROPPED = 5, RING = TAPS - 1 + DROPPED };

/* ---- A device of plain memory ---- */

static inline qn_status device_reserve(void *context, size_t bytes, uint64_t *address)
{
    (void)context;
    void *at = calloc(1, bytes);
    assert_non_null(at);
    *address = (uint64_t)(uintptr_t)at;
    return QN_OK;
}

static inline void device_unreserve(void *context, uint64_t address, size_t bytes)
{
    (void)context;
    (void)bytes;
    free((void *)(uintptr_t)address);
}

static inline qn_status device_commit(void *context, uint64_t address)
{
    (void)context;
    memset((void *)(uintptr_t)address, 0, GRANULE);
    return QN_OK;
}

static inline void device_release(void *context, uint64_t address)
{
    (void)context;
    memset((void *)(uintptr_t)address, 0xee, GRANULE);
}

struct device {
    size_t copies, refuse_after; /* number of copies until one fails for lack of memory; 0: never */
    /* Copies between device and host memory, by two threads, until one fails; 0 or less: never. */
    atomic_long fails_after;
};

static inline qn_status device_copy(void *context, uint64_t to, uint64_t from, size_t bytes)
{
    struct device *d = context;
    d->copies++;
    if (d->refuse_after && --d->refuse_after == 0)
        return qn_fail(QN_ERR_MEMORY, "refused");
    memcpy((void *)(uintptr_t)to, (void *)(uintptr_t)from, bytes);
    return QN_OK;
}

/* Copies to host memory. */
static inline qn_status device_copy_out(void *context, void *to, uint64_t from, size_t bytes)
{
    struct device *d = context;
    if (atomic_fetch_sub(&d->fails_after, 1) == 1)
        return qn_fail(QN_ERR_IO, "refused");
    memcpy(to, (const void *)(uintptr_t)from, bytes);
    return QN_OK;
}

/* Copies from host memory. */
static inline qn_status device_copy_in(void *context, uint64_t to, const void *from, size_t bytes)
{
    struct device *d = context;
    if (atomic_fetch_sub(&d->fails_after, 1) == 1)
        return qn_fail(QN_ERR_IO, "refused");
    memcpy((void *)(uintptr_t)to, from, bytes);
    return QN_OK;
}

typedef struct fixture {
    struct device device;
    qn_pool *pool;
    qn_cache cache;
} fixture;

static inline fixture new_fixture(size_t granules, bool codes, bool recurrent)
{
    const qn_pool_memory memory = {
        NULL, GRANULE, device_reserve, device_unreserve, device_commit, device_release, NULL
    };
    fixture f = { .cache = { .copy = device_copy, .max_dropped = QN_PAGE } };
    assert_ok(qn_pool_create(&memory, granules * GRANULE, 0, &f.pool));
    assert_ok(qn_pool_add_class(f.pool, "page", QN_PAGE * 4, &f.cache.pages));
    if (codes)
        assert_ok(qn_pool_add_class(f.pool, "fp16 page", QN_PAGE * 4 + 256, &f.cache.f16_pages));
    if (recurrent) {
        assert_ok(qn_pool_add_class(f.pool, "state", 3000, &f.cache.states));
        assert_ok(qn_pool_add_class(f.pool, "open chunk", (QN_PAGE + RING) * 4, &f.cache.open_chunks));
    }
    return f;
}

/* Allows items to be spilled. */
static inline void spill(fixture *f)
{
    f->cache.copy_out = device_copy_out;
    f->cache.copy_in = device_copy_in;
    f->cache.context = &f->device;
}

/* Makes sequences fold as on a GPU. */
static inline void fold_whole_chunks(fixture *f)
{
    f->cache.folds_whole_chunks = true;
    f->cache.max_dropped = DROPPED;
}

static inline void end_fixture(fixture *f)
{
    const qn_pool_usage usage = qn_pool_get_usage(f->pool);
    assert_int_equal(usage.held, 0);
    assert_int_equal(usage.committed, 0);
    qn_pool_free(f->pool);
}

static inline uint32_t *item_at(qn_pool_class *class, uint32_t item)
{
    assert_int_not_equal(item, QN_NO_ITEM);
    return (uint32_t *)(uintptr_t)qn_pool_address(class, item);
}

/* ---- The device's part of a step ---- */

static inline uint32_t fold(uint32_t hash, const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ tokens[i]) * 16777619u + 1;
    return hash;
}

static inline void write_row(const qn_sequence *s, uint32_t position, uint32_t token)
{
    const size_t page = position / QN_PAGE;
    if (!s->cache->f16_pages) {
        item_at(s->cache->pages, s->pages[page])[position % QN_PAGE] = token;
        return;
    }
    uint32_t *rows = item_at(s->cache->f16_pages, s->f16_pages[page]);
    rows[position % QN_PAGE] = token;
    if (page && position % QN_PAGE == QN_PAGE - 1) /* the page is quantised */
        memcpy(item_at(s->cache->pages, s->pages[page]), rows, QN_PAGE * sizeof *rows);
}

static inline void fold_chunk(const qn_sequence *s, uint32_t *state)
{
    const uint32_t *open = item_at(s->cache->open_chunks, s->open_chunk);
    const uint32_t before = *state == QN_NO_ITEM ? 7 : *item_at(s->cache->states, *state);
    uint32_t *to = item_at(s->cache->states, s->state_to);
    to[0] = fold(before, open, QN_PAGE);
    memcpy(to + 1, open + QN_PAGE - (TAPS - 1), (TAPS - 1) * sizeof *to);
    *state = s->state_to;
}

static inline void run_step(const qn_sequence *s, const uint32_t *tokens, size_t n)
{
    const uint32_t end = s->length + (uint32_t)n, first_chunk = (s->length + QN_PAGE - 1) / QN_PAGE * QN_PAGE;
    uint32_t c0 = s->state_position, state = s->state;
    for (size_t i = 0; i < n; i++) {
        const uint32_t position = s->length + (uint32_t)i;
        write_row(s, position, tokens[i]);
        if (!s->cache->states)
            continue;
        uint32_t *open = item_at(s->cache->open_chunks, s->open_chunk);
        if (position == c0 + QN_PAGE) {
            fold_chunk(s, &state);
            c0 += QN_PAGE;
        }
        open[position - c0] = tokens[i];
        open[QN_PAGE + position % RING] = tokens[i];
    }
    if (s->cache->states && s->cache->folds_whole_chunks && first_chunk + QN_PAGE <= end && end % QN_PAGE == 0)
        fold_chunk(s, &state);
}

/* ---- Comparison with a history ---- */

typedef struct history {
    qn_sequence sequence;
    uint32_t tokens[MAX_LENGTH + 1];
    bool used;
} history;

/* Checks the convolution's inputs for appending after each length to which the sequence can be truncated. */
static inline void check_inputs(const history *h)
{
    const qn_sequence *s = &h->sequence;
    const uint32_t *ring = item_at(s->cache->open_chunks, s->open_chunk) + QN_PAGE;
    for (uint32_t length = qn_sequence_shortest(s); length && length <= s->length; length++)
        for (uint32_t p = length > TAPS - 1 ? length - (TAPS - 1) : 0; p < length; p++) {
            const bool in_ring = p >= s->state_position;
            const uint32_t found = in_ring
                                       ? ring[p % RING]
                                       : item_at(s->cache->states, s->state)[1 + p - (s->state_position - (TAPS - 1))];
            assert_int_equal(found, h->tokens[p]);
        }
}

static inline void check(const history *h)
{
    const qn_sequence *s = &h->sequence;
    const uint32_t length = s->length;
    for (uint32_t p = 0; p < length; p++) {
        const uint32_t page = p / QN_PAGE;
        const bool complete = (page + 1) * QN_PAGE <= length, is_f16 = s->cache->f16_pages && (page == 0 || !complete);
        const uint32_t *rows =
            is_f16 ? item_at(s->cache->f16_pages, s->f16_pages[page]) : item_at(s->cache->pages, s->pages[page]);
        assert_int_equal(rows[p % QN_PAGE], h->tokens[p]);
    }
    if (!s->cache->states)
        return;
    assert_true(s->state_position % QN_PAGE == 0 && s->state_position <= length);
    assert_true(length - s->state_position <= QN_PAGE);
    if (s->state_position)
        assert_int_equal(*item_at(s->cache->states, s->state), fold(7, h->tokens, s->state_position));
    else
        assert_int_equal(s->state, QN_NO_ITEM);
    const uint32_t *open = item_at(s->cache->open_chunks, s->open_chunk);
    for (uint32_t p = s->state_position; p < length; p++)
        assert_int_equal(open[p - s->state_position], h->tokens[p]);
    if (s->cache->max_dropped == DROPPED)
        check_inputs(h);
}

static inline bool append(history *h, size_t n)
{
    qn_sequence *s = &h->sequence;
    const uint64_t bytes = qn_sequence_bytes(s);
    for (size_t i = 0; i < n; i++)
        h->tokens[s->length + i] = random_u32();
    if (qn_sequence_reserve(s, n) != QN_OK) {
        assert_int_equal(qn_sequence_bytes(s), bytes);
        check(h);
        return false;
    }
    run_step(s, h->tokens + s->length, n);
    qn_sequence_commit(s, n);
    return true;
}

/* Truncates as a session does: rows whose fp16 page is gone are evaluated again. */
static inline void truncate_to(history *h, uint32_t length)
{
    qn_sequence *s = &h->sequence;
    const uint32_t reached = qn_sequence_rewind_length(s, length);
    assert_true(reached <= length && length - reached < QN_PAGE);
    qn_sequence_truncate(s, reached);
    check(h);
    if (reached == length)
        return;
    const uint32_t n = length - reached;
    if (qn_sequence_reserve(s, n) != QN_OK)
        return;
    run_step(s, h->tokens + s->length, n);
    qn_sequence_commit(s, n);
}

static inline void end_history(history *h)
{
    qn_sequence_free(&h->sequence);
    free(h);
}

#endif
