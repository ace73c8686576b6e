/* The GGUF reader and writer: what is written comes back, look-ups keep their word, and hostile files are refused with a text
 * that names the thing. Files are built here byte by byte, so that the reader is not only checked against quern's own writer.
 */
#include "gguf/gguf.h"
#include "quant/quant.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* ---- A file being built ---- */

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

/* Opens an exact copy, so that a read past the end is one past an allocation, which the address sanitizer sees. */
static qn_status open_image(const struct image *m, qn_gguf **file, uint8_t **copy)
{
    *copy = malloc(m->size ? m->size : 1);
    assert_non_null(*copy);
    if (m->size)
        memcpy(*copy, m->data, m->size);
    return qn_gguf_open_memory(*copy, m->size, "image", file);
}

/* ---- Hostile files ---- */

static void bad_magic(struct image *m)
{
    put(m, "GGML", 4);
    put_data(m, 1, 100);
}
static void empty_image(struct image *m)
{
    (void)m;
}
static void short_header(struct image *m)
{
    put(m, "GGUF\3\0\0\0", 8);
}
static void version_1(struct image *m)
{
    put_header(m, 1, 0, 0);
}
static void version_4(struct image *m)
{
    put_header(m, 4, 0, 0);
}
static void big_endian(struct image *m)
{
    put_header(m, 0x03000000, 0, 0);
}
static void endless_keys(struct image *m)
{
    put_header(m, 3, 0, UINT64_MAX);
    put_data(m, 1, 100);
}
static void endless_tensors(struct image *m)
{
    put_header(m, 3, UINT64_MAX, 0);
    put_data(m, 1, 100);
}
static void more_keys_than_there_are(struct image *m)
{
    put_header(m, 3, 0, 2);
    put_key(m, "one", QN_GGUF_STRING);
    put_text(m, "some text to make room for a second key");
}
static void endless_key_name(struct image *m)
{
    put_header(m, 3, 0, 1);
    put64(m, UINT64_MAX);
    put_data(m, 1, 20);
}
static void endless_string(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "liar", QN_GGUF_STRING);
    put64(m, UINT64_MAX - 7);
}
static void string_one_too_long(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "liar", QN_GGUF_STRING);
    put64(m, 5);
    put(m, "four", 4);
}
static void unknown_value_type(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "strange", 13);
    put_data(m, 1, 20);
}
static void cut_value(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "cut", QN_GGUF_U64);
    put_data(m, 1, 7);
}
static void nested_array(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "nest", QN_GGUF_ARRAY);
    put32(m, QN_GGUF_ARRAY);
    put64(m, 1);
    put_data(m, 1, 20);
}
static void unknown_element_type(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "odd", QN_GGUF_ARRAY);
    put32(m, 99);
    put64(m, 1);
    put_data(m, 1, 20);
}
static void endless_array(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "long", QN_GGUF_ARRAY);
    put32(m, QN_GGUF_U64);
    put64(m, UINT64_MAX / 8 + 2); /* times 8 is 8, if it were let overflow */
    put_data(m, 1, 20);
}
static void endless_string_array(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "words", QN_GGUF_ARRAY);
    put32(m, QN_GGUF_STRING);
    put64(m, UINT64_MAX);
    put_data(m, 1, 20);
}
static void string_array_past_the_end(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "words", QN_GGUF_ARRAY);
    put32(m, QN_GGUF_STRING);
    put64(m, 2);
    put_text(m, "fits");
    put64(m, 3);
}
static void array_header_cut(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "stub", QN_GGUF_ARRAY);
    put32(m, QN_GGUF_U8);
}
static void duplicate_key(struct image *m)
{
    put_header(m, 3, 0, 3);
    for (int i = 0; i < 3; i++) {
        put_key(m, i == 1 ? "other" : "twin", QN_GGUF_U32);
        put32(m, 1);
    }
}
static void alignment_of(struct image *m, uint32_t alignment)
{
    put_header(m, 3, 0, 1);
    put_key(m, "general.alignment", QN_GGUF_U32);
    put32(m, alignment);
}
static void alignment_0(struct image *m)
{
    alignment_of(m, 0);
}
static void alignment_4(struct image *m)
{
    alignment_of(m, 4);
}
static void alignment_48(struct image *m)
{
    alignment_of(m, 48);
}
static void alignment_2m(struct image *m)
{
    alignment_of(m, 2 << 20);
}
static void alignment_text(struct image *m)
{
    put_header(m, 3, 0, 1);
    put_key(m, "general.alignment", QN_GGUF_STRING);
    put_text(m, "32");
}
static void tensor_of(struct image *m, uint32_t type, uint64_t offset, uint32_t n_dims, uint64_t d0, uint64_t d1, uint64_t d2,
                      uint64_t d3)
{
    put_header(m, 3, 1, 0);
    put_tensor(m, "w", type, offset, n_dims, d0, d1, d2, d3);
    put_data(m, 32, 256);
}
static void no_dimensions(struct image *m)
{
    tensor_of(m, 0, 0, 0, 0, 0, 0, 0);
}
static void five_dimensions(struct image *m)
{
    tensor_of(m, 0, 0, 5, 1, 1, 1, 1);
}
static void endless_dimensions(struct image *m)
{
    tensor_of(m, 0, 0, UINT32_MAX, 1, 1, 1, 1);
}
static void zero_dimension(struct image *m)
{
    tensor_of(m, 0, 0, 2, 4, 0, 1, 1);
}
static void overflowing_product(struct image *m)
{
    tensor_of(m, 0, 0, 4, 1ull << 16, 1ull << 16, 1ull << 16, 1ull << 16);
}
static void overflowing_bytes(struct image *m)
{
    tensor_of(m, 0, 0, 2, 1ull << 31, 1ull << 31, 1, 1);
}
static void huge_width(struct image *m)
{
    tensor_of(m, QN_TYPE_Q8_0, 0, 1, UINT64_MAX - 31, 1, 1, 1);
}
static void huge_type_42(struct image *m)
{
    tensor_of(m, QN_TYPE_Q2_0, 0, 2, 1ull << 31, 1ull << 31, 1, 1);
}
static void unknown_type(struct image *m)
{
    tensor_of(m, 39, 0, 1, 32, 1, 1, 1);
}
static void unlisted_type(struct image *m)
{
    tensor_of(m, 1042, 0, 1, 128, 1, 1, 1);
}
static void broken_block(struct image *m)
{
    tensor_of(m, QN_TYPE_Q4_0, 0, 1, 48, 1, 1, 1);
}
static void broken_block_42(struct image *m)
{
    tensor_of(m, QN_TYPE_Q2_0, 0, 1, 96, 1, 1, 1);
}
static void misaligned(struct image *m)
{
    tensor_of(m, 0, 16, 1, 4, 1, 1, 1);
}
static void past_the_end(struct image *m)
{
    tensor_of(m, 0, 224, 1, 9, 1, 1, 1);
}
static void far_past_the_end(struct image *m)
{
    tensor_of(m, 0, UINT64_MAX - 31, 1, 8, 1, 1, 1);
}
static void no_data(struct image *m)
{
    put_header(m, 3, 1, 0);
    put_tensor(m, "w", 0, 0, 1, 8, 1, 1, 1);
}
static void cut_dimensions(struct image *m)
{
    put_header(m, 3, 1, 0);
    put_text(m, "w");
    put32(m, 4);
    for (int i = 0; i < 3; i++)
        put64(m, 1);
}
static void two_tensors(struct image *m, const char *name, uint64_t offset)
{
    put_header(m, 3, 2, 0);
    put_tensor(m, "w", 0, 0, 1, 16, 1, 1, 1);
    put_tensor(m, name, 0, offset, 1, 16, 1, 1, 1);
    put_data(m, 32, 256);
}
static void overlapping(struct image *m)
{
    two_tensors(m, "v", 32);
}
static void same_place(struct image *m)
{
    two_tensors(m, "v", 0);
}
static void duplicate_tensor(struct image *m)
{
    two_tensors(m, "w", 64);
}
static void same_place_42(struct image *m)
{
    put_header(m, 3, 2, 0);
    put_tensor(m, "w", QN_TYPE_Q2_0, 32, 1, 64, 1, 1, 1);
    put_tensor(m, "v", QN_TYPE_Q2_0, 32, 1, 64, 1, 1, 1);
    put_data(m, 32, 256);
}

