/* OpenAI's Responses: bodies to conversations, and answers to events that a test makes up. */
#include "helper_answers.h"

#include "protocol/responses.h"

#define RESPONSES "/v1/responses"
#define HM "{'role':'user','content':'Hm?'}"
#define ASK "'input':'Hm?'"
#define TOOLS                                                                                                          \
    "'tools':[{'type':'function','name':'f','parameters':{'type':'object'}},{'type':'custom','name':'patch','"         \
    "description':"                                                                                                    \
    "'d','format':{'type':'grammar','syntax':'lark','definition':'start: X'}},{'type':'web_search'},"                  \
    "{'type':'namespace','name':'n','tools':[]}]"

/* ---- Conversations ---- */

static void converts(const char *fields, const char *expected)
{
    char body[3000], wanted[3000];
    snprintf(body, sizeof body, "{%s}", fields);
    snprintf(wanted, sizeof wanted, "{'add_generation_prompt':true,%s}", expected);
    assert_conversation(RESPONSES, quoted(body), quoted(wanted));
}

TEST(items_become_messages)
{
    converts(ASK, "'messages':[" HM "]");
    converts("'instructions':'Be kind.','input':[{'type':'message','role':'developer','content':[{'type':'input_text',"
             "'text':'a'}]},{'type':'message','role':'user','content':[{'type':'input_text','text':'b'}]}," HM "]",
             "'messages':[{'role':'system','content':'Be kind.\\n\\na'},{'role':'user','content':'b\\n\\nHm?'}]");
    converts(
        "'input':[" HM
        ",{'type':'reasoning','id':'rs_0_1','summary':[],'content':[{'type':'reasoning_text','text':'Hm.'}]},"
        "{'type':'message','id':'msg_1','status':'completed','role':'assistant','content':[{'type':'output_text',"
        "'text':'So','annotations':[]}]},{'type':'function_call','id':'fc_1','call_id':'1','name':'f','arguments':"
        "'{\\'a\\':1}'},{'type':'custom_tool_call','call_id':'2','name':'patch','input':'x'},"
        "{'type':'function_call_output','call_id':'1','output':'r'},{'type':'custom_tool_call_output','call_id':'2',"
        "'output':[{'type':'input_text','text':'s'}]}]",
        "'messages':[" HM ",{'role':'assistant','content':'So','reasoning_content':'Hm.','reasoning_id':'rs_0_1',"
        "'tool_calls':[{'id':'1','type':'function','function':{'name':'f','arguments':{'a':1}}},{'id':'2','type':"
        "'function','function':{'name':'patch','arguments':{'input':'x'}}}]},{'role':'tool','tool_call_id':'1',"
        "'content':'r'},{'role':'tool','tool_call_id':'2','content':'s'}]");
    converts("'input':[" HM ",{'role':'assistant','content':'a'},{'role':'developer','content':'Now.'}," HM "]",
             "'messages':[" HM
             ",{'role':'assistant','content':'a'},{'role':'user','content':'<system-reminder>\\nNow.\\n"
             "</system-reminder>\\n\\nHm?'}]");
    converts(
        "'input':[" HM ",{'type':'reasoning','summary':[],'encrypted_content':'rs_0_2'},{'type':'function_call',"
        "'call_id':'1','name':'f','arguments':'{\\'a'},{'type':'web_search_call','id':'ws_1','status':'completed'}]",
        "'messages':[" HM ",{'role':'assistant','content':'','reasoning_id':'rs_0_2','tool_calls':[{'id':'1','type':"
        "'function','function':{'name':'f','arguments':{'arguments':'{\\'a'}}}]}]");
}

/* Clients ask whether a server is there. */
TEST(probes_are_taken)
{
    converts("'input':'','max_output_tokens':1", "'messages':[{'role':'user','content':''}]");
    converts("'input':[],'max_output_tokens':1", "'messages':[{'role':'user','content':''}]");
    converts("'input':[],'instructions':'a','store':true,'previous_response_id':null",
             "'messages':[{'role':'system','content':'a'},{'role':'user','content':''}]");
}

