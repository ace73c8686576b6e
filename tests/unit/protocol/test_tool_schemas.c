/* Bodies of every protocol whose tools have schemas of a stranger's making, to models of each form of tool calls: each
 * is taken or refused as the body's fault, whatever numbers, dead alternatives and references there are. Under
 * sanitizers this is the test that no schema overwrites memory. QN_SOAK: many more of them. */
#include "helper_create.h"
#include "helper_schemas.h"
#include "helper_vocab.h"
#include "helper_files.h"

#include "base/append.h"
#include "protocol/protocol.h"

#include <unistd.h>

static const struct {
    const char *name, *template; /* a file, else this text */
} models[] = {
    { "tools_xml", NULL },
    { "tools_json", NULL },
    { "llama3",
      "{% if tools %}{% for t in tools %}{{ t|tojson }}\n{% endfor %}{% endif %}{% for m in messages %}<|start|>{{ "
      "m.role }}\n{% if m.tool_calls %}{% set c = m.tool_calls[0].function %}{{ '{\"name\": \"' ~ c.name ~ '\", "
      "\"parameters\": ' ~ (c.arguments if c.arguments is string else c.arguments|tojson) ~ '}' }}{% else %}{{ "
      "m.content }}{% endif %}<|eot|>{% endfor %}{% if add_generation_prompt %}<|start|>assistant\n{% endif %}" },
};
enum { N_MODELS = COUNT(models) };
static qn_served served[N_MODELS];

static int load_models(void)
{
    static const char *const merges[] = { "Ġ Ġ", NULL };
    static const struct added_token added[] = {
        { "<|end|>", 3 }, { "<tool_call>", 4 }, { "</tool_call>", 4 }, { NULL, 0 }
    };
    for (size_t i = 0; i < N_MODELS; i++) {
        char path[400];
        snprintf(path, sizeof path, QN_SOURCE_DIR "/tests/golden/templates/%s.jinja", models[i].name);
        char *text = models[i].template ? strdup(models[i].template) : read_file(path, NULL);
        const struct vocab_spec spec = {
            .model = "gpt2", .pre = "gpt-2", .merges = merges, .added = added, .eos = 257, .chat_template = text
        };
        struct file_bytes bytes = make_vocab(&spec);
        char file[] = "/tmp/tool_schemas_XXXXXX";
        const int fd = mkstemp(file);
        assert_true(fd >= 0 && write(fd, bytes.data, bytes.n) == (ssize_t)bytes.n);
        close(fd);
        qn_model *model = create_model(file, &CPU_MODEL(.vocab_only = true));
        unlink(file);
        free(bytes.data);
        free(text);
        served[i] = (qn_served){ .model = model,
                                 .name = "m",
                                 .n_ctx = 1 << 20,
                                 .max_tokens = -1,
                                 .reasoning_budget = -1,
                                 .sampling = (qn_sampling)QN_SAMPLING_INIT };
    }
    return 0;
}

static int free_models(void)
{
    for (size_t i = 0; i < N_MODELS; i++)
        qn_model_free((qn_model *)served[i].model);
    return 0;
}

/* ---- Bodies ---- */

typedef enum way { CHAT, MESSAGES, RESPONSES, BATCH, N_WAYS } way;

static const char *const paths[N_WAYS] = { "/v1/chat/completions", "/v1/messages", "/v1/responses",
                                           "/v1/chat/completions" };

static json_t *make_tool(way w, json_t *parameters, size_t i, bool strict)
{
    char name[24];
    snprintf(name, sizeof name, "f%zu", i);
    switch (w) {
    case MESSAGES: return json_pack("{s:s,s:O}", "name", name, "input_schema", parameters);
    case RESPONSES:
        return json_pack("{s:s,s:s,s:O,s:b}", "type", "function", "name", name, "parameters", parameters, "strict",
                         (int)strict);
    default:
        return json_pack("{s:s,s:{s:s,s:O,s:b}}", "type", "function", "function", "name", name, "parameters",
                         parameters, "strict", (int)strict);
    }
}

