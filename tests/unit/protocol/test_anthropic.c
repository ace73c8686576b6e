/* Anthropic's Messages: bodies to conversations, and answers to events that a test makes up. */
#include "helper_answers.h"

#define MESSAGES "/v1/messages"
#define COUNT_TOKENS "/v1/messages/count_tokens"
#define HM "{'role':'user','content':'Hm?'}"
#define ASK "'max_tokens':9,'messages':[" HM "]"
#define TOOLS "'tools':[{'name':'f','input_schema':{'type':'object'}}]"

/* ---- Conversations ---- */

/* `messages` of a body, and those of its conversation, which ends with the header of an answer or continues one. */
static void converts_to(const char *messages, const char *expected, const char *end)
{
    char body[4000], wanted[4000];
    snprintf(body, sizeof body, "{'max_tokens':9,%s}", messages);
    snprintf(wanted, sizeof wanted, "{%s,'enable_thinking':false,'messages':[%s]}", end, expected);
    assert_conversation(MESSAGES, quoted(body), quoted(wanted));
}

static void converts(const char *messages, const char *expected)
{
    converts_to(messages, expected, "'add_generation_prompt':true");
}

static void continues(const char *messages, const char *expected)
{
    converts_to(messages, expected, "'add_generation_prompt':false,'continue_final_message':true");
}

TEST(answers_at_the_end_are_continued)
{
    continues("'messages':[" HM ",{'role':'assistant','content':'d '}]", HM ",{'role':'assistant','content':'d '}");
    continues("'messages':[" HM ",{'role':'assistant','content':[{'type':'thinking','thinking':'Hm.','signature':'s'},"
              "{'type':'text','text':'a'},{'type':'text','text':'b'}]}]",
              HM ",{'role':'assistant','content':'ab','reasoning_content':'Hm.','reasoning_id':'s'}");
    continues("'messages':[{'role':'assistant','content':'d'}]",
              "{'role':'user','content':''},{'role':'assistant','content':'d'}");
    assert_refused(MESSAGES,
                   quoted("{'max_tokens':9,'messages':[" HM
                          ",{'role':'assistant','content':[{'type':'tool_use','id':'1',"
                          "'name':'f','input':{}}]}]}"),
                   NULL, "messages", "tool_use");
}

TEST(texts_become_messages)
{
    converts("'messages':[" HM "]", HM);
    converts("'system':'Be kind.','messages':[" HM "]", "{'role':'system','content':'Be kind.'}," HM);
    converts("'system':[{'type':'text','text':'a','cache_control':{'type':'ephemeral'}},{'type':'text','text':''},"
             "{'type':'text','text':'b'}],'messages':[" HM "]",
             "{'role':'system','content':'a\\n\\nb'}," HM);
    continues(
        "'messages':[{'role':'user','content':[{'type':'text','text':'a'},{'type':'text','text':'b',"
        "'cache_control':{'type':'ephemeral'}}]},{'role':'user','content':'c'},{'role':'assistant','content':'d'}]",
        "{'role':'user','content':'a\\n\\nb\\n\\nc'},{'role':'assistant','content':'d'}");
}

/* Claude Code's header differs in each request, and would end the common prefix of two at its beginning. */
TEST(billing_headers_are_dropped)
{
    converts("'system':[{'type':'text','text':'x-anthropic-billing-header: cc_version=2.1; cch=12ab;'},"
             "{'type':'text','text':'You code.'}],'messages':[" HM "]",
             "{'role':'system','content':'You code.'}," HM);
    converts("'system':'x-anthropic-billing-header: cch=1;\\n\\nYou code.','messages':[" HM "]",
             "{'role':'system','content':'You code.'}," HM);
    converts("'system':'x-anthropic-billing-header: cch=1;','messages':[" HM "]", HM);
    converts("'system':'The x-anthropic-billing-header: is a line','messages':[" HM "]",
             "{'role':'system','content':'The x-anthropic-billing-header: is a line'}," HM);
}

#define USE(id) "{'type':'tool_use','id':'" id "','name':'f','input':{'a':1}}"
#define RESULT(id, content) "{'type':'tool_result','tool_use_id':'" id "','content':" content "}"
#define CALL(id) "{'id':'" id "','type':'function','function':{'name':'f','arguments':{'a':1}}}"
#define TOOL(id, content) "{'role':'tool','tool_call_id':'" id "','content':'" content "'}"

