/* Answers of chats and completions to events that a test makes up: what a stream has and in which order, whole answers,
 * errors. */
#include "helper_answers.h"

#include "base/append.h"

#include <math.h>

#define CHAT "/v1/chat/completions"
#define TEXT "/v1/completions"
#define ASK "\"messages\":[{\"role\":\"user\",\"content\":\"Hm?\"}]"

#define CHUNK(rest)                                                                                                    \
    "data: "                                                                                                           \
    "{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":5,\"model\":\"m\",\"choices\":[" rest     \
    "}\n"                                                                                                              \
    "\n"
#define DELTA(index, delta)                                                                                            \
    CHUNK("{\"index\":" #index ",\"delta\":{" delta "},\"logprobs\":null,\"finish_reason\":null}]")
#define LAST(index, why) CHUNK("{\"index\":" #index ",\"delta\":{},\"logprobs\":null,\"finish_reason\":\"" why "\"}]")
#define ROLE(index) DELTA(index, "\"role\":\"assistant\",\"content\":null")
#define DONE "data: [DONE]\n\n"

/* ---- Streams of chats ---- */

TEST(choices_begin_in_order)
{
    open_exchange(CHAT, "{" ASK ",\"stream\":true,\"n\":2}");
    assert_bytes(&out, ROLE(0) ROLE(1));
    token(1, 'b');
    assert_bytes(&out, "");
    content(1, "b\"\n");
    assert_bytes(&out, DELTA(1, "\"content\":\"b\\\"\\n\""));
    content(0, "a");
    finish(1, QN_FINISH_STOP, false);
    content(0, "a");
    finish(0, QN_FINISH_LENGTH, false);
    assert_bytes(&out, DELTA(0, "\"content\":\"a\"") LAST(1, "stop") DELTA(0, "\"content\":\"a\"") LAST(0, "length"));
    ends_with(200);
    assert_bytes(&out, DONE);
    close_exchange();
}

TEST(reasoning_and_calls_stream)
{
    open_exchange(CHAT, "{" ASK ",\"stream\":true}");
    reasoning_text(0, "Hm.");
    content(0, "So");
    begin_call(0, 0, "f");
    arguments(0, 0, "{\"a\":");
    arguments(0, 0, "1}");
    end_call(0, 0, "<raw>", QN_OUTPUT_COMPLETE);
    begin_call(0, 1, "g");
    arguments(0, 1, "{}");
    end_call(0, 1, "<raw>", QN_OUTPUT_COMPLETE);
    finish(0, QN_FINISH_STOP, false);
    char first[QN_CALL_ID_BYTES], second[QN_CALL_ID_BYTES], expected[4000];
    qn_exchange_call_id(x, 0, 0, first);
    qn_exchange_call_id(x, 0, 1, second);
    assert_string_not_equal(first, second);
    snprintf(expected, sizeof expected,
             ROLE(0) DELTA(0, "\"reasoning_content\":\"Hm.\"") DELTA(0, "\"content\":\"So\"") DELTA(
                 0, "\"tool_calls\":[{\"index\":0,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\","
                    "\"arguments\":\"\"}}]")
                 DELTA(0, "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"{\\\"a\\\":\"}}]")
                     DELTA(0, "\"tool_calls\":[{\"index\":0,\"function\":{\"arguments\":\"1}\"}}]") DELTA(
                         0, "\"tool_calls\":[{\"index\":1,\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":"
                            "\"g\",\"arguments\":\"\"}}]")
                         DELTA(0, "\"tool_calls\":[{\"index\":1,\"function\":{\"arguments\":\"{}\"}}]")
                             LAST(0, "tool_calls"),
             first, second);
    assert_bytes(&out, expected);
    close_exchange();
}

TEST(usage_is_the_last_chunk)
{
    open_exchange(CHAT,
                  "{" ASK
                  ",\"stream\":true,\"n\":2,\"stream_options\":{\"include_usage\":true},\"timings_per_token\":true}");
    for (size_t i = 0; i < 2; i++) {
        token(i, 'a');
        token(i, 'b');
        reasoning_text(i, "ab");
        token(i, 'c'); /* of a delimiter */
        token(i, 'd');
        content(i, "d");
        token(i, 'e');
        content(i, "e");
        assert_non_null(memmem(out.data, out.length, "\"finish_reason\":null}],\"usage\":null}", 36));
        finish(i, QN_FINISH_STOP, false);
    }
    out.length = 0;
    ends_with(200);
    assert_bytes(
        &out,
        CHUNK(
            "],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":6,\"total_tokens\":16,\"prompt_tokens_details\":"
            "{\"cached_tokens\":4},\"completion_tokens_details\":{\"reasoning_tokens\":6}},\"timings\":{\"cache_n\":4,"
            "\"prompt_n\":6,\"prompt_ms\":2000.0,\"prompt_per_token_ms\":333.333333,\"prompt_per_second\":3.0,"
            "\"predicted_n\":3,\"predicted_ms\":1500.0,\"predicted_per_token_ms\":500.0,\"predicted_per_second\":2.0}")
            DONE);
    close_exchange();
}

TEST(reasoning_can_be_content)
{
    open_exchange(CHAT, "{" ASK ",\"stream\":true,\"reasoning_format\":\"none\"}");
    reasoning_text(0, "a");
    reasoning_text(0, "b");
    content(0, "c");
    assert_bytes(&out, ROLE(0) DELTA(0, "\"content\":\"<think>\"") DELTA(0, "\"content\":\"a\"") DELTA(
                           0, "\"content\":\"b\"") DELTA(0, "\"content\":\"</think>\"") DELTA(0, "\"content\":\"c\""));
    close_exchange();
}

/* ---- Errors ---- */

#define BROKE "{\"error\":{\"message\":\"it broke\",\"type\":\"server_error\",\"param\":null,\"code\":\"failed\"}}"

TEST(an_error_ends_a_stream)
{
    open_exchange(CHAT, "{" ASK ",\"stream\":true,\"n\":2}");
    content(0, "a");
    out.length = 0;
    finish(1, QN_FINISH_ERROR, false);
    assert_bytes(&out, "data: " BROKE "\n\n");
    assert_true(x->has_failed);
    content(0, "b");
    finish(0, QN_FINISH_STOP, false);
    ends_with(500);
    assert_bytes(&out, "");
    close_exchange();

    open_exchange(TEXT, "{\"prompt\":\"a\",\"stream\":true}");
    text(0, "a");
    out.length = 0;
    qn_refusal refusal;
    qn_refuse(&refusal, 503, NULL, NULL, "the server is shutting down");
    (x->protocol->fail)(x, &refusal, &out); /* not the macro of cmocka */
    assert_bytes(
        &out,
        "data: {\"error\":{\"message\":\"the server is shutting down\",\"type\":\"unavailable_error\",\"param\":null,"
        "\"code\":null}}\n\n");
    text(0, "b");
    assert_bytes(&out, "");
    close_exchange();
}

TEST(an_error_is_a_whole_answer)
{
    static const char *const paths[] = { CHAT, TEXT, "/completion" };
    for (size_t i = 0; i < 3; i++) {
        label("%s", paths[i]);
        open_exchange(paths[i], i ? "{\"prompt\":\"a\"}" : "{" ASK "}");
        token(0, 'a');
        finish(0, QN_FINISH_ERROR, false);
        ends_with(500);
        assert_bytes(&out, BROKE);
        close_exchange();
    }
}

#define UNSUPPORTED                                                                                                    \
    "{\"error\":{\"message\":\"it "                                                                                    \
    "broke\",\"type\":\"invalid_request_error\",\"param\":null,\"code\":\"unsupported\"}}"

/* A grammar that masks cannot follow is found out when the request runs: an error of the client. */
TEST(an_unsupported_grammar_is_of_the_client)
{
    static const char *const paths[] = { CHAT, TEXT, "/completion" };
    for (size_t i = 0; i < 6; i++) {
        char body[200];
        label("%s, %zu", paths[i / 2], i);
        snprintf(body, sizeof body, "{%s%s}", i / 2 ? "\"prompt\":\"a\"" : ASK, i % 2 ? ",\"stream\":true" : "");
        open_exchange(paths[i / 2], body);
        out.length = 0;
        end_with(0, QN_FINISH_ERROR, QN_ERR_UNSUPPORTED, false);
        assert_bytes(&out, i % 2 ? "data: " UNSUPPORTED "\n\n" : "");
        ends_with(400);
        assert_bytes(&out, i % 2 ? "" : UNSUPPORTED);
        close_exchange();
    }
}

/* The status of HTTP tells what kind of failure it was: a client tries again after 429 and 503, also with another
 * replica. */
TEST(each_failure_has_its_status)
{
    static const struct {
        qn_status status;
        int http;
        const char *type, *code;
    } cases[] = { { QN_ERR_BUSY, 429, "rate_limit_error", "overloaded" },
                  { QN_ERR_MEMORY, 500, "server_error", "out_of_memory" },
                  { QN_ERR_DEVICE, 503, "unavailable_error", "device_failed" },
                  { QN_ERR_IO, 500, "server_error", "failed" },
                  { QN_ERR_INVALID, 500, "server_error", "failed" } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char expected[200];
        label("%s", qn_status_name(cases[i].status));
        snprintf(expected, sizeof expected,
                 "{\"error\":{\"message\":\"it broke\",\"type\":\"%s\",\"param\":null,\"code\":\"%s\"}}", cases[i].type,
                 cases[i].code);
        open_exchange(CHAT, "{" ASK "}");
        end_with(0, QN_FINISH_ERROR, cases[i].status, false);
        assert_int_equal(x->protocol->end(x, &out), cases[i].http);
        assert_bytes(&out, expected);
        close_exchange();
    }
}

/* ---- Whole chats ---- */

static void assert_choice(const char *expected)
{
    ends_with(200);
    json_t *body = json_loadb(out.data, out.length, JSON_REJECT_DUPLICATES, NULL),
           *wanted = json_loads(expected, 0, NULL), *choice = json_array_get(json_object_get(body, "choices"), 0);
    assert_non_null(body);
    assert_non_null(wanted);
    if (!json_equal(choice, wanted))
        fail_msg("%.*s", (int)out.length, out.data);
    json_decref(body);
    json_decref(wanted);
    close_exchange();
}

TEST(whole_chats)
{
    char expected[1000], id[QN_CALL_ID_BYTES];
    open_exchange(CHAT, "{" ASK "}");
    finish(0, QN_FINISH_LENGTH, false);
    assert_choice("{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"\"},\"logprobs\":null,\"finish_"
                  "reason\":\"length\"}");

    open_exchange(CHAT, "{" ASK "}");
    reasoning_text(0, "Hm");
    reasoning_text(0, ".");
    content(0, "a");
    content(0, "b");
    finish(0, QN_FINISH_STOP, true);
    assert_choice("{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":\"ab\",\"reasoning_content\":\"Hm.\"},"
                  "\"logprobs\":null,\"finish_reason\":\"stop\"}");

    for (int i = 0; i < 3; i++) { /* a second call that is complete, cut or broken */
        const qn_output_call_end end = i == 0 ? QN_OUTPUT_COMPLETE : i == 1 ? QN_OUTPUT_CUT : QN_OUTPUT_BROKEN;
        label("end %d", i);
        open_exchange(CHAT, "{" ASK "}");
        for (size_t call = 0; call < 2; call++) {
            begin_call(0, call, call ? "g" : "f");
            arguments(0, call, "{");
            arguments(0, call, "}");
            end_call(0, call, "<raw>", call ? end : QN_OUTPUT_COMPLETE);
        }
        finish(0, i == 1 ? QN_FINISH_LENGTH : QN_FINISH_STOP, false);
        char calls[500];
        qn_text_buffer to = QN_APPEND_TO(calls);
        qn_exchange_call_id(x, 0, 0, id);
        qn_append(&to, "{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"f\",\"arguments\":\"{}\"}}", id);
        qn_exchange_call_id(x, 0, 1, id);
        if (i < 2)
            qn_append(&to, ",{\"id\":\"%s\",\"type\":\"function\",\"function\":{\"name\":\"g\",\"arguments\":\"{}\"}}",
                      id);
        snprintf(
            expected, sizeof expected,
            "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":%s,\"tool_calls\":[%s]},\"logprobs\":null,"
            "\"finish_reason\":\"%s\"}",
            i == 2 ? "\"<raw>\"" : "null", calls, i == 1 ? "length" : "tool_calls");
        assert_choice(expected);
    }
}

/* Another call than the one that `function_call` has: its text, unless it is cut. */
TEST(functions_have_one_call)
{
    static const char *const contents[] = { "\"<raw>\"", "null", "\"<raw>\"" };
    static const qn_output_call_end ends[] = { QN_OUTPUT_COMPLETE, QN_OUTPUT_CUT, QN_OUTPUT_BROKEN };
    char expected[400];
    for (size_t i = 0; i < 3; i++) {
        label("end %zu", i);
        open_exchange(CHAT, "{" ASK ",\"functions\":[],\"function_call\":\"auto\"}");
        for (size_t call = 0; call < 2; call++) {
            begin_call(0, call, call ? "g" : "f");
            arguments(0, call, "{}");
            end_call(0, call, "<raw>", call ? ends[i] : QN_OUTPUT_COMPLETE);
        }
        finish(0, i == 1 ? QN_FINISH_LENGTH : QN_FINISH_STOP, false);
        snprintf(expected, sizeof expected,
                 "{\"index\":0,\"message\":{\"role\":\"assistant\",\"content\":%s,\"function_call\":{\"name\":\"f\","
                 "\"arguments\":"
                 "\"{}\"}},\"logprobs\":null,\"finish_reason\":\"%s\"}",
                 contents[i], i == 1 ? "length" : "function_call");
        assert_choice(expected);
    }
}

/* ---- Log probabilities ---- */

#define ENTRY(text, byte, value)                                                                                       \
    "{\"token\":\"" text "\",\"logprob\":" value ",\"bytes\":[" byte                                                   \
    "],\"top_logprobs\":[{\"token\":\"z\",\"logprob\":-0.5,"                                                           \
    "\"bytes\":[122]}]}"
#define LIKELY(delta, entries, why)                                                                                    \
    CHUNK("{\"index\":0,\"delta\":{" delta "},\"logprobs\":{\"content\":[" entries                                     \
          "],\"refusal\":null},\"finish_reason\":" why "}]")

TEST(tokens_come_with_their_text)
{
    open_exchange(CHAT, "{" ASK ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":1}");
    likely(0, 'a', -1);
    content(0, "a");
    likely(0, 0xc3, -2); /* a character of two tokens */
    likely(0, 0xa9, -HUGE_VALF);
    content(0, "é");
    likely(0, 'x', -1); /* held back: it may begin a stop string */
    likely(0, 'y', -1);
    content(0, "x");
    finish(0, QN_FINISH_STOP, true);
    assert_bytes(&out, ROLE(0) LIKELY("\"content\":\"a\"", ENTRY("a", "97", "-1.0"), "null") LIKELY(
                           "\"content\":\"é\"", ENTRY("\\\\xc3", "195", "-2.0") "," ENTRY("\\\\xa9", "169", "-9999.0"),
                           "null") LIKELY("\"content\":\"x\"", ENTRY("x", "120", "-1.0"), "null") LAST(0, "stop"));
    close_exchange();

    /* Without a stop string what is left comes with the end; an end token never. */
    open_exchange(CHAT, "{" ASK ",\"stream\":true,\"logprobs\":true,\"top_logprobs\":1}");
    qn_token end = 0;
    while (!qn_token_is_end(model, end))
        end++;
    likely(0, 'a', -1);
    content(0, "a");
    likely(0, 0xc3, -2);
    likely(0, end, -1);
    finish(0, QN_FINISH_STOP, false);
    assert_bytes(&out, ROLE(0) LIKELY("\"content\":\"a\"", ENTRY("a", "97", "-1.0"), "null")
                           LIKELY("", ENTRY("\\\\xc3", "195", "-2.0"), "\"stop\""));
    close_exchange();
}

TEST(lists_of_completions)
{
    open_exchange(TEXT, "{\"prompt\":\"a\",\"logprobs\":1}");
    likely(0, 'a', -1);
    likely(0, 0xc3, -2);
    likely(0, 0xa9, -0.5f);
    likely(0, 'z', -0.5f);
    text(0, "aéz");
    finish(0, QN_FINISH_LENGTH, false);
    assert_choice(
        "{\"index\":0,\"text\":\"aéz\",\"logprobs\":{\"tokens\":[\"a\",\"bytes:\\\\xc3\",\"bytes:\\\\xa9\",\"z\"],"
        "\"token_logprobs\":[-1.0,-2.0,-0.5,-0.5],\"top_logprobs\":[{\"z\":-0.5,\"a\":-1.0},{\"z\":-0.5,\"bytes:"
        "\\\\xc3\":-2.0},"
        "{\"z\":-0.5,\"bytes:\\\\xa9\":-0.5},{\"z\":-0.5}],\"text_offset\":[0,1,1,2]},\"finish_reason\":\"length\"}");
}

/* ---- Completions ---- */

#define PART(index, text, why)                                                                                         \
    "data: "                                                                                                           \
    "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":" #index  \
    ",\"text\":\"" text "\",\"logprobs\":null,\"finish_reason\":" why "}]}\n\n"

TEST(completions_stream)
{
    open_exchange(TEXT, "{\"prompt\":[\"p\",\"q\"],\"stream\":true,\"echo\":true}");
    text(1, "b");
    text(0, "a");
    finish(0, QN_FINISH_STOP, false);
    finish(1, QN_FINISH_LENGTH, false);
    ends_with(200);
    assert_bytes(&out, PART(0, "p", "null") PART(1, "q", "null") PART(1, "b", "null") PART(0, "a", "null")
                           PART(0, "", "\"stop\"") PART(1, "", "\"length\"") DONE);
    close_exchange();
}

TEST(whole_completions)
{
    open_exchange(TEXT, "{\"prompt\":[\"p\",\"q\"],\"n\":2,\"echo\":true}");
    for (size_t i = 4; i-- > 0;) {
        text(i, i % 2 ? "b" : "a");
        finish(i, QN_FINISH_STOP, false);
    }
    ends_with(200);
#define CHOICE(index, text) "{\"index\":" #index ",\"text\":\"" text "\",\"logprobs\":null,\"finish_reason\":\"stop\"}"
    assert_bytes(&out, "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\",\"choices\":"
                       "[" CHOICE(0, "pa") "," CHOICE(1, "pb") "," CHOICE(2, "qa") "," CHOICE(
                           3, "qb") "],\"usage\":{\"prompt_tokens\":20,\"completion_"
                                    "tokens\":12,"
                                    "\"total_tokens\":32,\"prompt_tokens_details\":{"
                                    "\"cached_tokens\":8},\"completion_tokens_details\":"
                                    "{\"reasoning_tokens\":0}}}");
    close_exchange();
}

static qn_token end_token(void)
{
    qn_token token = 0;
    while (!qn_token_is_end(model, token))
        token++;
    return token;
}

/* The lists span prompt and answer, the end token of which is listed, too: clients expect one entry for each token that
 * was generated. The prompt ends within a character. */
TEST(completions_repeat_prompts_with_log_probabilities)
{
    open_exchange(TEXT, "{\"prompt\":[97,195,169,195],\"logprobs\":1,\"echo\":true}");
    repeated(0, 0, 'a', 0);
    repeated(0, 1, 0xc3, -1);
    repeated(0, 2, 0xa9, -2);
    repeated(0, 3, 0xc3, -3);
    likely(0, 'b', -4);
    text(0, "b");
    likely(0, end_token(), -5);
    finish(0, QN_FINISH_STOP, false);
    assert_choice(
        "{\"index\":0,\"text\":\"aé\uFFFDb\",\"logprobs\":{\"tokens\":[\"a\",\"bytes:\\\\xc3\",\"bytes:\\\\xa9\","
        "\"bytes:\\\\xc3\",\"b\",\"<|endoftext|>\"],\"token_logprobs\":[null,-1.0,-2.0,-3.0,-4.0,-5.0],"
        "\"top_logprobs\":[null,{\"z\":-0.5,\"bytes:\\\\xc3\":-1.0},{\"z\":-0.5,\"bytes:\\\\xa9\":-2.0},"
        "{\"z\":-0.5,\"bytes:\\\\xc3\":-3.0},{\"z\":-0.5,\"b\":-4.0},{\"z\":-0.5,\"<|endoftext|>\":-5.0}],"
        "\"text_offset\":[0,1,1,2,3,4]},\"finish_reason\":\"stop\"}");
}

#define LISTED(index, text, lists, why)                                                                                \
    "data: "                                                                                                           \
    "{\"id\":\"cmpl-1\",\"object\":\"text_completion\",\"created\":5,\"model\":\"m\",\"choices\":[{\"index\":" #index  \
    ",\"text\":\"" text "\",\"logprobs\":{" lists "},\"finish_reason\":" why "}]}\n\n"
#define LISTS(tokens, chosen, top, offsets)                                                                            \
    "\"tokens\":[" tokens "],\"token_logprobs\":[" chosen "],\"top_logprobs\":[" top "],\"text_offset\":[" offsets "]"

/* Each choice's first chunk has its prompt; a prompt without an answer ends with the limit of tokens. */
TEST(streams_repeat_prompts_with_log_probabilities)
{
    open_exchange(TEXT, "{\"prompt\":[[97],[98,99]],\"logprobs\":1,\"echo\":true,\"stream\":true,\"max_tokens\":1}");
    repeated(1, 0, 'b', 0);
    repeated(0, 0, 'a', 0);
    repeated(1, 1, 'c', -1);
    finish(1, QN_FINISH_LENGTH, false);
    likely(0, 'z', -0.5f);
    text(0, "z");
    finish(0, QN_FINISH_LENGTH, false);
    ends_with(200);
    assert_bytes(&out, LISTED(0, "a", LISTS("\"a\"", "null", "null", "0"), "null")
                           LISTED(1, "bc", LISTS("\"b\",\"c\"", "null,-1.0", "null,{\"z\":-0.5,\"c\":-1.0}", "0,1"),
                                  "null") LISTED(1, "", LISTS("", "", "", ""), "\"length\"")
                               LISTED(0, "z", LISTS("\"z\"", "-0.5", "{\"z\":-0.5}", "1"), "null")
                                   LISTED(0, "", LISTS("", "", "", ""), "\"length\"") DONE);
    close_exchange();
}

/* ---- Streams that wait for their model ---- */

TEST(streams_fail_before_bind)
{
    static const struct {
        const char *path, *body;
    } cases[] = { { "/v1/chat/completions", "{'stream':true,'messages':[{'role':'user','content':'a'}]}" },
                  { "/v1/completions", "{'stream':true,'prompt':'a'}" },
                  { "/completion", "{'stream':true,'prompt':'a'}" },
                  { "/v1/messages", "{'stream':true,'max_tokens':5,'messages':[{'role':'user','content':'a'}]}" },
                  { "/v1/responses", "{'stream':true,'input':'a','model':'o'}" },
                  { "/v1/responses", "{'stream':true,'input':'a'}" } };
    const qn_exchange_origin origin = { .id = "1", .secret = "s" };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].path);
        const qn_protocol *protocol = qn_protocol_find(cases[i].path);
        const char *body = quoted(cases[i].body);
        qn_refusal refusal;
        qn_bytes text = { 0 };
        qn_exchange *exchange = qn_exchange_parse(protocol, body, strlen(body), NULL, &origin, &refusal);
        assert_non_null(exchange);
        qn_refuse(&refusal, 500, "failed", NULL, "it broke");
        (protocol->fail)(exchange, &refusal, &text);
        qn_bytes_add(&text, "", 1);
        assert_false(text.has_failed);
        assert_contains(text.data, "it broke");
        assert_string_equal(text.data + text.length - 3, "\n\n");
        qn_bytes_free(&text);
        qn_exchange_free(exchange);
    }
}

