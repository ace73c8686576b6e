/* The contents of a session's memory in the layout of session files, which is the CPU's (engine/state_file.h): pages, states
 * and open chunks are converted on the host, and copied item by item, or layer by layer. */
#include "cuda/executor/memory.h"

#include "base/f16.h"
#include "base/memory.h"
#include "kernels/attention/attention.h"
#include "cuda/kernels/deltanet/state_planes.h"

#include <math.h>
#include <string.h>

enum { PAGE = QN_PAGE, MIN_EXPONENT = -126 };

/* The CPU's pages of the present block and fp16 pages, and an item of the device. */
struct transfer {
    const qn_cuda_memory *m;
    const qn_cuda_format *f;
    qn_extent extent;
    bool fills; /* the device from a file */
    qn_memory_region_fn on_region;
    void *context;
    qn_kv_view view;             /* of the buffers below */
    uint32_t *table, *f16_table; /* [pages of the sequence] */
    uint8_t *pages, *f16_pages;  /* [QN_BLOCK_PAGES], [2]: page 0, and the last one */
    uint8_t *item;               /* as on the device */
    size_t item_bytes;
    size_t first_page, n_pages; /* in `pages` */
};

/* ---- The device ---- */

static qn_status read_item(const struct transfer *t, uint64_t address, size_t bytes)
{
    qn_cuda_common *common = t->m->common;
    pthread_mutex_lock(&common->stream_lock);
    const qn_status status = qn_cuda_download(common->cuda, common->stream, t->item, address, bytes);
    pthread_mutex_unlock(&common->stream_lock);
    return status;
}

static qn_status write_item(const struct transfer *t, uint64_t address, size_t bytes)
{
    return qn_cuda_caches_upload(t->m->caches, address, t->item, bytes);
}

/* ---- Rows of a head in a page ---- */

/* The positions of a page that the sequence has. */
static size_t held_in(const struct transfer *t, size_t page)
{
    const size_t first = page * PAGE;
    return t->extent.length - first < PAGE ? t->extent.length - first : PAGE;
}

/* Keys in tiles of QN_KEY_TILE positions, as the CPU has them, and row by row. */
static void convert_f16_keys(const struct transfer *t, uint16_t *tiles, uint16_t *rows, size_t held)
{
    const size_t dim = t->f->attention.head_dim;
    for (size_t p = 0; p < held; p++)
        for (size_t d = 0; d < dim; d++) {
            uint16_t *tiled = &tiles[p / QN_KEY_TILE * dim * QN_KEY_TILE + d * QN_KEY_TILE + p % QN_KEY_TILE];
            *(t->fills ? &rows[p * dim + d] : tiled) = t->fills ? *tiled : rows[p * dim + d];
        }
}

static void convert_f16_values(const struct transfer *t, uint16_t *values, uint16_t *rows, size_t held)
{
    const size_t bytes = held * t->f->attention.head_dim * sizeof *rows;
    memcpy(t->fills ? rows : values, t->fills ? values : rows, bytes);
}

/* Codes of a complete page: rows of the packed stream, and the CPU's vectors. */
static void convert_codes(const struct transfer *t, bool is_keys, uint8_t *page_data, uint8_t *rows, float *scales)
{
    const qn_aura_codec *codec = is_keys ? t->f->key_codec : t->f->value_codec;
    const size_t row = is_keys ? t->f->kv.key_row : t->f->kv.value_row;
    uint8_t codes[QN_AURA_MAX_DIM];
    for (size_t p = 0; p < PAGE; p++) {
        uint32_t *words = (uint32_t *)(void *)(rows + p * row);
        if (t->fills) {
            (is_keys ? qn_aura_load_key : qn_aura_load_value)(page_data, p, codes, &scales[p], codec->dim, codec->bits);
            qn_aura_pack(words, codes, codec->dim, codec->bits);
        } else {
            qn_aura_unpack(codes, words, codec->dim, codec->bits);
            (is_keys ? qn_aura_store_key : qn_aura_store_value)(page_data, p, codes, scales[p], codec->dim, codec->bits);
        }
    }
}

/* ---- Pages ---- */

