/* Memories on a CUDA device, with a fake driver: page tables that follow the sequence, copies, checkpoints, the pool's
 * budget, failures; and contents that come from sessions on the CPU and go back. quern-check tests the kernels on a
 * GPU. */
#include "helper_cuda_model.h"

#include "base/f16.h"
#include "base/memory.h"
#include "cpu/memory.h"
#include "cuda/executor/model.h"
#include "engine/internal.h"
#include "helper_sessions.h"
#include "cuda/kernels/deltanet/state_planes.h"

#include <math.h>

enum { CONTEXT = 512, BATCH = 100 };

static struct cuda_fixture fixture; /* of the current test */

static void set_up(const char *golden, unsigned bits)
{
    read_golden(&fixture, golden);
    create_device(&fixture, bits);
}

static void tear_down(void)
{
    free_device(&fixture);
}

static qn_memory *memory_of(void)
{
    const qn_memory_params params = memory_params(&fixture, CONTEXT, BATCH);
    qn_memory *memory;
    assert_ok(fixture.device->vtable->memory_new(fixture.device, &params, &memory));
    return memory;
}

static void free_memory(qn_memory *memory)
{
    memory->vtable->free(memory);
}

/* As a session: n rows in one step, whose work is nothing. */
static void append(qn_memory *memory, size_t n)
{
    const size_t length = memory->sequence->length;
    assert_ok(memory->vtable->prepare(memory, n));
    qn_memory_on_append(memory, length + n);
    assert_int_equal(memory->sequence->length, length + n);
}

/* ---- Page tables ---- */

static void check_table(const uint64_t *table, const qn_pool_class *class, const uint32_t *items, size_t n)
{
    for (size_t i = 0; i < CONTEXT / QN_PAGE; i++)
        assert_int_equal(table[i], i < n && items[i] != QN_NO_ITEM ? qn_pool_address(class, items[i]) : 0);
}

/* Reserves n rows: the device's tables then have the items. Returns the bytes that were copied for it. */
static int check_prepared(qn_memory *memory, size_t n)
{
    const qn_cuda_memory *m = (const qn_cuda_memory *)memory;
    const qn_sequence *s = memory->sequence;
    fake.copied_in_bytes = 0;
    assert_ok(memory->vtable->prepare(memory, n));
    const size_t n_pages = (s->length + n + QN_PAGE - 1) / QN_PAGE;
    check_table((const uint64_t *)(uintptr_t)m->kv_table, s->cache->pages, s->pages, n_pages);
    if (s->cache->f16_pages)
        check_table((const uint64_t *)(uintptr_t)m->f16_table, s->cache->f16_pages, s->f16_pages, n_pages);
    else
        assert_int_equal(m->f16_table, 0);
    return fake.copied_in_bytes;
}

static void check_tables(unsigned bits)
{
    label("%u bits", bits);
    set_up("qwen3.q1_0", bits);
    qn_memory *memory = memory_of(), *other = memory_of();
    assert_int_equal(check_prepared(memory, 200), bits ? (4 + 2) * 8 : 4 * 8); /* codes of pages 1 and 2 */
    qn_memory_on_append(memory, 200);
    assert_int_equal(check_prepared(memory, 1), bits ? 2 * 8 : 0); /* fp16 pages 1 and 2 were dropped */
    qn_memory_on_append(memory, 201);
    assert_int_equal(check_prepared(memory, 1), 0);
    qn_memory_on_append(memory, 202);
    /* A copy shares complete pages: its open page is its own. */
    assert_ok(qn_memory_copy(other, memory));
    check_prepared(other, 10);
    qn_memory_on_append(other, 212);
    assert_true(check_prepared(memory, 1) == 0);
    qn_memory_on_append(memory, 202);
    /* Truncated into a page that is shared: it is copied before it changes. */
    qn_memory_truncate(memory, qn_memory_rewind_length(memory, 70));
    check_prepared(memory, 300);
    qn_memory_on_append(memory, memory->sequence->length + 300);
    qn_memory_truncate(memory, 0);
    check_prepared(memory, 5);
    qn_memory_on_append(memory, 0);
    free_memory(memory);
    check_prepared(other, 300);
    qn_memory_on_append(other, 512);
    free_memory(other);
    tear_down();
}

TEST(page_tables)
{
    check_tables(0);
    check_tables(4);
}

