/* Drafts of a block drafter: answers, log probabilities and saved sessions are those of one token a step, to the bit,
 * and with prefixes that are used again. The drafter is random, but its output matrix prefers the tokens that the
 * requests' biases make likely, so that about one token in three is accepted. */
#define QN_TESTS_DEMO_DRAFTER QN_TESTS_DRAFTER
#include "helper_draft_cases.h"

#include <unistd.h>

/* ---- Equal answers ---- */

TEST(schedulers_answer_the_same)
{
    check_schedulers("dflash");
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
    check_reused_prefixes("dflash");
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
    check_grammars("dflash");
}

/* By the number of tokens, by the end of the context, where blocks are shorter, and by a cancellation. */
TEST(answers_end_anywhere)
{
    check_ends("dflash");
}

/* ---- Choices ---- */

/* Simulated acceptance gives the expected number of tokens a step. */
TEST(acceptance_is_simulated)
{
    check_simulated_acceptance("dflash");
}

/* Blocks whose tokens are never accepted end, and are tried again. */
TEST(blocks_that_do_not_pay_end)
{
    check_end_of_what_does_not_pay(QN_DRAFT_DFLASH);
}

TEST(a_drafter_for_another_model_is_told_once)
{
    check_warning("dflash", "tokens were accepted: the drafter seems to be for another model");
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
