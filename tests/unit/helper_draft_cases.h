/* Cases of drafts that are the same for several drafters, which QN_DRAFT is set to: `kind`. */
#ifndef QN_TESTS_HELPER_DRAFT_CASES_H
#define QN_TESTS_HELPER_DRAFT_CASES_H

#include "helper_drafts.h"

enum { ROUNDS = QN_TEST_SANITIZED ? 2 : 3 };

static const char *const formats[] = { "f16", "aura4", "f32", "aura3", "aura8" };

/* In all formats, beside others, with prefixes that are used again. */
static inline void check_schedulers(const char *kind)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    static const uint32_t rows[] = { 0, 6, 9, 20 };
    uint64_t n_drafted = 0, n_accepted = 0;
    force(kind);
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

/* A prompt of several pages, of which later requests reuse the pages and the state. */
static inline void check_reused_prefixes(const char *kind)
{
    static struct answer a, expected;
    static qn_token text[260];
    make_tokens(5, text, COUNT(text));
    uint64_t n_reused = 0;
    for (size_t f = 0; f < COUNT(formats); f++) {
        force(kind);
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

/* Grammars that forbid some of what is drafted. */
static inline void check_grammars(const char *kind)
{
    static struct answer a[2];
    uint64_t n_drafted = 0;
    for (unsigned i = 0; i < KINDS; i++) {
        qn_grammar *grammar = grammar_of(i % 2 ? "root ::= [a-z ]{40,90}" : "root ::= [ -~]{60,90}");
        for (int how = 0; how < 2; how++) {
            qn_request_params params = request_of(i, &a[how]);
            force(how ? kind : NULL);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            params.grammar = grammar;
            params.ignore_end = false;
            params.min_tokens = 0;
            params.draft = how ? QN_DRAFT_AUTO : QN_DRAFT_OFF;
            submit_and_wait(s, &params);
            n_drafted += a[how].result.n_drafted;
            qn_scheduler_free(s);
        }
        label("kind %u", i);
        assert_same_logprobs(&a[1], &a[0]);
        qn_grammar_free(grammar);
    }
    label("%d drafted", (int)n_drafted);
    assert_true(n_drafted > 0);
}

/* By the number of tokens, by the end of the context, and by a cancellation. */
static inline void check_ends(const char *kind)
{
    static struct answer all, fast;
    qn_request_params params = request_of(1, &all);
    force(kind);
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

/* Little memory; the last request is cancelled. */
static inline void check_set_aside(const char *kind)
{
    static struct answer found[MAX_REQUESTS], expected[MAX_REQUESTS];
    qn_model *whole = model;
    uint32_t n_set_aside = 0;
    size_t n_drafted = 0;
    qn_request_params params[MAX_REQUESTS];
    force(kind);
    for (unsigned i = 0; i < MAX_REQUESTS; i++) {
        params[i] = request_of(i, &found[i]);
        params[i].max_tokens = 200;
        answer_slowly(&params[i], NULL, &expected[i]);
    }
    for (uint64_t memory = 14 << 20; memory >= 2 << 20 && !n_set_aside; memory -= 1 << 20) {
        load_model(QN_TESTS_DEMO, memory, 1, &model);
        qn_scheduler *s =
            create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .max_sequences = 6, .no_thread = true));
        for (unsigned i = 0; i < MAX_REQUESTS; i++) {
            memset(&found[i], 0, sizeof found[i]);
            found[i].cancel_at = i == 5 ? 33 : 0;
            submit_request(s, &params[i]);
        }
        qn_scheduler_wait(s);
        qn_scheduler_free(s);
        for (unsigned i = 0; i < 5; i++) {
            label("request %u", i);
            assert_same_logprobs(&found[i], &expected[i]);
            n_set_aside += found[i].result.n_set_aside;
            n_drafted += found[i].result.n_drafted;
        }
        assert_int_equal(found[5].n_tokens, 33);
        assert_memory_equal(found[5].tokens, expected[5].tokens, 33 * sizeof *found[5].tokens);
        qn_model_free(model);
        model = whole;
    }
    assert_true(n_set_aside > 0 && n_drafted > 0);
}

/* Simulated acceptance gives the expected number of tokens a step: 1 + R + R^2 + R^3 for three drafted tokens. */
static inline void check_simulated_acceptance(const char *kind)
{
    static struct answer a;
    static const float chances[] = { 0.3f, 0.7f, 1 };
    force(kind);
    for (size_t i = 0; i < COUNT(chances); i++) {
        const float r = chances[i];
        size_t n_generated = 0, n_accepted = 0;
        for (unsigned seed = 0; seed < (QN_TEST_SANITIZED ? 3 : 12); seed++) {
            qn_request_params params = request_of(1, &a);
            qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
            params.sampling.seed = seed;
            params.max_tokens = MAX_ANSWER;
            params.draft_tokens = 3;
            params.draft_accept = r;
            submit_and_wait(s, &params);
            qn_scheduler_free(s);
            n_generated += a.result.n_generated;
            n_accepted += a.result.n_accepted;
        }
        const float found = (float)n_generated / (float)(n_generated - n_accepted),
                    expected = 1 + r + r * r + r * r * r;
        label("%g: %g tokens a step", (double)r, (double)found);
        assert_true(found > expected * 0.88f && found < expected * 1.05f); /* drafts end at multiples of 64 */
    }
}

struct warning {
    const char *text;
    size_t n;
};

static inline void count_warning(void *user, const char *line)
{
    struct warning *w = user;
    w->n += strstr(line, w->text) != NULL;
}

/* Drafts that are never accepted are told once, by a line with `text`. */
static inline void check_warning(const char *kind, const char *text)
{
    static struct answer a;
    force(kind);
    struct warning warning = { .text = text };
    qn_scheduler *s = create_scheduler(
        model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true, .on_log = count_warning, .user = &warning));
    for (unsigned i = 0; i < 4; i++) {
        qn_request_params params = request_of(0, &a);
        params.bias = NULL;
        params.n_bias = 0;
        params.max_tokens = MAX_ANSWER;
        submit_and_wait(s, &params);
    }
    qn_scheduler_free(s);
    assert_int_equal(warning.n, 1);
}

/* Drafts whose tokens are never accepted end, and are tried again. */
static inline void check_end_of_what_does_not_pay(qn_draft_kind kind)
{
    static struct answer a;
    force(NULL);
    qn_scheduler *s = create_scheduler(model, &SCHEDULER_PARAMS(.n_ctx = N_CTX, .no_thread = true));
    qn_request_params params = request_of(0, &a);
    params.bias = NULL; /* one token in thousands is the head's */
    params.n_bias = 0;
    params.draft = kind;
    params.max_tokens = MAX_ANSWER;
    submit_and_wait(s, &params);
    qn_scheduler_free(s);
    label("%d drafted", (int)a.result.n_drafted);
    assert_true(a.result.n_drafted < a.n_tokens);
}

#endif
