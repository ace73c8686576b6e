/* Random requests through a scheduler whose pool holds a tenth of what they need: shared prefixes, cancelled ones, several cache formats,
 * sessions beside them. Each answer is that of the same request alone, each request ends once, and no page is left.
 *
 * QN_SOAK=N: so many requests instead. */
#include "helper_sanitizers.h"
#include "helper_scheduler.h"

#include <pthread.h>

enum { REQUESTS = 40, SANITIZED_REQUESTS = 16, MAX_PROMPT = 700, CONTEXT = 1024, SHARED = 4 };

static size_t n_requests;

struct job {
    qn_token prompt[MAX_PROMPT];
    qn_request_params params;
    struct answer found, expected;
    uint64_t id;
    bool cancels; /* from another thread */
};

static uint64_t random_below(uint64_t *state, uint64_t n)
{
    return qn_splitmix(state) % n;
}

static void make_tokens(uint64_t seed, qn_token *tokens, size_t n, uint32_t n_vocab)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (qn_token)random_below(&seed, n_vocab);
}

static uint32_t vocabulary;

/* The answer is that without a mask, but each token is sampled beside the steps. */
static void allow_all(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    (void)user;
    (void)answer;
    (void)n;
    memset(allowed, 0xff, (vocabulary + 31) / 32 * sizeof *allowed);
}

/* A prompt is its own, or begins as one of a few others do. */
static void make_job(struct job *job, uint64_t *random, uint32_t n_vocab)
{
    const bool is_shared = random_below(random, 2);
    const size_t n = 1 + random_below(random, is_shared || !random_below(random, 4) ? MAX_PROMPT : 120);
    const size_t shared = is_shared ? n - random_below(random, n < 100 ? n : 100) : 0;
    static uint32_t marks[2];
    make_tokens(random_below(random, SHARED), job->prompt, shared, n_vocab);
    make_tokens(qn_splitmix(random), job->prompt + shared, n - shared, n_vocab);
    job->params = qn_request_defaults();
    job->params.tokens = job->prompt;
    job->params.n_tokens = n;
    job->params.max_tokens = (int64_t)random_below(random, 60);
    job->params.ignore_end = random_below(random, 4) > 0;
    job->params.sampling.temperature = random_below(random, 3) ? 1.0f : 0.0f;
    job->params.sampling.top_k = random_below(random, 2) ? 40 : 0;
    job->params.sampling.seed = qn_splitmix(random);
    job->params.sampling.repeat_penalty = random_below(random, 4) ? 1.0f : 1.2f;
    job->params.n_logprobs = (int)random_below(random, 4) - 1;
    job->params.mask = random_below(random, 4) ? NULL : allow_all;
    job->params.priority = (int)random_below(random, 3);
    marks[0] = (uint32_t)shared;
    marks[1] = (uint32_t)n;
    job->params.marks = marks;
    job->params.n_marks = random_below(random, 2) ? 2 : 0;
    collect_answer(&job->params, &job->found);
    if (random_below(random, 10) == 0)
        job->found.cancel_at = 1 + random_below(random, 20);
    job->cancels = random_below(random, 20) == 0;
}

/* What a request alone answers; a part of it if the request was cancelled. */
static void check_job(qn_model *model, const char *kv, struct job *job)
{
    assert_int_equal(job->found.n_ends, 1);
    assert_int_equal(job->found.result.n_generated, job->found.n_tokens);
    assert_true(job->found.result.n_set_aside <= QN_MAX_SET_ASIDE);
    if (job->found.result.finish == QN_FINISH_ERROR)
        fail_msg("%s", job->found.error);
    if (job->found.result.finish == QN_FINISH_CANCELLED) {
        assert_true(job->cancels || job->found.cancel_at == job->found.n_tokens);
        job->params.max_tokens = (int64_t)job->found.n_tokens;
        job->found.n_text = 0;
        job->params.on_text = NULL;
    }
    if (job->found.n_tokens || job->params.max_tokens == 0)
        answer_alone(model, kv, CONTEXT, &job->params, &job->expected);
    assert_same_answer(&job->found, &job->expected);
}

struct beside {
    qn_model *model;
    const char *kv;
    atomic_bool stop;
    size_t n;
};

/* Sessions that are used at the same time. */
static void *run_sessions(void *context)
{
    struct beside *b = context;
    qn_token tokens[300], expected = 0;
    make_tokens(77, tokens, 300, qn_model_get_info(b->model).n_vocab);
    while (!atomic_load(&b->stop)) {
        qn_session *session;
        struct answer a = { 0 };
        qn_generate_params params = qn_generate_defaults();
        params.max_tokens = 3;
        params.sampling.temperature = 0;
        params.on_token = answer_token;
        params.user = &a;
        if (qn_session_create(b->model, &(qn_session_params){ .kv = b->kv, .n_ctx = 400 }, &session) != QN_OK)
            continue;
        const qn_status status = qn_generate(session, tokens, 300, &params, NULL);
        if (status == QN_OK) {
            assert_true(b->n == 0 || a.tokens[a.n_tokens - 1] == expected);
            expected = a.tokens[a.n_tokens - 1];
            b->n++;
        } else {
            assert_int_equal(status, QN_ERR_MEMORY);
        }
        qn_session_free(session);
    }
    return NULL;
}

/* BESIDE: sessions are used at the same time. OVERLAPPING: the device computes beside the host. */
enum how { ALONE, BESIDE = 1, OVERLAPPING = 2 };

