/* Memory of requests: promised to a request, to a client and to all, and given back. */
#include "helper_protocol.h"

#include "protocol/json_body.h"

static qn_budget *budget_of(size_t client, size_t server)
{
    qn_budget *budget;
    assert_ok(qn_budget_create(&(qn_budget_limits){ client, server }, &budget));
    return budget;
}

static void assert_status(qn_account *account, int status)
{
    qn_refusal refusal = { 0 };
    assert_false(qn_refuse_over(account, &refusal));
    assert_int_equal(refusal.status, status);
}

TEST(each_limit_is_held)
{
    enum { M = 1 << 20 };
    qn_budget *budget = budget_of(100 * M, QN_REQUEST_MEMORY + 102 * M);
    qn_account *a = qn_account_open(budget, "a"), *b = qn_account_open(budget, "a"), *c = qn_account_open(budget, "c"),
               *d = qn_account_open(budget, "d");
    assert_true(qn_account_take(a, QN_REQUEST_MEMORY));
    assert_false(qn_account_take(a, 1));
    assert_status(a, 413);
    qn_account_raise(a, M);
    assert_true(qn_account_take(a, QN_REQUEST_FACTOR * M));
    assert_false(qn_account_take(a, 1));
    qn_account_raise(b, 100 * M);
    assert_true(qn_account_take(b, 100 * M - QN_REQUEST_MEMORY - 3 * M));
    assert_false(qn_account_take(b, 1));
    assert_status(b, 429);
    assert_true(qn_account_take(c, QN_REQUEST_MEMORY));
    qn_account_raise(c, 100 * M);
    assert_false(qn_account_take(c, 13 * M));
    assert_status(c, 429);
    assert_true(qn_account_take(d, 3 * M)); /* less than an equal part */
    qn_account_give(c, 10 * M);
    assert_false(qn_account_take(d, SIZE_MAX));
    assert_int_equal(qn_budget_used(budget), 100 * M + QN_REQUEST_MEMORY - 7 * M);
    qn_account_hold(a);
    qn_account_release(a);
    assert_true(qn_budget_used(budget) > 100 * M);
    qn_account_release(a);
    qn_account_release(b);
    qn_account_release(c);
    qn_account_release(d);
    assert_int_equal(qn_budget_used(budget), 0);
    qn_budget_free(budget);
}

/* Clients that have all of the server's memory leave others an equal part; all together have twice as much at most. */
TEST(a_part_is_left_for_others)
{
    enum { M = 1 << 20, SERVER = 100 * M, CLIENTS = 200 };
    qn_budget *budget = budget_of(SERVER, SERVER);
    qn_account *accounts[CLIENTS];
    size_t n_refused = 0;
    for (size_t i = 0; i < CLIENTS; i++) {
        char name[16];
        snprintf(name, sizeof name, "%zu", i);
        accounts[i] = qn_account_open(budget, name);
        qn_account_raise(accounts[i], SERVER);
        const bool has_part = qn_account_take(accounts[i], SERVER / (i + 1));
        n_refused += !has_part;
        assert_true(has_part || i > 2);
        assert_true(!has_part || !qn_account_take(accounts[i], SERVER / 2));
        assert_true(qn_budget_used(budget) <= 2 * (size_t)SERVER);
    }
    assert_true(n_refused > 0);
    for (size_t i = 0; i < CLIENTS; i++)
        qn_account_release(accounts[i]);
    assert_int_equal(qn_budget_used(budget), 0);
    qn_budget_free(budget);
}

TEST(nothing_is_an_account)
{
    assert_true(qn_account_take(NULL, SIZE_MAX));
    qn_account_raise(NULL, 1);
    qn_account_give(NULL, 1);
    qn_account_hold(NULL);
    qn_account_release(NULL);
    assert_status(NULL, 500);
}

TEST(bytes_are_promised_as_they_grow)
{
    qn_budget *budget = budget_of(SIZE_MAX, SIZE_MAX);
    qn_account *account = qn_account_open(budget, "a");
    qn_bytes bytes = { .account = account };
    static char block[1 << 20];
    size_t n = 0;
    for (; !bytes.has_failed; n++) {
        qn_bytes_add(&bytes, block, sizeof block);
        assert_int_equal(qn_budget_used(budget), bytes.capacity);
    }
    assert_true(n > QN_REQUEST_MEMORY / sizeof block / 2 && bytes.capacity <= QN_REQUEST_MEMORY);
    assert_int_equal(bytes.length, (n - 1) * sizeof block);
    qn_bytes_free(&bytes);
    assert_int_equal(qn_budget_used(budget), 0);
    qn_bytes_add(&bytes, "a", 1);
    assert_true(!bytes.has_failed && qn_budget_used(budget) > 0);
    qn_bytes_free(&bytes);
    qn_account_release(account);
    qn_budget_free(budget);
}

/* A request from its body to its end: all that it was promised is given back. */
TEST(exchanges_give_all_back)
{
    static const struct {
        const char *path, *body;
    } cases[] = {
        { "/v1/chat/completions",
          "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\",\"tool_calls\":[{\"id\":\"1\","
          "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\":[1,2]}\"}}]}],\"n\":3,\"stop\":[\"a\"]}" },
        { "/v1/completions", "{\"prompt\":[[1,2,3],\"ab\"],\"n\":2,\"echo\":true}" },
        { "/completion",
          "{\"prompt\":[1,\"ab\",2],\"n_cmpl\":2,\"logit_bias\":[[\"ab\",1]],\"response_fields\":[\"prompt\"]}" },
        { "/v1/messages", "{\"max_tokens\":5,\"system\":\"s\",\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}" },
        { "/v1/responses", "{\"input\":\"a\",\"instructions\":\"i\",\"tool_choice\":\"none\"}" },
        { "/tokenize", "{\"content\":\"ab cd\",\"with_pieces\":true}" },
        { "/detokenize", "{\"tokens\":[1,2,3]}" },
        { "/apply-template", "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}" },
        { "/v1/completions", "{\"prompt\":5}" },
        { "/v1/completions", "{\"prompt\":" },
        { "/detokenize", "{\"tokens\":[1,2,\"a\"]}" },
    };
    const qn_exchange_origin origin = { .id = "1", .secret = "s" };
    for (size_t i = 0; i < COUNT(cases); i++) {
        label("%s %s", cases[i].path, cases[i].body);
        qn_refusal refusal;
        qn_budget *budget = budget_of(SIZE_MAX, SIZE_MAX);
        qn_reading reading = { .account = qn_account_open(budget, "a") };
        json_t *json = qn_body_read(cases[i].body, strlen(cases[i].body), &reading, &refusal);
        assert_true(!json || qn_budget_used(budget) > 0);
        qn_exchange *x =
            json ? qn_exchange_create(qn_protocol_find(cases[i].path), json, &reading, &origin, &refusal) : NULL;
        json_decref(json);
        if (x)
            (void)qn_exchange_bind(x, &served, &refusal);
        qn_exchange_free(x);
        qn_account_release(reading.account);
        assert_int_equal(qn_budget_used(budget), 0);
        qn_budget_free(budget);
    }
}

TEST_GROUP(load_vocab, free_vocab)