/* An empty sequence that adopts pages and a state of another. */
TEST(adopted_pages)
{
    set_up("qwen35.q1_0", 0);
    qn_memory *memory = memory_of(), *other = memory_of();
    append(memory, 3 * QN_PAGE);
    append(memory, 1);
    assert_ok(qn_sequence_begin(other->sequence, 3));
    for (size_t i = 0; i < 3; i++)
        qn_sequence_take_page(other->sequence, i, memory->sequence->pages[i], QN_NO_ITEM);
    qn_sequence_take_state(other->sequence, memory->sequence->state);
    free_memory(memory);
    check_prepared(other, 4);
    qn_memory_on_append(other, 3 * QN_PAGE + 4);
    assert_int_equal(qn_memory_open_tokens(other), 4);
    free_memory(other);
    tear_down();
}

/* ---- Layout ---- */

TEST(items_hold_all_layers)
{
    qn_attention_gpu_cache cache, last;
    qn_attention_gpu_pages pages;
    set_up("qwen35-rotated.pq2_0", 3);
    qn_memory *memory = memory_of();
    const qn_cuda_format *f = ((qn_cuda_memory *)memory)->format;
    const qn_cache *c = &f->cache;
    size_t first_layer = 0, last_layer = 0;
    for (size_t i = 0; i < fixture.plan.n_layers; i++)
        last_layer = fixture.plan.is_recurrent[i] ? last_layer : i;
    while (fixture.plan.is_recurrent[first_layer])
        first_layer++;
    qn_cuda_layer_cache(f, first_layer, &cache, &pages);
    assert_int_equal(cache.keys, 0);
    assert_int_equal(pages.keys, 0);
    qn_cuda_layer_cache(f, last_layer, &last, &pages);
    assert_int_equal(last.keys - cache.keys, (f->n_attention - 1) * f->kv.layer_bytes);
    const uint64_t offsets[] = { last.keys,  last.values,  last.key_scales, last.value_scales,
                                 pages.keys, pages.values, pages.means };
    for (size_t i = 0; i < COUNT(offsets); i++)
        assert_int_equal(offsets[i] % 256, 0);
    assert_true(last.value_scales + f->attention.n_kv_heads * last.scale_head_stride <= qn_pool_stride(c->pages));
    assert_true(pages.means + f->attention.n_kv_heads * f->attention.head_dim * 4 <= qn_pool_stride(c->f16_pages));
    assert_true(f->n_recurrent * f->recurrent.state_layer_bytes <= qn_pool_stride(c->states));
    assert_true(f->n_recurrent * f->recurrent.open.bytes <= qn_pool_stride(c->open_chunks));
    assert_int_equal(c->max_dropped, QN_GDN_DROPPED_ROWS);
    free_memory(memory);
    tear_down();
}

/* Memories of one format share its classes; states are of one class in all formats. */
TEST(formats)
{
    set_up("qwen35-rotated.pq2_0", 4);
    qn_memory *codes = memory_of(), *same = memory_of(), *f16;
    const qn_memory_params params = f16_params(&fixture, CONTEXT, BATCH);
    assert_ok(fixture.device->vtable->memory_new(fixture.device, &params, &f16));
    const qn_cache *a = codes->sequence->cache, *b = f16->sequence->cache;
    assert_ptr_equal(a, same->sequence->cache);
    assert_ptr_not_equal(a, b);
    assert_ptr_not_equal(a->pages, b->pages);
    assert_ptr_equal(a->states, b->states);
    assert_ptr_equal(a->open_chunks, b->open_chunks);
    assert_null(b->f16_pages);
    free_memory(codes);
    free_memory(same);
    free_memory(f16);
    tear_down();
}

/* ---- Contents ---- */

struct contents {
    uint8_t *bytes;
    size_t n, at, capacity;
};

static qn_status put(void *context, void *data, size_t bytes)
{
    struct contents *c = context;
    assert_ok(qn_realloc_array(&c->bytes, &c->capacity, c->n + bytes + 1, 1, "contents"));
    if (bytes)
        memcpy(c->bytes + c->n, data, bytes);
    c->n += bytes;
    return QN_OK;
}

static qn_status take(void *context, void *data, size_t bytes)
{
    struct contents *c = context;
    assert_true(c->at + bytes <= c->n);
    if (bytes)
        memcpy(data, c->bytes + c->at, bytes);
    c->at += bytes;
    return QN_OK;
}

static struct contents contents_of(const qn_memory *memory)
{
    struct contents c = { 0 };
    assert_ok(memory->vtable->serialize(memory, put, &c));
    return c;
}

