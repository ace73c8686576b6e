/* Bodies of chats and completions: each field reaches the requests, each wrong value and each limit is refused with its
 * name. */
#include "helper_protocol.h"

#include "protocol/openai.h"
#include "grammar/grammar.h"

#include <malloc.h>
#include <math.h>

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define LLAMA "/completion"
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"Hm?\"}]"
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
#define PROMPT "\"prompt\":\"ab\""

static const char *const paths[] = { CHAT, TEXT, LLAMA };

/* ---- Values ---- */

/* A body with these fields, for chats or for completions. */
static qn_exchange *with(const char *path, const char *fields)
{
    char body[2000];
    snprintf(body, sizeof body, "{%s%s%s}", !strcmp(path, CHAT) ? ASK : PROMPT, *fields ? "," : "", fields);
    return must_take(path, body);
}

TEST(defaults_are_the_models)
{
    for (size_t i = 0; i < 3; i++) {
        label("%s", paths[i]);
        qn_exchange *x =
            with(paths[i], "\"temperature\":null,\"unknown\":[{}],\"user\":5,\"cache_prompt\":true,\"id_slot\":0");
        const qn_request_params *p = x->requests;
        const qn_sampling *s = &p->sampling;
        assert_int_equal(x->n_requests, 1);
        assert_false(x->is_stream);
        assert_true(x->has_events == !i);
        assert_true(s->temperature == 0.25f && s->top_k == 7 && s->top_p == 0.5f && s->min_p == 0.125f);
        assert_true(s->repeat_penalty == 1.5f && s->repeat_last_n == 9);
        assert_true(s->frequency_penalty == 0.75f && s->presence_penalty == -0.5f);
        assert_int_equal(s->seed, 11);
        assert_int_equal(p->max_tokens, i == 1 ? 16 : -1);
        assert_int_equal(p->n_logprobs, -1);
        assert_true(!p->min_tokens && !p->n_stop_tokens);
        assert_true(!p->ignore_end && !p->n_bias && !p->n_stop && !p->grammar && p->reasoning_budget < 0);
        assert_null(x->model);
        qn_exchange_free(x);
    }
}

TEST(values_reach_the_request)
{
    for (size_t i = 0; i < 3; i++) {
        label("%s", paths[i]);
        qn_exchange *x = with(
            paths[i], "\"temperature\":1.5,\"top_k\":3,\"top_p\":0.75,\"min_p\":0.25,\"repetition_penalty\":1.25,"
                      "\"repeat_last_n\":5,\"frequency_penalty\":-2,\"presence_penalty\":2,\"seed\":-7,"
                      "\"max_tokens\":9,\"ignore_eos\":true,\"stop\":[\"x\",\"yz\"],\"stream\":true,"
                      "\"logit_bias\":{\"5\":-100,\"6\":1.5},\"model\":\"other\",\"min_tokens\":4,"
                      "\"stop_token_ids\":[7,8.0],\"samplers\":[\"top_k\",\"temp\"],\"typical_p\":0.5,"
                      "\"top_n_sigma\":1.5,\"xtc_probability\":0.25,\"xtc_threshold\":0.125,\"dry_multiplier\":0.5,"
                      "\"dry_base\":2,\"dry_allowed_length\":4,\"dry_penalty_last_n\":50,\"dry_sequence_breakers\":["
                      "\"\\n\",\"e\"]");
        const qn_request_params *p = x->requests;
        const qn_sampling *s = &p->sampling;
        assert_true(s->temperature == 1.5f && s->top_k == 3 && s->top_p == 0.75f && s->min_p == 0.25f);
        assert_true(s->repeat_penalty == 1.25f && s->repeat_last_n == 5);
        assert_true(s->frequency_penalty == -2 && s->presence_penalty == 2);
        assert_int_equal(s->seed, (uint64_t)-7);
        assert_int_equal(p->max_tokens, 9);
        assert_true(s->typical_p == 0.5f && s->top_n_sigma == 1.5f && s->xtc_probability == 0.25f &&
                    s->xtc_threshold == 0.125f);
        assert_true(s->dry_multiplier == 0.5f && s->dry_base == 2 && s->dry_allowed_length == 4 &&
                    s->dry_penalty_last_n == 50);
        assert_true(s->n_dry_breakers > 4 && s->dry_breakers[s->n_dry_breakers - 1] == -1);
        assert_int_equal(p->min_tokens, 4);
        assert_true(p->n_stop_tokens == 2 && p->stop_tokens[0] == 7 && p->stop_tokens[1] == 8);
        assert_true(p->ignore_end && x->is_stream);
        assert_int_equal(p->n_stop, 2);
        assert_string_equal(p->stop[1], "yz");
        assert_int_equal(p->n_bias, 2);
        assert_true(p->bias[0].token == 5 && p->bias[0].value == -100 && p->bias[1].token == 6 &&
                    p->bias[1].value == 1.5f);
        assert_string_equal(x->model, "other");
        qn_exchange_free(x);
    }
}

