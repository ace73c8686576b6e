/* Values of a body: sampling, lengths, stop strings, biases, log probabilities. bind fills in the served model's values
 * for those that the body does not have. */
#include "protocol/openai.h"

#include "base/memory.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    COMPLETION_TOKENS = 16,
    MAX_STOPS = 64,
    MAX_STOP_BYTES = 1024,
    MAX_STOP_TOKENS = 64,
    MAX_CHOICES = 128,
    MAX_BIASES = 4096
};

/* The largest values: OpenAI's, and for llama-server's protocol those of the command line. */
static const double MOST_TEMPERATURE = 2, MOST_LLAMA_TEMPERATURE = 1e6, MOST_SIGMA = 1e6;

/* The smallest top_p and typical_p: they leave one token. */
static const float LEAST_TOP_P = 1e-9f;

/* ---- Sampling ---- */

/* Reads the seed. It has 64 bits, signed or not; the JSON reader returns values from 2^63 on as the nearest real
 * number. */
static bool take_seed(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    const json_t *given = qn_field(body, "seed");
    const double real = json_real_value(given);
    int64_t seed = 0;
    x->has_seed = given != NULL;
    if (real >= 0x1p63 && real <= 0x1p64) {
        x->params.sampling.seed = real < 0x1p64 ? (uint64_t)real : UINT64_MAX;
        return true;
    }
    if (!qn_field_integer(body, "seed", INT64_MIN, INT64_MAX, &seed, refusal))
        return false;
    x->params.sampling.seed = (uint64_t)seed;
    x->has_seed = x->has_seed && !(x->kind == QN_LLAMA_EXCHANGE && seed == -1);
    return true;
}

/* Reads the parameters of sampling. Those that the body does not have become NAN or negative, until fill_sampling. */
static bool take_sampling(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    qn_sampling *s = &x->params.sampling;
    int64_t top_k = -2, last_n = -1, mirostat = -1;
    *s = (qn_sampling){ .size = sizeof *s,
                        .temperature = NAN,
                        .top_p = NAN,
                        .min_p = NAN,
                        .repeat_penalty = NAN,
                        .frequency_penalty = NAN,
                        .presence_penalty = NAN,
                        .mirostat = -1,
                        .mirostat_tau = NAN,
                        .mirostat_eta = NAN,
                        .typical_p = NAN,
                        .top_n_sigma = NAN,
                        .xtc_probability = NAN,
                        .xtc_threshold = NAN };
    const double most = x->kind == QN_LLAMA_EXCHANGE ? MOST_LLAMA_TEMPERATURE : MOST_TEMPERATURE;
    if (!qn_field_number(body, "temperature", 0, most, &s->temperature, refusal) ||
        !qn_field_number(body, "top_p", 0, 1, &s->top_p, refusal) ||
        !qn_field_number(body, "min_p", 0, 0.999999, &s->min_p, refusal) ||
        !qn_field_number(body, "typ_p", 0, 1, &s->typical_p, refusal) ||
        !qn_field_number(body, "typical_p", 0, 1, &s->typical_p, refusal) ||
        !qn_field_number(body, "top_n_sigma", -MOST_SIGMA, MOST_SIGMA, &s->top_n_sigma, refusal) ||
        !qn_field_number(body, "xtc_probability", 0, 1, &s->xtc_probability, refusal) ||
        !qn_field_number(body, "xtc_threshold", 0, 1, &s->xtc_threshold, refusal) ||
        !qn_field_number(body, "mirostat_tau", 0, 100, &s->mirostat_tau, refusal) ||
        !qn_field_number(body, "mirostat_eta", 0, 100, &s->mirostat_eta, refusal) ||
        !qn_field_integer(body, "mirostat", 0, 2, &mirostat, refusal) ||
        !qn_field_integer(body, "top_k", -1, INT32_MAX, &top_k, refusal) ||
        !qn_field_number(body, "repetition_penalty", 0.001, 1000, &s->repeat_penalty, refusal) ||
        !qn_field_number(body, "repeat_penalty", 0.001, 1000, &s->repeat_penalty, refusal) ||
        !qn_field_integer(body, "repeat_last_n", 0, INT32_MAX, &last_n, refusal) ||
        !qn_field_number(body, "frequency_penalty", -2, 2, &s->frequency_penalty, refusal) ||
        !qn_field_number(body, "presence_penalty", -2, 2, &s->presence_penalty, refusal) ||
        !take_seed(x, body, refusal))
        return false;
    s->top_p = s->top_p < LEAST_TOP_P ? LEAST_TOP_P : s->top_p;
    s->typical_p = s->typical_p < LEAST_TOP_P ? LEAST_TOP_P : s->typical_p;
    s->top_n_sigma = s->top_n_sigma < 0 ? 0 : s->top_n_sigma; /* llama.cpp's -1 */
    s->top_k = (int)(top_k == -1 ? 0 : top_k);
    s->repeat_last_n = (int)last_n;
    s->mirostat = (int)mirostat;
    return mirostat != 1 || qn_refuse(refusal, 400, "unsupported", "mirostat", "'mirostat' is 1, expected 0 or 2");
}

