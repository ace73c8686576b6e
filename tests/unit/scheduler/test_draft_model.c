/* Drafts of a draft model: answers and their log probabilities are those of one token a step, to the bit, whatever the
 * draft model writes: itself, a coarser copy, or another text. With recurrent layers in both models, and without.
 * QN_DRAFT is set where all that is proposed is to be drafted; where it is not, a clock of the test's own decides what
 * pays. */
#include "helper_drafted.h"

#include "gguf/gguf.h"
#include "quern/grammar.h"

#include <math.h>
#include <unistd.h>

enum { N_CTX = 240, MAX_REQUESTS = 5, ANSWERS = QN_TEST_SANITIZED ? 1 : 4, KINDS = 4 };

static char coarse[64]; /* a copy of llama.f16.gguf in Q8_0 */

static const char *source(const char *file)
{
    static char paths[2][512];
    static size_t n;
    const size_t i = n++ % 2;
    snprintf(paths[i], sizeof paths[i], "%s/%s", QN_SOURCE_DIR, file);
    return paths[i];
}

static int begin(void)
{
    snprintf(coarse, sizeof coarse, "/tmp/quern-coarse-%d.gguf", (int)getpid());
    assert_ok(qn_quantize_file(source("tests/golden/llama.f16.gguf"), coarse, "q8_0", NULL));
    return 0;
}

static int end(void)
{
    unlink(coarse);
    return 0;
}

TEST_GROUP(begin, end)

static qn_model *load(const char *file, const char *draft, uint64_t memory, int n_threads)
{
    return create_model(
        file, &CPU_MODEL(.memory = memory, .n_threads = n_threads, .skip_weight_scan = true, .draft_model = draft));
}

/* Models and their draft models. */
static qn_model *load_pair(size_t i, uint64_t memory, int n_threads)
{
    static const char recurrent[] = "tests/golden/scheduler.gguf", dense[] = "tests/golden/llama.f16.gguf";
    switch (i) {
    case 0: return load(source(recurrent), source(recurrent), memory, n_threads);
    case 1: return load(source(recurrent), source("models/quern-demo.gguf"), memory, n_threads);
    case 2: return load(source(dense), source(dense), memory, n_threads);
    default: return load(source(dense), coarse, memory, n_threads);
    }
}

enum { PAIRS = 4 };

static qn_request_params request_of(unsigned kind, struct answer *a)
{
    qn_request_params params = prompt_of(prompt, COUNT(prompt) - kind % 4, 100, a);
    qn_sampling *p = &params.sampling;
    *p = SAMPLING(.temperature = kind % 3 ? 0.3f : 0, .top_k = kind % 4 ? 30 : 0, .top_p = kind % 5 ? 0.9f : 1,
                  .min_p = kind % 7 == 1 ? 0.1f : 0, .repeat_penalty = kind % 6 == 2 ? 1.2f : 1, .repeat_last_n = 16,
                  .frequency_penalty = kind % 6 == 4 ? 0.3f : 0, .presence_penalty = kind % 6 == 4 ? 0.2f : 0,
                  .xtc_probability = kind % 8 == 7 ? 0.5f : 0, .xtc_threshold = 0.1f, .typical_p = 1, .seed = kind);
    params.n_logprobs = kind % 2 ? QN_MAX_LOGPROBS : -1;
    params.logprobs_after = kind % 4 == 3;
    params.scope = "one";
    params.on_text = NULL; /* some of the models have no tokeniser */
    params.draft = QN_DRAFT_MODEL;
    return params;
}

/* What the sequences of a model's draft model hold. */
static size_t held_by_drafts(qn_model *model)
{
    qn_memory_params params = { .n_ctx = 1, .n_batch = 1 };
    const qn_kv_format *format;
    const qn_cache *cache;
    assert_ok(qn_model_kv_format(model->draft, NULL, &format));
    assert_ok(qn_model_find_cache(model->draft, format, &params, &cache));
    return items_held(cache);
}

/* ---- Equal answers ---- */

