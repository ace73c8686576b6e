/* The CPU executor: each operation's share of work for each thread. What is computed, and in which order, is the kernels'
 * affair; here only who does it and when. */
#include "device/cpu/executor.h"

#include "base/memory.h"

#include <stdatomic.h>
#include <string.h>

struct qn_executor {
    qn_team *team;
    const qn_kernels *kernels;
    const qn_plan *plan;
    const qn_step *step;
    bool split_keys; /* this step's attention is spread over blocks of keys too */
    size_t scratch_bytes;
    unsigned char *scratch; /* [n_threads, scratch_bytes] */
    atomic_uint *claims;    /* [n_ops, QN_OP_MATRICES] chunks of a matrix's rows that threads have taken this step */
};

/* Of a matrix's rows seven eighths are shared out beforehand, in long runs that memory likes; the rest goes in chunks to
 * whoever is done, so that nobody waits long for a slower core or one that was interrupted. Who computes a row never changes
 * its result. */
enum { CHUNK_ROWS = 64 };

/* Scratch of one thread for attention: a tile of queries with their running results, one block's results, and scores. */
struct attention_scratch {
    float *queries, *block, *running, *scores;
    float m[QN_QUERY_TILE], l[QN_QUERY_TILE], block_m[QN_QUERY_TILE], block_l[QN_QUERY_TILE];
    uint16_t visible[QN_QUERY_TILE];
};

static size_t attention_scratch_bytes(size_t head_dim)
{
    return qn_round_up(sizeof(struct attention_scratch), QN_ALIGN) +
           sizeof(float) * QN_QUERY_TILE * (3 * head_dim + QN_KEY_BLOCK);
}

static struct attention_scratch *attention_scratch_at(unsigned char *memory, size_t head_dim)
{
    struct attention_scratch *s = (struct attention_scratch *)memory;
    s->queries = (float *)(memory + qn_round_up(sizeof *s, QN_ALIGN));
    s->block = s->queries + QN_QUERY_TILE * head_dim;
    s->running = s->block + QN_QUERY_TILE * head_dim;
    s->scores = s->running + QN_QUERY_TILE * head_dim;
    return s;
}

qn_status qn_executor_create(qn_team *team, const qn_kernels *kernels, const qn_plan *plan, qn_executor **out)
{
    qn_executor *executor;
    *out = NULL;
    QN_TRY(qn_alloc(&executor, 1, sizeof *executor, "executor"));
    *executor = (qn_executor){ .team = team, .kernels = kernels, .plan = plan };
    size_t bytes = attention_scratch_bytes(plan->heads.head_dim);
    for (size_t i = 0; i < plan->n_acts; i++) {
        const size_t need = qn_matmul_scratch(&kernels->matmul, plan->acts[i].width);
        bytes = need > bytes ? need : bytes;
    }
    executor->scratch_bytes = qn_round_up(bytes, QN_ALIGN);
    qn_status status = qn_alloc(&executor->scratch, (size_t)qn_team_size(team), executor->scratch_bytes, "thread scratch");
    if (status == QN_OK)
        status = qn_alloc(&executor->claims, plan->n_ops, QN_OP_MATRICES * sizeof *executor->claims, "executor");
    if (status != QN_OK) {
        qn_executor_free(executor);
        return status;
    }
    *out = executor;
    return QN_OK;
}

void qn_executor_free(qn_executor *executor)
{
    if (!executor)
        return;
    qn_free(executor->scratch);
    qn_free(executor->claims);
    qn_free(executor);
}

static float *buffer_row(const qn_executor *ex, int id, size_t row)
{
    return ex->plan->buffers[id].data + row * ex->plan->buffers[id].width;
}

/* One super-block's worth of values of activations `id` into its forms. */
static void write_acts(const qn_executor *ex, int id, size_t row, size_t super, const float *values, size_t n)
{
    /* The plan owns the buffers and is constant in shape; their contents are this step's. */
    qn_acts *acts = (qn_acts *)&ex->plan->acts[id].acts;
    ex->kernels->matmul.quantize(acts, row, super, values, n);
}

