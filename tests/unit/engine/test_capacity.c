/* What qn_model_get_capacity says fits in memory, against sessions that grow until there is none. */
#include "helper_create.h"
#include "helper_sanitizers.h"

#include "scheduler/scheduler.h"

enum { STEP = 16, MAX_SESSIONS = 8 };

static const char *const kinds[] = { "f16", "aura4" };

static void load(const char *file, uint64_t memory, qn_model **model)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", QN_SOURCE_DIR, file);
    assert_ok(qn_model_load(path, &CPU_MODEL(.memory = memory, .n_threads = 1, .skip_weight_scan = true), model));
}

/* Rows are reserved and committed without evaluating them: the time would be all in the model. */
static bool grow(qn_session *session)
{
    qn_memory *memory = session->memory;
    const qn_status status = memory->vtable->prepare(memory, STEP);
    if (status != QN_OK) {
        assert_int_equal(status, QN_ERR_MEMORY);
        return false;
    }
    qn_memory_on_append(memory, memory->sequence->length + STEP);
    return true;
}

/* The length to which n sessions can grow together. */
static uint64_t measure(qn_model *model, const char *kv, uint32_t n)
{
    qn_session *sessions[MAX_SESSIONS];
    bool fits = true;
    uint64_t length = 0;
    for (uint32_t i = 0; i < n; i++)
        sessions[i] = create_session(model, &SESSION_PARAMS(.n_ctx = 1 << 24, .n_batch = STEP, .kv = kv));
    while (fits) {
        for (uint32_t i = 0; fits && i < n; i++)
            fits = grow(sessions[i]);
        length += fits ? STEP : 0;
    }
    for (uint32_t i = 0; i < n; i++)
        qn_session_free(sessions[i]);
    return length;
}

TEST(capacity_is_what_fits)
{
    static const char *const files[] = { "models/quern-demo.gguf", "tests/golden/qwen3.f16.gguf",
                                         "tests/golden/qwen35.q1_0.gguf" };
    static const uint64_t limits[] = { (uint64_t)64 << 20, (uint64_t)300 << 20 };
    for (size_t i = 0; i < 12; i += QN_TEST_SANITIZED ? 4 : 1) { /* sanitizers are tens of times slower */
        qn_model *model;
        qn_capacity capacity = QN_CAPACITY_INIT;
        const char *kv = kinds[i % 2];
        const uint64_t limit = limits[i / 2 % 2];
        load(files[i / 4], limit, &model);
        for (uint32_t n = 1; n <= MAX_SESSIONS; n *= 8) {
            label("%s, %s, %llu MiB, %u sequences", files[i / 4], kv, (unsigned long long)(limit >> 20), n);
            assert_ok(qn_model_get_capacity(model, kv, n, &capacity));
            const uint64_t found = measure(model, kv, n);
            assert_int_equal(capacity.memory_limit, limit);
            assert_true(found > 0);
            const uint64_t said = capacity.tokens_per_sequence;
            const double error = (double)said / (double)found - 1;
            if (!(error <= 0.02 && error >= -0.02) && !(said >= found && said < found + STEP))
                fail_msg("%llu tokens fit, not %llu", (unsigned long long)found, (unsigned long long)said);
            assert_true(n * (said * capacity.bytes_per_position + capacity.bytes_per_sequence) <= limit * 1.02);
        }
        qn_model_free(model);
    }
}

TEST(parameters)
{
    qn_model *model;
    qn_capacity capacity = QN_CAPACITY_INIT, later = QN_CAPACITY_INIT;
    load("models/quern-demo.gguf", 16 << 20, &model);
    assert_fails(qn_model_get_capacity(model, NULL, 0, &capacity), QN_ERR_INVALID, "sequences: 0");
    assert_int_equal(qn_model_get_capacity(model, "f17", 1, &capacity), QN_ERR_UNSUPPORTED);
    assert_ok(qn_model_get_capacity(model, NULL, 1000, &capacity));
    assert_int_equal(capacity.tokens_per_sequence, 0);
    /* What is held does not count. */
    assert_ok(qn_model_get_capacity(model, NULL, 1, &capacity));
    qn_session *session = create_session(model, NULL);
    assert_true(grow(session));
    assert_ok(qn_model_get_capacity(model, NULL, 1, &later));
    assert_int_equal(later.tokens_per_sequence, capacity.tokens_per_sequence);
    qn_session_free(session);
    qn_model_free(model);
}

/* One rule for n_ctx 0: as in training, or what the memory holds. */
TEST(default_contexts_are_the_same)
{
    static const uint64_t memories[] = { 4 << 20, 64 << 20 };
    for (size_t i = 0; i < 2; i++) {
        qn_model *model;
        qn_scheduler *scheduler;
        qn_capacity capacity = QN_CAPACITY_INIT;
        label("%llu bytes", (unsigned long long)memories[i]);
        load("tests/golden/scheduler.gguf", memories[i], &model);
        assert_ok(qn_model_get_capacity(model, NULL, 1, &capacity));
        const uint32_t trained = qn_model_get_info(model)->n_ctx_train;
        const uint64_t expected = capacity.tokens_per_sequence < trained ? capacity.tokens_per_sequence : trained;
        assert_true(i || expected < trained);
        qn_session *session = create_session(model, NULL);
        assert_int_equal(qn_session_capacity(session), expected);
        qn_session_free(session);
        scheduler = create_scheduler(model, NULL);
        assert_int_equal(scheduler->params.n_ctx, expected);
        qn_scheduler_free(scheduler);
        qn_model_free(model);
    }
}