TEST(schedulers_answer_the_same)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    static const char *const formats[] = { "f16", "aura4", "f32" };
    static const uint32_t rows[] = { 0, 6, 9, 20 };
    force("model");
    for (unsigned round = 0; round < PAIRS * (QN_TEST_SANITIZED ? 1 : 2); round++) {
        const char *kv = formats[round % COUNT(formats)];
        qn_model *model = load_pair(round % PAIRS, 0, 1 + round % 3);
        qn_request_params params[MAX_REQUESTS];
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            params[i] = request_of(round * MAX_REQUESTS + i, &found[i]);
            answer_without_drafts(model, N_CTX, &params[i], kv, &expected[i]);
        }
        qn_scheduler *s =
            create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .kv = kv, .max_sequences = 5,
                                                      .max_rows = rows[round % COUNT(rows)], .no_thread = round % 2));
        for (unsigned i = 0; i < MAX_REQUESTS; i++)
            submit_request(s, &params[i]);
        qn_scheduler_wait(s);
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            label("round %u, request %u, %s", round, i, kv);
            assert_same_logprobs(&found[i], &expected[i]);
            assert_true(found[i].result.n_accepted <= found[i].result.n_drafted);
        }
        assert_true(counters_of(s).drafted_tokens > 100);
        qn_scheduler_free(s);
        assert_int_equal(held_by_drafts(model), 0);
        qn_model_free(model);
    }
}

/* On a device that computes beside the host steps wait for the draft model's tokens. */
TEST(devices_that_run_ahead_answer_the_same)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    for (unsigned round = 0; round < 4; round++) {
        qn_model *model = load_pair(2 * (round % 2), 0, 1);
        qn_request_params params[MAX_REQUESTS];
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            params[i] = request_of(round * MAX_REQUESTS + i, &found[i]);
            answer_without_drafts(model, N_CTX, &params[i], NULL, &expected[i]);
            memset(&found[i], 0, sizeof found[i]);
        }
        force(round < 2 ? "model" : NULL);
        let_overlap(model, 8);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .max_sequences = round % 2 ? 5 : 1,
                                                                    .no_thread = true, .run_ahead = true));
        for (unsigned i = 0; i < MAX_REQUESTS; i++)
            submit_request(s, &params[i]);
        qn_scheduler_wait(s);
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            label("round %u, request %u", round, i);
            assert_same_logprobs(&found[i], &expected[i]);
        }
        assert_true(round >= 2 || counters_of(s).drafted_tokens > 100);
        qn_scheduler_free(s);
        stop_overlap(model);
        qn_model_free(model);
    }
}

/* A model drafts for itself what it then samples greedily; a coarser copy is often right, another model hardly ever. */
TEST(acceptance_is_that_of_the_draft_model)
{
    static struct answer a;
    static const double least[PAIRS] = { 1, 0, 1, 0.2 }, most[PAIRS] = { 1, 0.05, 1, 0.98 };
    if (QN_TEST_SANITIZED) /* rates are those of the plain build */
        skip();
    force("model");
    for (size_t pair = 0; pair < PAIRS; pair++) {
        qn_model *model = load_pair(pair, 0, 1);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
        for (unsigned i = 0; i < 2; i++) {
            const qn_token tokens[] = { (qn_token)i * 3, 7, (qn_token)i };
            qn_request_params params = prompt_of(tokens, COUNT(tokens), 150, &a);
            params.on_text = NULL;
            submit_and_wait(s, &params);
        }
        const qn_scheduler_counters c = counters_of(s);
        const double accepted = (double)c.accepted_tokens / (double)c.drafted_tokens;
        label("pair %zu: %.3f of %d, %d steps", pair, accepted, (int)c.drafted_tokens, (int)c.steps);
        assert_true(accepted >= least[pair] && accepted <= most[pair]);
        assert_true(most[pair] < 1 || c.steps * 4 < c.generated_tokens);
        qn_scheduler_free(s);
        qn_model_free(model);
    }
}

