/* Log probabilities in the answers of quern batch, in OpenAI's two forms: a list of objects for chats, an object of lists for
 * completions. */
#include "cli/batch.h"

#include "base/memory.h"
#include "text/utf8_stream.h"

#include <math.h>
#include <string.h>

/* What OpenAI writes for -inf, which JSON does not have. */
static const double NO_CHANCE = -9999;

/* What is written, and whether there was no memory for a part of it. */
struct writer {
    const qn_model *model;
    bool is_chat, has_failed;
};

/* ---- Values ---- */

static void append(struct writer *w, json_t *list, json_t *value)
{
    if (json_array_append_new(list, value))
        w->has_failed = true;
}

static json_t *number(float value)
{
    return json_real(isfinite(value) ? value : NO_CHANCE);
}

/* The bytes of a token. Ids beyond the tokeniser's have none. */
static size_t bytes_of(const qn_model *model, qn_token token, const char **bytes)
{
    size_t length;
    *bytes = "";
    return qn_token_piece(model, token, bytes, &length) == QN_OK ? length : 0;
}

/* A token's text; of bytes that are no text, their numbers. */
static json_t *text_of(const struct writer *w, qn_token token)
{
    const char *bytes;
    const size_t length = bytes_of(w->model, token, &bytes);
    json_t *text = memchr(bytes, 0, length) ? NULL : json_stringn(bytes, length);
    char *escaped;
    if (text || qn_alloc(&escaped, 4 * length + sizeof "bytes:", 1, "text of a token"))
        return text;
    char *at = escaped + sprintf(escaped, "%s", w->is_chat ? "" : "bytes:");
    for (size_t i = 0; i < length; i++)
        at += sprintf(at, "\\x%02x", (unsigned)(unsigned char)bytes[i]);
    text = json_string(escaped);
    qn_free(escaped);
    return text;
}

static json_t *byte_list(struct writer *w, qn_token token)
{
    const char *bytes;
    const size_t length = bytes_of(w->model, token, &bytes);
    json_t *list = json_array();
    for (size_t i = 0; i < length; i++)
        append(w, list, json_integer((unsigned char)bytes[i]));
    return list;
}

/* ---- Which tokens the text has ---- */

static size_t count_characters(const char *text, size_t length)
{
    size_t n = 0;
    for (size_t i = 0; i < length; i++)
        n += ((unsigned char)text[i] & 0xc0) != 0x80;
    return n;
}

/* offsets [n_tokens]: how many characters of the text are complete before each token. *n: the tokens that are in the text,
 * without an end token and what a stop string cut off. Beside reasoning and calls, where tokens are in no content, nothing is cut
 * off. False without memory. */
static bool find_offsets(const qn_batch_choice *choice, const qn_model *model, size_t *offsets, size_t *n)
{
    const qn_request_result *result = &choice->result;
    const bool is_stopped = result->is_stop_string,
               has_end = result->finish == QN_FINISH_STOP && !is_stopped && choice->n_tokens;
    const bool is_cut = is_stopped && !choice->reasoning.length && !choice->calls;
    const size_t n_text = count_characters(choice->text.data, choice->text.length);
    qn_utf8_stream stream = { 0 };
    size_t n_characters = 0;
    bool is_done = true;
    for (*n = 0; is_done && *n < choice->n_tokens - has_end && !(is_cut && n_characters >= n_text); ++*n) {
        const char *bytes, *text = "";
        const qn_token token = choice->tokens[*n].token;
        size_t n_bytes = 0;
        offsets[*n] = n_characters;
        if (!qn_token_is_special(model, token)) {
            const size_t length = bytes_of(model, token, &bytes);
            is_done = qn_utf8_stream_feed(&stream, bytes, length, &text, &n_bytes) == QN_OK;
        }
        n_characters += is_done ? count_characters(text, n_bytes) : 0;
    }
    qn_utf8_stream_free(&stream);
    return is_done;
}

/* ---- Chats ---- */

static json_t *chat_entry(struct writer *w, qn_token token, float value)
{
    return json_pack("{s:o, s:o, s:o}", "token", text_of(w, token), "logprob", number(value), "bytes", byte_list(w, token));
}

static json_t *chat_token(struct writer *w, const qn_batch_token *token)
{
    const qn_logprobs *l = &token->logprobs;
    json_t *entry = chat_entry(w, token->token, l->chosen), *top = json_array();
    for (uint32_t i = 0; i < l->n; i++)
        append(w, top, chat_entry(w, l->tokens[i], l->values[i]));
    if (json_object_set_new(entry, "top_logprobs", top))
        w->has_failed = true;
    return entry;
}

static json_t *chat_form(struct writer *w, const qn_batch_choice *choice, size_t n)
{
    json_t *content = json_array();
    for (size_t i = 0; i < n; i++)
        append(w, content, chat_token(w, &choice->tokens[i]));
    return json_pack("{s:o, s:n}", "content", content, "refusal");
}

/* ---- Completions ---- */

/* The most likely tokens, and the sampled one. Of tokens of the same text the more likely stays. */
static json_t *top_by_text(struct writer *w, const qn_batch_token *token)
{
    const qn_logprobs *l = &token->logprobs;
    json_t *top = json_object();
    for (uint32_t i = 0; i <= l->n; i++) {
        json_t *text = text_of(w, i < l->n ? l->tokens[i] : token->token);
        if (!json_object_get(top, json_string_value(text)) &&
            json_object_set_new(top, json_string_value(text), number(i < l->n ? l->values[i] : l->chosen)))
            w->has_failed = true;
        json_decref(text);
    }
    return top;
}

static json_t *completion_form(struct writer *w, const qn_batch_choice *choice, const size_t *offsets, size_t n)
{
    json_t *tokens = json_array(), *values = json_array(), *top = json_array(), *places = json_array();
    for (size_t i = 0; i < n; i++) {
        append(w, tokens, text_of(w, choice->tokens[i].token));
        append(w, values, number(choice->tokens[i].logprobs.chosen));
        append(w, top, top_by_text(w, &choice->tokens[i]));
        append(w, places, json_integer((json_int_t)offsets[i]));
    }
    return json_pack("{s:o, s:o, s:o, s:o}", "tokens", tokens, "token_logprobs", values, "top_logprobs", top, "text_offset",
                     places);
}

json_t *qn_batch_logprobs(const qn_batch_choice *choice, const qn_model *model)
{
    struct writer w = { .model = model, .is_chat = choice->job->is_chat };
    size_t *offsets, n;
    if (qn_alloc(&offsets, choice->n_tokens, sizeof *offsets, "log probabilities"))
        return NULL;
    w.has_failed = !find_offsets(choice, model, offsets, &n);
    json_t *logprobs = w.is_chat ? chat_form(&w, choice, n) : completion_form(&w, choice, offsets, n);
    qn_free(offsets);
    if (!w.has_failed)
        return logprobs;
    json_decref(logprobs);
    return NULL;
}
