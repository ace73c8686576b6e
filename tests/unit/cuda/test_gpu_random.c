/* Random requests on a GPU, in little memory. With deterministic steps each answer has the bits of the same request
 * alone. Otherwise rows of other steps are rounded otherwise: each token of a greedy answer then has the largest logit
 * of a session that is given the answer's tokens, or one that is as large within the error that logits may have.
 * Skipped without a GPU; QN_TEST_DEVICE selects another device, and all of it holds on "cpu" too.
 *
 * test_gpu_random N: so many requests instead of 1000; 50 take compute-sanitizer minutes. */
#include "helper_device.h"
#include "helper_jobs.h"

#include <math.h>

enum { REQUESTS = 1000, SKIPPED = 77 };

static const char *device;
static size_t n_requests;

/* ---- Deterministic steps ---- */

static void check_bits(qn_model *model, const char *kv, struct job *job)
{
    const qn_scheduler_params params =
        SCHEDULER_PARAMS(.kv = kv, .n_ctx = CONTEXT, .max_sequences = 1, .no_prefix_cache = true, .no_thread = true);
    qn_request_params request = job->params;
    if (!job->found.n_tokens && request.max_tokens)
        return; /* cancelled before its first token */
    request.user = &job->expected;
    qn_scheduler *scheduler = create_scheduler(model, &params);
    submit_and_wait(scheduler, &request);
    qn_scheduler_free(scheduler);
    assert_same_answer(&job->found, &job->expected);
    for (size_t i = 0; i < job->found.n_tokens; i++)
        assert_memory_equal(&job->found.logprobs[i], &job->expected.logprobs[i], sizeof job->found.logprobs[i]);
}

TEST(deterministic_answers)
{
    static const struct {
        const char *file, *kv;
        uint64_t memory;
    } cases[] = { { "tests/golden/qwen35.q1_0.gguf", "f16", 16 << 20 },
                  { "tests/golden/qwen3.q2_0.gguf", "aura4v3", 16 << 20 },
                  { "tests/golden/qwen35-rotated.pq2_0.gguf", "aura4", 16 << 20 },
                  { "tests/golden/qwen3.f16.gguf", "f16", 16 << 20 } };
    for (size_t i = 0; i < COUNT(cases); i++)
        if (device_runs(device, cases[i].file, cases[i].kv))
            run_jobs(&(struct run){ cases[i].file, cases[i].kv, device, cases[i].memory, .deterministic = true,
                                    .params = { .max_sequences = 16 }, .n = (n_requests + 7) / 8,
                                    .check = check_bits });
}

/* ---- Other steps ---- */

static void make_greedy(struct job *job)
{
    let_run_ahead(job);
    job->params.sampling.temperature = 0;
    job->params.sampling.repeat_penalty = 1;
    job->params.min_tokens = 0; /* which bans the best token where it would end the answer */
}

/* Logits may be 4e-2 of their length away from those of other steps. The difference of two of a vector is then seldom
 * more than eight times that, each. */
static const double NEAR = 8 * 4e-2;

static void check_token(const float *logits, size_t n, qn_token token, size_t index)
{
    double sum = 0, most = -INFINITY;
    for (size_t i = 0; i < n; i++) {
        sum += (double)logits[i] * logits[i];
        most = logits[i] > most ? logits[i] : most;
    }
    if (most - logits[token] > NEAR * sqrt(sum / (double)n))
        fail_msg("token %zu, %d: its logit is %g, the largest %g", index, (int)token, logits[token], most);
}

static void check_near(qn_model *model, const char *kv, struct job *job)
{
    const size_t n_prompt = job->params.n_tokens, n = job->found.n_tokens, n_vocab = qn_model_get_info(model)->n_vocab;
    if (!n)
        return;
    float *logits = malloc(n * n_vocab * sizeof *logits);
    assert_non_null(logits);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = CONTEXT, .kv = kv));
    assert_ok(qn_session_eval(session, job->prompt, n_prompt, QN_LOGITS_LAST, logits));
    assert_ok(qn_session_eval(session, job->found.tokens, n - 1, QN_LOGITS_ALL, logits + n_vocab));
    for (size_t i = 0; i < n; i++)
        check_token(logits + i * n_vocab, n_vocab, job->found.tokens[i], i);
    qn_session_free(session);
    free(logits);
}

TEST(answers_near_those_alone)
{
    static const struct {
        const char *file, *kv;
        uint64_t memory;
        qn_scheduler_params params;
        enum how how;
    } cases[] = {
        { "models/quern-demo.gguf", "f16", 32 << 20, { .max_sequences = 8 }, BESIDE },
        { "models/quern-demo.gguf", "aura4", 64 << 20, { .max_rows = 96, .no_thread = true }, BESIDE },
        { "tests/golden/qwen35.q1_0.gguf", "f16", 12 << 20, { .max_sequences = 8 }, AHEAD },
        { "tests/golden/qwen35.q1_0.gguf", "aura4", 0, { .max_sequences = 3 }, AHEAD },
        { "tests/golden/qwen3.q2_0.gguf", "aura4v3", 12 << 20, { .max_sequences = 1 }, AHEAD },
        { "tests/golden/qwen35.q1_0.gguf", "f16", 12 << 20, { .max_sequences = 64 }, ALONE },
        { "tests/golden/qwen3.f16.gguf", "f16", 12 << 20, { .step_seconds = 1e-3, .no_prefix_host = true }, BESIDE },
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        if (device_runs(device, cases[i].file, cases[i].kv))
            run_jobs(&(struct run){ cases[i].file, cases[i].kv, device, cases[i].memory, .params = cases[i].params,
                                    .n = (n_requests + 13) / 14, .how = cases[i].how, .change = make_greedy,
                                    .check = check_near });
}

int main(int argc, char **argv)
{
    const char *selected = getenv("QN_TEST_DEVICE");
    qn_model *model;
    device = selected ? selected : "cuda";
    n_requests = argc > 1 ? strtoul(argv[1], NULL, 10) : REQUESTS;
    const qn_status status =
        qn_model_load(QN_SOURCE_DIR "/tests/golden/qwen3.q2_0.gguf", &MODEL_PARAMS(.device = device), &model);
    if (status == QN_ERR_UNSUPPORTED) {
        printf("skipped: %s\n", qn_error_text());
        return SKIPPED;
    }
    if (status != QN_OK) {
        fprintf(stderr, "%s\n", qn_error_text());
        return 1;
    }
    qn_model_free(model);
    return run_all_tests();
}
