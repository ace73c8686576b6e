/* llama-server's /completion: continues texts; answers have its own form. */
#include "protocol/openai.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Reads response_fields. Duplicates are dropped; a field with a longer path is in no answer. */
static bool take_fields(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    const json_t *given = qn_field(body, "response_fields");
    const size_t n = json_array_size(given);
    if (given && !json_is_array(given))
        return qn_refuse_type(refusal, "response_fields", given, "an array of strings");
    if (n > QN_LLAMA_MAX_FIELDS)
        return qn_refuse(refusal, 400, NULL, "response_fields",
                         "'response_fields' has %zu fields, at most %d are allowed", n, QN_LLAMA_MAX_FIELDS);
    if (qn_alloc(&x->fields.list, n, sizeof *x->fields.list, "fields"))
        return qn_refuse_memory(refusal);
    x->fields.is_given = n > 0;
    for (size_t i = 0; i < n; i++) {
        const char *path = json_string_value(json_array_get(given, i));
        size_t known = 0;
        if (!path)
            return qn_refuse_type(refusal, "response_fields", json_array_get(given, i), "an array of strings");
        while (known < x->fields.n && strcmp(x->fields.list[known].path, path) != 0)
            known++;
        if (known == x->fields.n && strlen(path) < QN_LLAMA_FIELD_BYTES)
            strcpy(x->fields.list[x->fields.n++].path, path);
    }
    return true;
}

static bool check(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    if (!qn_field_bool(body, "return_tokens", &x->has_tokens, refusal) || !take_fields(x, body, refusal) ||
        !qn_field_bool(body, "post_sampling_probs", &x->params.logprobs_after, refusal))
        return false;
    x->has_tokens = x->has_tokens || x->base.is_stream;
    return qn_openai_check_prompts(x, body, refusal);
}

static qn_exchange *parse(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    qn_text_exchange *x = qn_openai_create(QN_LLAMA_EXCHANGE, body, reading, refusal);
    if (!x || check(x, body, refusal))
        return x ? &x->base : NULL;
    qn_text_exchange_free(&x->base);
    return NULL;
}

/* Sets `prompt` of the body to the text before the gap: input_prefix and, where the cursor is, `prompt`. */
static bool join_prefix(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    const json_t *prefix = qn_field(body, "input_prefix"), *prompt = qn_field(body, "prompt");
    const size_t n = json_string_length(prefix), m = json_string_length(prompt);
    if (!json_is_string(prefix))
        return qn_refuse_type(refusal, "input_prefix", prefix, "a string");
    if (prompt && !json_is_string(prompt))
        return qn_refuse_type(refusal, "prompt", prompt, "a string");
    char *text = qn_reading_take(reading, n + m + 64) ? malloc(n + m + 1) : NULL;
    if (!text)
        return qn_reading_refuse(reading, refusal);
    memcpy(text, json_string_value(prefix), n);
    memcpy(text + n, m ? json_string_value(prompt) : "", m);
    const bool done = json_object_set_new(body, "prompt", json_stringn(text, n + m)) == 0;
    free(text);
    return done || qn_refuse_memory(refusal);
}

static qn_exchange *parse_infill(json_t *body, qn_reading *reading, qn_refusal *refusal)
{
    qn_exchange *exchange = join_prefix(body, reading, refusal) ? parse(body, reading, refusal) : NULL;
    if (!exchange || qn_openai_take_gap((qn_text_exchange *)exchange, body, refusal))
        return exchange;
    qn_text_exchange_free(exchange);
    return NULL;
}

/* ---- Settings ---- */

static void write_number(const char *key, double value, qn_bytes *out)
{
    qn_json_key(out, key);
    qn_json_number(out, value);
}

/* Writes the biases. End tokens that are ignored have the bias null, which stands for -inf. */
static void write_biases(const qn_text_exchange *x, qn_bytes *out)
{
    const uint32_t n_vocab = x->params.ignore_end ? qn_model_get_info(x->served->model)->n_vocab : 0;
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

static void write_breakers(const qn_text_exchange *x, qn_bytes *out)
{
    size_t n;
    const char *const *texts = qn_openai_breakers(x, &n);
    qn_json_key(out, "dry_sequence_breakers");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++)
        qn_json_string(out, texts[i]);
    qn_json_close(out, ']');
}