static void fill(qn_memory *memory, const struct contents *from, const qn_extent *extent)
{
    struct contents c = *from;
    c.at = 0;
    qn_memory_truncate(memory, 0);
    assert_ok(memory->vtable->deserialize(memory, extent, take, &c));
    assert_int_equal(c.at, c.n);
    const qn_extent now = qn_sequence_extent(memory->sequence);
    assert_int_equal(now.length, extent->length);
    assert_int_equal(now.state_position, extent->state_position);
}

static void assert_same(const struct contents *a, const struct contents *b)
{
    assert_int_equal(a->n, b->n);
    assert_memory_equal(a->bytes, b->bytes, a->n);
}

/* The model on the CPU, too. */
static void open_both(const char *golden, unsigned bits)
{
    open_model(golden, CPU_MODEL(.n_threads = 1), 1);
    set_up(golden, bits);
}

static void close_both(void)
{
    tear_down();
    close_model();
}

static qn_session *session_of(const char *kv, const qn_token *tokens, size_t n)
{
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = CONTEXT, .kv = kv));
    append_tokens(session, tokens, n);
    return session;
}

/* Rounded to nearest; smallest: half the distance of subnormal values. */
static bool near_f16(float exact, float rounded, float smallest)
{
    return fabsf(exact - rounded) <= fabsf(exact) * 0x1p-11f + smallest;
}

/* As the GPU stores a state. */
static float in_planes(float x)
{
    uint16_t hi, lo;
    qn_gdn_split(x, &hi, &lo);
    return qn_gdn_join(hi, lo);
}

/* States are in two planes, arrays of the open chunk are rounded to fp16, and the inputs of the convolution that a GPU
 * does not keep are zeros; all else is as it was. */
static void compare_recurrent(const qn_saved_layout *layout, const float *cpu, const float *gpu,
                              const qn_extent *extent)
{
    const qn_recurrent_shape *s = &layout->recurrent;
    const size_t width = qn_recurrent_width(s), ring = s->taps - 1 + QN_GDN_DROPPED_ROWS;
    const size_t begin = extent->state_position,
                 first = extent->length > begin + ring ? extent->length - ring - begin : 0; /* that is kept */
    size_t counts[QN_SAVED_ARRAYS];
    qn_saved_counts(s, counts);
    for (size_t i = 0; i < layout->n_recurrent * QN_SAVED_ARRAYS; i++) {
        const size_t array = i % QN_SAVED_ARRAYS, count = counts[array];
        for (size_t at = 0; at < count; at++) {
            const bool kept = array != QN_SAVED_CONV_INPUTS || at / width >= first;
            if (array == QN_SAVED_OPEN_KEYS)
                assert_true(near_f16(cpu[at], gpu[at], 0x1p-25f));
            else if (array == QN_SAVED_V_NEW) /* scaled: the largest, below 16, becomes 2^14 or more */
                assert_true(near_f16(cpu[at], gpu[at], 0x1p-35f));
            else if (array == QN_SAVED_STATE)
                assert_true(gpu[at] == in_planes(cpu[at]));
            else
                assert_true(gpu[at] == (kept ? cpu[at] : 0));
        }
        cpu += count;
        gpu += count;
    }
}

/* From a GPU's contents a session on the CPU goes on, can be truncated as far as the GPU's could, and no further. */
static void continues_on_cpu(const struct contents *gpu, const qn_extent *extent, const char *kv, const float *wanted)
{
    const uint32_t length = extent->length;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = CONTEXT, .kv = kv));
    fill(session->memory, gpu, extent);
    memcpy(session->tokens, ids, length * sizeof *ids);
    session->length = length;
    struct contents again = contents_of(session->memory);
    assert_same(gpu, &again);
    free(again.bytes);
    if (info.recurrent_bytes && extent->shortest > 1)
        assert_int_equal(qn_session_truncate(session, extent->shortest - 1), QN_ERR_UNSUPPORTED);
    if (info.recurrent_bytes)
        assert_ok(qn_session_truncate(session, extent->shortest));
    assert_ok(qn_session_eval(session, ids + qn_session_length(session), length + 10 - qn_session_length(session),
                              QN_LOGITS_LAST, found));
    /* States in planes and fp16 of the open chunk may change the rounding of int8 activations; logits are up to 4. */
    for (size_t i = 0; i < info.n_vocab; i++)
        assert_true(fabsf(found[i] - wanted[i]) <= (info.recurrent_bytes ? 0.2f : 0));
    qn_session_free(session);
}