TEST(tools_reach_the_template)
{
    static const struct {
        const char *choice;
        bool has_tools;
        qn_grammar_when when;
    } cases[] = {
        { "'auto'", true, QN_GRAMMAR_AT_CALL },
        { "{'type':'web_search_preview'}", true, QN_GRAMMAR_AT_CALL },
        { "'required','parallel_tool_calls':false", true, QN_GRAMMAR_AFTER_REASONING },
        { "{'type':'function','name':'f'}", true, QN_GRAMMAR_AFTER_REASONING },
        { "{'type':'custom','name':'patch'}", true, QN_GRAMMAR_AFTER_REASONING },
        { "{'type':'allowed_tools','mode':'auto','tools':[{'type':'custom','name':'patch'}]}", true,
          QN_GRAMMAR_AT_CALL },
        { "{'type':'allowed_tools','mode':'required','tools':[{'type':'function','name':'f'}]}", true,
          QN_GRAMMAR_AFTER_REASONING },
        { "'none'", false, QN_GRAMMAR_AFTER_REASONING },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char fields[1000];
        snprintf(fields, sizeof fields, ASK "," TOOLS ",'tool_choice':%s", cases[i].choice);
        converts(
            fields,
            cases[i].has_tools
                ? "'messages':[" HM
                  "],'tools':[{'type':'function','function':{'name':'f','parameters':{'type':'object'}}},"
                  "{'type':'function','function':{'name':'patch','parameters':{'type':'object','properties':{'input':"
                  "{'type':'string'}},'required':['input'],'additionalProperties':false},'description':'d\\n\\nThe "
                  "input "
                  "is a text of this lark grammar:\\nstart: X'}}]"
                : "'messages':[" HM "]");
        char body[1100];
        snprintf(body, sizeof body, "{%s}", fields);
        x = must_take(RESPONSES, quoted(body));
        assert_true((x->requests->grammar != NULL) == cases[i].has_tools);
        assert_int_equal(x->requests->grammar_trigger.when, cases[i].when);
        qn_exchange_free(x);
    }
    converts(ASK ",'tools':[{'type':'web_search'}]", "'messages':[" HM "]");
    converts(ASK ",'tools':[{'type':'web_search'}],'tool_choice':'required'", "'messages':[" HM "]");
}

#define SPACES                                                                                                         \
    "'tools':[{'type':'namespace','name':'mcp__fs__','description':'files','tools':[{'type':'function','name':'read'," \
    "'defer_loading':true},{'type':'custom','name':'patch'}]},{'type':'namespace','name':'mcp__js','tools':["          \
    "{'type':'function','name':'run'},{'type':'web_search'}]},{'type':'function','name':'read'}]"

/* Codex sends an MCP server's tools as a namespace. */
TEST(namespaces_are_parts_of_names)
{
    converts("'input':[" HM ",{'type':'function_call','call_id':'1','name':'run','namespace':'mcp__js','arguments':"
             "'{}'},{'type':'custom_tool_call','call_id':'2','name':'patch','namespace':'mcp__fs__','input':'x'},"
             "{'type':'function_call','call_id':'3','name':'read','arguments':'{}'}]",
             "'messages':[" HM ",{'role':'assistant','content':'','tool_calls':[{'id':'1','type':'function','function':"
             "{'name':'mcp__js__run','arguments':{}}},{'id':'2','type':'function','function':{'name':"
             "'mcp__fs__patch','arguments':{'input':'x'}}},{'id':'3','type':'function','function':{'name':'read',"
             "'arguments':{}}}]}]");
    static const char *const choices[] = {
        "'auto'",
        "{'type':'function','name':'run','namespace':'mcp__js'}",
        "{'type':'function','name':'read'}",
        "{'type':'allowed_tools','mode':'auto','tools':[{'type':'namespace','name':'mcp__js'}]}",
        "{'type':'allowed_tools','mode':'required','tools':[{'type':'custom','name':'patch','namespace':'mcp__fs__'}]}",
    };
    for (size_t i = 0; i < COUNT(choices); i++) {
        char fields[1200];
        snprintf(fields, sizeof fields, ASK "," SPACES ",'tool_choice':%s", choices[i]);
        converts(fields,
                 "'messages':[" HM "],'tools':[{'type':'function','function':{'name':'mcp__fs__read'}},"
                 "{'type':'function','function':{'name':'mcp__fs__patch','parameters':{'type':'object',"
                 "'properties':{'input':{'type':'string'}},'required':['input'],'additionalProperties':false}}},"
                 "{'type':'function','function':{'name':'mcp__js__run'}},{'type':'function','function':{'name':"
                 "'read'}}]");
    }
}