/* Writes the settings that all choices share, once. */
static void write_shared_settings(const qn_text_exchange *x, qn_bytes *out)
{
    const qn_request_params *params = &x->params;
    const qn_sampling *s = &params->sampling;
    write_number("temperature", s->temperature, out);
    qn_json_member_integer(out, "top_k", s->top_k);
    write_number("top_p", s->top_p, out);
    write_number("min_p", s->min_p, out);
    qn_json_member_integer(out, "mirostat", s->mirostat);
    write_number("mirostat_tau", s->mirostat_tau, out);
    write_number("mirostat_eta", s->mirostat_eta, out);
    write_number("typical_p", s->typical_p > 0 ? (double)s->typical_p : 1, out);
    write_number("top_n_sigma", s->top_n_sigma > 0 ? (double)s->top_n_sigma : -1, out);
    write_number("xtc_probability", s->xtc_probability, out);
    write_number("xtc_threshold", s->xtc_threshold, out);
    write_number("dry_multiplier", s->dry_multiplier, out);
    write_number("dry_base", s->dry_base, out);
    qn_json_member_integer(out, "dry_allowed_length", s->dry_allowed_length);
    qn_json_member_integer(out, "dry_penalty_last_n", s->dry_penalty_last_n);
    write_breakers(x, out);
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
    qn_json_key(out, "post_sampling_probs");
    qn_json_bool(out, params->logprobs_after);
    qn_json_close(out, '}');
}

static void write_settings(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_json_open(out, '{');
    qn_json_member_integer(out, "seed", (int64_t)x->base.requests[index].sampling.seed); /* signed, as in bodies */
    qn_bytes_add(out, ",", 1);
    qn_bytes_add(out, x->settings.data, x->settings.length);
}

/* Returns the end of a written value that begins at `at`. */
static size_t end_of_value(const char *text, size_t length, size_t at)
{
    size_t depth = 0;
    bool in_string = false;
    for (; at < length; at++) {
        const char c = text[at];
        if (in_string) {
            at += c == '\\';
            in_string = c != '"';
        } else if (!depth && (c == ',' || c == '}')) {
            break;
        } else {
            in_string = c == '"';
            depth += c == '{' || c == '[';
            depth -= c == '}' || c == ']';
        }
    }
    return at;
}

/* Finds the value of a member in the members of a text, whose keys are plain names. Returns its length, 0: not found;
 * *at is its offset. */
static size_t find_value(const char *text, size_t length, const char *name, size_t *at)
{
    const size_t n = strlen(name);
    for (size_t from = 0, end; from < length; from = end + 1) {
        const char *key = text + from + 1, *quote = memchr(key, '"', length - from - 1);
        if (!quote)
            return 0;
        *at = (size_t)(quote - text) + 2;
        end = end_of_value(text, length, *at);
        if ((size_t)(quote - key) == n && !memcmp(key, name, n))
            return end - *at;
    }
    return 0;
}

static const char settings_prefix[] = "generation_settings/", timings_prefix[] = "timings/";

static bool begins_with(const char *path, const char *prefix)
{
    return !strncmp(path, prefix, strlen(prefix));
}

static bool bind(qn_exchange *exchange, const qn_served *served, qn_refusal *refusal)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    if (!qn_text_exchange_bind(x, served, refusal))
        return false;
    write_shared_settings(x, &x->settings);
    for (size_t i = 0; !x->settings.has_failed && i < x->fields.n; i++) {
        qn_llama_field *field = &x->fields.list[i];
        if (begins_with(field->path, settings_prefix))
            field->length =
                find_value(x->settings.data, x->settings.length, field->path + strlen(settings_prefix), &field->at);
    }
    return x->settings.has_failed ? qn_refuse_over(x->base.account, refusal)
                                  : qn_openai_check_repeats(x, x->settings.length, refusal);
}

/* ---- Results ---- */

static void write_ids(const qn_choice *choice, size_t n, qn_bytes *out)
{
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++)
        qn_json_integer(out, choice->tokens[i].token);
    qn_json_close(out, ']');
}

