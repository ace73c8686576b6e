/* The routes, and the resources that tell about the server and its models. */
#include "serve/route.h"

#include "serve/http.h"
#include "page/page.h"

#include "base/memory.h"
#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* ---- Resources: members `get` of qn_route ---- */

static bool get_metrics(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    const size_t n = qn_registry_count(&http->registry);
    qn_metrics_model *models;
    size_t n_models = 0;
    (void)rest;
    if (qn_alloc(&models, n, sizeof *models, "metrics"))
        return qn_refuse(refusal, 500, "out_of_memory", NULL, "no memory for the metrics");
    for (size_t i = 0; i < n; i++) {
        qn_registry_view view;
        if (qn_registry_look(&http->registry, i, &view))
            models[n_models++] =
                (qn_metrics_model){ .name = view.name,
                                    .metrics = view.metrics,
                                    .counters = view.counters,
                                    .page_tokens = view.page_tokens,
                                    .n_pages = view.n_pages,
                                    .is_loaded = view.state == QN_MODEL_LOADED,
                                    .is_unused = !view.was_loaded && !view.n_waiting && !view.is_failed,
                                    .n_loads = view.n_loads,
                                    .bytes = view.bytes };
    }
    resource->type = QN_METRICS_TYPE;
    qn_metrics_write(http->metrics, models, n_models, &resource->body);
    qn_free(models);
    return true;
}

/* Returns the state in llama-server's words, where it has one. */
static const char *state_of(const qn_registry_view *view)
{
    static const char *const names[] = { [QN_MODEL_UNLOADED] = "unloaded",
                                         [QN_MODEL_LOADING] = "loading",
                                         [QN_MODEL_LOADED] = "loaded",
                                         [QN_MODEL_FREEING] = "unloaded",
                                         [QN_MODEL_FAILED] = "unloaded" };
    return view->state == QN_MODEL_UNLOADED && view->n_waiting ? "loading" : names[view->state];
}

static void write_state(const qn_registry_view *view, qn_bytes *out)
{
    qn_json_key(out, "status");
    qn_json_open(out, '{');
    qn_json_member_string(out, "value", state_of(view));
    if (view->is_failed) {
        qn_json_key(out, "failed");
        qn_json_bool(out, true);
    }
    qn_json_close(out, '}');
}

/* Writes the member `reasoning`; null: the model does not reason. */
static void write_reasoning(const qn_registry_reasoning *reasoning, qn_bytes *out)
{
    qn_json_key(out, "reasoning");
    if (!reasoning->has_any) {
        qn_json_null(out);
        return;
    }
    qn_json_open(out, '{');
    qn_json_key(out, "is_optional");
    qn_json_bool(out, reasoning->is_optional);
    qn_json_key(out, "efforts");
    qn_json_open(out, '[');
    for (size_t i = 0; i < reasoning->n_efforts; i++)
        qn_json_string(out, reasoning->efforts[i]);
    qn_json_close(out, ']');
    qn_json_member_string(out, "default_effort", *reasoning->effort ? reasoning->effort : NULL);
    qn_json_close(out, '}');
}

/* Writes OpenAI's, Anthropic's and llama-server's fields side by side. Of a model that was never loaded little is
 * known. */