TEST(other_names_and_ends_of_ranges)
{
    qn_exchange *x =
        with(CHAT, "\"max_completion_tokens\":4.0,\"top_p\":0,\"top_k\":-1,\"repeat_penalty\":2,\"stop\":\"end\","
                   "\"logprobs\":true,\"top_logprobs\":20,\"thinking_budget_tokens\":30,\"n\":2");
    const qn_request_params *p = x->requests;
    assert_true(p->sampling.top_p > 0 && p->sampling.top_p < 1e-6f && p->sampling.top_k == 0 &&
                p->sampling.repeat_penalty == 2);
    assert_int_equal(p->max_tokens, 4);
    assert_int_equal(p->n_logprobs, 20);
    assert_int_equal(p->reasoning_budget, 30);
    assert_int_equal(p->n_stop, 1);
    assert_int_equal(x->n_requests, 2);
    assert_int_equal(x->requests[0].sampling.seed, 11);
    assert_int_not_equal(x->requests[1].sampling.seed, 11);
    qn_exchange_free(x);

    static const struct {
        const char *text;
        uint64_t seed;
    } seeds[] = { { "9223372036854775807", INT64_MAX },
                  { "9223372036854775808", UINT64_C(1) << 63 },
                  { "18446744073709549568", UINT64_MAX - 2047 },
                  { "18446744073709551615", UINT64_MAX },
                  { "-9223372036854775808", UINT64_C(1) << 63 } };
    for (size_t i = 0; i < COUNT(seeds); i++) {
        char field[60];
        snprintf(field, sizeof field, "\"seed\":%s", seeds[i].text);
        x = with(CHAT, field);
        assert_true(x->requests->sampling.seed == seeds[i].seed);
        qn_exchange_free(x);
    }
    x = with(CHAT, "\"logprobs\":true");
    assert_int_equal(x->requests->n_logprobs, 0);
    qn_exchange_free(x);
    x = with(TEXT, "\"logprobs\":0,\"max_tokens\":0,\"suffix\":\"\",\"best_of\":1");
    assert_int_equal(x->requests->n_logprobs, 0);
    assert_int_equal(x->requests->max_tokens, 0);
    assert_int_equal(x->requests->n_prompt_logprobs, -1);
    qn_exchange_free(x);
    x = with(TEXT, "\"logprobs\":2,\"max_tokens\":0,\"echo\":true");
    assert_int_equal(x->requests->n_logprobs, 2);
    assert_int_equal(x->requests->n_prompt_logprobs, 2);
    qn_exchange_free(x);
    x = with(TEXT, "\"echo\":true");
    assert_int_equal(x->requests->n_prompt_logprobs, -1);
    qn_exchange_free(x);
    x = with(LLAMA, "\"n_probs\":0,\"n_predict\":-1,\"seed\":-1,\"logit_bias\":[[5,false],[\"ab\",2]],\"n_cmpl\":2");
    assert_int_equal(x->requests->n_logprobs, -1);
    assert_int_equal(x->requests->max_tokens, -1);
    assert_int_equal(x->requests->sampling.seed, 11);
    assert_int_equal(x->requests->n_bias, 3);
    assert_true(isinf(x->requests->bias[0].value) && x->requests->bias[1].token == 'a' &&
                x->requests->bias[2].value == 2);
    assert_int_equal(x->n_requests, 2);
    qn_exchange_free(x);

    x = with(CHAT, "\"max_tokens\":-1");
    assert_int_equal(x->requests->max_tokens, -1);
    qn_exchange_free(x);
    served.reasoning_budget = 9;
    served.effort = "low";
    x = with(CHAT, "");
    assert_int_equal(x->requests->reasoning_budget, 9);
    assert_contains(x->requests->conversation, "\"reasoning_effort\":\"low\"");
    qn_exchange_free(x);
    x = with(CHAT, "\"thinking_budget_tokens\":-1,\"reasoning_effort\":\"high\"");
    assert_int_equal(x->requests->reasoning_budget, -1);
    assert_contains(x->requests->conversation, "\"reasoning_effort\":\"high\"");
    qn_exchange_free(x);
    x = with(CHAT, "\"enable_thinking\":false");
    assert_null(strstr(x->requests->conversation, "reasoning_effort"));
    qn_exchange_free(x);
    served.effort = NULL;
    served.reasoning_budget = -1;
    served.max_tokens = 6;
    for (int i = 0; i < 3; i++) {
        x = with(CHAT, i == 0 ? "" : i == 1 ? "\"max_tokens\":7" : "\"max_tokens\":5");
        assert_int_equal(x->requests->max_tokens, i == 2 ? 5 : 6);
        qn_exchange_free(x);
    }
    served.max_tokens = -1;
}

TEST(prompts_become_tokens)
{
    static const struct {
        const char *path, *prompt;
        size_t n;
        qn_token last[3]; /* of each prompt */
        size_t lengths[3];
    } cases[] = {
        { TEXT, "\"ab\"", 1, { 'b' }, { 2 } },
        { TEXT, "[\"ab\",\"xyz\"]", 2, { 'b', 'z' }, { 2, 3 } },
        { TEXT, "[7,8,9.0]", 1, { 9 }, { 3 } },
        { TEXT, "[[7],[8,9]]", 2, { 7, 9 }, { 1, 2 } },
        { TEXT, "[[7],\"ab\"]", 2, { 7, 'b' }, { 1, 2 } },
        { TEXT, "\"a\\u0000b\"", 1, { 'b' }, { 3 } },
        { LLAMA, "[7,\"ab\",9]", 1, { 9 }, { 4 } },
        { LLAMA, "[\"ab\",9]", 1, { 9 }, { 3 } },
        { TEXT, "[5000000000]", 1, { -1 }, { 1 } }, /* refused by the scheduler */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char body[200];
        label("%s", cases[i].prompt);
        snprintf(body, sizeof body, "{\"prompt\":%s,\"n\":2}", cases[i].prompt);
        qn_exchange *x = must_take(cases[i].path, body);
        assert_int_equal(x->n_requests, 2 * cases[i].n);
        for (size_t k = 0; k < x->n_requests; k++) {
            const qn_request_params *p = &x->requests[k];
            assert_int_equal(p->n_tokens, cases[i].lengths[k / 2]);
            assert_int_equal(p->tokens[p->n_tokens - 1], cases[i].last[k / 2]);
            assert_int_equal(p->sampling.seed, x->requests[k % 2].sampling.seed);
        }
        qn_exchange_free(x);
    }
}

