/* Tokens through a head of the gated delta rule, chunk by chunk, as products of small matrices.
 *
 * Every sum is a chain of fused multiply-adds over rising tokens, or rising key dimensions, so it may be cut anywhere: what
 * comes from the state, from tokens of earlier calls, and from blocks of this call's tokens is added by one product each, and
 * what tokens of a block give each other token by token. Which keys are kept, and where heads and their slices lie, is up to
 * the caller. */
#include "kernels/deltanet/deltanet.h"

#include <stdint.h>
#include <string.h>

/* Tokens of a block correct each other one by one; blocks correct each other by products. */
enum { BLOCK = 16, SCORE_ROW = QN_GDN_CHUNK + QN_GDN_UNIT };

/* The scratch memory, and what it holds of the chunk that is being worked on. Pairs of arrays hold all rows for k, then all for
 * q, so that one product serves both. */
typedef struct chunk {
    size_t stored;  /* tokens whose keys and decays are kept */
    size_t first;   /* of the call's tokens those of this chunk, which come after them, begin here */
    size_t rows;    /* and are so many */
    size_t key_row; /* of keys: rows, rounded up to whole units; 1 for a lone token, whose key is a column as it stands */
    double *sums;   /* [QN_GDN_CHUNK] of a head's decays, all tokens of the chunk */
    double *minus;  /* [QN_GDN_CHUNK] what exponents of a single sum are taken from */
    float *factors; /* [QN_GDN_CHUNK] */
    float *keys;    /* [head_k][key_row] of this call's tokens */
    float *pairs;   /* [2*rows][head_k]: k, q */
    float *dots;    /* [2*rows][SCORE_ROW]: k.k, q.k by all tokens of the chunk */
    float *scores;  /* the same, gated by a head's decays */
    float *values;  /* [2*rows][n_values]: the header's a, b */
} chunk;

static size_t whole_units(size_t n)
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
    chunk c = { .sums = scratch };
    c.minus = c.sums + QN_GDN_CHUNK;
    c.factors = (float *)(void *)(c.minus + QN_GDN_CHUNK);
    c.keys = c.factors + QN_GDN_CHUNK;
    c.pairs = c.keys + QN_GDN_CHUNK * head_k;
    c.dots = c.pairs + 2 * QN_GDN_CHUNK * head_k;
    c.scores = c.dots + 2 * QN_GDN_CHUNK * SCORE_ROW;
    c.values = c.scores + 2 * QN_GDN_CHUNK * SCORE_ROW;
    return c;
}

/* Sums of a head's decays, those of the stored tokens first. */
static void sum_decays(chunk *c, const qn_gdn_group *group, const qn_gdn_head *head)
{
    double sum = 0;
    for (size_t j = 0; j < c->stored; j++)
        c->sums[j] = sum += (double)head->decay[j];
    for (size_t i = 0; i < c->rows; i++)
        c->sums[c->stored + i] = sum += (double)head->g[(c->first + i) * group->gate_stride];
}

/* factors[j] = e^(at - sums[first + j]). */
static void factors_from(const qn_deltanet_kernels *kernels, chunk *c, double at, const double *sums, size_t n)
{
    for (size_t j = 0; j < n; j++)
        c->factors[j] = 1;
    kernels->gate(c->factors, 0, 1, at, sums, n);
}

/* Keys and queries side by side, and keys once more as columns. */
static void gather(chunk *c, const qn_gdn_group *group)
{
    const size_t head_k = group->head_k;
    for (size_t i = 0; i < c->rows; i++) {
        memcpy(c->pairs + i * head_k, group->k + (c->first + i) * group->qk_stride, head_k * sizeof(float));
        memcpy(c->pairs + (c->rows + i) * head_k, group->q + (c->first + i) * group->qk_stride, head_k * sizeof(float));
    }
    if (c->key_row == 1) {
        memcpy(c->keys, c->pairs, head_k * sizeof(float));
        return;
    }
    for (size_t d = 0; d < head_k; d++)
        for (size_t i = 0; i < c->rows; i++)
            c->keys[d * c->key_row + i] = c->pairs[i * head_k + d];
}

