/* Kept reasoning that bodies name: for any body, messages that name a kept answer of the same scope get its original
 * reasoning and content, others stay, and nobody else's reasoning comes back. The result is bound to a model as bodies
 * are.
 *
 * An input is: a digit that selects the protocol, the body. */
#include "body_words.h"
#include "mutate_json.h"
#include "vocab_model.h"

#include "protocol/protocol.h"
#include "protocol/recall.h"

enum { MAX_REQUESTS = 4, N_KEPT = 4 };

static const char *const ids[N_KEPT] = { "1", "2", "abc", "" };
static const char *const reasonings[N_KEPT] = { "I think.\n", "é🤗", "</think>", "x" };
static const char *const contents[N_KEPT] = { "\n\nLet me see.", "", "{\"a\": 1}", "y" };
static const char secret[] = "a secret of another scope";

static qn_model *model;
static qn_recall *recall;

static qn_bytes bytes_of(const char *text)
{
    return (qn_bytes){ .data = (char *)(uintptr_t)text, .length = strlen(text) };
}

static void put(const char *scope, const char *id, const char *reasoning, const char *content)
{
    const qn_bytes r = bytes_of(reasoning), c = bytes_of(content);
    qn_recall_put(recall, scope, id, &r, &c);
}

static void set_up(void)
{
    model = load_vocab_model();
    require(qn_recall_create(N_KEPT + 4, 0, &recall) == QN_OK, "a recall is made");
}

/* The kept answer whose id the text has after its last underscore, or N_KEPT. */
static size_t kept_of(const json_t *id)
{
    const char *text = json_string_value(id), *end = text ? strrchr(text, '_') : NULL;
    size_t i = 0;
    while (text && i < N_KEPT && strcmp(end ? end + 1 : text, ids[i]) != 0)
        i++;
    return text ? i : N_KEPT;
}

static bool names(const json_t *message, size_t kept)
{
    const json_t *calls = json_object_get(message, "tool_calls");
    bool does = kept_of(json_object_get(message, "reasoning_id")) == kept;
    for (size_t i = 0; !does && i < json_array_size(calls); i++)
        does = kept_of(json_object_get(json_array_get(calls, i), "id")) == kept;
    return does;
}

/* Whether a changed message is an assistant's that names a kept answer, and now has it. */
static bool is_restored(const json_t *before, const json_t *after)
{
    const char *role = json_string_value(json_object_get(before, "role"));
    const char *reasoning = json_string_value(json_object_get(after, "reasoning_content"));
    const char *content = json_string_value(json_object_get(after, "content"));
    for (size_t i = 0; i < N_KEPT; i++)
        if (role && !strcmp(role, "assistant") && reasoning && content && !strcmp(reasoning, reasonings[i]) &&
            !strcmp(content, contents[i]) && names(before, i))
            return json_object_size(after) <= json_object_size(before) + 2;
    return false;
}

static void apply(json_t *conversation)
{
    json_t *copy = json_deep_copy(conversation);
    const json_t *before = json_object_get(copy, "messages"), *after = json_object_get(conversation, "messages");
    const size_t n = qn_recall_apply(recall, "scope", conversation, NULL).n_messages;
    size_t n_changed = 0;
    require(!conversation || copy, "memory");
    require(json_array_size(before) == json_array_size(after), "no message is added");
    for (size_t i = 0; i < json_array_size(before); i++) {
        const json_t *a = json_array_get(before, i), *b = json_array_get(after, i);
        const char *reasoning = json_string_value(json_object_get(b, "reasoning_content"));
        if (json_equal(a, b))
            continue;
        n_changed++;
        require(is_restored(a, b), "a message that changed has what was kept");
        require(strcmp(reasoning, secret) != 0, "it is not another scope's");
    }
    require(n_changed == n, "the changed messages are counted");
    require(qn_recall_apply(recall, "scope", conversation, NULL).n_messages == 0, "nothing is put back twice");
    json_decref(copy);
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    if (seed % 16 == 0 && size)
        data[0] = (uint8_t)('0' + seed / 16 % 10);
    return mutate_json(data, size, max_size, size > 0, size, seed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t n_protocols = 0;
    if (!model)
        set_up();
    while (qn_protocols[n_protocols])
        n_protocols++;
    if (!size)
        return 0;
    for (size_t i = 0; i < N_KEPT; i++) {
        put("scope", ids[i], reasonings[i], contents[i]);
        put("other", ids[i], secret, secret);
    }
    const qn_protocol *protocol = qn_protocols[(uint8_t)(data[0] - '0') % n_protocols];
    const qn_exchange_origin origin = { .id = "1", .secret = "s" };
    const qn_served served = {
        .model = model, .n_ctx = 64, .max_tokens = -1, .reasoning_budget = -1, .sampling = (qn_sampling)QN_SAMPLING_INIT
    };
    const qn_protocol_limits limits = { .requests = MAX_REQUESTS };
    qn_refusal refusal;
    qn_exchange *exchange = qn_exchange_parse(protocol, (const char *)data + 1, size - 1, &limits, &origin, &refusal);
    if (exchange) {
        apply(exchange->conversation);
        (void)qn_exchange_bind(exchange, &served, &refusal);
        qn_exchange_free(exchange);
    }
    return 0;
}