TEST(chats_become_conversations)
{
    assert_conversation(CHAT, "{" ASK "}", "{\"add_generation_prompt\":true," ASK "}");
    assert_conversation(CHAT, "{" ASK "," TOOLS ",\"tool_choice\":\"none\"}",
                        "{\"add_generation_prompt\":true," ASK "}");
    assert_conversation(CHAT, "{" ASK "," TOOLS ",\"tool_choice\":\"auto\",\"parallel_tool_calls\":true}",
                        "{\"add_generation_prompt\":true," ASK "," TOOLS "}");
    assert_conversation(CHAT, "{" ASK ",\"tools\":[],\"tool_choice\":null,\"reasoning_effort\":\"low\"}",
                        "{\"add_generation_prompt\":true," ASK ",\"reasoning_effort\":\"low\"}");
    assert_conversation(CHAT,
                        "{" ASK ",\"chat_template_kwargs\":{\"enable_thinking\":false,\"preserve_thinking\":true,"
                        "\"reasoning_effort\":\"max\"}}",
                        "{\"add_generation_prompt\":true," ASK ",\"enable_thinking\":false,\"preserve_thinking\":true,"
                        "\"reasoning_effort\":\"max\"}");
    assert_conversation(
        CHAT, "{" ASK ",\"enable_thinking\":false,\"reasoning\":{\"effort\":\"low\",\"summary\":\"auto\"}}",
        "{\"add_generation_prompt\":true," ASK ",\"enable_thinking\":false,\"reasoning_effort\":\"low\"}");
    assert_conversation(CHAT, "{" ASK ",\"reasoning\":{\"enabled\":false,\"effort\":null}}",
                        "{\"add_generation_prompt\":true," ASK ",\"enable_thinking\":false}");
    assert_conversation(
        CHAT,
        "{" ASK ",\"enable_thinking\":true,\"reasoning\":{\"effort\":\"low\"},\"reasoning_effort\":\"high\","
        "\"chat_template_kwargs\":{\"enable_thinking\":false}}",
        "{\"add_generation_prompt\":true," ASK ",\"enable_thinking\":false,\"reasoning_effort\":\"high\"}");
    assert_conversation(
        CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\\u0000\"}]},"
        "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\",\"function\":"
        "{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":1}\"}},{\"function\":{\"name\":\"f\"}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"b\"}]}",
        "{\"add_generation_prompt\":true,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":"
        "\"a\\u0000\"}]},{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"id\":\"1\",\"type\":\"function\","
        "\"function\":{\"name\":\"f\",\"arguments\":{\"a\":1}}},{\"function\":{\"name\":\"f\",\"arguments\":{}}}]},"
        "{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":\"b\"}]}");
    assert_conversation(
        CHAT,
        "{\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"refusal\",\"refusal\":\"No.\"}]},"
        "{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"content\":null,\"refusal\":\"No.\"}]}",
        "{\"add_generation_prompt\":true,\"messages\":[{\"role\":\"assistant\",\"content\":[{\"type\":\"text\","
        "\"refusal\":\"No.\",\"text\":\"No.\"}]},{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\","
        "\"content\":\"No.\",\"refusal\":\"No.\"}]}");
    assert_conversation(
        CHAT,
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"tool\",\"tool_call_id\":\"1\",\"content\":"
        "[{\"type\":\"image_url\"}]}],\"chat_template_kwargs\":{\"date\":\"today\"}}",
        "{\"add_generation_prompt\":true,\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"tool\","
        "\"tool_call_id\":\"1\",\"content\":[{\"type\":\"text\",\"text\":\"[image omitted: this model has no "
        "vision]\"}]}],\"date\":\"today\"}");
    assert_conversation(CHAT,
                        "{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"reasoning_content\":\"Hm.\"},"
                        "{\"role\":\"user\",\"content\":\"\"}]}",
                        "{\"add_generation_prompt\":true,\"messages\":[{\"role\":\"assistant\",\"content\":\"\","
                        "\"reasoning_content\":\"Hm.\"},{\"role\":\"user\",\"content\":\"\"}]}");
    /* What was cut is an argument of its own. */
    static const char *const arguments[][2] = {
        { "\"{\\\"a\\\": [1\"", "{\"arguments\":\"{\\\"a\\\": [1\"}" },
        { "\"[]\"", "{\"arguments\":\"[]\"}" },
        { "5", "{\"arguments\":5}" },
        { "{\"a\":18446744073709551615,\"b\":2}", "{\"a\":18446744073709551616.0,\"b\":2}" },
        { "null", "{}" },
    };
    for (size_t i = 0; i < COUNT(arguments); i++) {
        char body[300], wanted[300];
        static const char form[] =
            "{%s\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{\"function\":{\"name\":\"f\","
            "\"arguments\":%s}}]},{\"role\":\"user\",\"content\":\"\"}]}";
        snprintf(body, sizeof body, form, "", arguments[i][0]);
        snprintf(wanted, sizeof wanted, form, "\"add_generation_prompt\":true,", arguments[i][1]);
        assert_conversation(CHAT, body, wanted);
    }
}

/* ---- Refusals ---- */

