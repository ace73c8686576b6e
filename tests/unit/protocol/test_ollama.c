/* Ollama's chats and texts: bodies become those of chats and completions, answers are objects or lines of them. */
#include "helper_answers.h"

#define CHAT "/api/chat"
#define TEXT "/api/generate"
#define HEAD "{'model':'m','created_at':'1970-01-01T00:00:05Z',"
#define PIECE(member) HEAD "'message':{'role':'assistant'," member "},'done':false}\n"
#define TIMES                                                                                                          \
    "'total_duration':3500000000,'load_duration':0,'prompt_eval_count':10,'prompt_eval_duration':2000000000,"          \
    "'eval_count':3,'eval_duration':1500000000}"

static void open_body(const char *path, const char *body)
{
    open_exchange(path, quoted(body));
}

/* A text may have more than `quoted` takes at once. */
static void assert_out(const char *expected)
{
    assert_bytes(&out, quoted(expected));
}

TEST(chats_are_lines)
{
    open_body(CHAT, "{'model':'m','messages':[{'role':'user','content':'Hm?'}]}");
    assert_true(x->is_stream);
    reasoning_text(0, "Hm.");
    assert_out(PIECE("'content':'','thinking':'Hm.'"));
    content(0, "So");
    assert_out(PIECE("'content':'So'"));
    finish(0, QN_FINISH_STOP, false);
    assert_out(HEAD "'message':{'role':'assistant','content':''},'done':true,'done_reason':'stop'," TIMES "\n");
    ends_with(200);
    assert_bytes(&out, "");
    close_exchange();
}

/* A call is sent whole. One that was cut is not sent, one that is none is text. */
TEST(calls_are_objects)
{
    char id[QN_CALL_ID_BYTES], expected[1000];
    for (int is_stream = 0; is_stream < 2; is_stream++) {
        char body[300];
        snprintf(body, sizeof body,
                 "{'model':'m','stream':%s,'messages':[{'role':'user','content':'Hm?'}],'tools':[{'function':{'name':"
                 "'f','parameters':{'type':'object'}}}]}",
                 is_stream ? "true" : "false");
        open_body(CHAT, body);
        begin_call(0, 0, "f");
        arguments(0, 0, "{\"a\":");
        arguments(0, 0, "[1]}");
        end_call(0, 0, "<raw>", QN_OUTPUT_COMPLETE);
        begin_call(0, 1, "g");
        arguments(0, 1, "{");
        end_call(0, 1, "<broken>", QN_OUTPUT_BROKEN);
        begin_call(0, 2, "h");
        end_call(0, 2, "<cut>", QN_OUTPUT_CUT);
        qn_exchange_call_id(x, 0, 0, id);
        snprintf(expected, sizeof expected,
                 is_stream ? HEAD
                     "'message':{'role':'assistant','content':'','tool_calls':[{'id':'%s','function':{"
                     "'index':0,'name':'f','arguments':{'a':[1]}}}]},'done':false}\n" PIECE("'content':'<broken>'")
                           : HEAD "'message':{'role':'assistant','content':'<broken>','tool_calls':[{'id':'%s',"
                                  "'function':{'index':0,'name':'f','arguments':{'a':[1]}}}]},'done':true,"
                                  "'done_reason':'length'," TIMES,
                 id);
        if (is_stream)
            assert_out(expected);
        finish(0, QN_FINISH_LENGTH, false);
        if (is_stream)
            out.length = 0;
        ends_with(200);
        if (!is_stream)
            assert_out(expected);
        close_exchange();
    }
}

TEST(texts_have_their_response)
{
    open_body(TEXT, "{'model':'m','prompt':'a','system':'s','stream':false}");
    assert_true(x->has_events);
    content(0, "b");
    finish(0, QN_FINISH_STOP, false);
    ends_with(200);
    assert_out(HEAD "'response':'b','done':true,'done_reason':'stop'," TIMES);
    close_exchange();
    open_body(TEXT, "{'model':'m','prompt':'ab','raw':true,'stream':false,'options':{'num_predict':3}}");
    assert_false(x->has_events);
    assert_int_equal(x->requests->n_tokens, 2);
    assert_int_equal(x->requests->max_tokens, 3);
    text(0, "c");
    finish(0, QN_FINISH_LENGTH, false);
    ends_with(200);
    assert_out(HEAD "'response':'c','done':true,'done_reason':'length'," TIMES);
    close_exchange();
}

