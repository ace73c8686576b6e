/* The public kernels of quern/kernels.h, except the convolution, the delta rule and the Hadamard transform. Each
 * function checks its arguments and calls the kernels of the modules in kernels/. */
#include "quern/kernels.h"

#include "base/memory.h"
#include "kernels/api_check.h"

#include <math.h>
#include <string.h>

qn_status qn_view_bytes(qn_dtype dtype, size_t count, size_t *bytes)
{
    const qn_type_info *info = qn_type_find((uint32_t)dtype);
    if (dtype == QN_DTYPE_U32)
        info = qn_type_find(QN_TYPE_F32); /* the same four bytes */
    if (!info)
        return qn_fail(QN_ERR_INVALID, "type %d is not known", (int)dtype);
    if (!qn_row_bytes(info, count, bytes))
        return qn_fail(QN_ERR_INVALID, "%zu elements of %s: expected a multiple of %zu that fits in memory", count,
                       info->name, info->block_weights);
    return QN_OK;
}

static qn_status weight_type(const char *name, qn_view view, const qn_type_info **out)
{
    *out = qn_type_find_stored((uint32_t)view.dtype);
    return *out ? QN_OK : qn_fail(QN_ERR_INVALID, "%s: type %d is not a weight type", name, (int)view.dtype);
}

qn_status qn_decode(qn_view in, qn_view out)
{
    const qn_type_info *type;
    size_t bytes;
    QN_TRY(weight_type("in", in, &type));
    QN_TRY(qn_view_bytes(in.dtype, in.count, &bytes));
    QN_TRY(qn_check_view("in", in, in.dtype, in.count, 1, 1));
    QN_TRY(qn_check_view("out", out, QN_DTYPE_F32, in.count, 1, 1));
    if (in.count)
        type->to_float(in.data, in.count / type->block_weights, out.data);
    return QN_OK;
}

qn_status qn_encode(qn_view in, qn_view out)
{
    const qn_type_info *type;
    size_t bytes;
    QN_TRY(weight_type("out", out, &type));
    if (!type->from_float)
        return qn_fail(QN_ERR_UNSUPPORTED, "out: quern has no encoder for %s", type->name);
    QN_TRY(qn_view_bytes(out.dtype, in.count, &bytes));
    QN_TRY(qn_check_view("in", in, QN_DTYPE_F32, in.count, 1, 1));
    QN_TRY(qn_check_view("out", out, out.dtype, in.count, 1, 1));
    const float *values = in.data;
    for (size_t i = 0; i < in.count; i++)
        if (!isfinite(values[i]))
            return qn_fail(QN_ERR_INVALID, "in: element %zu is %g, expected a finite value", i, (double)values[i]);
    if (in.count)
        type->from_float(values, in.count / type->block_weights, out.data);
    return QN_OK;
}

/* Rows of activations quantised per pass: enough to amortise the unpacking of a weight row, few enough to stay in
 * cache. */
enum { ACT_ROWS = 128 };

static void run_matmul(const qn_packed_matrix *weights, const float *acts, size_t n_tokens, float *out, qn_acts *batch,
                       void *scratch)
{
    const size_t n_rows = weights->stored.n_rows, n_cols = weights->stored.n_cols;
    for (size_t first = 0; first < n_tokens; first += ACT_ROWS) {
        const size_t n = n_tokens - first < ACT_ROWS ? n_tokens - first : ACT_ROWS;
        for (size_t row = 0; row < n; row++)
            for (size_t s = 0; s < batch->n_super; s++) {
                const size_t left = n_cols - s * QN_SUPER;
                qn_api_kernels.matmul.quantize(batch, row, s, acts + (first + row) * n_cols + s * QN_SUPER,
                                               left < QN_SUPER ? left : QN_SUPER);
            }
        qn_matmul_rows(&qn_api_kernels.matmul, weights, batch, n, 0, n_rows, false, out + first * n_rows, n_rows,
                       scratch);
    }
}