TEST(wrong_values_name_their_field)
{
    static const struct {
        const char *fields, *param;
    } all[] = {
        { "\"temperature\":\"hot\"", "temperature" },
        { "\"temperature\":1000001", "temperature" },
        { "\"temperature\":1e300", "temperature" },
        { "\"temperature\":-0.1", "temperature" },
        { "\"min_tokens\":-1", "min_tokens" },
        { "\"min_tokens\":1.5", "min_tokens" },
        { "\"min_tokens\":\"1\"", "min_tokens" },
        { "\"max_tokens\":5,\"min_tokens\":6", "min_tokens" },
        { "\"stop_token_ids\":5", "stop_token_ids" },
        { "\"stop_token_ids\":[\"5\"]", "stop_token_ids" },
        { "\"stop_token_ids\":[1.5]", "stop_token_ids" },
        { "\"stop_token_ids\":[5,-1]", "stop_token_ids" },
        { "\"stop_token_ids\":[5,99999]", "stop_token_ids" },
        { "\"stop_token_ids\":[4294967296]", "stop_token_ids" },
        { "\"samplers\":[\"top_k\",\"best\"]", "samplers" },
        { "\"samplers\":\"kz\"", "samplers" },
        { "\"samplers\":[5]", "samplers" },
        { "\"samplers\":5", "samplers" },
        { "\"top_p\":1.01", "top_p" },
        { "\"top_p\":true", "top_p" },
        { "\"min_p\":1", "min_p" },
        { "\"top_k\":-2", "top_k" },
        { "\"top_k\":1.5", "top_k" },
        { "\"top_k\":3000000000", "top_k" },
        { "\"seed\":1.5", "seed" },
        { "\"seed\":\"1\"", "seed" },
        { "\"seed\":1e300", "seed" },
        { "\"seed\":-9223372036854775809", "seed" },
        { "\"frequency_penalty\":2.5", "frequency_penalty" },
        { "\"presence_penalty\":-3", "presence_penalty" },
        { "\"repetition_penalty\":0", "repetition_penalty" },
        { "\"repeat_penalty\":[]", "repeat_penalty" },
        { "\"repeat_last_n\":-1", "repeat_last_n" },
        { "\"max_tokens\":-2", "max_tokens" },
        { "\"max_completion_tokens\":\"5\"", "max_completion_tokens" },
        { "\"n_predict\":-2", "n_predict" },
        { "\"n\":0", "n" },
        { "\"n\":129", "n" },
        { "\"n\":\"1\"", "n" },
        { "\"best_of\":0", "best_of" },
        { "\"n\":2,\"best_of\":1", "best_of" },
        { "\"best_of\":129", "best_of" },
        { "\"best_of\":2,\"stream\":true", "best_of" },
        { "\"return_progress\":1", "return_progress" },
        { "\"ignore_eos\":1", "ignore_eos" },
        { "\"stop\":5", "stop" },
        { "\"stop\":[\"\"]", "stop" },
        { "\"stop\":[[]]", "stop" },
        { "\"stop\":\"a\\u0000\"", "stop" },
        { "\"logit_bias\":5", "logit_bias" },
        { "\"logit_bias\":{\"5\":\"a\"}", "logit_bias" },
        { "\"logit_bias\":{\"5\":101}", "logit_bias" },
        { "\"logit_bias\":{\"99999\":1}", "logit_bias" },
        { "\"stream\":1", "stream" },
        { "\"stream_options\":[]", "stream_options" },
        { "\"stream_options\":{\"include_usage\":1}", "include_usage" },
        { "\"model\":5", "model" },
        { "\"timings_per_token\":\"\"", "timings_per_token" },
        { "\"response_format\":5", "response_format" },
        { "\"response_format\":{\"type\":\"sound\"}", "response_format.type" },
        { "\"response_format\":{\"type\":\"json_schema\"}", "response_format.json_schema" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":5}}",
          "response_format.json_schema.schema" },
        { "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":1,\"schema\":{}}}", "strict" },
        { "\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"hiccup\"}}", "response_format.schema" },
        { "\"grammar\":\"root ::= (\"", "grammar" },
        { "\"grammar\":5", "grammar" },
        { "\"json_schema\":[]", "json_schema" },
        { "\"json_whitespace\":\"tabs\"", "json_whitespace" },
        { "\"json_whitespace\":2", "json_whitespace" },
        { "\"json_property_order\":\"default\"", "json_property_order" },
        { "\"json_schema\":{},\"grammar\":\"root ::= \\\"a\\\"\"", "grammar" },
    };
    static const struct {
        const char *path, *body, *param;
    } some[] = {
        { CHAT, "{}", "messages" },
        { CHAT, "{\"messages\":\"a\"}", "messages" },
        { CHAT, "{\"messages\":[]}", "messages" },
        { CHAT, "{\"messages\":[1]}", "messages[0].role" },
        { CHAT, "{\"messages\":[{\"role\":\"functions\",\"content\":\"\"}]}", "messages[0].role" },
        { CHAT, "{\"messages\":[{\"role\":\"function\",\"content\":\"\"}]}", "messages[0].name" },
        { CHAT, "{\"messages\":[{\"role\":\"user\\u0000\",\"content\":\"\"}]}", "role" },
        { CHAT, "{\"messages\":[{\"role\":\"user\"}]}", "messages[0].content" },
        { CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages[0].content" },
        { CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]}]}",
          "messages[0].content" },
        { CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\"}]}]}",
          "messages[0].content" },
        { CHAT, "{" ASK ",\"modalities\":[\"text\",\"audio\"]}", "modalities" },
        { CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":{}}]}",
          "messages[0].tool_calls" },
        { CHAT, "{\"messages\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[{}]}]}",
          "messages[0].tool_calls" },
        { CHAT,
          "{\"messages\":[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"assistant\",\"content\":\"a\"}]}",
          "messages" },
        { CHAT, "{" ASK ",\"max_tokens\":0}", "max_tokens" },
        { CHAT, "{" ASK ",\"temperature\":2.01}", "temperature" },
        { TEXT, "{" PROMPT ",\"temperature\":2.01}", "temperature" },
        { TEXT, "{" PROMPT ",\"min_tokens\":17}", "min_tokens" },
        { CHAT, "{" ASK ",\"logprobs\":1}", "logprobs" },
        { CHAT, "{" ASK ",\"top_logprobs\":1}", "top_logprobs" },
        { CHAT, "{" ASK ",\"logprobs\":true,\"top_logprobs\":21}", "top_logprobs" },
        { CHAT, "{" ASK ",\"logit_bias\":{\"x\":1}}", "logit_bias" },
        { CHAT, "{" ASK ",\"logit_bias\":[[5,1]]}", "logit_bias" },
        { CHAT, "{" ASK ",\"tools\":{}}", "tools" },
        { CHAT, "{" ASK ",\"tools\":[{\"type\":\"web_search\"}]}", "tools[0]" },
        { CHAT, "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"\"}}]}", "tools[0]" },
        { CHAT, "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":5}}]}",
          "tools[0]" },
        { CHAT, "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":5}}]}",
          "tools[0]" },
        { CHAT,
          "{" ASK
          ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true}},{\"type\":\"function\","
          "\"function\":{\"name\":\"g\"}},{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}",
          "tools[2]" },
        { CHAT, "{" ASK "," TOOLS ",\"tool_choice\":5}", "tool_choice" },
        { CHAT, "{" ASK "," TOOLS ",\"tool_choice\":{\"type\":\"allowed_tools\"}}", "tool_choice" },
        { CHAT,
          "{" ASK "," TOOLS
          ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[{"
          "\"type\":\"function\",\"function\":{\"name\":\"g\"}}]}}}",
          "tool_choice" },
        { CHAT, "{" ASK ",\"tool_choice\":\"required\"}", "tool_choice" },
        { CHAT, "{" ASK "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}",
          "tool_choice" },
        { CHAT, "{" ASK "," TOOLS ",\"grammar\":\"root ::= \\\"a\\\"\"}", "grammar" },
        { CHAT, "{" ASK "," TOOLS ",\"response_format\":{\"type\":\"json_object\",\"schema\":{\"type\":\"hiccup\"}}}",
          "response_format.schema" },
        { CHAT,
          "{" ASK ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{"
          "\"not\":{}}}}]}",
          "tools" },
        { CHAT, "{" ASK ",\"parallel_tool_calls\":5}", "parallel_tool_calls" },
        { CHAT, "{" ASK ",\"reasoning_effort\":\"huge\"}", "reasoning_effort" },
        { CHAT, "{" ASK ",\"chat_template_kwargs\":[]}", "chat_template_kwargs" },
        { CHAT, "{" ASK ",\"chat_template_kwargs\":{\"bos_token\":\"\"}}", "chat_template_kwargs" },
        { CHAT, "{" ASK ",\"chat_template_kwargs\":{\"enable_thinking\":5}}", "enable_thinking" },
        { CHAT, "{" ASK ",\"enable_thinking\":\"no\"}", "enable_thinking" },
        { CHAT, "{" ASK ",\"reasoning\":\"high\"}", "reasoning" },
        { CHAT, "{" ASK ",\"reasoning\":{\"effort\":\"huge\"}}", "reasoning.effort" },
        { CHAT, "{" ASK ",\"reasoning\":{\"enabled\":1}}", "reasoning.enabled" },
        { CHAT, "{" ASK ",\"reasoning\":{\"max_tokens\":10}}", "reasoning" },
        { CHAT, "{" ASK ",\"reasoning_format\":\"x\"}", "reasoning_format" },
        { CHAT, "{" ASK ",\"thinking_budget_tokens\":-2}", "thinking_budget_tokens" },
        { TEXT, "{}", "prompt" },
        { TEXT, "{\"prompt\":7}", "prompt" },
        { TEXT, "{\"prompt\":[]}", "prompt" },
        { TEXT, "{\"prompt\":[[]]}", "prompt" },
        { TEXT, "{\"prompt\":[7,\"a\"]}", "prompt" },
        { TEXT, "{\"prompt\":[1.5]}", "prompt" },
        { TEXT, "{\"prompt\":[[1],5]}", "prompt" },
        { TEXT, "{" PROMPT ",\"suffix\":5}", "suffix" },
        { CHAT, "{" ASK ",\"best_of\":2}", "best_of" },
        { LLAMA, "{" PROMPT ",\"best_of\":2}", "best_of" },
        { CHAT, "{" ASK ",\"reasoning_budget_tokens\":-2}", "reasoning_budget_tokens" },
        { CHAT, "{" ASK ",\"reasoning\":\"some\"}", "reasoning" },
        { TEXT, "{" PROMPT ",\"echo\":5}", "echo" },
        { TEXT, "{" PROMPT ",\"logprobs\":true}", "logprobs" },
        { TEXT, "{" PROMPT ",\"logprobs\":21}", "logprobs" },
        { LLAMA, "{" PROMPT ",\"n_probs\":21}", "n_probs" },
        { LLAMA, "{" PROMPT ",\"n_cmpl\":0}", "n_cmpl" },
        { LLAMA, "{" PROMPT ",\"logit_bias\":[5]}", "logit_bias" },
        { LLAMA, "{" PROMPT ",\"response_fields\":[5]}", "response_fields" },
        { LLAMA, "{" PROMPT ",\"post_sampling_probs\":5}", "post_sampling_probs" },
        { "/tokenize", "{}", "content" },
        { "/tokenize", "{\"content\":\"\",\"with_pieces\":5}", "with_pieces" },
        { "/tokenize", "{\"prompt\":5}", "prompt" },
        { "/tokenize", "{\"prompt\":\"a\",\"add_special_tokens\":5}", "add_special_tokens" },
        { "/detokenize", "{\"tokens\":5}", "tokens" },
        { "/detokenize", "{\"tokens\":[\"a\"]}", "tokens" },
        { "/detokenize", "{\"tokens\":[9999999]}", "tokens" },
        { "/apply-template", "{}", "messages" },
    };
    for (size_t i = 0; i < COUNT(all); i++)
        for (size_t p = 0; p < 3; p++) {
            char body[500];
            snprintf(body, sizeof body, "{%s,%s}", p ? PROMPT : ASK, all[i].fields);
            assert_refused(paths[p], body, NULL, all[i].param, "");
        }
    for (size_t i = 0; i < COUNT(some); i++)
        assert_refused(some[i].path, some[i].body, NULL, some[i].param, "");
}

/* What was found is in the message. */
TEST(refusals_say_what_was_found)
{
    assert_refused(CHAT, "{" ASK ",\"stop_token_ids\":[5,99999]}", NULL, "stop_token_ids",
                   "'stop_token_ids' has the token id 99999, expected 0 to ");
    assert_refused(TEXT, "{" PROMPT ",\"max_tokens\":5,\"min_tokens\":6}", NULL, "min_tokens",
                   "'min_tokens' is 6, expected at most the 5 of the answer");
    assert_refused(TEXT, "{" PROMPT ",\"samplers\":[\"top_k\",\"best\"]}", NULL, "samplers",
                   "'samplers' has 'best', which is not a sampler");
    assert_refused(CHAT, "{" ASK ",\"modalities\":[\"text\",\"audio\"]}", NULL, "modalities",
                   "'modalities' has \"audio\", expected \"text\"");
    static const char *const parts[][2] = { { "{\"type\":\"image_url\"}",
                                              "message 0: part 0 is of the type \"image_url\", expected {" },
                                            { "{\"type\":5}", "part 0 is of the type 5, expected {" },
                                            { "\"a\"", "part 0 is \"a\", expected {" },
                                            { "{}", "part 0 is an object, expected {" } };
    for (size_t i = 0; i < COUNT(parts); i++) {
        char body[160];
        snprintf(body, sizeof body, "{\"messages\":[{\"role\":\"user\",\"content\":[%s]}]}", parts[i][0]);
        assert_refused(CHAT, body, NULL, "messages[0].content", parts[i][1]);
    }
}

TEST(constraints_become_grammars)
{
    static const struct {
        const char *fields;
        bool has_grammar;
        qn_grammar_when when;
    } cases[] = {
        { "\"response_format\":{\"type\":\"text\"}", false, QN_GRAMMAR_AFTER_REASONING },
        { "\"response_format\":{\"type\":\"json_object\"}", true, QN_GRAMMAR_AFTER_REASONING },
        { "\"grammar\":\"root ::= \\\"a\\\"\"," TOOLS ",\"tool_choice\":\"none\"", true, QN_GRAMMAR_AFTER_REASONING },
        { TOOLS, true, QN_GRAMMAR_AT_CALL },
        { TOOLS ",\"parallel_tool_calls\":false,\"tool_choice\":\"auto\"", true, QN_GRAMMAR_AT_CALL },
        { TOOLS ",\"tool_choice\":\"required\"", true, QN_GRAMMAR_AFTER_REASONING },
        { TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", true,
          QN_GRAMMAR_AFTER_REASONING },
        /* a schema without a grammar */
        { "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":5}}}]", false,
          QN_GRAMMAR_AT_CALL },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].fields);
        qn_exchange *x = with(CHAT, cases[i].fields);
        assert_int_equal(x->requests->grammar != NULL, cases[i].has_grammar);
        if (cases[i].has_grammar)
            assert_int_equal(x->requests->grammar_trigger.when, cases[i].when);
        qn_exchange_free(x);
    }
    qn_exchange *x = with(TEXT, "\"json_schema\":{\"enum\":[\"a\"]}");
    assert_true(x->requests->grammar && x->requests->grammar_trigger.when == QN_GRAMMAR_AT_ONCE);
    qn_exchange_free(x);
}