static void fill(float *value, float otherwise)
{
    if (isnan(*value))
        *value = otherwise;
}

/* Sets the parameters that the body does not have to the served model's. */
static void fill_sampling(qn_text_exchange *x)
{
    const qn_sampling *otherwise = &x->served->sampling;
    qn_sampling *s = &x->params.sampling;
    fill(&s->temperature, otherwise->temperature);
    fill(&s->top_p, otherwise->top_p);
    fill(&s->min_p, otherwise->min_p);
    fill(&s->mirostat_tau, otherwise->mirostat_tau);
    fill(&s->mirostat_eta, otherwise->mirostat_eta);
    fill(&s->typical_p, otherwise->typical_p);
    fill(&s->top_n_sigma, otherwise->top_n_sigma);
    fill(&s->xtc_probability, otherwise->xtc_probability);
    fill(&s->xtc_threshold, otherwise->xtc_threshold);
    fill(&s->dry_multiplier, otherwise->dry_multiplier);
    fill(&s->dry_base, otherwise->dry_base);
    fill(&s->repeat_penalty, otherwise->repeat_penalty);
    fill(&s->frequency_penalty, otherwise->frequency_penalty);
    fill(&s->presence_penalty, otherwise->presence_penalty);
    if (s->top_k < 0)
        s->top_k = otherwise->top_k;
    if (s->mirostat < 0)
        s->mirostat = otherwise->mirostat;
    if (s->dry_allowed_length < 0)
        s->dry_allowed_length = otherwise->dry_allowed_length;
    if (s->dry_penalty_last_n < -1)
        s->dry_penalty_last_n = otherwise->dry_penalty_last_n;
    if (s->repeat_last_n < 0)
        s->repeat_last_n = otherwise->repeat_last_n;
    if (!x->has_seed)
        s->seed = x->base.seed;
}

/* ---- Biases ---- */

static bool refuse_biases(const qn_text_exchange *x, size_t n, const char *what, qn_refusal *refusal)
{
    const size_t most = qn_limit(x->limits.biases, MAX_BIASES);
    return n <= most || qn_refuse(refusal, 400, NULL, "logit_bias", "'logit_bias' has %zu %s, at most %zu are allowed",
                                  n, what, most);
}

/* Reads a text that is a token id in decimal. False: it is not. */
static bool to_token(const char *text, qn_token *token)
{
    char *end;
    errno = 0;
    const long value = strtol(text, &end, 10);
    *token = (qn_token)value;
    return text[0] >= '0' && text[0] <= '9' && !*end && !errno && value <= INT32_MAX;
}

/* The tokens that have a bias so far. */
typedef struct bias_list {
    qn_text_exchange *x;
    uint32_t *places; /* [n_vocab] 1 + the index of a token in x->bias; 0: it has none */
    uint32_t n_vocab;
} bias_list;

/* Adds one bias, as "1234": 5. /completion also takes false, texts as keys, and a list of pairs. Biases of the same
 * token add up. */
static bool add_bias(const bias_list *list, qn_token token, const json_t *value, qn_refusal *refusal)
{
    qn_text_exchange *x = list->x;
    const bool never = x->kind == QN_LLAMA_EXCHANGE && json_is_false(value);
    const double bias = never ? -INFINITY : json_number_value(value);
    if (!never && !json_is_number(value))
        return qn_refuse_type(refusal, "logit_bias", value, "a number for each token id");
    if (!never && fabs(bias) > 100)
        return qn_refuse(refusal, 400, NULL, "logit_bias", "'logit_bias' of %d is %g, expected -100 to 100", (int)token,
                         bias);
    if ((uint32_t)token >= list->n_vocab)
        return qn_refuse(refusal, 400, NULL, "logit_bias", "'logit_bias' has the token id %d, expected 0 to %u",
                         (int)token, list->n_vocab - 1);
    if (list->places[token]) {
        x->bias[list->places[token] - 1].value += (float)bias;
        return true;
    }
    if (!refuse_biases(x, x->params.n_bias + 1, "tokens", refusal))
        return false;
    if (qn_realloc_array(&x->bias, &x->cap_bias, x->params.n_bias + 1, sizeof *x->bias, "logit_bias"))
        return qn_refuse_memory(refusal);
    x->bias[x->params.n_bias++] = (qn_logit_bias){ token, (float)bias };
    x->params.bias = x->bias;
    list->places[token] = (uint32_t)x->params.n_bias;
    return true;
}

