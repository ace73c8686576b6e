/* The public Gated DeltaNet kernels: check the arguments, then run the stages of kernels/deltanet/stages.h chunk by
 * chunk and head by head. Only this file converts between views and the f32 tiles of the stages. */
#include "quern/kernels.h"

#include "base/memory.h"
#include "kernels/api_check.h"
#include "kernels/canon.h"
#include "kernels/deltanet/stages.h"

#include <float.h>
#include <math.h>
#include <string.h>

_Static_assert((int)QN_GDN_CHUNK_SIZE == (int)QN_GDN_CHUNK, "the chunk of the public header is that of the kernels");

enum { CHUNK = QN_GDN_CHUNK };
#define NORMALIZE_EPS 1e-6f /* FLA's and transformers' */

typedef struct head_ref head_ref;

/* One call: its shape, values derived from it, and its views, named as in the public header. */
typedef struct call {
    const qn_gdn_shape *shape;
    qn_sequences sequences;
    size_t n_chunks, state_heads, chunk_heads; /* chunks of all sequences; sequences, chunks times value heads */
    qn_dtype dtype;                            /* D of the public header */
    qn_view q, k, v, g, beta, gc, a, inverse, w, u, initial, h, v_new, final, o;
    qn_gdn_stages stages;
    qn_gdn_tiles tiles;
    float *states; /* [value heads of a key head][head_k][head_v] */
    void (*head_work)(struct call *c, const head_ref *p);
} call;

/* A value head of a sequence. */
struct head_ref {
    size_t sequence, row, n; /* its first row and number of tokens */
    size_t key_head, head;   /* value head, and the key head that it uses */
    size_t state, chunk;     /* index of its state; index of the sequence's first chunk */
};

/* ---- Checks ---- */

static qn_status check_dim(const char *name, size_t dim)
{
    if (dim && dim % QN_GDN_UNIT == 0 && dim <= QN_GDN_MAX_DIM)
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "%s: %zu, expected a multiple of %d from %d to %d", name, dim, QN_GDN_UNIT,
                   QN_GDN_UNIT, QN_GDN_MAX_DIM);
}

static size_t chunks_of(size_t tokens)
{
    return tokens / CHUNK + (tokens % CHUNK != 0);
}

static qn_status begin(call *c, const qn_gdn_shape *shape)
{
    *c = (call){ .shape = shape };
    QN_TRY(qn_api_ready());
    if (!shape)
        return qn_fail(QN_ERR_INVALID, "shape: NULL");
    if (!shape->batch)
        return qn_fail(QN_ERR_INVALID, "batch: 0, expected at least 1");
    if (!shape->tokens)
        return qn_fail(QN_ERR_INVALID, "tokens: 0, expected at least 1");
    QN_TRY(qn_check_sequences(shape->batch, shape->tokens, shape->n_sequences, shape->cu_seqlens, &c->sequences));
    if (!shape->k_heads)
        return qn_fail(QN_ERR_INVALID, "k_heads: 0, expected at least 1");
    if (!shape->v_heads || shape->v_heads % shape->k_heads)
        return qn_fail(QN_ERR_INVALID, "v_heads: %zu, expected a multiple of k_heads %zu", shape->v_heads,
                       shape->k_heads);
    QN_TRY(check_dim("head_k", shape->head_k));
    QN_TRY(check_dim("head_v", shape->head_v));
    if (shape->mapping != QN_GDN_GROUPED && shape->mapping != QN_GDN_TILED)
        return qn_fail(QN_ERR_INVALID, "mapping: %d, expected %d or %d", (int)shape->mapping, QN_GDN_GROUPED,
                       QN_GDN_TILED);
    for (size_t i = 0; i < c->sequences.n && c->sequences.offsets; i++) {
        size_t n;
        qn_sequence_at(&c->sequences, i, &n);
        c->n_chunks += chunks_of(n);
    }
    /* Without cumulative lengths this cannot overflow: there are at most as many chunks as tokens, and their count
     * fits. */
    if (!c->sequences.offsets)
        c->n_chunks = shape->batch * chunks_of(shape->tokens);
    if (!qn_mul_size(c->n_chunks, shape->v_heads, &c->chunk_heads) ||
        !qn_mul_size(c->sequences.n, shape->v_heads, &c->state_heads))
        return qn_fail(QN_ERR_INVALID, "v_heads: %zu for %zu sequences of %zu chunks in all do not fit in memory",
                       shape->v_heads, c->sequences.n, c->n_chunks);
    return QN_OK;
}

