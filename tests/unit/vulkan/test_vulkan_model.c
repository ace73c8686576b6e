/* Golden models on a Vulkan device, on the drivers that compute on the CPU: near the CPU's logits, the same bits
 * however tokens are divided among steps and whatever other sequences are in them; sessions that are forked, truncated,
 * and moved between devices. Skipped without a driver. */
#include "helper_create.h"
#include "helper_folder.h"
#include "helper_golden.h"
#include "helper_request.h"
#include "vulkan/helper_vulkan.h"

#include "engine/internal.h"
#include "vulkan/executor/steps.h"

/* With codes, the last tokens attend to those of page 1. */
enum { MAX_IDS = 140, N_IDS_OF_FP16 = 80, N_CTX = 200 };

static qn_token ids[MAX_IDS];

static bool has_codes(const char *kv)
{
    return strcmp(kv, "f16") != 0;
}

static size_t n_ids_of(const char *kv)
{
    return has_codes(kv) ? MAX_IDS : N_IDS_OF_FP16;
}

static qn_model *load(const char *name, const char *device)
{
    char file[512];
    snprintf(file, sizeof file, "%s/tests/golden/%s.gguf", QN_SOURCE_DIR, name);
    qn_model *model = create_model(file, &MODEL_PARAMS(.n_threads = 2, .device = device));
    for (uint32_t i = 0; i < MAX_IDS; i++)
        ids[i] = (qn_token)((i * i * 7 + i) % qn_model_get_info(model)->n_vocab);
    return model;
}

static float *new_logits(const qn_model *model, size_t n)
{
    float *logits = malloc(n * qn_model_get_info(model)->n_vocab * sizeof *logits);
    assert_non_null(logits);
    return logits;
}

/* Logits of ids [first, end), `piece` of them a call. */
static void evaluate(qn_session *session, size_t first, size_t end, size_t piece, size_t n_vocab, float *logits)
{
    for (size_t at = first, n; at < end; at += n) {
        n = end - at < piece ? end - at : piece;
        assert_ok(qn_session_eval(session, ids + at, n, QN_LOGITS_ALL, logits + (at - first) * n_vocab));
    }
}

static float *logits_of(qn_model *model, const char *kv, size_t piece)
{
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = kv));
    const size_t n_ids = n_ids_of(kv);
    float *logits = new_logits(model, n_ids);
    evaluate(session, 0, n_ids, piece, qn_model_get_info(model)->n_vocab, logits);
    qn_session_free(session);
    return logits;
}

/* ---- Against the CPU ---- */

/* Layouts of weights, a type that becomes fp16, biases, norms of heads, both ropes, recurrent layers, rotated weights,
 * caches of codes; test_vulkan.sh has more. */
static const struct golden {
    const char *name, *kv;
} models[] = {
    { "llama.f16", "f16" },  { "qwen2.q1_0", "f16" },          { "qwen3.iq4_nl", "f16" },
    { "qwen35.f16", "f16" }, { "qwen35-rotated.q1_0", "f16" }, { "qwen3.f16", "aura4" },
};

TEST_EACH(test_model, struct golden, golden, models)
{
    static const size_t pieces[] = { 1, 40 }; /* of more than 32 tokens, as all are: the same kernels */
    qn_model *model = load(golden->name, "vulkan"), *cpu = load(golden->name, "cpu");
    const size_t n_vocab = qn_model_get_info(model)->n_vocab, n_ids = n_ids_of(golden->kv),
                 bytes = n_ids * n_vocab * sizeof(float);
    float *all = logits_of(model, golden->kv, n_ids), *expected = logits_of(cpu, golden->kv, n_ids);
    const double error = mean_relative_error(all, expected, n_ids, n_vocab);
    if (!(error <= 4e-2))
        fail_msg("%s, %s: %.3e away from the CPU", golden->name, golden->kv, error);
    for (size_t i = 0; i < COUNT(pieces); i++) {
        label("%s, %s, pieces of %zu", golden->name, golden->kv, pieces[i]);
        float *found = logits_of(model, golden->kv, pieces[i]);
        assert_memory_equal(found, all, bytes);
        free(found);
    }
    free(all);
    free(expected);
    qn_model_free(model);
    qn_model_free(cpu);
}

