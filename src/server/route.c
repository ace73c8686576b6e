/* Paths, and pages that tell about the server and its models. */
#include "server/route.h"

#include "server/http.h"
#include "server/page/page.h"

#include "base/status.h"

#include <stdio.h>
#include <string.h>

/* ---- Pages ---- */

static bool check_ready(qn_http *http, qn_refusal *refusal)
{
    if (http->is_draining)
        return qn_refuse(refusal, 503, "stopping", NULL, "the server is stopping");
    return qn_registry_count(&http->registry) || qn_refuse(refusal, 503, "loading", NULL, "the model is being loaded");
}

static bool page_health(qn_http *http, const char *rest, qn_page *page, qn_refusal *refusal)
{
    (void)rest;
    if (!check_ready(http, refusal))
        return false;
    qn_json_open(&page->body, '{');
    qn_json_member_string(&page->body, "status", "ok");
    qn_json_close(&page->body, '}');
    return true;
}

static bool page_metrics(qn_http *http, const char *rest, qn_page *page, qn_refusal *refusal)
{
    qn_metrics_model models[QN_REGISTRY_MODELS];
    const size_t n = qn_registry_count(&http->registry);
    (void)rest;
    (void)refusal;
    for (size_t i = 0; i < n; i++) {
        const qn_registered *model = qn_registry_at(&http->registry, i);
        models[i] = (qn_metrics_model){ .name = model->name,
                                        .metrics = model->metrics,
                                        .counters = qn_scheduler_get_counters(model->scheduler),
                                        .page_tokens = model->page_tokens,
                                        .n_pages = model->n_pages };
    }
    page->type = QN_METRICS_TYPE;
    qn_metrics_write(http->metrics, models, n, &page->body);
    return true;
}

/* OpenAI's and Anthropic's fields beside each other, and llama-server's. */
static void write_model(const qn_registered *model, qn_bytes *out)
{
    const qn_model_info info = qn_model_get_info(model->served.model);
    char created[32];
    struct tm utc;
    const time_t seconds = (time_t)model->created;
    strftime(created, sizeof created, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&seconds, &utc));
    qn_json_open(out, '{');
    qn_json_member_string(out, "id", model->name);
    qn_json_member_string(out, "object", "model");
    qn_json_member_string(out, "type", "model");
    qn_json_member_string(out, "display_name", *info.name ? info.name : model->name);
    qn_json_member_integer(out, "created", model->created);
    qn_json_member_string(out, "created_at", created);
    qn_json_member_string(out, "owned_by", "quern");
    qn_json_member_string(out, "lifecycle", "active");
    qn_json_member_integer(out, "max_model_len", model->served.n_ctx);
    qn_json_member_integer(out, "max_input_tokens", model->served.n_ctx);
    qn_json_key(out, "meta");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "n_ctx", model->served.n_ctx);
    qn_json_member_integer(out, "n_ctx_train", info.n_ctx_train);
    qn_json_member_integer(out, "n_vocab", info.n_vocab);
    qn_json_member_integer(out, "n_embd", info.n_embd);
    qn_json_member_integer(out, "n_params", (int64_t)info.n_params);
    qn_json_member_integer(out, "size", (int64_t)info.file_bytes);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
}

static bool page_models(qn_http *http, const char *rest, qn_page *page, qn_refusal *refusal)
{
    const size_t n = qn_registry_count(&http->registry);
    (void)rest;
    (void)refusal;
    qn_json_open(&page->body, '{');
    qn_json_member_string(&page->body, "object", "list");
    qn_json_key(&page->body, "data");
    qn_json_open(&page->body, '[');
    for (size_t i = 0; i < n; i++)
        write_model(qn_registry_at(&http->registry, i), &page->body);
    qn_json_close(&page->body, ']');
    qn_json_member_string(&page->body, "first_id", n ? qn_registry_at(&http->registry, 0)->name : NULL);
    qn_json_member_string(&page->body, "last_id", n ? qn_registry_at(&http->registry, n - 1)->name : NULL);
    qn_json_key(&page->body, "has_more");
    qn_json_bool(&page->body, false);
    qn_json_close(&page->body, '}');
    return true;
}

/* Any name is answered by a single model, but only its own is that of a model. */
static bool page_model(qn_http *http, const char *rest, qn_page *page, qn_refusal *refusal)
{
    const size_t n = qn_registry_count(&http->registry);
    for (size_t i = 0; i < n; i++) {
        const qn_registered *model = qn_registry_at(&http->registry, i);
        if (strcmp(model->name, rest) != 0)
            continue;
        write_model(model, &page->body);
        return true;
    }
    return check_ready(http, refusal) &&
           qn_refuse(refusal, 404, "model_not_found", "model", "there is no model '%.200s'", rest);
}