qn_status qn_matmul(qn_view weights, size_t n_rows, size_t n_cols, qn_view acts, size_t n_tokens, qn_view out)
{
    const qn_type_info *type;
    qn_packed_matrix matrix;
    QN_TRY(qn_api_ready());
    QN_TRY(weight_type("weights", weights, &type));
    matrix = (qn_packed_matrix){ .stored = { .type = type, .data = weights.data, .n_rows = n_rows, .n_cols = n_cols } };
    if (!qn_row_bytes(type, n_cols, &matrix.stored.row_bytes))
        return qn_fail(QN_ERR_INVALID, "n_cols: %zu, expected a multiple of %zu for %s", n_cols, type->block_weights,
                       type->name);
    QN_TRY(qn_check_view("weights", weights, weights.dtype, n_rows, n_cols, 1));
    QN_TRY(qn_check_view("acts", acts, QN_DTYPE_F32, n_tokens, n_cols, 1));
    QN_TRY(qn_check_view("out", out, QN_DTYPE_F32, n_tokens, n_rows, 1));
    if (!n_rows || !n_tokens)
        return QN_OK;
    if (!n_cols) {
        memset(out.data, 0, n_rows * n_tokens * sizeof(float));
        return QN_OK;
    }
    qn_acts batch;
    void *scratch = NULL;
    QN_TRY(qn_acts_create(&batch, n_tokens < ACT_ROWS ? n_tokens : ACT_ROWS, n_cols,
                          qn_matmul_act_layouts(&qn_api_kernels.matmul, &matrix, true), false));
    qn_status status = qn_alloc(&scratch, qn_matmul_scratch(&qn_api_kernels.matmul, n_cols), 1, "matmul scratch");
    if (status == QN_OK)
        run_matmul(&matrix, acts.data, n_tokens, out.data, &batch, scratch);
    qn_free(scratch);
    qn_acts_free(&batch);
    return status;
}

qn_status qn_rms_norm(qn_view x, qn_view weight, size_t n_rows, size_t n, float eps, qn_view out)
{
    QN_TRY(qn_api_ready());
    if (!(eps > 0) || isinf(eps))
        return qn_fail(QN_ERR_INVALID, "eps: %g, expected finite and more than 0", (double)eps);
    QN_TRY(qn_check_view("x", x, QN_DTYPE_F32, n_rows, n, 1));
    QN_TRY(qn_check_view("weight", weight, QN_DTYPE_F32, n, 1, 1));
    QN_TRY(qn_check_view("out", out, QN_DTYPE_F32, n_rows, n, 1));
    for (size_t row = 0; n && row < n_rows; row++)
        qn_rms_norm_row(&qn_api_kernels.norm, (float *)out.data + row * n, (const float *)x.data + row * n, weight.data,
                        n, eps);
    return QN_OK;
}

qn_status qn_swiglu(qn_view gate, qn_view up, qn_view out)
{
    QN_TRY(qn_api_ready());
    QN_TRY(qn_check_view("gate", gate, QN_DTYPE_F32, gate.count, 1, 1));
    QN_TRY(qn_check_view("up", up, QN_DTYPE_F32, gate.count, 1, 1));
    QN_TRY(qn_check_view("out", out, QN_DTYPE_F32, gate.count, 1, 1));
    if (gate.count)
        qn_api_kernels.elementwise.swiglu(out.data, gate.data, up.data, gate.count);
    return QN_OK;
}

