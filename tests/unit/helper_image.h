/* Builds a GGUF file byte by byte, valid or not, one at a time. */
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

static struct image image; /* that is written */

static void begin_image(void)
{
    image.size = 0;
}

static void put(const void *data, size_t size)
{
    if (image.size + size > image.capacity) {
        image.capacity = 2 * (image.size + size);
        image.data = realloc(image.data, image.capacity);
        assert_non_null(image.data);
    }
    memcpy(image.data + image.size, data, size);
    image.size += size;
}

static void put32(uint32_t v)
{
    put(&v, sizeof v);
}

static void put64(uint64_t v)
{
    put(&v, sizeof v);
}

static void put_text(const char *text)
{
    put64(strlen(text));
    put(text, strlen(text));
}

/* Begins an image. */
static void put_header(uint32_t version, uint64_t n_tensors, uint64_t n_kv)
{
    begin_image();
    put("GGUF", 4);
    put32(version);
    put64(n_tensors);
    put64(n_kv);
}

static void put_key(const char *key, uint32_t type)
{
    put_text(key);
    put32(type);
}

static void put_tensor(const char *name, uint32_t type, uint64_t offset, uint32_t n_dims, uint64_t d0, uint64_t d1,
                       uint64_t d2, uint64_t d3)
{
    const uint64_t dims[] = { d0, d1, d2, d3 };
    put_text(name);
    put32(n_dims);
    for (uint32_t d = 0; d < n_dims && d < 4; d++)
        put64(dims[d]);
    put32(type);
    put64(offset);
}

static void put_data(size_t alignment, size_t bytes)
{
    static const uint8_t zero = 0;
    while (image.size % alignment != 0)
        put(&zero, 1);
    while (bytes-- > 0)
        put(&zero, 1);
}

/* Opens a copy of the exact size, so that the address sanitizer detects reads past the end. */
static qn_status open_image(const struct image *m, qn_gguf **file, uint8_t **copied)
{
    *copied = malloc(m->size ? m->size : 1);
    assert_non_null(*copied);
    if (m->size)
        memcpy(*copied, m->data, m->size);
    return qn_gguf_open_memory(*copied, m->size, "image", file);
}

#endif