/* Screenshots in results would end the conversation. */
TEST(results_need_no_vision)
{
    converts("'input':[" HM ",{'type':'function_call','call_id':'1','name':'f','arguments':'{}'},"
             "{'type':'function_call_output','call_id':'1','output':[{'type':'input_text','text':'a'},{'type':"
             "'input_image','image_url':'data:'},{'type':'input_file','file_data':'x'}]}]",
             "'messages':[" HM ",{'role':'assistant','content':'','tool_calls':[{'id':'1','type':'function','function':"
             "{'name':'f','arguments':{}}}]},{'role':'tool','tool_call_id':'1','content':'a\\n\\n[image omitted: this "
             "model has no vision]\\n\\n[document omitted: it is not plain text]'}]");
}

TEST(values_reach_the_request)
{
    converts(ASK ",'reasoning':{'effort':'low','summary':'auto'}", "'messages':[" HM "],'reasoning_effort':'low'");
    converts(ASK ",'enable_thinking':false,'chat_template_kwargs':{'preserve_thinking':true}",
             "'messages':[" HM "],'enable_thinking':false,'preserve_thinking':true");
    converts(ASK ",'chat_template_kwargs':{'x':[1,{'y':'z'}],'builtin':'a'}",
             "'messages':[" HM "],'x':[1,{'y':'z'}],'builtin':'a'");
    converts(ASK ",'reasoning':{'effort':null},'include':['reasoning.encrypted_content'],'prompt_cache_key':'k'",
             "'messages':[" HM "]");
    x = must_take(RESPONSES,
                  quoted("{" ASK ",'max_output_tokens':5,'temperature':0.5,'top_p':0.75,'stream':true,'model':'o',"
                         "'text':{'format':{'type':'json_schema','name':'n','schema':{},'strict':true},"
                         "'verbosity':'low'},'n':3,'stop':'x'}"));
    const qn_request_params *p = x->requests;
    assert_true(p->sampling.temperature == 0.5f && p->sampling.top_p == 0.75f && p->max_tokens == 5 && p->n_stop == 0);
    assert_true(x->is_stream && x->has_events && x->n_requests == 1 && p->grammar && !strcmp(x->model, "o"));
    qn_exchange_free(x);
    x = must_take(RESPONSES, quoted("{" ASK "," TOOLS ",'text':{'format':{'type':'json_object'}}}"));
    assert_true(x->requests->grammar && x->requests->grammar_trigger.when == QN_GRAMMAR_AFTER_REASONING);
    qn_exchange_free(x);
    x = must_take(RESPONSES, quoted("{" ASK ",'text':{'format':{'type':'json_object'}}}"));
    assert_true(x->requests->grammar && x->requests->max_tokens == -1);
    qn_exchange_free(x);
}

