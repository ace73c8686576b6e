/* What tests of any drafter compare: answers with their log probabilities, and those of one token a step. */
#ifndef QN_TESTS_HELPER_DRAFTED_H
#define QN_TESTS_HELPER_DRAFTED_H

#include "helper_sanitizers.h"
#include "helper_scheduler.h"

#include <stdlib.h>

static const qn_token prompt[] = { 10, 20, 30, 11, 21, 31, 10, 20 };

/* The answer of a scheduler of its own, one token a step. */
static inline void answer_without_drafts(qn_model *of, uint32_t n_ctx, const qn_request_params *params, const char *kv,
                                         struct answer *a)
{
    qn_request_params slow = *params;
    qn_scheduler *s =
        create_scheduler(of, &SCHEDULER_PARAMS(.n_ctx = n_ctx, .kv = kv, .no_thread = true, .no_prefix_cache = true));
    memset(a, 0, sizeof *a);
    slow.draft = QN_DRAFT_OFF;
    slow.user = a;
    submit_and_wait(s, &slow);
    assert_int_equal(counters_of(s).drafted_tokens, 0);
    qn_scheduler_free(s);
}

static inline void assert_same_logprobs(const struct answer *a, const struct answer *b)
{
    assert_same_answer(a, b);
    for (size_t i = 0; i < a->n_tokens; i++) {
        const qn_logprobs *x = &a->logprobs[i], *y = &b->logprobs[i];
        assert_int_equal(x->n, y->n);
        assert_memory_equal(&x->chosen, &y->chosen, sizeof x->chosen);
        assert_memory_equal(x->tokens, y->tokens, x->n * sizeof *x->tokens);
        assert_memory_equal(x->values, y->values, x->n * sizeof *x->values);
    }
}

/* Sets QN_DRAFT; NULL removes it. */
static inline void force(const char *kind)
{
    assert_int_equal(kind ? setenv("QN_DRAFT", kind, 1) : unsetenv("QN_DRAFT"), 0);
}

#endif
