/* llama-server's /completion: texts that go on, in its own form of answers. */
#include "server/openai.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_FIELDS = 64 };

static bool take_fields(qn_openai *x, const json_t *body, qn_refusal *refusal)
{
    json_t *fields = qn_field(body, "response_fields");
    x->fields = json_incref(fields);
    if (fields && !json_is_array(fields))
        return qn_refuse_type(refusal, "response_fields", fields, "an array of strings");
    if (json_array_size(fields) > MAX_FIELDS)
        return qn_refuse(refusal, 400, NULL, "response_fields", "'response_fields' has %zu fields, at most %d are allowed",
                         json_array_size(fields), MAX_FIELDS);
    for (size_t i = 0; i < json_array_size(fields); i++)
        if (!json_is_string(json_array_get(fields, i)))
            return qn_refuse_type(refusal, "response_fields", json_array_get(fields, i), "an array of strings");
    return true;
}

static bool check(qn_openai *x, const json_t *body, qn_refusal *refusal)
{
    bool is_after = false;
    if (!qn_field_bool(body, "return_tokens", &x->has_tokens, refusal) || !take_fields(x, body, refusal) ||
        !qn_field_bool(body, "post_sampling_probs", &is_after, refusal))
        return false;
    if (is_after)
        return qn_refuse(refusal, 400, "unsupported", "post_sampling_probs", "'post_sampling_probs' is not supported");
    x->has_tokens = x->has_tokens || x->base.is_stream;
    return qn_openai_check_prompts(x, body, refusal);
}

static qn_exchange *parse(json_t *body, const qn_protocol_limits *limits, qn_refusal *refusal)
{
    qn_openai *x = qn_openai_create(QN_LLAMA_COMPLETION, body, limits, refusal);
    if (!x || check(x, body, refusal))
        return x ? &x->base : NULL;
    qn_openai_free(&x->base);
    return NULL;
}

static bool bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    return qn_openai_bind((qn_openai *)exchange, served, refusal);
}

/* ---- Settings ---- */

static void write_number(const char *key, double value, qn_bytes *out)
{
    qn_json_key(out, key);
    qn_json_number(out, value);
}

/* End tokens that are ignored have the bias null, -inf. */
static void write_biases(const qn_openai *x, qn_bytes *out)
{
    const uint32_t n_vocab = x->params.ignore_end ? qn_model_get_info(x->served->model).n_vocab : 0;
    qn_json_key(out, "logit_bias");
    qn_json_open(out, '[');
    for (size_t i = 0; i < x->params.n_bias + n_vocab; i++) {
        const bool is_end = i >= x->params.n_bias;
        const qn_token token = is_end ? (qn_token)(i - x->params.n_bias) : x->bias[i].token;
        if (is_end && !qn_token_is_end(x->served->model, token))
            continue;
        qn_json_open(out, '{');
        write_number("bias", is_end ? -INFINITY : (double)x->bias[i].value, out);
        qn_json_member_integer(out, "token", token);
        qn_json_close(out, '}');
    }
    qn_json_close(out, ']');
}

static void write_settings(const qn_openai *x, size_t index, qn_bytes *out)
{
    const qn_request_params *params = &x->base.requests[index];
    const qn_sampling *s = &params->sampling;
    qn_json_key(out, "generation_settings");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "seed", (int64_t)s->seed); /* as bodies have it */
    write_number("temperature", s->temperature, out);
    qn_json_member_integer(out, "top_k", s->top_k);
    write_number("top_p", s->top_p, out);
    write_number("min_p", s->min_p, out);
    qn_json_member_integer(out, "repeat_last_n", s->repeat_last_n);
    write_number("repeat_penalty", s->repeat_penalty, out);
    write_number("presence_penalty", s->presence_penalty, out);
    write_number("frequency_penalty", s->frequency_penalty, out);
    qn_json_key(out, "stop");
    qn_json_open(out, '[');
    for (size_t i = 0; i < params->n_stop; i++)
        qn_json_string(out, params->stop[i]);
    qn_json_close(out, ']');
    qn_json_member_integer(out, "max_tokens", params->max_tokens);
    qn_json_member_integer(out, "n_predict", params->max_tokens);
    qn_json_key(out, "ignore_eos");
    qn_json_bool(out, params->ignore_end);
    qn_json_key(out, "stream");
    qn_json_bool(out, x->base.is_stream);
    write_biases(x, out);
    qn_json_member_integer(out, "n_probs", params->n_logprobs < 0 ? 0 : params->n_logprobs);
    qn_json_close(out, '}');
}

/* ---- Results ---- */

static void write_tokens(const qn_choice *choice, size_t n, bool has_tokens, qn_bytes *out)
{
    qn_json_key(out, "tokens");
    qn_json_open(out, '[');
    for (size_t i = 0; has_tokens && i < n; i++)
        qn_json_integer(out, choice->tokens[i].token);
    qn_json_close(out, ']');
}

static void write_probabilities(const qn_openai *x, const qn_choice *choice, size_t n, qn_bytes *out)
{
    if (x->params.n_logprobs < 0)
        return;
    qn_json_key(out, "completion_probabilities");
    qn_openai_logprob_list(x, choice, n, out);
}

static const char *stop_type(const qn_choice *choice)
{
    if (choice->result.finish != QN_FINISH_STOP)
        return "limit";
    return choice->result.is_stop_string ? "word" : "eos";
}

