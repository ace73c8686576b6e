/* The gated delta rule of CPU heads, chunk by chunk, as GEMMs of small matrices.
 *
 * Every sum is a sequence of fused multiply-adds over ascending tokens or ascending key dimensions, so it can be split
 * anywhere with the same result. The contributions of the state, of the open chunk's tokens of earlier calls, and of
 * earlier blocks of this call's tokens are one GEMM each; tokens within a block are processed one by one. The caller
 * owns the open chunk's keys and decays (qn_gdn_append_*) and the layout of heads and slices. */
#include "kernels/deltanet/deltanet.h"

#include <stdint.h>
#include <string.h>

/* Tokens within a block are corrected one by one; a GEMM adds the contributions of earlier blocks. */
enum { BLOCK = 16, SCORE_ROW = QN_GDN_CHUNK + QN_GDN_UNIT };

/* The current chunk, in the caller's scratch. Arrays of 2*rows rows hold all rows of k, then all rows of q, so that one
 * GEMM processes both. */
typedef struct chunk {
    size_t stored;  /* tokens of the open chunk from earlier calls */
    size_t first;   /* index of this chunk's first new token among the call's tokens */
    size_t rows;    /* number of new tokens in this chunk */
    size_t key_row; /* row length of keys: rows, rounded up to a multiple of QN_GDN_UNIT; 1 for a single token */
    double *gc;     /* [QN_GDN_CHUNK]: cumulative log decays of a head, stored tokens first */
    double *neg_gc; /* [QN_GDN_CHUNK]: -gc of the new tokens, for the factors e^gc */
    float *factors; /* [QN_GDN_CHUNK] */
    float *keys;    /* [head_k][key_row]: keys of the new tokens, transposed */
    float *kq;      /* [2*rows][head_k]: k, q */
    float *dots;    /* [2*rows][SCORE_ROW]: k.k, q.k with all tokens of the chunk */
    float *scores;  /* [2*rows][SCORE_ROW]: dots gated by a head's decays */
    float *values;  /* [2*rows][n_values]: a, b of deltanet.h */
} chunk;

static size_t round_up_units(size_t n)
{
    return (n + QN_GDN_UNIT - 1) / QN_GDN_UNIT * QN_GDN_UNIT;
}

size_t qn_gdn_scratch(size_t head_k)
{
    const size_t doubles = 2, floats = 1 + 3 * head_k + 4 * SCORE_ROW + 2 * QN_GDN_MAX_DIM;
    return QN_GDN_CHUNK * (doubles * sizeof(double) + floats * sizeof(float));
}

static chunk chunk_in(void *scratch, size_t head_k)
{
    chunk c = { .gc = scratch };
    c.neg_gc = c.gc + QN_GDN_CHUNK;
    c.factors = (float *)(void *)(c.neg_gc + QN_GDN_CHUNK);
    c.keys = c.factors + QN_GDN_CHUNK;
    c.kq = c.keys + QN_GDN_CHUNK * head_k;
    c.dots = c.kq + 2 * QN_GDN_CHUNK * head_k;
    c.scores = c.dots + 2 * QN_GDN_CHUNK * SCORE_ROW;
    c.values = c.scores + 2 * QN_GDN_CHUNK * SCORE_ROW;
    return c;
}

static void cumsum_decays(chunk *c, const qn_gdn_group *group, const qn_gdn_head *head)
{
    double sum = 0;
    for (size_t j = 0; j < c->stored; j++)
        c->gc[j] = sum += (double)head->log_decay[j];
    for (size_t i = 0; i < c->rows; i++)
        c->gc[c->stored + i] = sum += (double)head->g[(c->first + i) * group->gate_stride];
}

/* Sets factors[j] = e^(at - gc[j]). */
static void factors_from(const qn_deltanet_kernels *kernels, chunk *c, double at, const double *gc, size_t n)
{
    for (size_t j = 0; j < n; j++)
        c->factors[j] = 1;
    kernels->gate(c->factors, 0, 1, at, gc, n);
}

/* Copies the chunk's new keys and queries to kq, and the keys, transposed, to keys. */
static void gather_kq(chunk *c, const qn_gdn_group *group)
{
    const size_t head_k = group->head_k;
    for (size_t i = 0; i < c->rows; i++) {
        memcpy(c->kq + i * head_k, group->k + (c->first + i) * group->qk_stride, head_k * sizeof(float));
        memcpy(c->kq + (c->rows + i) * head_k, group->q + (c->first + i) * group->qk_stride, head_k * sizeof(float));
    }
    if (c->key_row == 1) {
        memcpy(c->keys, c->kq, head_k * sizeof(float));
        return;
    }
    for (size_t d = 0; d < head_k; d++)
        for (size_t i = 0; i < c->rows; i++)
            c->keys[d * c->key_row + i] = c->kq[i * head_k + d];
}

