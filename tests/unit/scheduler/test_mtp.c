/* Drafts of the model's own block for multi-token prediction: answers, log probabilities and saved sessions are those
 * of one token a step, to the bit, in the cases of test_drafts.c, and with prefixes that are used again. The block is
 * random, but its output matrix prefers the tokens that the requests' biases make likely, so that about one token in
 * three is accepted. */
#define QN_TESTS_DEMO "tests/golden/scheduler-mtp.gguf"
#include "helper_draft_cases.h"

#include "base/append.h"

#include <unistd.h>

/* The model on one thread, with another choice of drafters. */
static void load_with_draft(qn_draft_kind draft, qn_model **out)
{
    assert_ok(qn_model_load(QN_SOURCE_DIR "/" QN_TESTS_DEMO,
                            &CPU_MODEL(.n_threads = 1, .skip_weight_scan = true, .draft = draft), out));
}

/* ---- Equal answers ---- */

TEST(schedulers_answer_the_same)
{
    check_schedulers("mtp");
}

/* On a device that computes beside the host a step with a draft is not launched behind another one, and the passes of a
 * chain are launched one behind the other. */
TEST(devices_that_run_ahead_answer_the_same)
{
    static struct answer found[2][MAX_REQUESTS], expected[MAX_REQUESTS];
    uint64_t n_drafted[2] = { 0 };
    force("mtp");
    for (unsigned round = 0; round < 2; round++) {
        qn_request_params params[MAX_REQUESTS];
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            params[i] = request_of(round * MAX_REQUESTS + i, &found[0][i]);
            params[i].draft = QN_DRAFT_MTP;
            answer_slowly(&params[i], formats[round], &expected[i]);
        }
        for (size_t ahead = 0; ahead < 2; ahead++) {
            let_overlap(model, 8 * ahead);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .kv = formats[round],
                                                                        .max_sequences = round ? 6 : 1,
                                                                        .no_thread = true, .run_ahead = true));
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                params[i].user = &found[ahead][i];
                memset(&found[ahead][i], 0, sizeof found[ahead][i]);
                submit_request(s, &params[i]);
            }
            qn_scheduler_wait(s);
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                label("request %u, %s, ahead %zu", round * MAX_REQUESTS + i, formats[round], ahead);
                assert_same_logprobs(&found[ahead][i], &expected[i]);
            }
            n_drafted[ahead] += counters_of(s).drafted_tokens;
            qn_scheduler_free(s);
            stop_overlap(model);
        }
    }
    label("%d drafted, %d where steps run ahead", (int)n_drafted[0], (int)n_drafted[1]);
    assert_true(n_drafted[0] > 500 && 10 * n_drafted[1] > 9 * n_drafted[0]);
}

/* The model's device, of which some passes find no token. */
static struct {
    const qn_device_vtable *real;
    size_t n_passes;
} failing;

static qn_status run_failing(qn_device *device, const qn_step *step)
{
    QN_TRY(failing.real->run(device, step));
    if (step->is_draft && failing.n_passes++ % 7 == 3)
        step->requests[0].token = -1;
    return QN_OK;
}

/* A chain ends where its logits are not finite; those of other sequences go on. */
TEST(chains_end_where_there_is_no_token)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    qn_request_params params[MAX_REQUESTS];
    uint64_t n_drafted[2];
    force("mtp");
    for (unsigned i = 0; i < MAX_REQUESTS; i++) {
        params[i] = request_of(i, &found[i]);
        answer_slowly(&params[i], "f16", &expected[i]);
    }
    for (size_t fails = 0; fails < 2; fails++) {
        qn_device_vtable vtable = *model->device->vtable;
        failing.real = model->device->vtable;
        vtable.run = run_failing;
        if (fails)
            model->device->vtable = &vtable;
        qn_scheduler *s =
            create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .max_sequences = 4, .no_thread = true));
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            memset(&found[i], 0, sizeof found[i]);
            submit_request(s, &params[i]);
        }
        qn_scheduler_wait(s);
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            label("request %u, fails %zu", i, fails);
            assert_same_logprobs(&found[i], &expected[i]);
        }
        n_drafted[fails] = counters_of(s).drafted_tokens;
        qn_scheduler_free(s);
        model->device->vtable = failing.real;
    }
    label("%d drafted, %d where passes fail", (int)n_drafted[0], (int)n_drafted[1]);
    assert_true(failing.n_passes > 20 && n_drafted[1] < n_drafted[0]);
}