/* On a slow device launches are divided. */
TEST(long_launches_in_pieces)
{
    qn_model *model = load("qwen2.q1_0", "vulkan");
    qn_vk_model *device = (qn_vk_model *)model->device;
    const size_t n_ids = N_IDS_OF_FP16, bytes = n_ids * qn_model_get_info(model)->n_vocab * sizeof(float);
    device->timed_rows = n_ids;
    device->timed_seconds = 0.01; /* one piece */
    float *whole = logits_of(model, "f16", n_ids);
    assert_int_equal(device->timed_rows, n_ids);
    device->timed_seconds = 0.35; /* four */
    float *divided = logits_of(model, "f16", n_ids);
    assert_memory_equal(divided, whole, bytes);
    free(whole);
    free(divided);
    qn_model_free(model);
}

/* ---- Sessions ---- */

/* Lengths on both sides of a page's end: with codes, of the end of page 1. */
static const size_t lengths_of_fp16[] = { 1, 63, 64, 66 }, lengths_of_codes[] = { 127, 130 };

static const size_t *lengths_of(const char *kv, size_t *n)
{
    *n = has_codes(kv) ? COUNT(lengths_of_codes) : COUNT(lengths_of_fp16);
    return has_codes(kv) ? lengths_of_codes : lengths_of_fp16;
}

/* Attention alone, and recurrent layers: how many tokens can be dropped again, and how far the logits of a session may
 * be from the CPU's that was moved between the devices. fp16 keys and values of two devices may be rounded apart, and
 * states of a GPU are read as fp16; a wrong page or state gives more than 0.1. */
static const struct kept {
    const char *name, *kv;
    size_t n_dropped;
    double bar;
} kinds[] = { { "qwen2.f16", "f16", 10, 2e-3 },
              { "qwen35.f16", "f16", QN_GDN_DROPPED_ROWS, 5e-3 },
              { "qwen3.f16", "aura4", 10, 2e-3 } };

/* A chunk that was folded cannot be opened again. */
static bool can_drop(const struct kept *kind, size_t length)
{
    return strncmp(kind->name, "qwen35", strlen("qwen35")) != 0 ||
           (length + kind->n_dropped - 1) / 64 == (length - 1) / 64;
}

TEST_EACH(sessions_fork_and_truncate, struct kept, kind, kinds)
{
    qn_model *model = load(kind->name, "vulkan");
    const size_t n_vocab = qn_model_get_info(model)->n_vocab, n_ids = n_ids_of(kind->kv);
    float *expected = logits_of(model, kind->kv, n_ids), *found = new_logits(model, n_ids);
    size_t n_lengths;
    const size_t *lengths = lengths_of(kind->kv, &n_lengths);
    for (size_t i = 0; i < n_lengths; i++) {
        const size_t length = lengths[i], rest = (n_ids - length) * n_vocab * sizeof *found;
        qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = kind->kv)), *fork;
        label("%s, %zu tokens", kind->name, length);
        append_tokens(session, ids, length);
        assert_ok(qn_session_fork(session, &fork));
        append_tokens(session, ids + 5, kind->n_dropped); /* other tokens in the items that the fork has shared */
        evaluate(fork, length, n_ids, 64, n_vocab, found);
        assert_memory_equal(found, expected + length * n_vocab, rest);
        if (can_drop(kind, length)) {
            assert_ok(qn_session_truncate(session, (uint32_t)length));
            evaluate(session, length, n_ids, 64, n_vocab, found);
            assert_memory_equal(found, expected + length * n_vocab, rest);
        }
        qn_session_free(session);
        qn_session_free(fork);
    }
    free(expected);
    free(found);
    qn_model_free(model);
}

