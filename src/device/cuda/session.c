/* What a session remembers on a CUDA device: its cache in rows (kernels/kv_cuda.h), and for recurrent layers the state after
 * the last token, which the next one overwrites: going back there is to a mark, or to nothing. How a cache of codes is made up
 * of halves and codes is said at qn_kv_view, device/plan.h. */
#include "device/cuda/model.h"

#include "base/memory.h"
#include "kernels/deltanet/deltanet_cuda.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256, RUN = QN_ATTENTION_RUN };
_Static_assert((int)RUN == (int)QN_KV_RUN, "codes are made of the same runs everywhere");

typedef struct cuda_mark {
    const qn_cuda_memory *of;
    qn_cuda_buffer recurrent, halves; /* halves of the run that the last position is in, layer by layer */
    uint32_t open_from;
} cuda_mark;

static qn_cuda_memory *mine(qn_memory *memory)
{
    return (qn_cuda_memory *)memory;
}

static const qn_cuda_memory *mine_const(const qn_memory *memory)
{
    return (const qn_cuda_memory *)memory;
}

/* ---- Layout ---- */

static size_t n_codes(size_t length)
{
    return length > RUN ? length / RUN * RUN - RUN : 0;
}

/* `heads` parts of `bytes` each behind what is there. */
static bool add_part(size_t *used, size_t heads, size_t bytes, size_t *at)
{
    size_t all;
    *at = *used;
    return qn_mul_size(heads, bytes, &all) && qn_add_size(all, ALIGN - 1, &all) &&
           qn_add_size(*used, all / ALIGN * ALIGN, used);
}

static qn_status lay_out(qn_cuda_memory *m, size_t n_batch)
{
    const qn_attention_gpu *a = &m->attention;
    qn_cuda_kv_layout *l = &m->kv;
    const size_t row = a->head_dim * sizeof(uint16_t);
    l->capacity = qn_round_up(m->n_ctx, RUN);
    l->key_row = qn_attention_gpu_row_bytes(a->head_dim, a->key_bits);
    l->value_row = qn_attention_gpu_row_bytes(a->head_dim, a->value_bits);
    bool fits = add_part(&l->layer_bytes, a->n_kv_heads, l->capacity * l->key_row, &l->keys) &&
                add_part(&l->layer_bytes, a->n_kv_heads, l->capacity * l->value_row, &l->values);
    if (a->runs) {
        l->n_open = (uint32_t)((n_batch + RUN - 1) / RUN + 1);
        l->half_head = (1 + (size_t)l->n_open) * RUN * row;
        fits = fits && add_part(&l->layer_bytes, a->n_kv_heads, l->capacity * sizeof(float), &l->key_scales) &&
               add_part(&l->layer_bytes, a->n_kv_heads, l->capacity * sizeof(float), &l->value_scales) &&
               add_part(&l->layer_bytes, a->n_kv_heads, l->half_head, &l->half_keys) &&
               add_part(&l->layer_bytes, a->n_kv_heads, l->half_head, &l->half_values) &&
               add_part(&l->layer_bytes, a->n_kv_heads, a->head_dim * sizeof(float), &l->means);
    }
    return fits ? QN_OK : qn_fail(QN_ERR_MEMORY, "key-value cache: %zu positions do not fit in memory", m->n_ctx);
}

void qn_cuda_session_cache(const qn_cuda_memory *memory, size_t layer, qn_attention_gpu_cache *cache,
                           qn_attention_gpu_runs *runs)
{
    const qn_cuda_kv_layout *l = &memory->kv;
    const uint64_t at = memory->cache.address + memory->slots[layer] * l->layer_bytes;
    *cache = (qn_attention_gpu_cache){ .keys = at + l->keys,
                                       .values = at + l->values,
                                       .key_head = l->capacity * l->key_row,
                                       .value_head = l->capacity * l->value_row };
    *runs = (qn_attention_gpu_runs){ 0 };
    if (!memory->attention.runs)
        return;
    cache->key_scales = at + l->key_scales;
    cache->value_scales = at + l->value_scales;
    cache->scale_head = l->capacity * sizeof(float);
    *runs = (qn_attention_gpu_runs){ .keys = at + l->half_keys,
                                     .values = at + l->half_values,
                                     .means = at + l->means,
                                     .head = l->half_head,
                                     .n_open = l->n_open };
}

/* ---- Runs of halves: as cache/kv.c has them ---- */

static bool holds(size_t length, uint32_t from)
{
    const size_t run = length / RUN;
    return length % RUN == 0 || run == 0 || run >= from;
}