TEST(threads_and_models_without_the_block_answer_the_same)
{
    static struct answer a, expected;
    qn_model *whole = model;
    qn_request_params params = request_of(7, &a);
    force("mtp");
    answer_slowly(&params, NULL, &expected);
    for (int n_threads = 2; n_threads <= 4; n_threads++) {
        assert_ok(qn_model_load(QN_SOURCE_DIR "/" QN_TESTS_DEMO,
                                &CPU_MODEL(.n_threads = n_threads % 4, .skip_weight_scan = true,
                                           .draft = n_threads < 4 ? QN_DRAFT_MTP : QN_DRAFT_OFF),
                                &model));
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX));
        memset(&a, 0, sizeof a);
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        qn_model_free(model);
        model = whole;
        label("%d threads", n_threads);
        assert_same_logprobs(&a, &expected);
        assert_true((a.result.n_drafted > 0) == (n_threads < 4));
    }
}

/* A prompt of several pages, of which later requests reuse the pages and the state. */
TEST(reused_prefixes_answer_the_same)
{
    check_reused_prefixes("mtp");
}

/* ---- Sessions ---- */

/* A session answers, is saved, and goes on from the file. Files are those of a session without drafts, and begin like
 * those of a model that was loaded without the block, but for the header. */
TEST(sessions_are_saved_and_go_on)
{
    static struct answer a[3];
    char paths[3][64];
    qn_model *whole = model, *without;
    size_t n_accepted = 0;
    load_with_draft(QN_DRAFT_OFF, &without);
    for (unsigned i = 0; i < 3; i++)
        snprintf(paths[i], sizeof paths[i], "/tmp/quern-test-mtp-%d-%u", (int)getpid(), i);
    for (unsigned kind = 0; kind < KINDS; kind++) {
        for (int how = 0; how < 3; how++) { /* drafts; none; without the block */
            qn_request_params params = request_of(kind, &a[how]);
            qn_request_result result = QN_REQUEST_RESULT_INIT;
            qn_session_params of_session = SESSION_PARAMS(.n_ctx = N_CTX, .kv = formats[kind % COUNT(formats)]);
            qn_session *session = create_session(how == 2 ? without : whole, &of_session);
            qn_token pending;
            force(how ? NULL : "mtp");
            params.on_end = NULL;
            params.draft = how ? QN_DRAFT_OFF : QN_DRAFT_MTP;
            memset(&a[how], 0, sizeof a[how]);
            assert_ok(qn_generate(session, &params, &result));
            n_accepted += result.n_accepted;
            assert_ok(qn_session_save(session, paths[how]));
            qn_session_free(session);
            assert_ok(qn_session_restore(how == 1 ? without : whole, paths[how], &of_session, &session));
            assert_true(qn_session_pending(session, &pending));
            params.tokens = &pending;
            params.n_tokens = 1;
            params.max_tokens = 40;
            params.min_tokens = 0;
            params.draft = how == 1 ? QN_DRAFT_OFF : QN_DRAFT_MTP;
            force(how == 1 ? NULL : "mtp");
            assert_ok(qn_generate(session, &params, NULL));
            qn_session_free(session);
        }
        for (int how = 1; how < 3; how++) {
            label("kind %u, %d", kind, how);
            assert_same_logprobs(&a[how], &a[0]);
            assert_true(how == 2 ? begins_like(paths[how], paths[0]) : same_files(paths[how], paths[0]));
        }
    }
    assert_true(n_accepted > 20);
    for (unsigned i = 0; i < 3; i++)
        unlink(paths[i]);
    qn_model_free(without);
}