/* Without anything to answer the model is loaded. */
TEST(nothing_is_a_load)
{
    static const char *const bodies[][2] = { { CHAT, "{'model':'m','messages':[],'stream':false}" },
                                             { CHAT, "{'model':'m','stream':false,'keep_alive':0}" },
                                             { TEXT, "{'model':'m','stream':false}" },
                                             { TEXT, "{'name':'m','prompt':'','stream':false}" } };
    for (size_t i = 0; i < 4; i++) {
        label("%s", bodies[i][1]);
        open_body(bodies[i][0], bodies[i][1]);
        assert_int_equal(x->n_requests, 0);
        ends_with(200);
        assert_out(i < 2 ? HEAD "'message':{'role':'assistant','content':''},'done':true,'done_reason':'load'}"
                         : HEAD "'response':'','done':true,'done_reason':'load'}");
        close_exchange();
    }
}

static qn_exchange *take(const char *path, const char *body)
{
    return must_take(path, quoted(body));
}

TEST(options_are_values_of_sampling)
{
    qn_exchange *e = take(CHAT, "{'model':'m','messages':[{'role':'user','content':'a'}],'options':{'temperature':0.5,"
                                "'top_k':3,'top_p':0.25,'min_p':0.125,'seed':9,'num_predict':17,'repeat_last_n':-1,"
                                "'repeat_penalty':1.25,'presence_penalty':1,'frequency_penalty':-1,'typical_p':0.5,"
                                "'mirostat':2,'mirostat_tau':3,'mirostat_eta':0.5,'stop':['x','y'],'tfs_z':1,"
                                "'num_ctx':4096,'num_gpu':5,'penalize_newline':true},'keep_alive':'5m'}");
    const qn_request_params *p = e->requests;
    const qn_sampling *s = &p->sampling;
    assert_true(s->temperature == 0.5f && s->top_k == 3 && s->top_p == 0.25f && s->min_p == 0.125f && s->seed == 9);
    assert_true(s->repeat_last_n == INT32_MAX && s->repeat_penalty == 1.25f && s->presence_penalty == 1);
    assert_true(s->frequency_penalty == -1 && s->typical_p == 0.5f && s->mirostat == 2 && s->mirostat_tau == 3);
    assert_int_equal(p->max_tokens, 17);
    assert_int_equal(p->n_stop, 2);
    assert_string_equal(p->stop[1], "y");
    qn_exchange_free(e);
    for (int i = -2; i <= 0; i++) {
        char body[200];
        snprintf(body, sizeof body,
                 "{'model':'m','messages':[{'role':'user','content':'a'}],'options':{'num_predict':%d}}", i);
        e = take(CHAT, body);
        assert_int_equal(e->requests->max_tokens, -1);
        qn_exchange_free(e);
    }
}

TEST(messages_become_a_conversation)
{
    assert_conversation(
        CHAT,
        quoted("{'model':'m','messages':[{'role':'system','content':'s'},{'role':'user','content':'a'},{'role':"
               "'assistant','thinking':'t','tool_calls':[{'function':{'name':'f','arguments':{'b':1}}}]},{'role':"
               "'tool','tool_name':'f','content':'c'}],'think':false}"),
        quoted("{'add_generation_prompt':true,'enable_thinking':false,'messages':[{'role':'system','content':'s'},"
               "{'role':'user','content':'a'},{'role':'assistant','content':'','reasoning_content':'t','tool_calls':["
               "{'type':'function','function':{'name':'f','arguments':{'b':1}}}]},{'role':'tool','tool_name':'f',"
               "'name':'f','content':'c'}]}"));
    assert_conversation(
        TEXT, quoted("{'model':'m','prompt':'a','system':'s','think':'low'}"),
        quoted("{'add_generation_prompt':true,'reasoning_effort':'low','messages':[{'role':'system','content':'s'},"
               "{'role':'user','content':'a'}]}"));
}

TEST(formats_constrain)
{
    static const struct {
        const char *format;
        bool is_constrained;
    } formats[] = { { "'json'", true }, { "{'type':'object'}", true }, { "''", false }, { "null", false } };
    for (size_t i = 0; i < 4; i++) {
        char body[200];
        snprintf(body, sizeof body, "{'model':'m','prompt':'a','format':%s}", formats[i].format);
        qn_exchange *e = take(TEXT, body);
        assert_int_equal(e->requests->grammar != NULL, formats[i].is_constrained);
        qn_exchange_free(e);
    }
}

TEST(logprobs_are_listed)
{
    open_body(TEXT, "{'model':'m','prompt':'a','raw':true,'stream':false,'logprobs':true,'top_logprobs':1}");
    assert_int_equal(x->requests->n_logprobs, 1);
    likely(0, 'b', -0.25f);
    text(0, "b");
    finish(0, QN_FINISH_LENGTH, false);
    ends_with(200);
    assert_contains(out.data, quoted("'logprobs':[{'token':'b','logprob':-0.25,'bytes':[98],'top_logprobs':[{"));
    close_exchange();
}