static void convert_head(const struct transfer *t, size_t layer, size_t page, size_t head)
{
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;
    qn_cuda_layer_cache(t->f, layer, &cache, &pages);
    uint8_t *keys = t->item + cache.keys + head * cache.key_head_stride,
            *values = t->item + cache.values + head * cache.value_head_stride;
    void *cpu_keys = qn_kv_keys(&t->view, layer, page, head), *cpu_values = qn_kv_values(&t->view, layer, page, head);
    if (t->f->attention.pages) {
        convert_codes(t, true, cpu_keys, keys, (float *)(void *)(t->item + cache.key_scales + head * cache.scale_head_stride));
        convert_codes(t, false, cpu_values, values,
                      (float *)(void *)(t->item + cache.value_scales + head * cache.scale_head_stride));
    } else {
        convert_f16_keys(t, cpu_keys, (uint16_t *)(void *)keys, held_in(t, page));
        convert_f16_values(t, cpu_values, (uint16_t *)(void *)values, held_in(t, page));
    }
}

static void convert_f16_head(const struct transfer *t, size_t layer, size_t page, size_t head)
{
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;
    qn_cuda_layer_cache(t->f, layer, &cache, &pages);
    const size_t mean_bytes = t->f->attention.head_dim * sizeof(float);
    uint8_t *mean = t->item + pages.means + head * mean_bytes;
    convert_f16_keys(t, qn_kv_f16_keys(&t->view, layer, page, head),
                     (uint16_t *)(void *)(t->item + pages.keys + head * pages.head), held_in(t, page));
    convert_f16_values(t, qn_kv_f16_values(&t->view, layer, page, head),
                       (uint16_t *)(void *)(t->item + pages.values + head * pages.head), held_in(t, page));
    if (page == 0 && t->extent.length >= PAGE) {
        float *cpu_mean = qn_kv_key_mean(&t->view, layer, head);
        memcpy(t->fills ? (void *)mean : (void *)cpu_mean, t->fills ? (void *)cpu_mean : (void *)mean, mean_bytes);
    }
}

static qn_status convert_page(const struct transfer *t, size_t page, bool is_f16)
{
    const qn_plan *plan = t->m->common->plan;
    const qn_sequence *s = &t->m->sequence;
    qn_pool_class *class = is_f16 ? s->cache->f16_pages : s->cache->pages;
    const uint64_t address = qn_pool_address(class, (is_f16 ? s->f16_pages : s->pages)[page]);
    if (t->fills)
        memset(t->item, 0, qn_pool_stride(class));
    else
        QN_TRY(read_item(t, address, qn_pool_stride(class)));
    for (size_t layer = 0; layer < plan->n_layers; layer++)
        for (size_t head = 0; (!plan->is_recurrent || !plan->is_recurrent[layer]) && head < t->view.n_heads; head++)
            (is_f16 ? convert_f16_head : convert_head)(t, layer, page, head);
    return t->fills ? write_item(t, address, qn_pool_stride(class)) : QN_OK;
}

/* The fp16 pages of a cache of codes: page 0, and the last one if it has fp16 rows. */
static qn_status convert_f16_pages(const struct transfer *t)
{
    const size_t last = (t->extent.length - t->extent.has_last_page) / PAGE;
    if (!t->f->attention.pages || !t->f->n_attention || !t->extent.length)
        return QN_OK;
    QN_TRY(convert_page(t, 0, true));
    return last && (t->extent.length % PAGE || t->extent.has_last_page) ? convert_page(t, last, true) : QN_OK;
}

static qn_status convert_block(const struct transfer *t)
{
    for (size_t i = 0; i < t->n_pages; i++)
        QN_TRY(convert_page(t, t->first_page + i, false));
    return QN_OK;
}