/* Dots of keys and queries with the chunk's keys. Columns are formed in whole units: those past a token's own are never looked
 * at. */
static void dot(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, chunk *c)
{
    const size_t head_k = group->head_k, stored = c->stored, rows = c->rows;
    kernels->product(c->dots, SCORE_ROW, c->pairs, head_k, 1, group->keys, QN_GDN_CHUNK, 2 * rows, whole_units(stored), head_k,
                     false, group->heads->state);
    if (rows <= BLOCK)
        kernels->product(c->dots + stored, SCORE_ROW, c->pairs, head_k, 1, c->keys, c->key_row, 2 * rows, c->key_row, head_k,
                         false, NULL);
    for (size_t from = 0; rows > BLOCK && from < rows; from += BLOCK) {
        const size_t n = rows - from < BLOCK ? rows - from : BLOCK, columns = whole_units(from + n);
        for (size_t row = from; row < 2 * rows; row += rows)
            kernels->product(c->dots + row * SCORE_ROW + stored, SCORE_ROW, c->pairs + row * head_k, head_k, 1, c->keys,
                             c->key_row, n, columns, head_k, false, NULL);
    }
}

static void score(const qn_deltanet_kernels *kernels, chunk *c)
{
    for (size_t i = 0; i < c->rows; i++) {
        const size_t n = c->stored + i + 1;
        for (size_t row = i; row < 2 * c->rows; row += c->rows)
            memcpy(c->scores + row * SCORE_ROW, c->dots + row * SCORE_ROW, n * sizeof(float));
        kernels->gate(c->scores + i * SCORE_ROW, c->rows * SCORE_ROW, 2, c->sums[n - 1], c->sums, n);
    }
}

/* What the state at the chunk's start and the stored tokens give to all rows. */
static void recall(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, const qn_gdn_head *head, chunk *c,
                   const float *next)
{
    const size_t head_k = group->head_k, n_values = group->n_values, rows = c->rows;
    kernels->product(c->values, n_values, c->pairs, head_k, 1, head->state, head->state_row, 2 * rows, n_values, head_k, false,
                     c->stored ? head->corrected : next);
    for (size_t i = 0; i < rows; i++)
        c->minus[i] = -c->sums[c->stored + i];
    factors_from(kernels, c, 0, c->minus, rows);
    for (size_t i = 0; i < 2 * rows; i++)
        kernels->scale(c->values + i * n_values, c->values + i * n_values, c->factors[i % rows], n_values);
    kernels->product(c->values, n_values, c->scores, SCORE_ROW, 1, head->corrected, head->corrected_row, 2 * rows, n_values,
                     c->stored, true, next);
}

/* Corrected values and outputs of a block, whose rows have what comes from before it. */
static void finish_block(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, const qn_gdn_head *head, chunk *c,
                         size_t from, size_t n)
{
    const size_t n_values = group->n_values, start = c->stored + from;
    const float *block = head->corrected + start * head->corrected_row;
    for (size_t i = from; i < from + n; i++) {
        const size_t token = c->first + i;
        float *a = c->values + i * n_values, *b = a + c->rows * n_values;
        const float *k_scores = c->scores + i * SCORE_ROW + start, *q_scores = k_scores + c->rows * SCORE_ROW;
        kernels->product(a, 0, k_scores, 0, 1, block, head->corrected_row, 1, n_values, i - from, true, NULL);
        kernels->correct(head->corrected + (c->stored + i) * head->corrected_row, head->v + token * group->v_stride, a,
                         head->beta[token * group->gate_stride], n_values);
        kernels->product(b, 0, q_scores, 0, 1, block, head->corrected_row, 1, n_values, i - from + 1, true, NULL);
        kernels->scale(head->o + token * group->o_stride, b, group->scale, n_values);
    }
}