static void write_model(const qn_registry_view *view, qn_bytes *out)
{
    char created[32];
    struct tm utc;
    const time_t seconds = (time_t)view->created;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    qn_json_open(out, '{');
    qn_json_member_string(out, "id", view->name);
    qn_json_member_string(out, "object", "model");
    qn_json_member_string(out, "type", "model");
    qn_json_member_string(out, "display_name", *view->display_name ? view->display_name : view->name);
    qn_json_member_integer(out, "created", view->created);
    qn_json_member_string(out, "created_at", created);
    qn_json_member_string(out, "owned_by", "quern");
    qn_json_member_string(out, "lifecycle", "active");
    write_state(view, out);
    if (view->was_loaded) {
        qn_json_member_integer(out, "max_model_len", view->n_ctx);
        qn_json_member_integer(out, "max_input_tokens", view->n_ctx);
        write_reasoning(&view->reasoning, out);
    }
    qn_json_key(out, "meta");
    qn_json_open(out, '{');
    if (view->was_loaded) {
        qn_json_member_integer(out, "n_ctx", view->n_ctx);
        qn_json_member_integer(out, "n_ctx_train", view->n_ctx_train);
        qn_json_member_integer(out, "n_vocab", view->n_vocab);
        qn_json_member_integer(out, "n_embd", view->n_embd);
        qn_json_member_integer(out, "n_params", (int64_t)view->n_params);
        qn_json_member_integer(out, "size", (int64_t)view->file_bytes);
    }
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

static bool get_models(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    const size_t n = qn_registry_count(&http->registry);
    const char *first = NULL, *last = NULL;
    (void)rest;
    (void)refusal;
    qn_registry_refresh(&http->registry); /* for the next look */
    qn_json_open(&resource->body, '{');
    qn_json_member_string(&resource->body, "object", "list");
    qn_json_key(&resource->body, "data");
    qn_json_open(&resource->body, '[');
    for (size_t i = 0; i < n; i++) {
        qn_registry_view view;
        if (!qn_registry_look(&http->registry, i, &view))
            continue;
        write_model(&view, &resource->body);
        first = first ? first : view.name;
        last = view.name;
    }
    qn_json_close(&resource->body, ']');
    qn_json_member_string(&resource->body, "first_id", first);
    qn_json_member_string(&resource->body, "last_id", last);
    qn_json_key(&resource->body, "has_more");
    qn_json_bool(&resource->body, false);
    qn_json_close(&resource->body, '}');
    return true;
}

/* Writes the model of a path. A single model answers requests of any name, but only its own name is a path. */
static bool get_model(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    qn_registry_view view;
    if (qn_registry_look_for(&http->registry, rest, &view)) {
        write_model(&view, &resource->body);
        return true;
    }
    if (!qn_registry_count(&http->registry))
        return qn_refuse(refusal, 503, "loading", NULL, "the model is being loaded");
    return qn_refuse(refusal, 404, "model_not_found", "model", "there is no model '%.200s'", rest);
}

/* ---- The chat page ---- */

/* Answers with a file of the chat page. Its bytes are static. */
static bool get_chat(const qn_http *http, const char *path, qn_resource *resource, qn_refusal *refusal)
{
    const qn_page_file *file = http->params.no_page ? NULL : qn_page_find(path);
    if (!file)
        return qn_refuse(refusal, 404, "not_found", NULL, "there is nothing at this path");
    resource->varies = file->gzip.bytes != NULL;
    const bool is_compressed = resource->varies && resource->accepts_gzip;
    const qn_page_bytes *const sent = is_compressed ? &file->gzip : &file->plain;
    resource->type = file->type;
    resource->bytes = sent->bytes;
    resource->length = sent->size;
    resource->etag = sent->etag;
    resource->encoding = is_compressed ? "gzip" : NULL;
    resource->policy = QN_PAGE_CONTENT_SECURITY_POLICY;
    return true;
}

static bool get_root(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    (void)rest;
    return get_chat(http, "/", resource, refusal);
}

static bool get_file(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    char path[QN_HTTP_PATH_BYTES];
    snprintf(path, sizeof path, "/page/%s", rest);
    return get_chat(http, path, resource, refusal);
}

/* ---- The table ---- */

#define READ "GET, HEAD, OPTIONS"
#define WRITE "POST, OPTIONS"

static const char no_changes[] = "requests do not change the models that are served; see quern pull and quern rm";

static const qn_route own_routes[] = {
    { "/", READ, QN_ROUTE_OPEN, get_root, NULL, NULL },
    { "/page/*", READ, QN_ROUTE_OPEN, get_file, NULL, NULL },
    { "/health", READ, QN_ROUTE_OPEN, qn_get_health, NULL, NULL },
    { "/v1/health", READ, QN_ROUTE_OPEN, qn_get_health, NULL, NULL },
    { "/metrics", READ, QN_ROUTE_OPERATORS, get_metrics, NULL, NULL },
    { "/props", READ, QN_ROUTE_KEYS, qn_get_props, NULL, NULL },
    { "/slots", READ, QN_ROUTE_KEYS, qn_get_slots, NULL, NULL },
    { "/slots/*", WRITE, QN_ROUTE_KEYS, NULL, NULL, "contexts are found by their tokens, not saved in slots" },
    { "/tokenizer_info", READ, QN_ROUTE_KEYS, qn_get_tokenizer, NULL, NULL },
    { "/api/pull", WRITE, QN_ROUTE_KEYS, NULL, NULL, no_changes },
    { "/api/push", WRITE, QN_ROUTE_KEYS, NULL, NULL, no_changes },
    { "/api/create", WRITE, QN_ROUTE_KEYS, NULL, NULL, no_changes },
    { "/api/copy", WRITE, QN_ROUTE_KEYS, NULL, NULL, no_changes },
    { "/api/delete", "DELETE, OPTIONS", QN_ROUTE_KEYS, NULL, NULL, no_changes },
    { "/api/version", READ, QN_ROUTE_KEYS, qn_get_ollama_version, NULL, NULL },
    { "/api/tags", READ, QN_ROUTE_KEYS, qn_get_ollama_tags, NULL, NULL },
    { "/api/ps", READ, QN_ROUTE_KEYS, qn_get_ollama_running, NULL, NULL },
    { "/v1/models", READ, QN_ROUTE_KEYS, get_models, NULL, NULL },
    { "/models", READ, QN_ROUTE_KEYS, get_models, NULL, NULL },
    { "/v1/models/*", READ, QN_ROUTE_KEYS, get_model, NULL, NULL },
    { "/models/*", READ, QN_ROUTE_KEYS, get_model, NULL, NULL },
};

enum { N_OWN_ROUTES = sizeof own_routes / sizeof *own_routes, MAX_ROUTES = 128 };

/* Written by qn_routes_init, constant afterwards. names[i]: the path of routes[i]. */
static qn_route routes[MAX_ROUTES];
static const char *names[MAX_ROUTES];
static size_t n_routes;

static bool add(const qn_route *route)
{
    if (n_routes == MAX_ROUTES)
        return false;
    names[n_routes] = route->path;
    routes[n_routes++] = *route;
    return true;
}

qn_status qn_routes_init(void)
{
    bool fits = true;
    n_routes = 0;
    for (size_t i = 0; i < N_OWN_ROUTES; i++)
        fits = fits && add(&own_routes[i]);
    for (size_t i = 0; qn_protocols[i]; i++)
        for (const char *const *path = qn_protocols[i]->paths; *path; path++)
            fits = fits && add(&(qn_route){ .path = *path, .allow = WRITE, .protocol = qn_protocols[i] });
    return fits ? QN_OK : qn_fail(QN_ERR_INVALID, "there are more than %d routes", MAX_ROUTES);
}

/* Whether a route is that of a path. A star does not stand for an empty text. */
static bool has_path(const qn_route *route, const char *path)
{
    const size_t length = strlen(route->path);
    if (route->path[length - 1] != '*')
        return !strcmp(route->path, path);
    return !strncmp(route->path, path, length - 1) && path[length - 1];
}

const qn_route *qn_route_find(const char *path)
{
    for (size_t i = 0; i < n_routes; i++)
        if (has_path(&routes[i], path))
            return &routes[i];
    return NULL;
}

size_t qn_route_index(const qn_route *route)
{
    return route ? (size_t)(route - routes) : n_routes;
}

size_t qn_route_names(const char *const **out)
{
    *out = names;
    return n_routes;
}