static const struct {
    const char *what;
    void (*build)(struct image *m);
    qn_status status;
    const char *fragment;
} hostile[] = {
    { "magic", bad_magic, QN_ERR_FORMAT, "not a GGUF file" },
    { "nothing", empty_image, QN_ERR_FORMAT, "not a GGUF file" },
    { "short header", short_header, QN_ERR_FORMAT, "too few" },
    { "version 1", version_1, QN_ERR_FORMAT, "version 1" },
    { "version 4", version_4, QN_ERR_FORMAT, "version 4" },
    { "big-endian", big_endian, QN_ERR_FORMAT, "big-endian" },
    { "2^64-1 keys", endless_keys, QN_ERR_FORMAT, "18446744073709551615 keys" },
    { "2^64-1 tensors", endless_tensors, QN_ERR_FORMAT, "18446744073709551615 tensors" },
    { "fewer keys than promised", more_keys_than_there_are, QN_ERR_FORMAT, "key 1 of 2" },
    { "endless key", endless_key_name, QN_ERR_FORMAT, "key 0 of 1" },
    { "endless string", endless_string, QN_ERR_FORMAT, "'liar'" },
    { "string one byte too long", string_one_too_long, QN_ERR_FORMAT, "'liar'" },
    { "unknown value type", unknown_value_type, QN_ERR_FORMAT, "'strange': unknown value type 13" },
    { "cut value", cut_value, QN_ERR_FORMAT, "'cut'" },
    { "nested array", nested_array, QN_ERR_UNSUPPORTED, "'nest': an array of arrays" },
    { "unknown element type", unknown_element_type, QN_ERR_FORMAT, "'odd': an array of unknown type 99" },
    { "overflowing array", endless_array, QN_ERR_FORMAT, "'long'" },
    { "endless array of strings", endless_string_array, QN_ERR_FORMAT, "'words'" },
    { "string of an array past the end", string_array_past_the_end, QN_ERR_FORMAT, "'words': string 1 of 2" },
    { "cut array", array_header_cut, QN_ERR_FORMAT, "'stub'" },
    { "duplicate key", duplicate_key, QN_ERR_FORMAT, "key 'twin' appears twice" },
    { "alignment 0", alignment_0, QN_ERR_FORMAT, "general.alignment is 0" },
    { "alignment 4", alignment_4, QN_ERR_FORMAT, "general.alignment is 4" },
    { "alignment 48", alignment_48, QN_ERR_FORMAT, "general.alignment is 48" },
    { "alignment 2 MiB", alignment_2m, QN_ERR_FORMAT, "general.alignment is 2097152" },
    { "alignment of another type", alignment_text, QN_ERR_FORMAT, "'general.alignment' is of type string" },
    { "no dimensions", no_dimensions, QN_ERR_FORMAT, "'w' has 0 dimensions" },
    { "5 dimensions", five_dimensions, QN_ERR_FORMAT, "'w' has 5 dimensions" },
    { "2^32-1 dimensions", endless_dimensions, QN_ERR_FORMAT, "'w' has 4294967295 dimensions" },
    { "dimension 0", zero_dimension, QN_ERR_FORMAT, "'w': dimension 1 is 0" },
    { "overflowing product", overflowing_product, QN_ERR_FORMAT, "'w': the product of its dimensions overflows" },
    { "overflowing bytes", overflowing_bytes, QN_ERR_FORMAT, "'w'" },
    { "huge width", huge_width, QN_ERR_FORMAT, "'w'" },
    { "huge tensor of type 42", huge_type_42, QN_ERR_FORMAT, "'w'" },
    { "unknown type", unknown_type, QN_ERR_UNSUPPORTED, "'w' has type number 39" },
    { "quern's own number", unlisted_type, QN_ERR_UNSUPPORTED, "'w' has type number 1042" },
    { "broken block", broken_block, QN_ERR_FORMAT, "'w': rows of 48 weights" },
    { "broken block of type 42", broken_block_42, QN_ERR_FORMAT, "'w'" },
    { "misaligned", misaligned, QN_ERR_FORMAT, "'w': offset 16" },
    { "past the end", past_the_end, QN_ERR_FORMAT, "'w': 36 bytes at offset 224" },
    { "far past the end", far_past_the_end, QN_ERR_FORMAT, "'w'" },
    { "no data", no_data, QN_ERR_FORMAT, "data begin at byte" },
    { "cut dimensions", cut_dimensions, QN_ERR_FORMAT, "'w': the file ends" },
    { "overlap", overlapping, QN_ERR_FORMAT, "'w' at offset 0 overlaps 'v' at offset 32" },
    { "same place", same_place, QN_ERR_FORMAT, "overlaps" },
    { "duplicate tensor", duplicate_tensor, QN_ERR_FORMAT, "tensor 'w' appears twice" },
    { "same place, type 42", same_place_42, QN_ERR_FORMAT, "overlaps" },
};