/* Saves a session of one device, and restores it on the other. */
static void move_session(qn_model *from, qn_model *to, const char *kv, size_t length, float *found)
{
    qn_session *session = create_session(from, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = kv)), *restored;
    append_tokens(session, ids, length);
    assert_ok(qn_session_save(session, path));
    assert_ok(qn_session_restore(to, path, NULL, &restored));
    assert_int_equal(qn_session_length(restored), length);
    evaluate(restored, length, n_ids_of(kv), 64, qn_model_get_info(to)->n_vocab, found);
    qn_session_free(session);
    qn_session_free(restored);
}

TEST_EACH(sessions_move_between_devices, struct kept, kind, kinds)
{
    qn_model *models_of[2] = { load(kind->name, "vulkan"), load(kind->name, "cpu") };
    const size_t n_vocab = qn_model_get_info(models_of[0])->n_vocab, n_ids = n_ids_of(kind->kv);
    float *expected = logits_of(models_of[1], kind->kv, n_ids), *found = new_logits(models_of[0], n_ids);
    size_t n_lengths;
    const size_t *lengths = lengths_of(kind->kv, &n_lengths);
    for (size_t i = 0; i < n_lengths; i++)
        for (size_t from = 0; from < 2; from++) {
            label("%s, %s, %zu tokens, from %zu", kind->name, kind->kv, lengths[i], from);
            move_session(models_of[from], models_of[1 - from], kind->kv, lengths[i], found);
            const double error =
                mean_relative_error(found, expected + lengths[i] * n_vocab, n_ids - lengths[i], n_vocab);
            if (!(error <= kind->bar))
                fail_msg("%.3e away from the CPU", error);
        }
    free(expected);
    free(found);
    qn_model_free(models_of[0]);
    qn_model_free(models_of[1]);
}

/* ---- Many sequences ---- */

enum { N_REQUESTS = 3, N_ANSWER = 6, N_SHARED = 65, N_LONG_ANSWER = 30 };

struct answer {
    qn_token tokens[N_LONG_ANSWER];
    size_t n;
};

static bool add_answer(void *user, qn_token token, const qn_logprobs *logprobs)
{
    struct answer *a = user;
    (void)logprobs;
    a->tokens[a->n++] = token;
    return true;
}

/* Answers requests [first, end), whose prompts begin alike. Tokens of a high temperature follow every bit. */
static void answer(qn_model *model, const char *kv, size_t first, size_t end, struct answer *answers)
{
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.kv = kv, .n_ctx = N_CTX));
    for (size_t i = first; i < end; i++) {
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        answers[i].n = 0;
        params.tokens = ids;
        params.n_tokens = N_SHARED + 3 * i + (has_codes(kv) ? 64 : 0);
        params.max_tokens = N_ANSWER;
        params.ignore_end = true;
        params.sampling = SAMPLING(.temperature = 3, .top_p = 1, .repeat_penalty = 1.1f, .seed = i);
        params.on_token = add_answer;
        params.user = &answers[i];
        submit_request(scheduler, &params);
    }
    qn_scheduler_wait(scheduler);
    qn_scheduler_free(scheduler);
}

TEST_EACH(requests_are_independent, struct kept, kind, kinds)
{
    static struct answer together[N_REQUESTS], alone[N_REQUESTS];
    qn_model *model = load(kind->name, "vulkan");
    answer(model, kind->kv, 0, N_REQUESTS, together);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        answer(model, kind->kv, i, i + 1, alone);
        assert_int_equal(together[i].n, N_ANSWER);
        label("%s, request %zu", kind->name, i);
        assert_memory_equal(together[i].tokens, alone[i].tokens, N_ANSWER * sizeof *alone[i].tokens);
    }
    qn_model_free(model);
}

/* Answers three requests, whose tokens need nothing of the host: a step is queued while another runs, if that is
 * allowed. They go beyond the end of a page, two at different times. */
