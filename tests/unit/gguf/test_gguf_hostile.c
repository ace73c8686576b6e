/* Damaged, truncated and crafted GGUF files: each is rejected with the expected status and a text that names the key or
 * tensor. */
#include "helper_image.h"

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
    put_text(m, "some text in place of a second key");
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
    put64(m, UINT64_MAX / 8 + 2); /* times 8 overflows to 8 */
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
static void key_with_nul(struct image *m)
{
    put_header(m, 3, 0, 1);
    put64(m, 7);
    put(m, "nul\0key", 7);
    put32(m, QN_GGUF_U8);
    put_data(m, 1, 20);
}
static void tensor_with_nul(struct image *m)
{
    put_header(m, 3, 1, 0);
    put64(m, 5);
    put(m, "w\0\0\0\0", 5);
    put32(m, 1);
    put64(m, 8);
    put32(m, QN_TYPE_F32);
    put64(m, 0);
    put_data(m, 32, 32);
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
static void tensor_of(struct image *m, uint32_t type, uint64_t offset, uint32_t n_dims, uint64_t d0, uint64_t d1,
                      uint64_t d2, uint64_t d3)
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
    { "key with a NUL", key_with_nul, QN_ERR_FORMAT, "key 'nul' has a NUL" },
    { "tensor with a NUL", tensor_with_nul, QN_ERR_FORMAT, "tensor 'w' has a NUL" },
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
    { "broken block", broken_block, QN_ERR_FORMAT, "'w': the row length 48" },
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

TEST(hostile_files)
{
    for (size_t i = 0; i < COUNT(hostile); i++) {
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