/* The session's sequence of the draft model goes on with the next call, also after truncation. */
TEST(sessions_answer_the_same)
{
    static struct answer a[2];
    size_t n_accepted = 0;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        qn_model *model = load_pair(kind % PAIRS, 0, 1);
        qn_session *sessions[2];
        for (int how = 0; how < 2; how++)
            sessions[how] = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = kind % 3 ? "f16" : "aura4"));
        for (unsigned turn = 0; turn < 4; turn++) {
            for (int how = 0; how < 2; how++) {
                qn_request_params params = request_of(kind + turn, &a[how]);
                qn_request_result result = QN_REQUEST_RESULT_INIT;
                qn_token tokens[4] = { 3, 4, 5, 6 }, pending;
                if (qn_session_pending(sessions[how], &pending))
                    tokens[0] = pending;
                force(how ? "model" : NULL);
                params.tokens = tokens;
                params.n_tokens = COUNT(tokens);
                params.max_tokens = 45;
                params.on_end = NULL;
                params.draft = how ? QN_DRAFT_AUTO : QN_DRAFT_OFF;
                if (turn == 2) /* the third answer is written again */
                    assert_ok(qn_session_truncate(sessions[how], qn_session_reach(sessions[how], 30)));
                assert_ok(qn_generate(sessions[how], &params, &result));
                n_accepted += result.n_accepted;
                assert_true(how || !result.n_drafted);
            }
            label("kind %u, turn %u", kind, turn);
            assert_same_logprobs(&a[1], &a[0]);
            assert_int_equal(qn_session_length(sessions[0]), qn_session_length(sessions[1]));
        }
        for (int how = 0; how < 2; how++)
            qn_session_free(sessions[how]);
        assert_int_equal(held_by_drafts(model), 0);
        qn_model_free(model);
    }
    assert_true(n_accepted > 100);
}

/* A saved session goes on the same, and a file has nothing of the draft model. */
TEST(sessions_are_saved)
{
    static struct answer a[2];
    char path[64];
    qn_model *model = load_pair(0, 0, 1);
    force("model");
    snprintf(path, sizeof path, "/tmp/quern-session-%d", (int)getpid());
    for (int how = 0; how < 2; how++) {
        qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX));
        qn_request_params params = request_of(1, &a[how]);
        params.on_end = NULL;
        params.max_tokens = 40;
        params.draft = QN_DRAFT_AUTO;
        assert_ok(qn_generate(session, &params, NULL));
        if (how) {
            assert_ok(qn_session_save(session, path));
            qn_session_free(session);
            assert_ok(qn_session_restore(model, path, &SESSION_PARAMS(.n_ctx = N_CTX), &session));
        }
        assert_true(qn_session_pending(session, &(qn_token){ 0 }));
        params.tokens = prompt;
        assert_ok(qn_generate(session, &params, NULL));
        qn_session_free(session);
    }
    assert_same_logprobs(&a[1], &a[0]);
    unlink(path);
    qn_model_free(model);
}

/* ---- Constraints and ends ---- */

TEST(grammars_have_drafts)
{
    static struct answer a[2];
    static const char *const grammars[] = {
        "root ::= (\"the name of \" [a-d]{1,3} \", and \"){1,8}",
        "root ::= [a-c]{40,90}",
        "root ::= [^#]{40,90}",
    };
    qn_model *model = load_pair(0, 0, 1);
    size_t n_drafted = 0;
    for (unsigned kind = 0; kind < 6; kind++) {
        const char *gbnf = grammars[kind % COUNT(grammars)];
        qn_grammar *grammar;
        assert_ok(qn_grammar_create(model, QN_GRAMMAR_GBNF, gbnf, strlen(gbnf), &grammar));
        for (int how = 0; how < 2; how++) {
            qn_request_params params = request_of(kind, &a[how]);
            force(how ? "model" : NULL);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            params.grammar = grammar;
            params.ignore_end = false;
            params.on_text = answer_text;
            params.stop = (const char *const[]){ "ba" };
            params.n_stop = kind % 4 == 2;
            params.jump_forward = kind % 4 ? QN_JUMP_FORWARD_AUTO : QN_JUMP_FORWARD_OFF;
            params.draft = how ? QN_DRAFT_AUTO : QN_DRAFT_OFF;
            submit_and_wait(s, &params);
            n_drafted += a[how].result.n_drafted;
            qn_scheduler_free(s);
        }
        label("kind %u", kind);
        assert_same_logprobs(&a[1], &a[0]);
        qn_grammar_free(grammar);
    }
    label("%zu drafted", n_drafted);
    assert_true(n_drafted > 0);
    qn_model_free(model);
}