static qn_status check_scale(const call *c)
{
    if (isfinite(c->shape->scale))
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "scale: %g, expected a finite value", (double)c->shape->scale);
}

/* Sets D to the dtype of this argument. */
static qn_status set_dtype(call *c, const char *name, qn_view view)
{
    c->dtype = view.dtype;
    return qn_check_float_type(name, view);
}

static qn_status check_keys(const call *c, const char *name, qn_view view)
{
    return qn_check_view(name, view, c->dtype, c->sequences.rows, c->shape->k_heads, c->shape->head_k);
}

static qn_status check_values(const call *c, const char *name, qn_view view)
{
    return qn_check_view(name, view, c->dtype, c->sequences.rows, c->shape->v_heads, c->shape->head_v);
}

static qn_status check_gates(const call *c, const char *name, qn_view view)
{
    return qn_check_view(name, view, QN_DTYPE_F32, c->sequences.rows, c->shape->v_heads, 1);
}

static qn_status check_square(const call *c, const char *name, qn_view view)
{
    return qn_check_view(name, view, QN_DTYPE_F32, c->sequences.rows, c->shape->v_heads, CHUNK);
}

static qn_status check_states(const call *c, const char *name, qn_view view)
{
    return qn_check_view(name, view, QN_DTYPE_F32, c->state_heads, c->shape->head_v, c->shape->head_k);
}

static qn_status check_optional_states(const call *c, const char *name, qn_view view)
{
    return qn_view_absent(view) ? QN_OK : check_states(c, name, view);
}

static qn_status check_chunk_states(const call *c, const char *name, qn_view view)
{
    return qn_check_view(name, view, c->dtype, c->chunk_heads, c->shape->head_v, c->shape->head_k);
}

/* Checks log decays, or their cumulative sums: with a positive one the state would grow without bound. */
static qn_status check_decays(const call *c, const char *name, qn_view view)
{
    QN_TRY(check_gates(c, name, view));
    const size_t v_heads = c->shape->v_heads;
    const float *g = view.data;
    for (size_t s = 0; s < c->sequences.n; s++) {
        size_t n;
        const size_t row = qn_sequence_at(&c->sequences, s, &n);
        for (size_t i = row * v_heads; i < (row + n) * v_heads; i++)
            if (!isfinite(g[i]) || g[i] > 0)
                return qn_fail(QN_ERR_INVALID,
                               "%s: element %zu (token %zu, head %zu) is %g, expected finite and at most 0", name, i,
                               i / v_heads, i % v_heads, (double)g[i]);
    }
    return QN_OK;
}

/* ---- Tiles ---- */

