/* The CPU executor: each operation's share of work for each thread. What is computed, and in which order, is the kernels'
 * affair; here only who does it and when. Gated DeltaNet layers have a file of their own, recurrent.c. */
#include "device/cpu/internal.h"

#include "base/memory.h"

#include <string.h>

/* Scratch of one thread for attention: a tile of queries with their running results, one block's results, and scores. Queries
 * of a cache of codes are whole numbers, in the same place. */
struct attention_scratch {
    float *queries, *block, *running, *scores;
    int16_t *whole;
    float query_scales[QN_QUERY_TILE];
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
    s->whole = (int16_t *)(void *)s->queries;
    s->block = s->queries + QN_QUERY_TILE * head_dim;
    s->running = s->block + QN_QUERY_TILE * head_dim;
    s->scores = s->running + QN_QUERY_TILE * head_dim;
    return s;
}

/* The most that any operation of the plan asks of one thread's scratch. */
static size_t scratch_bytes(const qn_kernels *kernels, const qn_plan *plan)
{
    size_t bytes = attention_scratch_bytes(plan->heads.head_dim);
    for (size_t i = 0; i < plan->n_acts; i++) {
        const size_t need = qn_matmul_scratch(&kernels->matmul, plan->acts[i].width);
        bytes = need > bytes ? need : bytes;
    }
    for (size_t i = 0; i < plan->n_ops; i++) {
        /* A unit's values, and behind them the head that attention merges, before and after it is rotated back. */
        const size_t need = (qn_unit_values(plan, &plan->ops[i]) + 2 * plan->heads.head_dim) * sizeof(float);
        bytes = need > bytes ? need : bytes;
    }
    const size_t delta = plan->recurrent.n_v_heads ? qn_gdn_scratch(plan->recurrent.head_k) : 0;
    return qn_round_up(delta > bytes ? delta : bytes, QN_ALIGN);
}

qn_status qn_executor_create(qn_team *team, const qn_kernels *kernels, const qn_plan *plan, qn_executor **out)
{
    const qn_recurrent_shape *shape = &plan->recurrent;
    qn_executor *executor;
    *out = NULL;
    QN_TRY(qn_alloc(&executor, 1, sizeof *executor, "executor"));
    *executor = (qn_executor){ .team = team, .kernels = kernels, .plan = plan, .scratch_bytes = scratch_bytes(kernels, plan) };
    qn_status status = qn_alloc(&executor->scratch, (size_t)qn_team_size(team), executor->scratch_bytes, "thread scratch");
    if (status == QN_OK)
        status = qn_alloc(&executor->claims, plan->n_ops, sizeof *executor->claims, "executor");
    if (status == QN_OK && shape->n_v_heads)
        status = qn_alloc(&executor->zeros, 2 * shape->n_k_heads * shape->head_k + shape->n_v_heads * shape->head_v,
                          sizeof *executor->zeros, "executor");
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
    qn_free(executor->zeros);
    qn_free(executor);
}

/* Blocks of [first, first + n) of a row, turned in place. */
static void rotate(const qn_executor *ex, const qn_plan_rotation *rotation, bool inverse, float *values, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i += rotation->block) {
        const float *signs = rotation->signs ? rotation->signs + first + i : NULL;
        ex->kernels->hadamard.block(values + i, rotation->block, inverse ? NULL : signs, inverse ? signs : NULL);
    }
}

size_t qn_unit_values(const qn_plan *plan, const qn_op *op)
{
    size_t values = QN_SUPER;
    for (size_t i = 0; i < op->n_acts; i++) {
        const size_t block = plan->acts[op->acts[i]].rotation.block;
        values = block > values ? block : values;
    }
    return values;
}

static size_t units_of_row(const qn_executor *ex, const qn_op *op)
{
    const size_t values = qn_unit_values(ex->plan, op);
    return (ex->plan->acts[op->acts[0]].width + values - 1) / values;
}

size_t qn_units_of(const qn_executor *ex, const qn_op *op, size_t n_rows)
{
    return n_rows * units_of_row(ex, op);
}

qn_unit qn_unit_at(const qn_executor *ex, const qn_op *op, size_t index, int thread)
{
    const size_t values = qn_unit_values(ex->plan, op), per_row = units_of_row(ex, op), first = index % per_row * values;
    const size_t left = ex->plan->acts[op->acts[0]].width - first;
    return (qn_unit){ .row = index / per_row,
                      .first = first,
                      .n = left < values ? left : values,
                      .values = (float *)qn_thread_scratch(ex, thread) };
}

