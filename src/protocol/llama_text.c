/* llama-server's /tokenize, /detokenize and /apply-template: answers without scheduler requests. An answer waits for
 * its client as a whole, so it has its own limit of length. */
#include "protocol/openai.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of an answer, in addition to those that its body asks for. */
enum { MAX_ANSWER = 16 << 20 };

typedef struct direct_exchange {
    qn_exchange base;
    json_t *model, *given; /* references: the string that base.model points into; bind's input, until then */
    qn_prompt tokens;      /* of /detokenize */
    bool has_bos, has_special, has_pieces;
    bool is_prompt; /* of vLLM's /tokenize */
    qn_bytes answer;
} direct_exchange;

static void free_text(qn_exchange *exchange)
{
    direct_exchange *x = (direct_exchange *)exchange;
    qn_bytes_free(&x->answer);
    json_decref(x->base.conversation);
    json_decref(x->model);
    json_decref(x->given);
    free(x->tokens.tokens);
    free(x);
}

/* Creates an exchange, with references of its own to `given` and the model's name; free_text frees it. `model` is not a
 * field of llama-server's: it names one of several models. */
static direct_exchange *create(const json_t *body, json_t *given, qn_account *account, qn_refusal *refusal)
{
    direct_exchange *x = calloc(1, sizeof *x);
    if (!x) {
        qn_refuse_memory(refusal);
        return NULL;
    }
    if (!qn_openai_take_model(body, &x->model, refusal)) {
        free(x);
        return NULL;
    }
    x->base.account = x->answer.account = account;
    x->base.model = json_string_value(x->model);
    x->given = json_incref(given);
    return x;
}

static bool refuse_text(const char *field, qn_refusal *refusal)
{
    return qn_refuse(refusal, 400, "unsupported", field, "%s", qn_error_text());
}

/* Begins an answer, an object with one member. */
static qn_bytes *open_answer(qn_exchange *exchange, const char *key)
{
    qn_bytes *out = &((direct_exchange *)exchange)->answer;
    qn_json_open(out, '{');
    qn_json_key(out, key);
    return out;
}

static bool refuse_long(size_t most, qn_refusal *refusal)
{
    return qn_refuse(refusal, 413, "answer_too_large", NULL, "the answer is longer than %zu bytes", most);
}

/* Ends an answer, and frees bind's input. False: refused. */
static bool close_answer(qn_exchange *exchange, size_t most, qn_refusal *refusal)
{
    direct_exchange *x = (direct_exchange *)exchange;
    qn_json_close(&x->answer, '}');
    json_decref(x->given);
    x->given = NULL;
    if (x->answer.has_failed)
        return qn_refuse_over(exchange->account, refusal);
    return x->answer.length <= most || refuse_long(most, refusal);
}

/* ---- /tokenize ---- */

/* llama-server's has `content`. vLLM's has `prompt` instead, and by default the token of the beginning. */
static qn_exchange *parse_tokenize(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    const bool is_prompt = !qn_field(body, "content") && qn_field(body, "prompt");
    json_t *content = qn_field(body, is_prompt ? "prompt" : "content");
    bool has_bos = is_prompt, has_special = true, has_pieces = false;
    if (!json_is_string(content)) {
        qn_refuse_type(refusal, is_prompt ? "prompt" : "content", content, "a string");
        return NULL;
    }
    if (!qn_field_bool(body, is_prompt ? "add_special_tokens" : "add_special", &has_bos, refusal) ||
        !qn_field_bool(body, "parse_special", &has_special, refusal) ||
        !qn_field_bool(body, "with_pieces", &has_pieces, refusal))
        return NULL;
    direct_exchange *x = create(body, content, reading->account, refusal);
    if (!x)
        return NULL;
    x->is_prompt = is_prompt;
    x->has_bos = has_bos;
    x->has_special = has_special;
    x->has_pieces = has_pieces;
    return &x->base;
}

/* Writes the piece of a token. One that is not valid text is written as a list of its bytes. */
static void write_piece(const qn_model *model, qn_token token, qn_bytes *out)
{
    const char *bytes = "";
    size_t length = 0;
    (void)qn_token_piece(model, token, &bytes, &length);
    qn_json_open(out, '{');
    qn_json_member_integer(out, "id", token);
    qn_json_key(out, "piece");
    if (qn_is_utf8(bytes, length)) {
        qn_json_text(out, bytes, length);
    } else {
        qn_json_open(out, '[');
        for (size_t i = 0; i < length; i++)
            qn_json_integer(out, (unsigned char)bytes[i]);
        qn_json_close(out, ']');
    }
    qn_json_close(out, '}');
}

static bool bind_tokenize(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    const direct_exchange *x = (const direct_exchange *)exchange;
    qn_token *tokens;
    size_t n;
    if (qn_tokenize(served->model, json_string_value(x->given), json_string_length(x->given), x->has_special,
                    x->has_bos, &tokens, &n))
        return refuse_text("content", refusal);
    const size_t most = MAX_ANSWER + json_string_length(x->given);
    qn_bytes *out = open_answer(exchange, "tokens");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n && out->length <= most; i++) {
        if (x->has_pieces)
            write_piece(served->model, tokens[i], out);
        else
            qn_json_integer(out, tokens[i]);
    }
    qn_json_close(out, ']');
    qn_free_tokens(tokens);
    if (x->is_prompt) {
        qn_json_member_integer(out, "count", (int64_t)n);
        qn_json_member_integer(out, "max_model_len", served->n_ctx);
    }
    return close_answer(exchange, most, refusal);
}

