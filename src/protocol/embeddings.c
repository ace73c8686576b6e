/* Exchanges of embeddings: each input of the body is a scheduler request without generated tokens. */
#include "protocol/embeddings.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_INPUTS = 1024 };

static const char expected[] = "a string, an array of token ids, which may have strings between them, or an array of "
                               "either";

/* ---- Bodies ---- */

/* Whether the value is one input of ids, of which some may be given as texts. */
static bool is_ids(const json_t *value)
{
    for (size_t i = 0; i < json_array_size(value); i++)
        if (json_is_number(json_array_get(value, i)))
            return true;
    return false;
}

static bool has_text(const json_t *ids)
{
    for (size_t i = 0; i < json_array_size(ids); i++)
        if (json_is_string(json_array_get(ids, i)))
            return true;
    return false;
}

/* Whether the value is a list of inputs rather than one. */
static bool is_list(const json_t *value)
{
    return json_is_array(value) && !is_ids(value);
}

static json_t *input_at(json_t *given, size_t i)
{
    return is_list(given) ? json_array_get(given, i) : given;
}

static bool take_input(qn_embeddings_exchange *x, json_t *input, size_t i, const char *field, bool *needs_model,
                       qn_refusal *refusal)
{
    int64_t id;
    const bool is_mixed = is_ids(input) && has_text(input);
    for (size_t k = 0; is_mixed && k < json_array_size(input); k++) {
        const json_t *item = json_array_get(input, k);
        if (!json_is_string(item) && (!qn_json_integer_of(item, &id) || id < 0 || id > INT32_MAX))
            return qn_refuse_type(refusal, field, item, expected);
    }
    if (json_is_string(input) || is_mixed) {
        *needs_model = true;
        return true;
    }
    return is_ids(input) ? qn_openai_take_ids(input, field, x->base.account, &x->prompts[i], refusal)
                         : qn_refuse_type(refusal, field, input, expected);
}

bool qn_embeddings_alloc(qn_embeddings_exchange *x, size_t n, qn_refusal *refusal)
{
    if (!qn_account_take(x->base.account, n * (sizeof *x->prompts + sizeof *x->embedded)))
        return qn_refuse_over(x->base.account, refusal);
    if (qn_alloc(&x->prompts, n, sizeof *x->prompts, "inputs") ||
        qn_alloc(&x->embedded, n, sizeof *x->embedded, "inputs"))
        return qn_refuse_memory(refusal);
    x->n_prompts = n;
    return true;
}

static bool take_inputs(qn_embeddings_exchange *x, json_t *given, const char *field, qn_reading *reading,
                        qn_refusal *refusal)
{
    const size_t n = is_list(given) ? json_array_size(given)
                     : given        ? 1
                                    : 0,
                 most = qn_limit(reading->limits->inputs, MAX_INPUTS);
    bool needs_model = false;
    if (!n)
        return qn_refuse_type(refusal, field, given, expected);
    if (n > most)
        return qn_refuse(refusal, 400, NULL, field, "'%s' has %zu inputs, at most %zu are allowed", field, n, most);
    if (!qn_embeddings_alloc(x, n, refusal))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!take_input(x, input_at(given, i), i, field, &needs_model, refusal))
            return false;
    x->given = needs_model ? json_incref(given) : NULL;
    x->base.is_read = !needs_model;
    return true;
}

static bool take_pooling(qn_embeddings_exchange *x, const json_t *body, qn_refusal *refusal)
{
    static const struct {
        const char *name;
        qn_pooling pooling;
    } known[] = { { "mean", QN_POOLING_MEAN }, { "cls", QN_POOLING_CLS }, { "last", QN_POOLING_LAST } };
    const json_t *given = qn_field(body, "pooling");
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (qn_json_is(given, known[i].name))
            x->pooling = known[i].pooling;
    return !given || x->pooling || qn_refuse_choice(refusal, "pooling", given, "\"mean\", \"cls\" or \"last\"");
}

