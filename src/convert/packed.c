/* Reads packed matrices.
 *
 * FP8: weight [rows, columns] E4M3 (OCP 8-bit floating point, 2023); weight_scale_inv or weight_scale, a factor in
 * spite of its name, for the matrix, each row, or each block. MLX: weight [rows, columns * bits / 32] u32, a
 * little-endian stream of codes; scales and biases [rows, groups]: scale * code + bias (mlx.core.quantize, "affine").
 * GPTQ: qweight [columns * bits / 32, rows], a stream of codes down each column; qzeros [groups, rows * bits / 32];
 * scales [groups, rows]; g_idx [columns], the group of each: scale * (code - zero). AWQ: qweight [columns, rows / 8],
 * qzeros [groups, rows / 8], eight codes in the order 0 2 4 6 1 3 5 7; scales [groups, rows]. */
#include "convert/packed.h"

#include "base/append.h"
#include "base/f16.h"
#include "base/memory.h"

#include <errno.h>
#include <string.h>

enum { MAX_NAME = 192, AWQ_CODES = 8 };

typedef enum kind { FP8, MLX, GPTQ, AWQ } kind;

struct qn_packed {
    kind kind;
    qn_source *weights, *scales, *offsets, *groups; /* offsets: zero points or biases; NULL: none */
    uint64_t rows, columns;
    unsigned bits;
    uint64_t n_groups;                  /* of a row */
    uint64_t block_rows, block_columns; /* weights for one scale */
    unsigned zero_less;
    /* Loaded. */
    float *scale, *offset; /* FP8, MLX: by rows of blocks; GPTQ, AWQ: [n_groups, rows] */
    uint32_t *words;       /* GPTQ, AWQ: the codes */
    uint32_t *group_of;    /* GPTQ, AWQ: [columns] */
};

const char *qn_packed_name(const qn_packed *p)
{
    static const char *const names[] = { [FP8] = "FP8", [MLX] = "MLX", [GPTQ] = "GPTQ", [AWQ] = "AWQ" };
    return names[p->kind];
}

/* ---- Tensors ---- */

/* Returns the tensor of the matrix with another last part of its name, or NULL. */
static qn_source *sibling(const qn_checkpoint *c, const char *name, const char *part)
{
    static const char weight[] = "weight";
    char other[MAX_NAME];
    const size_t n = strlen(name), n_weight = sizeof weight - 1;
    if (n < n_weight || strcmp(name + n - n_weight, weight) != 0 ||
        !qn_print(other, sizeof other, "%.*s%s", (int)(n - n_weight), name, part))
        return NULL;
    return qn_checkpoint_find(c, other);
}

static bool is_type(const qn_source *s, const char *dtype)
{
    return strcmp(s->tensor->dtype, dtype) == 0;
}

static bool is_float(const qn_source *s)
{
    return is_type(s, "F32") || is_type(s, "F16") || is_type(s, "BF16");
}

static uint64_t count_of(const qn_source *s)
{
    uint64_t n = 1;
    for (uint32_t d = 0; d < s->tensor->n_dims; d++)
        n *= s->tensor->dims[d]; /* fits: the tensor lies in the file */
    return n;
}

static qn_status wrong_shape(const qn_source *s, uint64_t rows, uint64_t columns)
{
    char shape[128];
    qn_text_buffer text = QN_APPEND_TO(shape);
    for (uint32_t d = 0; d < s->tensor->n_dims; d++)
        qn_append(&text, "%s%llu", d ? ", " : "", (unsigned long long)s->tensor->dims[d]);
    return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' has the shape [%s], expected [%llu, %llu]",
                   qn_safetensors_path(s->file), s->name, shape, (unsigned long long)rows, (unsigned long long)columns);
}

static qn_status expect_shape(const qn_source *s, uint64_t rows, uint64_t columns)
{
    const qn_safetensor *t = s->tensor;
    return t->n_dims == 2 && t->dims[0] == rows && t->dims[1] == columns ? QN_OK : wrong_shape(s, rows, columns);
}

static qn_status expect_type(const qn_source *s, const char *type, const char *other)
{
    if (is_type(s, type) || is_type(s, other))
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s' has the dtype %s, expected %s", qn_safetensors_path(s->file),
                   s->name, s->tensor->dtype, type);
}

