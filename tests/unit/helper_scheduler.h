/* Requests whose answers are collected, and the same answers from a session. */
#ifndef QN_TESTS_HELPER_SCHEDULER_H
#define QN_TESTS_HELPER_SCHEDULER_H

#include "helper_create.h"
#include "helper_overlap.h"

#include "base/splitmix.h"
#include "scheduler/scheduler.h"
#include "helper_request.h"
#include "quern/scheduler.h"

enum { MAX_ANSWER = 256 };

/* What one request's callbacks have received. */
struct answer {
    qn_token tokens[MAX_ANSWER];
    size_t n_tokens;
    qn_logprobs logprobs[MAX_ANSWER]; /* zero for a token without log probabilities */
    char text[16 * MAX_ANSWER];
    size_t n_text;
    size_t cancel_at; /* on_token returns false after this number of tokens; 0: never */
    int n_ends;
    qn_request_result result;
    char error[QN_ERROR_TEXT_MAX];
};

static inline bool answer_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    struct answer *a = user;
    if (logprobs)
        a->logprobs[a->n_tokens] = *logprobs;
    a->tokens[a->n_tokens++] = token;
    return a->n_tokens != a->cancel_at;
}

static inline bool answer_text(void *user, const char *text, size_t length)
{
    struct answer *a = user;
    memcpy(a->text + a->n_text, text, length);
    a->n_text += length;
    return true;
}

static inline void answer_end(void *user, const qn_request_result *result)
{
    struct answer *a = user;
    a->n_ends++;
    a->result = *result;
    snprintf(a->error, sizeof a->error, "%s", result->error);
}

static inline void collect_answer(qn_request_params *params, struct answer *a)
{
    params->on_token = answer_token;
    params->on_text = answer_text;
    params->on_end = answer_end;
    params->user = a;
}

/* The answer of a separate session to a prompt of tokens. */
static inline void answer_alone(qn_model *model, const char *kv, uint32_t n_ctx, const qn_request_params *request,
                                struct answer *a)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.sampling = request->sampling;
    params.max_tokens = request->max_tokens;
    params.min_tokens = request->min_tokens;
    params.ignore_end = request->ignore_end;
    params.stop_tokens = request->stop_tokens;
    params.n_stop_tokens = request->n_stop_tokens;
    params.grammar = request->grammar;
    params.jump_forward = request->jump_forward;
    params.draft = request->draft;
    params.stop = request->stop;
    params.n_stop = request->n_stop;
    params.show_special = request->show_special;
    params.on_token = answer_token;
    params.on_text = request->on_text ? answer_text : NULL;
    params.user = a;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = n_ctx, .kv = kv));
    assert_ok(generate_from(session, request->tokens, request->n_tokens, &params, NULL));
    qn_session_free(session);
}

static inline void assert_same_answer(const struct answer *a, const struct answer *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens);
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, a->n_text);
}

/* A greedy request of a prompt of tokens. */
static inline qn_request_params prompt_of(const qn_token *tokens, size_t n, int64_t max_tokens, struct answer *a)
{
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    memset(a, 0, sizeof *a);
    params.tokens = tokens;
    params.n_tokens = n;
    params.max_tokens = max_tokens;
    params.ignore_end = true;
    params.sampling.temperature = 0;
    collect_answer(&params, a);
    return params;
}

/* A step of a scheduler without a thread, after which there is more to do. */
static inline void step(qn_scheduler *scheduler)
{
    bool idle;
    assert_ok(qn_scheduler_step(scheduler, &idle));
    assert_false(idle);
}

/* ---- Models ---- */

static inline void load_with_drafter(const char *file, const char *drafter, uint64_t memory, int n_threads,
                                     qn_model **model)
{
    char path[512], of_drafter[512];
    snprintf(path, sizeof path, "%s/%s", QN_SOURCE_DIR, file);
    snprintf(of_drafter, sizeof of_drafter, "%s/%s", QN_SOURCE_DIR, drafter ? drafter : "");
    assert_ok(qn_model_load(path,
                            &CPU_MODEL(.memory = memory, .n_threads = n_threads, .skip_weight_scan = true,
                                       .draft_model = drafter ? of_drafter : NULL),
                            model));
}

#define QN_TESTS_DRAFTER "tests/golden/scheduler-dflash.gguf"
#define QN_TESTS_MTP_BLOCK "tests/golden/scheduler-mtp-block.gguf"

static inline void load_model(const char *file, uint64_t memory, int n_threads, qn_model **model)
{
    const char *draft = getenv("QN_DRAFT"), *drafter = NULL;
    const bool is_common = !strcmp(file, "tests/golden/scheduler.gguf");
    /* With QN_DRAFT=mtp the tests' model is the one with a block for it, with QN_DRAFT=dflash it has a drafter. */
    if (draft && !strcmp(draft, "mtp") && is_common)
        file = "tests/golden/scheduler-mtp.gguf";
    if (draft && !strcmp(draft, "dflash") && is_common)
        drafter = QN_TESTS_DRAFTER;
    load_with_drafter(file, drafter, memory, n_threads, model);
}

/* The number of items that the sequences of a cache hold. */
static inline size_t items_held(const qn_cache *cache)
{
    qn_pool_class *const classes[] = { cache->pages, cache->f16_pages, cache->states, cache->open_chunks };
    size_t n = 0;
    for (size_t i = 0; i < COUNT(classes); i++)
        n += classes[i] ? qn_pool_count(classes[i]) : 0;
    return n;
}

#endif