static size_t type_size(qn_dtype dtype)
{
    return dtype == QN_DTYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

static void *element(const call *c, qn_view view, size_t i)
{
    return (char *)view.data + i * type_size(c->dtype);
}

/* Converts n rows of one head of an array [T, heads, width] of D to f32. */
static void load_rows(const call *c, float *tile, qn_view view, size_t row, size_t n, size_t heads, size_t head,
                      size_t width)
{
    for (size_t i = 0; i < n; i++)
        c->stages.rows->to_f32(tile + i * width, element(c, view, ((row + i) * heads + head) * width), c->dtype, width);
}

static void load_keys(const call *c, float *tile, qn_view view, const head_ref *p, size_t row, size_t n)
{
    load_rows(c, tile, view, row, n, c->shape->k_heads, p->key_head, c->shape->head_k);
}

static void load_values(const call *c, float *tile, qn_view view, const head_ref *p, size_t row, size_t n)
{
    load_rows(c, tile, view, row, n, c->shape->v_heads, p->head, c->shape->head_v);
}

static void store_rows(const call *c, qn_view view, const float *tile, const head_ref *p, size_t row, size_t n,
                       size_t width)
{
    for (size_t i = 0; i < n; i++)
        c->stages.rows->from_f32(element(c, view, ((row + i) * c->shape->v_heads + p->head) * width), tile + i * width,
                                 c->dtype, width);
}

static void load_beta(call *c, const head_ref *p, size_t row, size_t n)
{
    for (size_t i = 0; i < n; i++)
        c->tiles.beta[i] = ((const float *)c->beta.data)[(row + i) * c->shape->v_heads + p->head];
}

/* Loads the caller's cumulative sums and makes them non-increasing: an increase can only be a rounding error of the
 * caller's sum. */
static void load_gc(call *c, const head_ref *p, size_t row, size_t n)
{
    double running_min = 0;
    for (size_t i = 0; i < n; i++) {
        const double gc = (double)((const float *)c->gc.data)[(row + i) * c->shape->v_heads + p->head];
        c->tiles.gc[i] = running_min = gc < running_min ? gc : running_min;
    }
}

/* e^-1000 is 0 in every dtype, and with terms no smaller than this the double sums still resolve small differences. */
#define MIN_LOG_DECAY -1000.0

static double decay_at(const call *c, const head_ref *p, size_t row)
{
    const double g = (double)((const float *)c->g.data)[row * c->shape->v_heads + p->head];
    return g < MIN_LOG_DECAY ? MIN_LOG_DECAY : g;
}

static void cumsum_decays(call *c, const head_ref *p, size_t row, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        c->tiles.gc[i] = sum += decay_at(c, p, row + i);
}

static void transpose_keys(call *c, size_t n)
{
    qn_gdn_transpose(c->tiles.k_transposed, CHUNK, c->tiles.k, c->shape->head_k, n, c->shape->head_k);
}

static float *square_row(const call *c, qn_view view, const head_ref *p, size_t row)
{
    return (float *)view.data + (row * c->shape->v_heads + p->head) * CHUNK;
}

static void store_square(const call *c, qn_view view, const float *tile, const head_ref *p, size_t row, size_t n)
{
    for (size_t i = 0; i < n; i++)
        memcpy(square_row(c, view, p, row + i), tile + i * CHUNK, CHUNK * sizeof *tile);
}

static void load_state(call *c, const head_ref *p)
{
    const size_t size = c->shape->head_k * c->shape->head_v;
    if (qn_view_absent(c->initial))
        memset(c->tiles.state, 0, size * sizeof(float));
    else
        qn_gdn_transpose(c->tiles.state, c->shape->head_v, (const float *)c->initial.data + p->state * size,
                         c->shape->head_k, c->shape->head_v, c->shape->head_k);
}

static void store_state(const call *c, const head_ref *p)
{
    if (!qn_view_absent(c->final))
        qn_gdn_transpose((float *)c->final.data + p->state * c->shape->head_k * c->shape->head_v, c->shape->head_k,
                         c->tiles.state, c->shape->head_v, c->shape->head_k, c->shape->head_v);
}

/* Applies the l2 norm to a row in place, rounded to dtype: the same result as qn_l2_norm's. */
static void normalize_row(float *x, size_t n, float eps, qn_dtype dtype)
{
    const float factor = 1.0f / sqrtf(qn_api_kernels.norm.sum_squares(x, n) + eps);
    qn_api_kernels.deltanet.scale(x, x, factor, n);
    qn_api_kernels.gdn_rows.round(x, x, dtype, n);
}

static void normalize_tile(const call *c, float *tile, size_t n)
{
    for (size_t i = 0; i < n; i++)
        normalize_row(tile + i * c->shape->head_k, c->shape->head_k, NORMALIZE_EPS, c->dtype);
}

/* ---- Iteration over heads ---- */

/* Returns the number of value heads per key head. */
static size_t group_size(const qn_gdn_shape *shape)
{
    return shape->v_heads / shape->k_heads;
}

/* Sets p to the i-th value head of its key head. */
static void select_head(const call *c, head_ref *p, size_t i)
{
    const qn_gdn_shape *shape = c->shape;
    p->head = shape->mapping == QN_GDN_TILED ? i * shape->k_heads + p->key_head : p->key_head * group_size(shape) + i;
    p->state = p->sequence * shape->v_heads + p->head;
}

/* Calls `work` for every key head of every sequence; `work` iterates over the value heads itself. */
static void for_each_key_head(call *c, void (*work)(call *c, head_ref *p))
{
    head_ref p = { 0 };
    c->stages = (qn_gdn_stages){ .kernels = &qn_api_kernels.deltanet,
                                 .rows = &qn_api_kernels.gdn_rows,
                                 .dtype = c->dtype,
                                 .head_k = c->shape->head_k,
                                 .head_v = c->shape->head_v };
    for (p.sequence = 0; p.sequence < c->sequences.n; p.sequence++) {
        p.row = qn_sequence_at(&c->sequences, p.sequence, &p.n);
        for (p.key_head = 0; p.key_head < c->shape->k_heads; p.key_head++)
            work(c, &p);
        p.chunk += chunks_of(p.n);
    }
}

static void for_value_heads(call *c, head_ref *p)
{
    for (size_t i = 0; i < group_size(c->shape); i++) {
        select_head(c, p, i);
        c->head_work(c, p);
    }
}

static void for_each_head(call *c, void (*work)(call *c, const head_ref *p))
{
    c->head_work = work;
    for_each_key_head(c, for_value_heads);
}

static qn_status for_each_head_with_tiles(call *c, void (*work)(call *c, const head_ref *p))
{
    QN_TRY(qn_gdn_tiles_create(&c->tiles, c->shape->head_k, c->shape->head_v));
    for_each_head(c, work);
    qn_gdn_tiles_free(&c->tiles);
    return QN_OK;
}

static size_t chunk_rows(const head_ref *p, size_t first)
{
    return p->n - first < CHUNK ? p->n - first : CHUNK;
}

/* ---- Stages ---- */

qn_status qn_gdn_chunk_count(const qn_gdn_shape *shape, size_t *count)
{
    call c;
    QN_TRY(begin(&c, shape));
    *count = c.n_chunks;
    return QN_OK;
}

static void cumsum_head(call *c, const head_ref *p)
{
    const float *g = (const float *)c->g.data + p->row * c->shape->v_heads + p->head;
    float *gc = (float *)c->gc.data + p->row * c->shape->v_heads + p->head;
    double sum = 0;
    for (size_t i = 0; i < p->n; i++) {
        sum = (i % CHUNK ? sum : 0) + (double)g[i * c->shape->v_heads];
        gc[i * c->shape->v_heads] = sum < -(double)FLT_MAX ? -FLT_MAX : (float)sum;
    }
}

qn_status qn_gdn_cumsum(const qn_gdn_shape *shape, qn_view g, qn_view gc)
{
    call c;
    QN_TRY(begin(&c, shape));
    QN_TRY(check_gates(&c, "gc", gc));
    QN_TRY(check_decays(&c, "g", g));
    c.g = g;
    c.gc = gc;
    for_each_head(&c, cumsum_head);
    return QN_OK;
}

static void kkt_head(call *c, const head_ref *p)
{
    for (size_t first = 0; first < p->n; first += CHUNK) {
        const size_t row = p->row + first, n = chunk_rows(p, first);
        load_keys(c, c->tiles.k, c->k, p, row, n);
        transpose_keys(c, n);
        qn_gdn_tile_dots(&c->stages, &c->tiles, c->tiles.kk, c->tiles.k, n);
        load_beta(c, p, row, n);
        load_gc(c, p, row, n);
        qn_gdn_tile_kkt(&c->stages, &c->tiles, n);
        store_square(c, c->a, c->tiles.a, p, row, n);
    }
}

qn_status qn_gdn_kkt(const qn_gdn_shape *shape, qn_view k, qn_view beta, qn_view gc, qn_view a)
{
    call c;
    QN_TRY(begin(&c, shape));
    QN_TRY(set_dtype(&c, "k", k));
    QN_TRY(check_keys(&c, "k", k));
    QN_TRY(check_gates(&c, "beta", beta));
    QN_TRY(check_square(&c, "a", a));
    QN_TRY(check_decays(&c, "gc", gc));
    c.k = k;
    c.beta = beta;
    c.gc = gc;
    c.a = a;
    return for_each_head_with_tiles(&c, kkt_head);
}

static void inverse_head(call *c, const head_ref *p)
{
    for (size_t first = 0; first < p->n; first += CHUNK) {
        const size_t row = p->row + first, n = chunk_rows(p, first);
        for (size_t i = 0; i < n; i++)
            memcpy(c->tiles.a + i * CHUNK, square_row(c, c->a, p, row + i), i * sizeof(float));
        qn_gdn_tile_inverse(&c->stages, &c->tiles, n);
        store_square(c, c->inverse, c->tiles.inverse, p, row, n);
    }
}

qn_status qn_gdn_tril_inverse(const qn_gdn_shape *shape, qn_view a, qn_view inverse)
{
    call c;
    QN_TRY(begin(&c, shape));
    QN_TRY(check_square(&c, "a", a));
    QN_TRY(check_square(&c, "inverse", inverse));
    c.a = a;
    c.inverse = inverse;
    return for_each_head_with_tiles(&c, inverse_head);
}

static void w_u_head(call *c, const head_ref *p)
{
    for (size_t first = 0; first < p->n; first += CHUNK) {
        const size_t row = p->row + first, n = chunk_rows(p, first);
        load_keys(c, c->tiles.k, c->k, p, row, n);
        load_values(c, c->tiles.v, c->v, p, row, n);
        load_beta(c, p, row, n);
        load_gc(c, p, row, n);
        memset(c->tiles.inverse, 0, n * CHUNK * sizeof(float));
        for (size_t i = 0; i < n; i++)
            memcpy(c->tiles.inverse + i * CHUNK, square_row(c, c->inverse, p, row + i), (i + 1) * sizeof(float));
        qn_gdn_tile_w_u(&c->stages, &c->tiles, n);
        store_rows(c, c->w, c->tiles.w, p, row, n, c->shape->head_k);
        store_rows(c, c->u, c->tiles.u, p, row, n, c->shape->head_v);
    }
}

/* Checks w, which has a row of head_k elements for each value head. */
static qn_status check_w(const call *c, qn_view w)
{
    return qn_check_view("w", w, c->dtype, c->sequences.rows, c->shape->v_heads, c->shape->head_k);
}

qn_status qn_gdn_recompute_w_u(const qn_gdn_shape *shape, qn_view k, qn_view v, qn_view beta, qn_view gc,
                               qn_view inverse, qn_view w, qn_view u)
{
    call c;
    QN_TRY(begin(&c, shape));
    QN_TRY(set_dtype(&c, "k", k));
    QN_TRY(check_keys(&c, "k", k));
    QN_TRY(check_values(&c, "v", v));
    QN_TRY(check_gates(&c, "beta", beta));
    QN_TRY(check_square(&c, "inverse", inverse));
    QN_TRY(check_w(&c, w));
    QN_TRY(check_values(&c, "u", u));
    QN_TRY(check_decays(&c, "gc", gc));
    c.k = k;
    c.v = v;
    c.beta = beta;
    c.gc = gc;
    c.inverse = inverse;
    c.w = w;
    c.u = u;
    return for_each_head_with_tiles(&c, w_u_head);
}

static void state_pass_head(call *c, const head_ref *p)
{
    const size_t head_k = c->shape->head_k, head_v = c->shape->head_v;
    load_state(c, p);
    for (size_t first = 0; first < p->n; first += CHUNK) {
        const size_t row = p->row + first, n = chunk_rows(p, first);
        const size_t chunk = (p->chunk + first / CHUNK) * c->shape->v_heads + p->head;
        qn_gdn_transpose(c->tiles.start, head_k, c->tiles.state, head_v, head_k, head_v);
        c->stages.rows->from_f32(element(c, c->h, chunk * head_v * head_k), c->tiles.start, c->dtype, head_v * head_k);
        load_keys(c, c->tiles.k, c->k, p, row, n);
        load_rows(c, c->tiles.w, c->w, row, n, c->shape->v_heads, p->head, head_k);
        load_values(c, c->tiles.u, c->u, p, row, n);
        load_gc(c, p, row, n);
        qn_gdn_tile_state(&c->stages, &c->tiles, n);
        store_rows(c, c->v_new, c->tiles.v_new, p, row, n, head_v);
    }
    store_state(c, p);
}

qn_status qn_gdn_state_pass(const qn_gdn_shape *shape, qn_view k, qn_view w, qn_view u, qn_view gc, qn_view initial,
                            qn_view h, qn_view v_new, qn_view final)
{
    call c;
    QN_TRY(begin(&c, shape));
    QN_TRY(set_dtype(&c, "k", k));
    QN_TRY(check_keys(&c, "k", k));
    QN_TRY(check_w(&c, w));
    QN_TRY(check_values(&c, "u", u));
    QN_TRY(check_optional_states(&c, "initial", initial));
    QN_TRY(check_chunk_states(&c, "h", h));
    QN_TRY(check_values(&c, "v_new", v_new));
    QN_TRY(check_optional_states(&c, "final", final));
    QN_TRY(check_decays(&c, "gc", gc));
    c.k = k;
    c.w = w;
    c.u = u;
    c.gc = gc;
    c.initial = initial;
    c.h = h;
    c.v_new = v_new;
    c.final = final;
    return for_each_head_with_tiles(&c, state_pass_head);
}

static void output_head(call *c, const head_ref *p)
{
    const size_t head_k = c->shape->head_k, head_v = c->shape->head_v;
    for (size_t first = 0; first < p->n; first += CHUNK) {
        const size_t row = p->row + first, n = chunk_rows(p, first);
        const size_t chunk = (p->chunk + first / CHUNK) * c->shape->v_heads + p->head;
        c->stages.rows->to_f32(c->tiles.state, element(c, c->h, chunk * head_v * head_k), c->dtype, head_v * head_k);
        qn_gdn_transpose(c->tiles.start, head_v, c->tiles.state, head_k, head_v, head_k);
        load_keys(c, c->tiles.q, c->q, p, row, n);
        load_keys(c, c->tiles.k, c->k, p, row, n);
        transpose_keys(c, n);
        qn_gdn_tile_dots(&c->stages, &c->tiles, c->tiles.qk, c->tiles.q, n);
        load_values(c, c->tiles.v_new, c->v_new, p, row, n);
        load_gc(c, p, row, n);
        qn_gdn_tile_output(&c->stages, &c->tiles, c->shape->scale, n);
        store_rows(c, c->o, c->tiles.o, p, row, n, head_v);
    }
}

qn_status qn_gdn_chunk_output(const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v_new, qn_view h, qn_view gc,
                              qn_view o)
{
    call c;
    QN_TRY(begin(&c, shape));
    QN_TRY(check_scale(&c));
    QN_TRY(set_dtype(&c, "q", q));
    QN_TRY(check_keys(&c, "q", q));
    QN_TRY(check_keys(&c, "k", k));
    QN_TRY(check_values(&c, "v_new", v_new));
    QN_TRY(check_chunk_states(&c, "h", h));
    QN_TRY(check_values(&c, "o", o));
    QN_TRY(check_decays(&c, "gc", gc));
    c.q = q;
    c.k = k;
    c.v_new = v_new;
    c.h = h;
    c.gc = gc;
    c.o = o;
    return for_each_head_with_tiles(&c, output_head);
}

/* ---- Compositions ---- */

/* Checks common to qn_gdn_chunk and qn_gdn_step. */
static qn_status begin_composed(call *c, const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v, qn_view g,
                                qn_view beta, qn_view o)
{
    QN_TRY(begin(c, shape));
    QN_TRY(check_scale(c));
    QN_TRY(set_dtype(c, "q", q));
    QN_TRY(check_keys(c, "q", q));
    QN_TRY(check_keys(c, "k", k));
    QN_TRY(check_values(c, "v", v));
    QN_TRY(check_gates(c, "beta", beta));
    QN_TRY(check_values(c, "o", o));
    QN_TRY(check_decays(c, "g", g));
    c->q = q;
    c->k = k;
    c->v = v;
    c->g = g;
    c->beta = beta;
    c->o = o;
    return QN_OK;
}

static void load_queries_and_keys(call *c, const head_ref *p, size_t row, size_t n)
{
    load_keys(c, c->tiles.q, c->q, p, row, n);
    load_keys(c, c->tiles.k, c->k, p, row, n);
    if (c->shape->normalize) {
        normalize_tile(c, c->tiles.q, n);
        normalize_tile(c, c->tiles.k, n);
    }
}

/* Computes one chunk of a value head through all stages, with results rounded to D between stages. q, k, kk and qk must
 * be in the tiles. */
static void staged_chunk(call *c, const head_ref *p, size_t row, size_t n)
{
    load_values(c, c->tiles.v, c->v, p, row, n);
    load_beta(c, p, row, n);
    cumsum_decays(c, p, row, n);
    qn_gdn_tile_kkt(&c->stages, &c->tiles, n);
    qn_gdn_tile_inverse(&c->stages, &c->tiles, n);
    qn_gdn_tile_w_u(&c->stages, &c->tiles, n);
    c->stages.rows->round(c->tiles.start, c->tiles.state, c->dtype, c->shape->head_k * c->shape->head_v);
    qn_gdn_tile_state(&c->stages, &c->tiles, n);
    qn_gdn_tile_output(&c->stages, &c->tiles, c->shape->scale, n);
    store_rows(c, c->o, c->tiles.o, p, row, n, c->shape->head_v);
}

/* Computes all value heads of a key head, chunk by chunk: they share a chunk's normalised q and k, kk and qk. */
static void staged_group(call *c, head_ref *p)
{
    const size_t size = c->shape->head_k * c->shape->head_v, n_heads = group_size(c->shape);
    for (size_t i = 0; i < n_heads; i++) {
        select_head(c, p, i);
        c->tiles.state = c->states + i * size;
        load_state(c, p);
    }
    for (size_t first = 0; first < p->n; first += CHUNK) {
        const size_t row = p->row + first, n = chunk_rows(p, first);
        load_queries_and_keys(c, p, row, n);
        transpose_keys(c, n);
        qn_gdn_tile_dots(&c->stages, &c->tiles, c->tiles.kk, c->tiles.k, n);
        qn_gdn_tile_dots(&c->stages, &c->tiles, c->tiles.qk, c->tiles.q, n);
        for (size_t i = 0; i < n_heads; i++) {
            select_head(c, p, i);
            c->tiles.state = c->states + i * size;
            staged_chunk(c, p, row, n);
        }
    }
    for (size_t i = 0; i < n_heads; i++) {
        select_head(c, p, i);
        c->tiles.state = c->states + i * size;
        store_state(c, p);
    }
}

static qn_status run_staged(call *c)
{
    QN_TRY(qn_alloc(&c->states, group_size(c->shape), c->shape->head_k * c->shape->head_v * sizeof *c->states,
                    "delta rule"));
    const qn_status status = qn_gdn_tiles_create(&c->tiles, c->shape->head_k, c->shape->head_v);
    if (status == QN_OK)
        for_each_key_head(c, staged_group);
    qn_gdn_tiles_free(&c->tiles);
    qn_free(c->states);
    return status;
}

qn_status qn_gdn_chunk(const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v, qn_view g, qn_view beta,
                       qn_view initial, qn_view final, qn_view o)
{
    call c;
    QN_TRY(begin_composed(&c, shape, q, k, v, g, beta, o));
    QN_TRY(check_optional_states(&c, "initial", initial));
    QN_TRY(check_optional_states(&c, "final", final));
    c.initial = initial;
    c.final = final;
    return run_staged(&c);
}

static void step_head(call *c, const head_ref *p)
{
    const size_t head_k = c->shape->head_k, head_v = c->shape->head_v;
    float q[QN_GDN_MAX_DIM], k[QN_GDN_MAX_DIM], v[QN_GDN_MAX_DIM], o[QN_GDN_MAX_DIM];
    float *state = (float *)c->final.data + p->state * head_v * head_k;
    for (size_t row = p->row; row < p->row + p->n; row++) {
        const size_t gate = row * c->shape->v_heads + p->head;
        const qn_gdn_token token = { .q = q,
                                     .k = k,
                                     .v = v,
                                     .decay = qn_exp(((const float *)c->g.data)[gate]),
                                     .beta = ((const float *)c->beta.data)[gate],
                                     .scale = c->shape->scale };
        load_keys(c, q, c->q, p, row, 1);
        load_keys(c, k, c->k, p, row, 1);
        load_values(c, v, c->v, p, row, 1);
        if (c->shape->normalize) {
            normalize_row(q, head_k, NORMALIZE_EPS, c->dtype);
            normalize_row(k, head_k, NORMALIZE_EPS, c->dtype);
        }
        c->stages.rows->step(state, &token, head_k, head_v, o);
        store_rows(c, c->o, o, p, row, 1, head_v);
    }
}

qn_status qn_gdn_step(const qn_gdn_shape *shape, qn_view q, qn_view k, qn_view v, qn_view g, qn_view beta,
                      qn_view state, qn_view o)
{
    call c;
    QN_TRY(begin_composed(&c, shape, q, k, v, g, beta, o));
    QN_TRY(check_states(&c, "state", state));
    c.final = state;
    for_each_head(&c, step_head);
    return QN_OK;
}

/* ---- Norms around the delta rule ---- */

static qn_status check_eps(float eps)
{
    if (eps > 0 && !isinf(eps))
        return QN_OK;
    return qn_fail(QN_ERR_INVALID, "eps: %g, expected finite and more than 0", (double)eps);
}

qn_status qn_l2_norm(qn_view x, size_t n_rows, size_t n, float eps, qn_view out)
{
    float *row;
    QN_TRY(qn_api_ready());
    QN_TRY(check_eps(eps));
    QN_TRY(qn_check_float_type("x", x));
    QN_TRY(qn_check_view("x", x, x.dtype, n_rows, n, 1));
    QN_TRY(qn_check_view("out", out, x.dtype, n_rows, n, 1));
    QN_TRY(qn_alloc(&row, n, sizeof *row, "l2 norm"));
    for (size_t i = 0; n && i < n_rows; i++) {
        const size_t at = i * n * type_size(x.dtype);
        qn_api_kernels.gdn_rows.to_f32(row, (const char *)x.data + at, x.dtype, n);
        normalize_row(row, n, eps, QN_DTYPE_F32);
        qn_api_kernels.gdn_rows.from_f32((char *)out.data + at, row, x.dtype, n);
    }
    qn_free(row);
    return QN_OK;
}

qn_status qn_gated_rms_norm(qn_view x, qn_view gate, qn_view weight, size_t n_rows, size_t n, float eps, qn_view out)
{
    float *normed, *gates;
    QN_TRY(qn_api_ready());
    QN_TRY(check_eps(eps));
    QN_TRY(qn_check_float_type("x", x));
    QN_TRY(qn_check_view("x", x, x.dtype, n_rows, n, 1));
    QN_TRY(qn_check_view("gate", gate, x.dtype, n_rows, n, 1));
    QN_TRY(qn_check_view("weight", weight, QN_DTYPE_F32, n, 1, 1));
    QN_TRY(qn_check_view("out", out, x.dtype, n_rows, n, 1));
    QN_TRY(qn_alloc(&normed, n, 2 * sizeof *normed, "gated norm"));
    gates = normed + n;
    for (size_t i = 0; n && i < n_rows; i++) {
        const size_t at = i * n * type_size(x.dtype);
        qn_api_kernels.gdn_rows.to_f32(normed, (const char *)x.data + at, x.dtype, n);
        qn_api_kernels.gdn_rows.to_f32(gates, (const char *)gate.data + at, x.dtype, n);
        qn_rms_norm_row(&qn_api_kernels.norm, normed, normed, weight.data, n, eps);
        qn_api_kernels.elementwise.swiglu(normed, gates, normed, n);
        qn_api_kernels.gdn_rows.from_f32((char *)out.data + at, normed, x.dtype, n);
    }
    qn_free(normed);
    return QN_OK;
}