static void run_jobs(const char *file, const char *kv, uint64_t memory, qn_scheduler_params params, size_t n, enum how how)
{
    const bool beside = how & BESIDE;
    label("%s, %s, %zu requests", file, kv, n);
    uint64_t random = 1;
    qn_model *model;
    qn_scheduler *scheduler;
    struct job *jobs = calloc(n, sizeof *jobs);
    pthread_t thread;
    assert_non_null(jobs);
    load_model(file, memory, 2, &model);
    if (how & OVERLAPPING)
        let_overlap(model);
    const uint32_t n_vocab = qn_model_get_info(model).n_vocab;
    vocabulary = n_vocab;
    struct beside sessions = { .model = model, .kv = kv };
    params.kv = kv;
    params.n_ctx = CONTEXT;
    params.max_queued = (uint32_t)n;
    assert_ok(qn_scheduler_create(model, &params, &scheduler));
    const qn_cache *cache = scheduler->cache;
    if (beside)
        assert_int_equal(pthread_create(&thread, NULL, run_sessions, &sessions), 0);
    for (size_t i = 0; i < n; i++) {
        make_job(&jobs[i], &random, n_vocab);
        if (!model->tokenizer)
            jobs[i].params.on_text = NULL;
        assert_ok(qn_scheduler_submit(scheduler, &jobs[i].params, &jobs[i].id));
        if (i && jobs[i - 1].cancels)
            qn_scheduler_cancel(scheduler, jobs[i - 1].id);
        if (params.no_thread && i % 4 == 0) {
            bool idle;
            assert_ok(qn_scheduler_step(scheduler, &idle));
        }
    }
    qn_scheduler_wait(scheduler);
    const qn_scheduler_counters counters = qn_scheduler_get_counters(scheduler);
    assert_int_equal(counters.finished, n);
    assert_int_equal(counters.running + counters.queued, 0);
    if (beside) {
        atomic_store(&sessions.stop, true);
        pthread_join(thread, NULL);
    }
    qn_scheduler_free(scheduler);
    assert_int_equal(items_held(cache), 0);
    print_message("%s %s: %llu steps, %llu rows, %llu of %llu prompt tokens reused, %llu set aside, %zu sessions beside\n",
                  file, kv, (unsigned long long)counters.steps, (unsigned long long)counters.rows,
                  (unsigned long long)counters.reused_tokens, (unsigned long long)counters.prompt_tokens,
                  (unsigned long long)counters.set_aside, sessions.n);
    qn_model_free(model);
    load_model(file, 0, 2, &model);
    for (size_t i = 0; i < n; i++) {
        label("request %zu", i);
        check_job(model, kv, &jobs[i]);
    }
    qn_model_free(model);
    free(jobs);
}

static void hybrid_in_little_memory(void **unused)
{
    (void)unused;
    run_jobs("models/quern-demo.gguf", "f16", 24 << 20, (qn_scheduler_params){ .max_sequences = 8 }, n_requests / 4, ALONE);
}

static void hybrid_with_codes(void **unused)
{
    (void)unused;
    run_jobs("models/quern-demo.gguf", "aura4", 64 << 20, (qn_scheduler_params){ .max_rows = 96, .no_thread = true },
             n_requests / 4, BESIDE);
}

static void beside_the_device(void **unused)
{
    (void)unused;
    run_jobs("tests/golden/qwen35.q1_0.gguf", "f16", 8 << 20, (qn_scheduler_params){ .max_sequences = 8 }, n_requests,
             BESIDE | OVERLAPPING);
    run_jobs("tests/golden/qwen3.q2_0.gguf", "aura4v3", 6 << 20, (qn_scheduler_params){ .max_rows = 256 }, n_requests,
             OVERLAPPING);
    run_jobs("models/quern-demo.gguf", "aura4", 64 << 20, (qn_scheduler_params){ .max_rows = 96, .no_thread = true },
             n_requests / 8, OVERLAPPING);
}

static void attention_only(void **unused)
{
    (void)unused;
    run_jobs("tests/golden/qwen3.q2_0.gguf", "f16", 4 << 20, (qn_scheduler_params){ .step_seconds = 1e-3 }, n_requests, BESIDE);
    run_jobs("tests/golden/qwen3.q2_0.gguf", "aura4v3", 6 << 20, (qn_scheduler_params){ .max_rows = 256 }, n_requests, ALONE);
}

static void small_hybrid(void **unused)
{
    (void)unused;
    run_jobs("tests/golden/qwen35.q1_0.gguf", "f16", 8 << 20, (qn_scheduler_params){ .max_sequences = 32 }, n_requests, BESIDE);
    run_jobs("tests/golden/qwen35.q1_0.gguf", "aura4", 0, (qn_scheduler_params){ .max_sequences = 3 }, n_requests, ALONE);
    run_jobs("tests/golden/qwen35.q1_0.gguf", "f16", 0, (qn_scheduler_params){ .no_prefix_cache = true }, n_requests, ALONE);
}

int main(void)
{
    const char *soak = getenv("QN_SOAK");
    n_requests = soak ? strtoul(soak, NULL, 10) : QN_TEST_SANITIZED ? SANITIZED_REQUESTS : REQUESTS;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hybrid_in_little_memory), cmocka_unit_test(hybrid_with_codes), cmocka_unit_test(beside_the_device),
        cmocka_unit_test(attention_only),          cmocka_unit_test(small_hybrid),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
