/* Random requests to a scheduler whose pool holds a tenth of the memory that they need: shared prefixes, cancelled
 * requests, sessions at the same time. Each request must end once, and no page may be left; the test checks the
 * answers. */
#ifndef QN_TESTS_HELPER_JOBS_H
#define QN_TESTS_HELPER_JOBS_H

#include "helper_spill.h"

#include <pthread.h>
#include <unistd.h>

enum { MAX_PROMPT = 700, CONTEXT = 1024, SHARED = 4 };

struct job {
    qn_token prompt[MAX_PROMPT];
    uint32_t marks[2];
    qn_token stops[8];
    qn_request_params params;
    struct answer found, expected;
    uint64_t id;
    bool cancels; /* from another thread */
};

static inline uint64_t random_below(uint64_t *state, uint64_t n)
{
    return qn_splitmix(state) % n;
}

static inline void make_tokens(uint64_t seed, qn_token *tokens, size_t n, uint32_t n_vocab)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (qn_token)random_below(&seed, n_vocab);
}

static uint32_t vocabulary;

/* A mask that allows every token: the answer is the same, but each token is sampled by the host. */
static inline void allow_all(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    (void)user;
    (void)answer;
    (void)n;
    memset(allowed, 0xff, (vocabulary + 31) / 32 * sizeof *allowed);
}

/* Gives half of the jobs stop tokens that a random model samples now and then, and a minimum length. */
static inline void add_stops(struct job *job, uint64_t random, uint32_t n_vocab)
{
    const size_t most = COUNT(job->stops);
    make_tokens(random, job->stops, most, n_vocab);
    job->params.stop_tokens = job->stops;
    job->params.n_stop_tokens = random % 2 ? 0 : 1 + random / 2 % most;
    job->params.min_tokens = random % 3 ? (int64_t)(random / 6 % (uint64_t)(job->params.max_tokens + 1)) : 0;
}

/* A prompt is random, or begins like one of a few others. */
static inline void make_job(struct job *job, uint64_t *random, uint32_t n_vocab)
{
    const bool is_shared = random_below(random, 2);
    const size_t n = 1 + random_below(random, is_shared || !random_below(random, 4) ? MAX_PROMPT : 120);
    const size_t shared = is_shared ? n - random_below(random, n < 100 ? n : 100) : 0;
    make_tokens(random_below(random, SHARED), job->prompt, shared, n_vocab);
    make_tokens(qn_splitmix(random), job->prompt + shared, n - shared, n_vocab);
    job->params = (qn_request_params)QN_REQUEST_PARAMS_INIT;
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
    add_stops(job, job->params.sampling.seed ^ 0x9e3779b97f4a7c15, n_vocab);
    job->marks[0] = (uint32_t)shared;
    job->marks[1] = (uint32_t)n;
    job->params.marks = job->marks;
    job->params.n_marks = random_below(random, 2) ? 2 : 0;
    collect_answer(&job->params, &job->found);
    if (random_below(random, 10) == 0)
        job->found.cancel_at = 1 + random_below(random, 20);
    job->cancels = random_below(random, 20) == 0;
}

/* Checks that a request ended once, after everything that it reported. */
static inline void check_end(const struct job *job)
{
    assert_int_equal(job->found.n_ends, 1);
    assert_int_equal(job->found.result.n_generated, job->found.n_tokens);
    assert_true(job->found.result.n_set_aside <= QN_MAX_SET_ASIDE);
    if (job->found.result.finish == QN_FINISH_ERROR)
        fail_msg("%s", job->found.error);
    if (job->found.result.finish == QN_FINISH_CANCELLED)
        assert_true(job->cancels);
    if (job->found.result.finish == QN_FINISH_CALLBACK)
        assert_int_equal(job->found.cancel_at, job->found.n_tokens);
}

/* For a cancelled request, only the tokens that it received are compared. */
static inline void cut_cancelled(struct job *job)
{
    if (job->found.result.finish != QN_FINISH_CANCELLED && job->found.result.finish != QN_FINISH_CALLBACK)
        return;
    job->params.max_tokens = (int64_t)job->found.n_tokens;
    if (job->params.min_tokens > job->params.max_tokens)
        job->params.min_tokens = job->params.max_tokens;
    job->found.n_text = 0;
    job->params.on_text = NULL;
}

/* Makes most requests need no token on the host before the next one. */
static inline void let_run_ahead(struct job *job)
{
    if (job->params.sampling.seed % 16 == 0)
        return;
    job->params.mask = NULL;
    job->params.sampling.repeat_penalty = 1;
}

struct beside {
    qn_model *model;
    const char *kv;
    atomic_bool stop;
    size_t n;
};

