/* Jump-forward: answers with drafts of forced text are those of one token a step, in fewer steps: in sessions and in
 * the scheduler, alone and beside others, with steps ahead and without, wherever an answer ends, and when requests are
 * set aside. The model has recurrent layers, whose rows can be dropped only where a chunk has not ended. */
#include "helper_sanitizers.h"
#include "helper_demo.h"

#include <math.h>

enum { N_CTX = 256, MAX_REQUESTS = 6, ROUNDS = QN_TEST_SANITIZED ? 2 : 6 };

/* No two of the letters between digits are one token, so that one token alone follows at each of them. */
static const char sparse[] = "root ::= (\"Zq#Xj@~Vk|\" [0-9] \"Qx^Wz`\" [a-c]+ \";\"){1,12}";
/* The model spells the words as it likes: most drafts are rejected in part. */
static const char words[] =
    "root ::= (\"the name of the house is \" [a-z]{1,5} \", and \" (\"there was \" | \"then \")){1,12}";
static const char lone[] = "root ::= \"Zq#Xj@~Vk|\" [0-9] \"Qx^Wz`\"";
static const char *const grammars[] = { sparse, words, lone };

static qn_request_params request_of(qn_grammar *grammar, uint64_t seed, struct answer *a)
{
    static const qn_token prompt[] = { 10, 20, 30 };
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    memset(a, 0, sizeof *a);
    params.tokens = prompt;
    params.n_tokens = 3;
    params.sampling = SAMPLING(.repeat_penalty = 1, .top_p = 1, .seed = seed);
    params.max_tokens = 100;
    params.grammar = grammar;
    params.jump_forward = QN_JUMP_FORWARD_ON;
    params.draft = QN_DRAFT_OFF; /* forced text alone */
    collect_answer(&params, a);
    return params;
}

/* Settings by a number. Filters let masks be the only way to sample; without them a session checks tokens first. */
static void set_sampling(qn_request_params *params, unsigned kind)
{
    qn_sampling *p = &params->sampling;
    p->temperature = kind % 4 ? 0.9f : 0;
    p->top_k = kind % 4 ? 50 : 0;
    p->repeat_last_n = 16;
    p->repeat_penalty = kind % 4 == 2 ? 1.4f : 1;
    p->presence_penalty = kind % 4 == 3 ? 1 : 0;
    p->dry_multiplier = kind % 4 == 3 ? 2 : 0;
    p->dry_base = 1.75f;
    p->dry_penalty_last_n = -1;
    params->min_tokens = kind / 4 % 3 * 20;
    params->ignore_end = kind / 12 % 2;
}

static qn_token digit_token(int digit)
{
    const char text = (char)('0' + digit);
    qn_token *tokens;
    size_t n;
    assert_ok(qn_tokenize(model, &text, 1, false, false, &tokens, &n));
    assert_int_equal(n, 1);
    const qn_token token = tokens[0];
    qn_free_tokens(tokens);
    return token;
}

/* A session's answer, one token a step. */
static void answer_slowly(const qn_request_params *params, struct answer *a)
{
    qn_request_params slow = *params;
    memset(a, 0, sizeof *a);
    slow.jump_forward = QN_JUMP_FORWARD_OFF;
    answer_alone(model, NULL, N_CTX, &slow, a);
}

static qn_scheduler *new_scheduler(uint32_t max_rows)
{
    qn_scheduler *s =
        create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .max_sequences = 6, .max_rows = max_rows,
                                                  .no_thread = true, .run_ahead = true));
    return s;
}

/* ---- Steps ---- */

static uint64_t steps_of(qn_jump_forward how, const char *gbnf, struct answer *a)
{
    qn_grammar *grammar = grammar_of(gbnf);
    qn_scheduler *s = new_scheduler(0);
    qn_request_params params = request_of(grammar, 1, a);
    params.jump_forward = how;
    submit_and_wait(s, &params);
    const uint64_t steps = counters_of(s).steps;
    qn_scheduler_free(s);
    qn_grammar_free(grammar);
    return steps;
}

