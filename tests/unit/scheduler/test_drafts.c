/* Drafts of a drafter: answers and their log probabilities are those of one token a step, to the bit, in fewer steps:
 * in sessions and in the scheduler, alone and beside others, for all sampling parameters, cache formats, threads and
 * numbers of rows, wherever an answer ends, with grammars and with a budget of reasoning, and when requests are set
 * aside or cancelled. QN_DRAFT is set here: whatever is proposed is drafted. The model has recurrent layers. */
#include "helper_draft_cases.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

/* ---- Equal answers ---- */

TEST(schedulers_answer_the_same)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    static const uint32_t rows[] = { 0, 6, 9, 20 };
    uint64_t n_drafted = 0, n_accepted = 0;
    size_t n_cut = 0;
    force("ngram");
    for (unsigned round = 0; round < ROUNDS * 2; round++) {
        const char *kv = formats[round % COUNT(formats)];
        const size_t ahead = round % 3 == 2 ? 8 : 0;
        qn_request_params params[MAX_REQUESTS];
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            params[i] = request_of(round * MAX_REQUESTS + i, &found[i]);
            answer_slowly(&params[i], kv, &expected[i]);
        }
        let_overlap(model, ahead);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .kv = kv, .max_sequences = 6,
                                                                    .max_rows = rows[round % COUNT(rows)],
                                                                    .no_thread = round % 2, .run_ahead = true));
        uint64_t of_answers = 0;
        for (int again = 0; again < 2; again++) { /* the second ones find the answers of the first */
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                memset(&found[i], 0, sizeof found[i]);
                submit_request(s, &params[i]);
            }
            qn_scheduler_wait(s);
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                label("round %u, request %u, %s, %zu ahead, again %d", round, i, kv, ahead, again);
                assert_same_logprobs(&found[i], &expected[i]);
                assert_true(found[i].result.n_accepted <= found[i].result.n_drafted);
                of_answers += found[i].result.n_accepted;
                n_cut += found[i].result.finish == QN_FINISH_STOP;
            }
        }
        n_drafted += counters_of(s).drafted_tokens;
        n_accepted += counters_of(s).accepted_tokens;
        assert_int_equal(counters_of(s).accepted_tokens, of_answers);
        qn_scheduler_free(s);
        stop_overlap(model);
    }
    label("%d of %d accepted", (int)n_accepted, (int)n_drafted);
    assert_true(n_accepted > 1000 && n_drafted - n_accepted > 1000 && n_cut > 0);
}

/* An answer that was written before takes a step for each draft. */
TEST(answers_of_the_scope_are_drafted)
{
    static struct answer a, first;
    force("ngram");
    for (unsigned kind = 0; kind < KINDS; kind++) {
        qn_request_params params = request_of(kind, &first);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
        params.scope = "one";
        submit_and_wait(s, &params);
        for (int scope = 0; scope < 2; scope++) {
            const uint64_t before = counters_of(s).steps;
            params.scope = scope ? "one" : "two";
            params.user = &a;
            memset(&a, 0, sizeof a);
            submit_and_wait(s, &params);
            label("kind %u, scope %d", kind, scope);
            assert_same_logprobs(&a, &first);
            assert_true(scope || a.result.n_accepted <= first.result.n_accepted + 4);
            if (!scope)
                continue;
            assert_true(3 * (counters_of(s).steps - before) < a.n_tokens);
            assert_true(10 * a.result.n_accepted > 7 * a.n_tokens);
            assert_int_equal(counters_of(s).steps - before + a.result.n_accepted, a.n_tokens);
        }
        qn_scheduler_free(s);
    }
}

/* Whether a token is drafted reveals whether it follows in another answer: where strangers may share a scope, a second
 * request has the drafts of the first and no others. */
TEST(strangers_answers_are_not_drafted)
{
    static struct answer a[2];
    static const char *const scopes[] = { NULL, "", "one" };
    force("ngram");
    for (size_t k = 0; k < COUNT(scopes); k++) {
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
        for (int again = 0; again < 2; again++) {
            qn_request_params params = request_of(1, &a[again]);
            memset(&a[again], 0, sizeof *a);
            params.scope = scopes[k];
            submit_and_wait(s, &params);
        }
        label("scope %zu", k);
        assert_true((a[1].result.n_drafted == a[0].result.n_drafted) == (k < 2));
        qn_scheduler_free(s);
    }
}

