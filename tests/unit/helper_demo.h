/* The demo model, or the one that QN_TESTS_DEMO names, loaded around the tests of a program. */
#ifndef QN_TESTS_HELPER_DEMO_H
#define QN_TESTS_HELPER_DEMO_H

#include "helper_scheduler.h"

#include "quern/grammar.h"

static qn_model *model;
static uint32_t n_vocab;

#ifndef QN_TESTS_DEMO
#define QN_TESTS_DEMO "tests/golden/scheduler.gguf"
#endif

#ifndef QN_TESTS_OWN_DEVICE /* the program's tests load models themselves */

static int load_demo(void)
{
#ifdef QN_TESTS_DEMO_DRAFTER
    load_with_drafter(QN_TESTS_DEMO, QN_TESTS_DEMO_DRAFTER, 0, 1, &model);
#else
    load_model(QN_TESTS_DEMO, 0, 1, &model);
#endif
    n_vocab = qn_model_get_info(model)->n_vocab;
    return 0;
}

static int free_demo(void)
{
    qn_model_free(model);
    return 0;
}

TEST_GROUP(load_demo, free_demo)

#endif

static inline void make_tokens(uint64_t seed, qn_token *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (qn_token)(qn_splitmix(&seed) % n_vocab);
}

static inline qn_grammar *grammar_of(const char *gbnf)
{
    qn_grammar *grammar;
    assert_ok(qn_grammar_create(model, QN_GRAMMAR_GBNF, gbnf, strlen(gbnf), &grammar));
    return grammar;
}

#endif