/* Answers end after each number of tokens, by max_tokens, by a stop token, by the callback, and by a full context. */
TEST(answers_end_anywhere)
{
    static struct answer all, fast, slow;
    qn_model *model = load_pair(2, 0, 1);
    qn_request_params params = request_of(0, &all);
    force("model");
    answer_without_drafts(model, N_CTX, &params, NULL, &all);
    qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
    for (unsigned length = 1; length < 100; length += QN_TEST_SANITIZED ? 19 : 5) {
        const unsigned kind = length % 3;
        params = request_of(0, &fast);
        label("end %u", length);
        params.max_tokens = kind == 0 ? (int64_t)length : 100;
        params.stop_tokens = &all.tokens[length];
        params.n_stop_tokens = kind == 1;
        answer_without_drafts(model, N_CTX, &params, NULL, &slow);
        params.user = &fast;
        fast.cancel_at = kind == 2 ? length : 0;
        submit_and_wait(s, &params);
        if (kind == 2) {
            assert_int_equal(fast.n_tokens, length);
            assert_memory_equal(fast.tokens, all.tokens, length * sizeof *all.tokens);
            continue;
        }
        assert_same_logprobs(&fast, &slow);
        assert_int_equal(fast.result.finish, slow.result.finish);
    }
    qn_scheduler_free(s);
    for (uint32_t n_ctx = 60; n_ctx < 70; n_ctx += 3) {
        s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = n_ctx, .no_thread = true));
        params = request_of(0, &fast);
        submit_and_wait(s, &params);
        assert_int_equal(fast.result.finish, QN_FINISH_CONTEXT);
        assert_memory_equal(fast.tokens, all.tokens, fast.n_tokens * sizeof *all.tokens);
        qn_scheduler_free(s);
    }
    qn_model_free(model);
}

/* The draft model was trained for 256 tokens: longer texts go on without it. */
TEST(a_short_context_ends_drafts)
{
    static struct answer fast, slow;
    static qn_token tokens[200];
    qn_model *model = load_pair(2, 0, 1);
    force("model");
    for (size_t i = 0; i < COUNT(tokens); i++)
        tokens[i] = (qn_token)(i * 7 % 300);
    for (int how = 0; how < 2; how++) {
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = 420, .no_thread = true));
        qn_request_params params = prompt_of(tokens, COUNT(tokens), 150, how ? &fast : &slow);
        params.on_text = NULL;
        params.draft = how ? QN_DRAFT_MODEL : QN_DRAFT_OFF;
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
    }
    assert_same_answer(&fast, &slow);
    assert_true(fast.result.n_drafted > 30 && fast.result.n_drafted <= 256 - COUNT(tokens) + 1);
    qn_model_free(model);
}

/* ---- Requests ---- */

TEST(requests_are_cancelled)
{
    static struct answer a, b, expected;
    qn_model *model = load_pair(0, 0, 1);
    force("model");
    for (int steps = 0; steps < 20; steps += QN_TEST_SANITIZED ? 9 : 3) {
        qn_request_params params = request_of(0, &a), other = request_of(3, &b);
        uint64_t id;
        bool idle = false;
        label("%d steps", steps);
        answer_without_drafts(model, N_CTX, &other, NULL, &expected);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
        assert_ok(qn_scheduler_submit(s, &params, &id));
        submit_request(s, &other);
        for (int i = 0; i < steps && !idle; i++)
            assert_ok(qn_scheduler_step(s, &idle));
        qn_scheduler_cancel(s, id);
        qn_scheduler_wait(s);
        assert_int_equal(a.n_ends, 1);
        qn_scheduler_free(s);
        assert_int_equal(held_by_drafts(model), 0);
        assert_same_logprobs(&b, &expected);
    }
    qn_model_free(model);
}

/* Little memory, for both models: requests are set aside, and some have no drafts. */
TEST(requests_are_set_aside)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    qn_request_params params[MAX_REQUESTS];
    uint32_t n_set_aside = 0;
    size_t n_drafted = 0;
    force("model");
    for (uint64_t memory = 20 << 20; memory >= 4 << 20 && !n_set_aside; memory -= 2 << 20) {
        qn_model *model = load_pair(0, memory, 1);
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            params[i] = request_of(i, &found[i]);
            params[i].max_tokens = 200;
            answer_without_drafts(model, N_CTX, &params[i], NULL, &expected[i]);
        }
        qn_scheduler *s =
            create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .max_sequences = 5, .no_thread = true));
        for (unsigned i = 0; i < MAX_REQUESTS; i++)
            submit_request(s, &params[i]);
        qn_scheduler_wait(s);
        qn_scheduler_free(s);
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            label("request %u", i);
            assert_same_logprobs(&found[i], &expected[i]);
            n_set_aside += found[i].result.n_set_aside;
            n_drafted += found[i].result.n_drafted;
        }
        qn_model_free(model);
    }
    assert_true(n_set_aside > 0 && n_drafted > 0);
}

/* ---- What pays ---- */

