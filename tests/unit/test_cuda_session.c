/* What a session remembers on a CUDA device, with a driver that the test plays: pieces go in and come out as they were, copies
 * and marks hold what they should, and a cache of codes can go back as far as the CPU's. Kernels are checked where there is a
 * GPU. */
#include "helper_cuda.h"

#include "base/cpu.h"
#include "cache/memory.h"
#include "device/cuda/executor.h"
#include "gguf/gguf.h"
#include "model/model.h"

#include <stdio.h>

enum { CONTEXT = 512, BATCH = 100, RUN = 64 };

struct fixture {
    qn_gguf *file;
    qn_hparams hparams;
    qn_plan plan;
    qn_kernels kernels;
    qn_team *team;
    qn_aura_codec *codec;
    qn_device *device;
};

static void must(qn_status status)
{
    if (status != QN_OK)
        fail_msg("%s: %s", qn_status_name(status), qn_error_text());
}

static void set_up(struct fixture *x, const char *golden, unsigned bits)
{
    static const qn_gpu_code no_code;
    static const qn_cuda_tools tools = { .cache_folder = "", .nvcc = "", .nvrtc = "", .code = &no_code };
    char path[512];
    unsigned cpu;
    memset(x, 0, sizeof *x);
    fake.no_param_info = true;
    const qn_cuda_driver *driver = fake_driver();
    snprintf(path, sizeof path, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, golden);
    must(qn_gguf_open(path, &x->file));
    must(qn_model_build(x->file, &x->hparams, &x->plan));
    must(qn_cpu_features(&cpu));
    qn_kernels_init(&x->kernels, cpu);
    must(qn_team_create(1, &x->team));
    if (bits)
        must(qn_aura_codec_new(&x->codec, x->hparams.head_dim, bits, 1));
    const qn_cuda_executor_params params = {
        .plan = &x->plan, .team = x->team, .kernels = &x->kernels, .driver = driver, .tools = &tools
    };
    must(qn_cuda_executor_create(&params, &x->device));
}

static void tear_down(struct fixture *x)
{
    x->device->calls->free(x->device);
    qn_aura_codec_delete(x->codec);
    qn_team_free(x->team);
    qn_plan_free(&x->plan);
    qn_gguf_close(x->file);
    fake_expect_empty();
}

static qn_memory_params params_of(const struct fixture *x)
{
    return (qn_memory_params){
        .n_layers = x->hparams.n_layers, .n_ctx = CONTEXT, .n_batch = BATCH, .key_codec = x->codec, .value_codec = x->codec
    };
}

static qn_memory *memory_of(const struct fixture *x)
{
    const qn_memory_params params = params_of(x);
    qn_memory *memory;
    must(x->device->calls->memory_new(x->device, &params, &memory));
    return memory;
}

/* ---- Pieces ---- */

/* A stream of bytes that a seed stands for. */
struct stream {
    uint32_t state;
    uint64_t bytes;
    bool same;
};

static uint8_t next_byte(struct stream *s)
{
    s->state = s->state * 1664525u + 1013904223u;
    s->bytes++;
    return (uint8_t)(s->state >> 24);
}

static qn_status put(void *context, void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)data)[i] = next_byte(context);
    return QN_OK;
}

static qn_status compare(void *context, void *data, size_t bytes)
{
    struct stream *s = context;
    for (size_t i = 0; i < bytes; i++)
        s->same = ((uint8_t *)data)[i] == next_byte(s) && s->same;
    return QN_OK;
}

static void fill(qn_memory *memory, size_t length, uint32_t seed)
{
    struct stream s = { .state = seed };
    must(memory->calls->deserialize(memory, length, put, &s));
    assert_int_equal(s.bytes, memory->calls->serialized_bytes(memory, length));
}

static bool holds(const qn_memory *memory, size_t length, uint32_t seed)
{
    struct stream s = { .state = seed, .same = true };
    must(memory->calls->serialize(memory, length, compare, &s));
    assert_int_equal(s.bytes, memory->calls->serialized_bytes(memory, length));
    return s.same;
}

static const size_t lengths[] = { 0, 1, 63, 64, 65, 127, 128, 200, CONTEXT };
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void check_pieces(const char *golden, unsigned bits)
{
    struct fixture x;
    set_up(&x, golden, bits);
    qn_memory *memory = memory_of(&x), *other = memory_of(&x);
    for (uint32_t i = 0; i < N_LENGTHS; i++) {
        fill(memory, lengths[i], i + 1);
        assert_true(holds(memory, lengths[i], i + 1));
        assert_false(memory->calls->serialized_bytes(memory, lengths[i]) && holds(memory, lengths[i], i + 2));
        assert_int_equal(memory->calls->bytes(memory, lengths[i]), memory->calls->serialized_bytes(memory, lengths[i]));
        must(other->calls->copy(other, memory, lengths[i]));
        assert_true(holds(other, lengths[i], i + 1));
        assert_int_equal(other->calls->reach(other, lengths[i]), lengths[i]);
    }
    memory->calls->free(memory);
    other->calls->free(other);
    tear_down(&x);
}

