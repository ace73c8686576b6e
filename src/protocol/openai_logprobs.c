/* Writes log probabilities: a list of objects for chats, an object of lists for completions, llama-server's list. */
#include "protocol/openai.h"

#include <math.h>
#include <string.h>

/* OpenAI's value for -inf, which JSON does not have. */
static const double NO_CHANCE = -9999;

/* The bytes of a token, borrowed from the model. */
typedef struct piece {
    const char *bytes;
    size_t length;
} piece;

/* Returns the bytes of a token. Token ids beyond the tokeniser's vocabulary have none. */
static piece piece_of(const qn_text_exchange *x, qn_token token)
{
    piece p = { "", 0 };
    if (qn_token_piece(x->served->model, token, &p.bytes, &p.length) != QN_OK)
        p = (piece){ "", 0 };
    return p;
}

/* Writes a token's text. Bytes that are not valid text, or have U+0000, are written as \x numbers; completions mark
 * them. */
static void write_text(piece p, bool is_marked, qn_bytes *out)
{
    if (qn_is_utf8(p.bytes, p.length) && !memchr(p.bytes, 0, p.length)) {
        qn_json_text(out, p.bytes, p.length);
        return;
    }
    qn_json_string(out, is_marked ? "bytes:" : "");
    out->length -= !out->has_failed; /* its last quote */
    for (size_t i = 0; i < p.length; i++)
        qn_bytes_print(out, "\\\\x%02x", (unsigned)(unsigned char)p.bytes[i]);
    qn_bytes_add(out, "\"", 1);
}

static void write_value(float value, qn_bytes *out)
{
    qn_json_number(out, isfinite(value) ? value : NO_CHANCE);
}

static void write_bytes(piece p, qn_bytes *out)
{
    qn_json_key(out, "bytes");
    qn_json_open(out, '[');
    for (size_t i = 0; i < p.length; i++)
        qn_json_integer(out, (unsigned char)p.bytes[i]);
    qn_json_close(out, ']');
}

/* ---- Lists of objects ---- */

/* Writes the object of a token with its probability, and leaves it open. */
static void open_entry(const qn_text_exchange *x, qn_token token, float value, qn_bytes *out)
{
    const piece p = piece_of(x, token);
    qn_json_open(out, '{');
    if (x->kind == QN_LLAMA_EXCHANGE)
        qn_json_member_integer(out, "id", token);
    qn_json_key(out, "token");
    write_text(p, false, out);
    qn_json_key(out, x->params.logprobs_after ? "prob" : "logprob");
    if (x->params.logprobs_after)
        qn_json_number(out, expf(value));
    else
        write_value(value, out);
    write_bytes(p, out);
}

void qn_openai_logprob_entries(const qn_text_exchange *x, const qn_choice *choice, size_t n, qn_bytes *out)
{
    for (size_t i = 0; i < n; i++) {
        const qn_logprobs *l = &choice->logprobs[i];
        open_entry(x, choice->tokens[i].token, l->chosen, out);
        qn_json_key(out, x->params.logprobs_after ? "top_probs" : "top_logprobs");
        qn_json_open(out, '[');
        for (uint32_t t = 0; t < l->n; t++) {
            open_entry(x, l->tokens[t], l->values[t], out);
            qn_json_close(out, '}');
        }
        qn_json_close(out, ']');
        qn_json_close(out, '}');
    }
}

void qn_openai_logprob_list(const qn_text_exchange *x, const qn_choice *choice, size_t n, qn_bytes *out)
{
    qn_json_open(out, '[');
    qn_openai_logprob_entries(x, choice, n, out);
    qn_json_close(out, ']');
}

void qn_openai_chat_logprobs(const qn_text_exchange *x, const qn_choice *choice, size_t n, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_key(out, "content");
    qn_openai_logprob_list(x, choice, n, out);
    qn_json_key(out, "refusal");
    qn_json_null(out);
    qn_json_close(out, '}');
}

/* ---- An object of lists ---- */

static bool is_same(piece a, piece b)
{
    return a.length == b.length && !memcmp(a.bytes, b.bytes, a.length);
}

/* Writes the most likely tokens and the sampled one. Of tokens with the same text the most likely stays. */
static void write_top(const qn_text_exchange *x, qn_token token, const qn_logprobs *l, qn_bytes *out)
{
    piece known[QN_MAX_LOGPROBS + 1];
    qn_json_open(out, '{');
    for (uint32_t i = 0, n = 0; i <= l->n; i++) {
        const piece p = piece_of(x, i < l->n ? l->tokens[i] : token);
        bool is_new = true;
        for (uint32_t k = 0; k < n; k++)
            is_new = is_new && !is_same(known[k], p);
        if (!is_new)
            continue;
        known[n++] = p;
        write_text(p, true, out);
        qn_bytes_add(out, ":", 1);
        write_value(i < l->n ? l->values[i] : l->chosen, out);
    }
    qn_json_close(out, '}');
}

static void write_chosen(const qn_choice *choice, size_t i, qn_bytes *out)
{
    if (choice->tokens[i].is_first)
        qn_json_null(out);
    else
        write_value(choice->logprobs[i].chosen, out);
}

static void write_likely(const qn_text_exchange *x, const qn_choice *choice, size_t i, qn_bytes *out)
{
    if (choice->tokens[i].is_first)
        qn_json_null(out);
    else
        write_top(x, choice->tokens[i].token, &choice->logprobs[i], out);
}

void qn_openai_completion_logprobs(const qn_text_exchange *x, const qn_choice *choice, size_t n, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_key(out, "tokens");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++)
        write_text(piece_of(x, choice->tokens[i].token), true, out);
    qn_json_close(out, ']');
    qn_json_key(out, "token_logprobs");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++)
        write_chosen(choice, i, out);
    qn_json_close(out, ']');
    qn_json_key(out, "top_logprobs");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++)
        write_likely(x, choice, i, out);
    qn_json_close(out, ']');
    qn_json_key(out, "text_offset");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++)
        qn_json_integer(out, (int64_t)choice->tokens[i].offset);
    qn_json_close(out, ']');
    qn_json_close(out, '}');
}