/* A clock that stands, but during steps: each costs a time for itself and one for each row, of either model. */
static double clock_now, step_cost[2], row_cost[2], longest_draft;
static size_t n_draft_rows;
static bool runs_ahead;     /* steps are launched behind others */
static double in_flight[2]; /* times of the steps in flight, which end when they are finished */
static size_t n_in_flight;
static qn_status (*finish)(qn_device *device);
static const qn_device *of_draft;
static const qn_device_vtable *vtables[2];

static double clock_of_test(void)
{
    return clock_now;
}

static qn_status run_for(qn_device *device, const qn_step *step)
{
    const bool is_draft = device == of_draft;
    const double cost = step_cost[is_draft] + row_cost[is_draft] * (double)step->n_rows;
    if (runs_ahead && !is_draft)
        in_flight[n_in_flight++] = cost;
    else
        clock_now += cost;
    n_draft_rows += is_draft ? step->n_rows : 0;
    longest_draft = is_draft && cost > longest_draft ? cost : longest_draft;
    return vtables[is_draft]->run(device, step);
}

static qn_status finish_for(qn_device *device)
{
    clock_now += in_flight[0];
    in_flight[0] = in_flight[1];
    n_in_flight--;
    return finish(device);
}

/* Lets the model's steps overlap with the host. */
static void let_run_ahead(qn_model *model)
{
    static qn_device_vtable own;
    let_overlap(model, 8);
    own = *model->device->vtable;
    finish = own.finish;
    own.finish = finish_for;
    model->device->vtable = &own;
    n_in_flight = 0;
}

static void let_cost(qn_model *model, double step, double row, double draft_step, double draft_row)
{
    static qn_device_vtable own[2];
    qn_device *const devices[] = { model->device, model->draft->device };
    for (size_t i = 0; i < 2; i++) {
        vtables[i] = devices[i]->vtable;
        own[i] = *vtables[i];
        own[i].run = run_for;
        devices[i]->vtable = &own[i];
    }
    of_draft = model->draft->device;
    clock_now = 1;
    longest_draft = 0;
    step_cost[0] = step;
    row_cost[0] = row;
    step_cost[1] = draft_step;
    row_cost[1] = draft_row;
    if (runs_ahead)
        let_run_ahead(model);
}

static void free_timed(qn_model *model)
{
    if (runs_ahead)
        stop_overlap(model);
    qn_model_free(model);
}

static qn_scheduler *create_timed(qn_model *model, uint32_t n_ctx, uint32_t n)
{
    qn_scheduler *s = create_scheduler(
        model, &SCHEDULER_PARAMS(.n_ctx = n_ctx, .no_thread = true, .run_ahead = runs_ahead, .max_sequences = n));
    s->now = clock_of_test;
    return s;
}

/* Seconds of n answers of 200 tokens one after another. */
static double time_answers(qn_model *model, qn_draft_kind draft, float accept, unsigned n)
{
    static struct answer a;
    qn_scheduler *s = create_timed(model, N_CTX, 1);
    const double start = clock_now;
    for (unsigned i = 0; i < n; i++) {
        qn_request_params params = prompt_of(prompt, 2, 200, &a);
        params.on_text = NULL;
        params.draft = draft;
        params.draft_accept = draft == QN_DRAFT_OFF ? 0 : accept;
        submit_and_wait(s, &params);
        assert_int_equal(a.result.n_generated, 200);
    }
    const double seconds = clock_now - start;
    qn_scheduler_free(s);
    return seconds;
}

/* Drafts are made where the time of the draft model's steps and of the drafted rows is less than that of the steps
 * which they save. */
TEST(drafts_are_made_where_they_pay)
{
    static const struct {
        double row, draft_step;
        float accept;
        double least, most; /* of the time with drafts by that without */
    } cases[] = {
        { 0.1, 0.05, 0.9f, 0, 0.5 },   { 0.1, 0.05, 0.7f, 0, 0.72 }, { 0.1, 0.2, 0.7f, 0, 0.9 },
        { 0.1, 0.05, 0.05f, 1, 1.02 }, { 0.1, 0.95, 0.7f, 1, 1.02 }, { 0.9, 0.05, 0.7f, 0.9, 1.02 },
    };
    force(NULL);
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        const size_t k = i % COUNT(cases);
        qn_model *model = load_pair(2, 0, 1);
        runs_ahead = i >= COUNT(cases);
        let_cost(model, 1 - cases[k].row, cases[k].row, cases[k].draft_step, 0.001);
        const double without = time_answers(model, QN_DRAFT_OFF, 0, ANSWERS);
        (void)time_answers(model, QN_DRAFT_MODEL, cases[k].accept, 1); /* measures */
        const double with = time_answers(model, QN_DRAFT_MODEL, cases[k].accept, ANSWERS);
        label("case %zu, ahead %d: %.3f", k, runs_ahead, with / without);
        assert_true(with / without >= cases[k].least && with / without <= cases[k].most);
        free_timed(model);
    }
    runs_ahead = false;
}