/* ---- /detokenize ---- */

static qn_exchange *parse_detokenize(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    json_t *tokens = json_object_get(body, "tokens");
    if (!json_is_array(tokens)) {
        qn_refuse_type(refusal, "tokens", tokens, "an array of token ids");
        return NULL;
    }
    direct_exchange *x = create(body, NULL, reading->account, refusal);
    if (!x)
        return NULL;
    x->base.is_read = true;
    if (qn_openai_take_ids(tokens, "tokens", reading->account, &x->tokens, refusal))
        return &x->base;
    free_text(&x->base);
    return NULL;
}

static bool bind_detokenize(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    const qn_prompt *tokens = &((const direct_exchange *)exchange)->tokens;
    const size_t most = MAX_ANSWER + 2 * tokens->n * sizeof *tokens->tokens;
    qn_bytes text = { .account = exchange->account };
    for (size_t i = 0; i < tokens->n && text.length <= most; i++) {
        const char *bytes;
        size_t length;
        if (qn_token_piece(served->model, tokens->tokens[i], &bytes, &length)) {
            qn_bytes_free(&text);
            return refuse_text("tokens", refusal);
        }
        qn_bytes_add(&text, bytes, length);
    }
    qn_bytes *out = open_answer(exchange, "content"); /* llama-server's */
    qn_json_text(out, text.data, text.length);
    qn_json_key(out, "prompt"); /* vLLM's */
    qn_json_text(out, text.data, text.length);
    out->has_failed = out->has_failed || text.has_failed;
    qn_bytes_free(&text);
    return close_answer(exchange, most, refusal);
}

/* ---- /apply-template ---- */

static qn_exchange *parse_template(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    bool has_functions;
    if (!qn_openai_take_functions(body, &has_functions, reading, refusal))
        return NULL;
    json_t *conversation = qn_openai_conversation(body, reading, refusal);
    direct_exchange *x = conversation ? create(body, NULL, reading->account, refusal) : NULL;
    if (!x) {
        json_decref(conversation);
        return NULL;
    }
    x->base.conversation = conversation;
    return &x->base;
}

static bool bind_template(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    qn_bytes json = { .account = exchange->account };
    char *text = NULL;
    size_t length = 0;
    if (!qn_openai_set_reasoning(exchange->conversation, served))
        return qn_refuse_memory(refusal);
    qn_json_dump(exchange->conversation, &json);
    json_decref(exchange->conversation);
    exchange->conversation = NULL;
    if (json.has_failed) {
        qn_bytes_free(&json);
        return qn_refuse_over(exchange->account, refusal);
    }
    const qn_status status =
        qn_conversation_text(served->model, json.data, json.length, exchange->created, &text, &length);
    const size_t most = MAX_ANSWER + json.length;
    qn_bytes_free(&json);
    if (status)
        return qn_refuse(refusal, 400, status == QN_ERR_UNSUPPORTED ? "unsupported" : NULL, "messages", "%s",
                         qn_error_text());
    if (length <= most) {
        qn_bytes *out = open_answer(exchange, "prompt");
        qn_json_text(out, text, length);
    }
    qn_free_text(text);
    return length <= most ? close_answer(exchange, most, refusal) : refuse_long(most, refusal);
}

/* ---- All of them ---- */

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_bytes *answer = &((direct_exchange *)exchange)->answer;
    qn_bytes_free(out);
    *out = *answer;
    *answer = (qn_bytes){ 0 };
    return 200;
}

static void fail(qn_exchange *exchange, const qn_refusal *refusal, qn_bytes *out)
{
    exchange->has_failed = true;
    (void)refusal;
    (void)out;
}

#define TEXT_PROTOCOL(paths_, parse_, bind_)                                                                           \
    {                                                                                                                  \
        .paths = paths_, .keep_alive = ":\n\n", .is_direct = true, .parse = parse_, .bind = bind_,                     \
        .begin = qn_llama_begin, .event = qn_text_exchange_no_event, .end = end, .fail = fail,                         \
        .refuse = qn_openai_refuse, .free = free_text                                                                  \
    }

static const char *const tokenize_paths[] = { "/tokenize", NULL }, *const detokenize_paths[] = { "/detokenize", NULL },
                         *const template_paths[] = { "/apply-template", NULL };

const qn_protocol qn_llama_tokenize = TEXT_PROTOCOL(tokenize_paths, parse_tokenize, bind_tokenize);
const qn_protocol qn_llama_detokenize = TEXT_PROTOCOL(detokenize_paths, parse_detokenize, bind_detokenize);
const qn_protocol qn_llama_template = TEXT_PROTOCOL(template_paths, parse_template, bind_template);