TEST(wrong_bodies_are_refused)
{
#define ASK "'messages':[{'role':'user','content':'a'}]"
    static const struct {
        const char *path, *body, *param, *part;
    } wrong[] = {
        { CHAT, "{" ASK "}", "model", "missing" },
        { CHAT, "{'model':''," ASK "}", "model", "an empty string" },
        { CHAT, "{'model':'m','messages':5}", "messages", "an integer" },
        { CHAT, "{'model':'m','messages':[5]}", "messages", "an integer" },
        { CHAT, "{'model':'m','messages':[{'role':'x','content':'a'}]}", "messages[0].role", "x" },
        { CHAT, "{'model':'m','messages':[{'role':'user','content':'a','images':['QQ==']}]}", "messages", "images" },
        { CHAT, "{'model':'m'," ASK ",'stream':1}", "stream", "an integer" },
        { CHAT, "{'model':'m'," ASK ",'options':5}", "options", "an integer" },
        { CHAT, "{'model':'m'," ASK ",'options':{'temperature':'a'}}", "temperature", "a string" },
        { CHAT, "{'model':'m'," ASK ",'options':{'num_predict':'a'}}", "num_predict", "a string" },
        { CHAT, "{'model':'m'," ASK ",'options':{'tfs_z':0.5}}", "tfs_z", "not supported" },
        { CHAT, "{'model':'m'," ASK ",'options':{'mirostat':1}}", "mirostat", "1" },
        { CHAT, "{'model':'m'," ASK ",'format':'xml'}", "format", "xml" },
        { CHAT, "{'model':'m'," ASK ",'format':5}", "format", "5" },
        { CHAT, "{'model':'m'," ASK ",'think':5}", "think", "an integer" },
        { CHAT, "{'model':'m'," ASK ",'think':'x'}", "reasoning_effort", "x" },
        { CHAT, "{'model':'m'," ASK ",'tools':5}", "tools", "an integer" },
        { CHAT, "{'model':'m'," ASK ",'tools':[{}]}", "tools[0]", "function" },
        { TEXT, "{'prompt':'a'}", "model", "missing" },
        { TEXT, "{'model':'m','prompt':5}", "prompt", "an integer" },
        { TEXT, "{'model':'m','prompt':'a','system':5}", "system", "an integer" },
        { TEXT, "{'model':'m','prompt':'a','template':'x'}", "template", "not supported" },
        { TEXT, "{'model':'m','prompt':'a','context':[1]}", "context", "not supported" },
        { TEXT, "{'model':'m','prompt':'a','images':['QQ==']}", "images", "images" },
        { TEXT, "{'model':'m','prompt':'a','raw':1}", "raw", "an integer" },
        { TEXT, "{'model':'m','prompt':'a','raw':true,'logprobs':2}", "logprobs", "an integer" },
        { "/api/show", "{}", "model", "missing" },
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_refused(wrong[i].path, quoted(wrong[i].body), NULL, wrong[i].param, wrong[i].part);
    qn_refusal refusal = { 0 };
    assert_null(exchange_of(TEXT, quoted("{'model':'m','prompt':'a','suffix':'b'}"), NULL, &refusal));
    assert_int_equal(refusal.status, 501);
    qn_protocol_find(CHAT)->refuse(&refusal, &out);
    assert_contains(out.data, "{\"error\":\"the model's vocabulary has no tokens");
    qn_bytes_free(&out);
}

TEST(errors_end_streams)
{
    open_body(CHAT, "{'model':'m','messages':[{'role':'user','content':'Hm?'}]}");
    content(0, "a");
    out.length = 0;
    end_with(0, QN_FINISH_ERROR, QN_ERR_DEVICE, false);
    qn_bytes_add(&out, "", 1);
    assert_contains(out.data, "{\"error\":\"");
    assert_string_equal(strchr(out.data, '}'), "}\n");
    close_exchange();
}

TEST(a_model_is_shown)
{
    open_body("/api/show", "{'name':'m:latest'}");
    assert_string_equal(x->model, "m");
    ends_with(200);
    json_t *found = json_loadb(out.data, out.length, 0, NULL);
    assert_non_null(found);
    assert_string_equal(json_string_value(json_array_get(json_object_get(found, "capabilities"), 0)), "completion");
    assert_true(json_string_length(json_object_get(found, "template")) > 0);
    assert_non_null(json_object_get(json_object_get(found, "model_info"), "general.architecture"));
    assert_string_equal(json_string_value(json_object_get(json_object_get(found, "details"), "format")), "gguf");
    json_decref(found);
    close_exchange();
}

TEST_GROUP(load_vocab, free_vocab)
