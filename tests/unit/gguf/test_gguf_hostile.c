/* Damaged, truncated and crafted GGUF files: each is rejected with the expected status and a text that names the key or
 * tensor. */
#include "helper_image.h"

enum { MAX_PIECES = 16 };

/* A piece of a file, in the order in which they are put. */
struct piece {
    enum { NO_PIECE, PUT_BYTES, PUT_TEXT, PUT_32, PUT_64, PUT_ZEROS, PUT_DATA } kind;
    const char *text;
    uint64_t value; /* a number, or the length of the text */
};

/* TEXT has its length before it; DATA are zeros after padding. */
#define BYTES(bytes)                                                                                                   \
    {                                                                                                                  \
        PUT_BYTES, bytes, sizeof bytes - 1                                                                             \
    }
#define TEXT(text)                                                                                                     \
    {                                                                                                                  \
        PUT_TEXT, text, sizeof text - 1                                                                                \
    }
#define U32(value)                                                                                                     \
    {                                                                                                                  \
        PUT_32, NULL, value                                                                                            \
    }
#define U64(value)                                                                                                     \
    {                                                                                                                  \
        PUT_64, NULL, value                                                                                            \
    }
#define ZEROS(n)                                                                                                       \
    {                                                                                                                  \
        PUT_ZEROS, NULL, n                                                                                             \
    }
#define DATA(n)                                                                                                        \
    {                                                                                                                  \
        PUT_DATA, NULL, n                                                                                              \
    }
#define HEADER(version, n_tensors, n_keys) BYTES("GGUF"), U32(version), U64(n_tensors), U64(n_keys)
#define KEYS(n) HEADER(3, 0, n)
#define KEY(name, type) TEXT(name), U32(type)
#define ALIGNMENT(value) KEYS(1), KEY("general.alignment", QN_GGUF_U32), U32(value)
#define TENSORS(n) HEADER(3, n, 0)
#define VECTOR(name, type, offset, width) TEXT(name), U32(1), U64(width), U32(type), U64(offset)
#define MATRIX(name, type, offset, width, rows) TEXT(name), U32(2), U64(width), U64(rows), U32(type), U64(offset)
#define TWO_VECTORS(name, offset) TENSORS(2), VECTOR("w", QN_TYPE_F32, 0, 16), VECTOR(name, QN_TYPE_F32, offset, 16)

