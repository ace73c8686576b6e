/* Embeddings of prompts: the pooled hidden states of a session that evaluates the same tokens, whatever else
 * the steps evaluate. */
#include "helper_scheduler.h"

#include <math.h>

enum { N_CTX = 512, LONGEST = 200 };

static qn_model *model;
static uint32_t n_vocab, n_embd;

static const struct setting {
    const char *name, *file, *kv;
} settings[] = {
    { "attention", "qwen3.q1_0", "f16" },
    { "attention, codes", "qwen3.q2_0", "aura4" },
    { "recurrent", "qwen35.q1_0", "f16" },
    { "recurrent, codes", "qwen35.ptq1_0", "aura4" },
};

static const qn_pooling poolings[] = { QN_POOLING_MEAN, QN_POOLING_CLS, QN_POOLING_LAST };

static void load(const struct setting *setting)
{
    char path[100];
    label("%s", setting->name);
    snprintf(path, sizeof path, "tests/golden/%s.gguf", setting->file);
    load_model(path, 0, 2, &model);
    n_vocab = qn_model_get_info(model)->n_vocab;
    n_embd = qn_model_get_info(model)->n_embd;
}

static qn_scheduler *begin(const struct setting *setting, qn_scheduler_params params)
{
    load(setting);
    params.kv = setting->kv;
    params.n_ctx = N_CTX;
    params.no_thread = true;
    return create_scheduler(model, &params);
}

static void end(qn_scheduler *scheduler)
{
    const qn_cache *cache = scheduler->cache;
    qn_scheduler_free(scheduler);
    assert_int_equal(items_held(cache), 0);
    qn_model_free(model);
}

/* ---- Requests ---- */

struct embedded {
    struct answer answer; /* first: answer_end takes its address */
    qn_token prompt[LONGEST];
    size_t n_prompt, n_embeddings, n_progress, done;
    float values[4096];
    bool stops;
};

static bool take_embedding(void *user, const float *embedding, size_t n)
{
    struct embedded *e = user;
    assert_int_equal(n, n_embd);
    assert_int_equal(e->answer.n_ends, 0);
    assert_int_equal(e->done, e->n_prompt);
    memcpy(e->values, embedding, n * sizeof *embedding);
    e->n_embeddings++;
    return !e->stops;
}

static bool take_progress(void *user, const qn_prompt_progress *p)
{
    struct embedded *e = user;
    assert_true(e->n_progress ? p->n_done > e->done : p->n_done == p->n_reused);
    assert_true(p->n_reused <= p->n_done && p->n_done <= p->n_prompt && p->seconds >= 0);
    assert_int_equal(p->n_prompt, e->n_prompt);
    e->done = p->n_done;
    e->n_progress++;
    return true;
}

static qn_request_params request_of(uint64_t seed, size_t n, qn_pooling pooling, struct embedded *e)
{
    memset(e, 0, sizeof *e);
    e->n_prompt = n;
    for (size_t i = 0; i < n; i++)
        e->prompt[i] = (qn_token)(qn_splitmix(&seed) % n_vocab);
    qn_request_params params = prompt_of(e->prompt, n, 0, &e->answer);
    params.on_text = NULL; /* there is no tokeniser */
    params.pooling = pooling;
    params.on_embedding = take_embedding;
    params.on_progress = take_progress;
    return params;
}

/* ---- The same from a session ---- */

/* The pooled states of a session's rows, in double precision. */
static void pool(const struct setting *setting, const qn_token *tokens, size_t n, qn_pooling pooling, double *out)
{
    static float states[LONGEST][4096];
    float *normed[LONGEST];
    const qn_rows rows = { .size = sizeof rows, .n = n, .tokens = tokens, .n_embd = n_embd, .normed = normed };
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = setting->kv));
    for (size_t i = 0; i < n; i++)
        normed[i] = states[i];
    assert_ok(qn_session_eval_rows(session, &rows));
    memset(out, 0, n_embd * sizeof *out);
    for (size_t i = 0; i < n; i++) {
        const bool counts = pooling == QN_POOLING_MEAN || i == (pooling == QN_POOLING_CLS ? 0 : n - 1);
        for (size_t k = 0; counts && k < n_embd; k++)
            out[k] += states[i][k] / (pooling == QN_POOLING_MEAN ? (double)n : 1);
    }
    qn_session_free(session);
}