/* Texts that begin an answer, and whether they fit. */
static void answer_is(const char *fields, bool calls, bool object, bool integer)
{
    const struct {
        const char *text;
        bool fits;
    } cases[] = { { "\xf8", calls }, { "\n\n\xf8", calls }, { "{\"a\":", object }, { "\n{", object },
                  { "5", integer },  { "\n\n5", integer },  { "<", false },        { "a", false } };
    qn_exchange *x = with(CHAT, fields);
    label("%s", fields);
    assert_int_equal(x->requests->grammar_trigger.when, QN_GRAMMAR_AFTER_REASONING);
    for (size_t i = 0; i < COUNT(cases); i++) {
        qn_grammar_state *state;
        assert_ok(qn_grammar_state_create(x->requests->grammar, &state));
        if (qn_grammar_state_advance(state, cases[i].text, strlen(cases[i].text)) != cases[i].fits)
            fail_msg("'%s' %s", cases[i].text, cases[i].fits ? "does not fit" : "fits");
        qn_grammar_state_free(state);
    }
    qn_exchange_free(x);
}

/* Whether an answer may begin with a text. */
static bool may_begin(const char *fields, const char *text)
{
    qn_exchange *x = with(CHAT, fields);
    qn_grammar_state *state;
    label("%s", fields);
    assert_ok(qn_grammar_state_create(x->requests->grammar, &state));
    const bool may = qn_grammar_state_advance(state, text, strlen(text));
    qn_grammar_state_free(state);
    qn_exchange_free(x);
    return may;
}