qn_status qn_rope(qn_view x, qn_view positions, size_t n_tokens, size_t n_heads, size_t head_dim, size_t n_rot,
                  double base, qn_rope_pairing pairing)
{
    QN_TRY(qn_api_ready());
    if (n_rot % 2 || n_rot < 2 || n_rot > head_dim)
        return qn_fail(QN_ERR_INVALID, "n_rot: %zu, expected an even number of 2 to %zu", n_rot, head_dim);
    if (!(base > 0) || isinf(base))
        return qn_fail(QN_ERR_INVALID, "base: %g, expected finite and more than 0", base);
    if (pairing != QN_ROPE_INTERLEAVED && pairing != QN_ROPE_NEOX)
        return qn_fail(QN_ERR_INVALID, "pairing: %d, expected %d or %d", (int)pairing, QN_ROPE_INTERLEAVED,
                       QN_ROPE_NEOX);
    QN_TRY(qn_check_view("x", x, QN_DTYPE_F32, n_tokens, n_heads, head_dim));
    QN_TRY(qn_check_view("positions", positions, QN_DTYPE_U32, n_tokens, 1, 1));
    double *frequencies;
    float *angles;
    QN_TRY(qn_alloc(&frequencies, n_rot / 2, sizeof *frequencies, "rope frequencies"));
    const qn_status status = qn_alloc(&angles, n_rot, sizeof *angles, "rope angles");
    if (status == QN_OK) {
        const qn_rope_type mode = pairing == QN_ROPE_NEOX ? QN_ROPE_TYPE_NEOX : QN_ROPE_TYPE_NORM;
        qn_rope_frequencies(base, NULL, NULL, n_rot, frequencies);
        for (size_t t = 0; t < n_tokens; t++) {
            qn_rope_angles(((const uint32_t *)positions.data)[t], frequencies, 1, n_rot, angles, angles + n_rot / 2);
            for (size_t h = 0; h < n_heads; h++)
                qn_api_kernels.rope.apply((float *)x.data + (t * n_heads + h) * head_dim, angles, angles + n_rot / 2,
                                          n_rot, mode);
        }
        qn_free(angles);
    }
    qn_free(frequencies);
    return status;
}

static qn_status check_cache(const qn_kv_cache *cache)
{
    if (!cache->head_dim || cache->head_dim % QN_HEAD_UNIT || cache->head_dim > 1024)
        return qn_fail(QN_ERR_INVALID, "head_dim: %zu, expected a multiple of %d from %d to 1024", cache->head_dim,
                       QN_HEAD_UNIT, QN_HEAD_UNIT);
    if (cache->capacity % QN_KEY_BLOCK)
        return qn_fail(QN_ERR_INVALID, "capacity: %zu positions, expected a multiple of %d", cache->capacity,
                       QN_KEY_BLOCK);
    if (!cache->n_kv_heads)
        return qn_fail(QN_ERR_INVALID, "n_kv_heads: 0, expected at least 1");
    QN_TRY(qn_check_view("keys", cache->keys, QN_DTYPE_F16, cache->n_kv_heads, cache->capacity, cache->head_dim));
    return qn_check_view("values", cache->values, QN_DTYPE_F16, cache->n_kv_heads, cache->capacity, cache->head_dim);
}

static qn_status check_positions(const qn_kv_cache *cache, qn_view positions, size_t n_tokens)
{
    QN_TRY(qn_check_view("positions", positions, QN_DTYPE_U32, n_tokens, 1, 1));
    for (size_t t = 0; t < n_tokens; t++)
        if (((const uint32_t *)positions.data)[t] >= cache->capacity)
            return qn_fail(QN_ERR_INVALID, "positions: token %zu is at %u, expected below the capacity %zu", t,
                           (unsigned)((const uint32_t *)positions.data)[t], cache->capacity);
    return QN_OK;
}

qn_status qn_kv_store(const qn_kv_cache *cache, qn_view keys, qn_view values, qn_view positions, size_t n_tokens)
{
    QN_TRY(qn_api_ready());
    QN_TRY(check_cache(cache));
    QN_TRY(qn_check_view("new keys", keys, QN_DTYPE_F32, n_tokens, cache->n_kv_heads, cache->head_dim));
    QN_TRY(qn_check_view("new values", values, QN_DTYPE_F32, n_tokens, cache->n_kv_heads, cache->head_dim));
    QN_TRY(check_positions(cache, positions, n_tokens));
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t h = 0; h < cache->n_kv_heads; h++) {
            const size_t head = h * cache->capacity * cache->head_dim,
                         row = (t * cache->n_kv_heads + h) * cache->head_dim;
            qn_api_kernels.attention.f16.store((uint16_t *)cache->keys.data + head,
                                               (uint16_t *)cache->values.data + head,
                                               ((const uint32_t *)positions.data)[t], (const float *)keys.data + row,
                                               (const float *)values.data + row, cache->head_dim);
        }
    return QN_OK;
}

