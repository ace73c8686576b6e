/* Drafts of a block drafter: answers, log probabilities and saved sessions are those of one token a step, to the bit,
 * and with prefixes that are used again. The drafter is random, but its output matrix prefers the tokens that the
 * requests' biases make likely, so that about one token in three is accepted. */
#define QN_TESTS_DEMO_DRAFTER QN_TESTS_DRAFTER
#include "helper_drafts.h"

#include <unistd.h>

enum { ROUNDS = QN_TEST_SANITIZED ? 2 : 3 };

static const char *const formats[] = { "f16", "aura4", "f32", "aura3", "aura8" };

/* ---- Equal answers ---- */

TEST(schedulers_answer_the_same)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    static const uint32_t rows[] = { 0, 6, 9, 20 }; /* the second has no whole block, the third one at a time */
    uint64_t n_drafted = 0, n_accepted = 0;
    force("dflash");
    for (unsigned round = 0; round < ROUNDS; round++) {
        const char *kv = formats[round % COUNT(formats)];
        qn_request_params params[MAX_REQUESTS];
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            params[i] = request_of(round * MAX_REQUESTS + i, &found[i]);
            answer_slowly(&params[i], kv, &expected[i]);
        }
        qn_scheduler *s =
            create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .kv = kv, .max_sequences = 6,
                                                      .max_rows = rows[round % 4], .no_thread = round % 2));
        for (int again = 0; again < 2; again++) { /* the second ones have the prefixes of the first */
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                memset(&found[i], 0, sizeof found[i]);
                submit_request(s, &params[i]);
            }
            qn_scheduler_wait(s);
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                label("round %u, request %u, %s, again %d", round, i, kv, again);
                assert_same_logprobs(&found[i], &expected[i]);
                assert_true(found[i].result.n_accepted <= found[i].result.n_drafted);
            }
        }
        n_drafted += counters_of(s).drafted_tokens;
        n_accepted += counters_of(s).accepted_tokens;
        qn_scheduler_free(s);
    }
    label("%d of %d accepted", (int)n_accepted, (int)n_drafted);
    assert_true(n_accepted > 40 * ROUNDS && n_drafted - n_accepted > 100 * ROUNDS);
}

TEST(threads_answer_the_same)
{
    static struct answer a, expected;
    qn_model *one = model;
    qn_request_params params = request_of(7, &a);
    force("dflash");
    answer_slowly(&params, NULL, &expected);
    for (int n_threads = 1; n_threads <= 3; n_threads++) {
        load_with_drafter(QN_TESTS_DEMO, QN_TESTS_DRAFTER, 0, n_threads, &model);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX));
        memset(&a, 0, sizeof a);
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        qn_model_free(model);
        model = one;
        label("%d threads", n_threads);
        assert_same_logprobs(&a, &expected);
        assert_true(a.result.n_drafted > 0);
    }
}

/* With a Markov head (DSpark), a block's tokens are chosen one after another: of several sequences, and of one. */
TEST(chains_answer_the_same)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    qn_model *blocks = model;
    uint64_t n_drafted = 0, n_accepted = 0;
    size_t together[MAX_REQUESTS] = { 0 };
    force("dflash");
    for (int n_threads = 1; n_threads <= 2; n_threads++) {
        qn_request_params params[MAX_REQUESTS];
        load_with_drafter(QN_TESTS_DEMO, "tests/golden/scheduler-dspark.gguf", 0, n_threads, &model);
        assert_true(model->plan.head.chain > model->plan.head.draft && model->plan.head.from_anchor);
        for (unsigned alone = 0; alone < 2; alone++) {
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                params[i] = request_of((unsigned)n_threads * MAX_REQUESTS + i, &found[i]);
                answer_slowly(&params[i], formats[i % 3], &expected[i]);
            }
            for (unsigned f = 0; f < 3; f++) {
                qn_scheduler *s =
                    create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .kv = formats[f],
                                                              .max_sequences = alone ? 1 : 6, .no_thread = true));
                for (unsigned i = f; i < MAX_REQUESTS; i += 3) {
                    memset(&found[i], 0, sizeof found[i]);
                    submit_request(s, &params[i]);
                }
                qn_scheduler_wait(s);
                n_drafted += counters_of(s).drafted_tokens;
                n_accepted += counters_of(s).accepted_tokens;
                qn_scheduler_free(s);
            }
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                label("%d threads, request %u, alone %u", n_threads, i, alone);
                assert_same_logprobs(&found[i], &expected[i]);
                assert_true(!alone || found[i].result.n_accepted == together[i]); /* drafts are those of the text */
                together[i] = found[i].result.n_accepted;
            }
        }
        qn_model_free(model);
        model = blocks;
    }
    label("%d of %d accepted", (int)n_accepted, (int)n_drafted);
    assert_true(n_accepted > 100 && n_drafted > n_accepted);
}