/* Of best_of choices, the n with the greatest mean log probability are answered, in their order; all are counted. */
TEST(the_best_choices_are_answered)
{
    static const float chosen[][2] = { { -1, -3 }, { -0.5f, -0.5f }, { -4, -4 }, { -0.75f, -0.25f } };
    open_exchange(TEXT, quoted("{'prompt':'ab','n':2,'best_of':4}"));
    assert_int_equal(x->n_requests, 4);
    for (size_t i = 0; i < 4; i++) {
        const char letter[] = { (char)('c' + i), 0 };
        assert_int_equal(x->requests[i].n_logprobs, 0);
        assert_true(!i || x->requests[i].sampling.seed != x->requests[0].sampling.seed);
        for (size_t t = 0; t < 2; t++) {
            likely(i, letter[0], chosen[i][t]);
            text(i, letter);
        }
        finish(i, QN_FINISH_LENGTH, false);
    }
    ends_with(200);
    json_t *found = json_loadb(out.data, out.length, 0, NULL), *choices = json_object_get(found, "choices");
    assert_int_equal(json_array_size(choices), 2);
    for (size_t i = 0; i < 2; i++) {
        const json_t *choice = json_array_get(choices, i);
        assert_int_equal(json_integer_value(json_object_get(choice, "index")), i);
        assert_string_equal(json_string_value(json_object_get(choice, "text")), i ? "ff" : "dd");
        assert_true(json_is_null(json_object_get(choice, "logprobs")));
    }
    assert_int_equal(json_integer_value(json_object_get(json_object_get(found, "usage"), "completion_tokens")), 12);
    json_decref(found);
    close_exchange();
}

TEST(streams_have_progress)
{
    const qn_prompt_progress progress = { .n_prompt = 9, .n_reused = 2, .n_done = 5, .seconds = 0.25 };
    const qn_exchange_event event = { .kind = QN_EXCHANGE_PROGRESS, .progress = &progress };
    static const char *const paths[] = { CHAT, "/completion" };
    for (size_t i = 0; i < 2; i++) {
        label("%s", paths[i]);
        open_exchange(paths[i], i ? quoted("{'prompt':'a','stream':true,'return_progress':true}")
                                  : quoted("{'messages':[{'role':'user','content':'Hm?'}],'stream':true,"
                                           "'return_progress':true}"));
        assert_true(x->has_progress);
        out.length = 0;
        give(0, &event);
        qn_bytes_add(&out, "", 1);
        assert_contains(out.data, quoted("'prompt_progress':{'total':9,'cache':2,'processed':5,'time_ms':250}}\n\n"));
        close_exchange();
    }
    open_exchange(CHAT, quoted("{'messages':[{'role':'user','content':'Hm?'}],'return_progress':true}"));
    assert_false(x->has_progress);
    close_exchange();
}

TEST_GROUP(load_vocab, free_vocab)
