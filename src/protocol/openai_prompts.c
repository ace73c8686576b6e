/* Prompts of completions: a text or token ids, or a list of prompts. /completion also takes lists that mix both in one
 * prompt, and objects with texts. */
#include "protocol/openai.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_REQUESTS = 128 };

static const char expected[] = "a string, an array of token ids, or an array of prompts";

/* Whether the value is a list of prompts rather than one prompt of tokens. */
static bool is_list(const json_t *prompt)
{
    const json_t *first = json_array_get(prompt, 0);
    for (size_t i = 0; i < json_array_size(prompt); i++)
        if (json_is_number(json_array_get(prompt, i)) && !json_is_array(first))
            return false;
    return json_is_array(prompt);
}

/* Returns the text of a prompt, borrowed; NULL: it is none. Clients of llama-server may send it in an object, next to
 * images, which are not supported. */
static const json_t *text_of(const qn_text_exchange *x, const json_t *prompt)
{
    const json_t *images = qn_field(prompt, "multimodal_data"), *text = prompt;
    if (x->kind == QN_LLAMA_EXCHANGE && json_is_object(prompt))
        text = !images || (json_is_array(images) && !json_array_size(images)) ? json_object_get(prompt, "prompt_string")
                                                                              : NULL;
    return json_is_string(text) ? text : NULL;
}

static bool check_prompt(const qn_text_exchange *x, const json_t *prompt, qn_refusal *refusal)
{
    int64_t id;
    if (text_of(x, prompt))
        return true;
    if (!json_array_size(prompt))
        return qn_refuse_type(refusal, "prompt", prompt, expected);
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        const json_t *item = json_array_get(prompt, i);
        if (!qn_json_integer_of(item, &id) && !(x->kind == QN_LLAMA_EXCHANGE && json_is_string(item)))
            return qn_refuse_type(refusal, "prompt", item, expected);
    }
    return true;
}

/* ---- Tokens ---- */

/* Reserves room for n more tokens: as many as are asked for, from the second time on at least half again as many. */
static bool reserve(qn_prompt *prompt, size_t n, qn_account *account, qn_refusal *refusal)
{
    const size_t half = prompt->capacity + prompt->capacity / 2;
    size_t need, bytes;
    if (!qn_add_size(prompt->n, n, &need))
        return qn_refuse_memory(refusal);
    if (need <= prompt->capacity)
        return true;
    need = half > need ? half : need;
    if (!qn_mul_size(need, sizeof *prompt->tokens, &bytes))
        return qn_refuse_memory(refusal);
    if (!qn_account_take(account, bytes - prompt->capacity * sizeof *prompt->tokens))
        return qn_refuse_over(account, refusal);
    qn_token *tokens = realloc(prompt->tokens, bytes);
    if (!tokens)
        return qn_refuse_memory(refusal);
    prompt->tokens = tokens;
    prompt->capacity = need;
    return true;
}

/* Appends an id; there is room. One that is no token's becomes -1, which is outside every vocabulary. */
static void add_id(qn_prompt *prompt, const json_t *value)
{
    int64_t id = -1;
    (void)qn_json_integer_of(value, &id);
    prompt->tokens[prompt->n++] = id >= 0 && id <= INT32_MAX ? (qn_token)id : -1;
}

bool qn_openai_take_ids(json_t *ids, const char *field, qn_account *account, qn_prompt *prompt, qn_refusal *refusal)
{
    const size_t n = json_array_size(ids);
    int64_t id;
    if (!reserve(prompt, n, account, refusal))
        return false;
    for (size_t i = 0; i < n; i++) {
        const json_t *item = json_array_get(ids, i);
        if (!qn_json_integer_of(item, &id))
            return qn_refuse_type(refusal, field, item, "an array of token ids");
        add_id(prompt, item);
    }
    (void)json_array_clear(ids);
    return true;
}

static bool has_text(const json_t *prompt)
{
    for (size_t i = 0; i < json_array_size(prompt); i++)
        if (json_is_string(json_array_get(prompt, i)))
            return true;
    return !json_is_array(prompt);
}

/* Makes prompts of ids tokens at once, as such lists may be most of the body; keeps a reference to `prompt` if others
 * need the model. */
static bool take_ids(qn_text_exchange *x, json_t *prompt, bool is_many, qn_refusal *refusal)
{
    bool needs_model = false;
    for (size_t i = 0; i < x->n_prompts; i++) {
        json_t *given = is_many ? json_array_get(prompt, i) : prompt;
        if (has_text(given))
            needs_model = true;
        else if (!qn_openai_take_ids(given, "prompt", x->base.account, &x->prompts[i], refusal))
            return false;
    }
    x->prompt = needs_model ? json_incref(prompt) : NULL;
    x->base.is_read = !needs_model && !x->biases && !x->format.source && !x->gap.suffix;
    return true;
}