static size_t super_width(const qn_acts *acts, size_t super)
{
    return acts->n_cols - super * QN_SUPER < QN_SUPER ? acts->n_cols - super * QN_SUPER : QN_SUPER;
}

static void run_embed(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_matrix *table = &op->matrices[0].weights;
    const size_t half = ex->plan->heads.n_rot / 2;
    size_t begin, end;
    qn_team_share(ex->step->n_rows, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t row = begin; row < end; row++) {
        const qn_row *r = &ex->step->rows[row];
        table->type->decode(table->data + (size_t)r->token * table->row_bytes, table->n_cols / table->type->block_weights,
                            buffer_row(ex, op->out, row));
        qn_rope_angles(r->position, ex->plan->frequencies, ex->plan->heads.n_rot, ex->plan->cosines + row * half,
                       ex->plan->sines + row * half);
    }
}

/* Threads share the super-blocks of all rows; each finds the scale of the rows it has a part of for itself, which costs less
 * than waiting for another to find it. */
static void run_norm(const qn_executor *ex, const qn_op *op, size_t n_rows, const uint32_t *rows, int thread)
{
    const qn_acts *acts = &ex->plan->acts[op->acts].acts;
    size_t begin, end, scaled = SIZE_MAX;
    float scale = 0;
    qn_team_share(n_rows * acts->n_super, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t unit = begin; unit < end; unit++) {
        const size_t row = unit / acts->n_super, super = unit % acts->n_super, n = super_width(acts, super);
        const float *x = buffer_row(ex, op->in, rows ? rows[row] : row);
        float values[QN_SUPER];
        if (row != scaled)
            scale = qn_rms_scale(&ex->kernels->norm, x, acts->n_cols, op->eps);
        scaled = row;
        ex->kernels->norm.scale(values, x + super * QN_SUPER, op->weight + super * QN_SUPER, scale, n);
        write_acts(ex, op->acts, row, super, values, n);
    }
}

static void run_swiglu(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_acts *acts = &ex->plan->acts[op->acts].acts;
    size_t begin, end;
    qn_team_share(ex->step->n_rows * acts->n_super, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t unit = begin; unit < end; unit++) {
        const size_t row = unit / acts->n_super, super = unit % acts->n_super, n = super_width(acts, super);
        float values[QN_SUPER];
        ex->kernels->elementwise.swiglu(values, buffer_row(ex, op->in, row) + super * QN_SUPER,
                                        buffer_row(ex, op->in2, row) + super * QN_SUPER, n);
        write_acts(ex, op->acts, row, super, values, n);
    }
}

/* A matrix of an operation by its activations: this thread's share of the rows, then chunks of the rest. */
static void multiply(const qn_executor *ex, const qn_op *op, size_t index, size_t n_tokens, float *out, size_t out_stride,
                     int thread)
{
    const struct qn_op_matrix *m = &op->matrices[index];
    const qn_matmul_kernels *kernels = &ex->kernels->matmul;
    const qn_acts *acts = &ex->plan->acts[op->acts].acts;
    void *scratch = ex->scratch + (size_t)thread * ex->scratch_bytes;
    const int n_threads = qn_team_size(ex->team);
    const size_t n_rows = m->weights.n_rows, shared = n_threads == 1 ? n_rows : n_rows * 7 / 8 / CHUNK_ROWS * CHUNK_ROWS;
    atomic_uint *claims = &ex->claims[(size_t)(op - ex->plan->ops) * QN_OP_MATRICES + index];
    size_t begin, end;
    qn_team_share(shared, CHUNK_ROWS, thread, n_threads, &begin, &end);
    while (begin < n_rows) {
        qn_matmul_rows(kernels, &m->weights, acts, n_tokens, begin, end, m->accumulate, out, out_stride, scratch);
        begin = shared == n_rows ? n_rows
                                 : shared + CHUNK_ROWS * (size_t)atomic_fetch_add_explicit(claims, 1, memory_order_relaxed);
        end = n_rows - begin < CHUNK_ROWS ? n_rows : begin + CHUNK_ROWS;
    }
}