/* Adds the bias of a text to each of its tokens. */
static bool add_text_bias(const bias_list *list, const char *text, size_t length, const json_t *value,
                          qn_refusal *refusal)
{
    qn_token *tokens;
    size_t n;
    bool done = true;
    if (qn_tokenize(list->x->served->model, text, length, false, false, &tokens, &n))
        return qn_refuse(refusal, 400, "unsupported", "logit_bias", "%s", qn_error_text());
    for (size_t i = 0; done && i < n; i++)
        done = add_bias(list, tokens[i], value, refusal);
    qn_free_tokens(tokens);
    return done;
}

/* Adds the bias of a pair, [what, value]. */
static bool add_pair(const bias_list *list, const json_t *pair, qn_refusal *refusal)
{
    const json_t *what = json_array_get(pair, 0), *value = json_array_get(pair, 1);
    int64_t token;
    if (json_is_string(what))
        return add_text_bias(list, json_string_value(what), json_string_length(what), value, refusal);
    if (json_array_size(pair) != 2 || !qn_json_integer_of(what, &token) || token < 0 || token > INT32_MAX)
        return qn_refuse_type(refusal, "logit_bias", pair, "pairs of a token id or a text, and a number or false");
    return add_bias(list, (qn_token)token, value, refusal);
}

static bool add_biases(const bias_list *list, json_t *given, qn_refusal *refusal)
{
    json_t *value;
    const char *key;
    size_t n_key;
    qn_token token;
    bool done = true;
    for (size_t i = 0; done && i < json_array_size(given); i++)
        done = add_pair(list, json_array_get(given, i), refusal);
    json_object_keylen_foreach(given, key, n_key, value)
    {
        if (done && to_token(key, &token))
            done = add_bias(list, token, value, refusal);
        else if (done)
            done = add_text_bias(list, key, n_key, value, refusal);
    }
    return done;
}

/* Turns the biases into one per token. */
static bool bind_biases(qn_text_exchange *x, qn_refusal *refusal)
{
    bias_list list = { .x = x, .n_vocab = qn_model_get_info(x->served->model)->n_vocab };
    if (!x->biases)
        return true;
    list.places = calloc(list.n_vocab + 1, sizeof *list.places);
    const bool done = list.places ? add_biases(&list, x->biases, refusal) : qn_refuse_memory(refusal);
    free(list.places);
    return done;
}

/* Checks and keeps the biases, with a reference of its own, until bind_biases. */
static bool take_biases(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    json_t *given = qn_field(body, "logit_bias");
    const char *key;
    json_t *value;
    qn_token token;
    x->biases = json_incref(given);
    if (!given)
        return true;
    if (x->kind == QN_LLAMA_EXCHANGE && json_is_array(given))
        return refuse_biases(x, json_array_size(given), "entries", refusal);
    if (!json_is_object(given))
        return qn_refuse_type(refusal, "logit_bias", given, "an object of numbers by token ids");
    json_object_foreach(given, key, value)
    {
        if (x->kind != QN_LLAMA_EXCHANGE && !to_token(key, &token))
            return qn_refuse(refusal, 400, NULL, "logit_bias", "'logit_bias' has the key '%.40s', expected a token id",
                             key);
    }
    return refuse_biases(x, json_object_size(given), "entries", refusal);
}

/* ---- The rest ---- */

/* Reads how many log probabilities are wanted. Chats have a bool and a number; completions only the number, which
 * /completion names differently. */
static bool take_logprobs(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    const json_t *asked = qn_field(body, "logprobs");
    const bool is_chat = x->kind == QN_CHAT_EXCHANGE;
    const char *const name = is_chat ? "top_logprobs" : x->kind == QN_COMPLETION_EXCHANGE ? "logprobs" : "n_probs";
    int64_t n = is_chat ? 0 : -1;
    if (is_chat && asked && !json_is_boolean(asked))
        return qn_refuse_type(refusal, "logprobs", asked, "true or false");
    if (is_chat && !json_is_true(asked) && qn_field(body, "top_logprobs"))
        return qn_refuse(refusal, 400, NULL, "top_logprobs", "'top_logprobs' is given, expected 'logprobs' to be true");
    if (!qn_field_integer(body, name, 0, QN_MAX_LOGPROBS, &n, refusal))
        return false;
    if (x->kind == QN_LLAMA_EXCHANGE && n == 0)
        n = -1;
    x->params.n_logprobs = is_chat && !json_is_true(asked) ? -1 : (int)n;
    return true;
}