static size_t place_of(const qn_cuda_memory *m, size_t run)
{
    return run ? 1 + (run - 1) % m->kv.n_open : 0;
}

static void memory_appended(qn_memory *memory, size_t length)
{
    qn_cuda_memory *m = mine(memory);
    if (!m->attention.runs || !length)
        return;
    const size_t last = (length - 1) / RUN, from = last >= m->kv.n_open ? last - m->kv.n_open + 1 : 0;
    m->open_from = (uint32_t)(from > m->open_from ? from : m->open_from);
}

static size_t memory_reach(const qn_memory *memory, size_t length)
{
    const qn_cuda_memory *m = mine_const(memory);
    return !m->attention.runs || holds(length, m->open_from) ? length : length / RUN * RUN;
}

static void memory_cut(qn_memory *memory, size_t length)
{
    const uint32_t run = (uint32_t)(length / RUN);
    mine(memory)->open_from = run < mine(memory)->open_from ? run : mine(memory)->open_from;
}

/* The last token's state is the only one there is. */
static size_t memory_open(size_t held)
{
    return held ? 1 : 0;
}

/* ---- Pieces: all that some positions are, in an order of its own ---- */

/* Of the cache, `at` bytes from its begin, or of the recurrent layers. */
typedef qn_status (*at_fn)(void *context, const qn_cuda_buffer *of, size_t at, size_t bytes);

static qn_status each_row(const qn_cuda_memory *m, size_t part, size_t head_bytes, size_t bytes, at_fn piece, void *context)
{
    for (size_t head = 0; bytes && head < m->attention.n_kv_heads; head++)
        QN_TRY(piece(context, &m->cache, part + head * head_bytes, bytes));
    return QN_OK;
}

static qn_status each_of_layer(const qn_cuda_memory *m, size_t at, size_t length, at_fn piece, void *context)
{
    const qn_cuda_kv_layout *l = &m->kv;
    const size_t rows = m->attention.runs ? n_codes(length) : length, row = m->attention.head_dim * sizeof(uint16_t);
    QN_TRY(each_row(m, at + l->keys, l->capacity * l->key_row, rows * l->key_row, piece, context));
    QN_TRY(each_row(m, at + l->values, l->capacity * l->value_row, rows * l->value_row, piece, context));
    if (!m->attention.runs)
        return QN_OK;
    const size_t first = length < RUN ? length : RUN, open = length < RUN ? 0 : length % RUN;
    const size_t open_at = place_of(m, length / RUN) * RUN * row, scales = l->capacity * sizeof(float);
    QN_TRY(each_row(m, at + l->key_scales, scales, rows * sizeof(float), piece, context));
    QN_TRY(each_row(m, at + l->value_scales, scales, rows * sizeof(float), piece, context));
    QN_TRY(each_row(m, at + l->half_keys, l->half_head, first * row, piece, context));
    QN_TRY(each_row(m, at + l->half_values, l->half_head, first * row, piece, context));
    QN_TRY(each_row(m, at + l->half_keys + open_at, l->half_head, open * row, piece, context));
    QN_TRY(each_row(m, at + l->half_values + open_at, l->half_head, open * row, piece, context));
    return each_row(m, at + l->means, m->attention.head_dim * sizeof(float),
                    length < RUN ? 0 : m->attention.head_dim * sizeof(float), piece, context);
}

static qn_status each_piece(const qn_cuda_memory *m, size_t length, at_fn piece, void *context)
{
    for (size_t slot = 0; slot < m->n_slots; slot++)
        QN_TRY(each_of_layer(m, slot * m->kv.layer_bytes, length, piece, context));
    for (size_t slot = 0; slot < m->n_recurrent; slot++)
        QN_TRY(piece(context, &m->recurrent, slot * m->layer_bytes, m->layer_bytes));
    return QN_OK;
}

static qn_status count_piece(void *context, const qn_cuda_buffer *of, size_t at, size_t bytes)
{
    (void)of;
    (void)at;
    *(uint64_t *)context += bytes;
    return QN_OK;
}

static uint64_t memory_bytes(const qn_memory *memory, size_t length)
{
    uint64_t bytes = 0;
    (void)each_piece(mine_const(memory), length, count_piece, &bytes);
    return bytes;
}

/* Pieces by way of the host. */
struct transfer {
    const qn_cuda_memory *m;
    bool filling;
    void *host;
    size_t host_bytes;
    qn_memory_piece_fn piece;
    void *context;
};