/* A session that is restored drafts what it would have drafted, unless the file has nothing of the block. */
TEST(restored_sessions_draft_the_same)
{
    static struct answer a;
    qn_token text[150];
    char path[64];
    size_t n_other = 0;
    qn_model *without;
    make_tokens(5, text, COUNT(text));
    snprintf(path, sizeof path, "/tmp/quern-test-mtp-%d", (int)getpid());
    load_with_draft(QN_DRAFT_OFF, &without);
    for (size_t f = 0; f < COUNT(formats); f++) {
        size_t drafted[3] = { 0 }, accepted[3] = { 0 };
        for (int how = 0; how < 3; how++) { /* not saved; saved; saved without the block */
            const qn_session_params of_session = SESSION_PARAMS(.n_ctx = N_CTX, .kv = formats[f]);
            qn_session *session = create_session(how == 2 ? without : model, &of_session);
            force(NULL);
            assert_ok(qn_session_eval(session, text, COUNT(text), QN_LOGITS_NONE, NULL));
            if (how) {
                assert_ok(qn_session_save(session, path));
                qn_session_free(session);
                assert_ok(qn_session_restore(model, path, &of_session, &session));
            }
            for (unsigned kind = 0; kind < 2; kind++) {
                qn_request_params params = request_of(kind, &a);
                qn_request_result result = QN_REQUEST_RESULT_INIT;
                force("mtp");
                params.on_end = NULL;
                params.draft = QN_DRAFT_MTP;
                params.min_tokens = params.max_tokens = 60;
                assert_ok(qn_generate(session, &params, &result));
                drafted[how] += result.n_drafted;
                accepted[how] += result.n_accepted;
            }
            qn_session_free(session);
        }
        label("%s: %zu of %zu, %zu of %zu, %zu of %zu accepted", formats[f], accepted[0], drafted[0], accepted[1],
              drafted[1], accepted[2], drafted[2]);
        assert_true(drafted[1] == drafted[0] && accepted[1] == accepted[0] && accepted[0]);
        n_other += drafted[2] != drafted[0] || accepted[2] != accepted[0];
    }
    assert_true(n_other > 0);
    unlink(path);
    qn_model_free(without);
}

/* ---- Constraints and ends ---- */

TEST(grammars_drop_forbidden_tokens)
{
    check_grammars("mtp");
}

TEST(answers_end_anywhere)
{
    check_ends("mtp");
}

TEST(requests_are_set_aside_and_cancelled)
{
    check_set_aside("mtp");
}

/* ---- Choices ---- */

/* Simulated acceptance gives the expected number of tokens a step. */
TEST(acceptance_is_simulated)
{
    check_simulated_acceptance("mtp");
}

/* While an answer is drafted in every step, the times of steps without drafts are measured now and then, for which
 * prompts wait a step. */
TEST(prompts_are_read_beside_drafts)
{
    static struct answer all, a;
    static qn_token text[260];
    bool idle = false;
    make_tokens(5, text, COUNT(text));
    force("mtp");
    qn_scheduler *s =
        create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true, .no_prefix_cache = true));
    qn_request_params params = request_of(0, &all);
    params.max_tokens = MAX_ANSWER;
    submit_request(s, &params);
    for (unsigned i = 0; i < 8; i++) {
        size_t n = 0;
        params = prompt_of(text, COUNT(text), 1, &a);
        memset(&a, 0, sizeof a);
        submit_request(s, &params);
        for (; !a.n_ends && n < 100; n++)
            assert_ok(qn_scheduler_step(s, &idle));
        label("prompt %u: %zu steps", i, n);
        assert_true(n < 40);
    }
    qn_scheduler_wait(s);
    qn_scheduler_free(s);
    assert_true(all.result.n_drafted > 0);
}

/* Offers of one sequence without a look-up: chains whose tokens are never accepted end, and are tried again. */
TEST(chains_that_do_not_pay_end)
{
    check_end_of_what_does_not_pay(QN_DRAFT_MTP);
}

TEST(a_block_of_another_model_is_told_once)
{
    check_warning("mtp", "tokens were accepted: the model's block for multi-token prediction");
}

TEST(the_drafter_that_expects_more_is_used)
{
    qn_acceptances of_all;
    const qn_draft_input input = { .of_all = &of_all };
    qn_drafts d = { .proposes = true, .has_head = true, .head = { .most = 4, .has_begun = true } };
    for (size_t i = 0; i < QN_DRAFT_CLASSES; i++)
        d.head.acceptance.chances[i] = 0.5f;
    assert_int_equal(qn_draft_offer_head(&d, &input, 15), 4);
    assert_int_equal(qn_draft_offer_head(&d, &input, 2), 2);
    d.proposal.n = 2;
    d.chances[0] = d.chances[1] = 0.55f; /* 0.85 tokens; the head expects 0.94 of four */
    assert_int_equal(qn_draft_offer_head(&d, &input, 15), 4);
    assert_int_equal(qn_draft_offer_head(&d, &input, 2), 0);
    d.chances[0] = d.chances[1] = 0.7f;
    assert_int_equal(qn_draft_offer_head(&d, &input, 15), 0);
    d.has_head = false;
    d.proposal.n = 0;
    assert_int_equal(qn_draft_offer_head(&d, &input, 15), 0);
}