TEST(sessions_answer_the_same)
{
    static struct answer fast, slow;
    static const char *const of_sessions[] = { "f16", "aura4", "aura2" };
    size_t n_accepted = 0;
    for (unsigned kind = 0; kind < KINDS * 2; kind++) {
        const qn_request_params request = request_of(kind, &fast);
        qn_session *sessions[2];
        for (int how = 0; how < 2; how++) {
            struct answer *a = how ? &fast : &slow;
            qn_request_params params = request;
            qn_request_result result = QN_REQUEST_RESULT_INIT;
            memset(a, 0, sizeof *a);
            params.user = a;
            params.on_end = NULL;
            params.draft = how ? QN_DRAFT_NGRAM : QN_DRAFT_OFF;
            sessions[how] = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = of_sessions[kind % 3]));
            force(how ? "ngram" : NULL);
            assert_ok(qn_generate(sessions[how], &params, &result));
            n_accepted += result.n_accepted;
            assert_true(how || !result.n_drafted);
            assert_int_equal(qn_session_length(sessions[how]), COUNT(prompt) + result.n_generated - 1);
        }
        label("kind %u", kind);
        assert_same_logprobs(&fast, &slow);
        for (int how = 0; how < 2; how++) { /* and go on the same */
            struct answer *a = how ? &fast : &slow;
            qn_request_params params = QN_REQUEST_PARAMS_INIT;
            qn_token pending;
            memset(a, 0, sizeof *a);
            assert_true(qn_session_pending(sessions[how], &pending));
            params.tokens = &pending;
            params.n_tokens = 1;
            params.max_tokens = 40;
            params.sampling.temperature = 0;
            params.n_logprobs = QN_MAX_LOGPROBS;
            params.draft = QN_DRAFT_OFF;
            params.on_token = answer_token;
            params.user = a;
            assert_ok(qn_generate(sessions[how], &params, NULL));
            qn_session_free(sessions[how]);
        }
        assert_same_logprobs(&fast, &slow);
    }
    assert_true(n_accepted > (QN_TEST_SANITIZED ? 20 : 100));
}

TEST(threads_answer_the_same)
{
    static struct answer a, expected;
    qn_model *one = model;
    force("ngram");
    for (int n_threads = 2; n_threads <= 3; n_threads++) {
        qn_request_params params = request_of(7, &a);
        answer_slowly(&params, NULL, &expected);
        load_model("tests/golden/scheduler.gguf", 0, n_threads, &model);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX));
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        qn_model_free(model);
        model = one;
        assert_same_logprobs(&a, &expected);
        assert_true(a.result.n_drafted > 0);
    }
}

/* ---- Constraints and ends ---- */

TEST(grammars_have_drafts)
{
    static struct answer a[2];
    static const char *const grammars[] = {
        "root ::= (\"the name of \" [a-d]{1,3} \", and \"){1,12}",
        "root ::= [a-c]{40,90}",
    };
    uint64_t n_accepted = 0;
    for (unsigned kind = 0; kind < KINDS * 2; kind++) {
        qn_grammar *grammar = grammar_of(grammars[kind % 2]);
        for (int how = 0; how < 2; how++) {
            qn_request_params params = request_of(kind, &a[how]);
            force(how ? "ngram" : NULL);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            params.grammar = grammar;
            params.ignore_end = false;
            params.min_tokens = 0;
            params.jump_forward = kind % 3 ? QN_JUMP_FORWARD_AUTO : QN_JUMP_FORWARD_OFF;
            params.draft = how ? QN_DRAFT_AUTO : QN_DRAFT_OFF;
            for (int again = 0; again < 2; again++) {
                memset(&a[how], 0, sizeof a[how]);
                submit_and_wait(s, &params);
            }
            n_accepted += a[how].result.n_accepted;
            qn_scheduler_free(s);
        }
        label("kind %u", kind);
        assert_same_logprobs(&a[1], &a[0]);
        qn_grammar_free(grammar);
    }
    assert_true(n_accepted > (QN_TEST_SANITIZED ? 50 : 300));
}

static void allow_some(void *user, const qn_token *answer, size_t n, uint32_t *allowed)
{
    (void)user;
    for (size_t i = 0; i < 40; i++) {
        const size_t token = 100 + (i * 7 + (n ? (size_t)answer[n - 1] : 0)) % 300;
        allowed[token / 32] |= 1u << token % 32;
    }
}