static qn_status transfer_piece(void *context, const qn_cuda_buffer *of, size_t at, size_t bytes)
{
    struct transfer *t = context;
    qn_cuda *cuda = t->m->model->cuda;
    if (bytes > t->host_bytes) {
        qn_free(t->host);
        t->host_bytes = 0;
        QN_TRY(qn_alloc(&t->host, bytes, 1, "session"));
        t->host_bytes = bytes;
    }
    if (!t->filling)
        QN_TRY(qn_cuda_download(cuda, t->m->stream, t->host, of->address + at, bytes));
    QN_TRY(t->piece(t->context, t->host, bytes));
    return t->filling ? qn_cuda_upload(cuda, of->address + at, t->host, bytes, NULL, NULL) : QN_OK;
}

static qn_status transfer(const qn_cuda_memory *m, size_t length, bool filling, qn_memory_piece_fn piece, void *context)
{
    struct transfer t = { .m = m, .filling = filling, .piece = piece, .context = context };
    const qn_status status = each_piece(m, length, transfer_piece, &t);
    qn_free(t.host);
    return status;
}

static qn_status memory_read(const qn_memory *memory, size_t length, qn_memory_piece_fn piece, void *context)
{
    return transfer(mine_const(memory), length, false, piece, context);
}

static qn_status memory_fill(qn_memory *memory, size_t length, qn_memory_piece_fn piece, void *context)
{
    mine(memory)->open_from = (uint32_t)(length / RUN);
    return transfer(mine(memory), length, true, piece, context);
}

/* ---- Copies ---- */

struct copy {
    const qn_cuda_memory *to, *from;
};

/* Both are laid out alike. */
static qn_status copy_piece(void *context, const qn_cuda_buffer *of, size_t at, size_t bytes)
{
    const struct copy *c = context;
    const qn_cuda_buffer *to = of == &c->from->cache ? &c->to->cache : &c->to->recurrent;
    return qn_cuda_copy(c->to->model->cuda, c->to->stream, to->address + at, of->address + at, bytes);
}

/* Halves of the runs before the last that are still there: what would be evaluated again in their place, in other steps, has
 * other bits. */
static qn_status copy_open_runs(struct copy *c, size_t length)
{
    const qn_cuda_memory *m = c->from;
    const size_t run_bytes = RUN * m->attention.head_dim * sizeof(uint16_t);
    for (size_t slot = 0; slot < m->n_slots; slot++)
        for (size_t run = m->open_from > 1 ? m->open_from : 1; run < length / RUN; run++) {
            const size_t at = slot * m->kv.layer_bytes + place_of(m, run) * run_bytes;
            QN_TRY(each_row(m, at + m->kv.half_keys, m->kv.half_head, run_bytes, copy_piece, c));
            QN_TRY(each_row(m, at + m->kv.half_values, m->kv.half_head, run_bytes, copy_piece, c));
        }
    return QN_OK;
}

static qn_status memory_copy(qn_memory *to, const qn_memory *from, size_t length)
{
    qn_cuda_memory *m = mine(to);
    struct copy c = { m, mine_const(from) };
    QN_TRY(each_piece(c.from, length, copy_piece, &c));
    if (m->attention.runs)
        QN_TRY(copy_open_runs(&c, length));
    m->open_from = c.from->open_from;
    return qn_cuda_stream_wait(m->model->cuda, m->stream);
}

static qn_status memory_reset(qn_memory *memory)
{
    (void)memory; /* nothing of it is read at position 0 */
    return QN_OK;
}

/* ---- Marks ---- */

static size_t run_bytes(const qn_cuda_memory *m)
{
    return RUN * m->attention.head_dim * sizeof(uint16_t);
}

static void mark_free(qn_memory_mark *of)
{
    cuda_mark *mark = (cuda_mark *)of;
    if (!mark)
        return;
    qn_cuda_release(mark->of->model->cuda, &mark->recurrent);
    qn_cuda_release(mark->of->model->cuda, &mark->halves);
    qn_free(mark);
}

static qn_status mark_new(const qn_memory *memory, qn_memory_mark **out)
{
    const qn_cuda_memory *m = mine_const(memory);
    qn_cuda *cuda = m->model->cuda;
    cuda_mark *mark;
    *out = NULL;
    QN_TRY(qn_alloc(&mark, 1, sizeof *mark, "checkpoint"));
    mark->of = m;
    qn_status status = qn_cuda_alloc(cuda, m->n_recurrent, m->layer_bytes, "checkpoint on the GPU", &mark->recurrent);
    if (status == QN_OK && m->attention.runs)
        status =
            qn_cuda_alloc(cuda, m->n_slots * 2 * m->attention.n_kv_heads, run_bytes(m), "checkpoint on the GPU", &mark->halves);
    if (status != QN_OK) {
        mark_free((qn_memory_mark *)mark);
        return status;
    }
    *out = (qn_memory_mark *)mark;
    return QN_OK;
}