static void check_contents(const char *golden, unsigned bits, const char *kv)
{
    static const uint32_t lengths[] = { 1, 3, 16, 63, 64, 65, 70, 127, 128, 129, 200, 330 };
    open_both(golden, bits);
    qn_memory *gpu = memory_of(), *second = memory_of();
    for (size_t i = 0; i < COUNT(lengths); i++) {
        label("%s, %s, %u tokens", golden, kv, (unsigned)lengths[i]);
        qn_session *session = session_of(kv, ids, lengths[i]);
        const qn_extent extent = qn_sequence_extent(session->memory->sequence);
        struct contents cpu = contents_of(session->memory);
        assert_ok(qn_session_eval(session, ids + lengths[i], 10, QN_LOGITS_LAST, expected));
        fill(gpu, &cpu, &extent);
        const qn_extent gpu_extent = qn_sequence_extent(gpu->sequence);
        struct contents on_gpu = contents_of(gpu);
        const qn_cuda_format *f = ((qn_cuda_memory *)gpu)->format;
        const size_t kv_bytes = (size_t)qn_saved_kv_bytes(&f->saved, &extent);
        assert_int_equal(cpu.n, qn_saved_bytes(&f->saved, &extent));
        assert_int_equal(cpu.n, on_gpu.n);
        assert_memory_equal(cpu.bytes, on_gpu.bytes, kv_bytes);
        if (f->n_recurrent)
            compare_recurrent(&f->saved, (const float *)(const void *)(cpu.bytes + kv_bytes),
                              (const float *)(const void *)(on_gpu.bytes + kv_bytes), &extent);
        fill(second, &on_gpu, &gpu_extent);
        struct contents again = contents_of(second);
        assert_same(&on_gpu, &again);
        continues_on_cpu(&on_gpu, &gpu_extent, kv, expected);
        free(cpu.bytes);
        free(on_gpu.bytes);
        free(again.bytes);
        qn_session_free(session);
    }
    free_memory(gpu);
    free_memory(second);
    close_both();
}

TEST(contents_move_between_devices)
{
    check_contents("qwen3.q1_0", 0, "f16");
    check_contents("qwen3.q1_0", 4, "aura4");
    check_contents("llama.q1_0", 3, "aura3");
    check_contents("qwen35.q1_0", 0, "f16");
    check_contents("qwen35-rotated.pq2_0", 6, "aura6");
    check_contents("qwen35-rotated.pq2_0", 2, "aura2");
}

static const qn_cpu_memory *cpu_memory_of(const qn_session *session)
{
    qn_cpu_memory *memory = (qn_cpu_memory *)session->memory;
    qn_cpu_view(memory, 0);
    return memory;
}

static const uint8_t *at_address(uint64_t address)
{
    return (const uint8_t *)(uintptr_t)address;
}

/* Keys and values of a page on the GPU, row by row, and in the CPU's page. */
static void compare_page(const qn_memory *gpu, const qn_cpu_memory *cpu, size_t layer, size_t page, size_t held)
{
    const qn_cuda_format *f = ((const qn_cuda_memory *)gpu)->format;
    const size_t dim = f->attention.head_dim;
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;
    qn_cuda_layer_cache(f, layer, &cache, &pages);
    const uint8_t *item = at_address(qn_pool_address(gpu->sequence->cache->pages, gpu->sequence->pages[page]));
    for (size_t head = 0; head < f->attention.n_kv_heads; head++) {
        const uint8_t *keys = item + cache.keys + head * cache.key_head_stride,
                      *values = item + cache.values + head * cache.value_head_stride;
        const uint16_t *cpu_keys = qn_kv_keys(&cpu->kv, layer, page, head),
                       *cpu_values = qn_kv_values(&cpu->kv, layer, page, head);
        for (size_t p = 0; p < held; p++) {
            if (!f->aura.keys) {
                const uint16_t *key = (const uint16_t *)(const void *)keys + p * dim;
                for (size_t d = 0; d < dim; d++)
                    assert_int_equal(key[d], cpu_keys[p / 16 * 16 * dim + d * 16 + p % 16]);
                assert_memory_equal(values + p * 2 * dim, cpu_values + p * dim, 2 * dim);
                continue;
            }
            uint8_t codes[QN_AURA_MAX_DIM], cpu_codes[QN_AURA_MAX_DIM];
            float scale;
            qn_aura_unpack(codes, (const uint32_t *)(const void *)(keys + p * f->kv.key_row), dim,
                           f->attention.key_bits);
            qn_aura_load_key((const uint8_t *)cpu_keys, p, cpu_codes, &scale, dim, f->attention.key_bits);
            assert_memory_equal(codes, cpu_codes, dim);
            assert_memory_equal(item + cache.key_scales + head * cache.scale_head_stride + p * sizeof scale, &scale,
                                sizeof scale);
            qn_aura_unpack(codes, (const uint32_t *)(const void *)(values + p * f->kv.value_row), dim,
                           f->attention.value_bits);
            qn_aura_load_value((const uint8_t *)cpu_values, p, cpu_codes, &scale, dim, f->attention.value_bits);
            assert_memory_equal(codes, cpu_codes, dim);
            assert_memory_equal(item + cache.value_scales + head * cache.scale_head_stride + p * sizeof scale, &scale,
                                sizeof scale);
        }
    }
}