static qn_status expect_float(const qn_source *s)
{
    if (is_float(s))
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED, "%s: tensor '%s' has the dtype %s, expected F32, F16 or BF16",
                   qn_safetensors_path(s->file), s->name, s->tensor->dtype);
}

static qn_status find_part(const qn_checkpoint *c, const char *name, const char *part, qn_source **out)
{
    *out = sibling(c, name, part);
    if (*out)
        return QN_OK;
    return qn_fail(QN_ERR_FORMAT, "%s: tensor '%s' is packed, but has no '%s' next to it", c->folder, name, part);
}

static uint64_t blocks_of(uint64_t n, uint64_t block)
{
    return n / block + (n % block != 0);
}

/* ---- Finding the parts ---- */

/* Finds the scales of FP8: one for the matrix, one for each row, or one for each block. */
static qn_status find_fp8(qn_packed *p, const qn_checkpoint *c, const qn_packing *packing, const char *name)
{
    const uint64_t block_rows = packing->block_rows ? packing->block_rows : 128,
                   block_columns = packing->block_columns ? packing->block_columns : 128;
    p->kind = FP8;
    QN_TRY(expect_shape(p->weights, p->rows, p->columns));
    p->scales = sibling(c, name, "weight_scale_inv");
    if (!p->scales)
        QN_TRY(find_part(c, name, "weight_scale", &p->scales));
    QN_TRY(expect_float(p->scales));
    const qn_safetensor *t = p->scales->tensor;
    const uint64_t n = count_of(p->scales);
    if (n == 1) {
        p->block_rows = p->rows;
        p->block_columns = p->columns;
    } else if (n == p->rows && t->n_dims >= 1 && t->dims[0] == p->rows) {
        p->block_rows = 1;
        p->block_columns = p->columns;
    } else {
        p->block_rows = block_rows;
        p->block_columns = block_columns;
        QN_TRY(expect_shape(p->scales, blocks_of(p->rows, block_rows), blocks_of(p->columns, block_columns)));
    }
    p->n_groups = blocks_of(p->columns, p->block_columns);
    return QN_OK;
}

static bool is_code_size(uint64_t bits)
{
    return bits >= 1 && bits <= 8 && bits != 7;
}

/* Finds the parts of MLX's packing. The number of bits and the size of groups follow from the shapes, which may differ
 * from matrix to matrix. */
static qn_status find_mlx(qn_packed *p, const qn_checkpoint *c, const char *name)
{
    p->kind = MLX;
    QN_TRY(find_part(c, name, "scales", &p->scales));
    QN_TRY(find_part(c, name, "biases", &p->offsets));
    QN_TRY(expect_float(p->scales));
    QN_TRY(expect_float(p->offsets));
    const qn_safetensor *t = p->weights->tensor;
    const uint64_t words = t->n_dims == 2 ? t->dims[1] : 0, bits = words <= p->columns ? words * 32 / p->columns : 0;
    if (!is_code_size(bits) || words * 32 != bits * p->columns || t->dims[0] != p->rows)
        return wrong_shape(p->weights, p->rows, p->columns / 8);
    p->bits = (unsigned)bits;
    p->n_groups = p->scales->tensor->n_dims == 2 ? p->scales->tensor->dims[1] : 0;
    if (!p->n_groups || p->columns % p->n_groups)
        return wrong_shape(p->scales, p->rows, p->columns / 64);
    p->block_rows = 1;
    p->block_columns = p->columns / p->n_groups;
    QN_TRY(expect_shape(p->scales, p->rows, p->n_groups));
    return expect_shape(p->offsets, p->rows, p->n_groups);
}

/* The group of column i is i / block_columns where no g_idx says otherwise. */
static qn_status find_groups(qn_packed *p, const qn_packing *packing)
{
    const qn_safetensor *t = p->scales->tensor;
    const uint64_t group = packing->group ? packing->group : p->columns;
    p->n_groups = t->n_dims == 2 ? t->dims[0] : 0;
    QN_TRY(expect_float(p->scales));
    if (p->n_groups == blocks_of(p->columns, group))
        p->block_columns = group;
    else if (p->n_groups && p->columns % p->n_groups == 0)
        p->block_columns = p->columns / p->n_groups;
    else
        return wrong_shape(p->scales, blocks_of(p->columns, group), p->rows);
    return expect_shape(p->scales, p->n_groups, p->rows);
}