TEST(blocks_become_calls_and_results)
{
    converts(
        "'messages':[" HM ",{'role':'assistant','content':[{'type':'thinking','thinking':'Hm.','signature':'rs_0_1'},"
        "{'type':'redacted_thinking','data':'x'},{'type':'text','text':'So'}," USE("1") "," USE(
            "2") "]},"
                 "{'role':'user','content':[{'type':'text','text':'And?'}," RESULT("1", "'r'") "," RESULT(
                     "2", "[{'type':'text','text':'s'},{'type':'text','text':'t'}]") "]}]",
        HM ",{'role':'assistant','content':'So','reasoning_content':'Hm.','reasoning_id':'rs_0_1','tool_calls':[" CALL(
            "1") "," CALL("2") "]}," TOOL("1", "r") "," TOOL("2", "s\\n\\nt") ",{'role':'user','content':'And?'}");
    converts("'messages':[" HM ",{'role':'assistant','content':[" USE(
                 "1") "]},{'role':'user','content':["
                      "{'type':'tool_result','tool_use_id':'1','content':'no','is_error':true},"
                      "{'type':'tool_result','tool_use_id':'2'}]}]",
             HM ",{'role':'assistant','content':'','tool_calls':[" CALL("1") "]}," TOOL("1", "Error:\\n\\nno") "," TOOL(
                 "2", ""));
    converts(
        "'messages':[" HM ",{'role':'assistant','content':[{'type':'server_tool_use','id':'1','name':'web_search',"
        "'input':{}},{'type':'web_search_tool_result','tool_use_id':'1','content':[]},{'type':'text','text':'a'}]}," HM
        "]",
        HM ",{'role':'assistant','content':'a'}," HM);
}

/* Clients keep screenshots of results in the conversation. Documents of text are text everywhere. */
TEST(other_parts_become_text)
{
    converts("'messages':[" HM ",{'role':'assistant','content':[" USE("1") "]},{'role':'user','content':[" RESULT(
                 "1", "[{'type':'image','source':{'type':'base64','media_type':'image/png','data':'x'}},{'type':"
                      "'document','source':{'type':'base64','media_type':'application/pdf','data':'x'}},{'type':"
                      "'search_result','title':'t','source':'u','content':[{'type':'text','text':'v'}]}]") "]}]",
             HM ",{'role':'assistant','content':'','tool_calls':[" CALL("1") "]}," TOOL(
                 "1", "[image omitted: this model has no vision]\\n\\n[document omitted: it is not plain "
                      "text]\\n\\nt\\nu\\nv"));
    converts(
        "'messages':[{'role':'user','content':[{'type':'document','title':'t','source':{'type':'text','media_type':"
        "'text/plain','data':'d'}},{'type':'document','source':{'type':'content','content':[{'type':'text','text':"
        "'e'}]}},{'type':'text','text':'Hm?'}]}]",
        "{'role':'user','content':'t\\nd\\n\\ne\\n\\nHm?'}");
    x = must_take(MESSAGES,
                  quoted("{'max_tokens':1,'messages':[" HM ",{'role':'assistant','content':[" USE(
                      "1") "]},{'role':'user','content':[" RESULT("1", "[{'type':'image'},{'type':'image'}]") "]}]}"));
    assert_int_equal(x->n_omitted, 2);
    qn_exchange_free(x);
}