static const struct {
    const char *what;
    qn_status status;
    const char *fragment;
    struct piece pieces[MAX_PIECES];
} hostile[] = {
    { "magic", QN_ERR_FORMAT, "not a GGUF file", { BYTES("GGML"), ZEROS(100) } },
    { "pointer",
      QN_ERR_FORMAT,
      "git lfs pull",
      { BYTES("version https://git-lfs.github.com/spec/v1\noid sha256:4d7a21\nsize 12345\n") } },
    { "another version", QN_ERR_FORMAT, "not a GGUF file", { BYTES("version https://git-lfs.github.com/spec/v") } },
    { "nothing", QN_ERR_FORMAT, "not a GGUF file", { { .kind = NO_PIECE } } },
    { "short header", QN_ERR_FORMAT, "too few", { BYTES("GGUF\3\0\0\0") } },
    { "version 1", QN_ERR_FORMAT, "version 1", { HEADER(1, 0, 0) } },
    { "version 4", QN_ERR_FORMAT, "version 4", { HEADER(4, 0, 0) } },
    { "big-endian", QN_ERR_FORMAT, "big-endian", { HEADER(0x03000000, 0, 0) } },
    { "2^64-1 keys", QN_ERR_FORMAT, "18446744073709551615 keys", { KEYS(UINT64_MAX), ZEROS(100) } },
    { "2^64-1 tensors", QN_ERR_FORMAT, "18446744073709551615 tensors", { TENSORS(UINT64_MAX), ZEROS(100) } },
    { "fewer keys than promised",
      QN_ERR_FORMAT,
      "key 1 of 2",
      { KEYS(2), KEY("one", QN_GGUF_STRING), TEXT("some text in place of a second key") } },
    { "endless key", QN_ERR_FORMAT, "key 0 of 1", { KEYS(1), U64(UINT64_MAX), ZEROS(20) } },
    { "endless string", QN_ERR_FORMAT, "'liar'", { KEYS(1), KEY("liar", QN_GGUF_STRING), U64(UINT64_MAX - 7) } },
    { "string one byte too long",
      QN_ERR_FORMAT,
      "'liar'",
      { KEYS(1), KEY("liar", QN_GGUF_STRING), U64(5), BYTES("four") } },
    { "unknown value type",
      QN_ERR_FORMAT,
      "'strange': unknown value type 13",
      { KEYS(1), KEY("strange", 13), ZEROS(20) } },
    { "cut value", QN_ERR_FORMAT, "'cut'", { KEYS(1), KEY("cut", QN_GGUF_U64), ZEROS(7) } },
    { "nested array",
      QN_ERR_UNSUPPORTED,
      "'nest': an array of arrays",
      { KEYS(1), KEY("nest", QN_GGUF_ARRAY), U32(QN_GGUF_ARRAY), U64(1), ZEROS(20) } },
    { "unknown element type",
      QN_ERR_FORMAT,
      "'odd': an array of unknown type 99",
      { KEYS(1), KEY("odd", QN_GGUF_ARRAY), U32(99), U64(1), ZEROS(20) } },
    { "overflowing array",
      QN_ERR_FORMAT,
      "'long'",
      { KEYS(1), KEY("long", QN_GGUF_ARRAY), U32(QN_GGUF_U64), U64(UINT64_MAX / 8 + 2) /* times 8 overflows to 8 */,
        ZEROS(20) } },
    { "endless array of strings",
      QN_ERR_FORMAT,
      "'words'",
      { KEYS(1), KEY("words", QN_GGUF_ARRAY), U32(QN_GGUF_STRING), U64(UINT64_MAX), ZEROS(20) } },
    { "string of an array past the end",
      QN_ERR_FORMAT,
      "'words': string 1 of 2",
      { KEYS(1), KEY("words", QN_GGUF_ARRAY), U32(QN_GGUF_STRING), U64(2), TEXT("fits"), U64(3) } },
    { "cut array", QN_ERR_FORMAT, "'stub'", { KEYS(1), KEY("stub", QN_GGUF_ARRAY), U32(QN_GGUF_U8) } },
    { "key with a NUL", QN_ERR_FORMAT, "key 'nul' has a NUL", { KEYS(1), KEY("nul\0key", QN_GGUF_U8), ZEROS(20) } },
    { "tensor with a NUL",
      QN_ERR_FORMAT,
      "tensor 'w' has a NUL",
      { TENSORS(1), VECTOR("w\0\0\0\0", QN_TYPE_F32, 0, 8), DATA(32) } },
    { "duplicate key",
      QN_ERR_FORMAT,
      "key 'twin' appears twice",
      { KEYS(3), KEY("twin", QN_GGUF_U32), U32(1), KEY("other", QN_GGUF_U32), U32(1), KEY("twin", QN_GGUF_U32),
        U32(1) } },
    { "alignment 0", QN_ERR_FORMAT, "general.alignment is 0", { ALIGNMENT(0) } },
    { "alignment 4", QN_ERR_FORMAT, "general.alignment is 4", { ALIGNMENT(4) } },
    { "alignment 48", QN_ERR_FORMAT, "general.alignment is 48", { ALIGNMENT(48) } },
    { "alignment 2 MiB", QN_ERR_FORMAT, "general.alignment is 2097152", { ALIGNMENT(2 << 20) } },
    { "alignment of another type",
      QN_ERR_FORMAT,
      "'general.alignment' is of type string",
      { KEYS(1), KEY("general.alignment", QN_GGUF_STRING), TEXT("32") } },
    { "no dimensions",
      QN_ERR_FORMAT,
      "'w' has 0 dimensions",
      { TENSORS(1), TEXT("w"), U32(0), U32(QN_TYPE_F32), U64(0), DATA(256) } },
    { "5 dimensions",
      QN_ERR_FORMAT,
      "'w' has 5 dimensions",
      { TENSORS(1), TEXT("w"), U32(5), U64(1), U64(1), U64(1), U64(1), U32(QN_TYPE_F32), U64(0), DATA(256) } },
    { "2^32-1 dimensions",
      QN_ERR_FORMAT,
      "'w' has 4294967295 dimensions",
      { TENSORS(1), TEXT("w"), U32(UINT32_MAX), U64(1), U64(1), U64(1), U64(1), U32(QN_TYPE_F32), U64(0), DATA(256) } },
    { "dimension 0",
      QN_ERR_FORMAT,
      "'w': dimension 1 is 0",
      { TENSORS(1), MATRIX("w", QN_TYPE_F32, 0, 4, 0), DATA(256) } },
    { "overflowing product",
      QN_ERR_FORMAT,
      "'w': the product of its dimensions overflows",
      { TENSORS(1), TEXT("w"), U32(4), U64(1 << 16), U64(1 << 16), U64(1 << 16), U64(1 << 16), U32(QN_TYPE_F32), U64(0),
        DATA(256) } },
    { "overflowing bytes",
      QN_ERR_FORMAT,
      "'w'",
      { TENSORS(1), MATRIX("w", QN_TYPE_F32, 0, 1ull << 31, 1ull << 31), DATA(256) } },
    { "huge width", QN_ERR_FORMAT, "'w'", { TENSORS(1), VECTOR("w", QN_TYPE_Q8_0, 0, UINT64_MAX - 31), DATA(256) } },
    { "huge tensor of type 42",
      QN_ERR_FORMAT,
      "'w'",
      { TENSORS(1), MATRIX("w", QN_TYPE_Q2_0, 0, 1ull << 31, 1ull << 31), DATA(256) } },
    { "unknown type", QN_ERR_UNSUPPORTED, "'w' has type number 38", { TENSORS(1), VECTOR("w", 38, 0, 64), DATA(256) } },
    { "a type of memory alone",
      QN_ERR_UNSUPPORTED,
      "'w' has type number 1040",
      { TENSORS(1), VECTOR("w", 1040, 0, 64), DATA(256) } },
    { "quern's own number",
      QN_ERR_UNSUPPORTED,
      "'w' has type number 1042",
      { TENSORS(1), VECTOR("w", 1042, 0, 128), DATA(256) } },
    { "broken block",
      QN_ERR_FORMAT,
      "'w': the row length 48",
      { TENSORS(1), VECTOR("w", QN_TYPE_Q4_0, 0, 48), DATA(256) } },
    { "broken block of type 42", QN_ERR_FORMAT, "'w'", { TENSORS(1), VECTOR("w", QN_TYPE_Q2_0, 0, 96), DATA(256) } },
    { "misaligned", QN_ERR_FORMAT, "'w': offset 16", { TENSORS(1), VECTOR("w", QN_TYPE_F32, 16, 4), DATA(256) } },
    { "past the end",
      QN_ERR_FORMAT,
      "'w': 36 bytes at offset 224",
      { TENSORS(1), VECTOR("w", QN_TYPE_F32, 224, 9), DATA(256) } },
    { "far past the end",
      QN_ERR_FORMAT,
      "'w'",
      { TENSORS(1), VECTOR("w", QN_TYPE_F32, UINT64_MAX - 31, 8), DATA(256) } },
    { "no data", QN_ERR_FORMAT, "data begin at byte", { TENSORS(1), VECTOR("w", QN_TYPE_F32, 0, 8) } },
    { "cut dimensions",
      QN_ERR_FORMAT,
      "'w': the file ends",
      { TENSORS(1), TEXT("w"), U32(4), U64(1), U64(1), U64(1) } },
    { "overlap", QN_ERR_FORMAT, "'w' at offset 0 overlaps 'v' at offset 32", { TWO_VECTORS("v", 32), DATA(256) } },
    { "same place", QN_ERR_FORMAT, "overlaps", { TWO_VECTORS("v", 0), DATA(256) } },
    { "duplicate tensor", QN_ERR_FORMAT, "tensor 'w' appears twice", { TWO_VECTORS("w", 64), DATA(256) } },
    { "same place, type 42",
      QN_ERR_FORMAT,
      "overlaps",
      { TENSORS(2), VECTOR("w", QN_TYPE_Q2_0, 32, 64), VECTOR("v", QN_TYPE_Q2_0, 32, 64), DATA(256) } },
};

static void put_piece(const struct piece *piece)
{
    switch (piece->kind) {
    case NO_PIECE: break;
    case PUT_TEXT: put64(piece->value); /* fall through */
    case PUT_BYTES: put(piece->text, piece->value); break;
    case PUT_32: put32((uint32_t)piece->value); break;
    case PUT_64: put64(piece->value); break;
    case PUT_ZEROS: put_data(1, piece->value); break;
    case PUT_DATA: put_data(32, piece->value); break;
    }
}

TEST(hostile_files)
{
    for (size_t i = 0; i < COUNT(hostile); i++) {
        begin_image();
        uint8_t *copy;
        qn_gguf *file = (qn_gguf *)&image;
        for (size_t p = 0; p < MAX_PIECES; p++)
            put_piece(&hostile[i].pieces[p]);
        const qn_status status = open_image(&image, &file, &copy);
        if (status != hostile[i].status || file || !strstr(qn_error_text(), hostile[i].fragment) ||
            strncmp(qn_error_text(), "image: ", 7) != 0)
            fail_msg("%s: status %d, '%s'", hostile[i].what, (int)status, qn_error_text());
        free(copy);
    }
}