bool qn_embeddings_dimensions(qn_embeddings_exchange *x, const json_t *body, qn_refusal *refusal)
{
    return qn_field_integer(body, "dimensions", 1, INT32_MAX, &x->dimensions, refusal);
}

qn_embeddings_exchange *qn_embeddings_parse(const json_t *body, const char *const *fields, qn_reading *reading,
                                            qn_refusal *refusal)
{
    qn_embeddings_exchange *x;
    const char *const first = *fields;
    if (qn_alloc(&x, 1, sizeof *x, "a request")) {
        qn_refuse_memory(refusal);
        return NULL;
    }
    x->base.account = reading->account;
    x->norm = 2;
    while (fields[1] && !qn_field(body, *fields))
        fields++;
    json_t *given = qn_field(body, *fields);
    if (qn_openai_take_model(body, &x->model, refusal) && take_pooling(x, body, refusal) &&
        take_inputs(x, given, given ? *fields : first, reading, refusal)) {
        x->base.model = json_string_value(x->model);
        return x;
    }
    qn_embeddings_free(&x->base);
    return NULL;
}

void qn_embeddings_free(qn_exchange *exchange)
{
    qn_embeddings_exchange *x = (qn_embeddings_exchange *)exchange;
    for (size_t i = 0; i < x->n_prompts; i++) {
        free(x->prompts[i].tokens);
        qn_free(x->embedded[i].values);
    }
    qn_free(x->prompts);
    qn_free(x->embedded);
    qn_free(x->base.requests);
    json_decref(x->model);
    json_decref(x->given);
    qn_free(x);
}

/* ---- Requests ---- */

static bool tokenize(qn_embeddings_exchange *x, const json_t *text, qn_prompt *prompt, qn_refusal *refusal)
{
    if (!x->cuts && !qn_exchange_check_bytes(json_string_length(text), x->served, refusal))
        return false;
    if (qn_embedding_tokens(x->served->model, json_string_value(text), json_string_length(text), &prompt->tokens,
                            &prompt->n))
        return qn_refuse(refusal, 400, "unsupported", "input", "%s", qn_error_text());
    prompt->capacity = prompt->n;
    return qn_account_take(x->base.account, prompt->n * sizeof *prompt->tokens) ||
           qn_refuse_over(x->base.account, refusal);
}

/* Appends ids and texts between them to one input. The texts are pieces of one text, without its beginning and end. */
static bool join(qn_embeddings_exchange *x, const json_t *items, qn_prompt *prompt, qn_refusal *refusal)
{
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        qn_token id = (qn_token)json_number_value(item), *tokens = NULL;
        size_t n = 1;
        if (json_is_string(item) &&
            qn_tokenize(x->served->model, json_string_value(item), json_string_length(item), true, false, &tokens, &n))
            return qn_refuse(refusal, 400, "unsupported", "input", "%s", qn_error_text());
        const bool done =
            qn_account_take(x->base.account, n * sizeof *tokens) &&
            qn_realloc_array(&prompt->tokens, &prompt->capacity, prompt->n + n, sizeof *tokens, "an input") == QN_OK;
        if (done && n)
            memcpy(prompt->tokens + prompt->n, tokens ? tokens : &id, n * sizeof *tokens);
        prompt->n += done ? n : 0;
        qn_free_tokens(tokens);
        if (!done)
            return qn_refuse_over(x->base.account, refusal);
    }
    return true;
}

static bool bind_prompt(qn_embeddings_exchange *x, size_t i, qn_refusal *refusal)
{
    qn_prompt *prompt = &x->prompts[i];
    const json_t *input = x->given ? input_at(x->given, i) : NULL;
    if (json_is_string(input) && !tokenize(x, input, prompt, refusal))
        return false;
    if (json_is_array(input) && json_array_size(input) && !join(x, input, prompt, refusal))
        return false;
    if (!prompt->n)
        return qn_refuse(refusal, 400, NULL, "input", "input %zu has no tokens, at least 1 is needed", i);
    if (prompt->n > x->served->n_ctx && !x->cuts)
        return qn_exchange_refuse_length(prompt->n, x->served, refusal);
    if (prompt->n > x->served->n_ctx) {
        /* The token that ends a text, which pooling of the last token reads, stays. */
        const qn_token last = prompt->tokens[prompt->n - 1];
        if (json_is_string(input) && qn_token_is_end(x->served->model, last))
            prompt->tokens[x->served->n_ctx - 1] = last;
        prompt->n = x->served->n_ctx;
    }
    return true;
}