/* Scratch of one query: the scaled query, the output of one block of keys, its scores. */
struct query_scratch {
    float query[1024], block[1024], scores[QN_KEY_BLOCK];
};

/* Returns the block of a head's cache that begins at position `first`. Pages are adjacent, and full tiles. */
static qn_attention_block block_at(const qn_kv_cache *cache, size_t kv_head, size_t first)
{
    qn_attention_block block = { 0 };
    for (size_t i = 0; i < QN_BLOCK_PAGES; i++) {
        const size_t at = (kv_head * cache->capacity + first + i * QN_PAGE) * cache->head_dim;
        block.keys[i] = (const uint16_t *)cache->keys.data + at;
        block.values[i] = (const uint16_t *)cache->values.data + at;
    }
    return block;
}

static void attend_query(const qn_kv_cache *cache, const float *query, size_t kv_head, uint32_t position, float scale,
                         float *out, struct query_scratch *s)
{
    const size_t dim = cache->head_dim;
    float m = 0, l = 0, block_m, block_l;
    for (size_t d = 0; d < dim; d++)
        s->query[d] = query[d] * scale;
    for (size_t first = 0; first <= position; first += QN_KEY_BLOCK) {
        const size_t left = (size_t)position + 1 - first;
        const qn_attention_block block = block_at(cache, kv_head, first);
        const uint16_t visible = (uint16_t)(left < QN_KEY_BLOCK ? left : QN_KEY_BLOCK);
        qn_api_kernels.attention.f16.block(s->query, 1, &block, &visible, dim, first ? s->block : out,
                                           first ? &block_m : &m, first ? &block_l : &l, s->scores);
        if (first)
            qn_api_kernels.attention.combine(out, &m, &l, s->block, block_m, block_l, dim);
    }
    qn_api_kernels.attention.normalize(out, out, l, dim);
}

qn_status qn_attention(const qn_kv_cache *cache, qn_view queries, qn_view positions, size_t n_tokens, size_t n_heads,
                       float scale, qn_view out)
{
    QN_TRY(qn_api_ready());
    QN_TRY(check_cache(cache));
    if (n_heads % cache->n_kv_heads)
        return qn_fail(QN_ERR_INVALID, "n_heads: %zu, expected a multiple of n_kv_heads %zu", n_heads,
                       cache->n_kv_heads);
    QN_TRY(qn_check_view("queries", queries, QN_DTYPE_F32, n_tokens, n_heads, cache->head_dim));
    QN_TRY(qn_check_view("out", out, QN_DTYPE_F32, n_tokens, n_heads, cache->head_dim));
    QN_TRY(check_positions(cache, positions, n_tokens));
    struct query_scratch *scratch;
    QN_TRY(qn_alloc(&scratch, 1, sizeof *scratch, "attention"));
    for (size_t t = 0; t < n_tokens; t++)
        for (size_t h = 0; h < n_heads; h++) {
            const size_t row = (t * n_heads + h) * cache->head_dim;
            attend_query(cache, (const float *)queries.data + row, h / (n_heads / cache->n_kv_heads),
                         ((const uint32_t *)positions.data)[t], scale, (float *)out.data + row, scratch);
        }
    qn_free(scratch);
    return QN_OK;
}

qn_status qn_argmax(qn_view logits, size_t *index)
{
    QN_TRY(qn_api_ready());
    QN_TRY(qn_check_view("logits", logits, QN_DTYPE_F32, logits.count, 1, 1));
    if (!logits.count)
        return qn_fail(QN_ERR_INVALID, "logits: 0 elements, expected at least 1");
    const float *values = logits.data;
    for (size_t i = 0; i < logits.count; i++)
        if (isnan(values[i]))
            return qn_fail(QN_ERR_INVALID, "logits: element %zu is NaN", i);
    *index = qn_argmax_row(&qn_api_kernels.sample, values, logits.count);
    return QN_OK;
}