static void hostile_files(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof hostile / sizeof hostile[0]; i++) {
        struct image m = { 0 };
        uint8_t *copy;
        qn_gguf *file = (qn_gguf *)&m;
        hostile[i].build(&m);
        const qn_status status = open_image(&m, &file, &copy);
        if (status != hostile[i].status || file || !strstr(qn_error_text(), hostile[i].fragment) ||
            strncmp(qn_error_text(), "image: ", 7) != 0)
            fail_msg("%s: status %d, '%s'", hostile[i].what, (int)status, qn_error_text());
        free(copy);
        free(m.data);
    }
}

/* ---- Sound files ---- */

/* One of everything. */
static void rich_image(struct image *m, uint32_t version)
{
    put_header(m, version, 3, 15);
    put_key(m, "u8", QN_GGUF_U8), put(m, "\xff", 1);
    put_key(m, "i8", QN_GGUF_I8), put(m, "\xff", 1);
    put_key(m, "u16", QN_GGUF_U16), put(m, "\xff\xff", 2);
    put_key(m, "i16", QN_GGUF_I16), put(m, "\xfe\xff", 2);
    put_key(m, "u32", QN_GGUF_U32), put32(m, UINT32_MAX);
    put_key(m, "i32", QN_GGUF_I32), put32(m, (uint32_t)-5);
    const float pi = 3.25f, nan = NAN;
    put_key(m, "f32", QN_GGUF_F32), put(m, &pi, 4);
    put_key(m, "nan", QN_GGUF_F32), put(m, &nan, 4);
    put_key(m, "yes", QN_GGUF_BOOL), put(m, "\1", 1);
    put_key(m, "perhaps", QN_GGUF_BOOL), put(m, "\2", 1);
    put_key(m, "text", QN_GGUF_STRING), put_text(m, "some text");
    put_key(m, "u64", QN_GGUF_U64), put64(m, UINT64_MAX);
    const double large = 1e300;
    put_key(m, "f64", QN_GGUF_F64), put(m, &large, 8);
    put_key(m, "words", QN_GGUF_ARRAY), put32(m, QN_GGUF_STRING), put64(m, 3);
    put_text(m, "a"), put_text(m, ""), put_text(m, "ccc");
    put_key(m, "numbers", QN_GGUF_ARRAY), put32(m, QN_GGUF_I16), put64(m, 2), put(m, "\1\0\xff\xff", 4);
    /* not in the order of their data */
    put_tensor(m, "second", QN_TYPE_F32, 64, 2, 3, 5, 1, 1);
    put_tensor(m, "first", QN_TYPE_F16, 0, 1, 32, 1, 1, 1);
    put_tensor(m, "third", QN_TYPE_Q8_0, 128, 4, 32, 2, 1, 2);
    put_data(m, 32, 128 + 4 * 34); /* the last tensor is not padded: some writers leave that out */
}