static uint64_t answer_ahead(qn_model *model, const char *kv, bool is_ahead, struct answer *answers)
{
    enum { N = 3 };
    qn_scheduler *scheduler = create_scheduler(model, &SCHEDULER_PARAMS(.kv = kv, .n_ctx = N_CTX, .no_thread = true,
                                                                        .run_ahead = is_ahead, .draft = QN_DRAFT_OFF));
    for (size_t i = 0; i < N; i++) {
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        answers[i].n = 0;
        params.tokens = ids;
        params.n_tokens = (has_codes(kv) ? 105 : 40) + 10 * i;
        params.max_tokens = N_LONG_ANSWER;
        params.ignore_end = true;
        params.sampling =
            SAMPLING(.temperature = i ? 3 : 0, .top_p = 0.9f, .top_k = i == 2 ? 30 : 0, .repeat_penalty = 1, .seed = i);
        params.on_token = add_answer;
        params.user = &answers[i];
        submit_request(scheduler, &params);
    }
    for (bool is_idle = false; !is_idle;)
        assert_ok(qn_scheduler_step(scheduler, &is_idle));
    const uint64_t n_ahead = counters_of(scheduler).ahead_steps;
    qn_scheduler_free(scheduler);
    return n_ahead;
}

TEST_EACH(steps_ahead_give_the_same_tokens, struct kept, kind, kinds)
{
    static struct answer ahead[3], waiting[3];
    qn_model *model = load(kind->name, "vulkan");
    assert_true(answer_ahead(model, kind->kv, true, ahead) > N_LONG_ANSWER / 2);
    assert_int_equal(answer_ahead(model, kind->kv, false, waiting), 0);
    for (size_t i = 0; i < COUNT(ahead); i++) {
        label("%s, %s, request %zu", kind->name, kind->kv, i);
        assert_int_equal(ahead[i].n, N_LONG_ANSWER);
        assert_memory_equal(ahead[i].tokens, waiting[i].tokens, sizeof waiting[i].tokens);
    }
    qn_model_free(model);
}

/* ---- What is not supported ---- */

TEST(refuses_by_name)
{
    qn_model *model = load("llama.q1_0", "vulkan");
    qn_session *session;
    assert_fails(qn_session_create(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = "f32"), &session), QN_ERR_UNSUPPORTED,
                 "cache format 'f32' is not supported by Vulkan devices");
    qn_model_free(model);
}

/* The largest need of a plan, on devices of 16 KiB and more. */
TEST(shared_memory_is_checked)
{
    enum { ENOUGH = 64 << 10 };
    qn_plan_acts acts[2] = { { .width = 4096 }, { .width = 4096 } };
    qn_op op = { .kind = QN_OP_ATTENTION, .attention.shape = { .n_heads = 2, .n_kv_heads = 1, .head_dim = 256 } };
    qn_plan plan = { .ops = &op, .n_ops = 1, .acts = acts, .n_acts = 2 };
    qn_vk_info info = { .name = "paper", .features.shared_bytes = 16 << 10 };
    assert_ok(qn_vk_check_shared(&plan, &info));
    op.attention.shape.head_dim = 512;
    assert_fails(qn_vk_check_shared(&plan, &info), QN_ERR_UNSUPPORTED,
                 "paper: heads need 23672 bytes of shared memory in a workgroup, the device has 16384");
    op.attention.shape.head_dim = 128;
    acts[1].rotation.block = 2048;
    assert_ok(qn_vk_check_shared(&plan, &info));
    acts[1].rotation.block = 4096;
    assert_fails(qn_vk_check_shared(&plan, &info), QN_ERR_UNSUPPORTED, "paper: Hadamard transforms need 22120 bytes");
    info.features.shared_bytes = 32 << 10;
    assert_ok(qn_vk_check_shared(&plan, &info));
    plan.recurrent.n_v_heads = 1;
    assert_ok(qn_vk_check_shared(&plan, &info));
    info.features.shared_bytes--;
    assert_fails(qn_vk_check_shared(&plan, &info), QN_ERR_UNSUPPORTED, "paper: recurrent layers need 32768 bytes");
    info.features.shared_bytes = ENOUGH;
    assert_ok(qn_vk_check_shared(&plan, &info));
}

TEST_GROUP(make_folder, remove_folder)

int main(void)
{
    return run_tests_on_vulkan();
}