static void compare_f16_page(const qn_memory *gpu, const qn_cpu_memory *cpu, size_t layer, size_t page, size_t held)
{
    const qn_cuda_format *f = ((const qn_cuda_memory *)gpu)->format;
    const size_t dim = f->attention.head_dim;
    qn_attention_gpu_cache cache;
    qn_attention_gpu_pages pages;
    qn_cuda_layer_cache(f, layer, &cache, &pages);
    const uint8_t *item = at_address(qn_pool_address(gpu->sequence->cache->f16_pages, gpu->sequence->f16_pages[page]));
    for (size_t head = 0; head < f->attention.n_kv_heads; head++) {
        const uint16_t *keys = (const uint16_t *)(const void *)(item + pages.keys + head * pages.head),
                       *cpu_keys = qn_kv_f16_keys(&cpu->kv, layer, page, head);
        for (size_t i = 0; i < held * dim; i++)
            assert_int_equal(keys[i], cpu_keys[i / dim / 16 * 16 * dim + i % dim * 16 + i / dim % 16]);
        assert_memory_equal(item + pages.values + head * pages.head, qn_kv_f16_values(&cpu->kv, layer, page, head),
                            held * dim * 2);
        if (page == 0)
            assert_memory_equal(item + pages.means + head * dim * sizeof(float), qn_kv_key_mean(&cpu->kv, layer, head),
                                dim * sizeof(float));
    }
}

static void compare_layer(const qn_memory *gpu, const qn_cpu_memory *cpu, size_t layer)
{
    const qn_cuda_format *f = ((const qn_cuda_memory *)gpu)->format;
    const qn_recurrent_shape *s = &f->saved.recurrent;
    const qn_sequence *q = gpu->sequence;
    const qn_recurrent_layer of = qn_recurrent_layer_of(&cpu->recurrent, layer);
    const size_t width = qn_recurrent_width(s), n_open = q->length - q->state_position,
                 n_groups = (s->head_v + 63) / 64;
    const uint8_t *state = at_address(qn_pool_address(q->cache->states, q->state) +
                                      f->slots[layer] * f->recurrent.state_layer_bytes),
                  *open = at_address(qn_pool_address(q->cache->open_chunks, q->open_chunk) +
                                     f->slots[layer] * f->recurrent.open.bytes);
    const uint16_t *hi = (const uint16_t *)(const void *)state, *lo = hi + s->n_v_heads * s->head_v * s->head_k;
    const float *scales = (const float *)(const void *)(open + f->recurrent.open.scales),
                *decays = (const float *)(const void *)(open + f->recurrent.open.decays);
    const uint16_t *keys = (const uint16_t *)(const void *)(open + f->recurrent.open.keys),
                   *values = (const uint16_t *)(const void *)(open + f->recurrent.open.values);
    for (size_t h = 0; h < s->n_v_heads; h++)
        for (size_t v = 0; v < s->head_v; v++) {
            for (size_t k = 0; k < s->head_k; k++) {
                const size_t at = (h * s->head_v + v) * s->head_k + k;
                assert_true(qn_gdn_join(hi[at], lo[at]) == in_planes(of.state[(h * s->head_k + k) * s->head_v + v]));
            }
            for (size_t row = 0; row < n_open; row++) {
                const float scale = scales[(h * n_groups + v / 64) * 64 + row];
                assert_true(near_f16(of.v_new[(h * 64 + row) * s->head_v + v],
                                     qn_f16_to_f32(values[(h * 64 + row) * s->head_v + v]) * scale, 0x1p-35f));
                assert_true(decays[h * 64 + row] == of.log_decay[h * 64 + row]);
            }
        }
    for (size_t h = 0; h < s->n_k_heads; h++)
        for (size_t i = 0; i < n_open * s->head_k; i++)
            assert_true(near_f16(of.keys[(h * s->head_k + i % s->head_k) * 64 + i / s->head_k],
                                 qn_f16_to_f32(keys[h * 64 * s->head_k + i]), 0x1p-25f));
    assert_memory_equal(state + f->recurrent.history, of.history, (s->taps - 1) * width * sizeof(float));
    for (size_t p = q->length - (s->taps - 1); p < q->length; p++)
        assert_memory_equal(open + f->recurrent.open.inputs + p % QN_GDN_INPUT_ROWS(s->taps) * width * sizeof(float),
                            of.conv_inputs + (p - q->state_position) * width, width * sizeof(float));
}

