/* Ollama's resources: the models, those that are loaded, the version. */
#include "serve/http.h"
#include "serve/route.h"

#include "protocol/ollama.h"

#include <time.h>

/* The time when a loaded model is freed: none, so a date that does not come. */
static const char never[] = "2999-12-31T00:00:00Z";

static void write_time(const char *key, int64_t seconds, qn_bytes *out)
{
    char text[32];
    struct tm utc;
    const time_t t = (time_t)seconds;
    strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &utc));
    qn_json_member_string(out, key, text);
}

static void write_model(const qn_registry_view *view, bool is_running, qn_bytes *out)
{
    const uint64_t file_bytes = view->was_loaded && view->file_bytes ? view->file_bytes : view->weight_bytes;
    qn_json_open(out, '{');
    qn_json_member_string(out, "name", view->name);
    qn_json_member_string(out, "model", view->name);
    if (!is_running)
        write_time("modified_at", view->created, out);
    qn_json_member_integer(out, "size", (int64_t)(is_running ? view->bytes : file_bytes));
    qn_ollama_digest(view->name, file_bytes, out);
    qn_ollama_details(view->architecture, view->quantisation, view->n_params, out);
    if (is_running) {
        qn_json_member_string(out, "expires_at", never);
        qn_json_member_integer(out, "size_vram", view->is_on_gpu ? (int64_t)view->bytes : 0);
        qn_json_member_integer(out, "context_length", view->n_ctx);
    }
    qn_json_close(out, '}');
}

static bool write_models(qn_http *http, bool is_running, qn_bytes *out)
{
    const size_t n = qn_registry_count(&http->registry);
    qn_json_open(out, '{');
    qn_json_key(out, "models");
    qn_json_open(out, '[');
    for (size_t i = 0; i < n; i++) {
        qn_registry_view view;
        if (qn_registry_look(&http->registry, i, &view) && (!is_running || view.state == QN_MODEL_LOADED))
            write_model(&view, is_running, out);
    }
    qn_json_close(out, ']');
    qn_json_close(out, '}');
    return true;
}

bool qn_get_ollama_tags(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    (void)rest;
    (void)refusal;
    qn_registry_refresh(&http->registry); /* for the next look */
    return write_models(http, false, &resource->body);
}

bool qn_get_ollama_running(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    (void)rest;
    (void)refusal;
    return write_models(http, true, &resource->body);
}

bool qn_get_ollama_version(qn_http *http, const char *rest, qn_resource *resource, qn_refusal *refusal)
{
    (void)http;
    (void)rest;
    (void)refusal;
    qn_json_open(&resource->body, '{');
    qn_json_member_string(&resource->body, "version", QN_OLLAMA_VERSION);
    qn_json_close(&resource->body, '}');
    return true;
}