static const char *stop_type(const qn_choice *choice)
{
    if (choice->result.finish != QN_FINISH_STOP)
        return "limit";
    return choice->result.is_stop_string ? "word" : "eos";
}

/* Sends a text of the stream, or, with `progress`, none. */
static void send_text(const qn_text_exchange *x, size_t index, const char *text, size_t length,
                      const qn_prompt_progress *progress, qn_bytes *out)
{
    qn_choice *choice = &x->choices[index];
    const size_t n = qn_choice_ready(choice);
    qn_bytes_print(out, "data: ");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "index", (int64_t)index);
    qn_json_key(out, "content");
    qn_json_text(out, text, length);
    qn_json_key(out, "tokens");
    write_ids(choice, n, out);
    qn_json_key(out, "stop");
    qn_json_bool(out, false);
    qn_json_member_integer(out, "id_slot", -1);
    qn_json_member_integer(out, "tokens_predicted", (int64_t)choice->n_tokens);
    qn_json_member_integer(out, "tokens_evaluated", (int64_t)x->base.requests[index].n_tokens);
    if (x->params.n_logprobs >= 0) {
        qn_json_key(out, "completion_probabilities");
        qn_openai_logprob_list(x, choice, n, out);
    }
    if (progress)
        qn_llama_progress(progress, out);
    qn_bytes_print(out, "}\n\n");
    qn_choice_drop(choice, n);
}

/* ---- Members of the last object, the only one without a stream ---- */

static void write_index(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    (void)x;
    qn_json_integer(out, (int64_t)index);
}

static void write_content(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    const qn_bytes *text = &x->choices[index].text;
    qn_json_text(out, text->data, text->length);
}

static void write_tokens(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    const qn_choice *choice = &x->choices[index];
    write_ids(choice, x->has_tokens ? choice->n_pending : 0, out);
}

static void write_slot(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    (void)x;
    (void)index;
    qn_json_integer(out, -1);
}

static void write_stop(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    (void)x;
    (void)index;
    qn_json_bool(out, true);
}

static void write_model(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    (void)index;
    qn_json_string(out, qn_text_exchange_model(x));
}

static void write_predicted(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_json_integer(out, (int64_t)x->choices[index].result.n_generated);
}

static void write_evaluated(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_json_integer(out, (int64_t)x->choices[index].result.n_prompt);
}

static void write_prompt(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    const qn_bytes *prompt = qn_openai_prompt_json(x, index);
    qn_bytes_add(out, prompt->data, prompt->length);
}

static void write_new_line(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_json_bool(out, x->choices[index].has_new_line);
}

static void write_truncated(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_json_bool(out, x->choices[index].result.finish == QN_FINISH_CONTEXT);
}

static void write_stop_type(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_json_string(out, stop_type(&x->choices[index]));
}

static void write_word(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    const char *word = qn_text_exchange_stop(x, &x->choices[index]);
    qn_json_string(out, word ? word : "");
}

static void write_cached(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    const qn_request_result *result = &x->choices[index].result;
    qn_json_integer(out, (int64_t)(result->n_prompt + result->n_generated));
}

static void write_probabilities(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    const qn_choice *choice = &x->choices[index];
    qn_openai_logprob_list(x, choice, choice->n_pending, out);
}

static void write_timings(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_llama_write_timings(&x->choices[index], out);
}

typedef struct member {
    const char *name;
    void (*write)(const qn_text_exchange *x, size_t index, qn_bytes *out);
} member;

static const member members[] = { { "index", write_index },
                                  { "content", write_content },
                                  { "tokens", write_tokens },
                                  { "id_slot", write_slot },
                                  { "stop", write_stop },
                                  { "model", write_model },
                                  { "tokens_predicted", write_predicted },
                                  { "tokens_evaluated", write_evaluated },
                                  { "generation_settings", write_settings },
                                  { "prompt", write_prompt },
                                  { "has_new_line", write_new_line },
                                  { "truncated", write_truncated },
                                  { "stop_type", write_stop_type },
                                  { "stopping_word", write_word },
                                  { "tokens_cached", write_cached },
                                  { "completion_probabilities", write_probabilities },
                                  { "timings", write_timings } };