static qn_pooling pooling_of(const qn_embeddings_exchange *x)
{
    const qn_pooling of_model = qn_model_get_pooling(x->served->model),
                     served = x->served->pooling ? x->served->pooling : of_model;
    return x->pooling ? x->pooling : served ? served : QN_POOLING_LAST;
}

bool qn_embeddings_check_count(const qn_embeddings_exchange *x, const qn_served *served, qn_refusal *refusal)
{
    return !served->max_inputs || x->n_prompts <= served->max_inputs ||
           qn_refuse(refusal, 400, NULL, "input", "there are %zu inputs, at most %zu are allowed", x->n_prompts,
                     served->max_inputs);
}

bool qn_embeddings_make_requests(qn_embeddings_exchange *x, qn_pooling pooling, size_t n_values, qn_refusal *refusal)
{
    if (!qn_account_take(x->base.account, x->n_prompts * (sizeof *x->base.requests + n_values * sizeof(float))))
        return qn_refuse_over(x->base.account, refusal);
    if (qn_alloc(&x->base.requests, x->n_prompts, sizeof *x->base.requests, "requests"))
        return qn_refuse_memory(refusal);
    x->base.n_requests = x->n_prompts;
    for (size_t i = 0; i < x->n_prompts; i++) {
        x->base.requests[i] = (qn_request_params)QN_REQUEST_PARAMS_INIT;
        x->base.requests[i].tokens = x->prompts[i].tokens;
        x->base.requests[i].n_tokens = x->prompts[i].n;
        x->base.requests[i].max_tokens = 0;
        x->base.requests[i].pooling = pooling;
    }
    return true;
}

bool qn_embeddings_bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    static const char poor[] = "the model's file names no pooling: it was not trained for embeddings, and its "
                               "embeddings compare poorly";
    qn_embeddings_exchange *x = (qn_embeddings_exchange *)exchange;
    const uint32_t n_embd = qn_model_get_info(served->model)->n_embd;
    x->served = served;
    if (qn_model_check_embeddings(served->model))
        return qn_refuse(refusal, 501, "not_supported", NULL, "%s", qn_error_text());
    if (!qn_embeddings_check_count(x, served, refusal))
        return false;
    if (x->dimensions > n_embd)
        return qn_refuse(refusal, 400, NULL, "dimensions", "'dimensions' is %lld, the model's embeddings have %u",
                         (long long)x->dimensions, (unsigned)n_embd);
    for (size_t i = 0; i < x->n_prompts; i++)
        if (!bind_prompt(x, i, refusal))
            return false;
    json_decref(x->given);
    x->given = NULL;
    x->base.warning = qn_model_get_pooling(served->model) ? NULL : poor;
    return qn_embeddings_make_requests(x, pooling_of(x), n_embd, refusal);
}

/* ---- Vectors ---- */

/* Returns the length of a vector in a norm, as llama-server's embd_normalize has them. */
static double length_of(const qn_embedded *e, int norm)
{
    double sum = 0, largest = 0;
    for (size_t i = 0; i < e->n; i++)
        largest = fmax(largest, fabs((double)e->values[i]));
    if (norm == 0 || largest == 0)
        return largest / 32760;
    for (size_t i = 0; i < e->n; i++) {
        const double value = fabs((double)e->values[i]);
        /* powers of parts of the largest value neither overflow nor vanish all together */
        sum += norm == 1 ? value : norm == 2 ? value * value : pow(value / largest, norm);
    }
    return norm == 1 ? sum : norm == 2 ? sqrt(sum) : largest * pow(sum, 1.0 / norm);
}