TEST(callers_masks_and_mirostat_have_none)
{
    static struct answer a[2];
    for (int kind = 0; kind < 2; kind++) {
        for (int how = 0; how < 2; how++) {
            qn_request_params params = request_of(7, &a[how]);
            force(how ? "ngram" : NULL);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            params.mask = kind ? NULL : allow_some;
            params.sampling.mirostat = kind ? 2 : 0;
            params.draft = how ? QN_DRAFT_NGRAM : QN_DRAFT_OFF;
            submit_and_wait(s, &params);
            qn_scheduler_free(s);
            assert_int_equal(a[how].result.n_drafted, 0);
        }
        assert_same_logprobs(&a[1], &a[0]);
    }
}

/* Tokens that are drafted and sampled after the budget is spent are dropped: the end of reasoning is inserted. */
TEST(a_budget_ends_reasoning)
{
    static struct answer a[2];
    static const char conversation[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"Tell me a story.\"}], "
                                       "\"add_generation_prompt\": true}";
    static const char template[] = "{% for m in messages %}{{ m.content }}{% endfor %}"
                                   "{% if add_generation_prompt %}<think>\n{% else %}<think>\n\n</think>{% endif %}";
    qn_model *other = model;
    size_t n_accepted = 0;
    assert_ok(qn_model_load(QN_SOURCE_DIR "/tests/golden/scheduler.gguf",
                            &CPU_MODEL(.n_threads = 1, .skip_weight_scan = true, .chat_template = template), &model));
    for (int64_t budget = 1; budget < 30; budget += QN_TEST_SANITIZED ? 9 : 4) {
        for (int how = 0; how < 2; how++) {
            force(how ? "ngram" : NULL);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            for (int limited = 0; limited < 2; limited++) { /* the first answer is the second's draft */
                qn_request_params params = request_of(1, &a[how]);
                params.tokens = NULL;
                params.conversation = conversation;
                params.conversation_length = sizeof conversation - 1;
                params.max_tokens = 60;
                params.reasoning_budget = limited ? budget : -1;
                params.draft = how ? QN_DRAFT_NGRAM : QN_DRAFT_OFF;
                submit_and_wait(s, &params);
            }
            n_accepted += a[how].result.n_accepted;
            qn_scheduler_free(s);
        }
        label("budget %d", (int)budget);
        assert_same_logprobs(&a[1], &a[0]);
    }
    assert_true(n_accepted > 20);
    qn_model_free(model);
    model = other;
}

/* Answers end after each number of tokens, by max_tokens, by the callback, by a stop token, and by a full context. */
TEST(answers_end_anywhere)
{
    static struct answer all, fast, slow;
    qn_request_params params = request_of(1, &all);
    force("ngram");
    answer_slowly(&params, NULL, &all);
    qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
    params.user = &fast;
    submit_and_wait(s, &params); /* later ones have long drafts */
    for (unsigned end = 1; end < 120; end += QN_TEST_SANITIZED ? 9 : 5) {
        const unsigned kind = end % 3;
        params = request_of(1, &fast);
        label("end %u", end);
        params.min_tokens = 0;
        params.max_tokens = kind == 0 ? (int64_t)end : 120;
        params.stop_tokens = &all.tokens[end];
        params.n_stop_tokens = kind == 1;
        answer_slowly(&params, NULL, &slow);
        params.user = &fast;
        fast.cancel_at = kind == 2 ? end : 0;
        submit_and_wait(s, &params);
        if (kind == 2) { /* what follows the callback's end is dropped */
            assert_int_equal(fast.n_tokens, end);
            assert_memory_equal(fast.tokens, all.tokens, end * sizeof *all.tokens);
            assert_int_equal(fast.result.n_generated, end);
            continue;
        }
        assert_same_logprobs(&fast, &slow);
        assert_int_equal(fast.result.finish, slow.result.finish);
        assert_int_equal(fast.result.n_generated, slow.result.n_generated);
    }
    qn_scheduler_free(s);
    for (uint32_t n_ctx = 60; n_ctx < 80; n_ctx++) {
        s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = n_ctx, .no_thread = true));
        params = request_of(1, &fast);
        label("context %u", n_ctx);
        for (int again = 0; again < 2; again++) {
            memset(&fast, 0, sizeof fast);
            submit_and_wait(s, &params);
            assert_int_equal(fast.result.finish, QN_FINISH_CONTEXT);
            assert_int_equal(fast.n_tokens, n_ctx - COUNT(prompt) + 1);
            assert_memory_equal(fast.tokens, all.tokens, fast.n_tokens * sizeof *all.tokens);
        }
        qn_scheduler_free(s);
    }
}