/* Every array of an item is where the kernels expect it. */
static void check_items(const char *golden, unsigned bits, const char *kv)
{
    enum { LENGTH = 4 * QN_PAGE + 20 };
    label("%s, %s", golden, kv);
    open_both(golden, bits);
    qn_memory *gpu = memory_of();
    qn_session *session = session_of(kv, ids, LENGTH);
    const qn_extent extent = qn_sequence_extent(session->memory->sequence);
    struct contents cpu = contents_of(session->memory);
    fill(gpu, &cpu, &extent);
    for (size_t layer = 0; layer < fixture.plan.n_layers; layer++) {
        if (fixture.plan.is_recurrent && fixture.plan.is_recurrent[layer]) {
            compare_layer(gpu, cpu_memory_of(session), layer);
            continue;
        }
        for (size_t page = bits != 0; page < (bits ? 4 : 5); page++)
            compare_page(gpu, cpu_memory_of(session), layer, page, page < 4 ? QN_PAGE : LENGTH % QN_PAGE);
        for (size_t page = 0; bits && page <= 4; page += 4)
            compare_f16_page(gpu, cpu_memory_of(session), layer, page, page < 4 ? QN_PAGE : LENGTH % QN_PAGE);
    }
    free(cpu.bytes);
    qn_session_free(session);
    free_memory(gpu);
    close_both();
}

TEST(items_have_the_kernels_layout)
{
    check_items("qwen3.q1_0", 0, "f16");
    check_items("llama.q1_0", 3, "aura3");
    check_items("qwen35.q1_0", 6, "aura6");
}

/* Scales are such that values which come from fp16 are exact, also if the largest is a power of two. */
TEST(values_of_fp16_are_exact)
{
    open_both("qwen35.q1_0", 0);
    qn_memory *gpu = memory_of(), *second = memory_of();
    qn_session *session = session_of("f16", ids, 2);
    const qn_extent extent = qn_sequence_extent(session->memory->sequence);
    const qn_recurrent_layer of = qn_recurrent_layer_at(&cpu_memory_of(session)->recurrent, 0);
    of.v_new[0] = 1;
    of.v_new[1] = 0x1p-39f;
    struct contents cpu = contents_of(session->memory);
    fill(gpu, &cpu, &extent);
    struct contents on_gpu = contents_of(gpu);
    fill(second, &on_gpu, &extent);
    struct contents again = contents_of(second);
    assert_same(&on_gpu, &again);
    size_t count;
    const qn_cuda_format *f = ((qn_cuda_memory *)gpu)->format;
    (void)qn_recurrent_array(&cpu_memory_of(session)->recurrent, 0, QN_SAVED_STATE, &count);
    const float *v_new = (const float *)(const void *)(on_gpu.bytes + qn_saved_kv_bytes(&f->saved, &extent)) + count;
    assert_true(v_new[0] == 1 && v_new[1] == 0x1p-39f);
    free(cpu.bytes);
    free(on_gpu.bytes);
    free(again.bytes);
    qn_session_free(session);
    free_memory(gpu);
    free_memory(second);
    close_both();
}