static qn_status find_gptq(qn_packed *p, const qn_checkpoint *c, const qn_packing *packing, const char *name)
{
    const qn_safetensor *t = p->weights->tensor;
    const uint64_t words = t->n_dims == 2 ? t->dims[0] : 0, bits = words <= p->columns ? words * 32 / p->columns : 0;
    p->kind = GPTQ;
    p->zero_less = packing->zeros_are_less_one;
    QN_TRY(find_part(c, name, "scales", &p->scales));
    QN_TRY(find_part(c, name, "qzeros", &p->offsets));
    p->groups = sibling(c, name, "g_idx");
    if ((bits != 2 && bits != 3 && bits != 4 && bits != 8) || words * 32 != bits * p->columns || p->rows * bits % 32)
        return wrong_shape(p->weights, p->columns / 8, p->rows);
    p->bits = (unsigned)bits;
    QN_TRY(expect_type(p->weights, "I32", "U32"));
    QN_TRY(expect_type(p->offsets, "I32", "U32"));
    QN_TRY(expect_shape(p->weights, words, p->rows));
    QN_TRY(find_groups(p, packing));
    if (p->groups) {
        QN_TRY(expect_type(p->groups, "I32", "I64"));
        if (p->groups->tensor->n_dims != 1 || p->groups->tensor->dims[0] != p->columns)
            return wrong_shape(p->groups, 1, p->columns);
    }
    return expect_shape(p->offsets, p->n_groups, p->rows * bits / 32);
}

static qn_status find_awq(qn_packed *p, const qn_checkpoint *c, const qn_packing *packing, const char *name)
{
    p->kind = AWQ;
    p->bits = 4;
    QN_TRY(find_part(c, name, "scales", &p->scales));
    QN_TRY(find_part(c, name, "qzeros", &p->offsets));
    QN_TRY(expect_type(p->weights, "I32", "U32"));
    QN_TRY(expect_type(p->offsets, "I32", "U32"));
    if (p->rows % AWQ_CODES)
        return wrong_shape(p->weights, p->columns, blocks_of(p->rows, AWQ_CODES));
    QN_TRY(expect_shape(p->weights, p->columns, p->rows / AWQ_CODES));
    QN_TRY(find_groups(p, packing));
    return expect_shape(p->offsets, p->n_groups, p->rows / AWQ_CODES);
}

static qn_status find_parts(qn_packed *p, const qn_checkpoint *c, const qn_packing *packing, const char *name)
{
    if (is_type(p->weights, "F8_E4M3"))
        return find_fp8(p, c, packing, name);
    if (is_type(p->weights, "U32") && sibling(c, name, "weight"))
        return find_mlx(p, c, name);
    return packing->kind == QN_PACKING_AWQ ? find_awq(p, c, packing, name) : find_gptq(p, c, packing, name);
}

static void mark_used(qn_source *s)
{
    if (s)
        s->used = true;
}

qn_status qn_packed_find(const qn_checkpoint *c, const qn_packing *packing, const char *name, uint64_t rows,
                         uint64_t columns, qn_packed **out, const qn_source **weights)
{
    qn_source *plain = qn_checkpoint_find(c, name), *codes = sibling(c, name, "qweight");
    const bool is_coded = packing->kind == QN_PACKING_GPTQ || packing->kind == QN_PACKING_AWQ;
    qn_packed *p;
    *out = NULL;
    if (plain ? !is_type(plain, "F8_E4M3") && !is_type(plain, "U32") : !codes || !is_coded)
        return QN_OK;
    QN_TRY(qn_alloc(&p, 1, sizeof *p, "packed matrix"));
    p->rows = rows;
    p->columns = columns;
    p->weights = plain ? plain : codes;
    const qn_status status = find_parts(p, c, packing, name);
    if (status) {
        qn_free(p);
        return status;
    }
    mark_used(p->weights);
    mark_used(p->scales);
    mark_used(p->offsets);
    mark_used(p->groups);
    *out = p;
    *weights = p->weights;
    return QN_OK;
}

void qn_packed_free(qn_packed *p)
{
    if (!p)
        return;
    qn_packed_unload(p);
    qn_free(p);
}

/* ---- Loading ---- */

static qn_status read_whole(const qn_source *s, void *out)
{
    const int error = qn_safetensors_read(s->file, s->tensor, 0, out, s->tensor->bytes);
    if (error)
        return qn_fail(QN_ERR_IO, "%s: tensor '%s': %s", qn_safetensors_path(s->file), s->name,
                       error == ENODATA ? "the file has become shorter" : strerror(error));
    return QN_OK;
}