static void sound_file(void **state)
{
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        struct image m = { 0 };
        uint8_t *copy;
        qn_gguf *file;
        rich_image(&m, version);
        if (open_image(&m, &file, &copy))
            fail_msg("%s", qn_error_text());
        assert_int_equal(qn_gguf_n_kv(file), 15);
        assert_int_equal(qn_gguf_n_tensors(file), 3);
        assert_int_equal(qn_gguf_alignment(file), 32);
        assert_int_equal(qn_gguf_file_size(file), m.size);
        assert_string_equal(qn_gguf_path(file), "image");
        assert_null(qn_gguf_q2_layout(file));
        assert_null(qn_gguf_find(file, "u"));
        assert_null(qn_gguf_kv_at(file, 15));
        assert_null(qn_gguf_tensor_at(file, 3));
        assert_true(qn_string_equals(qn_gguf_kv_at(file, 10)->key, "text"));

        const qn_gguf_tensor *t = qn_gguf_find_tensor(file, "third");
        assert_non_null(t);
        assert_ptr_equal(t, qn_gguf_tensor_at(file, 2));
        assert_int_equal(t->type, QN_TYPE_Q8_0);
        assert_int_equal(t->n_dims, 4);
        assert_int_equal(t->dims[0], 32);
        assert_int_equal(t->dims[3], 2);
        assert_int_equal(t->bytes, 4 * 34);
        assert_ptr_equal(t->data + t->bytes, copy + m.size);
        assert_int_equal(qn_gguf_find_tensor(file, "second")->dims[2], 1);
        assert_null(qn_gguf_find_tensor(file, "fourth"));
        qn_gguf_close(file);

        for (size_t cut = 0; cut < m.size; cut++) { /* no shorter piece of it is a file */
            const struct image part = { m.data, cut, cut };
            uint8_t *part_copy;
            assert_int_equal(open_image(&part, &file, &part_copy), QN_ERR_FORMAT);
            free(part_copy);
        }
        free(copy);
        free(m.data);
    }
}