/* A GPU's sequence after whole chunks: the state is that at its length, and nothing is in the open chunk. */
TEST(an_empty_open_chunk)
{
    open_both("qwen35.q1_0", 0);
    qn_memory *gpu = memory_of();
    const qn_cuda_format *f = ((qn_cuda_memory *)gpu)->format;
    const qn_extent extent = { .length = 2 * QN_PAGE, .state_position = 2 * QN_PAGE, .shortest = 2 * QN_PAGE };
    qn_session *session = session_of("f16", ids, 2 * QN_PAGE), *later = session_of("f16", ids, 2 * QN_PAGE + 1);
    struct contents c = contents_of(session->memory), of_later = contents_of(later->memory);
    const size_t kv_bytes = (size_t)qn_saved_kv_bytes(&f->saved, &extent),
                 bytes = f->n_recurrent * (size_t)qn_saved_layer_bytes(&f->saved.recurrent);
    size_t counts[QN_SAVED_ARRAYS];
    qn_saved_counts(&f->saved.recurrent, counts);
    float *to = (float *)(void *)(c.bytes + kv_bytes), *from = (float *)(void *)(of_later.bytes + of_later.n - bytes);
    for (size_t i = 0; i < f->n_recurrent; i++)
        for (size_t array = 0; array < QN_SAVED_ARRAYS; array++) {
            for (size_t at = 0; at < counts[array]; at++)
                to[at] = array == QN_SAVED_STATE ? in_planes(from[at]) : array == QN_SAVED_HISTORY ? from[at] : 0;
            to += counts[array];
            from += counts[array];
        }
    fill(gpu, &c, &extent);
    assert_int_equal(qn_memory_open_tokens(gpu), 1);
    struct contents on_gpu = contents_of(gpu);
    assert_same(&c, &on_gpu);
    assert_ok(qn_session_eval(session, ids + 2 * QN_PAGE, 10, QN_LOGITS_LAST, expected));
    continues_on_cpu(&on_gpu, &extent, "f16", expected);
    free(c.bytes);
    free(of_later.bytes);
    free(on_gpu.bytes);
    qn_session_free(session);
    qn_session_free(later);
    free_memory(gpu);
    close_both();
}

/* ---- Checkpoints ---- */

/* A checkpoint at 70 tokens has the fp16 page that begins at position 64, and the recurrent states. */
TEST(checkpoints)
{
    qn_memory_checkpoint *checkpoint, *copy;
    open_both("qwen35-rotated.pq2_0", 4);
    qn_session *session = session_of("aura4", ids, 70);
    const qn_extent extent = qn_sequence_extent(session->memory->sequence);
    struct contents cpu = contents_of(session->memory);
    qn_memory *memory = memory_of(), *other = memory_of();
    fill(memory, &cpu, &extent);
    struct contents saved = contents_of(memory);
    assert_ok(qn_checkpoint_new(&checkpoint));
    assert_ok(qn_checkpoint_new(&copy));
    assert_ok(qn_checkpoint_save(checkpoint, memory));
    assert_ok(qn_checkpoint_copy(copy, checkpoint));
    assert_int_equal(qn_checkpoint_open_tokens(copy), 6);
    append(memory, 200);
    memset((void *)(uintptr_t)qn_pool_address(memory->sequence->cache->open_chunks, memory->sequence->open_chunk), 1,
           qn_pool_stride(memory->sequence->cache->open_chunks));
    qn_checkpoint_clear(checkpoint);
    assert_ok(qn_checkpoint_restore(copy, other));
    free_memory(memory);
    assert_int_equal(qn_memory_rewind_length(other, 70), 70);
    assert_int_equal(qn_memory_open_tokens(other), 6);
    struct contents restored = contents_of(other);
    assert_same(&saved, &restored);
    qn_checkpoint_free(checkpoint);
    qn_checkpoint_free(copy);
    free_memory(other);
    free(cpu.bytes);
    free(saved.bytes);
    free(restored.bytes);
    qn_session_free(session);
    close_both();
}

/* ---- Limits and failures ---- */

static uint64_t held_by(const qn_memory *memory)
{
    return qn_sequence_bytes(memory->sequence);
}

/* A budget of a few granules: what does not fit changes nothing, and what is given back is there for others. */
TEST(budget)
{
    set_up("qwen3.q1_0", 0);
    ((qn_cuda_model *)fixture.device)->common.memory_limit = 2 * (uint64_t)FAKE_GRANULE;
    const size_t n_ctx = 100 * QN_PAGE;
    const qn_memory_params params = memory_params(&fixture, n_ctx, BATCH);
    qn_memory *memory, *other;
    assert_ok(fixture.device->vtable->memory_new(fixture.device, &params, &memory));
    assert_ok(fixture.device->vtable->memory_new(fixture.device, &params, &other));
    const size_t page = qn_pool_stride(memory->sequence->cache->pages), most = 2 * FAKE_GRANULE / page;
    assert_true(most > 2 && most < n_ctx / QN_PAGE);
    append(memory, most / 2 * QN_PAGE);
    append(other, (most - most / 2) * QN_PAGE);
    const uint64_t held = held_by(memory);
    assert_fails(memory->vtable->prepare(memory, 1), QN_ERR_MEMORY, "page of keys and values on the GPU");
    assert_int_equal(held_by(memory), held);
    qn_memory_truncate(other, QN_PAGE);
    append(memory, 1);
    free_memory(memory);
    free_memory(other);
    tear_down();
}