/* A session that a callback ended in the middle of an accepted draft holds the tokens up to there. */
TEST(sessions_end_anywhere)
{
    static struct answer a[2];
    force("ngram");
    for (unsigned end = 1; end < 100; end += QN_TEST_SANITIZED ? 9 : 5) {
        for (int how = 0; how < 2; how++) {
            qn_request_params params = request_of(0, &a[how]);
            qn_token pending;
            params.on_end = NULL;
            params.draft = how ? QN_DRAFT_NGRAM : QN_DRAFT_OFF;
            a[how].cancel_at = end;
            qn_session *session =
                create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = end % 2 ? "aura4" : NULL));
            assert_ok(qn_generate(session, &params, NULL));
            assert_int_equal(qn_session_length(session), COUNT(prompt) + end - 1);
            assert_true(qn_session_pending(session, &pending));
            a[how].cancel_at = 0;
            params.tokens = &pending;
            params.n_tokens = 1;
            params.max_tokens = 30;
            params.min_tokens = 0;
            assert_ok(qn_generate(session, &params, NULL));
            qn_session_free(session);
        }
        label("end %u", end);
        assert_same_logprobs(&a[1], &a[0]);
    }
}

/* ---- Requests ---- */

TEST(requests_are_set_aside)
{
    check_set_aside("ngram");
}

TEST(requests_are_cancelled)
{
    static struct answer a, b, expected;
    force("ngram");
    for (int steps = 0; steps < 40; steps += QN_TEST_SANITIZED ? 7 : 3) {
        qn_request_params params = request_of(0, &a), other = request_of(3, &b);
        uint64_t id;
        bool idle = false;
        label("%d steps", steps);
        answer_slowly(&other, NULL, &expected);
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
        assert_ok(qn_scheduler_submit(s, &params, &id));
        submit_request(s, &other);
        for (int i = 0; i < steps && !idle; i++)
            assert_ok(qn_scheduler_step(s, &idle));
        qn_scheduler_cancel(s, id);
        qn_scheduler_wait(s);
        qn_scheduler_free(s);
        assert_int_equal(a.n_ends, 1);
        assert_int_equal(a.result.n_generated, a.n_tokens);
        assert_same_logprobs(&b, &expected);
    }
}

/* ---- Times ---- */

static atomic_bool is_held;

static void *hold_model(void *held)
{
    qn_model_lock(held);
    atomic_store(&is_held, true);
    nanosleep(&(struct timespec){ .tv_nsec = 600000000 }, NULL);
    qn_model_unlock(held);
    return NULL;
}

/* The wait for another scheduler or session of the model is no time of a step. */
TEST(waits_for_the_model_are_not_measured)
{
    static struct answer a;
    force(NULL);
    qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
    qn_request_params params = request_of(1, &a);
    pthread_t thread;
    bool idle;
    submit_request(s, &params);
    for (int i = 0; i < 4; i++)
        assert_ok(qn_scheduler_step(s, &idle));
    s->drafting.costs = (qn_row_costs){ .first = 0.5 };
    atomic_store(&is_held, false);
    assert_int_equal(pthread_create(&thread, NULL, hold_model, model), 0);
    while (!atomic_load(&is_held))
        sched_yield();
    assert_ok(qn_scheduler_step(s, &idle));
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_int_equal(s->drafting.costs.n_steps, 1);
    for (size_t n = 1; n <= QN_COST_ROWS; n++)
        assert_true(s->drafting.costs.of[n].seconds < 0.3);
    qn_scheduler_wait(s);
    qn_scheduler_free(s);
}

/* ---- Options ---- */

/* Simulated acceptance gives the expected number of tokens a step: 1 + R + R^2 + R^3 for three drafted tokens. */
TEST(acceptance_is_simulated)
{
    check_simulated_acceptance("ngram");
}

static const char low_acceptance[] = "drafted tokens were accepted";