static void run_matmul(const qn_executor *ex, const qn_op *op, int thread)
{
    for (size_t i = 0; i < op->n_matrices; i++) {
        const int out = op->matrices[i].out;
        multiply(ex, op, i, ex->step->n_rows, buffer_row(ex, out, 0), ex->plan->buffers[out].width, thread);
    }
}

static void run_logits(const qn_executor *ex, const qn_op *op, int thread)
{
    multiply(ex, op, 0, ex->step->n_logit_rows, ex->step->logits, ex->plan->n_vocab, thread);
}

static void turn_head(const qn_executor *ex, const qn_op *op, float *x, const float *norm, size_t row)
{
    const size_t half = op->heads.n_rot / 2;
    if (norm)
        qn_rms_norm_row(&ex->kernels->norm, x, x, norm, op->heads.head_dim, op->eps);
    ex->kernels->rope.apply(x, ex->plan->cosines + row * half, ex->plan->sines + row * half, op->heads.n_rot, op->heads.rope);
}

static void run_heads(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_attention_shape *h = &op->heads;
    const size_t units = h->n_heads + h->n_kv_heads;
    size_t begin, end;
    qn_team_share(ex->step->n_rows * units, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t unit = begin; unit < end; unit++) {
        const size_t row = unit / units, head = unit % units;
        const qn_row *r = &ex->step->rows[row];
        if (head < h->n_heads) {
            float *q = buffer_row(ex, op->in, row) + head * h->head_dim;
            turn_head(ex, op, q, op->weight, row);
            for (size_t d = 0; d < h->head_dim; d++)
                q[d] *= h->scale;
        } else {
            const size_t kv = head - h->n_heads, base = kv * r->cache->capacity * h->head_dim;
            float *k = buffer_row(ex, op->in2, row) + kv * h->head_dim;
            turn_head(ex, op, k, op->weight2, row);
            ex->kernels->attention.store(r->cache->keys[op->layer] + base, r->cache->values[op->layer] + base, r->position, k,
                                         buffer_row(ex, op->in3, row) + kv * h->head_dim, h->head_dim);
        }
    }
}

static size_t blocks_seen(const qn_row *row)
{
    return row->position / QN_KEY_BLOCK + 1;
}

static uint16_t visible_in(const qn_row *row, size_t block)
{
    const size_t seen = (size_t)row->position + 1, first = block * QN_KEY_BLOCK;
    return (uint16_t)(seen <= first ? 0 : seen - first < QN_KEY_BLOCK ? seen - first : QN_KEY_BLOCK);
}

/* Where a row's blocks begin in the partial buffers, in units of n_heads entries. */
static size_t partial_base(const qn_executor *ex, size_t row)
{
    size_t base = 0;
    for (size_t i = 0; i < row; i++)
        base += blocks_seen(&ex->step->rows[i]);
    return base;
}

/* Few rows: threads share (row, block, key-value head); each unit's result goes to the partial buffers. */
static void attend_split(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_attention_shape *h = &op->heads;
    const qn_plan *plan = ex->plan;
    const size_t group = h->n_heads / h->n_kv_heads;
    struct attention_scratch *s = attention_scratch_at(ex->scratch + (size_t)thread * ex->scratch_bytes, h->head_dim);
    size_t begin, end, first_unit = 0;
    qn_team_share(partial_base(ex, ex->step->n_rows) * h->n_kv_heads, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t row = 0; row < ex->step->n_rows; row++) {
        const qn_row *r = &ex->step->rows[row];
        const size_t n_units = blocks_seen(r) * h->n_kv_heads;
        for (size_t unit = begin > first_unit ? begin : first_unit; unit < end && unit < first_unit + n_units; unit++) {
            const size_t block = (unit - first_unit) / h->n_kv_heads, kv = (unit - first_unit) % h->n_kv_heads;
            const size_t at = (kv * r->cache->capacity + block * QN_KEY_BLOCK) * h->head_dim;
            const size_t entry = (first_unit / h->n_kv_heads + block) * h->n_heads + kv * group;
            for (size_t q = 0; q < group; q += QN_QUERY_TILE) {
                const size_t n = group - q < QN_QUERY_TILE ? group - q : QN_QUERY_TILE;
                for (size_t i = 0; i < n; i++)
                    s->visible[i] = visible_in(r, block);
                ex->kernels->attention.block(buffer_row(ex, op->in, row) + (kv * group + q) * h->head_dim, n,
                                             r->cache->keys[op->layer] + at, r->cache->values[op->layer] + at, s->visible,
                                             h->head_dim, plan->partial + (entry + q) * h->head_dim,
                                             plan->partial_m + entry + q, plan->partial_l + entry + q, s->scores);
            }
        }
        first_unit += n_units;
    }
}