/* Lets `pages` have the block of a page: the blocks of codes begin at page 1. */
static qn_status enter_block(struct transfer *t, size_t page)
{
    const bool codes = t->f->attention.pages;
    const size_t first = (page - codes) / QN_BLOCK_PAGES * QN_BLOCK_PAGES + codes,
                 end = codes ? t->extent.length / PAGE : (t->extent.length + PAGE - 1) / PAGE;
    if (t->n_pages && first == t->first_page)
        return QN_OK;
    if (t->fills)
        QN_TRY(convert_block(t));
    memset(t->pages, 0, QN_BLOCK_PAGES * t->view.page_stride);
    t->first_page = first;
    t->n_pages = end - first < QN_BLOCK_PAGES ? end - first : QN_BLOCK_PAGES;
    return t->fills ? QN_OK : convert_block(t);
}

static qn_status transfer_pages(struct transfer *t)
{
    qn_kv_region region;
    if (!t->fills)
        QN_TRY(convert_f16_pages(t));
    for (size_t i = 0; qn_kv_find_region(&t->f->file_kv, &t->view, i, &t->extent, &region); i++) {
        if (region.bytes && !region.is_f16)
            QN_TRY(enter_block(t, region.page));
        QN_TRY(t->on_region(t->context, region.data, region.bytes));
    }
    if (!t->fills)
        return QN_OK;
    QN_TRY(convert_block(t));
    return convert_f16_pages(t);
}

static qn_status allocate_pages(struct transfer *t)
{
    const size_t n = (t->extent.length + PAGE - 1) / PAGE, state = t->f->recurrent.state_layer_bytes,
                 open = t->f->recurrent.open.bytes;
    t->view = t->f->file_kv.view;
    t->item_bytes = t->f->page_stride > t->f->f16_page_stride ? t->f->page_stride : t->f->f16_page_stride;
    t->item_bytes = state + open > t->item_bytes ? state + open : t->item_bytes;
    QN_TRY(qn_alloc(&t->item, t->item_bytes, 1, "session"));
    QN_TRY(qn_alloc(&t->table, n, sizeof *t->table, "session"));
    QN_TRY(qn_alloc(&t->f16_table, n, sizeof *t->f16_table, "session"));
    QN_TRY(qn_alloc(&t->pages, QN_BLOCK_PAGES, t->view.page_stride, "session"));
    QN_TRY(qn_alloc(&t->f16_pages, 2, t->view.f16_stride, "session"));
    for (size_t r = 0; r < n; r++) {
        t->table[r] = r % QN_BLOCK_PAGES;
        t->f16_table[r] = r != 0;
    }
    t->view.pages = t->pages;
    t->view.table = t->table;
    t->view.f16_pages = t->f16_pages;
    t->view.f16_table = t->f16_table;
    return QN_OK;
}

static void free_pages(struct transfer *t)
{
    qn_free(t->item);
    qn_free(t->table);
    qn_free(t->f16_table);
    qn_free(t->pages);
    qn_free(t->f16_pages);
}

/* ---- Recurrent layers ---- */

/* A layer on the CPU, and on the device. */
struct layers {
    qn_recurrent_view cpu;
    float *memory;
    uint16_t *s; /* both planes; NULL without a state */
    float *history;
    uint16_t *keys, *values;
    float *scales, *decays, *inputs;
};

/* A head's S: [keys][values] on the CPU, [values][keys] in the planes hi and lo of the device. */
static void convert_head_state(const struct transfer *t, float *cpu, uint16_t *hi, uint16_t *lo)
{
    const qn_recurrent_shape *s = &t->f->file_recurrent->shape;
    for (size_t value = 0; value < s->head_v; value++)
        for (size_t key = 0; key < s->head_k; key++) {
            float *x = &cpu[key * s->head_v + value];
            const size_t at = value * s->head_k + key;
            if (t->fills)
                qn_gdn_split(*x, &hi[at], &lo[at]);
            else
                *x = qn_gdn_join(hi[at], lo[at]);
        }
}

static void convert_state(const struct transfer *t, const struct layers *l, const qn_recurrent_layer *cpu)
{
    const qn_recurrent_shape *s = &t->f->file_recurrent->shape;
    const size_t head = s->head_k * s->head_v, history = (s->taps - 1) * qn_recurrent_width(s) * sizeof(float);
    if (!l->s)
        return;
    for (size_t h = 0; h < s->n_v_heads; h++)
        convert_head_state(t, cpu->state + h * head, l->s + h * head, l->s + (s->n_v_heads + h) * head);
    memcpy(t->fills ? l->history : cpu->history, t->fills ? cpu->history : l->history, history);
}