static void check(const struct setting *setting, const struct embedded *e, qn_pooling pooling)
{
    static double expected[4096];
    label("%s: pooling %d of %zu tokens", setting->name, (int)pooling, e->n_prompt);
    assert_int_equal(e->n_embeddings, 1);
    assert_int_equal(e->answer.n_ends, 1);
    assert_int_equal(e->answer.n_tokens, 0);
    assert_int_equal(e->answer.result.finish, QN_FINISH_LENGTH);
    assert_int_equal(e->answer.result.n_prompt, e->n_prompt);
    pool(setting, e->prompt, e->n_prompt, pooling, expected);
    for (size_t k = 0; k < n_embd; k++)
        if (!(fabs(e->values[k] - expected[k]) <= 1e-6 * (1 + fabs(expected[k]))))
            fail_msg("number %zu is %.9g, expected %.9g", k, (double)e->values[k], expected[k]);
}

/* ---- Tests ---- */

/* Prompts of one step and of several, next to each other and to decode rows, which stay what they are alone. */
TEST_EACH(beside_others, struct setting, setting, settings)
{
    enum { N = 9 };
    static const size_t lengths[N] = { 1, 1, 1, 2, 64, 65, 150, LONGEST, LONGEST };
    static struct embedded embedded[N];
    static struct answer decoding, expected;
    decoding = (struct answer){ 0 };
    qn_token prompt[10];
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 8, .max_rows = 72));
    for (size_t i = 0; i < 10; i++)
        prompt[i] = (qn_token)(7 * i % n_vocab);
    qn_request_params other = prompt_of(prompt, 10, 30, &decoding);
    other.on_text = NULL;
    submit_request(scheduler, &other);
    step(scheduler);
    for (size_t i = 0; i < N; i++) {
        const qn_request_params params = request_of(i, lengths[i], poolings[i % 3], &embedded[i]);
        submit_request(scheduler, &params);
    }
    assert_ok(qn_scheduler_wait(scheduler));
    for (size_t i = 0; i < N; i++)
        check(setting, &embedded[i], poolings[i % 3]);
    assert_true(embedded[7].n_progress > 2);
    expected = (struct answer){ 0 };
    other.user = &expected;
    answer_alone(model, setting->kv, N_CTX, &other, &expected);
    assert_same_answer(&decoding, &expected);
    end(scheduler);
}

/* The last token's state needs no other row: the prefix is that of an earlier request. The mean needs all rows. */
TEST_EACH(reuses_prefixes, struct setting, setting, settings)
{
    static struct embedded first, second;
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 2));
    for (size_t p = 0; p < 3; p++) {
        qn_request_params params = request_of(1, LONGEST, poolings[p], &first);
        submit_and_wait(scheduler, &params);
        params = request_of(1, LONGEST, poolings[p], &second);
        submit_and_wait(scheduler, &params);
        check(setting, &first, poolings[p]);
        check(setting, &second, poolings[p]);
        assert_memory_equal(first.values, second.values, n_embd * sizeof(float));
        assert_int_equal(second.answer.result.n_reused,
                         poolings[p] == QN_POOLING_LAST ? (LONGEST - 1) / QN_PAGE * QN_PAGE : 0);
    }
    end(scheduler);
}

/* A request that was set aside goes on where it was: no row counts twice. */
TEST_EACH(is_set_aside, struct setting, setting, settings)
{
    static struct embedded e;
    for (size_t i = 0; i < 6; i++) {
        qn_scheduler *scheduler =
            begin(setting, SCHEDULER_PARAMS(.max_sequences = 2, .no_prefix_cache = i % 2, .max_rows = 40));
        const qn_request_params params = request_of(5, LONGEST, poolings[i / 2], &e);
        submit_request(scheduler, &params);
        for (size_t round = 0; round < QN_MAX_SET_ASIDE; round++) {
            while (e.done < 70 * (round + 1))
                step(scheduler);
            qn_scheduler_set_aside(scheduler, scheduler->running[0]);
        }
        assert_ok(qn_scheduler_wait(scheduler));
        assert_int_equal(e.answer.result.n_set_aside, QN_MAX_SET_ASIDE);
        check(setting, &e, poolings[i / 2]);
        end(scheduler);
    }
}

