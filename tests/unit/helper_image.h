/* Builds a GGUF file byte by byte, valid or not. */
#ifndef QN_TESTS_HELPER_IMAGE_H
#define QN_TESTS_HELPER_IMAGE_H

#include "helper_assert.h"

#include "gguf/gguf.h"
#include "quant/quant.h"

/* Not every test calls all functions. */
#pragma GCC diagnostic ignored "-Wunused-function"

struct image {
    uint8_t *data;
    size_t size, capacity;
};

static void put(struct image *m, const void *data, size_t size)
{
    if (m->size + size > m->capacity) {
        m->capacity = 2 * (m->size + size);
        m->data = realloc(m->data, m->capacity);
        assert_non_null(m->data);
    }
    memcpy(m->data + m->size, data, size);
    m->size += size;
}

static void put32(struct image *m, uint32_t v)
{
    put(m, &v, sizeof v);
}

static void put64(struct image *m, uint64_t v)
{
    put(m, &v, sizeof v);
}

static void put_text(struct image *m, const char *text)
{
    put64(m, strlen(text));
    put(m, text, strlen(text));
}

static void put_header(struct image *m, uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    put(m, "GGUF", 4);
    put32(m, version);
    put64(m, n_tensors);
    put64(m, n_kv);
}

static void put_key(struct image *m, const char *key, uint32_t type)
{
    put_text(m, key);
    put32(m, type);
}

static void put_tensor(struct image *m, const char *name, uint32_t type, uint64_t offset, uint32_t n_dims, uint64_t d0,
                       uint64_t d1, uint64_t d2, uint64_t d3)
{
    const uint64_t dims[] = { d0, d1, d2, d3 };
    put_text(m, name);
    put32(m, n_dims);
    for (uint32_t d = 0; d < n_dims && d < 4; d++)
        put64(m, dims[d]);
    put32(m, type);
    put64(m, offset);
}

static void put_data(struct image *m, size_t alignment, size_t bytes)
{
    static const uint8_t zero = 0;
    while (m->size % alignment != 0)
        put(m, &zero, 1);
    while (bytes-- > 0)
        put(m, &zero, 1);
}

/* Opens a copy of the exact size, so that the address sanitizer detects reads past the end. */
static qn_status open_image(const struct image *m, qn_gguf **file, uint8_t **copy)
{
    *copy = malloc(m->size ? m->size : 1);
    assert_non_null(*copy);
    if (m->size)
        memcpy(*copy, m->data, m->size);
    return qn_gguf_open_memory(*copy, m->size, "image", file);
}

#endif