/* The power of two that makes the largest of some values greater than 2^14 and at most 2^15: with this one, values that come
 * from fp16 are exact again. */
static float scale_of(const float *values, size_t n)
{
    float amax = 0;
    int exponent;
    for (size_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(values[i]));
    const bool is_power = frexpf(amax, &exponent) == 0.5f;
    exponent -= is_power ? 16 : 15;
    return ldexpf(1, amax == 0 || exponent < MIN_EXPONENT ? MIN_EXPONENT : exponent);
}

/* v' of a row of a head. */
static void convert_values(const struct transfer *t, const struct layers *l, float *v_new, size_t head, size_t row)
{
    const size_t n = t->f->file_recurrent->shape.head_v, n_groups = QN_GDN_SCALE_GROUPS(n);
    uint16_t *values = l->values + (head * QN_GDN_CHUNK + row) * n;
    for (size_t group = 0; group < n_groups; group++) {
        const size_t begin = group * QN_GDN_SCALE_VALUES,
                     end = begin + QN_GDN_SCALE_VALUES < n ? begin + QN_GDN_SCALE_VALUES : n;
        float *scale = &l->scales[(head * n_groups + group) * QN_GDN_CHUNK + row];
        if (t->fills)
            *scale = scale_of(v_new + begin, end - begin);
        for (size_t i = begin; i < end; i++)
            if (t->fills)
                values[i] = qn_f32_to_f16(v_new[i] / *scale);
            else
                v_new[i] = qn_f16_to_f32(values[i]) * *scale;
    }
}

static void convert_keys(const struct transfer *t, const struct layers *l, float *keys, size_t head, size_t row)
{
    const size_t n = t->f->file_recurrent->shape.head_k;
    uint16_t *of_row = l->keys + (head * QN_GDN_CHUNK + row) * n;
    for (size_t i = 0; i < n; i++) {
        float *key = &keys[(head * n + i) * QN_GDN_CHUNK + row];
        if (t->fills)
            of_row[i] = qn_f32_to_f16(*key);
        else
            *key = qn_f16_to_f32(of_row[i]);
    }
}

static void convert_inputs(const struct transfer *t, const struct layers *l, float *inputs)
{
    const qn_recurrent_shape *s = &t->f->file_recurrent->shape;
    const size_t width = qn_recurrent_width(s), past = s->taps - 1, ring = QN_GDN_INPUT_ROWS(s->taps);
    const size_t length = t->extent.length, begin = t->extent.state_position,
                 first = t->extent.shortest > past ? t->extent.shortest - past : 0;
    for (size_t p = first > begin ? first : begin; p < length; p++) {
        float *cpu = inputs + (p - begin) * width, *gpu = l->inputs + p % ring * width;
        memcpy(t->fills ? gpu : cpu, t->fills ? cpu : gpu, width * sizeof *cpu);
    }
}

static void convert_layer(const struct transfer *t, const struct layers *l)
{
    const qn_recurrent_shape *s = &t->f->file_recurrent->shape;
    const qn_recurrent_layer cpu = qn_recurrent_layer_at(&l->cpu, 0);
    const size_t n_open = t->extent.length - t->extent.state_position;
    convert_state(t, l, &cpu);
    for (size_t row = 0; row < n_open; row++) {
        for (size_t h = 0; h < s->n_v_heads; h++) {
            const size_t decay = h * QN_GDN_CHUNK + row;
            convert_values(t, l, cpu.v_new + decay * s->head_v, h, row);
            *(t->fills ? &l->decays[decay] : &cpu.log_decay[decay]) = t->fills ? cpu.log_decay[decay] : l->decays[decay];
        }
        for (size_t h = 0; h < s->n_k_heads; h++)
            convert_keys(t, l, cpu.keys, h, row);
    }
    convert_inputs(t, l, cpu.conv_inputs);
}

