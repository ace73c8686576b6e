/* Reasoning that is put back by ids of calls and of reasoning: for whom, where, and what is forgotten. */
#include "helper_protocol.h"

#include "protocol/recall.h"

#include <pthread.h>

static qn_recall *recall; /* of the current test */

static void create_recall(size_t max_answers, size_t max_bytes)
{
    assert_ok(qn_recall_create(max_answers, max_bytes, &recall));
}

static qn_bytes bytes_of(const char *text)
{
    return (qn_bytes){ .data = (char *)(uintptr_t)text, .length = strlen(text) };
}

static void put(const char *scope, const char *id, const char *reasoning, const char *content)
{
    const qn_bytes r = bytes_of(reasoning), c = bytes_of(content);
    qn_recall_put(recall, scope, id, &r, &c);
}

/* A conversation of one message after qn_recall_apply, as text. */
static char *applied(const char *scope, const char *message, size_t *n_changed)
{
    json_t *conversation = json_pack("{s:[o]}", "messages", json_loads(message, 0, NULL));
    assert_non_null(conversation);
    *n_changed = qn_recall_apply(recall, scope, conversation, NULL).n_messages;
    char *text =
        json_dumps(json_array_get(json_object_get(conversation, "messages"), 0), JSON_COMPACT | JSON_SORT_KEYS);
    json_decref(conversation);
    return text;
}

static bool is_known(const char *scope, const char *id)
{
    char message[200];
    size_t n;
    snprintf(message, sizeof message, "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"%s\"}]}", id);
    free(applied(scope, message, &n));
    return n == 1;
}

#define CALLS "\"tool_calls\":[{\"id\":\"other\"},{\"id\":\"call_1\"}]"

TEST(messages_get_their_reasoning)
{
    static const struct {
        const char *message, *content, *reasoning; /* NULL: unchanged */
    } cases[] = {
        { "{\"role\":\"assistant\"," CALLS "}", "\n\nLet me see.", "I think.\n" },
        { "{\"role\":\"assistant\",\"content\":null," CALLS "}", "\n\nLet me see.", "I think.\n" },
        { "{\"role\":\"assistant\",\"content\":\"\"," CALLS "}", "\n\nLet me see.", "I think.\n" },
        { "{\"role\":\"assistant\",\"content\":\" Let me see. \\n\"," CALLS "}", "\n\nLet me see.", "I think.\n" },
        { "{\"role\":\"assistant\",\"reasoning_content\":\"\"," CALLS "}", "\n\nLet me see.", "I think.\n" },
        { "{\"role\":\"assistant\",\"reasoning_content\":null," CALLS "}", "\n\nLet me see.", "I think.\n" },
        { "{\"role\":\"assistant\",\"reasoning_id\":\"rs_0_1\",\"content\":\"Let me see.\"}", "\n\nLet me see.",
          "I think.\n" },
        { "{\"role\":\"assistant\",\"reasoning_id\":\"rs_0_2\"," CALLS "}", "\n\nLet me see.", "I think.\n" },
        { "{\"role\":\"assistant\",\"reasoning_id\":\"rs_0_1\",\"reasoning_content\":\"mine\"}", NULL, NULL },
        { "{\"role\":\"assistant\",\"reasoning_id\":\"rs_0_1\",\"content\":\"Let me go.\"}", NULL, NULL },
        { "{\"role\":\"assistant\",\"reasoning_id\":\"rs_0_2\"}", NULL, NULL },
        { "{\"role\":\"assistant\",\"reasoning_id\":\"rs_0_\"}", NULL, NULL },
        { "{\"role\":\"assistant\",\"reasoning_id\":7}", NULL, NULL },
        { "{\"role\":\"user\",\"reasoning_id\":\"rs_0_1\"}", NULL, NULL },
        { "{\"role\":\"assistant\",\"content\":\"Let me go.\"," CALLS "}", NULL, NULL },
        { "{\"role\":\"assistant\",\"content\":\"Let me see\"," CALLS "}", NULL, NULL },
        { "{\"role\":\"assistant\",\"content\":[{\"type\":\"text\",\"text\":\"x\"}]," CALLS "}", NULL, NULL },
        { "{\"role\":\"assistant\",\"reasoning_content\":\"mine\"," CALLS "}", NULL, NULL },
        { "{\"role\":\"user\"," CALLS "}", NULL, NULL },
        { "{" CALLS "}", NULL, NULL },
        { "{\"role\":7," CALLS "}", NULL, NULL },
        { "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"call_2\"}]}", NULL, NULL },
        { "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":1},{},7]}", NULL, NULL },
        { "{\"role\":\"assistant\",\"tool_calls\":{\"id\":\"call_1\"}}", NULL, NULL },
        { "{\"role\":\"assistant\",\"tool_call_id\":\"call_1\"}", NULL, NULL },
        { "[\"call_1\"]", NULL, NULL },
    };
    create_recall(0, 0);
    put("scope", "1", "I think.\n", "\n\nLet me see.");
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].message);
        size_t n;
        json_t *before = json_loads(cases[i].message, 0, NULL);
        char *text = applied("scope", cases[i].message, &n);
        json_t *after = json_loads(text, 0, NULL);
        assert_int_equal(n, cases[i].reasoning != NULL);
        assert_int_equal(json_equal(before, after), !cases[i].reasoning);
        if (cases[i].reasoning) {
            assert_string_equal(json_string_value(json_object_get(after, "reasoning_content")), cases[i].reasoning);
            assert_string_equal(json_string_value(json_object_get(after, "content")), cases[i].content);
        }
        json_decref(before);
        json_decref(after);
        free(text);
        free(applied("another scope", cases[i].message, &n));
        assert_int_equal(n, 0);
    }
    assert_int_equal(qn_recall_apply(recall, "scope", NULL, NULL).n_messages, 0);
    qn_recall_free(recall);
}

