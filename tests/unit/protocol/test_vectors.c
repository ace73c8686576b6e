/* Exchanges of embeddings: bodies in all forms, the requests that they become, and the vectors of their answers. */
#include "helper_answers.h"

#define OPENAI "/v1/embeddings"
#define LLAMA "/embedding"
#define EMBED "/api/embed"
#define OLD "/api/embeddings"

static const float VECTOR[] = { 3, -4, 0 };

static void vector(size_t request)
{
    give(request, &(qn_exchange_event){ .kind = QN_EXCHANGE_EMBEDDING, .embedding = VECTOR, .length = 3 });
}

/* The first request's vector, as the body asks for it. */
static void check_answer(const char *path, const char *body, const char *expected)
{
    label("%s %s", path, body);
    open_exchange(path, quoted(body));
    for (size_t i = 0; i < x->n_requests; i++) {
        vector(i);
        finish(i, QN_FINISH_LENGTH, false);
    }
    assert_bytes(&out, "");
    ends_with(200);
    assert_bytes(&out, quoted(expected));
    close_exchange();
}

#define ITEM(index, values) "{'object':'embedding','index':" #index ",'embedding':" values "}"
#define LIST(items, n)                                                                                                 \
    "{'object':'list','data':[" items "],'model':'m','usage':{'prompt_tokens':" n ",'total_tokens':" n "}}"

TEST(answers_have_their_form)
{
    check_answer(OPENAI, "{'input':'ab'}", LIST(ITEM(0, "[0.6,-0.8,0.0]"), "10"));
    check_answer(OPENAI, "{'input':['ab',[1,2],'c'],'encoding_format':'float'}",
                 LIST(ITEM(0, "[0.6,-0.8,0.0]") "," ITEM(1, "[0.6,-0.8,0.0]") "," ITEM(2, "[0.6,-0.8,0.0]"), "30"));
    check_answer(OPENAI, "{'input':[7,8],'encoding_format':'base64'}", LIST(ITEM(0, "'mpkZP83MTL8AAAAA'"), "10"));
    check_answer(LLAMA, "{'content':'ab'}", "[{'index':0,'embedding':[[0.6,-0.8,0.0]]}]");
    check_answer("/embeddings", "{'input':'ab','embd_normalize':-1}", "[{'index':0,'embedding':[[3.0,-4.0,0.0]]}]");
    check_answer(LLAMA, "{'input':'ab','embd_normalize':1}", "[{'index':0,'embedding':[[0.42857143,-0.5714286,0.0]]}]");
    check_answer(LLAMA, "{'input':'ab','embd_normalize':0}", "[{'index':0,'embedding':[[24570.0,-32760.0,0.0]]}]");
    check_answer(LLAMA, "{'input':'ab','embd_normalize':3}", "[{'index':0,'embedding':[[0.6669718,-0.8892957,0.0]]}]");
    check_answer(OLD, "{'model':'m','prompt':'ab'}", "{'embedding':[3.0,-4.0,0.0]}");
    check_answer(EMBED, "{'model':'m:latest','input':['ab','c']}",
                 "{'model':'m','created_at':'1970-01-01T00:00:05Z','embeddings':[[0.6,-0.8,0.0],[0.6,-0.8,0.0]],"
                 "'total_duration':2000000000,'load_duration':0,'prompt_eval_count':20}");
}

TEST(base64_is_padded)
{
    static const char *const expected[] = { "\"AACAPw==\"", "\"mpkZP83MTL8=\"" };
    for (size_t n = 1; n <= 2; n++) {
        open_exchange(OPENAI, quoted("{'input':'ab','encoding_format':'base64'}"));
        give(0, &(qn_exchange_event){ .kind = QN_EXCHANGE_EMBEDDING, .embedding = VECTOR, .length = n });
        finish(0, QN_FINISH_LENGTH, false);
        ends_with(200);
        assert_contains(out.data, expected[n - 1]);
        close_exchange();
    }
}

TEST(requests_are_of_the_inputs)
{
    qn_exchange *one = must_take(OPENAI, "{\"input\":[\"ab\",[1,2,3]],\"pooling\":\"cls\"}");
    assert_int_equal(one->n_requests, 2);
    assert_int_equal(one->requests[0].n_tokens, 2);
    assert_int_equal(one->requests[1].n_tokens, 3);
    assert_int_equal(one->requests[1].tokens[2], 3);
    assert_int_equal(one->requests[1].max_tokens, 0);
    assert_int_equal(one->requests[1].pooling, QN_POOLING_CLS);
    assert_non_null(one->warning);
    qn_exchange_free(one);
    static const qn_token mixed[] = { 7, 'b', 'c', 8, 'd' };
    one = must_take(OPENAI, "{\"input\":[[7,\"bc\",8,\"d\"],\"e\",[5,6]]}");
    assert_int_equal(one->n_requests, 3);
    assert_int_equal(one->requests->n_tokens, 5);
    assert_memory_equal(one->requests->tokens, mixed, sizeof mixed);
    assert_int_equal(one->requests[2].n_tokens, 2);
    qn_exchange_free(one);
    one = must_take(OPENAI, "{\"input\":[\"b\",7]}");
    assert_int_equal(one->n_requests, 1);
    assert_int_equal(one->requests->n_tokens, 2);
    qn_exchange_free(one);
    one = must_take(OPENAI, "{\"input\":\"ab\"}");
    assert_int_equal(one->requests->pooling, QN_POOLING_LAST);
    qn_exchange_free(one);
    served.pooling = QN_POOLING_MEAN;
    one = must_take(EMBED, "{\"model\":\"m\",\"input\":\"ab\"}");
    assert_int_equal(one->requests->pooling, QN_POOLING_MEAN);
    qn_exchange_free(one);
    served.pooling = QN_POOLING_NONE;
}