/* Halves of the run that position held-1 is in, from or to the mark. */
static qn_status copy_run(const qn_cuda_memory *m, const qn_cuda_buffer *halves, size_t held, bool keep)
{
    const qn_cuda_kv_layout *l = &m->kv;
    const size_t bytes = run_bytes(m), heads = m->attention.n_kv_heads;
    if (!m->attention.runs)
        return QN_OK;
    const size_t in_head = place_of(m, (held - 1) / RUN) * bytes;
    uint64_t there = halves->address;
    for (size_t i = 0; i < m->n_slots * 2 * heads; i++, there += bytes) {
        const size_t part = i / heads % 2 ? l->half_values : l->half_keys;
        const uint64_t here = m->cache.address + i / (2 * heads) * l->layer_bytes + part + i % heads * l->half_head + in_head;
        QN_TRY(qn_cuda_copy(m->model->cuda, m->stream, keep ? there : here, keep ? here : there, bytes));
    }
    return QN_OK;
}

static qn_status mark_keep(qn_memory_mark *of, const qn_memory *memory, size_t held)
{
    const qn_cuda_memory *m = mine_const(memory);
    cuda_mark *mark = (cuda_mark *)of;
    mark->open_from = m->open_from;
    QN_TRY(qn_cuda_copy(m->model->cuda, m->stream, mark->recurrent.address, m->recurrent.address, m->recurrent.bytes));
    QN_TRY(copy_run(m, &mark->halves, held, true));
    return qn_cuda_stream_wait(m->model->cuda, m->stream);
}

static qn_status mark_take(const qn_memory_mark *of, qn_memory *memory, size_t held)
{
    const cuda_mark *mark = (const cuda_mark *)of;
    qn_cuda_memory *m = mine(memory);
    const uint32_t run = (uint32_t)((held - 1) / RUN);
    QN_TRY(qn_cuda_copy(m->model->cuda, m->stream, m->recurrent.address, mark->recurrent.address, m->recurrent.bytes));
    QN_TRY(copy_run(m, &mark->halves, held, false));
    m->open_from = run > mark->open_from ? run : mark->open_from;
    return qn_cuda_stream_wait(m->model->cuda, m->stream);
}

static qn_status mark_copy(qn_memory_mark *to, const qn_memory_mark *from, const qn_memory *memory)
{
    const qn_cuda_memory *m = mine_const(memory);
    cuda_mark *copy = (cuda_mark *)to;
    const cuda_mark *mark = (const cuda_mark *)from;
    copy->open_from = mark->open_from;
    QN_TRY(qn_cuda_copy(m->model->cuda, m->stream, copy->recurrent.address, mark->recurrent.address, m->recurrent.bytes));
    if (m->attention.runs)
        QN_TRY(qn_cuda_copy(m->model->cuda, m->stream, copy->halves.address, mark->halves.address, mark->halves.bytes));
    return qn_cuda_stream_wait(m->model->cuda, m->stream);
}

/* ---- Codecs ---- */

static void add_table(qn_cuda_memory *m, uint8_t *host, size_t *used, const float *table, size_t count, uint64_t *address)
{
    if (host && table)
        memcpy(host + *used, table, count * sizeof *table);
    *address = table ? m->tables.address + *used : 0;
    *used += table ? qn_round_up(count * sizeof *table, ALIGN) : 0;
}

static size_t add_tables(qn_cuda_memory *m, uint8_t *host, const qn_aura_codec *const codecs[2])
{
    size_t used = 0;
    for (size_t i = 0; i < 2; i++) {
        const qn_aura_codec *codec = codecs[i];
        qn_cuda_codec *to = &m->codecs[i];
        const size_t levels = (size_t)1 << codec->bits, square = codec->dim * codec->dim;
        add_table(m, host, &used, codec->boundaries, levels - 1, &to->levels.boundaries);
        add_table(m, host, &used, codec->codebook, levels, &to->levels.codebook);
        add_table(m, host, &used, codec->signs, codec->dim, &to->rotation.signs);
        add_table(m, host, &used, codec->signs ? NULL : codec->transpose, square, &to->rotation.forward);
        add_table(m, host, &used, codec->signs ? NULL : codec->rotation, square, &to->rotation.back);
        to->gain = qn_attention_gpu_gain(codec->codebook, levels);
    }
    return used;
}