/* A prompt of several pages, of which later requests reuse the pages and the state. */
TEST(reused_prefixes_answer_the_same)
{
    static struct answer a, expected;
    static qn_token text[260];
    make_tokens(5, text, COUNT(text));
    uint64_t n_reused = 0;
    for (size_t f = 0; f < COUNT(formats); f++) {
        force("dflash");
        qn_scheduler *s =
            create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .kv = formats[f], .no_thread = true));
        for (unsigned n = 0; n < 6; n++) {
            qn_request_params params = request_of(n, &a);
            params.tokens = text;
            params.n_tokens = COUNT(text) - 7 * n;
            params.max_tokens = 70;
            answer_slowly(&params, formats[f], &expected);
            memset(&a, 0, sizeof a);
            submit_and_wait(s, &params);
            label("%s, request %u", formats[f], n);
            assert_same_logprobs(&a, &expected);
            assert_true(a.result.n_drafted > 0);
            n_reused += a.result.n_reused;
        }
        qn_scheduler_free(s);
    }
    assert_true(n_reused > 1000);
}

/* A session answers, is saved, and goes on from the file. Files begin like those of a model without a drafter. */
TEST(sessions_are_saved_and_go_on)
{
    static struct answer a[2];
    qn_model *with = model, *without;
    size_t n_accepted = 0;
    char paths[2][64];
    load_with_drafter(QN_TESTS_DEMO, NULL, 0, 1, &without);
    for (unsigned i = 0; i < 2; i++)
        snprintf(paths[i], sizeof paths[i], "/tmp/quern-test-dflash-%d-%u", (int)getpid(), i);
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (int how = 0; how < 2; how++) {
            qn_request_params params = request_of(kind, &a[how]);
            qn_request_result result = QN_REQUEST_RESULT_INIT;
            qn_session_params of_session = SESSION_PARAMS(.n_ctx = N_CTX, .kv = formats[kind % COUNT(formats)]);
            qn_session *session = create_session(how ? without : with, &of_session);
            qn_token pending;
            force(how ? NULL : "dflash");
            params.on_end = NULL;
            params.draft = how ? QN_DRAFT_OFF : QN_DRAFT_DFLASH;
            memset(&a[how], 0, sizeof a[how]);
            assert_ok(qn_generate(session, &params, &result));
            n_accepted += result.n_accepted;
            assert_ok(qn_session_save(session, paths[how]));
            qn_session_free(session);
            assert_ok(qn_session_restore(how ? without : with, paths[how], &of_session, &session));
            assert_true(qn_session_pending(session, &pending));
            params.tokens = &pending;
            params.n_tokens = 1;
            params.max_tokens = 40;
            params.min_tokens = 0;
            assert_ok(qn_generate(session, &params, &result));
            n_accepted += result.n_accepted;
            qn_session_free(session);
        }
        label("kind %u", kind);
        assert_same_logprobs(&a[0], &a[1]);
        assert_true(begins_like(paths[1], paths[0]));
    }
    label("%d accepted", (int)n_accepted);
    assert_true(n_accepted > 20);
    for (unsigned i = 0; i < 2; i++)
        unlink(paths[i]);
    qn_model_free(without);
}