/* The arrays of the CPU's layer, to or from the file. */
static qn_status transfer_arrays(const struct transfer *t, const struct layers *l)
{
    for (size_t array = 0; array < QN_RECURRENT_ARRAYS; array++) {
        size_t count;
        float *data = qn_recurrent_array(&l->cpu, 0, array, &count);
        QN_TRY(t->on_region(t->context, data, count * sizeof *data));
    }
    return QN_OK;
}

static qn_status transfer_layer(const struct transfer *t, struct layers *l, size_t index)
{
    const qn_sequence *s = &t->m->sequence;
    const qn_cuda_recurrent_layout *r = &t->f->recurrent;
    const size_t state_bytes = r->state_layer_bytes, open_bytes = r->open.bytes;
    const uint64_t open = qn_pool_address(s->cache->open_chunks, s->open_chunk) + index * open_bytes,
                   state = l->s ? qn_pool_address(s->cache->states, s->state) + index * state_bytes : 0;
    struct transfer part = *t; /* of the item: the state, then the open chunk */
    part.item = t->item + state_bytes;
    memset(l->memory, 0, qn_recurrent_state_item_bytes(l->cpu.layout) + qn_recurrent_chunk_item_bytes(l->cpu.layout));
    if (!t->fills) {
        if (state)
            QN_TRY(read_item(t, state, state_bytes));
        QN_TRY(read_item(&part, open, open_bytes));
        convert_layer(t, l);
        return transfer_arrays(t, l);
    }
    memset(t->item, 0, state_bytes + open_bytes);
    QN_TRY(transfer_arrays(t, l));
    convert_layer(t, l);
    if (state)
        QN_TRY(write_item(t, state, state_bytes));
    return write_item(&part, open, open_bytes);
}

static qn_status transfer_recurrent(const struct transfer *t)
{
    const qn_cuda_recurrent_layout *r = &t->f->recurrent;
    if (!t->f->file_recurrent)
        return QN_OK;
    qn_recurrent_layout one = *t->f->file_recurrent;
    one.n_layers = 1;
    uint8_t *open = t->item + r->state_layer_bytes;
    struct layers l = { .keys = (uint16_t *)(void *)(open + r->open.keys),
                        .values = (uint16_t *)(void *)(open + r->open.values),
                        .scales = (float *)(void *)(open + r->open.scales),
                        .decays = (float *)(void *)(open + r->open.decays),
                        .inputs = (float *)(void *)(open + r->open.inputs) };
    if (t->extent.state_position) {
        l.s = (uint16_t *)(void *)t->item;
        l.history = (float *)(void *)(t->item + r->history);
    }
    QN_TRY(qn_alloc(&l.memory, qn_recurrent_state_item_bytes(&one) + qn_recurrent_chunk_item_bytes(&one), 1, "session"));
    l.cpu = (qn_recurrent_view){
        .layout = &one, .state = l.memory, .open_chunk = l.memory + one.state_stride, .state_position = t->extent.state_position
    };
    qn_status status = QN_OK;
    for (size_t i = 0; status == QN_OK && i < t->f->n_recurrent; i++)
        status = transfer_layer(t, &l, i);
    qn_free(l.memory);
    return status;
}

/* ---- Both directions ---- */

static qn_status transfer(const qn_cuda_memory *m, const qn_extent *extent, bool fills, qn_memory_region_fn on_region,
                          void *context)
{
    struct transfer t = {
        .m = m, .f = m->format, .extent = *extent, .fills = fills, .on_region = on_region, .context = context
    };
    qn_status status = allocate_pages(&t);
    if (status == QN_OK)
        status = transfer_pages(&t);
    if (status == QN_OK)
        status = transfer_recurrent(&t);
    free_pages(&t);
    return status;
}

qn_status qn_cuda_memory_serialize(const qn_memory *memory, qn_memory_region_fn on_region, void *context)
{
    const qn_extent extent = qn_sequence_extent(memory->sequence);
    return transfer((const qn_cuda_memory *)memory, &extent, false, on_region, context);
}

qn_status qn_cuda_memory_deserialize(qn_memory *memory, const qn_extent *extent, qn_memory_region_fn on_region, void *context)
{
    QN_TRY(qn_sequence_restore(memory->sequence, extent));
    return transfer((const qn_cuda_memory *)memory, extent, true, on_region, context);
}