TEST(forced_text_takes_few_steps)
{
    static struct answer slow, fast, automatic;
    for (size_t i = 0; i < COUNT(grammars); i++) {
        label("%s", grammars[i]);
        const uint64_t of_slow = steps_of(QN_JUMP_FORWARD_OFF, grammars[i], &slow);
        const uint64_t of_fast = steps_of(QN_JUMP_FORWARD_ON, grammars[i], &fast);
        assert_int_equal(steps_of(QN_JUMP_FORWARD_AUTO, grammars[i], &automatic), of_fast);
        assert_same_answer(&fast, &slow);
        assert_same_answer(&automatic, &slow);
        assert_int_equal(slow.result.n_jumped, 0);
        assert_int_equal(of_slow, slow.n_tokens);
        assert_int_equal(of_fast + fast.result.n_jumped, fast.n_tokens);
        assert_true(grammars[i] == words || 2 * of_fast < of_slow);
    }
}

TEST(sessions_take_few_steps)
{
    static struct answer a;
    qn_grammar *grammar = grammar_of(sparse);
    const qn_request_params request = request_of(grammar, 1, &a);
    size_t n_generated = 0;
    for (int how = QN_JUMP_FORWARD_AUTO; how <= QN_JUMP_FORWARD_OFF; how++) {
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        qn_request_result result = QN_REQUEST_RESULT_INIT;
        params.sampling = request.sampling;
        params.max_tokens = 100;
        params.grammar = grammar;
        params.jump_forward = (qn_jump_forward)how;
        params.draft = request.draft;
        qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX));
        assert_ok(generate_from(session, request.tokens, 3, &params, &result));
        assert_true(how == QN_JUMP_FORWARD_OFF ? !result.n_jumped : 2 * result.n_jumped > result.n_generated);
        assert_int_equal(qn_session_length(session), 3 + result.n_generated - 1);
        n_generated = n_generated ? n_generated : result.n_generated;
        assert_int_equal(result.n_generated, n_generated);
        qn_session_free(session);
    }
    qn_grammar_free(grammar);
}

/* ---- Equal answers ---- */

TEST(sessions_answer_the_same)
{
    static struct answer fast, slow;
    static const char *const formats[] = { "f16", "aura4" };
    for (size_t i = 0; i < COUNT(grammars); i++) {
        qn_grammar *grammar = grammar_of(grammars[i]);
        for (unsigned kind = 0; kind < 24; kind++) {
            qn_request_params params = request_of(grammar, kind, &fast);
            const char *kv = formats[kind % 2];
            label("grammar %zu, kind %u", i, kind);
            set_sampling(&params, kind);
            answer_alone(model, kv, N_CTX, &params, &fast);
            memset(&slow, 0, sizeof slow);
            params.jump_forward = QN_JUMP_FORWARD_OFF;
            answer_alone(model, kv, N_CTX, &params, &slow);
            assert_same_answer(&fast, &slow);
        }
        qn_grammar_free(grammar);
    }
}

/* Requests of all kinds at once, some of which have no grammar; few rows leave drafts out. */
TEST(schedulers_answer_the_same)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    static const uint32_t rows[] = { 0, 6, 9 };
    for (size_t ahead = 0; ahead <= 8; ahead += 8) {
        size_t n_jumped = 0;
        uint64_t n_ahead = 0;
        for (unsigned round = 0; round < ROUNDS * 3; round++) {
            qn_request_params params[MAX_REQUESTS];
            qn_grammar *used[MAX_REQUESTS];
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                used[i] = grammar_of(grammars[(i + round) % 3]);
                params[i] = request_of(i % 4 == 3 ? NULL : used[i], round, &found[i]);
                set_sampling(&params[i], round * MAX_REQUESTS + i);
                params[i].max_tokens = 40 + 10 * i;
                params[i].min_tokens = params[i].min_tokens > 30 ? 30 : params[i].min_tokens;
                answer_slowly(&params[i], &expected[i]);
            }
            let_overlap(model, ahead);
            qn_scheduler *s = new_scheduler(rows[round % 3]);
            for (unsigned i = 0; i < MAX_REQUESTS; i++)
                submit_request(s, &params[i]);
            qn_scheduler_wait(s);
            n_ahead += counters_of(s).ahead_steps;
            qn_scheduler_free(s);
            stop_overlap(model);
            for (unsigned i = 0; i < MAX_REQUESTS; i++) {
                label("round %u, request %u, %zu ahead", round, i, ahead);
                assert_same_answer(&found[i], &expected[i]);
                n_jumped += found[i].result.n_jumped;
                qn_grammar_free(used[i]);
            }
        }
        assert_true(n_jumped > 100);
        assert_true(n_ahead > 0 || !ahead);
    }
}