/* What is learned of one text is what the next one begins with, also in another scheduler of the model. */
TEST(texts_begin_with_what_others_learned)
{
    static struct answer a;
    float first[2] = { 0 };
    force("mtp");
    model->drafting->acceptances.head.chances[0] = qn_head_chances[0];
    for (unsigned i = 0; i < 2; i++) {
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
        qn_request_params params = request_of(0, &a);
        bool idle;
        params.bias = NULL; /* none of the block's tokens is accepted */
        params.n_bias = 0;
        submit_request(s, &params);
        while (!first[i]) {
            assert_ok(qn_scheduler_step(s, &idle));
            first[i] = s->n_running && s->running[0]->drafts.head.has_begun
                           ? s->running[0]->drafts.head.acceptance.chances[0]
                           : 0;
        }
        qn_scheduler_wait(s);
        qn_scheduler_free(s);
    }
    label("%g, then %g", (double)first[0], (double)first[1]);
    assert_true(first[0] > 0.6f && first[1] < 0.4f);
}

/* A head that rests drafts nothing for requests that leave the choice to the library, and drafts for those that ask.
 * It begins and ends between steps of an answer, which stays the same; so do sessions that go on from it. */
TEST(heads_rest_and_draft_again)
{
    static struct answer a, expected;
    size_t n_drafted[3] = { 0 };
    force(NULL);
    for (unsigned kind = 0; kind < KINDS; kind++) {
        qn_request_params params = request_of(kind, &a);
        const char *kv = formats[kind % COUNT(formats)];
        answer_slowly(&params, kv, &expected);
        for (int how = 0; how < 3; how++) { /* it rests; is asked for; begins and ends */
            bool idle = false;
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .kv = kv, .no_thread = true));
            s->drafting.head = (qn_head_use){ .rests = true, .rest = UINT32_MAX };
            params.draft = how == 1 ? QN_DRAFT_MTP : QN_DRAFT_AUTO;
            params.user = &a;
            memset(&a, 0, sizeof a);
            submit_request(s, &params);
            for (size_t n = 0; !a.n_ends; n++) {
                if (how == 2)
                    s->drafting.head = (qn_head_use){ .rests = n / 7 % 2 == 0, .rest = UINT32_MAX };
                assert_ok(qn_scheduler_step(s, &idle));
                for (uint32_t i = 0; i < s->n_running; i++) {
                    qn_drafts *d = &s->running[i]->drafts;
                    d->looks_up = false;
                    d->always = true;
                    n_drafted[how] += d->is_of_head && s->steps[0].n_drafted;
                }
            }
            qn_scheduler_free(s);
            label("kind %u, %d", kind, how);
            assert_same_logprobs(&a, &expected);
        }
    }
    label("%zu, %zu, %zu drafted", n_drafted[0], n_drafted[1], n_drafted[2]);
    assert_true(!n_drafted[0] && n_drafted[1] > 20 && n_drafted[2] > 20);
    model->drafting->head = (qn_head_use){ 0 };
}

/* By default both draft. */
TEST(kinds_have_their_drafters)
{
    static const qn_draft_kind kinds[] = { QN_DRAFT_AUTO, QN_DRAFT_NGRAM, QN_DRAFT_MTP, QN_DRAFT_OFF };
    static struct answer a;
    bool idle;
    force(NULL);
    for (size_t i = 0; i < COUNT(kinds); i++) {
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
        qn_request_params params = request_of(1, &a);
        params.draft = kinds[i];
        submit_request(s, &params);
        for (int step = 0; step < 8; step++)
            assert_ok(qn_scheduler_step(s, &idle));
        assert_int_equal(s->n_running, 1);
        const qn_drafts *d = &s->running[0]->drafts;
        label("%s", qn_draft_name(kinds[i]));
        assert_true(d->proposes == (kinds[i] != QN_DRAFT_OFF));
        assert_true(!d->proposes || d->has_head == (kinds[i] != QN_DRAFT_NGRAM));
        assert_true((d->drafter != NULL) == (kinds[i] == QN_DRAFT_AUTO || kinds[i] == QN_DRAFT_NGRAM));
        assert_false(d->always);
        qn_scheduler_wait(s);
        qn_scheduler_free(s);
    }
}