void qn_unit_write(const qn_executor *ex, const qn_op *op, const qn_unit *unit)
{
    for (size_t a = 0; a < op->n_acts; a++) {
        /* The plan owns the buffers and is constant in shape; their contents are this step's. */
        qn_plan_acts *acts = &ex->plan->acts[op->acts[a]];
        if (acts->rotation.block)
            rotate(ex, &acts->rotation, false, unit->values, unit->first, unit->n);
        for (size_t i = 0; i < unit->n; i += QN_SUPER)
            ex->kernels->matmul.quantize(&acts->acts, unit->row, (unit->first + i) / QN_SUPER, unit->values + i,
                                         unit->n - i < QN_SUPER ? unit->n - i : QN_SUPER);
    }
}

static void run_embed(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_matrix *table = &op->matrices[0].weights;
    const size_t half = ex->plan->heads.n_rot / 2;
    size_t begin, end;
    qn_team_share(ex->step->n_rows, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t row = begin; row < end; row++) {
        const qn_row *r = &ex->step->rows[row];
        float *x = qn_buffer_row(ex, op->out, row);
        table->type->decode(table->data + (size_t)r->token * table->row_bytes, table->n_cols / table->type->block_weights, x);
        if (op->inverse.block)
            rotate(ex, &op->inverse, true, x, 0, table->n_cols);
        qn_rope_angles(r->position, ex->plan->frequencies, ex->plan->heads.n_rot, ex->plan->cosines + row * half,
                       ex->plan->sines + row * half);
    }
}

/* Threads share the units of all rows; each finds the scale of the rows it has a part of for itself, which costs less than
 * waiting for another to find it. */
static void run_norm(const qn_executor *ex, const qn_op *op, size_t n_rows, const uint32_t *rows, int thread)
{
    size_t begin, end, scaled = SIZE_MAX;
    float scale = 0;
    qn_team_share(qn_units_of(ex, op, n_rows), 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t index = begin; index < end; index++) {
        const qn_unit unit = qn_unit_at(ex, op, index, thread);
        const float *x = qn_buffer_row(ex, op->in, rows ? rows[unit.row] : unit.row);
        if (unit.row != scaled)
            scale = qn_rms_scale(&ex->kernels->norm, x, ex->plan->buffers[op->in].width, op->eps);
        scaled = unit.row;
        ex->kernels->norm.scale(unit.values, x + unit.first, op->weight + unit.first, scale, unit.n);
        qn_unit_write(ex, op, &unit);
    }
}

static void run_swiglu(const qn_executor *ex, const qn_op *op, int thread)
{
    size_t begin, end;
    qn_team_share(qn_units_of(ex, op, ex->step->n_rows), 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t index = begin; index < end; index++) {
        const qn_unit unit = qn_unit_at(ex, op, index, thread);
        ex->kernels->elementwise.swiglu(unit.values, qn_buffer_row(ex, op->in, unit.row) + unit.first,
                                        qn_buffer_row(ex, op->in2, unit.row) + unit.first, unit.n);
        qn_unit_write(ex, op, &unit);
    }
}

static void turn_head(const qn_executor *ex, const qn_op *op, float *x, const float *norm, size_t row)
{
    const size_t half = op->heads.n_rot / 2;
    if (norm)
        qn_rms_norm_row(&ex->kernels->norm, x, x, norm, op->heads.head_dim, op->eps);
    ex->kernels->rope.apply(x, ex->plan->cosines + row * half, ex->plan->sines + row * half, op->heads.n_rot, op->heads.rope);
}

static void encode_query(const qn_executor *ex, const qn_aura_codec *codec, float *q)
{
    float turned[QN_AURA_MAX_DIM], scale;
    int16_t whole[QN_AURA_MAX_DIM];
    qn_aura_rotate(&ex->kernels->aura, codec, turned, q);
    qn_aura_query(whole, &scale, turned, codec);
    memcpy(q, whole, codec->dim * sizeof *whole);
    memcpy((uint8_t *)q + codec->dim * sizeof *whole, &scale, sizeof scale);
}