/* Neither at the beginning, nor between a call and its result, nor as the last message of the user. */
TEST(reminders_stay_in_place)
{
#define REMINDER "<system-reminder>\\nNow.\\n</system-reminder>"
    continues("'messages':[" HM ",{'role':'system','content':'Now.'},{'role':'assistant','content':'a'}]",
              "{'role':'user','content':'Hm?\\n\\n" REMINDER "'},{'role':'assistant','content':'a'}");
    converts("'messages':[{'role':'system','content':'Now.'}," HM "]", "{'role':'system','content':'Now.'}," HM);
    continues("'messages':[" HM ",{'role':'assistant','content':[" USE(
                  "1") "]},{'role':'system','content':'Now.'},"
                       "{'role':'user','content':[" RESULT("1", "'r'") "]},{'role':'assistant','content':'b'}]",
              HM ",{'role':'assistant','content':'','tool_calls':[" CALL("1") "]}," TOOL(
                  "1", "r\\n\\n" REMINDER) ",{'role':'assistant','content':'b'}");
    converts("'messages':[" HM ",{'role':'assistant','content':[" USE("1") "]},{'role':'user','content':[" RESULT(
                 "1", "'r'") ",{'type':'text','text':'<system-reminder>x</system-reminder>'}]}]",
             HM ",{'role':'assistant','content':'','tool_calls':[" CALL("1") "]}," TOOL(
                 "1", "r\\n\\n<system-reminder>x</system-reminder>"));
    converts("'messages':[" HM ",{'role':'assistant','content':'a'},{'role':'system','content':'Now.'}," HM "]",
             HM ",{'role':'assistant','content':'a'},{'role':'user','content':'" REMINDER "\\n\\nHm?'}");
    converts("'messages':[" HM ",{'role':'assistant','content':'a'},{'role':'system','content':'Now.'}]",
             HM ",{'role':'assistant','content':'a'},{'role':'user','content':'" REMINDER "'}");
}

TEST(thinking_and_effort_reach_the_template)
{
    static const struct {
        const char *fields, *expected;
        int64_t budget;
    } cases[] = {
        { "'thinking':{'type':'disabled'}", "'enable_thinking':false", -1 },
        { "'max_tokens':2001,'thinking':{'type':'enabled','budget_tokens':2000}", "'enable_thinking':true", 2000 },
        { "'max_tokens':1025,'thinking':{'type':'enabled','budget_tokens':1024}", "'enable_thinking':true", 1024 },
        { "'thinking':{'type':'adaptive'},'thinking_budget_tokens':5", "'enable_thinking':true", 5 },
        { "'thinking':{'type':'adaptive'},'output_config':{'effort':'high'}",
          "'enable_thinking':true,'reasoning_effort':'high'", -1 },
        { "'output_config':{'effort':'high'}", "'enable_thinking':false", -1 },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char body[400], wanted[400];
        snprintf(body, sizeof body, "{" ASK ",%s}", cases[i].fields);
        snprintf(wanted, sizeof wanted, "{'add_generation_prompt':true,%s,'messages':[" HM "]}", cases[i].expected);
        assert_conversation(MESSAGES, quoted(body), quoted(wanted));
        x = must_take(MESSAGES, quoted(body));
        assert_int_equal(x->requests->reasoning_budget, cases[i].budget);
        qn_exchange_free(x);
    }
}

TEST(tools_reach_the_template)
{
#define FUNCTION "{'type':'function','function':{'name':'f','description':'d','parameters':{'type':'object'}}}"
    static const char given[] =
        "'tools':[{'type':'custom','name':'f','description':'d','input_schema':{'type':'object'},'cache_control':{}},"
        "{'type':'web_search_20250305','name':'web_search','max_uses':5},{'type':'bash_20250124','name':'bash'}]";
    static const struct {
        const char *choice;
        bool has_tools;
        qn_grammar_when when;
    } cases[] = {
        { "null", true, QN_GRAMMAR_AT_CALL },
        { "{'type':'auto','disable_parallel_tool_use':true}", true, QN_GRAMMAR_AT_CALL },
        { "{'type':'any'}", true, QN_GRAMMAR_AFTER_REASONING },
        { "{'type':'tool','name':'f'}", true, QN_GRAMMAR_AFTER_REASONING },
        { "{'type':'none'}", false, QN_GRAMMAR_AFTER_REASONING },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char body[1000], wanted[1000];
        snprintf(body, sizeof body, "{" ASK ",%s,'tool_choice':%s}", given, cases[i].choice);
        snprintf(wanted, sizeof wanted, "{'add_generation_prompt':true,'enable_thinking':false,'messages':[" HM "]%s}",
                 cases[i].has_tools ? ",'tools':[" FUNCTION "]" : "");
        assert_conversation(MESSAGES, quoted(body), quoted(wanted));
        x = must_take(MESSAGES, quoted(body));
        assert_true((x->requests->grammar != NULL) == cases[i].has_tools);
        assert_int_equal(x->requests->grammar_trigger.when, cases[i].when);
        qn_exchange_free(x);
    }
    /* Only tools that are skipped: none, and no choice. */
    x = must_take(MESSAGES,
                  quoted("{" ASK ",'tools':[{'type':'web_search_20250305','name':'web_search'}],'tool_choice':{'type':"
                         "'any'}}"));
    assert_null(x->requests->grammar);
    qn_exchange_free(x);
    x = must_take(MESSAGES, quoted("{" ASK ",'output_config':{'format':{'type':'json_schema','schema':{}}}}"));
    assert_non_null(x->requests->grammar);
    qn_exchange_free(x);
    x = must_take(MESSAGES,
                  quoted("{" ASK "," TOOLS ",'output_config':{'format':{'type':'json_schema','schema':{}}}}"));
    assert_true(x->requests->grammar && x->requests->grammar_trigger.when == QN_GRAMMAR_AFTER_REASONING);
    qn_exchange_free(x);
}

