/* Prompts of completions: a text or token ids, or a list of such. /completion also takes lists that mix both in one prompt, and
 * texts in objects. */
#include "server/openai.h"

#include "base/memory.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_REQUESTS = 128 };

static const char expected[] = "a string, an array of token ids, or an array of such";

/* A list of prompts, not one prompt of tokens. */
static bool is_list(const json_t *prompt)
{
    const json_t *first = json_array_get(prompt, 0);
    for (size_t i = 0; i < json_array_size(prompt); i++)
        if (json_is_number(json_array_get(prompt, i)) && !json_is_array(first))
            return false;
    return json_is_array(prompt);
}

/* A prompt that is a text, or NULL. llama-server's clients may have it in an object, beside images, which are not read. */
static const json_t *text_of(const qn_openai *x, const json_t *prompt)
{
    const json_t *images = qn_field(prompt, "multimodal_data"), *text = prompt;
    if (x->kind == QN_LLAMA_COMPLETION && json_is_object(prompt))
        text = !images || (json_is_array(images) && !json_array_size(images)) ? json_object_get(prompt, "prompt_string") : NULL;
    return json_is_string(text) ? text : NULL;
}

static bool check_prompt(const qn_openai *x, const json_t *prompt, qn_refusal *refusal)
{
    int64_t id;
    if (text_of(x, prompt))
        return true;
    if (!json_array_size(prompt))
        return qn_refuse_type(refusal, "prompt", prompt, expected);
    for (size_t i = 0; i < json_array_size(prompt); i++) {
        const json_t *item = json_array_get(prompt, i);
        if (!qn_json_integer_of(item, &id) && !(x->kind == QN_LLAMA_COMPLETION && json_is_string(item)))
            return qn_refuse_type(refusal, "prompt", item, expected);
    }
    return true;
}

bool qn_openai_check_prompts(qn_openai *x, const json_t *body, qn_refusal *refusal)
{
    json_t *prompt = json_object_get(body, "prompt");
    const bool is_many = is_list(prompt);
    const size_t n = is_many ? json_array_size(prompt) : 1, most = qn_limit(x->limits.requests, MAX_REQUESTS);
    if (!n)
        return qn_refuse_type(refusal, "prompt", prompt, expected);
    if (n > most / x->n_choices)
        return qn_refuse(refusal, 400, NULL, "prompt",
                         "'prompt' has %zu prompts with %zu choices each, at most %zu are allowed", n, x->n_choices, most);
    for (size_t i = 0; i < n; i++)
        if (!check_prompt(x, is_many ? json_array_get(prompt, i) : prompt, refusal))
            return false;
    x->n_prompts = n;
    x->prompt = json_incref(prompt);
    return true;
}

/* ---- Tokens ---- */

static bool add_text(const qn_openai *x, qn_prompt *prompt, size_t *capacity, const json_t *text, bool is_first,
                     qn_refusal *refusal)
{
    qn_token *tokens;
    size_t n;
    if (qn_tokenize(x->served->model, json_string_value(text), json_string_length(text), true, is_first, &tokens, &n))
        return qn_refuse(refusal, 400, "unsupported", "prompt", "%s", qn_error_text());
    const bool done = qn_realloc_array(&prompt->tokens, capacity, prompt->n + n + 1, sizeof *tokens, "a prompt") == QN_OK;
    if (done && n)
        memcpy(prompt->tokens + prompt->n, tokens, n * sizeof *tokens);
    prompt->n += done ? n : 0;
    qn_free_tokens(tokens);
    return done || qn_refuse_memory(refusal);
}

static bool add_id(qn_prompt *prompt, size_t *capacity, const json_t *value, qn_refusal *refusal)
{
    int64_t id = -1;
    (void)qn_json_integer_of(value, &id);
    if (qn_realloc_array(&prompt->tokens, capacity, prompt->n + 1, sizeof *prompt->tokens, "a prompt"))
        return qn_refuse_memory(refusal);
    prompt->tokens[prompt->n++] = id >= 0 && id <= INT32_MAX ? (qn_token)id : -1;
    return true;
}

static bool bind_prompt(const qn_openai *x, const json_t *given, qn_prompt *prompt, qn_refusal *refusal)
{
    size_t capacity = 0;
    const json_t *text = text_of(x, given);
    if (text)
        return add_text(x, prompt, &capacity, text, true, refusal);
    for (size_t i = 0; i < json_array_size(given); i++) {
        const json_t *item = json_array_get(given, i);
        if (!(json_is_string(item) ? add_text(x, prompt, &capacity, item, i == 0, refusal)
                                   : add_id(prompt, &capacity, item, refusal)))
            return false;
    }
    return true;
}

bool qn_openai_bind_prompts(qn_openai *x, qn_refusal *refusal)
{
    const bool is_many = is_list(x->prompt);
    if (qn_alloc(&x->prompts, x->n_prompts, sizeof *x->prompts, "prompts"))
        return qn_refuse_memory(refusal);
    for (size_t i = 0; i < x->n_prompts; i++)
        if (!bind_prompt(x, is_many ? json_array_get(x->prompt, i) : x->prompt, &x->prompts[i], refusal))
            return false;
        else if (x->prompts[i].n > x->served->n_ctx) /* answers may repeat it, each choice once */
            return qn_exchange_refuse_length(x->prompts[i].n, x->served, refusal);
    return true;
}

void qn_openai_prompt_text(const qn_openai *x, size_t request, qn_bytes *out)
{
    const qn_request_params *params = &x->base.requests[request];
    for (size_t i = 0; i < params->n_tokens; i++) {
        const char *bytes;
        size_t length;
        if (qn_token_piece(x->served->model, params->tokens[i], &bytes, &length) == QN_OK)
            qn_bytes_add(out, bytes, length);
    }
}
