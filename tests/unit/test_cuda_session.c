/* Session memory on a CUDA device, with a fake driver: serialisation round trips, copies and checkpoints, and an AURA
 * cache can be rewound to the same lengths as the CPU's. quern-check tests the kernels on a GPU. */
#include "helper_cuda_model.h"

#include "device/cuda/model.h"

enum { CONTEXT = 512, BATCH = 100, PAGE = 64 };

static void set_up(struct cuda_fixture *x, const char *golden, unsigned bits)
{
    read_golden(x, golden);
    create_device(x, bits);
}

static qn_memory_params params_of(const struct cuda_fixture *x)
{
    return memory_params(x, CONTEXT, BATCH);
}

static qn_memory *memory_of(const struct cuda_fixture *x)
{
    const qn_memory_params params = params_of(x);
    qn_memory *memory;
    assert_ok(x->device->vtable->memory_new(x->device, &params, &memory));
    return memory;
}

/* ---- Serialisation ---- */

/* A pseudo-random byte stream, determined by its seed. */
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
    assert_ok(memory->vtable->deserialize(memory, length, put, &s));
    assert_int_equal(s.bytes, memory->vtable->serialized_bytes(memory, length));
}

static bool holds(const qn_memory *memory, size_t length, uint32_t seed)
{
    struct stream s = { .state = seed, .same = true };
    assert_ok(memory->vtable->serialize(memory, length, compare, &s));
    assert_int_equal(s.bytes, memory->vtable->serialized_bytes(memory, length));
    return s.same;
}

static const size_t lengths[] = { 0, 1, 63, 64, 65, 127, 128, 200, CONTEXT };
enum { N_LENGTHS = sizeof lengths / sizeof *lengths };

static void check_regions(const char *golden, unsigned bits)
{
    struct cuda_fixture x;
    set_up(&x, golden, bits);
    qn_memory *memory = memory_of(&x), *other = memory_of(&x);
    for (uint32_t i = 0; i < N_LENGTHS; i++) {
        label("%s, %u bits, %u tokens", golden, bits, (unsigned)lengths[i]);
        fill(memory, lengths[i], i + 1);
        assert_true(holds(memory, lengths[i], i + 1));
        assert_false(memory->vtable->serialized_bytes(memory, lengths[i]) && holds(memory, lengths[i], i + 2));
        assert_int_equal(memory->vtable->bytes(memory, lengths[i]), memory->vtable->serialized_bytes(memory, lengths[i]));
        assert_ok(other->vtable->copy(other, memory, lengths[i]));
        assert_true(holds(other, lengths[i], i + 1));
        assert_int_equal(other->vtable->rewind_length(other, lengths[i]), lengths[i]);
    }
    memory->vtable->free(memory);
    other->vtable->free(other);
    free_device(&x);
}

static void regions_round_trip(void **unused)
{
    (void)unused;
    check_regions("qwen3.q1_0", 0);
    check_regions("qwen3.q1_0", 4);
    check_regions("qwen35.q1_0", 0);
    check_regions("qwen35-rotated.pq2_0", 3);
}

/* ---- Checkpoints ---- */

/* A checkpoint at 70 tokens contains the fp16 page that begins at position 64, and the recurrent states. */
static void checkpoints_restore_pages(void **unused)
{
    (void)unused;
    struct cuda_fixture x;
    qn_memory_checkpoint *checkpoint, *copy;
    set_up(&x, "qwen35-rotated.pq2_0", 4);
    qn_memory *memory = memory_of(&x), *other = memory_of(&x);
    const qn_memory_vtable *vtable = memory->vtable;
    assert_ok(vtable->checkpoint_new(memory, &checkpoint));
    assert_ok(vtable->checkpoint_new(memory, &copy));
    fill(memory, 70, 1);
    assert_ok(vtable->checkpoint_save(checkpoint, memory, 70));
    assert_ok(vtable->checkpoint_copy(copy, checkpoint, memory));
    assert_ok(vtable->copy(other, memory, 64)); /* states, and the cache without its open page */
    assert_false(holds(other, 70, 1));
    assert_ok(vtable->checkpoint_restore(copy, other, 70));
    assert_int_equal(vtable->rewind_length(other, 70), 70);
    assert_true(holds(other, 70, 1));
    assert_int_equal(vtable->open_tokens(70), 1);
    assert_int_equal(vtable->open_tokens(0), 0);
    vtable->checkpoint_free(checkpoint);
    vtable->checkpoint_free(copy);
    vtable->free(memory);
    vtable->free(other);
    free_device(&x);
}

