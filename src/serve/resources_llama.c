/* Resources of llama-server's clients: /health, /props and /slots; and vLLM's /tokenizer_info. */
#include "serve/http.h"
#include "serve/route.h"

#include <string.h>

/* Whether the server takes requests and has a model that is loaded or can be. False: refused. */
static bool check_ready(qn_http *http, qn_refusal *refusal)
{
    if (http->is_draining)
        return qn_refuse(refusal, 503, "stopping", NULL, "the server is stopping");
    if (qn_registry_is_ready(&http->registry))
        return true;
    return qn_refuse(refusal, 503, "loading", NULL,
                     qn_registry_count(&http->registry) ? "no model can be loaded" : "the model is being loaded");
}

bool qn_get_health(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    (void)rest;
    if (!check_ready(http, refusal))
        return false;
    qn_json_open(&resource->body, '{');
    qn_json_member_string(&resource->body, "status", "ok");
    qn_json_close(&resource->body, '}');
    return true;
}

/* ---- The tokeniser ---- */

static void write_token(const qn_model *model, const char *key, qn_token token, qn_bytes *out)
{
    const char *bytes = "";
    size_t length = 0;
    qn_json_key(out, key);
    if (token >= 0 && qn_token_piece(model, token, &bytes, &length) == QN_OK)
        qn_json_text(out, bytes, length);
    else
        qn_json_null(out);
}

/* Writes the tokeniser of a model. Called by qn_registry_read, with the registry's lock. */
static void write_tokenizer(const qn_registered *model, void *user)
{
    qn_bytes *out = user;
    const qn_model *m = model->served.model;
    const qn_model_info *info = qn_model_get_info(m);
    qn_json_open(out, '{');
    qn_json_member_string(out, "tokenizer_class", info->tokeniser);
    write_token(m, "bos_token", info->bos, out);
    write_token(m, "eos_token", info->eos, out);
    write_token(m, "pad_token", -1, out);
    qn_json_key(out, "add_bos_token");
    qn_json_bool(out, info->adds_bos);
    qn_json_member_integer(out, "vocab_size", info->n_vocab);
    qn_json_member_integer(out, "model_max_length", model->served.n_ctx);
    qn_json_member_string(out, "chat_template", qn_model_get_chat_format(m)->text);
    qn_json_close(out, '}');
}

bool qn_get_tokenizer(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    (void)rest;
    return qn_registry_read(&http->registry, resource->model, write_tokenizer, &resource->body, refusal);
}

/* ---- /slots ---- */

enum { MAX_PLACES = 256 };

/* What write_slots writes, and for whom. */
typedef struct slots {
    qn_resource *resource;
    uint32_t n_places, n_busy;
} slots;

/* Writes the progress of a request. Of requests of other clients slots tell only that they are there. */
static void write_progress(const qn_place *place, qn_bytes *out)
{
    qn_json_member_integer(out, "n_prompt_tokens", (int64_t)place->n_prompt);
    qn_json_member_integer(out, "n_prompt_tokens_processed", (int64_t)(place->n_evaluated - place->n_reused));
    qn_json_member_integer(out, "n_prompt_tokens_cache", (int64_t)place->n_reused);
    qn_json_key(out, "next_token");
    qn_json_open(out, '[');
    qn_json_open(out, '{');
    qn_json_key(out, "has_next_token");
    qn_json_bool(out, true);
    qn_json_member_integer(out, "n_remain",
                           place->max_tokens < 0 ? -1 : place->max_tokens - (int64_t)place->n_generated);
    qn_json_member_integer(out, "n_decoded", (int64_t)place->n_generated);
    qn_json_close(out, '}');
    qn_json_close(out, ']');
}

/* Whether a client may see the details of a request: its own; NULL: all. */
static bool is_own(const qn_place *place, const char *client)
{
    return !client || !strncmp(place->client, client, sizeof place->client - 1);
}

static void write_slot(const qn_registered *model, uint32_t index, const qn_place *place, const char *client,
                       qn_bytes *out)
{
    const bool is_seen = place && is_own(place, client);
    qn_json_open(out, '{');
    qn_json_member_integer(out, "id", index);
    qn_json_member_integer(out, "id_task", is_seen ? (int64_t)place->id : -1);
    qn_json_member_integer(out, "n_ctx", model->served.n_ctx);
    qn_json_key(out, "speculative");
    qn_json_bool(out, false);
    qn_json_key(out, "is_processing");
    qn_json_bool(out, place != NULL);
    if (is_seen)
        write_progress(place, out);
    qn_json_close(out, '}');
}

/* Writes the slots of a model, and sets the numbers in `user`, a struct slots. Called by qn_registry_read, which holds
 * the registry's lock. */
static void write_slots(const qn_registered *model, void *user)
{
    slots *s = user;
    qn_place places[MAX_PLACES] = { QN_PLACE_INIT };
    size_t n = 0, at = 0;
    qn_bytes *out = &s->resource->body;
    (void)qn_scheduler_get_places(model->scheduler, places, MAX_PLACES, &n);
    s->n_places = model->n_parallel;
    s->n_busy = (uint32_t)n;
    qn_json_open(out, '[');
    for (uint32_t i = 0; i < model->n_parallel; i++) {
        const bool is_busy = at < n && places[at].index == i;
        write_slot(model, i, is_busy ? &places[at] : NULL, s->resource->client, out);
        at += is_busy;
    }
    qn_json_close(out, ']');
}