/* ---- Constraints and ends ---- */

TEST(grammars_drop_forbidden_tokens)
{
    static struct answer a[2];
    uint64_t n_drafted = 0;
    for (unsigned kind = 0; kind < KINDS; kind++) {
        qn_grammar *grammar = grammar_of(kind % 2 ? "root ::= [a-z ]{40,90}" : "root ::= [ -~]{60,90}");
        for (int how = 0; how < 2; how++) {
            qn_request_params params = request_of(kind, &a[how]);
            force(how ? "dflash" : NULL);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            params.grammar = grammar;
            params.ignore_end = false;
            params.min_tokens = 0;
            params.draft = how ? QN_DRAFT_AUTO : QN_DRAFT_OFF;
            submit_and_wait(s, &params);
            n_drafted += a[how].result.n_drafted;
            qn_scheduler_free(s);
        }
        label("kind %u", kind);
        assert_same_logprobs(&a[1], &a[0]);
        qn_grammar_free(grammar);
    }
    label("%d drafted", (int)n_drafted);
    assert_true(n_drafted > 0);
}

/* By the number of tokens, by the end of the context, where blocks are shorter, and by a cancellation. */
TEST(answers_end_anywhere)
{
    static struct answer all, fast;
    qn_request_params params = request_of(1, &all);
    force("dflash");
    answer_slowly(&params, NULL, &all);
    for (unsigned end = 1; end < 60; end += QN_TEST_SANITIZED ? 9 : 4) {
        qn_scheduler *s = create_scheduler(
            model, &SCHEDULER_PARAMS(.n_ctx = end % 2 ? N_CTX : (uint32_t)COUNT(prompt) + end - 1, .no_thread = true));
        params = request_of(1, &fast);
        params.min_tokens = 0;
        params.max_tokens = end % 4 == 1 ? (int64_t)end : 120;
        memset(&fast, 0, sizeof fast);
        fast.cancel_at = end % 4 == 3 ? end : 0;
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        label("end %u", end);
        assert_int_equal(fast.n_tokens, end);
        assert_memory_equal(fast.tokens, all.tokens, end * sizeof *all.tokens);
        assert_int_equal(fast.result.n_generated, end);
    }
}

/* ---- Choices ---- */

/* Simulated acceptance gives the expected number of tokens a step. */
TEST(acceptance_is_simulated)
{
    static struct answer a;
    static const float chances[] = { 0.3f, 0.7f, 1 };
    force("dflash");
    for (size_t i = 0; i < COUNT(chances); i++) {
        const double r = (double)chances[i];
        size_t n_generated = 0, n_accepted = 0;
        double expected = 1, chance = 1;
        for (size_t k = 0; k < 3; k++)
            expected += chance *= r;
        for (unsigned seed = 0; seed < (QN_TEST_SANITIZED ? 3 : 12); seed++) {
            qn_request_params params = request_of(1, &a);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            params.sampling.seed = seed;
            params.max_tokens = MAX_ANSWER;
            params.draft_tokens = 3;
            params.draft_accept = chances[i];
            submit_and_wait(s, &params);
            qn_scheduler_free(s);
            n_generated += a.result.n_generated;
            n_accepted += a.result.n_accepted;
        }
        const double found = (double)n_generated / (double)(n_generated - n_accepted);
        label("%g: %g tokens a step", r, found);
        assert_true(found > expected * 0.88 && found < expected * 1.05); /* drafts end at multiples of 64 */
    }
}

/* Blocks whose tokens are never accepted end, and are tried again. */
TEST(blocks_that_do_not_pay_end)
{
    static struct answer a;
    force(NULL);
    qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
    qn_request_params params = request_of(0, &a);
    params.bias = NULL; /* one token in thousands is the drafter's */
    params.n_bias = 0;
    params.draft = QN_DRAFT_DFLASH;
    params.max_tokens = MAX_ANSWER;
    submit_and_wait(s, &params);
    qn_scheduler_free(s);
    label("%d drafted", (int)a.result.n_drafted);
    assert_true(a.result.n_drafted < a.n_tokens);
}