TEST(wrong_values_name_their_field)
{
    static const struct {
        const char *fields, *param, *part;
    } cases[] = {
        { "'model':'m'", "input", "missing" },
        { "'input':5", "input", "" },
        { "'input':[5]", "input[0]", "" },
        { "'input':[{}]", "input[0].role", "" },
        { "'input':[{'role':'tool','content':''}]", "input[0].role", "" },
        { "'input':[{'role':'user'}]", "input[0]", "missing" },
        { "'input':[{'role':'user','content':[{'type':'input_image','image_url':'x'}]}]", "input[0]", "'input_image'" },
        { "'input':[{'role':'user','content':[{'type':'input_text'}]}]", "input[0]", "" },
        { "'input':[{'type':'function_call','name':'f','arguments':''}]", "input[0]", "call_id" },
        { "'input':[{'type':'custom_tool_call','name':'f','call_id':'1'}]", "input[0]", "input" },
        { "'input':[{'type':'function_call_output','output':''}]", "input[0]", "call_id" },
        { "'input':[{'type':'function_call_output','call_id':'1','output':5}]", "input[0]", "" },
        { "'input':[{'type':'item_reference','id':'msg_1'}]", "input[0]", "not stored" },
        { ASK ",'previous_response_id':'resp_1'", "previous_response_id", "not stored" },
        { ASK ",'conversation':'c'", "conversation", "not stored" },
        { ASK ",'prompt':{'id':'p'}", "prompt", "not supported" },
        { ASK ",'background':true", "background", "not supported" },
        { ASK ",'instructions':[]", "instructions", "" },
        { ASK ",'max_output_tokens':0", "max_output_tokens", "" },
        { ASK ",'temperature':3", "temperature", "" },
        { ASK ",'stream':1", "stream", "" },
        { ASK ",'tools':{}", "tools", "" },
        { ASK ",'tools':[5]", "tools", "" },
        { ASK ",'tools':[{'type':'function'}]", "tools[0]", "name" },
        { ASK ",'tools':[{'type':'custom'}]", "tools[0]", "name" },
        { ASK ",'tools':[{'type':'web'},{'type':'function','name':'f'},{'type':'custom','name':'f'}]", "tools[2]",
          "another tool has its name" },
        { ASK ",'tools':[{'type':'namespace','tools':[]}]", "tools", "no name" },
        { ASK ",'tools':[{'type':'namespace','name':'n','tools':{}}]", "tools", "array" },
        { ASK ",'tools':[{'type':'namespace','name':'n','tools':[5]}]", "tools", "" },
        { ASK ",'tools':[{'type':'namespace','name':'n','tools':[{'type':'function'}]}]", "tools[0]", "name" },
        { ASK ",'tools':[{'type':'namespace','name':'n','tools':[{'type':'function','name':'f'}]},{'type':'function',"
              "'name':'n__f'}]",
          "tools[1]", "another tool has its name" },
        { ASK "," SPACES ",'tool_choice':{'type':'function','name':'run'}", "tool_choice", "not among" },
        { ASK "," TOOLS ",'tool_choice':'any'", "tool_choice", "" },
        { ASK "," TOOLS ",'tool_choice':{'type':'function','name':'g'}", "tool_choice", "not among" },
        { ASK "," TOOLS ",'tool_choice':{'type':'allowed_tools'}", "tool_choice", "mode" },
        { ASK "," TOOLS
              ",'tool_choice':{'type':'allowed_tools','mode':'auto','tools':[{'type':'function','name':'g'}]}",
          "tool_choice", "among the tools" },
        { ASK ",'tool_choice':'required'", "tool_choice", "expected tools" },
        { ASK ",'parallel_tool_calls':5", "parallel_tool_calls", "" },
        { ASK ",'text':5", "text", "" },
        { ASK ",'text':{'format':{'type':'sound'}}", "text.format.type", "" },
        { ASK ",'text':{'format':{'type':'json_schema','name':'n'}}", "text.format.schema", "" },
        { ASK ",'text':{'format':{'type':'json_schema','schema':{'not':{}},'strict':true}}", "text.format.schema", "" },
        { ASK ",'reasoning':5", "reasoning", "" },
        { ASK ",'reasoning':{'effort':'huge'}", "reasoning.effort", "" },
        { ASK ",'enable_thinking':1", "enable_thinking", "" },
        { ASK ",'chat_template_kwargs':{'tools':[]}", "chat_template_kwargs", "which the server sets" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char body[1000];
        snprintf(body, sizeof body, "{%s}", cases[i].fields);
        assert_refused(RESPONSES, quoted(body), NULL, cases[i].param, cases[i].part);
    }
    assert_refused(RESPONSES, quoted("{'input':[" HM "," HM "]}"), &(qn_protocol_limits){ .messages = 1 }, "input",
                   "at most 1");
}

/* ---- Inputs of custom tools ---- */

/* The input of arguments, whatever their pieces. */
static void has_input(const char *arguments, const char *expected)
{
    const size_t n = strlen(arguments);
    for (size_t step = 1; step <= n; step++) {
        label("%s by %zu", arguments, step);
        qn_custom_input input = { 0 };
        qn_bytes text = { 0 };
        for (size_t at = 0; at < n; at += step)
            qn_custom_input_feed(&input, arguments + at, n - at < step ? n - at : step, &text);
        assert_true(qn_custom_input_is_other(&input, true) == !expected);
        if (expected || input.state == QN_CUSTOM_PREFIX)
            assert_false(qn_custom_input_is_other(&input, false));
        assert_bytes(&text, expected ? expected : "");
        qn_bytes_free(&text);
    }
}

TEST(inputs_are_raw)
{
    has_input("{\"input\":\"a\"}", "a");
    has_input("\n{ \"input\" : \"a\\n\\\"\\\\\\/\\b\\f\\r\\t\\u00e9\\ud83e\\udd17 é\" }", "a\n\"\\/\b\f\r\té🤗 é");
    has_input("{\"input\":\"", "");
    has_input("{\"input\":\"a\\u00", "a");
    has_input("{\"input\":\"a\",\"b\":1}", "a");
    has_input("{\"in", NULL);
    has_input("{\"in put\":\"a\"}", NULL);
    has_input("{\"text\":\"a\"}", NULL);
    has_input("{\"input\":5}", NULL);
    has_input("[]", NULL);
}

/* ---- Streams ---- */

#define HEAD(status, error, why)                                                                                       \
    "{'id':'resp_1','object':'response','created_at':5,'status':'" status "','model':'m','error':" error               \
    ",'incomplete_details':" why ",'instructions':null,'max_output_tokens':null,'parallel_tool_calls':true,"           \
    "'previous_response_id':null,'store':false,'temperature':0.25,'tool_choice':'%s','tools':[],'top_p':0.5,"          \
    "'truncation':'disabled','output':["
#define NO_USAGE "],'usage':null}"
#define USAGE                                                                                                          \
    "],'usage':{'input_tokens':10,'input_tokens_details':{'cached_tokens':4,'cache_write_tokens':0},'output_tokens':"  \
    "3,"                                                                                                               \
    "'output_tokens_details':{'reasoning_tokens':0},'total_tokens':13}}"

static size_t n_events;
static qn_bytes wanted;

/* Appends an event that is expected, and its number. */
static void want(const char *name, const char *rest)
{
    qn_bytes_print(&wanted, "event: %s\ndata: {'type':'%s','sequence_number':%zu,", name, name, n_events++);
    qn_bytes_add(&wanted, rest, strlen(rest));
    qn_bytes_print(&wanted, "}\n\n");
}

static void want_item(const char *name, size_t index, const char *item)
{
    char rest[1000];
    snprintf(rest, sizeof rest, "'output_index':%zu,'item':{%s}", index, item);
    want(name, rest);
}

static void want_text(const char *name, const char *id, size_t index, const char *rest)
{
    char all[1000];
    snprintf(all, sizeof all, "'item_id':'%s','output_index':%zu,%s", id, index, rest);
    want(name, all);
}

static void assert_wanted(void)
{
    qn_bytes_add(&wanted, "", 1);
    assert_bytes(&out, quoted(wanted.data));
    wanted.length = 0;
}

static void open_stream(const char *fields, const char *choice)
{
    char body[1000], head[1000], rest[1200];
    snprintf(body, sizeof body, "{" ASK ",'stream':true%s%s}", *fields ? "," : "", fields);
    open_exchange(RESPONSES, quoted(body));
    n_events = wanted.length = 0;
    snprintf(head, sizeof head, HEAD("in_progress", "null", "null"), choice);
    snprintf(rest, sizeof rest, "'response':%s" NO_USAGE, head);
    want("response.created", rest);
    want("response.in_progress", rest);
    assert_wanted();
}

static void close_stream(void)
{
    close_exchange();
    qn_bytes_free(&wanted);
}

#define PART(text) "{'type':'output_text','text':'" text "','annotations':[],'logprobs':[]}"
#define MESSAGE(id, status, part)                                                                                      \
    "'type':'message','id':'" id "','status':'" status "','role':'assistant','content':[" part "]"

static void want_message(const char *whole)
{
    want_item("response.output_item.added", 0, MESSAGE("msg_1_0", "in_progress", ""));
    want_text("response.content_part.added", "msg_1_0", 0, "'content_index':0,'part':" PART(""));
    want_text("response.output_text.delta", "msg_1_0", 0, "'content_index':0,'delta':'a','logprobs':[]");
    want_text("response.output_text.delta", "msg_1_0", 0, "'content_index':0,'delta':'b','logprobs':[]");
    want_text("response.output_text.done", "msg_1_0", 0, "'content_index':0,'text':'ab','logprobs':[]");
    want_text("response.content_part.done", "msg_1_0", 0, "'content_index':0,'part':" PART("ab"));
    want_item("response.output_item.done", 0, whole);
}

TEST(a_text_streams)
{
    for (int i = 0; i < 2; i++) {
        const char *whole =
            i ? MESSAGE("msg_1_0", "incomplete", PART("ab")) : MESSAGE("msg_1_0", "completed", PART("ab"));
        char rest[2000], head[1000];
        open_stream("", "auto");
        content(0, "a");
        content(0, "b");
        finish(0, i ? QN_FINISH_LENGTH : QN_FINISH_STOP, false);
        want_message(whole);
        assert_wanted();
        ends_with(200);
        snprintf(head, sizeof head,
                 i ? HEAD("incomplete", "null", "{'reason':'max_output_tokens'}") : HEAD("completed", "null", "null"),
                 "auto");
        snprintf(rest, sizeof rest, "'response':%s{%s}" USAGE, head, whole);
        want(i ? "response.incomplete" : "response.completed", rest);
        assert_wanted();
        close_stream();
    }
}

TEST(reasoning_and_calls_stream)
{
    char reasoning[QN_CALL_ID_BYTES], ids[3][QN_CALL_ID_BYTES], text[600];
    open_stream(TOOLS, "auto");
    reasoning_text(0, "Hm");
    begin_call(0, 0, "f");
    arguments(0, 0, "{}");
    end_call(0, 0, "<raw>", QN_OUTPUT_COMPLETE);
    begin_call(0, 1, "patch");
    arguments(0, 1, "{\"input\": \"a");
    arguments(0, 1, "\\u00e9\"}");
    end_call(0, 1, "<raw>", QN_OUTPUT_COMPLETE);
    begin_call(0, 2, "f");
    arguments(0, 2, "{");
    end_call(0, 2, "<raw>", QN_OUTPUT_CUT);
    finish(0, QN_FINISH_LENGTH, false);

    qn_exchange_reasoning_id(x, 0, 0, reasoning);
    for (size_t i = 0; i < 3; i++)
        qn_exchange_call_id(x, 0, i, ids[i]);
#define REASONING(status, part)                                                                                        \
    "'type':'reasoning','id':'%s','status':'" status "','summary':[],'encrypted_content':'%s','content':[" part "]"
    snprintf(text, sizeof text, REASONING("in_progress", ""), reasoning, reasoning);
    want_item("response.output_item.added", 0, text);
    want_text("response.content_part.added", reasoning, 0,
              "'content_index':0,'part':{'type':'reasoning_text','text':''}");
    want_text("response.reasoning_text.delta", reasoning, 0, "'content_index':0,'delta':'Hm'");
    want_text("response.reasoning_text.done", reasoning, 0, "'content_index':0,'text':'Hm'");
    want_text("response.content_part.done", reasoning, 0,
              "'content_index':0,'part':{'type':'reasoning_text','text':'Hm'}");
    snprintf(text, sizeof text, REASONING("completed", "{'type':'reasoning_text','text':'Hm'}"), reasoning, reasoning);
    want_item("response.output_item.done", 0, text);
#define CALL(number, status, arguments)                                                                                \
    "'type':'function_call','id':'fc_1_" number "','status':'" status                                                  \
    "','call_id':'%s','name':'f','arguments':'" arguments "'"
    snprintf(text, sizeof text, CALL("1", "in_progress", ""), ids[0]);
    want_item("response.output_item.added", 1, text);
    want_text("response.function_call_arguments.delta", "fc_1_1", 1, "'delta':'{}'");
    want_text("response.function_call_arguments.done", "fc_1_1", 1, "'arguments':'{}','name':'f'");
    snprintf(text, sizeof text, CALL("1", "completed", "{}"), ids[0]);
    want_item("response.output_item.done", 1, text);
#define CUSTOM(status, input)                                                                                          \
    "'type':'custom_tool_call','id':'ctc_1_2','status':'" status "','call_id':'%s','name':'patch','input':'" input "'"
    snprintf(text, sizeof text, CUSTOM("in_progress", ""), ids[1]);
    want_item("response.output_item.added", 2, text);
    want_text("response.custom_tool_call_input.delta", "ctc_1_2", 2, "'delta':'a'");
    want_text("response.custom_tool_call_input.delta", "ctc_1_2", 2, "'delta':'é'");
    want_text("response.custom_tool_call_input.done", "ctc_1_2", 2, "'input':'aé'");
    snprintf(text, sizeof text, CUSTOM("completed", "aé"), ids[1]);
    want_item("response.output_item.done", 2, text);
    snprintf(text, sizeof text, CALL("3", "in_progress", ""), ids[2]);
    want_item("response.output_item.added", 3, text);
    want_text("response.function_call_arguments.delta", "fc_1_3", 3, "'delta':'{'");
    want_text("response.function_call_arguments.done", "fc_1_3", 3, "'arguments':'{','name':'f'");
    snprintf(text, sizeof text, CALL("3", "incomplete", "{"), ids[2]);
    want_item("response.output_item.done", 3, text);
    assert_wanted();
    close_stream();
}

/* Without a stream a call that does not parse is text; arguments without an input are the input of a custom tool. */
TEST(whole_responses)
{
    char head[1000], id[QN_CALL_ID_BYTES], expected[3000];
    open_exchange(RESPONSES, quoted("{" ASK "," TOOLS "}"));
    content(0, "a");
    begin_call(0, 0, "patch");
    arguments(0, 0, "{}");
    end_call(0, 0, "<raw>", QN_OUTPUT_COMPLETE);
    content(0, "b");
    begin_call(0, 1, "f");
    arguments(0, 1, "{");
    end_call(0, 1, "<raw>", QN_OUTPUT_BROKEN);
    finish(0, QN_FINISH_LENGTH, false);
    ends_with(200);
    qn_exchange_call_id(x, 0, 0, id);
    snprintf(head, sizeof head, HEAD("incomplete", "null", "{'reason':'max_output_tokens'}"), "auto");
    snprintf(expected, sizeof expected,
             "%s{" MESSAGE("msg_1_0", "completed",
                           PART("a")) "},{'type':'custom_tool_call','id':'ctc_1_1','status':'completed',"
                                      "'call_id':'%s','name':'patch','input':'{}'},{" MESSAGE("msg_1_2", "incomplete",
                                                                                              PART("b<raw>")) "}" USAGE,
             head, id);
    assert_bytes(&out, quoted(expected));
    close_exchange();
}

/* With a stream and without one a call has the names of its client. */
TEST(calls_have_their_namespace)
{
    static const struct {
        const char *name, *part;
    } cases[] = {
        { "mcp__js__run", "'name':'run','namespace':'mcp__js','arguments':'{}'" },
        { "mcp__fs__read", "'name':'read','namespace':'mcp__fs__','arguments':'{}'" },
        { "mcp__fs__patch", "'name':'patch','namespace':'mcp__fs__','input':'{}'" },
        { "read", "'name':'read','arguments':'{}'" },
    };
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        label("%s %s", cases[i / 2].name, i % 2 ? "in a stream" : "");
        open_exchange(RESPONSES, quoted(i % 2 ? "{" ASK "," SPACES ",'stream':true}" : "{" ASK "," SPACES "}"));
        begin_call(0, 0, cases[i / 2].name);
        arguments(0, 0, "{}");
        end_call(0, 0, "<raw>", QN_OUTPUT_COMPLETE);
        finish(0, QN_FINISH_STOP, false);
        ends_with(200);
        qn_bytes_add(&out, "", 1);
        assert_contains(out.data, quoted(cases[i / 2].part));
        assert_true(strstr(out.data, "__run") == NULL && strstr(out.data, "__patch") == NULL);
        close_exchange();
    }
}