/* Queries of rows [row, row + n) and heads [head, head + n_heads) of one key-value head, over all the blocks they see. */
static void attend_tile(const qn_executor *ex, const qn_op *op, size_t row, size_t n, size_t head, size_t n_heads,
                        struct attention_scratch *s)
{
    const qn_attention_shape *h = &op->heads;
    const qn_attention_kernels *kernels = &ex->kernels->attention;
    const qn_kv_view *cache = ex->step->rows[row].cache;
    const size_t dim = h->head_dim, kv = head / (h->n_heads / h->n_kv_heads), n_queries = n * n_heads;
    size_t n_blocks = 0;
    for (size_t i = 0; i < n; i++) {
        memcpy(s->queries + i * n_heads * dim, buffer_row(ex, op->in, row + i) + head * dim, n_heads * dim * sizeof(float));
        const size_t blocks = blocks_seen(&ex->step->rows[row + i]);
        n_blocks = blocks > n_blocks ? blocks : n_blocks;
    }
    for (size_t block = 0; block < n_blocks; block++) {
        const size_t at = (kv * cache->capacity + block * QN_KEY_BLOCK) * dim;
        for (size_t q = 0; q < n_queries; q++)
            s->visible[q] = visible_in(&ex->step->rows[row + q / n_heads], block);
        float *out = block ? s->block : s->running;
        kernels->block(s->queries, n_queries, cache->keys[op->layer] + at, cache->values[op->layer] + at, s->visible, dim, out,
                       block ? s->block_m : s->m, block ? s->block_l : s->l, s->scores);
        for (size_t q = 0; block && q < n_queries; q++)
            if (s->visible[q])
                kernels->merge(s->running + q * dim, &s->m[q], &s->l[q], s->block + q * dim, s->block_m[q], s->block_l[q], dim);
    }
    for (size_t q = 0; q < n_queries; q++)
        kernels->finish(buffer_row(ex, op->out, row + q / n_heads) + (head + q % n_heads) * dim, s->running + q * dim, s->l[q],
                        dim);
}

/* Many rows: threads share (tile of rows, key-value head), dealt out in turn because later tiles see more keys. */
static void attend_whole(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_attention_shape *h = &op->heads;
    const size_t group = h->n_heads / h->n_kv_heads;
    const size_t tile_heads = group < QN_QUERY_TILE ? group : QN_QUERY_TILE, tile_rows = QN_QUERY_TILE / tile_heads;
    struct attention_scratch *s = attention_scratch_at(ex->scratch + (size_t)thread * ex->scratch_bytes, h->head_dim);
    size_t unit = 0;
    for (size_t row = 0, n; row < ex->step->n_rows; row += n) {
        for (n = 1; n < tile_rows && row + n < ex->step->n_rows && ex->step->rows[row + n].cache == ex->step->rows[row].cache;)
            n++;
        for (size_t kv = 0; kv < h->n_kv_heads; kv++, unit++) {
            if (unit % (size_t)qn_team_size(ex->team) != (size_t)thread)
                continue;
            for (size_t head = kv * group; head < (kv + 1) * group; head += tile_heads) {
                const size_t left = (kv + 1) * group - head;
                attend_tile(ex, op, row, n, head, left < tile_heads ? left : tile_heads, s);
            }
        }
    }
}