/* Uses sessions at the same time. */
static inline void *run_sessions(void *context)
{
    struct beside *b = context;
    qn_token tokens[300], expected = 0;
    make_tokens(77, tokens, 300, qn_model_get_info(b->model)->n_vocab);
    while (!atomic_load(&b->stop)) {
        qn_session *session;
        struct answer a = { 0 };
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        params.max_tokens = 3;
        params.sampling.temperature = 0;
        params.on_token = answer_token;
        params.user = &a;
        if (qn_session_create(b->model, &SESSION_PARAMS(.kv = b->kv, .n_ctx = 400), &session) != QN_OK)
            continue;
        const qn_status status = generate_from(session, tokens, 300, &params, NULL);
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

/* BESIDE: sessions are used at the same time. OVERLAPPING: a CPU device computes in parallel with the host. AHEAD:
 * two steps are in flight, and some tokens are left to the host. SPILLING: kept prefixes are spilled by slow copies,
 * one of which fails. */
enum how { ALONE, BESIDE = 1, OVERLAPPING = 2, AHEAD = 4, SPILLING = 8 };
enum { MOST_AHEAD = 64, COPY_DELAY = 3000, COPIES_TO_FAILURE = 100 };

struct run {
    const char *file, *kv, *device;
    uint64_t memory;
    bool deterministic;
    qn_scheduler_params params;
    size_t n;
    enum how how;
    void (*change)(struct job *job);                                 /* changes the random requests; NULL: no changes */
    void (*check)(qn_model *model, const char *kv, struct job *job); /* called with a model that has enough memory */
};

static inline void load_for(const struct run *r, uint64_t memory, qn_model **model)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", QN_SOURCE_DIR, r->file);
    assert_ok(qn_model_load(path,
                            &MODEL_PARAMS(.memory = memory, .n_threads = 1, .skip_weight_scan = true,
                                          .device = r->device, .deterministic = r->deterministic),
                            model));
}

/* A quarter of the requests belongs to one client, who has all places when others come. */
static const char *const clients[] = { NULL, "b", NULL, "c" };

static inline void wait_until_busy(qn_scheduler *scheduler)
{
    qn_scheduler_counters c = counters_of(scheduler);
    for (int i = 0; i < 2000 && c.queued + c.running && c.rows < 100; i++) {
        usleep(1000);
        c = counters_of(scheduler);
    }
}

static inline void submit_jobs(const struct run *r, qn_model *model, qn_scheduler *scheduler, struct job *jobs)
{
    uint64_t random = 1;
    for (size_t i = 0; i < r->n; i++) {
        make_job(&jobs[i], &random, qn_model_get_info(model)->n_vocab);
        if (i >= r->n / 4)
            jobs[i].params.client = clients[i % (COUNT(clients))];
        if (i == r->n / 4 && !r->params.no_thread)
            wait_until_busy(scheduler);
        if (r->change)
            r->change(&jobs[i]);
        if (!model->tokenizer)
            jobs[i].params.on_text = NULL;
        assert_ok(qn_scheduler_submit(scheduler, &jobs[i].params, &jobs[i].id));
        if (i && jobs[i - 1].cancels)
            qn_scheduler_cancel(scheduler, jobs[i - 1].id);
        if (r->params.no_thread && i % 4 == 0) {
            bool idle;
            assert_ok(qn_scheduler_step(scheduler, &idle));
        }
    }
    qn_scheduler_wait(scheduler);
}

static inline void check_jobs(const struct run *r, struct job *jobs)
{
    qn_model *model;
    load_for(r, 0, &model);
    for (size_t i = 0; i < r->n; i++) {
        label("request %zu", i);
        check_end(&jobs[i]);
        cut_cancelled(&jobs[i]);
        r->check(model, r->kv, &jobs[i]);
    }
    qn_model_free(model);
}

static inline void run_jobs(const struct run *r)
{
    const bool beside = r->how & BESIDE;
    qn_model *model;
    struct job *jobs = calloc(r->n, sizeof *jobs);
    pthread_t thread;
    label("%s, %s, %zu requests", r->file, r->kv, r->n);
    assert_non_null(jobs);
    load_for(r, r->memory, &model);
    if (r->how & SPILLING) {
        let_spill(model, r->kv);
        copies.delay = COPY_DELAY;
        copies.most_out = COPIES_TO_FAILURE;
    }
    if (!r->device && r->how & (OVERLAPPING | AHEAD))
        let_overlap(model, r->how & AHEAD ? MOST_AHEAD : 0);
    vocabulary = qn_model_get_info(model)->n_vocab;
    struct beside sessions = { .model = model, .kv = r->kv };
    qn_scheduler_params params = r->params;
    params.size = sizeof params;
    params.kv = r->kv;
    params.n_ctx = CONTEXT;
    params.max_queued = (uint32_t)r->n;
    qn_scheduler *scheduler = create_scheduler(model, &params);
    const qn_cache *cache = scheduler->cache;
    if (beside)
        assert_int_equal(pthread_create(&thread, NULL, run_sessions, &sessions), 0);
    submit_jobs(r, model, scheduler, jobs);
    const qn_scheduler_counters counters = counters_of(scheduler);
    assert_int_equal(counters.finished, r->n);
    assert_int_equal(counters.running + counters.queued, 0);
    if (beside) {
        atomic_store(&sessions.stop, true);
        pthread_join(thread, NULL);
    }
    qn_scheduler_free(scheduler);
    assert_int_equal(items_held(cache), 0);
    print_message(
        "%s %s: %llu steps, %llu ahead, %llu rows, %llu of %llu prompt tokens reused, %llu set aside, %llu yielded, "
        "%zu sessions beside, %zu items spilled\n",
        r->file, r->kv, (unsigned long long)counters.steps, (unsigned long long)counters.ahead_steps,
        (unsigned long long)counters.rows, (unsigned long long)counters.reused_tokens,
        (unsigned long long)counters.prompt_tokens, (unsigned long long)counters.set_aside,
        (unsigned long long)counters.yielded, sessions.n, r->how & SPILLING ? copies.n_out : (size_t)0);
    if ((r->how & ~SPILLING) == AHEAD && model->device->ahead) /* while a session waits, no step is launched ahead */
        assert_true(counters.ahead_steps > counters.steps / 16);
    qn_model_free(model);
    check_jobs(r, jobs);
    free(jobs);
}

#endif