static qn_status load_floats(const qn_source *s, float **out)
{
    const size_t n = (size_t)count_of(s);
    QN_TRY(qn_alloc(out, n, sizeof **out, s->name));
    QN_TRY(read_whole(s, *out));
    if (is_type(s, "F32"))
        return QN_OK;
    /* In place from the end: a 16-bit value lies at or before the float that it becomes. */
    const bool is_f16 = is_type(s, "F16");
    for (size_t i = n; i-- > 0;) {
        uint16_t bits;
        memcpy(&bits, (const char *)*out + i * sizeof bits, sizeof bits);
        (*out)[i] = is_f16 ? qn_f16_to_f32(bits) : qn_bf16_to_f32(bits);
    }
    return QN_OK;
}

static qn_status load_words(const qn_source *s, uint32_t **out)
{
    QN_TRY(qn_alloc(out, (size_t)count_of(s), sizeof **out, s->name));
    return read_whole(s, *out);
}

/* Returns code i of a stream whose words are `stride` apart. */
static uint32_t code_at(const uint32_t *words, size_t stride, size_t i, unsigned bits)
{
    const size_t bit = i * bits, word = bit / 32;
    const unsigned shift = bit % 32;
    uint64_t two = words[word * stride];
    if (shift + bits > 32)
        two |= (uint64_t)words[(word + 1) * stride] << 32;
    return (uint32_t)(two >> shift) & ((1u << bits) - 1);
}

/* Returns the place of row r among the eight of an AWQ word. */
static unsigned awq_place(uint64_t r)
{
    static const unsigned char places[AWQ_CODES] = { 0, 4, 1, 5, 2, 6, 3, 7 };
    return places[r % AWQ_CODES];
}

static qn_status load_zeros(qn_packed *p)
{
    uint32_t *words = NULL;
    qn_status status = load_words(p->offsets, &words);
    if (status == QN_OK)
        status = qn_alloc(&p->offset, (size_t)(p->n_groups * p->rows), sizeof *p->offset, p->offsets->name);
    const size_t per_group = (size_t)(p->rows * p->bits / 32);
    for (uint64_t g = 0; status == QN_OK && g < p->n_groups; g++)
        for (uint64_t r = 0; r < p->rows; r++) {
            const size_t at = (size_t)(p->kind == AWQ ? r - r % AWQ_CODES + awq_place(r) : r);
            p->offset[g * p->rows + r] = (float)(code_at(words + g * per_group, 1, at, p->bits) + p->zero_less);
        }
    qn_free(words);
    return status;
}

static qn_status load_groups(qn_packed *p)
{
    const size_t n = (size_t)p->columns;
    QN_TRY(qn_alloc(&p->group_of, n, sizeof *p->group_of, "groups"));
    for (size_t i = 0; i < n; i++)
        p->group_of[i] = (uint32_t)(i / p->block_columns);
    if (!p->groups)
        return QN_OK;
    int64_t *wide = NULL;
    const bool is_wide = is_type(p->groups, "I64");
    qn_status status = is_wide ? qn_alloc(&wide, n, sizeof *wide, "groups") : QN_OK;
    if (status == QN_OK)
        status = read_whole(p->groups, is_wide ? (void *)wide : p->group_of);
    for (size_t i = 0; status == QN_OK && i < n; i++) {
        const int64_t group = is_wide ? wide[i] : (int32_t)p->group_of[i];
        if (group < 0 || (uint64_t)group >= p->n_groups)
            status = qn_fail(QN_ERR_FORMAT, "%s: tensor '%s': element %zu is %lld, expected 0 to %llu",
                             qn_safetensors_path(p->groups->file), p->groups->name, i, (long long)group,
                             (unsigned long long)p->n_groups - 1);
        p->group_of[i] = (uint32_t)group;
    }
    qn_free(wide);
    return status;
}

qn_status qn_packed_load(qn_packed *p)
{
    qn_status status = load_floats(p->scales, &p->scale);
    if (status == QN_OK && p->kind == MLX)
        status = load_floats(p->offsets, &p->offset);
    if (status == QN_OK && (p->kind == GPTQ || p->kind == AWQ)) {
        status = load_words(p->weights, &p->words);
        if (status == QN_OK)
            status = load_zeros(p);
        if (status == QN_OK)
            status = load_groups(p);
    }
    if (status)
        qn_packed_unload(p);
    return status;
}