static void look_ups(void **state)
{
    (void)state;
    struct image m = { 0 };
    uint8_t *copy;
    qn_gguf *file;
    rich_image(&m, 3);
    assert_int_equal(open_image(&m, &file, &copy), QN_OK);
    uint32_t u = 77;
    float f = 77.0f;
    bool b = false;
    qn_string s = { 0 };
    assert_int_equal(qn_gguf_get_u32(file, "absent", false, &u), QN_OK);
    assert_int_equal(u, 77);
    assert_int_equal(qn_gguf_get_u32(file, "absent", true, &u), QN_ERR_FORMAT);
    assert_non_null(strstr(qn_error_text(), "'absent' is missing"));
    assert_int_equal(qn_gguf_get_u32(file, "u8", true, &u), QN_OK);
    assert_int_equal(u, 255);
    assert_int_equal(qn_gguf_get_u32(file, "u16", true, &u), QN_OK);
    assert_int_equal(u, 65535);
    assert_int_equal(qn_gguf_get_u32(file, "u32", true, &u), QN_OK);
    assert_int_equal(u, UINT32_MAX);
    static const char *const out_of_range[] = { "i8", "i16", "i32", "u64", "f32", "yes", "text", "words" };
    for (size_t i = 0; i < sizeof out_of_range / sizeof out_of_range[0]; i++) {
        assert_int_equal(qn_gguf_get_u32(file, out_of_range[i], false, &u), QN_ERR_FORMAT);
        assert_non_null(strstr(qn_error_text(), out_of_range[i]));
    }
    assert_int_equal(u, UINT32_MAX);

    assert_int_equal(qn_gguf_get_f32(file, "f32", true, &f), QN_OK);
    assert_true(f == 3.25f);
    assert_int_equal(qn_gguf_get_f32(file, "nan", true, &f), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_get_f32(file, "f64", true, &f), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_get_f32(file, "u8", true, &f), QN_ERR_FORMAT);
    assert_true(f == 3.25f);

    assert_int_equal(qn_gguf_get_bool(file, "yes", true, &b), QN_OK);
    assert_true(b);
    assert_int_equal(qn_gguf_get_bool(file, "perhaps", true, &b), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_get_bool(file, "u8", true, &b), QN_ERR_FORMAT);

    assert_int_equal(qn_gguf_get_string(file, "text", true, &s), QN_OK);
    assert_true(qn_string_equals(s, "some text"));
    assert_false(qn_string_equals(s, "some tex"));
    assert_int_equal(qn_gguf_get_string(file, "words", true, &s), QN_ERR_FORMAT);

    qn_string *words;
    assert_int_equal(qn_gguf_array_strings(file, qn_gguf_find(file, "words"), &words), QN_OK);
    assert_true(qn_string_equals(words[0], "a") && words[1].length == 0 && qn_string_equals(words[2], "ccc"));
    free(words);
    assert_int_equal(qn_gguf_array_strings(file, qn_gguf_find(file, "numbers"), &words), QN_ERR_FORMAT);
    assert_null(words);

    int32_t i = 77;
    const qn_gguf_kv *numbers = qn_gguf_find(file, "numbers");
    assert_int_equal(qn_gguf_array_i32(file, numbers, 1, &i), QN_OK);
    assert_int_equal(i, -1);
    assert_int_equal(qn_gguf_array_f32(file, numbers, 1, &f), QN_OK);
    assert_true(f == -1.0f);
    assert_int_equal(qn_gguf_array_i32(file, numbers, 2, &i), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_i32(file, qn_gguf_find(file, "words"), 0, &i), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_f32(file, qn_gguf_find(file, "text"), 0, &f), QN_ERR_FORMAT);
    qn_gguf_close(file);
    free(copy);
    free(m.data);
}

static void array_elements_keep_their_range(void **state)
{
    (void)state;
    struct image m = { 0 };
    uint8_t *copy;
    qn_gguf *file;
    put_header(&m, 3, 0, 3);
    put_key(&m, "u32", QN_GGUF_ARRAY), put32(&m, QN_GGUF_U32), put64(&m, 2), put32(&m, INT32_MAX), put32(&m, 1u << 31);
    const float floats[] = { 1.5f, INFINITY };
    put_key(&m, "f32", QN_GGUF_ARRAY), put32(&m, QN_GGUF_F32), put64(&m, 2), put(&m, floats, sizeof floats);
    put_key(&m, "i64", QN_GGUF_ARRAY), put32(&m, QN_GGUF_I64), put64(&m, 1), put64(&m, 1ull << 40);
    assert_int_equal(open_image(&m, &file, &copy), QN_OK);
    int32_t i;
    float f;
    assert_int_equal(qn_gguf_array_i32(file, qn_gguf_find(file, "u32"), 0, &i), QN_OK);
    assert_int_equal(i, INT32_MAX);
    assert_int_equal(qn_gguf_array_i32(file, qn_gguf_find(file, "u32"), 1, &i), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_f32(file, qn_gguf_find(file, "f32"), 0, &f), QN_OK);
    assert_true(f == 1.5f);
    assert_int_equal(qn_gguf_array_f32(file, qn_gguf_find(file, "f32"), 1, &f), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_i32(file, qn_gguf_find(file, "f32"), 0, &i), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_i32(file, qn_gguf_find(file, "i64"), 0, &i), QN_ERR_FORMAT);
    assert_int_equal(qn_gguf_array_f32(file, qn_gguf_find(file, "i64"), 0, &f), QN_OK);
    assert_true(f == 0x1p40f);
    qn_gguf_close(file);
    free(copy);
    free(m.data);
}