static bool has_member(const qn_text_exchange *x, const member *m)
{
    return m->write != write_probabilities || x->params.n_logprobs >= 0;
}

static void write_result(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_json_open(out, '{');
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (has_member(x, &members[i])) {
            qn_json_key(out, members[i].name);
            members[i].write(x, index, out);
        }
    qn_json_close(out, '}');
}

/* ---- Chosen fields ---- */

static void write_timing(const qn_text_exchange *x, size_t index, const char *path, qn_bytes *out)
{
    qn_bytes timings = { .account = x->base.account };
    size_t at, n;
    write_timings(x, index, &timings);
    if (!timings.has_failed &&
        (n = find_value(timings.data + 1, timings.length - 1, path + strlen(timings_prefix), &at)) > 0) {
        qn_json_key(out, path);
        qn_bytes_add(out, timings.data + 1 + at, n);
    }
    out->has_failed = out->has_failed || timings.has_failed;
    qn_bytes_free(&timings);
}

/* Writes the member that a path names: "a/b" is the member b of a. */
static void write_field(const qn_text_exchange *x, size_t index, const qn_llama_field *field, qn_bytes *out)
{
    const char *const path = field->path;
    if (field->length) {
        qn_json_key(out, path);
        qn_bytes_add(out, x->settings.data + field->at, field->length);
    } else if (!strcmp(path, "generation_settings/seed")) {
        qn_json_member_integer(out, path, (int64_t)x->base.requests[index].sampling.seed);
    } else if (begins_with(path, timings_prefix)) {
        write_timing(x, index, path, out);
    }
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        if (!strcmp(members[i].name, path) && has_member(x, &members[i])) {
            qn_json_key(out, path);
            members[i].write(x, index, out);
        }
}

/* Writes a result with only the fields of response_fields, named by their paths. */
static void write_chosen(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    qn_json_open(out, '{');
    for (size_t i = 0; i < x->fields.n; i++)
        write_field(x, index, &x->fields.list[i], out);
    qn_json_close(out, '}');
}

static void write_answer(const qn_text_exchange *x, size_t index, qn_bytes *out)
{
    if (x->fields.is_given)
        write_chosen(x, index, out);
    else
        write_result(x, index, out);
}

/* ---- The protocol ---- */

static void event(qn_exchange *exchange, size_t request, const qn_exchange_event *event, qn_bytes *out)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    if (!qn_text_exchange_take(x, &x->choices[request], event, out))
        return;
    if (event->kind == QN_EXCHANGE_TEXT && !x->base.is_stream) {
        qn_bytes_add(&x->choices[request].text, event->text, event->length);
    } else if (event->kind == QN_EXCHANGE_TEXT) {
        send_text(x, request, event->text, event->length, NULL, out);
    } else if (event->kind == QN_EXCHANGE_PROGRESS) {
        send_text(x, request, "", 0, event->progress, out);
    } else if (event->kind == QN_EXCHANGE_END && x->base.is_stream) {
        qn_bytes_print(out, "data: ");
        write_answer(x, request, out);
        qn_bytes_print(out, "\n\n");
    }
}

static int end(qn_exchange *exchange, qn_bytes *out)
{
    qn_text_exchange *x = (qn_text_exchange *)exchange;
    const bool is_list = x->base.n_requests > 1;
    if (!qn_text_exchange_check_end(x, out))
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

#define LLAMA_TEXT(paths_, parse_)                                                                                     \
    {                                                                                                                  \
        .paths = paths_, .keep_alive = ":\n\n", .parse = parse_, .bind = bind, .begin = qn_llama_begin,                \
        .event = event, .end = end, .fail = qn_openai_fail, .refuse = qn_openai_refuse, .free = qn_text_exchange_free  \
    }

static const char *const paths[] = { "/completion", "/completions", NULL }, *const infill_paths[] = { "/infill", NULL };

const qn_protocol qn_llama_completion = LLAMA_TEXT(paths, parse);
const qn_protocol qn_llama_infill = LLAMA_TEXT(infill_paths, parse_infill);