TEST(styles_of_json)
{
#define OBJECT "\"json_schema\":{\"properties\":{\"b\":{\"type\":\"array\"},\"a\":{}}}"
    static const struct {
        const char *field, *fits, *not ;
    } cases[] = {
        { "", "{\"b\": [1, 2], \"a\"", "{\"b\":[" },
        { ",\"json_whitespace\":\"default\"", "{\"b\": [1, 2], \"a\"", "{\n" },
        { ",\"json_whitespace\":\"indent\"", "{\n  \"b\": [\n    1,\n    2\n  ],\n  \"a\"", "{\"b\"" },
        { ",\"json_whitespace\":\"compact\"", "{\"b\":[1,2],\"a\"", "{\"b\": " },
        { ",\"json_whitespace\":\"any\"", "{\"b\":[1 ,2], \"a\"", "{\"a\":1,\"b\"" },
        { ",\"json_property_order\":\"schema\"", "{\"b\": [], \"a\"", "{\"a\": 1, \"b\"" },
        { ",\"json_property_order\":\"any\"", "{\"a\": 1, \"b\"", "{\"a\":1" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char fields[400];
        snprintf(fields, sizeof fields, OBJECT "%s", cases[i].field);
        assert_true(may_begin(fields, cases[i].fits));
        assert_false(may_begin(fields, cases[i].not ));
        snprintf(fields, sizeof fields, TOOLS "," OBJECT "%s", cases[i].field);
        assert_true(may_begin(fields, cases[i].fits));
        assert_false(may_begin(fields, cases[i].not ));
    }
}

/* Agents send both: the answer is calls, or content of the format. */
TEST(formats_go_with_tools)
{
#define INTEGER                                                                                                        \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"strict\":true,\"schema\":{\"type\":\"integer\"}" \
    "}}"
    answer_is(TOOLS "," INTEGER, true, false, true);
    answer_is(TOOLS "," INTEGER ",\"tool_choice\":\"auto\",\"parallel_tool_calls\":false", true, false, true);
    answer_is(TOOLS "," INTEGER ",\"tool_choice\":\"required\"", true, false, false);
    answer_is(TOOLS "," INTEGER
                    ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"required\",\"tools\":[{"
                    "\"type\":\"function\",\"function\":{\"name\":\"f\"}}]}}",
              true, false, false);
    answer_is(TOOLS ",\"json_schema\":{\"type\":[\"object\",\"integer\"]}", true, true, true);
    answer_is(TOOLS ",\"response_format\":{\"type\":\"json_object\"}", true, true, false);
    answer_is(TOOLS
              ",\"response_format\":{\"type\":\"json_object\"},\"tool_choice\":{\"type\":\"function\",\"function\":{"
              "\"name\":\"f\"}}",
              true, false, false);
}

TEST(limits_are_held)
{
    static const struct {
        const char *path, *body, *param;
        qn_protocol_limits limits; /* one less than what the body has */
    } cases[] = {
        { CHAT,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"b\"}]}",
          "messages",
          { .messages = 1 } },
        { CHAT,
          "{" ASK
          ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}},{\"type\":\"function\",\"function\":{"
          "\"name\":\"g\"}}]}",
          "tools",
          { .tools = 1 } },
        { CHAT, "{" ASK ",\"stop\":[\"a\",\"b\"]}", "stop", { .stops = 1 } },
        { CHAT, "{" ASK ",\"stop\":\"ab\"}", "stop", { .stop_bytes = 1 } },
        { CHAT, "{" ASK ",\"n\":2}", "n", { .requests = 1 } },
        { TEXT, "{\"prompt\":[\"a\",\"b\"],\"n\":2}", "prompt", { .requests = 3 } },
        { TEXT, "{" PROMPT ",\"logit_bias\":{\"1\":1,\"2\":1}}", "logit_bias", { .biases = 1 } },
        { LLAMA, "{" PROMPT ",\"logit_bias\":[[1,1],[2,1]]}", "logit_bias", { .biases = 1 } },
        { CHAT, "{" ASK ",\"a\":[[[]]]}", "", { .depth = 3 } },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_refused(cases[i].path, cases[i].body, &cases[i].limits, cases[i].param, "");
        qn_exchange_free(must_take(cases[i].path, cases[i].body));
    }
}