static void wide_alignment(void **state)
{
    (void)state;
    for (int wrong = 0; wrong < 2; wrong++) {
        struct image m = { 0 };
        uint8_t *copy;
        qn_gguf *file;
        put_header(&m, 3, 2, 1);
        put_key(&m, "general.alignment", QN_GGUF_U32), put32(&m, 128);
        put_tensor(&m, "a", QN_TYPE_F32, 0, 1, 3, 1, 1, 1);
        put_tensor(&m, "b", QN_TYPE_F32, wrong ? 32 : 128, 1, 3, 1, 1, 1);
        put_data(&m, 128, 140);
        assert_int_equal(open_image(&m, &file, &copy), wrong ? QN_ERR_FORMAT : QN_OK);
        if (!wrong) {
            assert_int_equal(qn_gguf_alignment(file), 128);
            assert_int_equal((qn_gguf_find_tensor(file, "a")->data - copy) % 128, 0);
        }
        qn_gguf_close(file);
        free(copy);
        free(m.data);
    }
}

/* Type 42 as other programs write it, seen through offsets alone. */
static void type_42_in_a_file(void **state)
{
    (void)state;
    static const qn_type layouts[] = { QN_TYPE_Q2_0, QN_TYPE_PQ2_0, QN_TYPE_OX2_0 };
    for (size_t k = 0; k < 3; k++) {
        struct image m = { 0 };
        uint8_t *copy;
        qn_gguf *file;
        const qn_type_info *info = qn_type_find((uint32_t)layouts[k]);
        const size_t bytes = 128 * 20 / info->block_weights * info->block_bytes, padded = (bytes + 31) / 32 * 32;
        put_header(&m, 3, 3, 0);
        put_tensor(&m, "last", QN_TYPE_Q2_0, 32 + padded, 2, 256, 10, 1, 1);
        put_tensor(&m, "norm", QN_TYPE_F32, padded, 1, 8, 1, 1, 1);
        put_tensor(&m, "first", QN_TYPE_Q2_0, 0, 2, 128, 20, 1, 1);
        put_data(&m, 32, 2 * padded + 32);
        uint8_t *data = m.data + m.size - 2 * padded - 32;
        for (size_t i = 0; i < 2 * (bytes / info->block_bytes); i++) {
            uint8_t *block =
                data + (i < bytes / info->block_bytes ? 0 : 32 + padded) + i % (bytes / info->block_bytes) * info->block_bytes;
            memset(block, 0x84, info->block_bytes); /* codes 0, 1, 0, 2: negative as a scale */
            memcpy(layouts[k] == QN_TYPE_OX2_0 ? block + 32 : block, "\0\x3c", 2);
        }
        if (open_image(&m, &file, &copy))
            fail_msg("%s", qn_error_text());
        assert_int_equal(qn_gguf_find_tensor(file, "first")->type, layouts[k]);
        assert_int_equal(qn_gguf_find_tensor(file, "first")->bytes, bytes);
        assert_int_equal(qn_gguf_find_tensor(file, "last")->type, layouts[k]);
        assert_int_equal(qn_gguf_find_tensor(file, "last")->bytes, bytes);
        assert_non_null(qn_gguf_q2_layout(file));
        float weights[128];
        info->decode(qn_gguf_find_tensor(file, "last")->data, 128 / info->block_weights, weights);
        assert_true(weights[0] == -1.0f && weights[1] == 0.0f && weights[2] == -1.0f && weights[3] == 1.0f);
        qn_gguf_close(file);
        free(copy);
        free(m.data);
    }
}

/* Names that a terminal would obey are shown harmless, and a name as long as the file is cut. */
static void nasty_names(void **state)
{
    (void)state;
    struct image m = { 0 };
    uint8_t *copy;
    qn_gguf *file;
    put_header(&m, 3, 1, 0);
    put_tensor(&m, "\033[2Jw\nx", 99, 0, 1, 1, 1, 1, 1);
    assert_int_equal(open_image(&m, &file, &copy), QN_ERR_UNSUPPORTED);
    assert_null(strpbrk(qn_error_text(), "\033\n"));
    free(copy);
    m.size = 0;
    put_header(&m, 3, 0, 2);
    for (int i = 0; i < 2; i++) {
        put64(&m, 3000000000u % 100000);
        put_data(&m, 1, 3000000000u % 100000);
        put32(&m, 0);
        put(&m, "x", 1);
    }
    assert_int_equal(open_image(&m, &file, &copy), QN_ERR_FORMAT);
    free(copy);
    free(m.data);
}