TEST(ends_early)
{
    static struct embedded stopped, cancelled;
    const struct setting *setting = &settings[0];
    uint64_t id;
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 2, .max_rows = 32));
    qn_request_params params = request_of(1, 20, QN_POOLING_MEAN, &stopped);
    stopped.stops = true;
    submit_request(scheduler, &params);
    params = request_of(2, LONGEST, QN_POOLING_MEAN, &cancelled);
    assert_ok(qn_scheduler_submit(scheduler, &params, &id));
    while (!cancelled.done)
        step(scheduler);
    qn_scheduler_cancel(scheduler, id);
    assert_ok(qn_scheduler_wait(scheduler));
    assert_int_equal(stopped.answer.result.finish, QN_FINISH_CALLBACK);
    assert_int_equal(cancelled.answer.result.finish, QN_FINISH_CANCELLED);
    assert_int_equal(cancelled.n_embeddings, 0);
    end(scheduler);
}

/* A decode row has a place in each step, however long the text is. */
TEST(does_not_stall_others)
{
    static struct embedded e;
    static struct answer decoding;
    const struct setting *setting = &settings[0];
    qn_token prompt = 3;
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 2, .max_rows = 32));
    qn_request_params other = prompt_of(&prompt, 1, 100, &decoding), params;
    other.on_text = NULL;
    submit_request(scheduler, &other);
    step(scheduler);
    params = request_of(2, LONGEST, QN_POOLING_MEAN, &e);
    submit_request(scheduler, &params);
    while (!e.answer.n_ends) {
        const size_t n = decoding.n_tokens;
        step(scheduler);
        assert_int_equal(decoding.n_tokens, n + 1);
    }
    assert_true(e.n_progress > LONGEST / 32);
    assert_ok(qn_scheduler_wait(scheduler));
    check(setting, &e, QN_POOLING_MEAN);
    end(scheduler);
}

/* Observers see which requests are evaluated, in places that stay. */
TEST(lists_places)
{
    static struct embedded e[3];
    qn_place places[4] = { QN_PLACE_INIT };
    size_t n;
    const struct setting *setting = &settings[0];
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 3, .max_rows = 30));
    assert_ok(qn_scheduler_get_places(scheduler, places, 4, &n));
    assert_int_equal(n, 0);
    for (size_t i = 0; i < 3; i++) {
        qn_request_params params = request_of(i, i ? LONGEST : 5, QN_POOLING_MEAN, &e[i]);
        params.client = i == 2 ? "second" : "first";
        submit_request(scheduler, &params);
    }
    while (!e[0].answer.n_ends)
        step(scheduler);
    assert_ok(qn_scheduler_get_places(scheduler, places, 4, &n));
    assert_int_equal(n, 2);
    for (size_t i = 0; i < n; i++) {
        assert_true(places[i].index < 3 && (!i || places[i].index > places[i - 1].index));
        assert_int_equal(places[i].n_prompt, LONGEST);
        assert_int_equal(places[i].n_generated, 0);
        assert_int_equal(places[i].max_tokens, 0);
        const struct embedded *of = strcmp(places[i].client, "second") ? &e[1] : &e[2];
        assert_int_equal(places[i].n_evaluated, of->done);
    }
    assert_string_not_equal(places[0].client, places[1].client);
    assert_ok(qn_scheduler_get_places(scheduler, places, 1, &n));
    assert_int_equal(n, 1);
    places->size = 0;
    assert_fails(qn_scheduler_get_places(scheduler, places, 1, &n), QN_ERR_INVALID, "qn_place");
    assert_ok(qn_scheduler_wait(scheduler));
    end(scheduler);
}