static size_t n_lines;

static void count_line(void *user, const char *line)
{
    n_lines += user == &n_lines && strstr(line, "tokens were accepted: the drafter seems to be for another model");
}

TEST(a_drafter_for_another_model_is_told_once)
{
    static struct answer a;
    force("dflash");
    n_lines = 0;
    qn_scheduler *s = create_scheduler(
        model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true, .on_log = count_line, .user = &n_lines));
    for (unsigned i = 0; i < 4; i++) {
        qn_request_params params = request_of(0, &a);
        params.bias = NULL;
        params.n_bias = 0;
        params.max_tokens = MAX_ANSWER;
        submit_and_wait(s, &params);
    }
    qn_scheduler_free(s);
    assert_int_equal(n_lines, 1);
}

TEST(kinds_of_drafts_need_their_heads)
{
    qn_model *other;
    qn_scheduler *s;
    force(NULL);
    load_with_drafter(QN_TESTS_DEMO, NULL, 0, 1, &other);
    assert_fails(qn_scheduler_create(other, &SCHEDULER_PARAMS(.draft = QN_DRAFT_DFLASH), &s), QN_ERR_UNSUPPORTED,
                 "draft: dflash: the model was loaded without a drafter");
    qn_model_free(other);
    assert_fails(qn_scheduler_create(model, &SCHEDULER_PARAMS(.draft = QN_DRAFT_MTP), &s), QN_ERR_UNSUPPORTED,
                 "draft: mtp: the model was loaded with a drafter instead");
    assert_fails(qn_model_load(QN_SOURCE_DIR "/" QN_TESTS_DEMO, &CPU_MODEL(.draft = QN_DRAFT_DFLASH), &other),
                 QN_ERR_UNSUPPORTED, "draft: dflash: the model was loaded without a drafter");
    assert_fails(qn_model_load(QN_SOURCE_DIR "/" QN_TESTS_DEMO,
                               &CPU_MODEL(.draft = QN_DRAFT_NGRAM, .draft_model = QN_SOURCE_DIR "/" QN_TESTS_DRAFTER),
                               &other),
                 QN_ERR_INVALID, "a drafter for draft dflash, given with draft ngram");
    assert_fails(qn_model_load(QN_SOURCE_DIR "/" QN_TESTS_DEMO,
                               &CPU_MODEL(.vocab_only = true, .draft_model = QN_SOURCE_DIR "/" QN_TESTS_DRAFTER),
                               &other),
                 QN_ERR_INVALID, "draft_model: it is given with vocab_only");
}

/* Where the drafts are chosen, a block costs one pass whatever it gives, and chains one a token. */
TEST(blocks_cost_one_pass)
{
    qn_row_costs costs = { .first = 0.01 }, passes = { .first = 0.01, .unit = 1 };
    float chances[7];
    for (size_t i = 0; i < COUNT(chances); i++)
        chances[i] = 0.9f;
    for (unsigned n = 1; n <= 16; n++)
        qn_row_costs_add(&costs, n, 1 + 0.01 * n);
    qn_row_costs_add(&passes, 8, 0.4);
    qn_row_costs_add(&passes, 1, 0.4);
    qn_row_offer offer = { .chances = chances, .n = COUNT(chances), .is_passed = true, .block = 8 };
    assert_int_equal(qn_row_costs_choose(&costs, &passes, 1, &offer, 1, 15), 7);
    offer.block = 0; /* 0.4 for each is worth it for the first tokens only */
    assert_in_range(qn_row_costs_choose(&costs, &passes, 1, &offer, 1, 15), 1, 6);
    qn_row_costs_add(&passes, 8, 20);
    for (unsigned i = 0; i < 40; i++)
        qn_row_costs_add(&passes, 8, 20);
    offer.block = 8;
    assert_int_equal(qn_row_costs_choose(&costs, &passes, 1, &offer, 1, 15), 0);
}