/* The last object of an answer, the only one without a stream. */
static void write_result(const qn_openai *x, size_t index, qn_bytes *out)
{
    const qn_choice *choice = &x->choices[index];
    const qn_request_result *result = &choice->result;
    const char *word = qn_openai_stop(x, choice);
    qn_bytes prompt = { 0 };
    qn_openai_prompt_text(x, index, &prompt);
    qn_json_open(out, '{');
    qn_json_member_integer(out, "index", (int64_t)index);
    qn_json_key(out, "content");
    qn_json_text(out, choice->text.data, choice->text.length);
    write_tokens(choice, choice->n_pending, x->has_tokens, out);
    qn_json_member_integer(out, "id_slot", -1);
    qn_json_key(out, "stop");
    qn_json_bool(out, true);
    qn_json_member_string(out, "model", qn_openai_model(x));
    qn_json_member_integer(out, "tokens_predicted", (int64_t)result->n_generated);
    qn_json_member_integer(out, "tokens_evaluated", (int64_t)result->n_prompt);
    write_settings(x, index, out);
    qn_json_key(out, "prompt");
    qn_json_text(out, prompt.data, prompt.length);
    qn_json_key(out, "has_new_line");
    qn_json_bool(out, choice->has_new_line);
    qn_json_key(out, "truncated");
    qn_json_bool(out, result->finish == QN_FINISH_LENGTH && result->n_prompt + result->n_generated >= x->served->n_ctx);
    qn_json_member_string(out, "stop_type", stop_type(choice));
    qn_json_member_string(out, "stopping_word", word ? word : "");
    qn_json_member_integer(out, "tokens_cached", (int64_t)(result->n_prompt + result->n_generated));
    write_probabilities(x, choice, choice->n_pending, out);
    qn_llama_timings(choice, out);
    qn_json_close(out, '}');
    out->has_failed = out->has_failed || prompt.has_failed;
    qn_bytes_free(&prompt);
}

static void send_text(const qn_openai *x, size_t index, const char *text, size_t length, qn_bytes *out)
{
    qn_choice *choice = &x->choices[index];
    const size_t n = qn_choice_ready(choice);
    qn_bytes_print(out, "data: ");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "index", (int64_t)index);
    qn_json_key(out, "content");
    qn_json_text(out, text, length);
    write_tokens(choice, n, true, out);
    qn_json_key(out, "stop");
    qn_json_bool(out, false);
    qn_json_member_integer(out, "id_slot", -1);
    qn_json_member_integer(out, "tokens_predicted", (int64_t)choice->n_tokens);
    qn_json_member_integer(out, "tokens_evaluated", (int64_t)x->base.requests[index].n_tokens);
    write_probabilities(x, choice, n, out);
    qn_bytes_print(out, "}\n\n");
    qn_choice_drop(choice, n);
}

/* ---- Chosen fields ---- */

/* "a/b" is the member b of a. */
static json_t *find(json_t *result, const char *path)
{
    char name[64];
    const size_t length = strcspn(path, "/");
    if (length >= sizeof name)
        return NULL;
    memcpy(name, path, length);
    name[length] = 0;
    json_t *value = json_object_get(result, name);
    return path[length] && value ? find(value, path + length + 1) : value;
}

/* A result with the fields of response_fields alone, which are named by their paths. */
static void write_chosen(const qn_openai *x, const json_t *fields, size_t index, qn_bytes *out)
{
    qn_bytes all = { 0 };
    write_result(x, index, &all);
    json_t *result = all.has_failed ? NULL : json_loadb(all.data, all.length, JSON_ALLOW_NUL, NULL), *chosen = json_object();
    for (size_t i = 0; result && i < json_array_size(fields); i++) {
        const char *path = json_string_value(json_array_get(fields, i));
        json_t *value = find(result, path);
        if (value)
            (void)json_object_set(chosen, path, value);
    }
    char *text = result && chosen ? json_dumps(chosen, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL;
    if (text)
        qn_bytes_add(out, text, strlen(text));
    else
        out->has_failed = true;
    free(text);
    json_decref(result);
    json_decref(chosen);
    qn_bytes_free(&all);
}

static void write_answer(const qn_openai *x, size_t index, qn_bytes *out)
{
    if (json_array_size(x->fields))
        write_chosen(x, x->fields, index, out);
    else
        write_result(x, index, out);
}

/* ---- The protocol ---- */

static void event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out)
{
    qn_openai *x = (qn_openai *)exchange;
    if (!qn_openai_take(x, &x->choices[request], event, out))
        return;
    if (event->kind == QN_EXCHANGE_TEXT && !x->base.is_stream) {
        qn_bytes_add(&x->choices[request].text, event->text, event->length);
    } else if (event->kind == QN_EXCHANGE_TEXT) {
        send_text(x, request, event->text, event->length, out);
    } else if (event->kind == QN_EXCHANGE_END && x->base.is_stream) {
        qn_bytes_print(out, "data: ");
        write_answer(x, request, out);
        qn_bytes_print(out, "\n\n");
    }
}

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_openai *x = (qn_openai *)exchange;
    const bool is_list = x->base.n_requests > 1;
    if (!qn_openai_check_end(x, out))
        return x->refusal.status;
    if (x->base.is_stream)
        return 200;
    if (is_list)
        qn_json_open(out, '[');
    for (size_t i = 0; i < x->base.n_requests; i++) {
        qn_bytes_add(out, ",", i > 0);
        write_answer(x, i, out);
    }
    if (is_list)
        qn_json_close(out, ']');
    return 200;
}

static const char *const paths[] = { "/completion", "/completions", NULL };

const qn_protocol qn_llama_completion = { .paths = paths,
                                          .keep_alive = ":\n\n",
                                          .parse = parse,
                                          .bind = bind,
                                          .begin = qn_llama_begin,
                                          .event = event,
                                          .end = end,
                                          .fail = qn_openai_fail,
                                          .refuse = qn_openai_refuse,
                                          .free = qn_openai_free };