TEST(models_without_the_block_are_refused)
{
    qn_model *other;
    qn_scheduler *s;
    force(NULL);
    assert_fails(qn_model_load(QN_SOURCE_DIR "/tests/golden/scheduler.gguf", &CPU_MODEL(.draft = QN_DRAFT_MTP), &other),
                 QN_ERR_UNSUPPORTED, "draft: mtp: there is no block for multi-token prediction");
    assert_fails(qn_model_load(QN_SOURCE_DIR "/tests/golden/qwen3.f16.gguf", &CPU_MODEL(.draft = QN_DRAFT_MTP), &other),
                 QN_ERR_UNSUPPORTED, "draft: mtp: there is no block for multi-token prediction");
    assert_ok(qn_model_load(QN_SOURCE_DIR "/" QN_TESTS_DEMO,
                            &CPU_MODEL(.skip_weight_scan = true, .draft = QN_DRAFT_NGRAM), &other));
    assert_fails(qn_scheduler_create(other, &SCHEDULER_PARAMS(.draft = QN_DRAFT_MTP), &s), QN_ERR_UNSUPPORTED,
                 "draft: mtp: the model was loaded without its block");
    qn_model_free(other);
}

/* ---- The block of another file ---- */

static char told[512];

static void keep_line(void *user, const char *line)
{
    if (user == told && strstr(line, "drafts: mtp:"))
        snprintf(told, sizeof told, "%s", line);
}

/* The block of a file of its own proposes what the same block in the model's file proposes, also for a model with a
 * block, where the log names the file. */
TEST(a_block_of_another_file_proposes_the_same)
{
    static const char *const models[] = { "/tests/golden/scheduler.gguf", "/" QN_TESTS_DEMO };
    static struct answer expected, found;
    qn_model *whole = model, *others[COUNT(models)];
    uint64_t n_accepted = 0;
    force("mtp");
    for (size_t m = 0; m < COUNT(models); m++) {
        char path[512];
        snprintf(path, sizeof path, "%s%s", QN_SOURCE_DIR, models[m]);
        *told = '\0';
        assert_ok(qn_model_load(path,
                                &CPU_MODEL(.n_threads = 1, .draft = m ? QN_DRAFT_AUTO : QN_DRAFT_MTP,
                                           .draft_model = QN_SOURCE_DIR "/" QN_TESTS_MTP_BLOCK, .on_log = keep_line,
                                           .user = told),
                                &others[m]));
        label("'%s'", told);
        assert_int_equal(strstr(told, QN_TESTS_MTP_BLOCK) != NULL, m == 1);
    }
    for (unsigned kind = 0; kind < KINDS; kind += 3)
        for (size_t m = 0; m < 1 + COUNT(models); m++) {
            struct answer *a = m ? &found : &expected;
            qn_request_params params = request_of(kind, a);
            model = m ? others[m - 1] : whole;
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            memset(a, 0, sizeof *a);
            submit_and_wait(s, &params);
            qn_scheduler_free(s);
            model = whole;
            label("kind %u, model %zu", kind, m);
            assert_same_logprobs(a, &expected);
            assert_int_equal(a->result.n_drafted, expected.result.n_drafted);
            assert_int_equal(a->result.n_accepted, expected.result.n_accepted);
            n_accepted += a->result.n_accepted;
        }
    assert_true(n_accepted > 20);
    for (size_t m = 0; m < COUNT(models); m++)
        qn_model_free(others[m]);
}

TEST(a_block_of_another_file_is_for_its_kind)
{
    static const qn_draft_kind kinds[] = { QN_DRAFT_OFF, QN_DRAFT_NGRAM, QN_DRAFT_DFLASH, QN_DRAFT_MODEL };
    qn_model *other;
    qn_scheduler *s;
    force(NULL);
    for (size_t i = 0; i < COUNT(kinds); i++)
        assert_fails(qn_model_load(QN_SOURCE_DIR "/tests/golden/scheduler.gguf",
                                   &CPU_MODEL(.draft = kinds[i], .draft_model = QN_SOURCE_DIR "/" QN_TESTS_MTP_BLOCK),
                                   &other),
                     QN_ERR_INVALID, "a drafter for draft mtp, given with draft ");
    assert_fails(
        qn_model_load(QN_SOURCE_DIR "/tests/golden/scheduler.gguf",
                      &MODEL_PARAMS(.device = "vulkan", .draft_model = QN_SOURCE_DIR "/" QN_TESTS_MTP_BLOCK), &other),
        QN_ERR_UNSUPPORTED, "draft: mtp: blocks for multi-token prediction run on the CPU and on CUDA devices");
    load_with_drafter("tests/golden/scheduler.gguf", QN_TESTS_MTP_BLOCK, 0, 1, &other);
    assert_fails(qn_scheduler_create(other, &SCHEDULER_PARAMS(.draft = QN_DRAFT_DFLASH), &s), QN_ERR_UNSUPPORTED,
                 "draft: dflash: the model was loaded without a drafter");
    qn_model_free(other);
}