/* Without filters tokens are checked first in a session that drafts none, so that random numbers give others; how many
 * rows a draft has changes nothing. */
TEST(draws_do_not_depend_on_drafts)
{
    static struct answer alone, few, many;
    for (size_t i = 0; i < COUNT(grammars); i++) {
        qn_grammar *grammar = grammar_of(grammars[i]);
        for (uint64_t seed = 0; seed < 8; seed++) {
            struct answer *const to[] = { &few, &many };
            qn_request_params params = request_of(grammar, seed, &alone);
            params.sampling.temperature = 1;
            label("grammar %zu, seed %d", i, (int)seed);
            answer_alone(model, NULL, N_CTX, &params, &alone);
            for (int k = 0; k < 2; k++) {
                qn_scheduler *s = new_scheduler(k ? 0 : 6);
                memset(to[k], 0, sizeof *to[k]);
                params.user = to[k];
                submit_and_wait(s, &params);
                qn_scheduler_free(s);
                assert_same_answer(to[k], &alone);
            }
        }
        qn_grammar_free(grammar);
    }
}

/* ---- Ends ---- */

/* Answers end after each number of tokens, by max_tokens, by the callback, and by a full context. */
TEST(answers_end_anywhere)
{
    static struct answer fast, slow, beside;
    qn_grammar *grammar = grammar_of(sparse);
    for (unsigned end = 1; end < (QN_TEST_SANITIZED ? 24 : 72); end++) {
        qn_request_params params = request_of(grammar, 5, &fast);
        const unsigned kind = end % 3;
        label("end %u", end);
        params.max_tokens = kind == 0 ? (int64_t)end : -1;
        fast.cancel_at = kind == 1 ? end : 0;
        const uint32_t n_ctx = kind == 2 ? 3 + end : N_CTX;
        answer_alone(model, NULL, n_ctx, &params, &fast);
        memset(&slow, 0, sizeof slow);
        slow.cancel_at = fast.cancel_at;
        params.jump_forward = QN_JUMP_FORWARD_OFF;
        params.user = &slow;
        answer_alone(model, NULL, n_ctx, &params, &slow);
        assert_same_answer(&fast, &slow);
        params.jump_forward = QN_JUMP_FORWARD_ON;
        params.user = &beside;
        memset(&beside, 0, sizeof beside);
        beside.cancel_at = fast.cancel_at;
        qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = n_ctx, .no_thread = true));
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        assert_same_answer(&beside, &slow);
        assert_int_equal(beside.result.n_generated, slow.n_tokens);
    }
    qn_grammar_free(grammar);
}