/* A body of texts that are there n times, with what comes before and after them. */
static char *repeated(const char *before, const char *text, size_t n, const char *after)
{
    const size_t length = strlen(text);
    char *body = malloc(strlen(before) + n * length + strlen(after) + 1), *to = body + sprintf(body, "%s", before);
    for (size_t i = 0; i < n; i++, to += length)
        memcpy(to, text, length);
    strcpy(to - (n > 0 && after[0] == ']'), after);
    return body;
}

/* Values take up to 80 times the size of their text, wherever it is: in the body, or in its strings that are JSON. */
TEST(memory_of_values_is_limited)
{
    static const struct {
        const char *path, *before, *after;
    } cases[] = {
        { CHAT, "{" ASK ",\"a\":[", "]}" },
        { "/detokenize", "{\"tokens\":[", "]}" },
        { CHAT,
          "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\","
          "\"function\":{"
          "\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[",
          "]}\"}}]}]}" },
        { "/v1/responses",
          "{\"input\":[{\"type\":\"function_call\",\"call_id\":\"1\",\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[",
          "]}\"}]}" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].path);
        qn_refusal refusal = { 0 };
        char *body = repeated(cases[i].before, "{},", 250000, cases[i].after);
        assert_null(exchange_of(cases[i].path, body, NULL, &refusal));
        assert_int_equal(refusal.status, 413);
        free(body);
    }
    /* Several texts have one budget. */
    char *call =
        repeated("{\"id\":\"1\",\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[", "{},", 25000, "]}\"}},");
    char *body =
        repeated("{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"tool_calls\":[", call,
                 10, "]}]}");
    qn_refusal refusal = { 0 };
    assert_null(exchange_of(CHAT, body, NULL, &refusal));
    assert_int_equal(refusal.status, 413);
    free(call);
    free(body);
}

/* Arguments that are nested too deeply are the text that they are. */
TEST(arguments_have_a_depth)
{
    char *open = repeated("{\\\"a\\\":", "[", 1000, "");
    char *call = repeated(open, "]", 1000, "}");
    char *before = repeated(
        "{\"messages\":[{\"role\":\"user\",\"content\":\"\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\","
        "\"function\":{\"name\":\"f\",\"arguments\":\"",
        call, 1, "");
    char *body = repeated(before, "", 0, "\"}}]}]}");
    qn_exchange *x = must_take(CHAT, body);
    assert_contains(x->requests->conversation, "\"arguments\":{\"arguments\":\"{");
    qn_exchange_free(x);
    free(open);
    free(call);
    free(before);
    free(body);
}

/* A tool that is named more than once is there once. */
TEST(allowed_tools_are_there_once)
{
    char *body =
        repeated("{" ASK "," TOOLS
                 ",\"tool_choice\":{\"type\":\"allowed_tools\",\"allowed_tools\":{\"mode\":\"auto\",\"tools\":[",
                 "{\"type\":\"function\",\"function\":{\"name\":\"f\"}},", 512, "]}}}");
    qn_refusal refusal = { 0 };
    const qn_exchange_origin origin = { .id = "1", .secret = "s" };
    qn_exchange *x = qn_exchange_parse(qn_protocol_find(CHAT), body, strlen(body), NULL, &origin, &refusal);
    assert_non_null(x);
    assert_int_equal(json_array_size(((const qn_text_exchange *)x)->tools.list), 1);
    qn_exchange_free(x);
    free(body);
}

/* The limit on biases is one on tokens: texts have many, and a token that is there again has the sum. */
TEST(biases_are_those_of_tokens)
{
    qn_exchange *x =
        must_take(LLAMA, "{" PROMPT ",\"logit_bias\":[[5,1],[6,2],[5,3],[\"ab\",2],[\"ab\",false]],\"n_cmpl\":3}");
    const qn_request_params *r = x->requests;
    size_t n_five = 0;
    for (size_t i = 0; i < r->n_bias; i++) {
        n_five += r->bias[i].token == 5;
        for (size_t k = 0; k < i; k++)
            assert_int_not_equal(r->bias[i].token, r->bias[k].token);
    }
    assert_int_equal(n_five, 1);
    assert_true(r->bias[0].token == 5 && r->bias[0].value == 4);
    assert_ptr_equal(r[0].bias, r[2].bias);
    qn_exchange_free(x);
    char text[600] = "{" PROMPT ",\"logit_bias\":[[\"";
    for (int c = 33; c < 127; c++)
        if (c != '"' && c != '\\')
            sprintf(text + strlen(text), "%c ", c);
    strcat(text, "\",1]]}");
    assert_refused(LLAMA, text, &(qn_protocol_limits){ .biases = 20 }, "logit_bias", "tokens");
    char *body = repeated("{" PROMPT ",\"logit_bias\":[[\"", "a ", 100000, "\",1]]}");
    qn_exchange_free(must_take(LLAMA, body));
    free(body);
}

/* Streams repeat the name in each event. */
TEST(names_of_models_are_short)
{
    char *body = repeated("{" PROMPT "," ASK ",\"model\":\"", "a", 513, "\"}");
    static const char *const name_paths[] = { CHAT, TEXT, LLAMA, NULL };
    for (size_t i = 0; name_paths[i]; i++)
        assert_refused(name_paths[i], body, NULL, "model", "bytes");
    free(body);
}

