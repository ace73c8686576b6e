/* The contents of memories as in session files (qn_memory_vtable.serialize), in one array. */
#ifndef QN_TESTS_HELPER_CONTENTS_H
#define QN_TESTS_HELPER_CONTENTS_H

#include "helper_assert.h"

#include "base/memory.h"
#include "device/memory.h"

struct contents {
    uint8_t *bytes;
    size_t n, at, capacity;
};

static inline qn_status put(void *context, void *data, size_t bytes)
{
    struct contents *c = context;
    assert_ok(qn_realloc_array(&c->bytes, &c->capacity, c->n + bytes + 1, 1, "contents"));
    if (bytes)
        memcpy(c->bytes + c->n, data, bytes);
    c->n += bytes;
    return QN_OK;
}

static inline qn_status take(void *context, void *data, size_t bytes)
{
    struct contents *c = context;
    assert_true(c->at + bytes <= c->n);
    if (bytes)
        memcpy(data, c->bytes + c->at, bytes);
    c->at += bytes;
    return QN_OK;
}

static inline struct contents contents_of(const qn_memory *memory)
{
    struct contents c = { 0 };
    assert_ok(memory->vtable->serialize(memory, put, &c));
    return c;
}

static inline void fill(qn_memory *memory, const struct contents *from, const qn_extent *extent)
{
    struct contents c = *from;
    c.at = 0;
    qn_memory_truncate(memory, 0);
    assert_ok(memory->vtable->deserialize(memory, extent, take, &c));
    assert_int_equal(c.at, c.n);
    const qn_extent now = qn_sequence_extent(memory->sequence);
    assert_int_equal(now.length, extent->length);
    assert_int_equal(now.state_position, extent->state_position);
}

static inline void assert_same(const struct contents *a, const struct contents *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->bytes, b->bytes, a->n);
}

#endif