TEST(low_acceptance_is_told_once)
{
    static struct answer a;
    struct warning warning = { .text = low_acceptance };
    qn_model *other = model;
    force("ngram");
    load_model("tests/golden/scheduler.gguf", 0, 1, &model);
    for (int low = 0; low < 2; low++) {
        qn_scheduler *s = create_scheduler(
            model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true, .on_log = count_warning, .user = &warning));
        for (unsigned i = 0; i < 4; i++) {
            qn_request_params params = request_of(1, &a);
            params.max_tokens = MAX_ANSWER;
            params.draft_tokens = 2;
            params.draft_accept = low ? 0.01f : 0.5f;
            submit_and_wait(s, &params);
        }
        qn_scheduler_free(s);
        assert_int_equal(warning.n, low);
    }
    qn_model_free(model);
    model = other;
}

/* Also by the log of a session, after calls of which none has so many drafts. */
TEST(sessions_tell_low_acceptance)
{
    static struct answer a;
    struct warning warning = { .text = low_acceptance };
    qn_model *other = model;
    force("ngram");
    load_model("tests/golden/scheduler.gguf", 0, 1, &model);
    for (unsigned i = 0; i < 8; i++) {
        qn_session *session =
            create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .on_log = count_warning, .user = &warning));
        qn_request_params params = request_of(1, &a);
        memset(&a, 0, sizeof a);
        params.on_end = NULL;
        params.draft_tokens = 2;
        params.draft_accept = 0.01f;
        assert_ok(qn_generate(session, &params, NULL));
        qn_session_free(session);
    }
    assert_int_equal(warning.n, 1);
    qn_model_free(model);
    model = other;
}

TEST(missing_drafters_are_refused)
{
    static struct answer a;
    qn_scheduler *s;
    force(NULL);
    for (qn_draft_kind kind = QN_DRAFT_MTP; kind <= QN_DRAFT_MODEL; kind++) { /* the model has no block for mtp */
        qn_request_params params = request_of(1, &a);
        params.draft = kind;
        assert_fails(qn_scheduler_create(model, &SCHEDULER_PARAMS(.draft = kind), &s), QN_ERR_UNSUPPORTED,
                     qn_draft_name(kind));
        s = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
        assert_fails(qn_scheduler_submit(s, &params, NULL), QN_ERR_UNSUPPORTED, qn_draft_name(kind));
        qn_scheduler_free(s);
    }
    s = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true, .draft = QN_DRAFT_OFF));
    qn_request_params params = request_of(1, &a);
    params.draft = (qn_draft_kind)6;
    assert_fails(qn_scheduler_submit(s, &params, NULL), QN_ERR_INVALID, "draft: 6");
    params = request_of(1, &a);
    params.draft_tokens = 16;
    assert_fails(qn_scheduler_submit(s, &params, NULL), QN_ERR_INVALID, "draft_tokens: 16");
    params = request_of(1, &a);
    params.draft_accept = 1.5f;
    assert_fails(qn_scheduler_submit(s, &params, NULL), QN_ERR_INVALID, "draft_accept: 1.5");
    params = request_of(1, &a);
    force("ngram"); /* read when the scheduler was created */
    submit_and_wait(s, &params);
    assert_int_equal(a.result.n_drafted, 0);
    qn_scheduler_free(s);
    force("mtp"); /* nothing is drafted where the model has no block */
    memset(&a, 0, sizeof a);
    s = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true));
    params = request_of(1, &a);
    submit_and_wait(s, &params);
    assert_int_equal(a.result.n_drafted, 0);
    qn_scheduler_free(s);
    force("fast");
    assert_fails(qn_scheduler_create(model, NULL, &s), QN_ERR_INVALID, "QN_DRAFT: 'fast'");
    qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX));
    params = request_of(1, &a);
    params.on_end = NULL;
    assert_fails(qn_generate(session, &params, NULL), QN_ERR_INVALID, "QN_DRAFT: 'fast'");
    params.draft = QN_DRAFT_OFF; /* then it is not read */
    assert_ok(qn_generate(session, &params, NULL));
    qn_session_free(session);
    s = create_scheduler(model, &SCHEDULER_PARAMS(.no_thread = true, .draft = QN_DRAFT_OFF));
    qn_scheduler_free(s);
    force(NULL);
}