/* The same with a stream and without one: the arguments so far, the input so far of a custom tool. */
TEST(cut_calls_are_incomplete)
{
    static const struct {
        const char *name, *arguments, *item;
    } cases[] = {
        { "f", "{\"a\":",
          "'type':'function_call','id':'fc_1_0','status':'incomplete','call_id':'ID','name':'f','arguments':'{\\'a\\':"
          "'" },
        { "patch", "{\"inp",
          "'type':'custom_tool_call','id':'ctc_1_0','status':'incomplete','call_id':'ID','name':'patch','input':''" },
        { "patch", "{ \"input\": ",
          "'type':'custom_tool_call','id':'ctc_1_0','status':'incomplete','call_id':'ID','name':'patch','input':''" },
        { "patch", "{\"input\":\"ab",
          "'type':'custom_tool_call','id':'ctc_1_0','status':'incomplete','call_id':'ID','name':'patch','input':'ab'" },
        { "patch", "{\"text\":",
          "'type':'custom_tool_call','id':'ctc_1_0','status':'incomplete','call_id':'ID','name':'patch','input':'{\\'"
          "text\\':"
          "'" },
    };
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        char id[QN_CALL_ID_BYTES], item[600], expected[700];
        const char *const given = cases[i / 2].item, *const at = strstr(given, "ID");
        label("%s %s", cases[i / 2].arguments, i % 2 ? "in a stream" : "");
        open_exchange(RESPONSES, quoted(i % 2 ? "{" ASK "," TOOLS ",'stream':true}" : "{" ASK "," TOOLS "}"));
        begin_call(0, 0, cases[i / 2].name);
        arguments(0, 0, cases[i / 2].arguments);
        end_call(0, 0, "<raw>", QN_OUTPUT_CUT);
        finish(0, QN_FINISH_LENGTH, false);
        ends_with(200);
        qn_exchange_call_id(x, 0, 0, id);
        snprintf(item, sizeof item, "%.*s%s%s", (int)(at - given), given, id, at + 2);
        snprintf(expected, sizeof expected, "'output':[{%s}],'usage':{", item);
        qn_bytes_add(&out, "", 1);
        if (!strstr(out.data, quoted(expected)))
            fail_msg("%s", out.data);
        close_exchange();
    }
}