/* A choice of a tool that each protocol spells in its own way; 0: any may be called, or none. */
static json_t *make_choice(way w, unsigned choice)
{
    if (!choice)
        return w == MESSAGES ? json_pack("{s:s}", "type", "auto") : json_string("auto");
    if (choice == 1)
        return w == MESSAGES ? json_pack("{s:s}", "type", "any") : json_string("required");
    if (w == MESSAGES)
        return json_pack("{s:s,s:s}", "type", "tool", "name", "f0");
    if (w == RESPONSES)
        return json_pack("{s:s,s:s}", "type", "function", "name", "f0");
    return json_pack("{s:s,s:{s:s}}", "type", "function", "function", "name", "f0");
}

/* The tools take the schemas: one each. */
static json_t *make_body(way w, json_t *schemas, bool strict, unsigned choice)
{
    json_t *tools = json_array(), *schema;
    size_t i;
    json_array_foreach(schemas, i, schema) json_array_append_new(tools, make_tool(w, schema, i, strict));
    json_t *body = w == RESPONSES
                       ? json_pack("{s:s}", "input", "hi")
                       : json_pack("{s:i,s:[{s:s,s:s}]}", "max_tokens", 9, "messages", "role", "user", "content", "hi");
    assert_non_null(body);
    json_object_set_new(body, "tools", tools);
    json_object_set_new(body, "tool_choice", make_choice(w, choice));
    if (w != BATCH)
        return body;
    return json_pack("{s:s,s:s,s:s,s:o}", "custom_id", "1", "method", "POST", "url", paths[BATCH], "body", body);
}

/* ---- Exchanges ---- */

/* Lines of quern batch are read whole, and their body is taken out of the values. */
static qn_exchange *parse(way w, const char *text, size_t length, qn_refusal *refusal)
{
    const qn_exchange_origin origin = { .id = "1", .secret = "s", .seed = 5 };
    const qn_protocol *protocol = qn_protocol_find(paths[w]);
    assert_non_null(protocol);
    if (w != BATCH)
        return qn_exchange_parse(protocol, text, length, NULL, &origin, refusal);
    qn_reading reading = { 0 };
    json_t *line = qn_body_read(text, length, &reading, refusal);
    qn_exchange *exchange =
        line ? qn_exchange_create(protocol, json_object_get(line, "body"), &reading, &origin, refusal) : NULL;
    json_decref(line);
    return exchange;
}

/* Whether a body is taken. */
static bool exchange(way w, const char *text, qn_served *to)
{
    qn_refusal refusal = { 0 };
    qn_exchange *x = parse(w, text, strlen(text), &refusal);
    const bool taken = x && qn_exchange_bind(x, to, &refusal);
    if (!taken) {
        if (refusal.status != 400)
            fail_msg("%d: %s", refusal.status, refusal.message);
        assert_true(*refusal.message);
    }
    qn_exchange_free(x);
    return taken;
}

/* Calls in XML are made apart from the two forms of JSON, which take turns. */
static void take_everywhere(json_t *schemas, bool strict, unsigned choice, size_t counts[2])
{
    static size_t turn;
    turn++;
    for (way w = 0; w < N_WAYS; w++) {
        json_t *body = make_body(w, schemas, strict, choice);
        char *text = json_dumps(body, JSON_COMPACT | JSON_REAL_PRECISION(17));
        assert_non_null(text);
        for (int k = 0; k < 2; k++) {
            const size_t m = k ? 1 + turn % 2 : 0;
            label("%s, %s: %s", models[m].name, paths[w], text);
            counts[exchange(w, text, &served[m])]++;
        }
        free(text);
        json_decref(body);
    }
}

/* ---- Tests ---- */