/* The session holds what it would without drafts, and goes on alike. */
TEST(sessions_go_on)
{
    static struct answer a[2], more[2];
    qn_grammar *grammar = grammar_of(sparse);
    for (unsigned end = 1; end < 70; end += QN_TEST_SANITIZED ? 7 : 1) {
        qn_request_params request = request_of(grammar, 5, &a[0]);
        label("end %u", end);
        for (int how = 0; how < 2; how++) {
            qn_request_params params = QN_REQUEST_PARAMS_INIT;
            params.sampling = request.sampling;
            params.grammar = grammar;
            params.jump_forward = how ? QN_JUMP_FORWARD_ON : QN_JUMP_FORWARD_OFF;
            params.on_token = answer_token;
            params.user = &a[how];
            memset(&a[how], 0, sizeof a[how]);
            memset(&more[how], 0, sizeof more[how]);
            a[how].cancel_at = end;
            qn_session *session =
                create_session(model, &SESSION_PARAMS(.n_ctx = N_CTX, .kv = end % 2 ? "aura4" : NULL));
            assert_ok(generate_from(session, request.tokens, 3, &params, NULL));
            qn_token pending;
            assert_true(qn_session_pending(session, &pending));
            assert_int_equal(qn_session_length(session), 3 + a[how].n_tokens - 1);
            assert_int_equal(pending, a[how].tokens[a[how].n_tokens - 1]);
            params.grammar = NULL;
            params.max_tokens = 20;
            params.user = &more[how];
            assert_ok(generate_from(session, &pending, 1, &params, NULL));
            qn_session_free(session);
        }
        assert_same_answer(&a[1], &a[0]);
        assert_same_answer(&more[1], &more[0]);
    }
    qn_grammar_free(grammar);
}

TEST(stops_are_found_in_forced_text)
{
    static struct answer fast, slow, alone;
    static const char *const stops[] = { "j@~", "|", "Zq#Xj@~Vk", "^", "Wz`", "x" };
    qn_grammar *grammar = grammar_of(sparse);
    for (size_t i = 0; i < COUNT(stops); i++)
        for (int64_t least = 0; least < 30; least += 13) {
            qn_request_params params = request_of(grammar, 5, &fast);
            label("%s, %d tokens", stops[i], (int)least);
            params.stop = &stops[i];
            params.n_stop = 1;
            params.min_tokens = least;
            params.ignore_end = true;
            answer_slowly(&params, &slow);
            memset(&alone, 0, sizeof alone);
            answer_alone(model, NULL, N_CTX, &params, &alone);
            assert_same_answer(&alone, &slow);
            qn_scheduler *s = new_scheduler(0);
            submit_and_wait(s, &params);
            qn_scheduler_free(s);
            assert_int_equal(fast.n_tokens, slow.n_tokens);
            assert_same_answer(&fast, &slow);
            assert_true(fast.result.is_stop_string);
            assert_true(fast.n_tokens > (size_t)least);
        }
    qn_grammar_free(grammar);
}

/* A stop token inside of forced text ends the answer; what was accepted behind it is dropped. */
TEST(stop_tokens_are_found_in_forced_text)
{
    static struct answer all, fast, slow;
    qn_grammar *grammar = grammar_of(sparse);
    qn_request_params params = request_of(grammar, 5, &all);
    answer_slowly(&params, &all);
    for (size_t at = 0; at < 24; at++) {
        params = request_of(grammar, 5, &fast);
        label("token %zu", at);
        params.stop_tokens = &all.tokens[at];
        params.n_stop_tokens = 1;
        answer_slowly(&params, &slow);
        qn_scheduler *s = new_scheduler(0);
        for (int again = 0; again < 2; again++) { /* the second one begins with what is kept of the first */
            memset(&fast, 0, sizeof fast);
            submit_and_wait(s, &params);
            assert_same_answer(&fast, &slow);
            assert_int_equal(fast.result.finish, QN_FINISH_STOP);
        }
        qn_scheduler_free(s);
    }
    qn_grammar_free(grammar);
}

/* Nine of ten digits end the answer. min_tokens holds them back up to each token of a draft. */
TEST(the_first_tokens_end_nothing)
{
    static struct answer fast, slow, alone;
    qn_grammar *grammar = grammar_of(sparse);
    qn_token stops[9];
    bool has_ended_early = false, has_ended_late = false;
    for (int i = 0; i < 9; i++)
        stops[i] = digit_token(i);
    for (unsigned i = 0; i < (QN_TEST_SANITIZED ? 30 : 90); i++) {
        qn_request_params params = request_of(grammar, i, &fast);
        label("%u", i);
        params.min_tokens = i % 30;
        params.sampling.temperature = i % 2;
        params.sampling.top_k = 40;
        params.stop_tokens = stops;
        params.n_stop_tokens = 9;
        answer_slowly(&params, &slow);
        memset(&alone, 0, sizeof alone);
        answer_alone(model, NULL, N_CTX, &params, &alone);
        assert_same_answer(&alone, &slow);
        qn_scheduler *s = new_scheduler(0);
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        assert_same_answer(&fast, &slow);
        has_ended_early = has_ended_early || fast.n_tokens < 15;
        has_ended_late = has_ended_late || fast.n_tokens > 20;
    }
    assert_true(has_ended_early && has_ended_late);
    qn_grammar_free(grammar);
}