/* A body whose field has as many empty objects. */
static char *body_of(const char *before, size_t n, const char *after)
{
    char *body = malloc(strlen(before) + 3 * n + strlen(after) + 1), *to = body + sprintf(body, "%s", before);
    for (size_t i = 0; i < n; i++, to += 3)
        memcpy(to, "{},", 3);
    strcpy(to - (n > 0), after);
    return body;
}

/* Values of JSON take 80 times the size of their text: neither what is not read stays, nor what only bind needs. */
TEST(values_of_bodies_are_not_kept)
{
    static const struct {
        const char *path, *before, *after;
        size_t most; /* bytes of an exchange with 50,000 objects, which take 12 MB */
    } cases[] = {
        { CHAT, "{" ASK ",\"a\":[", "]}", 100000 },
        { CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\",\"a\":[", "]}]}", 400000 },
        { TEXT, "{" PROMPT ",\"a\":[", "]}", 100000 },
        { LLAMA, "{" PROMPT ",\"a\":[", "]}", 100000 },
        { "/tokenize", "{\"content\":\"\",\"a\":[", "]}", 100000 },
        { "/v1/messages", "{\"max_tokens\":5,\"metadata\":[", "]," ASK "}", 100000 },
        { "/v1/messages/count_tokens", "{\"metadata\":[", "]," ASK "}", 100000 },
        { "/v1/responses", "{\"metadata\":[", "],\"input\":\"\"}", 100000 },
        { "/v1/responses/input_tokens", "{\"metadata\":[", "],\"input\":\"\"}", 100000 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s %s", cases[i].path, cases[i].before);
        char *body = body_of(cases[i].before, 50000, cases[i].after);
        qn_exchange_free(must_take(cases[i].path, body));
        const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
        qn_exchange *x = must_take(cases[i].path, body);
        const size_t after = mallinfo2().uordblks + mallinfo2().hblkhd;
        assert_true(after < before + cases[i].most);
        qn_exchange_free(x);
        free(body);
    }
}

/* Before anything is written: an echo would be as long as all prompts together. */
TEST(prompts_fit_into_the_context)
{
    char body[400], prompt[102] = "";
    memset(prompt, 'a', 101);
    for (size_t i = 0; i < 2; i++) {
        qn_refusal refusal;
        snprintf(body, sizeof body, "{\"prompt\":[\"a\",\"%s\"],\"n\":64,\"echo\":true}", prompt + i);
        qn_exchange *x = exchange_of(TEXT, body, NULL, &refusal);
        assert_true(!x == !i);
        if (!i) {
            assert_string_equal(refusal.code, "context_length_exceeded");
            assert_true(refusal.status == 400 && refusal.n_prompt == 101 && refusal.n_ctx == 100);
        }
        qn_exchange_free(x);
    }
}

/* A schema that was compiled for one scope is compiled again for another. */
TEST(grammars_are_of_the_scope)
{
    static const char *const scopes[] = { "a", "b", "a" };
    static const char body[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}],\"json_schema\":{\"type\":\"integer\"}}";
    const qn_exchange_origin origin = { .id = "1", .secret = "s", .created = 5, .seed = 11 };
    const qn_protocol *protocol = qn_protocol_find(CHAT);
    qn_exchange *x[3];
    qn_refusal refusal;
    for (size_t i = 0; i < 3; i++) {
        x[i] = qn_exchange_parse(protocol, body, strlen(body), NULL, &origin, &refusal);
        assert_non_null(x[i]);
        x[i]->scope = scopes[i];
        assert_true(protocol->bind(x[i], &served, &refusal));
    }
    assert_non_null(x[0]->requests->grammar);
    assert_ptr_equal(x[0]->requests->grammar, x[2]->requests->grammar);
    assert_ptr_not_equal(x[0]->requests->grammar, x[1]->requests->grammar);
    for (size_t i = 0; i < 3; i++)
        qn_exchange_free(x[i]);
}

TEST(refusals_of_the_scheduler)
{
    qn_exchange *x = with(TEXT, "");
    qn_refusal refusal;
    qn_bytes out = { 0 };
    qn_exchange_refuse_status(&served, QN_ERR_CONTEXT, 2, &refusal);
    x->protocol->refuse(&refusal, &out);
    assert_bytes(
        &out,
        "{\"error\":{\"message\":\"the prompt has 2 tokens, which exceeds the available context size of 100 tokens\","
        "\"type\":\"exceed_context_size_error\",\"param\":null,\"code\":\"context_length_exceeded\",\"n_prompt_"
        "tokens\":2,"
        "\"n_ctx\":100}}");
    static const struct {
        qn_status status;
        int http;
        const char *code;
    } cases[] = { { QN_ERR_BUSY, 429, "overloaded" },      { QN_ERR_MEMORY, 500, "out_of_memory" },
                  { QN_ERR_DEVICE, 503, "device_failed" }, { QN_ERR_UNSUPPORTED, 400, "unsupported" },
                  { QN_ERR_INVALID, 400, NULL },           { QN_ERR_IO, 400, NULL } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", qn_status_name(cases[i].status));
        (void)qn_fail(cases[i].status, "why");
        qn_exchange_refuse_status(&served, cases[i].status, 0, &refusal);
        assert_int_equal(refusal.status, cases[i].http);
        assert_string_equal(refusal.code ? refusal.code : "", cases[i].code ? cases[i].code : "");
        assert_string_equal(refusal.message, "why");
    }
    (void)qn_fail(QN_ERR_BUSY, "queue: full");
    qn_exchange_refuse_status(&served, QN_ERR_BUSY, 0, &refusal);
    x->protocol->refuse(&refusal, &out);
    assert_bytes(&out, "{\"error\":{\"message\":\"queue: "
                       "full\",\"type\":\"rate_limit_error\",\"param\":null,\"code\":\"overloaded\"}}");
    qn_bytes_free(&out);
    qn_exchange_free(x);
    assert_null(qn_protocol_find("/v1/none"));
}

TEST_GROUP(load_vocab, free_vocab)
