/* Answers under grammars that let nothing follow at some point: a session's and a scheduler's end there with an error
 * that has the place, whether tokens are checked first or masked. */
#include "helper_scheduler.h"

#include <jansson.h>

enum { NESTED = 300, PROMPT = 4 };

static qn_model *model;
static qn_grammar *grammar;

/* Arrays in arrays, each with one: 256 may be open, and then nothing follows. */
static int set_up(void)
{
    json_t *definitions = json_pack("{s:{s:i}}", "d300", "const", 1),
           *schema = json_pack("{s:s,s:o}", "$ref", "#/$defs/d0", "$defs", definitions);
    for (int i = 0; i < NESTED; i++) {
        char name[16], next[32];
        snprintf(name, sizeof name, "d%d", i);
        snprintf(next, sizeof next, "#/$defs/d%d", i + 1);
        json_object_set_new(definitions, name,
                            json_pack("{s:s,s:{s:s},s:i}", "type", "array", "items", "$ref", next, "minItems", 1));
    }
    char *text = json_dumps(schema, JSON_COMPACT);
    assert_non_null(text);
    load_model("tests/golden/scheduler.gguf", 0, 1, &model);
    assert_ok(qn_grammar_create(model, QN_GRAMMAR_SCHEMA, text, strlen(text), &grammar));
    free(text);
    json_decref(schema);
    return 0;
}

static int tear_down(void)
{
    qn_grammar_free(grammar);
    qn_model_free(model);
    return 0;
}

static const char *const error = "no token of the vocabulary may follow at byte 255 of the answer, in "
                                 "'schema: #/$defs/d255': at most 256 rules may be open";
static const qn_token prompt[PROMPT] = { 1, 2, 3, 4 };

/* Tokens are checked first, or masked alone. */
static const qn_sampling samplings[] = {
    { .size = sizeof(qn_sampling), .temperature = 0, .top_p = 1, .repeat_penalty = 1 },
    { .size = sizeof(qn_sampling), .temperature = 1, .top_p = 1, .repeat_penalty = 1 },
    { .size = sizeof(qn_sampling), .temperature = 1, .top_p = 1, .repeat_penalty = 1, .top_k = 5 },
};
enum { N_SAMPLINGS = COUNT(samplings) };

TEST(sessions_end)
{
    for (size_t i = 0; i < N_SAMPLINGS; i++) {
        static struct answer a;
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        label("sampling %zu", i);
        a = (struct answer){ .n_ends = 0 };
        params.sampling = samplings[i];
        params.grammar = grammar;
        params.max_tokens = MAX_ANSWER + 50;
        params.on_text = answer_text;
        params.user = &a;
        qn_session *session = create_session(model, &SESSION_PARAMS(.n_ctx = 512));
        assert_fails(generate_from(session, prompt, PROMPT, &params, NULL), QN_ERR_UNSUPPORTED, error);
        qn_session_free(session);
    }
}

TEST(requests_end)
{
    for (size_t i = 0; i < N_SAMPLINGS; i++) {
        static struct answer a;
        qn_request_params params = QN_REQUEST_PARAMS_INIT;
        label("sampling %zu", i);
        a = (struct answer){ .n_ends = 0 };
        collect_answer(&params, &a);
        params.tokens = prompt;
        params.n_tokens = PROMPT;
        params.sampling = samplings[i];
        params.grammar = grammar;
        params.max_tokens = MAX_ANSWER + 50;
        qn_scheduler *s = create_scheduler(model, NULL);
        submit_and_wait(s, &params);
        qn_scheduler_free(s);
        assert_int_equal(a.n_ends, 1);
        assert_int_equal(a.result.finish, QN_FINISH_ERROR);
        assert_int_equal(a.result.status, QN_ERR_UNSUPPORTED);
        if (!strstr(a.error, error))
            fail_msg("'%s' is not in '%s'", error, a.error);
    }
}

TEST_GROUP(set_up, tear_down)