TEST(long_inputs_are_cut_or_refused)
{
    char body[400] = "{\"model\":\"m\",\"input\":[\"", *at = body + strlen(body);
    memset(at, 'a', 150);
    strcpy(at + 150, "\"],\"truncate\":true}");
    qn_exchange *cut = must_take(EMBED, body);
    assert_int_equal(cut->requests->n_tokens, served.n_ctx);
    qn_exchange_free(cut);
    strcpy(at + 150, "\"],\"truncate\":false}");
    assert_refused(EMBED, body, NULL, "", "150 tokens");
    assert_refused(OPENAI, body, NULL, "", "150 tokens");
}

/* A text whose bytes exceed those of the context's longest tokens is not tokenised: its number of tokens is a bound. */
TEST(hopeless_inputs_are_not_tokenised)
{
    enum { N = 100000 };
    static char body[N + 100];
    const size_t least = qn_least_tokens(served.model, N);
    char text[100];
    assert_in_range(least, served.n_ctx + 1, N - 1);
    snprintf(text, sizeof text, "%d bytes, at least %zu tokens", N, least);
    char *at = body + sprintf(body, "{\"model\":\"m\",\"input\":\"");
    memset(at, 'a', N);
    strcpy(at + N, "\"}");
    assert_refused(OPENAI, body, NULL, "", text);
    strcpy(at + N, "\",\"truncate\":true}");
    qn_exchange *cut = must_take(EMBED, body);
    assert_int_equal(cut->requests->n_tokens, served.n_ctx);
    qn_exchange_free(cut);
}

TEST(wrong_bodies_are_refused)
{
    static const struct {
        const char *path, *body, *param, *part;
    } wrong[] = {
        { OPENAI, "{}", "input", "missing" },
        { OPENAI, "{'input':null}", "input", "missing" },
        { OPENAI, "{'input':5}", "input", "an integer" },
        { OPENAI, "{'input':[]}", "input", "an empty array" },
        { OPENAI, "{'input':[[]]}", "input", "an empty array" },
        { OPENAI, "{'input':[{}]}", "input", "an object" },
        { OPENAI, "{'input':[1,'a',[]]}", "input", "an empty array" },
        { OPENAI, "{'input':['a',[5,{}]]}", "input", "an object" },
        { OPENAI, "{'input':['a',-5]}", "input", "an integer" },
        { OPENAI, "{'input':['a',0.5]}", "input", "0.5" },
        { OPENAI, "{'input':['a','']}", "input", "input 1 has no tokens" },
        { OPENAI, "{'input':'a','encoding_format':'hex'}", "encoding_format", "hex" },
        { OPENAI, "{'input':'a','dimensions':0}", "dimensions", "0" },
        { OPENAI, "{'input':'a','dimensions':9999}", "dimensions", "the model's embeddings have" },
        { OPENAI, "{'input':'a','pooling':'rank'}", "pooling", "rank" },
        { OPENAI, "{'input':'a','model':5}", "model", "an integer" },
        { LLAMA, "{'input':'a','embd_normalize':-2}", "embd_normalize", "-2" },
        { EMBED, "{'input':'a'}", "model", "missing" },
        { EMBED, "{'input':'a','model':'m','truncate':1}", "truncate", "an integer" },
        { OLD, "{'model':'m'}", "prompt", "missing" },
        { OLD, "{'model':'m','prompt':['a']}", "prompt", "an array" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_refused(wrong[i].path, quoted(wrong[i].body), NULL, wrong[i].param, wrong[i].part);
    const qn_protocol_limits limits = { .inputs = 2 };
    assert_refused(OPENAI, quoted("{'input':['a','b','c']}"), &limits, "input", "3 inputs, at most 2");
    served.max_inputs = 1;
    assert_refused(OPENAI, quoted("{'input':['a','b']}"), NULL, "input", "2 inputs, at most 1");
    served.max_inputs = 0;
}

/* An answer with a vector missing, or with an error, is an error. */
TEST(failures_are_reported)
{
    static const char *const paths[] = { OPENAI, LLAMA };
    for (size_t i = 0; i < 2; i++) {
        open_exchange(paths[i], quoted("{'input':['a','b']}"));
        vector(0);
        finish(0, QN_FINISH_LENGTH, false);
        end_with(1, QN_FINISH_ERROR, QN_ERR_DEVICE, false);
        ends_with(503);
        assert_contains(out.data, "device_failed");
        close_exchange();
        open_exchange(paths[i], quoted("{'input':['a','b']}"));
        vector(1);
        finish(0, QN_FINISH_CANCELLED, false);
        finish(1, QN_FINISH_LENGTH, false);
        ends_with(500);
        assert_contains(out.data, "input 0 was not evaluated");
        close_exchange();
    }
}

TEST_GROUP(load_vocab, free_vocab)
