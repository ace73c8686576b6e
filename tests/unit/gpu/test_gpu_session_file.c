/* Contents of memories on a GPU, without one: they come from sessions on the CPU and go back, and every array of an
 * item is where kernels expect it. */
#include "helper_contents.h"
#include "helper_gpu.h"
#include "helper_sessions.h"

#include "base/f16.h"
#include "cpu/memory.h"
#include "gpu/state_planes.h"

#include <math.h>

enum { CONTEXT = 512 };

static const char *format; /* of the current test */

static qn_memory *memory_of(void)
{
    return &gpu_memory(format, CONTEXT)->base;
}

static void free_memory(qn_memory *memory)
{
    memory->vtable->free(memory);
}

static void open_both(const char *golden, const char *kv)
{
    open_model(golden, CPU_MODEL(.n_threads = 1), 1);
    open_gpu_of(golden, false);
    format = kv;
}

static void close_both(void)
{
    close_gpu();
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

static void check_contents(const char *golden, const char *kv)
{
    static const uint32_t lengths[] = { 1, 3, 16, 63, 64, 65, 70, 127, 128, 129, 200, 330 };
    open_both(golden, kv);
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
        const qn_gpu_format *f = ((qn_gpu_memory *)gpu)->format;
        const size_t kv_bytes = (size_t)qn_saved_kv_bytes(&f->saved, &extent);
        assert_int_equal(cpu.n, qn_saved_bytes(&f->saved, &extent));
        assert_int_equal(cpu.n, on_gpu.n);
        assert_memory_equal(cpu.bytes, on_gpu.bytes, kv_bytes);
        if (f->saved.n_recurrent)
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
    check_contents("qwen3.q1_0", "f16");
    check_contents("qwen3.q1_0", "aura4");
    check_contents("llama.q1_0", "aura3");
    check_contents("qwen35.q1_0", "f16");
    check_contents("qwen35-rotated.pq2_0", "aura6");
    check_contents("qwen35-rotated.pq2_0", "aura2");
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
    const qn_gpu_format *f = ((const qn_gpu_memory *)gpu)->format;
    const size_t dim = f->saved.head_dim;
    const qn_gpu_layer_cache cache = qn_gpu_layer_cache_of(f, layer);
    const uint8_t *item = at_address(qn_pool_address(gpu->sequence->cache->pages, gpu->sequence->pages[page]));
    for (size_t head = 0; head < f->saved.n_heads; head++) {
        const uint8_t *keys = item + cache.keys + head * cache.key_head,
                      *values = item + cache.values + head * cache.value_head;
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
            qn_aura_unpack(codes, (const uint32_t *)(const void *)(keys + p * f->kv.key_row), dim, f->format->key_bits);
            qn_aura_load_key((const uint8_t *)cpu_keys, p, cpu_codes, &scale, dim, f->format->key_bits);
            assert_memory_equal(codes, cpu_codes, dim);
            assert_memory_equal(item + cache.key_scales + head * cache.scale_head + p * sizeof scale, &scale,
                                sizeof scale);
            qn_aura_unpack(codes, (const uint32_t *)(const void *)(values + p * f->kv.value_row), dim,
                           f->format->value_bits);
            qn_aura_load_value((const uint8_t *)cpu_values, p, cpu_codes, &scale, dim, f->format->value_bits);
            assert_memory_equal(codes, cpu_codes, dim);
            assert_memory_equal(item + cache.value_scales + head * cache.scale_head + p * sizeof scale, &scale,
                                sizeof scale);
        }
    }
}

static void compare_f16_page(const qn_memory *gpu, const qn_cpu_memory *cpu, size_t layer, size_t page, size_t held)
{
    const qn_gpu_format *f = ((const qn_gpu_memory *)gpu)->format;
    const size_t dim = f->saved.head_dim;
    const qn_gpu_layer_cache cache = qn_gpu_layer_cache_of(f, layer);
    const uint8_t *item = at_address(qn_pool_address(gpu->sequence->cache->f16_pages, gpu->sequence->f16_pages[page]));
    for (size_t head = 0; head < f->saved.n_heads; head++) {
        const uint16_t *keys = (const uint16_t *)(const void *)(item + cache.f16_keys + head * cache.f16_head),
                       *cpu_keys = qn_kv_f16_keys(&cpu->kv, layer, page, head);
        for (size_t i = 0; i < held * dim; i++)
            assert_int_equal(keys[i], cpu_keys[i / dim / 16 * 16 * dim + i % dim * 16 + i / dim % 16]);
        assert_memory_equal(item + cache.f16_values + head * cache.f16_head,
                            qn_kv_f16_values(&cpu->kv, layer, page, head), held * dim * 2);
        if (page == 0)
            assert_memory_equal(item + cache.means + head * dim * sizeof(float), qn_kv_key_mean(&cpu->kv, layer, head),
                                dim * sizeof(float));
    }
}