static void write_sampling(const qn_http *http, const qn_sampling *sampling, qn_bytes *out)
{
    qn_json_member_integer(out, "seed", http->params.has_seed ? (int64_t)http->params.seed : -1);
    qn_json_key(out, "temperature");
    qn_json_number(out, sampling->temperature);
    qn_json_member_integer(out, "top_k", sampling->top_k);
    qn_json_key(out, "top_p");
    qn_json_number(out, sampling->top_p);
    qn_json_key(out, "min_p");
    qn_json_number(out, sampling->min_p);
    qn_json_member_integer(out, "repeat_last_n", sampling->repeat_last_n);
    qn_json_key(out, "repeat_penalty");
    qn_json_number(out, sampling->repeat_penalty);
    qn_json_key(out, "presence_penalty");
    qn_json_number(out, sampling->presence_penalty);
    qn_json_key(out, "frequency_penalty");
    qn_json_number(out, sampling->frequency_penalty);
}

/* llama-server's. */
static bool page_props(qn_http *http, const char *rest, qn_page *page, qn_refusal *refusal)
{
    qn_bytes *out = &page->body;
    (void)rest;
    if (!check_ready(http, refusal))
        return false;
    const qn_registered *model = qn_registry_at(&http->registry, 0);
    qn_json_open(out, '{');
    qn_json_key(out, "default_generation_settings");
    qn_json_open(out, '{');
    qn_json_member_integer(out, "n_ctx", model->served.n_ctx);
    qn_json_key(out, "params");
    qn_json_open(out, '{');
    write_sampling(http, &model->served.sampling, out);
    qn_json_member_integer(out, "n_predict", model->served.max_tokens < 0 ? -1 : model->served.max_tokens);
    qn_json_close(out, '}');
    qn_json_close(out, '}');
    qn_json_member_integer(out, "total_slots", model->n_parallel);
    qn_json_member_string(out, "model_alias", model->name);
    qn_json_member_string(out, "model_path", model->file);
    qn_json_key(out, "modalities");
    qn_json_open(out, '{');
    qn_json_key(out, "vision");
    qn_json_bool(out, false);
    qn_json_key(out, "audio");
    qn_json_bool(out, false);
    qn_json_close(out, '}');
    qn_json_key(out, "build_info");
    qn_bytes_print(out, "\"quern %s\"", qn_version());
    qn_json_close(out, '}');
    return true;
}

/* ---- The chat page ---- */

static bool page_chat(const qn_http *http, const char *path, qn_page *page, qn_refusal *refusal)
{
    const qn_page_file *file = http->params.no_page ? NULL : qn_page_find(path);
    if (!file)
        return qn_refuse(refusal, 404, "not_found", NULL, "there is nothing at this path");
    page->type = file->type;
    page->bytes = file->bytes;
    page->length = file->size;
    page->policy = QN_PAGE_CONTENT_SECURITY_POLICY;
    page->etag = file->etag;
    return true;
}

static bool page_root(qn_http *http, const char *rest, qn_page *page, qn_refusal *refusal)
{
    (void)rest;
    return page_chat(http, "/", page, refusal);
}

static bool page_file(qn_http *http, const char *rest, qn_page *page, qn_refusal *refusal)
{
    char path[QN_HTTP_PATH_BYTES];
    snprintf(path, sizeof path, "/page/%s", rest);
    return page_chat(http, path, page, refusal);
}

/* ---- The table ---- */

#define READ "GET, HEAD, OPTIONS"
#define WRITE "POST, OPTIONS"

static const qn_route pages[] = {
    { "/", READ, true, page_root, NULL, NULL },
    { "/page/*", READ, true, page_file, NULL, NULL },
    { "/health", READ, true, page_health, NULL, NULL },
    { "/v1/health", READ, true, page_health, NULL, NULL },
    { "/metrics", READ, false, page_metrics, NULL, NULL },
    { "/props", READ, false, page_props, NULL, NULL },
    { "/v1/models", READ, false, page_models, NULL, NULL },
    { "/models", READ, false, page_models, NULL, NULL },
    { "/v1/models/*", READ, false, page_model, NULL, NULL },
    { "/models/*", READ, false, page_model, NULL, NULL },
    { "/v1/embeddings", WRITE, false, NULL, NULL, "quern has no embeddings" },
    { "/embeddings", WRITE, false, NULL, NULL, "quern has no embeddings" },
};

enum { N_PAGES = sizeof pages / sizeof *pages, MAX_ROUTES = 128 };

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
    for (size_t i = 0; i < N_PAGES; i++)
        fits = fits && add(&pages[i]);
    for (size_t i = 0; qn_protocols[i]; i++)
        for (const char *const *path = qn_protocols[i]->paths; *path; path++)
            fits = fits && add(&(qn_route){ .path = *path, .allow = WRITE, .protocol = qn_protocols[i] });
    return fits ? QN_OK : qn_fail(QN_ERR_INVALID, "there are more than %d routes", MAX_ROUTES);
}

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