/* A draft model that is hardly ever right costs little, and less with time: it is learned from its real tokens. */
TEST(a_bad_draft_model_costs_little)
{
    force(NULL);
    for (int ahead = 0; ahead < 2; ahead++) {
        qn_model *model = load_pair(1, 0, 1);
        runs_ahead = ahead;
        let_cost(model, 0.9, 0.1, 0.2, 0.01);
        const double without = time_answers(model, QN_DRAFT_OFF, 0, 2);
        const double first = time_answers(model, QN_DRAFT_MODEL, 0, 2),
                     second = time_answers(model, QN_DRAFT_MODEL, 0, 2);
        label("ahead %d: %.4f, %.4f", ahead, first / without, second / without);
        assert_true(first / without < 1.1 && second / without < 1.02);
        free_timed(model);
    }
    runs_ahead = false;
}

/* The prompt is evaluated by the draft model after the first token, in pieces that take no longer than a quarter of a
 * step beside other sequences. */
TEST(long_prompts_are_evaluated_in_pieces)
{
    static struct answer a[2];
    static qn_token tokens[400];
    force(NULL);
    for (size_t i = 0; i < COUNT(tokens); i++)
        tokens[i] = (qn_token)(i * 7 % 300);
    for (int n = 1; n <= 2; n++) {
        qn_model *model = load(source("tests/golden/scheduler.gguf"), source("tests/golden/scheduler.gguf"), 0, 1);
        let_cost(model, 0.99, 0.01, 0.005, 0.005);
        (void)time_answers(model, QN_DRAFT_MODEL, 0.8f, 1); /* measures */
        qn_scheduler *s = create_timed(model, 700, 2);
        for (int i = 0; i < n; i++) {
            qn_request_params params = prompt_of(tokens + i, COUNT(tokens) - 1, 200, &a[i]);
            params.on_text = NULL;
            params.draft = i ? QN_DRAFT_OFF : QN_DRAFT_MODEL;
            params.draft_accept = i ? 0 : 0.8f;
            submit_request(s, &params);
        }
        longest_draft = 0;
        bool idle = false;
        while (!a[0].n_tokens && !idle) {
            assert_int_equal((int)(longest_draft * 1000), 0);
            assert_ok(qn_scheduler_step(s, &idle));
        }
        qn_scheduler_wait(s);
        label("%d: %.3f, %zu drafted", n, longest_draft, a[0].result.n_drafted);
        assert_true(longest_draft > 0.1 && longest_draft < (n > 1 ? 0.3 : 1.1));
        assert_true(a[0].result.n_accepted > 20);
        qn_scheduler_free(s);
        qn_model_free(model);
    }
}

/* The draft model does not evaluate again what it has evaluated of another text of the same scope; of the scope "",
 * which strangers may share, it does: the time until drafts begin would tell them what others asked. */
TEST(prefixes_are_reused_within_a_scope)
{
    static struct answer a[2];
    static qn_token tokens[240];
    static const char *const scopes[] = { NULL, "", "one" };
    force("model");
    for (size_t i = 0; i < COUNT(tokens); i++)
        tokens[i] = (qn_token)(i * 7 % 300);
    for (size_t pair = 0; pair < PAIRS; pair += 2)
        for (size_t k = 0; k < COUNT(scopes); k++) {
            size_t n_rows[2];
            qn_model *model = load_pair(pair, 0, 1);
            let_cost(model, 1, 0, 0, 0);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            for (int again = 0; again < 2; again++) { /* the second text begins with all of the first */
                qn_request_params params = prompt_of(tokens, again ? 195 : 150, again ? 20 : 45, &a[again]);
                params.on_text = NULL;
                params.scope = scopes[k];
                n_draft_rows = 0;
                submit_and_wait(s, &params);
                n_rows[again] = n_draft_rows;
                memcpy(tokens + params.n_tokens, a[again].tokens, a[again].n_tokens * sizeof *tokens);
            }
            label("pair %zu, scope %zu: %zu, %zu rows", pair, k, n_rows[0], n_rows[1]);
            assert_true(k == 2 ? n_rows[1] < 120 : n_rows[1] > 195);
            qn_scheduler_free(s);
            assert_int_equal(held_by_drafts(model), 0);
            qn_model_free(model);
        }
}