/* An answer is put back into one message: others that name it do not multiply it. Its texts are promised before. */
TEST(an_answer_is_put_back_once)
{
    enum { MESSAGES = 100, BYTES = 1 << 20 };
    qn_budget *budget;
    static char long_text[BYTES + 1];
    json_t *messages = json_array(), *conversation = json_pack("{s:o}", "messages", messages);
    memset(long_text, 'a', BYTES);
    create_recall(0, 0);
    assert_ok(qn_budget_create(&(qn_budget_limits){ SIZE_MAX, SIZE_MAX }, &budget));
    qn_account *account = qn_account_open(budget, "a");
    put("scope", "1", long_text, "b");
    put("scope", "2", "c", "d");
    for (int i = 0; i < MESSAGES; i++)
        json_array_append_new(
            messages, json_pack("{s:s, s:s}", "role", "assistant", "reasoning_id", i == 50 ? "rs_0_2" : "rs_0_1"));
    qn_recalled recalled = qn_recall_apply(recall, "scope", conversation, account);
    assert_int_equal(recalled.n_messages, 2);
    assert_true(recalled.n_bytes > BYTES && recalled.n_bytes < BYTES + 1000 &&
                qn_budget_used(budget) == recalled.n_bytes);
    assert_true(qn_account_take(account, QN_REQUEST_MEMORY - BYTES - 500));
    json_decref(conversation);
    conversation = json_pack("{s:[{s:s, s:s}]}", "messages", "role", "assistant", "reasoning_id", "rs_0_1");
    assert_int_equal(qn_recall_apply(recall, "scope", conversation, account).n_messages, 0);
    json_decref(conversation);
    qn_account_release(account);
    qn_budget_free(budget);
    qn_recall_free(recall);
}

TEST(the_oldest_is_forgotten)
{
    create_recall(3, 0);
    put("s", "a", "1", "");
    put("s", "b", "2", "");
    put("s", "c", "3", "");
    assert_true(is_known("s", "a"));
    put("s", "d", "4", "");
    assert_false(is_known("s", "b"));
    assert_true(is_known("s", "a") && is_known("s", "c") && is_known("s", "d"));
    put("s", "a", "again", "");
    size_t n;
    char *text = applied("s", "{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"a\"}]}", &n);
    assert_contains(text, "\"again\"");
    free(text);
    qn_recall_free(recall);
}

TEST(bytes_are_bounded)
{
    static char large[10000];
    char id[16];
    size_t n_known = 0;
    memset(large, 'x', sizeof large - 1);
    create_recall(0, 50000);
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "id%d", i);
        put("s", id, large, "");
    }
    for (int i = 0; i < 20; i++) {
        snprintf(id, sizeof id, "id%d", i);
        n_known += is_known("s", id);
    }
    assert_int_equal(n_known, 4);
    assert_true(is_known("s", "id19"));
    qn_recall_free(recall);
    create_recall(0, 5000);
    put("s", "small", "r", "");
    put("s", "large", large, "");
    assert_false(is_known("s", "large"));
    assert_true(is_known("s", "small"));
    qn_recall_free(recall);
}

/* A scope with many answers, or large ones, makes room by its own. */
TEST(scopes_keep_theirs)
{
    enum { PLACES = 20, KEPT = 8 };
    char id[32];
    static char large[10001];
    memset(large, 'x', sizeof large - 1);
    for (int by_bytes = 0; by_bytes < 2; by_bytes++) {
        label("by bytes %d", by_bytes);
        create_recall(by_bytes ? 0 : PLACES, by_bytes ? 100000 : 0);
        for (int i = 0; i < KEPT; i++) {
            snprintf(id, sizeof id, "id%d", i);
            put("a", id, "r", "");
        }
        for (int i = 0; i < 10 * PLACES; i++) {
            snprintf(id, sizeof id, "id%d", i);
            put("b", id, by_bytes ? large : "r", "");
        }
        for (int i = 0; i < KEPT; i++) {
            snprintf(id, sizeof id, "id%d", i);
            assert_true(is_known("a", id));
            assert_false(is_known("b", id));
        }
        assert_true(is_known("b", "id199"));
        for (int i = 0; i < PLACES; i++) { /* a newcomer has a place */
            snprintf(id, sizeof id, "%d", i);
            put(id, "id", "r", "");
            assert_true(is_known(id, "id"));
        }
        qn_recall_free(recall);
    }
}