/* Nothing may follow the forced text: biases exclude what its grammar allows there. The tokens before come all the
 * same. */
TEST(errors_come_after_forced_text)
{
    static struct answer a[2];
    qn_grammar *grammar = grammar_of(sparse);
    qn_logit_bias bias[10];
    for (int i = 0; i < 10; i++)
        bias[i] = (qn_logit_bias){ digit_token(i), -INFINITY };
    for (int how = 0; how < 2; how++) {
        qn_request_params params = request_of(grammar, 5, &a[how]);
        qn_scheduler *s = new_scheduler(0);
        params.jump_forward = how ? QN_JUMP_FORWARD_ON : QN_JUMP_FORWARD_OFF;
        params.bias = bias;
        params.n_bias = 10;
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        assert_int_equal(a[how].result.finish, QN_FINISH_ERROR);
    }
    assert_true(a[0].n_tokens > 5);
    assert_same_answer(&a[1], &a[0]);
    assert_string_equal(a[1].error, a[0].error);
    qn_grammar_free(grammar);
}

/* ---- Requests ---- */

/* Each drafted token has its own log probabilities. */
TEST(log_probabilities_are_the_same)
{
    static struct answer a[2];
    qn_grammar *grammar = grammar_of(sparse);
    for (int after = 0; after < 2; after++) {
        for (int how = 0; how < 2; how++) {
            qn_scheduler *s = new_scheduler(0);
            qn_request_params params = request_of(grammar, 1, &a[how]);
            params.jump_forward = how ? QN_JUMP_FORWARD_ON : QN_JUMP_FORWARD_OFF;
            params.n_logprobs = 3;
            params.logprobs_after = after;
            submit_and_wait(s, &params);
            qn_scheduler_free(s);
        }
        assert_true(a[1].result.n_jumped > 10);
        assert_same_answer(&a[1], &a[0]);
        for (size_t i = 0; i < a[0].n_tokens; i++)
            assert_memory_equal(&a[1].logprobs[i], &a[0].logprobs[i], sizeof a->logprobs[i]);
    }
    qn_grammar_free(grammar);
}

/* Memory for fewer sequences than run: some are set aside, and evaluated again. */
TEST(requests_are_set_aside)
{
    enum { REQUESTS = 6 };
    static struct answer found[REQUESTS], expected[REQUESTS];
    qn_model *whole = model;
    qn_request_params params[REQUESTS];
    uint32_t n_set_aside = 0;
    size_t n_jumped = 0;
    for (uint64_t memory = 14 << 20; memory >= 2 << 20 && !n_set_aside; memory -= 1 << 20) {
        qn_grammar *grammar = grammar_of(sparse);
        for (uint64_t i = 0; i < REQUESTS; i++) {
            params[i] = request_of(grammar, i, &found[i]);
            params[i].max_tokens = 150;
            params[i].ignore_end = true;
            params[i].sampling.temperature = 0.8f;
            params[i].sampling.top_k = 40;
            answer_slowly(&params[i], &expected[i]);
        }
        load_model("tests/golden/scheduler.gguf", memory, 1, &model);
        qn_scheduler *s = new_scheduler(0);
        for (int i = 0; i < REQUESTS; i++)
            submit_request(s, &params[i]);
        qn_scheduler_wait(s);
        qn_scheduler_free(s);
        for (int i = 0; i < REQUESTS; i++) {
            label("request %d", i);
            assert_same_answer(&found[i], &expected[i]);
            n_set_aside += found[i].result.n_set_aside;
            n_jumped += found[i].result.n_jumped;
        }
        qn_model_free(model);
        model = whole;
        qn_grammar_free(grammar);
    }
    assert_true(n_set_aside > 0);
    assert_true(n_jumped > 0);
}