bool qn_get_slots(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    slots s = { .resource = resource };
    const bool fails = resource->query && strcmp(resource->query, "0") != 0;
    (void)rest;
    if (http->params.no_slots)
        return qn_refuse(refusal, 501, "not_supported", NULL, "the server was started with --no-slots");
    if (!check_ready(http, refusal) || !qn_registry_read(&http->registry, resource->model, write_slots, &s, refusal))
        return false;
    return !fails || s.n_busy < s.n_places || qn_refuse(refusal, 503, "no_slot", NULL, "no slot is available");
}

/* ---- /props ---- */

static void write_number(const char *name, double value, qn_bytes *out)
{
    qn_json_key(out, name);
    qn_json_number(out, value);
}

static void write_sampling(const qn_http *http, const qn_sampling *sampling, qn_bytes *out)
{
    qn_json_member_integer(out, "seed", http->params.has_seed ? (int64_t)http->params.seed : -1);
    write_number("temperature", sampling->temperature, out);
    qn_json_member_integer(out, "top_k", sampling->top_k);
    write_number("top_p", sampling->top_p, out);
    write_number("min_p", sampling->min_p, out);
    qn_json_member_integer(out, "repeat_last_n", sampling->repeat_last_n);
    write_number("repeat_penalty", sampling->repeat_penalty, out);
    write_number("presence_penalty", sampling->presence_penalty, out);
    write_number("frequency_penalty", sampling->frequency_penalty, out);
    write_number("typical_p", sampling->typical_p, out);
    write_number("top_n_sigma", sampling->top_n_sigma > 0 ? (double)sampling->top_n_sigma : -1, out);
    write_number("xtc_probability", sampling->xtc_probability, out);
    write_number("xtc_threshold", sampling->xtc_threshold, out);
    write_number("dry_multiplier", sampling->dry_multiplier, out);
    write_number("dry_base", sampling->dry_base, out);
    qn_json_member_integer(out, "dry_allowed_length", sampling->dry_allowed_length);
    qn_json_member_integer(out, "dry_penalty_last_n", sampling->dry_penalty_last_n);
    qn_json_member_integer(out, "mirostat", sampling->mirostat);
    write_number("mirostat_tau", sampling->mirostat_tau, out);
    write_number("mirostat_eta", sampling->mirostat_eta, out);
}

/* Writes the template of a model. Called by qn_registry_read, with the registry's lock. */
static void write_template(const qn_registered *model, void *user)
{
    qn_bytes *out = user;
    const qn_model *m = model->served.model;
    const qn_model_info *info = qn_model_get_info(m);
    write_token(m, "bos_token", info->bos, out);
    write_token(m, "eos_token", info->eos, out);
    qn_json_member_string(out, "chat_template", qn_model_get_chat_format(m)->text);
}

/* Finds the named model, else the first that is loaded. */
static bool find_props(qn_http *http, const char *name, qn_registry_view *view, qn_refusal *refusal)
{
    const size_t n = qn_registry_count(&http->registry);
    if (name && !qn_registry_look_for(&http->registry, name, view) && n != 1)
        return qn_refuse(refusal, 404, "model_not_found", "model", "there is no model '%.200s'", name);
    if (name && n != 1)
        return view->was_loaded || qn_refuse(refusal, 503, "not_loaded", "model",
                                             "the model '%.200s' is loaded with its first request", name);
    for (size_t i = 0; i < n; i++)
        if (qn_registry_look(&http->registry, i, view) && view->state == QN_MODEL_LOADED)
            return true;
    return qn_refuse(refusal, 503, "not_loaded", NULL, "no model is loaded yet");
}

bool qn_get_props(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    qn_bytes *out = &resource->body;
    qn_registry_view view;
    (void)rest;
    if (!check_ready(http, refusal) || !find_props(http, resource->model, &view, refusal))
        return false;
    qn_json_open(out, '{');
    qn_json_key(out, "default_generation_settings");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "n_ctx", view.n_ctx);
    qn_json_key(out, "params");
    qn_json_open(out, '{');
    write_sampling(http, &view.sampling, out);
    qn_json_member_integer(out, "n_predict", view.max_tokens < 0 ? -1 : view.max_tokens);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
    qn_json_member_integer(out, "total_slots", view.n_parallel);
    qn_json_member_string(out, "model_alias", view.name);
    qn_json_member_string(out, "model_path", view.name); /* clients learn only the names of files */
    qn_json_key(out, "modalities");
    qn_json_open(out, '{');
    qn_json_key(out, "vision");
    qn_json_bool(out, false);
    qn_json_key(out, "audio");
    qn_json_bool(out, false);
    qn_json_close(out, '}');
    (void)qn_registry_read(&http->registry, view.name, write_template, out, refusal);
    qn_json_key(out, "build_info");
    qn_bytes_print(out, "\"quern %s\"", qn_version());
    qn_json_close(out, '}');
    return true;
}