static bool take_embedding(qn_embeddings_exchange *x, qn_embedded *e, const qn_exchange_event *event)
{
    e->n = x->dimensions ? (size_t)x->dimensions : event->length;
    if (e->values || qn_alloc(&e->values, e->n, sizeof *e->values, "an embedding"))
        return false;
    memcpy(e->values, event->embedding, e->n * sizeof *e->values);
    const double length = x->norm >= 0 ? length_of(e, x->norm) : 1;
    for (size_t i = 0; length > 0 && i < e->n; i++)
        e->values[i] = (float)(e->values[i] / length);
    return true;
}

void qn_embeddings_fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out)
{
    qn_embeddings_exchange *x = (qn_embeddings_exchange *)exchange;
    (void)out;
    x->base.has_failed = true;
    x->refusal = *refusal;
}

void qn_embeddings_event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out)
{
    qn_embeddings_exchange *x = (qn_embeddings_exchange *)exchange;
    qn_embedded *e = &x->embedded[request];
    qn_refusal refusal;
    if (x->base.has_failed)
        return;
    if (event->kind == QN_EXCHANGE_EMBEDDING && !take_embedding(x, e, event)) {
        qn_refuse_memory(&refusal);
        qn_embeddings_fail(exchange, &refusal, out);
    }
    if (event->kind != QN_EXCHANGE_END)
        return;
    e->result = *event->result;
    e->result.error = "";
    if (event->result->finish == QN_FINISH_ERROR) {
        qn_exchange_refuse_result(event->result, &refusal);
        qn_embeddings_fail(exchange, &refusal, out);
    }
}

/* ---- Answers ---- */

/* Writes bytes in base64, RFC 4648. */
static void write_base64(const unsigned char *data, size_t n, qn_bytes *out)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        const size_t left = n - i;
        const unsigned group =
            (unsigned)data[i] << 16 | (left > 1 ? (unsigned)data[i + 1] << 8 : 0) | (left > 2 ? data[i + 2] : 0);
        const char text[] = { digits[group >> 18], digits[group >> 12 & 63], left > 1 ? digits[group >> 6 & 63] : '=',
                              left > 2 ? digits[group & 63] : '=' };
        qn_bytes_add(out, text, sizeof text);
    }
}

void qn_embeddings_write(const qn_embeddings_exchange *x, size_t index, qn_bytes *out)
{
    const qn_embedded *e = &x->embedded[index];
    if (x->is_base64) { /* little-endian, as all hosts are */
        qn_json_text(out, "", 0);
        out->length -= out->has_failed ? 0 : 1;
        write_base64((const unsigned char *)e->values, e->n * sizeof *e->values, out);
        qn_bytes_add(out, "\"", 1);
        return;
    }
    qn_json_open(out, '[');
    for (size_t i = 0; i < e->n; i++)
        qn_json_number(out, e->values[i]);
    qn_json_close(out, ']');
}

const char *qn_embeddings_model(const qn_embeddings_exchange *x)
{
    if (x->served && x->served->name)
        return x->served->name;
    return x->base.model ? x->base.model : "";
}

size_t qn_embeddings_tokens(const qn_embeddings_exchange *x)
{
    size_t n = 0;
    for (size_t i = 0; i < x->n_prompts; i++)
        n += x->embedded[i].result.n_prompt;
    return n;
}

bool qn_embeddings_check_end(qn_embeddings_exchange *x, qn_bytes *out)
{
    for (size_t i = 0; !x->base.has_failed && i < x->n_prompts; i++)
        if (!x->embedded[i].values) {
            qn_refuse(&x->refusal, 500, "failed", NULL, "input %zu was not evaluated", i);
            x->base.has_failed = true;
        }
    if (x->base.has_failed)
        x->base.protocol->refuse(&x->refusal, out);
    return !x->base.has_failed;
}

/* ---- OpenAI's ---- */