/* As the body has them. */
TEST(settings_are_repeated)
{
    static const struct {
        const char *fields, *part;
    } cases[] = {
        { "'instructions':'Be\\n\\u00e9.'", "'instructions':'Be\\né.','" },
        { "'tool_choice':'none'", "'tool_choice':'none','" },
        { TOOLS ",'tool_choice':'required'", "'tool_choice':'required','" },
        { TOOLS ",'tool_choice':{'name':'patch','type':'custom'}", "'tool_choice':{'name':'patch','type':'custom'},'" },
        { TOOLS ",'tool_choice':{'type':'web_search'}", "'tool_choice':'auto','" },
        { TOOLS ",'tool_choice':null", "'tool_choice':'auto','" },
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char body[1000];
        snprintf(body, sizeof body, "{" ASK ",'stream':true,%s}", cases[i].fields);
        open_exchange(RESPONSES, quoted(body));
        qn_bytes_add(&out, "", 1);
        label("%s", out.data);
        assert_contains(out.data, quoted(cases[i].part));
        close_exchange();
    }
}

TEST(errors_fail_the_response)
{
    char head[1000], rest[2000];
    open_stream("", "auto");
    finish(0, QN_FINISH_ERROR, false);
    snprintf(head, sizeof head, HEAD("failed", "{'code':'server_error','message':'it broke'}", "null"), "auto");
    snprintf(rest, sizeof rest, "'response':%s" NO_USAGE, head);
    want("response.failed", rest);
    assert_wanted();
    content(0, "b");
    ends_with(500);
    assert_bytes(&out, "");
    close_stream();

    open_exchange(RESPONSES, quoted("{" ASK "}"));
    finish(0, QN_FINISH_ERROR, false);
    ends_with(500);
    assert_bytes(&out, quoted("{'error':{'message':'it broke','type':'server_error','param':null,'code':'failed'}}"));
    close_exchange();

    open_stream("", "auto");
    end_with(0, QN_FINISH_ERROR, QN_ERR_UNSUPPORTED, false);
    snprintf(head, sizeof head, HEAD("failed", "{'code':'unsupported','message':'it broke'}", "null"), "auto");
    snprintf(rest, sizeof rest, "'response':%s" NO_USAGE, head);
    want("response.failed", rest);
    assert_wanted();
    ends_with(400);
    close_stream();
}

TEST_GROUP(load_vocab, free_vocab)