static void pieces_come_out_as_they_went_in(void **unused)
{
    (void)unused;
    check_pieces("qwen3.q1_0", 0);
    check_pieces("qwen3.q1_0", 4);
    check_pieces("qwen35.q1_0", 0);
    check_pieces("qwen35-rotated.pq2_0", 3);
}

/* ---- Marks ---- */

/* Of a memory of 128 tokens, 64 of them codes; a mark of 70 has the run that begins at 64, and the states. */
static void marks_bring_back_runs(void **unused)
{
    (void)unused;
    struct fixture x;
    qn_memory_mark *mark, *copy;
    set_up(&x, "qwen35-rotated.pq2_0", 4);
    qn_memory *memory = memory_of(&x), *other = memory_of(&x);
    const qn_memory_calls *calls = memory->calls;
    must(calls->mark_new(memory, &mark));
    must(calls->mark_new(memory, &copy));
    fill(memory, 70, 1);
    must(calls->mark_keep(mark, memory, 70));
    must(calls->mark_copy(copy, mark, memory));
    must(calls->copy(other, memory, 64)); /* without the open run; states too */
    assert_false(holds(other, 70, 1));
    must(calls->mark_take(copy, other, 70));
    assert_int_equal(calls->reach(other, 70), 70);
    assert_true(holds(other, 70, 1));
    assert_int_equal(calls->open(70), 1);
    assert_int_equal(calls->open(0), 0);
    calls->mark_free(mark);
    calls->mark_free(copy);
    calls->free(memory);
    calls->free(other);
    tear_down(&x);
}

static void marks_hold_states_to_the_byte(void **unused)
{
    (void)unused;
    struct fixture x;
    qn_memory_mark *mark;
    set_up(&x, "qwen35.q1_0", 0);
    qn_memory *memory = memory_of(&x);
    must(memory->calls->mark_new(memory, &mark));
    /* Of no positions, a memory is its states; a mark of a cache of halves is the same for any number of tokens. */
    for (size_t held = 1; held < CONTEXT; held += 100) {
        fill(memory, 0, 1);
        must(memory->calls->mark_keep(mark, memory, held));
        fill(memory, 0, 2);
        assert_true(holds(memory, 0, 2));
        must(memory->calls->mark_take(mark, memory, held));
        assert_true(holds(memory, 0, 1));
    }
    memory->calls->mark_free(mark);
    memory->calls->free(memory);
    tear_down(&x);
}

/* ---- How far back ---- */

/* The CPU's cache of codes is held to its promise elsewhere: here both are told the same and have to say the same. */
static void codes_go_back_as_far_as_on_the_cpu(void **unused)
{
    (void)unused;
    struct fixture x;
    set_up(&x, "qwen3.q1_0", 4);
    const qn_memory_params params = params_of(&x);
    qn_memory *gpu = memory_of(&x), *cpu;
    must(qn_cpu_memory_new(&x.plan, &params, &cpu));
    uint32_t random = 7;
    size_t length = 0;
    for (int i = 0; i < 2000; i++) {
        random = random * 1664525u + 1013904223u;
        const size_t n = (random >> 8) % BATCH + 1;
        if (random >> 31 && length) {
            const size_t to = length - (random >> 8) % length;
            const size_t reach = cpu->calls->reach(cpu, to);
            assert_int_equal(gpu->calls->reach(gpu, to), reach);
            cpu->calls->cut(cpu, reach);
            gpu->calls->cut(gpu, reach);
            length = reach;
        } else if (length + n <= CONTEXT) {
            length += n;
            cpu->calls->appended(cpu, length);
            gpu->calls->appended(gpu, length);
        }
    }
    cpu->calls->free(cpu);
    gpu->calls->free(gpu);
    tear_down(&x);
}

/* ---- Failures ---- */

static void memory_that_cannot_be_had(void **unused)
{
    (void)unused;
    struct fixture x;
    qn_memory *memory;
    set_up(&x, "qwen35-rotated.pq2_0", 4);
    qn_memory_params params = params_of(&x);
    params.n_ctx = (size_t)1 << 60;
    assert_int_equal(x.device->calls->memory_new(x.device, &params, &memory), QN_ERR_MEMORY);
    assert_null(memory);
    params = params_of(&x);
    for (int after = 0; after < 3; after++) { /* cache, states, tables */
        fake.fails = "cuMemAlloc";
        fake.fails_after = after;
        assert_int_not_equal(x.device->calls->memory_new(x.device, &params, &memory), QN_OK);
        assert_null(memory);
    }
    fake.fails = NULL;
    assert_int_not_equal(x.device->calls->reserve(x.device, (size_t)1 << 50, 64), QN_OK);
    must(x.device->calls->reserve(x.device, 8, 64));
    tear_down(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_come_out_as_they_went_in), cmocka_unit_test(marks_bring_back_runs),
        cmocka_unit_test(marks_hold_states_to_the_byte),   cmocka_unit_test(codes_go_back_as_far_as_on_the_cpu),
        cmocka_unit_test(memory_that_cannot_be_had),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