/* Cancelled and late at any step, also with a draft in flight. */
TEST(requests_are_cancelled)
{
    static struct answer a, b, expected;
    qn_grammar *grammar = grammar_of(sparse);
    for (size_t ahead = 0; ahead <= 8; ahead += 8)
        for (int steps = 0; steps < 24; steps++) {
            qn_request_params params = request_of(grammar, 1, &a), other = request_of(grammar, 2, &b);
            uint64_t id;
            bool idle = false;
            label("%d steps, %zu ahead", steps, ahead);
            answer_slowly(&other, &expected);
            let_overlap(model, ahead);
            qn_scheduler *s = new_scheduler(0);
            assert_ok(qn_scheduler_submit(s, &params, &id));
            submit_request(s, &other);
            for (int i = 0; i < steps && !idle; i++)
                assert_ok(qn_scheduler_step(s, &idle));
            qn_scheduler_cancel(s, id);
            qn_scheduler_wait(s);
            qn_scheduler_free(s);
            stop_overlap(model);
            assert_int_equal(a.n_ends, 1);
            assert_int_equal(a.result.n_generated, a.n_tokens);
            assert_same_answer(&b, &expected);
        }
    qn_grammar_free(grammar);
}

/* ---- Rest ---- */

/* After drafts of which nothing was accepted there are none for a while. */
TEST(rejected_drafts_rest)
{
    enum { VOCAB = 4096 };
    static uint32_t masks[QN_DRAFT_TOKENS * VOCAB / 32];
    static const qn_sampling greedy = { .size = sizeof(qn_sampling), .repeat_penalty = 1, .top_p = 1 };
    static const qn_grammar_trigger at_once = { 0 };
    qn_grammar *grammar = grammar_of(sparse);
    qn_constraint constraint;
    qn_token tokens[3 + QN_DRAFT_TOKENS] = { 10, 20, 30 };
    size_t n_rests = 0;
    assert_ok(qn_constraint_create(model, grammar, &at_once, false, tokens, 3, &greedy, &constraint));
    const qn_draft_options options = {
        .device = model->device, .sampling = &greedy, .jump_forward = QN_JUMP_FORWARD_AUTO, .kind = QN_DRAFT_OFF
    };
    qn_drafts drafter = qn_drafts_create(&options, &constraint);
    const qn_draft_input input = {
        .constraint = &constraint, .tokenizer = model->tokenizer, .tokens = tokens, .n = 3, .n_vocab = VOCAB
    };
    assert_true(qn_draft_expects(&drafter, &input));
    size_t n = qn_draft_find(&drafter, &input, 1, QN_DRAFT_TOKENS, masks), shorter;
    assert_true(n > 3);
    assert_int_equal(qn_draft_find(&drafter, &input, 2, QN_DRAFT_TOKENS, masks), 0); /* beside others it was not asked
                                                                                        for */
    drafter.is_lone = false;
    assert_int_equal(qn_draft_find(&drafter, &input, 2, QN_DRAFT_TOKENS, masks), n);
    assert_int_equal(qn_draft_find(&drafter, &input, 1, 2, masks), 2);
    for (; (shorter = qn_draft_find(&drafter, &input, 1, QN_DRAFT_TOKENS, masks)) > 0; n = shorter) {
        assert_true(shorter <= n);
        qn_draft_count(&drafter, shorter, 0);
    }
    assert_false(qn_draft_expects(&drafter, &input));
    while (!qn_draft_find(&drafter, &input, 1, QN_DRAFT_TOKENS, masks))
        n_rests++;
    assert_true(n_rests > 5 && n_rests < 200);
    for (int i = 0; i < 20; i++)
        qn_draft_count(&drafter, 1, 1);
    assert_true(qn_draft_find(&drafter, &input, 1, QN_DRAFT_TOKENS, masks) > 3);
    qn_constraint_free(&constraint);
    qn_grammar_free(grammar);
}