/* Computes the dot products of new keys and queries with the chunk's keys. The number of columns is rounded up to
 * QN_GDN_UNIT; columns after a token's own are never read. */
static void compute_dots(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, chunk *c)
{
    const size_t head_k = group->head_k, stored = c->stored, rows = c->rows;
    kernels->gemm(c->dots, SCORE_ROW, c->kq, head_k, 1, group->keys, QN_GDN_CHUNK, 2 * rows, round_up_units(stored),
                  head_k, false, group->heads->state);
    if (rows <= BLOCK)
        kernels->gemm(c->dots + stored, SCORE_ROW, c->kq, head_k, 1, c->keys, c->key_row, 2 * rows, c->key_row, head_k,
                      false, NULL);
    for (size_t from = 0; rows > BLOCK && from < rows; from += BLOCK) {
        const size_t n = rows - from < BLOCK ? rows - from : BLOCK, columns = round_up_units(from + n);
        for (size_t row = from; row < 2 * rows; row += rows)
            kernels->gemm(c->dots + row * SCORE_ROW + stored, SCORE_ROW, c->kq + row * head_k, head_k, 1, c->keys,
                          c->key_row, n, columns, head_k, false, NULL);
    }
}

static void gate_scores(const qn_deltanet_kernels *kernels, chunk *c)
{
    for (size_t i = 0; i < c->rows; i++) {
        const size_t n = c->stored + i + 1;
        for (size_t row = i; row < 2 * c->rows; row += c->rows)
            memcpy(c->scores + row * SCORE_ROW, c->dots + row * SCORE_ROW, n * sizeof(float));
        kernels->gate(c->scores + i * SCORE_ROW, c->rows * SCORE_ROW, 2, c->gc[n - 1], c->gc, n);
    }
}

/* Sets a and b of all rows to the contributions of the state at the chunk's start and of the stored tokens. */
static void add_history(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, const qn_gdn_head *head,
                        chunk *c, const float *next)
{
    const size_t head_k = group->head_k, n_values = group->n_values, rows = c->rows;
    kernels->gemm(c->values, n_values, c->kq, head_k, 1, head->state, head->state_row, 2 * rows, n_values, head_k,
                  false, c->stored ? head->v_new : next);
    for (size_t i = 0; i < rows; i++)
        c->neg_gc[i] = -c->gc[c->stored + i];
    factors_from(kernels, c, 0, c->neg_gc, rows);
    for (size_t i = 0; i < 2 * rows; i++)
        kernels->scale(c->values + i * n_values, c->values + i * n_values, c->factors[i % rows], n_values);
    kernels->gemm(c->values, n_values, c->scores, SCORE_ROW, 1, head->v_new, head->v_new_row, 2 * rows, n_values,
                  c->stored, true, next);
}

/* Computes the corrected values and outputs of a block. values already holds the contributions of all tokens before the
 * block. */
static void solve_block(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, const qn_gdn_head *head,
                        chunk *c, size_t from, size_t n)
{
    const size_t n_values = group->n_values, start = c->stored + from;
    const float *block = head->v_new + start * head->v_new_row;
    for (size_t i = from; i < from + n; i++) {
        const size_t token = c->first + i;
        float *a = c->values + i * n_values, *b = a + c->rows * n_values;
        const float *k_scores = c->scores + i * SCORE_ROW + start, *q_scores = k_scores + c->rows * SCORE_ROW;
        kernels->gemm(a, 0, k_scores, 0, 1, block, head->v_new_row, 1, n_values, i - from, true, NULL);
        kernels->delta(head->v_new + (c->stored + i) * head->v_new_row, head->v + token * group->v_stride, a,
                       head->beta[token * group->gate_stride], n_values);
        kernels->gemm(b, 0, q_scores, 0, 1, block, head->v_new_row, 1, n_values, i - from + 1, true, NULL);
        kernels->scale(head->o + token * group->o_stride, b, group->scale, n_values);
    }
}