static qn_exchange *parse_openai(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    static const char *const fields[] = { "input", NULL };
    qn_embeddings_exchange *x = qn_embeddings_parse(body, fields, reading, refusal);
    if (!x)
        return NULL;
    const json_t *encoding = qn_field(body, "encoding_format");
    x->is_base64 = qn_json_is(encoding, "base64");
    if ((!encoding || x->is_base64 || qn_json_is(encoding, "float") ||
         qn_refuse_choice(refusal, "encoding_format", encoding, "\"float\" or \"base64\"")) &&
        qn_embeddings_dimensions(x, body, refusal))
        return &x->base;
    qn_embeddings_free(&x->base);
    return NULL;
}

void qn_embeddings_write_usage(const qn_embeddings_exchange *x, qn_bytes *out)
{
    const int64_t n = (int64_t)qn_embeddings_tokens(x);
    qn_json_key(out, "usage");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "prompt_tokens", n);
    qn_json_member_integer(out, "total_tokens", n);
    qn_json_close(out, '}');
}

static int end_openai(qn_exchange *exchange, qn_bytes *out)
{
    qn_embeddings_exchange *x = (qn_embeddings_exchange *)exchange;
    if (!qn_embeddings_check_end(x, out))
        return x->refusal.status;
    qn_json_open(out, '{');
    qn_json_member_string(out, "object", "list");
    qn_json_key(out, "data");
    qn_json_open(out, '[');
    for (size_t i = 0; i < x->n_prompts; i++) {
        qn_json_open(out, '{');
        qn_json_member_string(out, "object", "embedding");
        qn_json_member_integer(out, "index", (int64_t)i);
        qn_json_key(out, "embedding");
        qn_embeddings_write(x, i, out);
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
    qn_json_member_string(out, "model", qn_embeddings_model(x));
    qn_embeddings_write_usage(x, out);
    qn_json_close(out, '}');
    return 200;
}

/* ---- llama-server's ---- */

static qn_exchange *parse_llama(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    static const char *const fields[] = { "input", "content", NULL };
    int64_t norm = 2;
    qn_embeddings_exchange *x = qn_embeddings_parse(body, fields, reading, refusal);
    if (x && qn_field_integer(body, "embd_normalize", -1, 1000, &norm, refusal)) {
        x->norm = (int)norm;
        return &x->base;
    }
    if (x)
        qn_embeddings_free(&x->base);
    return NULL;
}

/* Writes the answer. A vector is a list of one vector: without pooling llama-server has one for each token. */
static int end_llama(qn_exchange *exchange, qn_bytes *out)
{
    qn_embeddings_exchange *x = (qn_embeddings_exchange *)exchange;
    if (!qn_embeddings_check_end(x, out))
        return x->refusal.status;
    qn_json_open(out, '[');
    for (size_t i = 0; i < x->n_prompts; i++) {
        qn_json_open(out, '{');
        qn_json_member_integer(out, "index", (int64_t)i);
        qn_json_key(out, "embedding");
        qn_json_open(out, '[');
        qn_embeddings_write(x, i, out);
        qn_json_close(out, ']');
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
    return 200;
}

#define EMBEDDINGS(paths_, parse_, end_)                                                                               \
    {                                                                                                                  \
        .paths = paths_, .keep_alive = ":\n\n", .parse = parse_, .bind = qn_embeddings_bind, .begin = qn_llama_begin,  \
        .event = qn_embeddings_event, .end = end_, .fail = qn_embeddings_fail, .refuse = qn_openai_refuse,             \
        .free = qn_embeddings_free                                                                                     \
    }

static const char *const openai_paths[] = { "/v1/embeddings", NULL }, *const llama_paths[] = { "/embedding",
                                                                                               "/embeddings", NULL };

const qn_protocol qn_openai_embeddings = EMBEDDINGS(openai_paths, parse_openai, end_openai);
const qn_protocol qn_llama_embeddings = EMBEDDINGS(llama_paths, parse_llama, end_llama);