/* One head of one row from its partial results, in the order of the blocks. */
static void merge_head(const qn_executor *ex, const qn_attention_shape *h, size_t base, size_t n_blocks, size_t head,
                       float *out)
{
    const qn_plan *plan = ex->plan;
    size_t entry = base * h->n_heads + head;
    float m = plan->partial_m[entry], l = plan->partial_l[entry];
    memcpy(out, plan->partial + entry * h->head_dim, h->head_dim * sizeof *out);
    for (size_t block = 1; block < n_blocks; block++) {
        entry += h->n_heads;
        ex->kernels->attention.merge(out, &m, &l, plan->partial + entry * h->head_dim, plan->partial_m[entry],
                                     plan->partial_l[entry], h->head_dim);
    }
    ex->kernels->attention.finish(out, out, l, h->head_dim);
}

static void run_attention_out(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_attention_shape *h = &op->heads;
    const qn_acts *acts = &ex->plan->acts[op->acts].acts;
    float *head_out = (float *)(ex->scratch + (size_t)thread * ex->scratch_bytes);
    size_t begin, end;
    qn_team_share(ex->step->n_rows * acts->n_super, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t unit = begin; unit < end; unit++) {
        const size_t row = unit / acts->n_super, super = unit % acts->n_super, n = super_width(acts, super);
        const size_t first = super * QN_SUPER;
        const float *whole = buffer_row(ex, op->in, row) + first;
        float values[QN_SUPER];
        for (size_t i = 0; ex->split_keys && i < n;) {
            const size_t head = (first + i) / h->head_dim, from = (first + i) % h->head_dim;
            const size_t count = h->head_dim - from < n - i ? h->head_dim - from : n - i;
            merge_head(ex, h, partial_base(ex, row), blocks_seen(&ex->step->rows[row]), head, head_out);
            memcpy(values + i, head_out + from, count * sizeof *values);
            i += count;
        }
        write_acts(ex, op->acts, row, super, ex->split_keys ? values : whole, n);
    }
}

static void walk(void *context, int thread)
{
    const qn_executor *ex = context;
    for (size_t i = 0; i < ex->plan->n_ops; i++) {
        const qn_op *op = &ex->plan->ops[i];
        switch (op->kind) {
        case QN_OP_EMBED: run_embed(ex, op, thread); break;
        case QN_OP_NORM: run_norm(ex, op, ex->step->n_rows, NULL, thread); break;
        case QN_OP_MATMUL: run_matmul(ex, op, thread); break;
        case QN_OP_HEADS: run_heads(ex, op, thread); break;
        case QN_OP_ATTENTION: (ex->split_keys ? attend_split : attend_whole)(ex, op, thread); break;
        case QN_OP_ATTENTION_OUT: run_attention_out(ex, op, thread); break;
        case QN_OP_SWIGLU: run_swiglu(ex, op, thread); break;
        case QN_OP_LOGIT_NORM: run_norm(ex, op, ex->step->n_logit_rows, ex->step->logit_rows, thread); break;
        case QN_OP_LOGITS: run_logits(ex, op, thread); break;
        }
        qn_team_barrier(ex->team);
    }
}

void qn_executor_run(qn_executor *executor, const qn_step *step)
{
    executor->step = step;
    /* Whole tiles keep every thread busy when there are several rows a thread; otherwise blocks of keys are shared out, as far
     * as the partial buffers reach. */
    const size_t busy = 4 * (size_t)qn_team_size(executor->team);
    executor->split_keys = step->n_rows * executor->plan->heads.n_kv_heads < busy &&
                           partial_base(executor, step->n_rows) * executor->plan->heads.n_heads <= executor->plan->n_partials;
    for (size_t i = 0; i < executor->plan->n_ops * QN_OP_MATRICES; i++)
        atomic_store_explicit(&executor->claims[i], 0, memory_order_relaxed);
    qn_team_run(executor->team, walk, executor);
    executor->step = NULL;
}