/* 300 000 keys and as many tensors in well under the seconds that comparing each with each would take (10^11 comparisons). */
static void many_names(void **state)
{
    (void)state;
    enum { COUNT = 300000 };
    struct image m = { 0 };
    uint8_t *copy;
    qn_gguf *file;
    char name[32];
    put_header(&m, 3, COUNT, COUNT);
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "key.%d", i);
        put_key(&m, name, QN_GGUF_U8), put(&m, "", 1);
    }
    for (int i = 0; i < COUNT; i++) {
        snprintf(name, sizeof name, "tensor.%d", i);
        put_tensor(&m, name, QN_TYPE_F32, (uint64_t)(COUNT - 1 - i) * 32, 1, 1, 1, 1, 1);
    }
    put_data(&m, 32, (size_t)COUNT * 32);
    struct timespec a, b;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &a);
    assert_int_equal(open_image(&m, &file, &copy), QN_OK);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &b);
    assert_true(b.tv_sec - a.tv_sec < 10);
    assert_non_null(qn_gguf_find(file, "key.299999"));
    assert_non_null(qn_gguf_find_tensor(file, "tensor.0"));
    qn_gguf_close(file);
    free(copy);
    free(m.data);
}

/* ---- Files on disk ---- */

static char folder[] = "/tmp/quern-test-gguf-XXXXXX";