static void turn_query(const qn_executor *ex, const qn_op *op, size_t row, size_t head)
{
    const qn_attention_shape *h = &op->heads;
    const qn_kv_view *cache = ex->step->rows[row].cache;
    const float *from = qn_buffer_row(ex, op->in, row) + head * h->head_dim * (h->gated ? 2 : 1);
    float *q = qn_buffer_row(ex, op->out, row) + head * h->head_dim;
    if (q != from)
        memcpy(q, from, h->head_dim * sizeof *q);
    turn_head(ex, op, q, op->weight, row);
    for (size_t d = 0; d < h->head_dim; d++)
        q[d] *= h->scale;
    if (cache->key_codec)
        encode_query(ex, cache->key_codec, q);
}

static void store_head(const qn_executor *ex, const qn_op *op, size_t row, size_t kv)
{
    const size_t dim = op->heads.head_dim, layer = (size_t)op->layer;
    const qn_row *r = &ex->step->rows[row];
    const qn_kv_view *cache = r->cache;
    const size_t block = r->position / QN_KEY_BLOCK, position = r->position % QN_KEY_BLOCK;
    void *keys = qn_kv_keys(cache, layer, block, kv), *values = qn_kv_values(cache, layer, block, kv);
    float *key = qn_buffer_row(ex, op->in2, row) + kv * dim;
    const float *value = qn_buffer_row(ex, op->in3, row) + kv * dim;
    turn_head(ex, op, key, op->weight2, row);
    if (cache->key_codec)
        qn_aura_store_block(&ex->kernels->aura, cache->key_codec, cache->value_codec, keys, values, position, key, value);
    else
        ex->kernels->attention.store(keys, values, position, key, value, dim);
}

/* From this row on, how many are of one session and one run of positions, whose codes share bytes. */
static size_t rows_of_run(const qn_step *step, size_t row)
{
    const qn_row *first = &step->rows[row];
    size_t n = 1;
    while (row + n < step->n_rows && first[n].cache == first->cache &&
           first[n].position / QN_KV_RUN == first->position / QN_KV_RUN)
        n++;
    return n;
}

/* Threads share the queries of all rows, and (run of rows, key-value head), dealt out from the last thread on: the first have
 * the queries that are left over. */