/* Schemas with a number that was written without bounds where the type that it is about was left out. */
TEST(known)
{
    static const char *const properties[] = {
        "{\"anyOf\":[{\"type\":\"null\"}],\"type\":\"string\",\"minLength\":1e300}",
        ("{\"anyOf\":[{\"type\":\"null\"}],\"type\":\"string\",\"minLength\":1e300,\"maxLength\":1."
         "2345678912345678e300}"),
        "{\"anyOf\":[{\"type\":\"null\"}],\"type\":\"string\",\"maxLength\":1.2345678912345678e300}",
        "{\"allOf\":[{\"type\":\"null\"}],\"type\":\"string\",\"minLength\":1e300,\"maxLength\":1e300}",
        "{\"oneOf\":[{\"type\":\"null\"}],\"type\":\"string\",\"minLength\":-1e300}",
        "{\"anyOf\":[{\"type\":\"null\"}],\"type\":\"string\",\"minLength\":1e-300}",
        "{\"enum\":[1.2345678912345678e300,5e-324,-1.7976931348623157e308]}",
    };
    /* The bodies that ended the process. */
    static const char *const bodies[] = { "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":"
                                          "\"function\",\"function\":{\"name\":\"f\","
                                          "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{"
                                          "\"type\":\"null\"}],\"type\":\"string\","
                                          "\"minLength\":1e300}}}}}]}",
                                          "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}],\"tools\":[{\"type\":"
                                          "\"function\",\"function\":{\"name\":\"f\","
                                          "\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"anyOf\":[{"
                                          "\"type\":\"null\"}],\"type\":\"string\","
                                          "\"minLength\":1e300,\"maxLength\":1.2345678912345678e300}}}}}]}" };
    size_t counts[2] = { 0 };
    for (size_t i = 0; i < COUNT(bodies); i++)
        for (size_t m = 0; m < N_MODELS; m++)
            assert_true(exchange(CHAT, bodies[i], &served[m])); /* without a grammar: the tool is not strict */
    for (size_t i = 0; i < COUNT(properties); i++)
        for (unsigned choice = 0; choice < 3; choice++) {
            json_t *schemas =
                json_pack("[{s:s,s:{s:o}}]", "type", "object", "properties", "a", json_loads(properties[i], 0, NULL));
            assert_non_null(schemas);
            take_everywhere(schemas, choice == 2, choice, counts);
            json_decref(schemas);
        }
}

/* A plain schema is taken by every protocol and model: what is refused below is refused for its schema. */
TEST(plain)
{
    size_t counts[2] = { 0 };
    json_t *schemas =
        json_loads("[{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"string\",\"minLength\":1,\"maxLength\":9},"
                   "\"b\":{\"anyOf\":[{\"type\":\"null\"},{\"type\":\"number\",\"maximum\":1e300}]}}}]",
                   0, NULL);
    assert_non_null(schemas);
    for (unsigned choice = 0; choice < 3; choice++)
        take_everywhere(schemas, false, choice, counts);
    json_decref(schemas);
    assert_int_equal(counts[0], 0);
}

TEST(mutated)
{
    enum { SCHEMAS = 2000, MANY = 100000 };
    const size_t n = getenv("QN_SOAK") ? MANY : SCHEMAS;
    size_t counts[2] = { 0 };
    json_t *schemas = NULL;
    schemas_state = 35;
    for (size_t i = 0; i < n; i++) {
        /* Three in a row come from the same schemas, each changed once more. */
        if (i % 3 == 0) {
            json_decref(schemas);
            schemas = json_pack("[o]", draw_parameters());
            if (draw(4) == 0)
                json_array_append_new(schemas, draw_parameters());
        }
        assert_non_null(schemas);
        for (size_t k = draw(4) + 1; k > 0 && i % 3; k--)
            (void)mutate_json(schemas);
        const bool strict = draw(4) == 0;
        take_everywhere(schemas, strict, (unsigned)draw(3), counts);
    }
    json_decref(schemas);
    if (getenv("QN_VERBOSE"))
        print_message("%zu bodies are taken, %zu refused\n", counts[1], counts[0]);
    /* Neither most nor few of them are schemas that no grammar comes of. */
    assert_true(counts[0] > counts[1] / 8 && counts[1] > counts[0] / 8);
}

TEST_GROUP(load_models, free_models)