/* Processes the chunk's new tokens in one head. next: the next operand to prefetch, or NULL. */
static void advance_head(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, const qn_gdn_head *head,
                         chunk *c, const float *next)
{
    const size_t n_values = group->n_values;
    cumsum_decays(c, group, head);
    gate_scores(kernels, c);
    add_history(kernels, group, head, c, next);
    for (size_t from = 0; from < c->rows; from += BLOCK) {
        const size_t n = c->rows - from < BLOCK ? c->rows - from : BLOCK;
        for (size_t row = from; row < 2 * c->rows; row += c->rows)
            kernels->gemm(c->values + row * n_values, n_values, c->scores + row * SCORE_ROW + c->stored, SCORE_ROW, 1,
                          head->v_new + c->stored * head->v_new_row, head->v_new_row, n, n_values, from, true, NULL);
        solve_block(kernels, group, head, c, from, n);
    }
}

/* Folds all tokens of the chunk, stored and new, into the head's state. */
static void flush_head(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, const qn_gdn_head *head, chunk *c)
{
    const size_t n = c->stored + c->rows, n_values = group->n_values;
    if (!n)
        return;
    cumsum_decays(c, group, head);
    const double last = c->gc[n - 1], neg_gc = -last;
    factors_from(kernels, c, 0, &neg_gc, 1);
    for (size_t d = 0; d < group->head_k; d++)
        kernels->scale(head->state + d * head->state_row, head->state + d * head->state_row, c->factors[0], n_values);
    factors_from(kernels, c, last, c->gc, n);
    for (size_t j = 0; j < n; j++)
        kernels->scale(c->values + j * n_values, head->v_new + j * head->v_new_row, c->factors[j], n_values);
    kernels->gemm(head->state, head->state_row, group->keys, QN_GDN_CHUNK, 1, c->values, n_values, group->head_k,
                  n_values, c->stored, true, NULL);
    kernels->gemm(head->state, head->state_row, c->keys, c->key_row, 1, c->values + c->stored * n_values, n_values,
                  group->head_k, n_values, c->rows, true, NULL);
}

static void flush_heads(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, chunk *c)
{
    for (size_t h = 0; h < group->n_heads; h++)
        flush_head(kernels, group, &group->heads[h], c);
}

void qn_gdn_advance(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, void *scratch)
{
    chunk c = chunk_in(scratch, group->head_k);
    c.stored = group->open_tokens;
    for (size_t done = 0; done < group->n; done += c.rows) {
        if (c.stored + c.rows == QN_GDN_CHUNK) {
            flush_heads(kernels, group, &c);
            c.stored = 0;
        }
        c.first = done;
        const size_t n_free = QN_GDN_CHUNK - c.stored;
        c.rows = group->n - done < n_free ? group->n - done : n_free;
        c.key_row = c.rows == 1 ? 1 : round_up_units(c.rows);
        gather_kq(&c, group);
        compute_dots(kernels, group, &c);
        for (size_t h = 0; h < group->n_heads; h++)
            advance_head(kernels, group, &group->heads[h], &c,
                         h + 1 < group->n_heads ? group->heads[h + 1].state : group->next);
    }
}

size_t qn_gdn_open_tokens_after(size_t open_tokens, size_t n)
{
    return n ? (open_tokens + n - 1) % QN_GDN_CHUNK + 1 : open_tokens;
}

/* Finds the first of n new tokens that is in the open chunk afterwards: its index among the new tokens in *token.
 * Returns its index in the chunk. */
static size_t first_appended(size_t open_tokens, size_t n, size_t *token)
{
    const size_t after = qn_gdn_open_tokens_after(open_tokens, n);
    const bool same_chunk = open_tokens + n <= QN_GDN_CHUNK;
    *token = same_chunk ? 0 : n - after;
    return same_chunk ? open_tokens : 0;
}

void qn_gdn_append_keys(float *keys, size_t head_k, size_t open_tokens, const float *k, size_t k_stride, size_t n)
{
    size_t token;
    const size_t column = first_appended(open_tokens, n, &token);
    for (size_t d = 0; d < head_k; d++)
        for (size_t i = 0; token + i < n; i++)
            keys[d * QN_GDN_CHUNK + column + i] = k[(token + i) * k_stride + d];
}

void qn_gdn_append_decay(float *log_decay, size_t open_tokens, const float *g, size_t g_stride, size_t n)
{
    size_t token;
    const size_t at = first_appended(open_tokens, n, &token);
    for (size_t i = 0; token + i < n; i++)
        log_decay[at + i] = g[(token + i) * g_stride];
}

void qn_gdn_flush(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, void *scratch)
{
    chunk c = chunk_in(scratch, group->head_k);
    c.stored = group->open_tokens;
    flush_heads(kernels, group, &c);
}