static void compare_layer(const qn_memory *gpu, const qn_cpu_memory *cpu, size_t layer)
{
    const qn_gpu_format *f = ((const qn_gpu_memory *)gpu)->format;
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
static void check_items(const char *golden, const char *kv)
{
    enum { LENGTH = 4 * QN_PAGE + 20 };
    const bool codes = strcmp(kv, "f16") != 0;
    label("%s, %s", golden, kv);
    open_both(golden, kv);
    qn_memory *gpu = memory_of();
    qn_session *session = session_of(kv, ids, LENGTH);
    const qn_extent extent = qn_sequence_extent(session->memory->sequence);
    struct contents cpu = contents_of(session->memory);
    fill(gpu, &cpu, &extent);
    for (size_t layer = 0; layer < fake_gpu.plan.n_layers; layer++) {
        if (fake_gpu.plan.is_recurrent && fake_gpu.plan.is_recurrent[layer]) {
            compare_layer(gpu, cpu_memory_of(session), layer);
            continue;
        }
        for (size_t page = codes; page < (codes ? 4 : 5); page++)
            compare_page(gpu, cpu_memory_of(session), layer, page, page < 4 ? QN_PAGE : LENGTH % QN_PAGE);
        for (size_t page = 0; codes && page <= 4; page += 4)
            compare_f16_page(gpu, cpu_memory_of(session), layer, page, page < 4 ? QN_PAGE : LENGTH % QN_PAGE);
    }
    free(cpu.bytes);
    qn_session_free(session);
    free_memory(gpu);
    close_both();
}

TEST(items_have_the_kernels_layout)
{
    check_items("qwen3.q1_0", "f16");
    check_items("llama.q1_0", "aura3");
    check_items("qwen35.q1_0", "aura6");
}

/* Scales are such that values which come from fp16 are exact, also if the largest is a power of two. */
TEST(values_of_fp16_are_exact)
{
    open_both("qwen35.q1_0", "f16");
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
    const qn_gpu_format *f = ((qn_gpu_memory *)gpu)->format;
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
    open_both("qwen35.q1_0", "f16");
    qn_memory *gpu = memory_of();
    const qn_gpu_format *f = ((qn_gpu_memory *)gpu)->format;
    const qn_extent extent = { .length = 2 * QN_PAGE, .state_position = 2 * QN_PAGE, .shortest = 2 * QN_PAGE };
    qn_session *session = session_of("f16", ids, 2 * QN_PAGE), *later = session_of("f16", ids, 2 * QN_PAGE + 1);
    struct contents c = contents_of(session->memory), of_later = contents_of(later->memory);
    const size_t kv_bytes = (size_t)qn_saved_kv_bytes(&f->saved, &extent),
                 bytes = f->saved.n_recurrent * (size_t)qn_saved_layer_bytes(&f->saved.recurrent);
    size_t counts[QN_SAVED_ARRAYS];
    qn_saved_counts(&f->saved.recurrent, counts);
    float *to = (float *)(void *)(c.bytes + kv_bytes), *from = (float *)(void *)(of_later.bytes + of_later.n - bytes);
    for (size_t i = 0; i < f->saved.n_recurrent; i++)
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

/* A layer whose ring of convolution inputs does not divide a chunk: inputs are by position modulo 17 on the device. */
TEST(a_ring_that_does_not_divide_a_chunk)
{
    enum { WIDTH = 3 * 16, BEGIN = 64, LENGTH = 64 + 25, RING = 2 + QN_GDN_DROPPED_ROWS };
    const qn_extent extent = { .length = LENGTH, .state_position = BEGIN, .shortest = LENGTH - QN_GDN_DROPPED_ROWS };
    size_t counts[QN_SAVED_ARRAYS], before = 0;
    fake_gpu = (struct gpu){ 0 };
    fake_gpu.plan = (qn_plan){ .n_layers = 1,
                               .heads = { .n_heads = 1, .n_kv_heads = 1, .head_dim = 64 },
                               .recurrent = { .n_k_heads = 1, .n_v_heads = 1, .head_k = 16, .head_v = 16, .taps = 3 } };
    assert_ok(qn_alloc(&fake_gpu.plan.is_recurrent, 1, sizeof(bool), "test"));
    fake_gpu.plan.is_recurrent[0] = true;
    open_gpu(false);
    qn_gpu_memory *m = gpu_memory("f16", CONTEXT);
    const qn_saved_layout *saved = &m->format->saved;
    qn_saved_counts(&saved->recurrent, counts);
    for (size_t array = 0; array < QN_SAVED_CONV_INPUTS; array++)
        before += counts[array];
    const size_t n = (size_t)qn_saved_bytes(saved, &extent) / sizeof(float);
    float *file = calloc(n, sizeof *file);
    assert_non_null(file);
    /* Positions that the device keeps: as many as the ring has, and none before the chunk. */
    for (size_t i = (LENGTH - RING - BEGIN) * WIDTH; i < (LENGTH - BEGIN) * WIDTH; i++)
        file[before + i] = (float)i;
    const struct contents contents = { .bytes = (uint8_t *)file, .n = n * sizeof *file };
    fill(&m->base, &contents, &extent);
    const float *inputs = (const float *)(const void *)at_address(
        qn_pool_address(m->sequence.cache->open_chunks, m->sequence.open_chunk) + m->format->recurrent.open.inputs);
    for (size_t p = LENGTH - RING; p < LENGTH; p++)
        assert_memory_equal(inputs + p % RING * WIDTH, file + before + (p - BEGIN) * WIDTH, WIDTH * sizeof *file);
    struct contents again = contents_of(&m->base);
    assert_same(&contents, &again);
    free(again.bytes);
    free(file);
    free_gpu_memory(m);
    close_gpu();
}

/* ---- Failures ---- */

/* Counts the regions, and fails at one of them. */
struct regions {
    struct contents contents;
    size_t n, failing; /* failing: index of the region that fails */
};

static qn_status take_regions(void *context, void *data, size_t bytes)
{
    struct regions *r = context;
    return r->n++ == r->failing ? qn_fail(QN_ERR_FORMAT, "region: made to fail") : take(&r->contents, data, bytes);
}

static qn_status put_regions(void *context, void *data, size_t bytes)
{
    struct regions *r = context;
    (void)data;
    (void)bytes;
    return r->n++ == r->failing ? qn_fail(QN_ERR_IO, "region: made to fail") : QN_OK;
}

/* A copy or a region that fails ends the conversion with its status; the memory can be filled again. */
TEST(failures_end_the_conversion)
{
    open_both("qwen35-rotated.pq2_0", "aura2");
    qn_memory *gpu = memory_of();
    qn_session *session = session_of("aura2", ids, 330);
    const qn_extent extent = qn_sequence_extent(session->memory->sequence);
    struct contents cpu = contents_of(session->memory);
    fill(gpu, &cpu, &extent);
    const size_t n_writes = fake_gpu.n_writes;
    struct contents whole = contents_of(gpu);
    const size_t n_reads = fake_gpu.n_reads;
    assert_true(n_writes > 4 && n_reads > 4);
    for (size_t i = 0; i < n_reads; i++) {
        struct regions r = { .failing = SIZE_MAX };
        label("read %zu", i);
        fake_gpu.fails = "read";
        fake_gpu.fails_after = i;
        assert_fails(gpu->vtable->serialize(gpu, put_regions, &r), QN_ERR_DEVICE, "read: made to fail");
    }
    for (size_t i = 0; i < n_writes; i++) {
        struct contents c = cpu;
        label("write %zu", i);
        c.at = 0;
        qn_memory_truncate(gpu, 0);
        fake_gpu.fails = "write";
        fake_gpu.fails_after = i;
        assert_fails(gpu->vtable->deserialize(gpu, &extent, take, &c), QN_ERR_DEVICE, "write: made to fail");
    }
    for (size_t i = 0; i < 400; i += 7) {
        struct regions out = { .failing = i }, in = { .contents = cpu, .failing = i };
        label("region %zu", i);
        qn_status status = gpu->vtable->serialize(gpu, put_regions, &out);
        assert_int_equal(status, out.n > i ? QN_ERR_IO : QN_OK);
        in.contents.at = 0;
        qn_memory_truncate(gpu, 0);
        status = gpu->vtable->deserialize(gpu, &extent, take_regions, &in);
        assert_int_equal(status, in.n > i ? QN_ERR_FORMAT : QN_OK);
        assert_int_equal(in.n, out.n);
        qn_memory_truncate(gpu, 0);
        fill(gpu, &cpu, &extent);
    }
    struct contents again = contents_of(gpu);
    assert_same(&whole, &again);
    free(cpu.bytes);
    free(whole.bytes);
    free(again.bytes);
    qn_session_free(session);
    free_memory(gpu);
    close_both();
}