static void run_heads(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_attention_shape *h = &op->heads;
    const size_t n_threads = (size_t)qn_team_size(ex->team), mine = n_threads - 1 - (size_t)thread;
    size_t begin, end, unit = 0;
    qn_team_share(ex->step->n_rows * h->n_heads, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t i = begin; i < end; i++)
        turn_query(ex, op, i / h->n_heads, i % h->n_heads);
    for (size_t row = 0, n; row < ex->step->n_rows; row += n) {
        n = rows_of_run(ex->step, row);
        for (size_t kv = 0; kv < h->n_kv_heads; kv++, unit++)
            for (size_t i = 0; unit % n_threads == mine && i < n; i++)
                store_head(ex, op, row + i, kv);
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

/* A tile's query i, as HEADS has left it. */
static void take_query(struct attention_scratch *s, const qn_kv_view *cache, size_t i, const float *q, size_t dim)
{
    if (!cache->key_codec) {
        memcpy(s->queries + i * dim, q, dim * sizeof *q);
        return;
    }
    memcpy(s->whole + i * dim, q, dim * sizeof *s->whole);
    memcpy(&s->query_scales[i], (const uint8_t *)q + dim * sizeof *s->whole, sizeof s->query_scales[i]);
}

/* The scratch's n queries against one block; `next` is whose keys come next, or NULL. */
static void attend_block(const qn_executor *ex, struct attention_scratch *s, const qn_kv_view *cache, const void *keys,
                         const void *values, const void *next, size_t n, size_t dim, float *out, float *m, float *l)
{
    if (!cache->key_codec) {
        ex->kernels->attention.block(s->queries, n, keys, values, s->visible, next, dim, out, m, l, s->scores);
        return;
    }
    const qn_aura_block block = {
        .key_codec = cache->key_codec, .value_codec = cache->value_codec, .keys = keys, .values = values, .next_keys = next
    };
    ex->kernels->aura.block(s->whole, s->query_scales, n, &block, s->visible, out, m, l);
}

/* y = x / l, in the model's basis; x is changed. */
static void finish_query(const qn_executor *ex, const qn_kv_view *cache, float *y, float *x, float l, size_t dim)
{
    if (!cache->value_codec) {
        ex->kernels->attention.finish(y, x, l, dim);
        return;
    }
    ex->kernels->attention.finish(x, x, l, dim);
    qn_aura_rotate_back(&ex->kernels->aura, cache->value_codec, y, x);
}

/* Few rows: threads share (row, block, key-value head); each unit's result goes to the partial buffers. */
static void attend_split(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_attention_shape *h = &op->heads;
    const qn_plan *plan = ex->plan;
    const size_t group = h->n_heads / h->n_kv_heads;
    struct attention_scratch *s = attention_scratch_at(qn_thread_scratch(ex, thread), h->head_dim);
    size_t begin, end, first_unit = 0;
    qn_team_share(partial_base(ex, ex->step->n_rows) * h->n_kv_heads, 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t row = 0; row < ex->step->n_rows; row++) {
        const qn_row *r = &ex->step->rows[row];
        const size_t n_units = blocks_seen(r) * h->n_kv_heads;
        for (size_t unit = begin > first_unit ? begin : first_unit; unit < end && unit < first_unit + n_units; unit++) {
            const size_t block = (unit - first_unit) / h->n_kv_heads, kv = (unit - first_unit) % h->n_kv_heads;
            const size_t entry = (first_unit / h->n_kv_heads + block) * h->n_heads + kv * group;
            const size_t next_kv = (kv + 1) % h->n_kv_heads, next_block = next_kv ? block : block + 1;
            const void *keys = qn_kv_keys(r->cache, (size_t)op->layer, block, kv);
            const void *next =
                unit + 1 < first_unit + n_units ? qn_kv_keys(r->cache, (size_t)op->layer, next_block, next_kv) : keys;
            for (size_t q = 0; q < group; q += QN_QUERY_TILE) {
                const size_t n = group - q < QN_QUERY_TILE ? group - q : QN_QUERY_TILE;
                for (size_t i = 0; i < n; i++) {
                    s->visible[i] = visible_in(r, block);
                    take_query(s, r->cache, i, qn_buffer_row(ex, op->in, row) + (kv * group + q + i) * h->head_dim,
                               h->head_dim);
                }
                attend_block(ex, s, r->cache, keys, qn_kv_values(r->cache, (size_t)op->layer, block, kv), next, n, h->head_dim,
                             plan->partial + (entry + q) * h->head_dim, plan->partial_m + entry + q,
                             plan->partial_l + entry + q);
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
    const qn_kv_view *cache = ex->step->rows[row].cache;
    const size_t dim = h->head_dim, kv = head / (h->n_heads / h->n_kv_heads), n_queries = n * n_heads;
    size_t n_blocks = 0;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < n_heads; j++)
            take_query(s, cache, i * n_heads + j, qn_buffer_row(ex, op->in, row + i) + (head + j) * dim, dim);
        const size_t blocks = blocks_seen(&ex->step->rows[row + i]);
        n_blocks = blocks > n_blocks ? blocks : n_blocks;
    }
    for (size_t block = 0; block < n_blocks; block++) {
        for (size_t q = 0; q < n_queries; q++)
            s->visible[q] = visible_in(&ex->step->rows[row + q / n_heads], block);
        float *out = block ? s->block : s->running;
        /* A single row waits for memory; a tile of many works on what it has read. */
        const void *keys = qn_kv_keys(cache, (size_t)op->layer, block, kv);
        const void *next = block + 1 < n_blocks ? qn_kv_keys(cache, (size_t)op->layer, block + 1, kv) : keys;
        attend_block(ex, s, cache, keys, qn_kv_values(cache, (size_t)op->layer, block, kv), n == 1 ? next : NULL, n_queries,
                     dim, out, block ? s->block_m : s->m, block ? s->block_l : s->l);
        for (size_t q = 0; block && q < n_queries; q++)
            if (s->visible[q])
                ex->kernels->attention.merge(s->running + q * dim, &s->m[q], &s->l[q], s->block + q * dim, s->block_m[q],
                                             s->block_l[q], dim);
    }
    for (size_t q = 0; q < n_queries; q++)
        finish_query(ex, cache, qn_buffer_row(ex, op->out, row + q / n_heads) + (head + q % n_heads) * dim,
                     s->running + q * dim, s->l[q], dim);
}

/* Many rows: threads share (tile of rows, key-value head), dealt out in turn because later tiles see more keys. */
static void attend_whole(const qn_executor *ex, const qn_op *op, int thread)
{
    const qn_attention_shape *h = &op->heads;
    const size_t group = h->n_heads / h->n_kv_heads;
    const size_t tile_heads = group < QN_QUERY_TILE ? group : QN_QUERY_TILE, tile_rows = QN_QUERY_TILE / tile_heads;
    struct attention_scratch *s = attention_scratch_at(qn_thread_scratch(ex, thread), h->head_dim);
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

/* One head of one row from its partial results, in the order of the blocks; `sum` is room for another such head. */
static void merge_head(const qn_executor *ex, const qn_attention_shape *h, size_t row, size_t head, float *out, float *sum)
{
    const qn_plan *plan = ex->plan;
    const size_t n_blocks = blocks_seen(&ex->step->rows[row]);
    size_t entry = partial_base(ex, row) * h->n_heads + head;
    float m = plan->partial_m[entry], l = plan->partial_l[entry];
    memcpy(sum, plan->partial + entry * h->head_dim, h->head_dim * sizeof *sum);
    for (size_t block = 1; block < n_blocks; block++) {
        entry += h->n_heads;
        ex->kernels->attention.merge(sum, &m, &l, plan->partial + entry * h->head_dim, plan->partial_m[entry],
                                     plan->partial_l[entry], h->head_dim);
    }
    finish_query(ex, ex->step->rows[row].cache, out, sum, l, h->head_dim);
}

/* Values [from, from + n) of a head's result. */
static void finish_head(const qn_executor *ex, const qn_op *op, size_t row, size_t head, size_t from, size_t n, float *values,
                        float *merged)
{
    const qn_attention_shape *h = &op->heads;
    if (ex->split_keys)
        merge_head(ex, h, row, head, merged, merged + h->head_dim);
    memcpy(values, (ex->split_keys ? merged : qn_buffer_row(ex, op->in, row) + head * h->head_dim) + from, n * sizeof *values);
    if (h->gated)
        ex->kernels->elementwise.gate(values, values, qn_buffer_row(ex, op->in2, row) + (2 * head + 1) * h->head_dim + from, n);
}

static void run_attention_out(const qn_executor *ex, const qn_op *op, int thread)
{
    const size_t dim = op->heads.head_dim;
    float *merged = (float *)qn_thread_scratch(ex, thread) + qn_unit_values(ex->plan, op);
    size_t begin, end;
    qn_team_share(qn_units_of(ex, op, ex->step->n_rows), 1, thread, qn_team_size(ex->team), &begin, &end);
    for (size_t index = begin; index < end; index++) {
        const qn_unit unit = qn_unit_at(ex, op, index, thread);
        for (size_t i = 0, n; i < unit.n; i += n) {
            const size_t from = (unit.first + i) % dim;
            n = dim - from < unit.n - i ? dim - from : unit.n - i;
            finish_head(ex, op, unit.row, (unit.first + i) / dim, from, n, unit.values + i, merged);
        }
        qn_unit_write(ex, op, &unit);
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
        case QN_OP_MATMUL:
        case QN_OP_LOGITS: qn_executor_multiply(ex, op, thread); break;
        case QN_OP_HEADS: run_heads(ex, op, thread); break;
        case QN_OP_ATTENTION: (ex->split_keys ? attend_split : attend_whole)(ex, op, thread); break;
        case QN_OP_ATTENTION_OUT: run_attention_out(ex, op, thread); break;
        case QN_OP_SWIGLU: run_swiglu(ex, op, thread); break;
        case QN_OP_CONV: qn_executor_conv(ex, op, thread); break;
        case QN_OP_DELTA: qn_executor_delta(ex, op, thread); break;
        case QN_OP_DELTA_OUT: qn_executor_delta_out(ex, op, thread); break;
        case QN_OP_LOGIT_NORM: run_norm(ex, op, ex->step->n_logit_rows, ex->step->logit_rows, thread); break;
        }
        if (i + 1 < ex->plan->n_ops)
            qn_executor_ask_ahead(ex, op + 1, thread);
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
    for (size_t i = 0; i < executor->plan->n_ops; i++)
        atomic_store_explicit(&executor->claims[i], 0, memory_order_relaxed);
    qn_team_run(executor->team, walk, executor);
    executor->step = NULL;
}