/* The tokens of a chunk through a head; next: what is read after it. */
static void advance_head(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, const qn_gdn_head *head, chunk *c,
                         const float *next)
{
    const size_t n_values = group->n_values;
    sum_decays(c, group, head);
    score(kernels, c);
    recall(kernels, group, head, c, next);
    for (size_t from = 0; from < c->rows; from += BLOCK) {
        const size_t n = c->rows - from < BLOCK ? c->rows - from : BLOCK;
        for (size_t row = from; row < 2 * c->rows; row += c->rows)
            kernels->product(c->values + row * n_values, n_values, c->scores + row * SCORE_ROW + c->stored, SCORE_ROW, 1,
                             head->corrected + c->stored * head->corrected_row, head->corrected_row, n, n_values, from, true,
                             NULL);
        finish_block(kernels, group, head, c, from, n);
    }
}

/* The chunk's tokens, stored ones and this call's, into a head's state. */
static void close_head(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, const qn_gdn_head *head, chunk *c)
{
    const size_t n = c->stored + c->rows, n_values = group->n_values;
    if (!n)
        return;
    sum_decays(c, group, head);
    const double last = c->sums[n - 1], minus = -last;
    factors_from(kernels, c, 0, &minus, 1);
    for (size_t d = 0; d < group->head_k; d++)
        kernels->scale(head->state + d * head->state_row, head->state + d * head->state_row, c->factors[0], n_values);
    factors_from(kernels, c, last, c->sums, n);
    for (size_t j = 0; j < n; j++)
        kernels->scale(c->values + j * n_values, head->corrected + j * head->corrected_row, c->factors[j], n_values);
    kernels->product(head->state, head->state_row, group->keys, QN_GDN_CHUNK, 1, c->values, n_values, group->head_k, n_values,
                     c->stored, true, NULL);
    kernels->product(head->state, head->state_row, c->keys, c->key_row, 1, c->values + c->stored * n_values, n_values,
                     group->head_k, n_values, c->rows, true, NULL);
}

static void close_heads(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, chunk *c)
{
    for (size_t h = 0; h < group->n_heads; h++)
        close_head(kernels, group, &group->heads[h], c);
}

void qn_gdn_advance(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, void *scratch)
{
    chunk c = chunk_in(scratch, group->head_k);
    c.stored = group->open;
    for (size_t done = 0; done < group->n; done += c.rows) {
        if (c.stored + c.rows == QN_GDN_CHUNK) {
            close_heads(kernels, group, &c);
            c.stored = 0;
        }
        c.first = done;
        const size_t room = QN_GDN_CHUNK - c.stored;
        c.rows = group->n - done < room ? group->n - done : room;
        c.key_row = c.rows == 1 ? 1 : whole_units(c.rows);
        gather(&c, group);
        dot(kernels, group, &c);
        for (size_t h = 0; h < group->n_heads; h++)
            advance_head(kernels, group, &group->heads[h], &c,
                         h + 1 < group->n_heads ? group->heads[h + 1].state : group->next);
    }
}

size_t qn_gdn_open_after(size_t open, size_t n)
{
    return n ? (open + n - 1) % QN_GDN_CHUNK + 1 : open;
}

/* Where in the open chunk the first of the new tokens that stay goes, and which it is. */
static size_t first_kept(size_t open, size_t n, size_t *token)
{
    const size_t after = qn_gdn_open_after(open, n);
    const bool same_chunk = open + n <= QN_GDN_CHUNK;
    *token = same_chunk ? 0 : n - after;
    return same_chunk ? open : 0;
}

void qn_gdn_keep_keys(float *keys, size_t head_k, size_t open, const float *k, size_t k_stride, size_t n)
{
    size_t token;
    const size_t column = first_kept(open, n, &token);
    for (size_t d = 0; d < head_k; d++)
        for (size_t i = 0; token + i < n; i++)
            keys[d * QN_GDN_CHUNK + column + i] = k[(token + i) * k_stride + d];
}

void qn_gdn_keep_decay(float *decay, size_t open, const float *g, size_t g_stride, size_t n)
{
    size_t token;
    const size_t at = first_kept(open, n, &token);
    for (size_t i = 0; token + i < n; i++)
        decay[at + i] = g[(token + i) * g_stride];
}

void qn_gdn_close(const qn_deltanet_kernels *kernels, const qn_gdn_group *group, void *scratch)
{
    chunk c = chunk_in(scratch, group->head_k);
    c.stored = group->open;
    close_heads(kernels, group, &c);
}