TEST(values_reach_the_request)
{
    x = must_take(MESSAGES, quoted("{" ASK ",'model':'other','temperature':0.5,'top_p':0.75,'top_k':3,'stream':true,"
                                   "'stop_sequences':['a','b'],'metadata':{'user_id':'u'},'service_tier':'auto',"
                                   "'context_management':{},'n':5,'logit_bias':[[1,2]]}"));
    const qn_request_params *p = x->requests;
    assert_true(p->sampling.temperature == 0.5f && p->sampling.top_p == 0.75f && p->sampling.top_k == 3);
    assert_int_equal(p->sampling.seed, 11);
    assert_int_equal(p->max_tokens, 9);
    assert_true(x->is_stream && x->has_events && x->n_requests == 1 && p->n_stop == 2 && !p->n_bias);
    assert_string_equal(p->stop[1], "b");
    assert_string_equal(x->model, "other");
    qn_exchange_free(x);
}

TEST(wrong_values_name_their_field)
{
    static const struct {
        const char *body, *param, *part;
    } cases[] = {
        { "{'messages':[" HM "]}", "max_tokens", "missing" },
        { "{'max_tokens':-1,'messages':[" HM "]}", "max_tokens", "" },
        { "{'max_tokens':1}", "messages", "missing" },
        { "{'max_tokens':1,'messages':[]}", "messages", "" },
        { "{" ASK ",'thread':{'type':'continue','previous_message_id':'msg_1'}}", "thread", "not stored" },
        { "{'max_tokens':1,'messages':[5]}", "messages.0.role", "" },
        { "{'max_tokens':1,'messages':[" HM ",{'role':'tool','content':''}]}", "messages.1.role", "" },
        { "{'max_tokens':1,'messages':[{'role':'user'}]}", "messages.0.content", "missing" },
        { "{'max_tokens':1,'messages':[{'role':'user','content':[{}]}]}", "messages.0.content", "no type" },
        { "{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'text'}]}]}", "messages.0.content",
          "no text" },
        { "{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'image','source':{}}]}]}",
          "messages.0.content", "'image', which is not supported" },
        { "{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'document','source':{'type':'base64'}}]}]}",
          "messages.0.content", "'document'" },
        { "{'max_tokens':1,'messages':[{'role':'user','content':[{'type':'tool_result'}]}]}", "messages.0.content",
          "tool_use_id" },
        { "{'max_tokens':1,'messages':[{'role':'assistant','content':[{'type':'tool_use','id':'1','name':'f','input':'"
          "a'}]}]}",
          "messages.0.content", "tool_use" },
        { "{'max_tokens':1,'messages':[{'role':'assistant','content':5}]}", "messages.0.content", "an integer" },
        { "{" ASK ",'system':5}", "system", "" },
        { "{" ASK ",'temperature':3}", "temperature", "" },
        { "{" ASK ",'stop_sequences':['']}", "stop_sequences", "" },
        { "{" ASK ",'tools':{}}", "tools", "" },
        { "{" ASK ",'tools':[5]}", "tools", "" },
        { "{" ASK ",'tools':[{'input_schema':{}}]}", "tools[0]", "name" },
        { "{" ASK ",'tools':[{'name':'f','input_schema':5}]}", "tools[0]", "" },
        { "{" ASK ",'tools':[{'type':'bash_1','name':'f'},{'name':'f','strict':true},{'name':'g'},{'name':'f'}]}",
          "tools[3]", "another tool has its name" },
        { "{" ASK "," TOOLS ",'tool_choice':'any'}", "tool_choice", "" },
        { "{" ASK "," TOOLS ",'tool_choice':{'type':'tool'}}", "tool_choice.name", "" },
        { "{" ASK "," TOOLS ",'tool_choice':{'type':'tool','name':'g'}}", "tool_choice", "not among" },
        { "{" ASK ",'tool_choice':{'type':'any'}}", "tool_choice", "expected tools" },
        { "{" ASK ",'thinking':{}}", "thinking.type", "" },
        { "{" ASK ",'thinking':{'type':'enabled'}}", "thinking.budget_tokens", "" },
        { "{" ASK ",'thinking':5}", "thinking.type", "missing" },
        { "{" ASK ",'thinking':{'type':'deep'}}", "thinking.type", "" },
        { "{" ASK ",'thinking':{'type':'enabled','budget_tokens':'2000'}}", "thinking.budget_tokens", "a string" },
        { "{'max_tokens':5000,'messages':[" HM "],'thinking':{'type':'enabled','budget_tokens':1023}}",
          "thinking.budget_tokens", "at least 1024" },
        { "{'max_tokens':2000,'messages':[" HM "],'thinking':{'type':'enabled','budget_tokens':2000}}",
          "thinking.budget_tokens", "less than 'max_tokens', 2000" },
        { "{" ASK ",'thinking_budget_tokens':-2}", "thinking_budget_tokens", "" },
        { "{" ASK ",'output_config':5}", "output_config", "" },
        { "{" ASK ",'output_config':{'effort':'huge'}}", "output_config.effort", "" },
        { "{" ASK ",'output_config':{'format':{'type':'text'}}}", "output_config.format.type", "" },
        { "{" ASK ",'output_config':{'format':{'type':'json_schema'}}}", "output_config.format.schema", "" },
        { "{" ASK ",'output_config':{'format':{'type':'json_schema','schema':{'type':'hiccup'}}}}",
          "output_config.format.schema", "" },
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_refused(MESSAGES, quoted(cases[i].body), NULL, cases[i].param, cases[i].part);
    assert_refused(MESSAGES, quoted("{'max_tokens':1,'messages':[" HM "," HM "]}"),
                   &(qn_protocol_limits){ .messages = 1 }, "messages", "at most 1");
    assert_refused(MESSAGES, quoted("{" ASK ",'tools':[{'name':'f'},{'name':'g'}]}"),
                   &(qn_protocol_limits){ .tools = 1 }, "tools", "at most 1");
}

TEST(tokens_are_counted)
{
    static const char rendered[] = "<|im_start|>user\nHm?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n";
    char wanted[100];
    qn_token *tokens;
    size_t n;
    open_exchange(COUNT_TOKENS, quoted("{'messages':[" HM "],'stream':true}"));
    assert_false(x->is_stream);
    assert_int_equal(x->n_requests, 0);
    ends_with(200);
    assert_ok(qn_tokenize(model, rendered, strlen(rendered), true, true, &tokens, &n));
    qn_free_tokens(tokens);
    snprintf(wanted, sizeof wanted, "{\"input_tokens\":%zu}", n);
    assert_bytes(&out, wanted);
    close_exchange();
    assert_refused(COUNT_TOKENS, "{}", NULL, "messages", "");
}

/* ---- Streams ---- */

#define EVENT(name, rest) "event: " name "\ndata: {'type':'" name "'" rest "}\n\n"
#define PING "event: ping\ndata: {'type': 'ping'}\n\n"
#define START(n)                                                                                                       \
    EVENT("message_start", ",'message':{'id':'msg_1','type':'message','role':'assistant','model':'m','content':[],"    \
                           "'stop_reason':null,'stop_sequence':null,'usage':{'input_tokens':" n                        \
                           ",'cache_creation_input_tokens':0,'cache_read_input_tokens':0,'output_tokens':0,"           \
                           "'output_tokens_details':{'thinking_tokens':0}}}")                                          \
    PING
#define OPEN(index, block) EVENT("content_block_start", ",'index':" index ",'content_block':{" block "}")
#define DELTA(index, delta) EVENT("content_block_delta", ",'index':" index ",'delta':{" delta "}")
#define STOP(index) EVENT("content_block_stop", ",'index':" index)
#define END(why, sequence, thinking)                                                                                   \
    EVENT("message_delta",                                                                                             \
          ",'delta':{'stop_reason':'" why "','stop_sequence':" sequence "},'usage':{'input_tokens':6,"                 \
          "'cache_creation_input_tokens':0,'cache_read_input_tokens':4,'output_tokens':3,"                             \
          "'output_tokens_details':{'thinking_tokens':" thinking "}}")                                                 \
    EVENT("message_stop", "")

static void assert_stream(const char *expected)
{
    assert_bytes(&out, quoted(expected));
}

static void open_stream(const char *fields)
{
    char body[1000], expected[1000];
    qn_token *tokens;
    size_t n;
    snprintf(body, sizeof body, "{" ASK ",'stream':true%s%s}", *fields ? "," : "", fields);
    open_exchange(MESSAGES, quoted(body));
    assert_ok(
        qn_conversation_tokens(model, x->requests->conversation, x->requests->conversation_length, -1, &tokens, &n));
    qn_free_tokens(tokens);
    snprintf(expected, sizeof expected, START("%zu"), n);
    assert_stream(expected);
}

TEST(blocks_close_before_the_next)
{
    char signature[QN_CALL_ID_BYTES], first[QN_CALL_ID_BYTES], second[QN_CALL_ID_BYTES], expected[6000];
    open_stream(TOOLS ",'thinking':{'type':'adaptive'}");
    token(0, 'a');
    token(0, 'b');
    reasoning_text(0, "Hm");
    reasoning_text(0, ".");
    content(0, "So\"");
    for (size_t call = 0; call < 2; call++) {
        begin_call(0, call, "f");
        arguments(0, call, call ? "{}" : "{\"a\":");
        if (!call)
            arguments(0, call, "1}");
        end_call(0, call, "<raw>", QN_OUTPUT_COMPLETE);
    }
    finish(0, QN_FINISH_STOP, false);
    ends_with(200);
    qn_exchange_reasoning_id(x, 0, 0, signature);
    qn_exchange_call_id(x, 0, 0, first);
    qn_exchange_call_id(x, 0, 1, second);
    snprintf(expected, sizeof expected,
             OPEN("0", "'type':'thinking','thinking':'','signature':''")
                 DELTA("0", "'type':'thinking_delta','thinking':'Hm'")
                     DELTA("0", "'type':'thinking_delta','thinking':'.'")
                         DELTA("0", "'type':'signature_delta','signature':'%s'") STOP("0")
                             OPEN("1", "'type':'text','text':''") DELTA("1", "'type':'text_delta','text':'So\\''")
                                 STOP("1") OPEN("2", "'type':'tool_use','id':'%s','name':'f','input':{}")
                                     DELTA("2", "'type':'input_json_delta','partial_json':'{\\'a\\':'")
                                         DELTA("2", "'type':'input_json_delta','partial_json':'1}'") STOP("2")
                                             OPEN("3", "'type':'tool_use','id':'%s','name':'f','input':{}")
                                                 DELTA("3", "'type':'input_json_delta','partial_json':'{}'") STOP("3")
                                                     END("tool_use", "null", "2"),
             signature, first, second);
    assert_stream(expected);
    close_exchange();
}

TEST(thinking_can_be_omitted)
{
    char signature[QN_CALL_ID_BYTES], expected[2000];
    open_stream("'thinking':{'type':'adaptive','display':'omitted'}");
    reasoning_text(0, "Hm");
    content(0, "a");
    qn_exchange_reasoning_id(x, 0, 0, signature);
    snprintf(expected, sizeof expected,
             OPEN("0", "'type':'thinking','thinking':'','signature':''")
                 DELTA("0", "'type':'signature_delta','signature':'%s'") STOP("0") OPEN("1", "'type':'text','text':''")
                     DELTA("1", "'type':'text_delta','text':'a'"),
             signature);
    assert_stream(expected);
    close_exchange();
}

/* A stream cannot take back a call: its block ends, and what follows is text. */
TEST(a_broken_call_stays_in_a_stream)
{
    char id[QN_CALL_ID_BYTES], expected[3000];
    open_stream(TOOLS);
    begin_call(0, 0, "f");
    arguments(0, 0, "{\"a\":");
    end_call(0, 0, "<raw>", QN_OUTPUT_BROKEN);
    content(0, "b");
    finish(0, QN_FINISH_STOP, false);
    ends_with(200);
    qn_exchange_call_id(x, 0, 0, id);
    snprintf(expected, sizeof expected,
             OPEN("0", "'type':'tool_use','id':'%s','name':'f','input':{}")
                 DELTA("0", "'type':'input_json_delta','partial_json':'{\\'a\\':'") STOP("0")
                     OPEN("1", "'type':'text','text':''") DELTA("1", "'type':'text_delta','text':'b'") STOP("1")
                         END("end_turn", "null", "0"),
             id);
    assert_stream(expected);
    close_exchange();
}

TEST(ends_have_their_reason)
{
    open_stream("'stop_sequences':['never','Z']");
    content(0, "a");
    out.length = 0;
    const qn_request_result stopped = { .finish = QN_FINISH_STOP,
                                        .is_stop_string = true,
                                        .stop_string = 1,
                                        .n_prompt = 10,
                                        .n_reused = 4,
                                        .n_generated = 3 };
    give(0, &(qn_exchange_event){ .kind = QN_EXCHANGE_END, .result = &stopped });
    ends_with(200);
    assert_stream(STOP("0") END("stop_sequence", "'Z'", "0"));
    close_exchange();
    for (int i = 0; i < 2; i++) { /* max_tokens, the context */
        open_exchange(MESSAGES, quoted("{" ASK "}"));
        const qn_request_result full = { .finish = i ? QN_FINISH_CONTEXT : QN_FINISH_LENGTH,
                                         .n_prompt = 10,
                                         .n_generated = 9 };
        give(0, &(qn_exchange_event){ .kind = QN_EXCHANGE_END, .result = &full });
        ends_with(200);
        assert_non_null(memmem(out.data, out.length, "\"content\":[]", 12));
        const char *reason =
            i == 1 ? "\"stop_reason\":\"model_context_window_exceeded\"" : "\"stop_reason\":\"max_tokens\"";
        assert_non_null(memmem(out.data, out.length, reason, strlen(reason)));
        close_exchange();
    }
}

TEST(errors_have_types_and_ids)
{
    open_stream("");
    content(0, "a");
    out.length = 0;
    finish(0, QN_FINISH_ERROR, false);
    assert_stream("event: error\ndata: {'type':'error','error':{'type':'api_error','message':'it "
                  "broke'},'request_id':'req_1'}\n\n");
    content(0, "b");
    ends_with(500);
    assert_bytes(&out, "");
    close_exchange();

    open_exchange(MESSAGES, quoted("{" ASK "}"));
    finish(0, QN_FINISH_ERROR, false);
    ends_with(500);
    assert_stream("{'type':'error','error':{'type':'api_error','message':'it broke'},'request_id':'req_1'}");
    close_exchange();

    open_exchange(MESSAGES, quoted("{" ASK "}"));
    end_with(0, QN_FINISH_ERROR, QN_ERR_UNSUPPORTED, false);
    ends_with(400);
    assert_stream(
        "{'type':'error','error':{'type':'invalid_request_error','message':'it broke'},'request_id':'req_1'}");
    qn_refusal refusal;
    qn_exchange_refuse_status(&(qn_served){ .model = model, .n_ctx = 7 }, QN_ERR_CONTEXT, 28, &refusal);
    refusal.id = "2";
    x->protocol->refuse(&refusal, &out);
    assert_stream("{'type':'error','error':{'type':'invalid_request_error','message':'prompt is too long: 28 tokens > "
                  "7 maximum'},'request_id':'req_2'}");
    qn_refuse(&refusal, 400, "thread_unsupported_request", "thread", "no");
    x->protocol->refuse(&refusal, &out);
    assert_stream("{'type':'error','error':{'type':'invalid_request_error','message':'no','details':{'error_code':"
                  "'thread_unsupported_request','unsupported':['thread']}},'request_id':null}");
    static const struct {
        int status;
        const char *type;
    } types[] = { { 400, "invalid_request_error" },
                  { 401, "authentication_error" },
                  { 403, "permission_error" },
                  { 404, "not_found_error" },
                  { 413, "request_too_large" },
                  { 429, "rate_limit_error" },
                  { 500, "api_error" },
                  { 503, "overloaded_error" },
                  { 529, "overloaded_error" } };
    for (size_t i = 0; i < COUNT(types); i++) {
        char expected[200];
        qn_refuse(&refusal, types[i].status, NULL, NULL, "no");
        x->protocol->refuse(&refusal, &out);
        snprintf(expected, sizeof expected, "{'type':'error','error':{'type':'%s','message':'no'},'request_id':null}",
                 types[i].type);
        assert_stream(expected);
    }
    close_exchange();
}

/* ---- Whole messages ---- */

static void assert_message(const char *blocks, const char *reason)
{
    char expected[3000];
    snprintf(
        expected, sizeof expected,
        "{'id':'msg_1','type':'message','role':'assistant','model':'m','content':[%s],'stop_reason':'%s',"
        "'stop_sequence':null,'usage':{'input_tokens':6,'cache_creation_input_tokens':0,'cache_read_input_tokens':4,"
        "'output_tokens':3,'output_tokens_details':{'thinking_tokens':0}}}",
        blocks, reason);
    ends_with(200);
    assert_stream(expected);
    close_exchange();
}

TEST(whole_messages)
{
    char signature[QN_CALL_ID_BYTES], id[QN_CALL_ID_BYTES], blocks[2000];
    for (int i = 0; i < 3; i++) { /* a call that is complete, cut or broken */
        label("end %d", i);
        open_exchange(MESSAGES, quoted("{" ASK "," TOOLS ",'thinking':{'type':'adaptive'}}"));
        assert_bytes(&out, "");
        reasoning_text(0, "Hm");
        reasoning_text(0, ".");
        content(0, "a");
        begin_call(0, 0, "f");
        arguments(0, 0, "{\"a\": [\",\\\"]\", 2], \"b\": ");
        if (i == 0)
            arguments(0, 0, "[1.50]}");
        end_call(0, 0, "<raw>", i == 0 ? QN_OUTPUT_COMPLETE : i == 1 ? QN_OUTPUT_CUT : QN_OUTPUT_BROKEN);
        if (i == 2)
            content(0, "c");
        finish(0, i == 1 ? QN_FINISH_LENGTH : QN_FINISH_STOP, false);
        qn_exchange_reasoning_id(x, 0, 0, signature);
        qn_exchange_call_id(x, 0, 0, id);
        snprintf(blocks, sizeof blocks, "{'type':'thinking','thinking':'Hm.','signature':'%s'},%s", signature,
                 i == 2 ? "{'type':'text','text':'a<raw>c'}"
                 : i ? "{'type':'text','text':'a'},{'type':'tool_use','id':'ID','name':'f','input':{'a': [',\\']', 2]}}"
                     : "{'type':'text','text':'a'},{'type':'tool_use','id':'ID','name':'f','input':{'a': [',\\']', 2], "
                       "'b': [1.50]}}");
        char *at = strstr(blocks, "'ID'");
        if (at) {
            char rest[200];
            snprintf(rest, sizeof rest, "'%s'%s", id, at + 4);
            strcpy(at, rest);
        }
        assert_message(blocks, i == 0 ? "tool_use" : i == 1 ? "max_tokens" : "end_turn");
    }
}

/* Clients that did not ask for blocks of thinking need not know them, whatever the model does. */
TEST(thinking_that_was_not_asked_for_is_not_sent)
{
    for (int i = 0; i < 2; i++) {
        open_stream(i ? "'thinking':{'type':'disabled'}" : "");
        reasoning_text(0, "Hm");
        content(0, "a");
        assert_stream(OPEN("0", "'type':'text','text':''") DELTA("0", "'type':'text_delta','text':'a'"));
        close_exchange();
    }
    open_exchange(MESSAGES, quoted("{" ASK "}"));
    reasoning_text(0, "Hm");
    content(0, "a");
    finish(0, QN_FINISH_STOP, false);
    assert_message("{'type':'text','text':'a'}", "end_turn");
}

TEST_GROUP(load_vocab, free_vocab)