static const char *in_folder(const char *name)
{
    static char path[512];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int files_in_folder(void)
{
    DIR *d = opendir(folder);
    assert_non_null(d);
    int n = 0;
    for (const struct dirent *e; (e = readdir(d));)
        n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    closedir(d);
    return n;
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state)
{
    (void)state;
    return rmdir(folder);
}

static void not_files(void **state)
{
    (void)state;
    qn_gguf *file = NULL;
    char path[512];
    snprintf(path, sizeof path, "%s", in_folder("empty"));
    fclose(fopen(path, "w"));
    assert_int_equal(qn_gguf_open(path, &file), QN_ERR_IO);
    assert_non_null(strstr(qn_error_text(), "empty"));
    unlink(path);
    assert_int_equal(qn_gguf_open(path, &file), QN_ERR_IO);
    assert_non_null(strstr(qn_error_text(), "No such file"));
    assert_int_equal(qn_gguf_open(folder, &file), QN_ERR_IO);
    assert_non_null(strstr(qn_error_text(), "directory"));
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(qn_gguf_open(path, &file), QN_ERR_IO); /* and returns, though nobody writes */
    unlink(path);
    assert_int_equal(qn_gguf_open("/dev/null", &file), QN_ERR_IO);
    assert_null(file);
}

static void write_and_read(void **state)
{
    (void)state;
    struct image m = { 0 };
    uint8_t *copy;
    qn_gguf *source, *file;
    rich_image(&m, 2);
    assert_int_equal(open_image(&m, &source, &copy), QN_OK);

    qn_gguf_writer *w;
    const char *path = in_folder("written.gguf");
    assert_int_equal(qn_gguf_writer_create(path, &w), QN_OK);
    assert_int_equal(strncmp(qn_gguf_writer_temporary(w), in_folder(".written.gguf."), strlen(folder) + 15), 0);
    path = in_folder("written.gguf");
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(qn_gguf_writer_add_string(w, "added.text", "hello"), QN_OK);
    assert_int_equal(qn_gguf_writer_add_u32(w, "added.u32", 123456), QN_OK);
    assert_int_equal(qn_gguf_writer_add_f32(w, "added.f32", -0.125f), QN_OK);
    for (size_t i = 0; i < qn_gguf_n_kv(source); i++)
        assert_int_equal(qn_gguf_writer_copy(w, qn_gguf_kv_at(source, i)), QN_OK);
    uint8_t bytes[1000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 7);
    const uint64_t dims[] = { 25, 10 };
    assert_int_equal(qn_gguf_writer_add_tensor(w, (qn_string){ "odd", 3 }, QN_TYPE_F16, 1, dims, 50), QN_OK);
    assert_int_equal(qn_gguf_writer_add_tensor(w, (qn_string){ "matrix", 6 }, QN_TYPE_F32, 2, dims, 1000), QN_OK);
    assert_int_equal(qn_gguf_writer_data(w, bytes, 1), QN_ERR_INVALID); /* not begun */
    assert_int_equal(qn_gguf_writer_begin_data(w), QN_OK);
    assert_int_equal(qn_gguf_writer_add_u32(w, "late", 1), QN_ERR_INVALID);
    assert_int_equal(qn_gguf_writer_data(w, bytes, 20), QN_OK);
    assert_int_equal(qn_gguf_writer_data(w, bytes + 20, 30), QN_OK);
    assert_int_equal(qn_gguf_writer_data(w, bytes, 999), QN_OK);
    assert_int_equal(qn_gguf_writer_finish(w), QN_ERR_INVALID); /* a byte is missing */
    assert_int_equal(qn_gguf_writer_data(w, bytes + 999, 1), QN_OK);
    assert_int_equal(qn_gguf_writer_data(w, bytes, 1), QN_ERR_INVALID);
    assert_int_equal(access(path, F_OK), -1);
    assert_int_equal(qn_gguf_writer_finish(w), QN_OK);
    qn_gguf_writer_free(w);
    assert_int_equal(files_in_folder(), 1);

    if (qn_gguf_open(path, &file))
        fail_msg("%s", qn_error_text());
    assert_int_equal(qn_gguf_file_size(file) % 32, 0); /* the last tensor is padded: readers exist that count on it */
    assert_int_equal(qn_gguf_n_kv(file), 18);
    for (size_t i = 0; i < qn_gguf_n_kv(source); i++) {
        const qn_gguf_kv *a = qn_gguf_kv_at(source, i), *b = qn_gguf_kv_at(file, i + 3);
        assert_true(a->type == b->type && a->element_type == b->element_type && a->count == b->count && a->bytes == b->bytes);
        assert_true(a->key.length == b->key.length && memcmp(a->key.data, b->key.data, a->key.length) == 0);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    uint32_t u;
    float f;
    qn_string s;
    assert_int_equal(qn_gguf_get_u32(file, "added.u32", true, &u), QN_OK);
    assert_int_equal(qn_gguf_get_f32(file, "added.f32", true, &f), QN_OK);
    assert_int_equal(qn_gguf_get_string(file, "added.text", true, &s), QN_OK);
    assert_true(u == 123456 && f == -0.125f && qn_string_equals(s, "hello"));
    const qn_gguf_tensor *t = qn_gguf_find_tensor(file, "matrix");
    assert_true(t->bytes == 1000 && t->n_dims == 2 && t->dims[0] == 25 && t->dims[1] == 10 && t->type == QN_TYPE_F32);
    assert_memory_equal(t->data, bytes, 1000);
    assert_memory_equal(qn_gguf_find_tensor(file, "odd")->data, bytes, 50);
    qn_gguf_close(file);
    qn_gguf_close(source);
    unlink(path);
    free(copy);
    free(m.data);
}

static void writing_leaves_the_target_alone(void **state)
{
    (void)state;
    char path[512], link[512];
    snprintf(path, sizeof path, "%s", in_folder("target"));
    snprintf(link, sizeof link, "%s", in_folder("link"));
    FILE *old = fopen(path, "w");
    assert_non_null(old);
    fputs("precious", old);
    fclose(old);
    assert_int_equal(chmod(path, 0640), 0);

    qn_gguf_writer *w;
    assert_int_equal(qn_gguf_writer_create(path, &w), QN_OK);
    assert_int_equal(qn_gguf_writer_begin_data(w), QN_OK);
    assert_int_equal(files_in_folder(), 2);
    qn_gguf_writer_free(w); /* given up */
    assert_int_equal(files_in_folder(), 1);
    char text[16] = "";
    old = fopen(path, "r");
    assert_non_null(fgets(text, sizeof text, old));
    fclose(old);
    assert_string_equal(text, "precious");

    /* through a symbolic link, which stays one; the permissions stay too */
    assert_int_equal(symlink("target", link), 0);
    assert_int_equal(qn_gguf_writer_create(link, &w), QN_OK);
    assert_int_equal(qn_gguf_writer_begin_data(w), QN_OK);
    assert_int_equal(qn_gguf_writer_finish(w), QN_OK);
    qn_gguf_writer_free(w);
    struct stat st;
    assert_int_equal(lstat(link, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    qn_gguf *file;
    assert_int_equal(qn_gguf_open(path, &file), QN_OK);
    qn_gguf_close(file);
    unlink(link);
    unlink(path);

    assert_int_equal(qn_gguf_writer_create(folder, &w), QN_ERR_IO);
    assert_int_equal(qn_gguf_writer_create("/dev/null", &w), QN_ERR_IO);
    assert_int_equal(qn_gguf_writer_create(in_folder("absent/file"), &w), QN_ERR_IO);
    assert_int_equal(qn_gguf_writer_create("", &w), QN_ERR_IO);
    assert_null(w);
    assert_int_equal(files_in_folder(), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hostile_files),
        cmocka_unit_test(sound_file),
        cmocka_unit_test(look_ups),
        cmocka_unit_test(array_elements_keep_their_range),
        cmocka_unit_test(wide_alignment),
        cmocka_unit_test(type_42_in_a_file),
        cmocka_unit_test(nasty_names),
        cmocka_unit_test(many_names),
        cmocka_unit_test(not_files),
        cmocka_unit_test(write_and_read),
        cmocka_unit_test(writing_leaves_the_target_alone),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