static void checkpoints_hold_states_exactly(void **unused)
{
    (void)unused;
    struct cuda_fixture x;
    qn_memory_checkpoint *checkpoint;
    set_up(&x, "qwen35.q1_0", 0);
    qn_memory *memory = memory_of(&x);
    assert_ok(memory->vtable->checkpoint_new(memory, &checkpoint));
    /* The contents of 0 positions are the states alone; a checkpoint of an fp16 cache does not depend on the number of
     * tokens. */
    for (size_t held = 1; held < CONTEXT; held += 100) {
        fill(memory, 0, 1);
        assert_ok(memory->vtable->checkpoint_save(checkpoint, memory, held));
        fill(memory, 0, 2);
        assert_true(holds(memory, 0, 2));
        assert_ok(memory->vtable->checkpoint_restore(checkpoint, memory, held));
        assert_true(holds(memory, 0, 1));
    }
    memory->vtable->checkpoint_free(checkpoint);
    memory->vtable->free(memory);
    free_device(&x);
}

/* ---- Failures ---- */

/* Sessions take bytes of the device's limit, and give them back. */
static void memory_limit(void **unused)
{
    (void)unused;
    struct cuda_fixture x;
    qn_memory *second;
    set_up(&x, "qwen35.q1_0", 0);
    qn_memory *first = memory_of(&x);
    const qn_memory_params params = params_of(&x);
    qn_cuda_model *model = (qn_cuda_model *)x.device;
    const uint64_t bytes = ((qn_cuda_memory *)first)->bytes;
    assert_int_equal(atomic_load(&model->memory), bytes);
    model->memory_limit = 2 * bytes - 1;
    assert_int_equal(x.device->vtable->memory_new(x.device, &params, &second), QN_ERR_MEMORY);
    assert_null(second);
    assert_text("memory are in use");
    model->memory_limit = 2 * bytes;
    assert_ok(x.device->vtable->memory_new(x.device, &params, &second));
    second->vtable->free(second);
    first->vtable->free(first);
    assert_int_equal(atomic_load(&model->memory), 0);
    free_device(&x);
}

static void allocation_failures(void **unused)
{
    (void)unused;
    struct cuda_fixture x;
    qn_memory *memory;
    set_up(&x, "qwen35-rotated.pq2_0", 4);
    qn_memory_params params = params_of(&x);
    params.n_ctx = (size_t)1 << 60;
    assert_int_equal(x.device->vtable->memory_new(x.device, &params, &memory), QN_ERR_MEMORY);
    assert_null(memory);
    params = params_of(&x);
    for (int after = 0; after < 3; after++) { /* cache, states, tables */
        fake.fails = "cuMemAlloc";
        fake.fails_after = after;
        assert_int_not_equal(x.device->vtable->memory_new(x.device, &params, &memory), QN_OK);
        assert_null(memory);
    }
    fake.fails = NULL;
    assert_int_not_equal(x.device->vtable->reserve(x.device, (size_t)1 << 50, 64), QN_OK);
    assert_ok(x.device->vtable->reserve(x.device, 8, 64));
    free_device(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_round_trip),
        cmocka_unit_test(checkpoints_restore_pages),
        cmocka_unit_test(checkpoints_hold_states_exactly),
        cmocka_unit_test(memory_limit),
        cmocka_unit_test(allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