bool qn_openai_check_prompts(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    json_t *prompt = json_object_get(body, "prompt");
    const bool is_many = is_list(prompt);
    const size_t n = is_many ? json_array_size(prompt) : 1, most = qn_limit(x->limits.requests, MAX_REQUESTS);
    if (!n)
        return qn_refuse_type(refusal, "prompt", prompt, expected);
    if (n > most / x->n_choices)
        return qn_refuse(refusal, 400, NULL, "prompt",
                         "'prompt' has %zu prompts with %zu choices each, at most %zu are allowed", n, x->n_choices,
                         most);
    for (size_t i = 0; i < n; i++)
        if (!check_prompt(x, is_many ? json_array_get(prompt, i) : prompt, refusal))
            return false;
    if (qn_alloc(&x->prompts, n, sizeof *x->prompts, "prompts"))
        return qn_refuse_memory(refusal);
    x->n_prompts = n;
    for (size_t i = 0; i < n; i++)
        x->prompts[i].json.account = x->base.account;
    return take_ids(x, prompt, is_many, refusal);
}

/* ---- Texts ---- */

/* Appends the tokens of a text. is_first: it is at the beginning of its prompt. */
static bool add_text(const qn_text_exchange *x, qn_prompt *prompt, const json_t *text, bool is_first,
                     qn_refusal *refusal)
{
    qn_token *tokens;
    size_t n;
    const bool is_whole = !x->gap.suffix; /* text beside a gap is code of a file, which begins elsewhere */
    if (is_whole && !qn_exchange_check_bytes(json_string_length(text), x->served, refusal))
        return false;
    if (qn_tokenize(x->served->model, json_string_value(text), json_string_length(text), is_whole, is_first && is_whole,
                    &tokens, &n))
        return qn_refuse(refusal, 400, "unsupported", "prompt", "%s", qn_error_text());
    if (!prompt->tokens) { /* the prompt is one text */
        prompt->tokens = tokens;
        if (!qn_account_take(x->base.account, n * sizeof *tokens))
            return qn_refuse_over(x->base.account, refusal);
        prompt->n = prompt->capacity = n;
        return true;
    }
    const bool done = reserve(prompt, n, x->base.account, refusal);
    if (done && n)
        memcpy(prompt->tokens + prompt->n, tokens, n * sizeof *tokens);
    prompt->n += done ? n : 0;
    qn_free_tokens(tokens);
    return done;
}

static bool bind_prompt(const qn_text_exchange *x, const json_t *given, qn_prompt *prompt, qn_refusal *refusal)
{
    const json_t *text = text_of(x, given);
    if (text)
        return add_text(x, prompt, text, true, refusal);
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *item = json_array_get(given, i);
        if (json_is_string(item) ? !add_text(x, prompt, item, i == 0, refusal)
                                 : !reserve(prompt, 1, x->base.account, refusal))
            return false;
        if (!json_is_string(item))
            add_id(prompt, item);
    }
    return true;
}

/* ---- Answers that repeat prompts ---- */

static bool repeats_prompt(const qn_text_exchange *x)
{
    return x->is_echo || x->kind == QN_LLAMA_EXCHANGE;
}

/* Writes the text of a prompt as a JSON string, for answers that repeat it. */
static bool write_text(const qn_text_exchange *x, qn_prompt *prompt, qn_refusal *refusal)
{
    qn_bytes text = { .account = x->base.account };
    for (size_t i = 0; i < prompt->n; i++) {
        const char *bytes;
        size_t length;
        if (qn_token_piece(x->served->model, prompt->tokens[i], &bytes, &length) == QN_OK)
            qn_bytes_add(&text, bytes, length);
    }
    qn_json_text(&prompt->json, text.data, text.length);
    const bool done = !text.has_failed && !prompt->json.has_failed;
    qn_bytes_free(&text);
    return done || qn_refuse_over(x->base.account, refusal);
}

bool qn_openai_check_repeats(const qn_text_exchange *x, size_t settings, qn_refusal *refusal)
{
    size_t total = 0;
    for (size_t i = 0; i < x->n_prompts; i++)
        total += x->n_choices * (x->prompts[i].json.length + settings);
    if (!qn_account_take(x->base.account, total))
        return qn_refuse_over(x->base.account, refusal);
    qn_account_give(x->base.account, total); /* the answer reserves it again when it is written */
    return true;
}

const qn_prompt *qn_openai_prompt_of(const qn_text_exchange *x, size_t request)
{
    return &x->prompts[request / x->n_choices];
}

const qn_bytes *qn_openai_prompt_json(const qn_text_exchange *x, size_t request)
{
    return &qn_openai_prompt_of(x, request)->json;
}

bool qn_openai_bind_prompts(qn_text_exchange *x, qn_refusal *refusal)
{
    const bool is_many = is_list(x->prompt);
    if (!qn_openai_check_infill(x, refusal))
        return false;
    for (size_t i = 0; i < x->n_prompts; i++) {
        qn_prompt *prompt = &x->prompts[i];
        if (x->prompt && !bind_prompt(x, is_many ? json_array_get(x->prompt, i) : x->prompt, prompt, refusal))
            return false;
        if (x->gap.suffix && !qn_openai_bind_gap(x, prompt, refusal))
            return false;
        if (prompt->n > x->served->n_ctx) /* each choice may repeat it */
            return qn_exchange_refuse_length(prompt->n, x->served, refusal);
        if (repeats_prompt(x) && !write_text(x, prompt, refusal))
            return false;
    }
    return true;
}