static qn_status create_tables(qn_cuda_memory *m, const qn_aura_codec *const codecs[2])
{
    uint8_t *host;
    const size_t bytes = add_tables(m, NULL, codecs);
    QN_TRY(qn_cuda_alloc(m->model->cuda, bytes, 1, "codebooks on the GPU", &m->tables));
    QN_TRY(qn_alloc(&host, bytes, 1, "codebooks"));
    (void)add_tables(m, host, codecs);
    const qn_status status = qn_cuda_upload(m->model->cuda, m->tables.address, host, bytes, NULL, NULL);
    qn_free(host);
    return status;
}

/* ---- Creation ---- */

static void memory_free(qn_memory *memory)
{
    qn_cuda_memory *m = mine(memory);
    qn_cuda *cuda = m->model->cuda;
    for (int ending = 0; ending < QN_SAMPLE_WAYS; ending++)
        qn_cuda_graph_free(cuda, m->graphs[ending]);
    qn_cuda_release(cuda, &m->token.memory);
    qn_cuda_release(cuda, &m->cache);
    qn_cuda_release(cuda, &m->recurrent);
    qn_cuda_release(cuda, &m->tables);
    if (m->stream)
        qn_cuda_stream_free(cuda, m->stream);
    free(m->token.segments);
    free(m->token.stages);
    qn_free(m->slots);
    qn_free(m);
}

static const qn_memory_calls calls = {
    .free = memory_free,
    .bytes = memory_bytes,
    .open = memory_open,
    .appended = memory_appended,
    .reach = memory_reach,
    .cut = memory_cut,
    .reset = memory_reset,
    .copy = memory_copy,
    .mark_new = mark_new,
    .mark_free = mark_free,
    .mark_keep = mark_keep,
    .mark_take = mark_take,
    .mark_copy = mark_copy,
    .serialize = memory_read,
    .deserialize = memory_fill,
    .serialized_bytes = memory_bytes,
};

/* Zeros, because kernels read whole tiles, of which the end may never have been written. */
static qn_status alloc_zeros(qn_cuda_memory *m, size_t count, size_t size, qn_cuda_buffer *buffer)
{
    QN_TRY(qn_cuda_alloc(m->model->cuda, count, size, "session on the GPU", buffer));
    return qn_cuda_fill(m->model->cuda, m->stream, buffer->address, 0, buffer->bytes);
}

static qn_status create(qn_cuda_memory *m, const qn_memory_params *params)
{
    const qn_plan *plan = m->model->plan;
    const qn_recurrent_shape *r = &plan->recurrent;
    const qn_aura_codec *const codecs[2] = { params->key_codec, params->value_codec };
    QN_TRY(qn_alloc(&m->slots, params->n_layers, sizeof *m->slots, "session"));
    for (size_t i = 0; i < params->n_layers; i++)
        m->slots[i] = (uint32_t)(plan->is_recurrent && plan->is_recurrent[i] ? m->n_recurrent++ : m->n_slots++);
    if (codecs[0]) {
        m->attention.key_bits = codecs[0]->bits;
        m->attention.value_bits = codecs[1]->bits;
        m->attention.runs = true;
    }
    QN_TRY(qn_attention_gpu_check(&m->attention));
    QN_TRY(lay_out(m, params->n_batch));
    QN_TRY(qn_cuda_stream_create(m->model->cuda, &m->stream));
    QN_TRY(alloc_zeros(m, m->n_slots, m->kv.layer_bytes, &m->cache));
    if (m->n_recurrent) {
        m->state_bytes = qn_gdn_gpu_state_bytes(r->n_v_heads, r->head_k, r->head_v);
        m->layer_bytes = qn_round_up(
            m->state_bytes + qn_gdn_gpu_input_bytes(r->n_k_heads, r->n_v_heads, r->head_k, r->head_v, r->taps), ALIGN);
        QN_TRY(alloc_zeros(m, m->n_recurrent, m->layer_bytes, &m->recurrent));
    }
    if (codecs[0])
        QN_TRY(create_tables(m, codecs));
    return qn_cuda_stream_wait(m->model->cuda, m->stream);
}

qn_status qn_cuda_session_new(qn_device *device, const qn_memory_params *params, qn_memory **out)
{
    qn_cuda_model *model = (qn_cuda_model *)device;
    qn_cuda_memory *m;
    *out = NULL;
    QN_TRY(qn_alloc(&m, 1, sizeof *m, "session"));
    *m = (qn_cuda_memory){ .base.calls = &calls,
                           .model = model,
                           .n_ctx = params->n_ctx,
                           .n_layers = params->n_layers,
                           .attention = model->attention,
                           .codecs = { { .gain = 1 }, { .gain = 1 } } };
    const qn_status status = create(m, params);
    if (status != QN_OK) {
        memory_free(&m->base);
        return status;
    }
    *out = &m->base;
    return QN_OK;
}