/* Reads the most tokens of an answer. -1 is no limit, as other servers take it. */
static bool take_length(const json_t *body, const char *name, int64_t least, int64_t *most, qn_refusal *refusal)
{
    int64_t given;
    if (qn_json_integer_of(qn_field(body, name), &given) && given == -1) {
        *most = -1;
        return true;
    }
    return qn_field_integer(body, name, least, INT32_MAX, most, refusal);
}

static bool take_lengths(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    int64_t *most = &x->params.max_tokens;
    const int64_t least = x->kind == QN_CHAT_EXCHANGE ? 1 : 0;
    *most = x->kind == QN_COMPLETION_EXCHANGE ? COMPLETION_TOKENS : -1;
    return take_length(body, "max_tokens", least, most, refusal) &&
           take_length(body, "max_completion_tokens", least, most, refusal) &&
           qn_field_integer(body, "n_predict", -1, INT32_MAX, most, refusal) &&
           qn_field_bool(body, "ignore_eos", &x->params.ignore_end, refusal);
}

bool qn_openai_take_stop(qn_text_exchange *x, const json_t *body, const char *name, qn_refusal *refusal)
{
    json_t *value = qn_field(body, name);
    const size_t n = json_is_array(value) ? json_array_size(value)
                     : value              ? 1
                                          : 0,
                 most = qn_limit(x->limits.stops, MAX_STOPS),
                 most_bytes = qn_limit(x->limits.stop_bytes, MAX_STOP_BYTES);
    if (n > most)
        return qn_refuse(refusal, 400, NULL, name, "'%s' has %zu strings, at most %zu are allowed", name, n, most);
    if (qn_alloc(&x->stop, n, sizeof(char *), "stop strings"))
        return qn_refuse_memory(refusal);
    for (size_t i = 0; i < n; i++) {
        const json_t *text = json_is_array(value) ? json_array_get(value, i) : value;
        const size_t length = json_string_length(text);
        if (!json_is_string(text) || !length || strlen(json_string_value(text)) != length)
            return qn_refuse_type(refusal, name, text,
                                  "a string that is neither empty nor has U+0000, or an array of such strings");
        if (length > most_bytes)
            return qn_refuse(refusal, 400, NULL, name, "'%s' has a string of %zu bytes, at most %zu are allowed", name,
                             length, most_bytes);
        x->stop[i] = json_string_value(text);
    }
    x->stops = json_incref(value);
    x->params.stop = x->stop;
    x->params.n_stop = n;
    return true;
}

/* Reads the tokens that end an answer, for all protocols; bind checks the ids. */
static bool take_ends(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    static const char field[] = "stop_token_ids";
    const json_t *given = qn_field(body, field);
    const size_t n = json_array_size(given);
    if (!qn_field_integer(body, "min_tokens", 0, INT32_MAX, &x->params.min_tokens, refusal))
        return false;
    if (given && !json_is_array(given))
        return qn_refuse_type(refusal, field, given, "an array of token ids");
    if (n > MAX_STOP_TOKENS)
        return qn_refuse(refusal, 400, NULL, field, "'%s' has %zu ids, at most %d are allowed", field, n,
                         MAX_STOP_TOKENS);
    if (qn_alloc(&x->stop_tokens, n, sizeof *x->stop_tokens, "stop tokens"))
        return qn_refuse_memory(refusal);
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        if (!qn_json_integer_of(json_array_get(given, i), &id))
            return qn_refuse_type(refusal, field, json_array_get(given, i), "an array of token ids");
        if (id < 0 || id > INT32_MAX)
            return qn_refuse(refusal, 400, NULL, field, "'%s' has %lld, which is not a token id", field, (long long)id);
        x->stop_tokens[i] = (qn_token)id;
    }
    x->params.stop_tokens = x->stop_tokens;
    x->params.n_stop_tokens = n;
    return true;
}

/* Checks the tokens that end an answer, and its lengths. The server's limit applies silently: it does not make a body
 * invalid. */