/* Any call that fails leaves the memory as it was, and it goes on afterwards. */
TEST(failing_steps)
{
    static const char *const calls[] = { "cuMemCreate",     "cuMemMap",          "cuMemSetAccess",
                                         "cuMemsetD8Async", "cuMemcpyHtoDAsync", "cuEventRecord" };
    for (size_t i = 0; i < COUNT(calls); i++)
        for (int after = 0; after < 3; after++) {
            set_up("qwen35-rotated.pq2_0", 4);
            qn_memory *memory = memory_of();
            append(memory, 70);
            label("%s, %d", calls[i], after);
            const uint64_t held = held_by(memory);
            fake.fails = calls[i];
            fake.fails_after = after;
            if (memory->vtable->prepare(memory, 300) != QN_OK) {
                assert_text("made to fail");
                assert_int_equal(held_by(memory), held);
            }
            fake.fails = NULL;
            qn_memory_on_append(memory, 70);
            check_prepared(memory, 300);
            qn_memory_on_append(memory, 370);
            free_memory(memory);
            tear_down();
        }
}

TEST(failing_creation)
{
    static const char *const calls[] = { "cuMemGetAllocationGranularity",
                                         "cuMemGetInfo",
                                         "cuMemAddressReserve",
                                         "cuMemAlloc",
                                         "cuMemHostAlloc",
                                         "cuEventCreate",
                                         "cuMemCreate",
                                         "cuMemsetD8Async",
                                         "cuMemcpyHtoDAsync" };
    qn_memory *memory;
    set_up("qwen35-rotated.pq2_0", 4);
    qn_memory_params params = memory_params(&fixture, (size_t)1 << 60, BATCH);
    assert_int_equal(fixture.device->vtable->memory_new(fixture.device, &params, &memory), QN_ERR_MEMORY);
    assert_null(memory);
    tear_down();
    for (size_t i = 0; i < COUNT(calls); i++)
        for (int after = 0; after < 4; after++) {
            set_up("qwen35-rotated.pq2_0", 4);
            params = memory_params(&fixture, CONTEXT, BATCH);
            label("%s, %d", calls[i], after);
            fake.fails = calls[i];
            fake.fails_after = after;
            if (fixture.device->vtable->memory_new(fixture.device, &params, &memory) != QN_OK) {
                assert_text("made to fail");
                assert_null(memory);
                fake.fails = NULL;
                memory = memory_of();
            }
            fake.fails = NULL;
            append(memory, 100);
            free_memory(memory);
            tear_down();
        }
    set_up("qwen35-rotated.pq2_0", 4);
    assert_int_not_equal(fixture.device->vtable->reserve(fixture.device, (size_t)1 << 50, 64), QN_OK);
    assert_ok(fixture.device->vtable->reserve(fixture.device, 8, 64));
    tear_down();
}

/* ---- Threads ---- */

/* Memories of one model, each used by a thread of its own; the first thread of a format creates it. */
static void *use_memories(void *context)
{
    (void)context;
    for (size_t round = 0; round < 10; round++) {
        qn_memory *memory = memory_of(), *other = memory_of();
        qn_memory_checkpoint *checkpoint;
        append(memory, 70);
        assert_ok(qn_checkpoint_new(&checkpoint));
        assert_ok(qn_checkpoint_save(checkpoint, memory));
        append(memory, 200);
        assert_ok(qn_memory_copy(other, memory));
        append(other, 100);
        assert_ok(qn_checkpoint_restore(checkpoint, memory));
        append(memory, 64);
        qn_checkpoint_free(checkpoint);
        free_memory(memory);
        free_memory(other);
    }
    return NULL;
}

TEST(threads)
{
    enum { THREADS = 4 };
    pthread_t all[THREADS];
    set_up("qwen35-rotated.pq2_0", 4);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&all[i], NULL, use_memories, NULL), 0);
    for (size_t i = 0; i < THREADS; i++)
        assert_int_equal(pthread_join(all[i], NULL), 0);
    tear_down();
}