void qn_packed_unload(qn_packed *p)
{
    qn_free(p->scale);
    qn_free(p->offset);
    qn_free(p->words);
    qn_free(p->group_of);
    p->scale = p->offset = NULL;
    p->words = p->group_of = NULL;
}

/* ---- Weights ---- */

/* Converts E4M3: 4 bits of exponent with bias 7, 3 of mantissa; all ones are NaN, there is no infinity. */
static float e4m3_to_f32(uint8_t code)
{
    const unsigned exponent = code >> 3 & 15, mantissa = code & 7;
    uint32_t bits = (uint32_t)(code & 0x80) << 24;
    float x;
    if (exponent == 0) {
        const float small = (float)mantissa * 0x1p-9f;
        return code & 0x80 ? -small : small;
    }
    bits |= exponent == 15 && mantissa == 7 ? 0x7fc00000u : (exponent + 120) << 23 | mantissa << 20;
    memcpy(&x, &bits, sizeof x);
    return x;
}

/* Reads the codes of rows into the end of `out`, where each is read before its place is written. */
static int read_codes(const qn_packed *p, uint64_t row, uint64_t n, float *out, const uint8_t **codes)
{
    const size_t row_bytes = (size_t)(p->kind == FP8 ? p->columns : p->columns * p->bits / 8);
    const size_t bytes = (size_t)n * row_bytes;
    uint8_t *end = (uint8_t *)(out + n * p->columns) - bytes;
    *codes = end;
    return qn_safetensors_read(p->weights->file, p->weights->tensor, row * row_bytes, end, bytes);
}

static int read_fp8(const qn_packed *p, uint64_t row, uint64_t n, float *out)
{
    float values[256];
    const uint8_t *codes;
    const int error = read_codes(p, row, n, out, &codes);
    for (unsigned i = 0; i < 256; i++)
        values[i] = e4m3_to_f32((uint8_t)i);
    for (uint64_t r = 0; !error && r < n; r++) {
        const float *scale = p->scale + (row + r) / p->block_rows * p->n_groups;
        for (uint64_t g = 0, c = 0; g < p->n_groups; g++)
            for (const uint64_t end = (g + 1) * p->block_columns; c < end && c < p->columns; c++)
                *out++ = values[*codes++] * scale[g];
    }
    return error;
}

static int read_mlx(const qn_packed *p, uint64_t row, uint64_t n, float *out)
{
    const uint8_t *codes;
    const int error = read_codes(p, row, n, out, &codes);
    uint64_t held = 0;
    unsigned n_held = 0;
    for (uint64_t r = 0; !error && r < n; r++)
        for (uint64_t g = 0; g < p->n_groups; g++) {
            const double scale = (double)p->scale[(row + r) * p->n_groups + g],
                         bias = (double)p->offset[(row + r) * p->n_groups + g];
            for (uint64_t i = 0; i < p->block_columns; i++) {
                for (; n_held < p->bits; n_held += 8)
                    held |= (uint64_t)*codes++ << n_held;
                *out++ = (float)(scale * (double)(held & ((1u << p->bits) - 1)) + bias);
                held >>= p->bits;
                n_held -= p->bits;
            }
        }
    return error;
}

/* Column by column, as the codes lie. */
static void unpack_words(const qn_packed *p, uint64_t row, uint64_t n, float *out)
{
    for (uint64_t c = 0; c < p->columns; c++) {
        const size_t of_group = (size_t)(p->group_of[c] * p->rows + row);
        const float *scale = p->scale + of_group, *zero = p->offset + of_group;
        for (uint64_t r = 0; r < n; r++) {
            const uint64_t at = row + r;
            const uint32_t code = p->kind == GPTQ
                                      ? code_at(p->words + at, (size_t)p->rows, (size_t)c, p->bits)
                                      : p->words[c * (p->rows / AWQ_CODES) + at / AWQ_CODES] >> 4 * awq_place(at) & 15;
            out[r * p->columns + c] = scale[r] * ((float)code - zero[r]);
        }
    }
}

int qn_packed_read(const qn_packed *p, uint64_t row, uint64_t n, float *out)
{
    if (p->kind == FP8)
        return read_fp8(p, row, n, out);
    if (p->kind == MLX)
        return read_mlx(p, row, n, out);
    unpack_words(p, row, n, out);
    return 0;
}