static bool bind_ends(qn_text_exchange *x, qn_refusal *refusal)
{
    const uint32_t n_vocab = qn_model_get_info(x->served->model)->n_vocab;
    const int64_t limit = x->served->max_tokens;
    int64_t *most = &x->params.max_tokens, *least = &x->params.min_tokens;
    for (size_t i = 0; i < x->params.n_stop_tokens; i++)
        if ((uint32_t)x->stop_tokens[i] >= n_vocab)
            return qn_refuse(refusal, 400, NULL, "stop_token_ids",
                             "'stop_token_ids' has the token id %d, expected 0 to %u", (int)x->stop_tokens[i],
                             n_vocab - 1);
    if (*most >= 0 && *least > *most)
        return qn_refuse(refusal, 400, NULL, "min_tokens",
                         "'min_tokens' is %lld, expected at most the %lld of the answer", (long long)*least,
                         (long long)*most);
    if (limit >= 0 && (*most < 0 || *most > limit))
        *most = limit;
    if (*most >= 0 && *least > *most)
        *least = *most;
    return true;
}

/* Reads best_of: of so many choices a completion has the n best. */
static bool take_best(qn_text_exchange *x, const json_t *body, int64_t n, int64_t most, qn_refusal *refusal)
{
    int64_t best = n;
    if (!qn_field_integer(body, "best_of", 1, most, &best, refusal))
        return false;
    if (best == n)
        return true;
    if (best < n)
        return qn_refuse(refusal, 400, NULL, "best_of", "'best_of' is %lld, expected at least 'n', %lld",
                         (long long)best, (long long)n);
    if (x->kind != QN_COMPLETION_EXCHANGE || x->base.is_stream)
        return qn_refuse(refusal, 400, "unsupported", "best_of",
                         "'best_of' is %lld, but %s only the value of 'n', %lld, is supported", (long long)best,
                         x->base.is_stream ? "for a stream" : "here", (long long)n);
    x->n_choices = (size_t)best;
    return true;
}

static bool take_choices(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    int64_t n = 1, most = (int64_t)qn_limit(x->limits.requests, MAX_CHOICES);
    if (!qn_field_integer(body, "n", 1, most, &n, refusal) ||
        (x->kind == QN_LLAMA_EXCHANGE && !qn_field_integer(body, "n_cmpl", 1, most, &n, refusal)))
        return false;
    x->n_choices = x->n_best = (size_t)n;
    return take_best(x, body, n, most, refusal);
}

/* Reads whether progress is wanted. It is for streams of chats and of /completion, as llama-server's. */
static bool take_progress(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    bool wants = false;
    if (!qn_field_bool(body, "return_progress", &wants, refusal))
        return false;
    x->base.has_progress = wants && x->base.is_stream && x->kind != QN_COMPLETION_EXCHANGE;
    return true;
}

static bool take_stream_options(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    const json_t *options = qn_field(body, "stream_options");
    if (options && !json_is_object(options))
        return qn_refuse_type(refusal, "stream_options", options, "an object");
    return qn_field_bool(options, "include_usage", &x->has_usage, refusal) &&
           qn_field_bool(body, "timings_per_token", &x->has_timings, refusal) && take_progress(x, body, refusal);
}

/* The length is limited: answers repeat the name, streams in each event. */
bool qn_openai_take_model(const json_t *body, json_t **model, qn_refusal *refusal)
{
    enum { MAX_BYTES = 512 };
    json_t *given = qn_field(body, "model");
    const size_t length = json_string_length(given);
    if (given && !json_is_string(given))
        return qn_refuse_type(refusal, "model", given, "a string");
    if (length > MAX_BYTES)
        return qn_refuse(refusal, 400, NULL, "model", "'model' has %zu bytes, at most %d are allowed", length,
                         MAX_BYTES);
    *model = json_incref(given);
    return true;
}

bool qn_openai_common(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    if (!qn_openai_take_model(body, &x->model, refusal))
        return false;
    x->base.model = json_string_value(x->model);
    return qn_refuse_unsupported(body, x->kind == QN_CHAT_EXCHANGE, refusal) &&
           qn_field_bool(body, "stream", &x->base.is_stream, refusal) && take_sampling(x, body, refusal) &&
           qn_openai_take_dry(x, body, refusal) && qn_openai_check_samplers(body, refusal) &&
           take_ends(x, body, refusal);
}

bool qn_openai_params(qn_text_exchange *x, const json_t *body, qn_refusal *refusal)
{
    return qn_openai_common(x, body, refusal) && take_choices(x, body, refusal) && take_biases(x, body, refusal) &&
           take_logprobs(x, body, refusal) && take_lengths(x, body, refusal) &&
           qn_openai_take_stop(x, body, "stop", refusal) && take_stream_options(x, body, refusal);
}

bool qn_openai_bind_params(qn_text_exchange *x, qn_refusal *refusal)
{
    fill_sampling(x);
    return bind_ends(x, refusal) && bind_biases(x, refusal) && qn_openai_bind_dry(x, refusal);
}