TEST(refuses)
{
    static struct embedded e;
    const struct setting *setting = &settings[0];
    qn_scheduler *scheduler = begin(setting, SCHEDULER_PARAMS(.max_sequences = 2));
    qn_request_params params = request_of(1, 5, QN_POOLING_MEAN, &e);
    params.max_tokens = 1;
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, "max_tokens is 1, expected 0");
    params.max_tokens = 0;
    params.on_embedding = NULL;
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, "without on_embedding");
    params.on_embedding = take_embedding;
    params.pooling = (qn_pooling)5;
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_INVALID, "pooling: 5");
    params.pooling = QN_POOLING_LAST;
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX));
    assert_fails(qn_generate(session, &params, NULL), QN_ERR_UNSUPPORTED, "only a scheduler");
    qn_session_free(session);
    scheduler->model->device->row_features &= ~(unsigned)QN_ROW_HIDDEN;
    assert_fails(qn_scheduler_submit(scheduler, &params, NULL), QN_ERR_UNSUPPORTED, "hidden states");
    assert_fails(qn_model_check_embeddings(model), QN_ERR_UNSUPPORTED, "hidden states");
    scheduler->model->device->row_features |= QN_ROW_HIDDEN;
    assert_ok(qn_model_check_embeddings(model));
    end(scheduler);
}

/* The embedding of a session is that of a request, of length 1. */
TEST_EACH(in_a_session, struct setting, setting, settings)
{
    static double expected[4096];
    static float found[4096], again[4096];
    static struct embedded e;
    load(setting);
    for (size_t p = 0; p < 3; p++) {
        double length = 0;
        (void)request_of(3, LONGEST, poolings[p], &e);
        pool(setting, e.prompt, LONGEST, poolings[p], expected);
        for (uint32_t n_batch = 7; n_batch < 300; n_batch *= 6) {
            qn_session *session =
                create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = setting->kv, .n_batch = n_batch));
            assert_ok(qn_embed(session, e.prompt, 5, poolings[p], found));
            assert_ok(qn_embed(session, e.prompt, LONGEST, poolings[p], found));
            assert_int_equal(qn_session_length(session), LONGEST);
            if (n_batch > 7)
                assert_memory_equal(found, again, n_embd * sizeof *found);
            memcpy(again, found, n_embd * sizeof *found);
            qn_session_free(session);
        }
        for (size_t k = 0; k < n_embd; k++)
            length += expected[k] * expected[k];
        for (size_t k = 0; k < n_embd; k++)
            assert_true(fabs(found[k] - expected[k] / sqrt(length)) < 1e-6);
    }
    qn_model_free(model);
}

TEST(a_session_refuses)
{
    static float found[4096];
    const qn_token tokens[] = { 1, 2, 3 };
    load(&settings[0]);
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 64));
    assert_ok(qn_session_eval(session, tokens, 3, QN_LOGITS_NONE, NULL));
    assert_fails(qn_embed(session, tokens, 0, QN_POOLING_MEAN, found), QN_ERR_INVALID, "no tokens");
    assert_fails(qn_embed(session, tokens, 3, QN_POOLING_NONE, found), QN_ERR_INVALID, "pooling: 0");
    assert_fails(qn_embed(session, tokens, 65, QN_POOLING_MEAN, found), QN_ERR_CONTEXT, "65 tokens");
    assert_fails(qn_embed(session, &(qn_token){ -1 }, 1, QN_POOLING_MEAN, found), QN_ERR_INVALID, "id -1");
    assert_int_equal(qn_session_length(session), 3);
    qn_session_free(session);
    assert_int_equal(qn_model_get_pooling(model), QN_POOLING_NONE);
    qn_model_free(model);
}

/* Progress is told of steps in order, also where the next step is launched before one is finished. */
TEST(progress_ahead)
{
    enum { AHEAD = 8, N = 3 };
    static struct embedded e[N];
    load(&settings[0]);
    let_overlap(model, AHEAD);
    qn_scheduler *scheduler =
        create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .max_sequences = 4, .max_rows = 40, .no_thread = true,
                                                  .run_ahead = true));
    for (size_t i = 0; i < N; i++) {
        qn_request_params params = request_of(i, LONGEST - 30 * i, QN_POOLING_NONE, &e[i]);
        params.on_embedding = NULL;
        params.max_tokens = 12;
        submit_request(scheduler, &params);
    }
    assert_ok(qn_scheduler_wait(scheduler));
    for (size_t i = 0; i < N; i++) {
        assert_int_equal(e[i].done, e[i].n_prompt);
        assert_true(e[i].n_progress > 3);
        assert_int_equal(e[i].answer.n_tokens, 12);
    }
    const qn_cache *cache = scheduler->cache;
    qn_scheduler_free(scheduler);
    stop_overlap(model);
    assert_int_equal(items_held(cache), 0);
    qn_model_free(model);
}