/* ---- What is refused ---- */

static void assert_refused(const char *model, const char *draft, qn_status status, const char *text)
{
    qn_model *loaded = NULL;
    assert_fails(
        qn_model_load(model, &CPU_MODEL(.skip_weight_scan = true, .n_threads = 1, .draft_model = draft), &loaded),
        status, text);
    assert_null(loaded);
}

/* A copy of a model's file with another architecture, or with the names of its tensors changed. */
static void write_head(const char *path, const char *architecture, const char *tensor)
{
    static const uint64_t dims[] = { 32, 2 };
    static const float zeros[64];
    qn_gguf_writer *w;
    assert_ok(qn_gguf_writer_create(path, &w));
    assert_ok(qn_gguf_writer_add_string(w, "general.architecture", architecture));
    assert_ok(qn_gguf_writer_add_tensor(w, (qn_string){ tensor, strlen(tensor) }, 0, 2, dims, sizeof zeros));
    assert_ok(qn_gguf_writer_begin_data(w));
    assert_ok(qn_gguf_writer_data(w, zeros, sizeof zeros));
    assert_ok(qn_gguf_writer_finish(w));
    qn_gguf_writer_free(w);
}

TEST(files_that_cannot_serve_are_refused)
{
    static const char model[] = QN_SOURCE_DIR "/tests/golden/scheduler.gguf",
                      dense[] = QN_SOURCE_DIR "/tests/golden/llama.f16.gguf";
    char path[64];
    force(NULL);
    snprintf(path, sizeof path, "/tmp/quern-head-%d.gguf", (int)getpid());
    assert_refused(model, QN_SOURCE_DIR "/tests/golden/parrot.gguf", QN_ERR_UNSUPPORTED,
                   "not the vocabulary of " QN_SOURCE_DIR "/tests/golden/scheduler.gguf: token 0 is ");
    assert_refused(model, dense, QN_ERR_UNSUPPORTED, "only one of them has a tokeniser");
    assert_refused(dense, QN_SOURCE_DIR "/tests/golden/qwen2.f16.gguf", QN_ERR_UNSUPPORTED,
                   "it has 96 tokens, expected 320");
    assert_refused(model, "/nowhere.gguf", QN_ERR_IO, "/nowhere.gguf");
    assert_refused(model, QN_SOURCE_DIR "/README.md", QN_ERR_FORMAT, "README.md");
    write_head(path, "dflash", "blk.0.attn_q.weight");
    assert_refused(model, path, QN_ERR_FORMAT, "'dflash.block_count'");
    write_head(path, "eagle3", "fc.weight");
    assert_refused(model, path, QN_ERR_UNSUPPORTED, "a drafter of another architecture");
    write_head(path, "bert", "blk.0.attn_q.weight");
    assert_refused(model, path, QN_ERR_UNSUPPORTED, "architecture 'bert' is not supported");
    unlink(path);
    qn_model *loaded;
    assert_fails(qn_model_load(model, &CPU_MODEL(.vocab_only = true, .draft_model = model), &loaded), QN_ERR_INVALID,
                 "vocab_only");
}

/* QN_DRAFT_MODEL and QN_DRAFT=model need a draft model. */
TEST(a_draft_model_is_needed)
{
    static struct answer a;
    qn_model *model = load(source("tests/golden/scheduler.gguf"), NULL, 0, 1);
    qn_scheduler *s;
    force(NULL);
    assert_fails(qn_scheduler_create(model, &SCHEDULER_PARAMS(.draft = QN_DRAFT_MODEL), &s), QN_ERR_UNSUPPORTED,
                 "needs a draft model");
    force("model");
    assert_fails(qn_scheduler_create(model, NULL, &s), QN_ERR_UNSUPPORTED, "needs a draft model");
    force(NULL);
    s = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    qn_request_params params = request_of(0, &a);
    assert_fails(qn_scheduler_submit(s, &params, NULL), QN_ERR_UNSUPPORTED, "needs a draft model");
    qn_scheduler_free(s);
    qn_model_free(model);
}