/* ---- Answers of exchanges ---- */

static void give(qn_recall_answer *answer, qn_output_event_kind kind, const char *text, size_t call,
                 qn_output_call_end end)
{
    qn_recall_take(answer, &(qn_output_event){
                               .kind = kind, .text = text, .length = strlen(text), .call = call, .call_end = end });
}

/* Whether a member of a message, which has an id in its text, brings back what `think` and the content were. */
static bool is_kept(const char *before, const char *id, const char *after)
{
    char message[300];
    size_t n;
    snprintf(message, sizeof message, "{\"role\":\"assistant\",%s\"%s\"%s}", before, id, after);
    char *text = applied("s", message, &n);
    assert_true(n == 0 || strstr(text, "\"content\":\"c\",\"reasoning_content\":\"I think\""));
    free(text);
    return n == 1;
}

static void think(qn_recall_answer *answer)
{
    give(answer, QN_OUTPUT_REASONING, "I ", 0, QN_OUTPUT_COMPLETE);
    give(answer, QN_OUTPUT_REASONING, "think", 0, QN_OUTPUT_COMPLETE);
}

TEST(answers_are_kept_by_their_calls)
{
    static const char body[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"x\"}],\"n\":2}";
    qn_exchange *exchange = must_take("/v1/chat/completions", body);
    char id[QN_CALL_ID_BYTES], other[QN_CALL_ID_BYTES];
    qn_recall_answer answer = { 0 };
    qn_exchange_call_id(exchange, 1, 1, id);
    qn_exchange_call_id(exchange, 0, 1, other);
    create_recall(0, 0);

    /* Nothing to restore: no reasoning, or no call. */
    give(&answer, QN_OUTPUT_CALL_END, "<call>", 0, QN_OUTPUT_COMPLETE);
    qn_recall_keep(recall, "s", exchange, 1, &answer);
    assert_false(is_known("s", id));
    think(&answer);
    give(&answer, QN_OUTPUT_CALL_END, "<call>", 0, QN_OUTPUT_CUT);
    qn_recall_keep(recall, "s", exchange, 1, &answer);
    assert_false(is_known("s", id));

    think(&answer);
    give(&answer, QN_OUTPUT_CALL_BEGIN, "f", 0, QN_OUTPUT_COMPLETE);
    give(&answer, QN_OUTPUT_CALL_END, "<broken>", 0, QN_OUTPUT_BROKEN);
    give(&answer, QN_OUTPUT_CONTENT, "c", 0, QN_OUTPUT_COMPLETE);
    give(&answer, QN_OUTPUT_CALL_END, "<call>", 1, QN_OUTPUT_COMPLETE);
    give(&answer, QN_OUTPUT_CALL_END, "<call>", 2, QN_OUTPUT_COMPLETE);
    qn_recall_keep(recall, "s", exchange, 1, &answer);
    assert_null(answer.reasoning.data);
    assert_false(is_known("s", other));
    assert_true(is_kept("\"tool_calls\":[{\"id\":", id, "}]"));
    think(&answer);
    qn_recall_answer_free(&answer);
    assert_null(answer.reasoning.data);
    qn_recall_free(recall);
    qn_exchange_free(exchange);
}

/* Protocols with ids of reasoning need no call. */
TEST(answers_are_kept_by_their_reasoning)
{
    static const struct {
        const char *path, *body;
    } cases[] = { { "/v1/messages", "{\"max_tokens\":9,\"messages\":[{\"role\":\"user\",\"content\":\"x\"}]}" },
                  { "/v1/responses", "{\"input\":\"x\"}" } };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s", cases[i].path);
        qn_exchange *exchange = must_take(cases[i].path, cases[i].body);
        char id[QN_CALL_ID_BYTES];
        qn_recall_answer answer = { 0 };
        create_recall(0, 0);
        qn_exchange_reasoning_id(exchange, 0, 0, id);
        think(&answer);
        give(&answer, QN_OUTPUT_CONTENT, "c", 0, QN_OUTPUT_COMPLETE);
        qn_recall_keep(recall, "s", exchange, 0, &answer);
        assert_true(is_kept("\"reasoning_id\":", id, ""));
        qn_recall_free(recall);
        qn_exchange_free(exchange);
    }
}

/* ---- Threads ---- */

static void *use(void *unused)
{
    char id[16];
    for (int i = 0; i < 2000; i++) {
        snprintf(id, sizeof id, "id%d", i * 7 % 40);
        put("s", id, "reasoning", "content");
        snprintf(id, sizeof id, "id%d", i * 11 % 40);
        (void)is_known("s", id);
    }
    return unused;
}

TEST(threads_share_it)
{
    pthread_t threads[4];
    create_recall(20, 0);
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use, NULL), 0);
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    qn_recall_free(recall);
}

TEST_GROUP(load_vocab, free_vocab)
