/* quern serve: models over HTTP. The server listens while the main thread loads a single model; then the main thread
 * waits. */
#include "base/file.h"
#include "base/program.h"
#include "base/socket.h"
#include "cli/cli.h"
#include "cli/draft.h"
#include "cli/serve_model.h"
#include "cli/signals.h"

#include "http/guard.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_QUEUED = 512, WORKERS = 3, MODELS_STAY = 5 };

typedef struct serve {
    qn_args *args;
    qn_keys *keys;
    qn_access_log *log;
    qn_server *server;
    qn_signals_server signals;
    qn_model *model;
    qn_scheduler *scheduler;
    char name[QN_REGISTRY_NAME_BYTES];
    qn_serve_files *files; /* several models */
} serve;

/* Values that neither this nor the command line sets come from the model's file, or are the library's defaults. */
void qn_serve_defaults(qn_args *args)
{
    args->sampling.seed = QN_NO_SEED;
    args->host = "127.0.0.1";
    args->port = 8080;
    args->max_tokens = args->reasoning_budget = -1;
    args->max_queued = MAX_QUEUED;
    args->models_stay = MODELS_STAY;
    args->max_body = 16 << 20;
    args->max_header = 16 << 10;
    args->max_connections = 1024;
    args->max_per_address = 64;
    args->header_timeout = 10;
    args->body_timeout = 60;
    args->idle_timeout = 75;
    args->drain = 30;
}

/* ---- Signals ---- */

static void stop_server(void *server)
{
    qn_server_stop(server);
}

static void reload_server(void *server)
{
    qn_server_reload(server);
}

/* ---- Arguments ---- */

static void print_note(const char *text)
{
    qn_cli_note("%s", text);
}

/* Whether models are loaded on request; a single model is loaded at the start. */
static bool has_files(const qn_args *args)
{
    return args->models_dir || args->models.count > 1;
}

static void take_models(qn_args *args)
{
    if (args->models.count)
        args->model = args->models.at[0];
    qn_args_take_model(args, 0);
    if (args->model)
        args->models.at[0] = args->model;
    if (args->model && !args->models.count)
        args->models.count = 1;
}

/* Refuses values that no request could ever match. */
static int check_values(const qn_args *args)
{
    for (size_t i = 0; i < args->cors_origins.count; i++)
        if (!qn_guard_is_origin(args->cors_origins.at[i])) {
            qn_cli_error(
                "--cors-origin: '%s' is not an origin: expected https://NAME or https://NAME:PORT, without a path and "
                "the scheme's own port, or *",
                args->cors_origins.at[i]);
            return QN_EXIT_USAGE;
        }
    for (size_t i = 0; i < args->allowed_hosts.count; i++)
        if (!qn_guard_is_host(args->allowed_hosts.at[i])) {
            qn_cli_error("--allowed-host: '%s' is not a name: expected one without a scheme, a port and a path",
                         args->allowed_hosts.at[i]);
            return QN_EXIT_USAGE;
        }
    for (size_t i = 0; i < args->aliases.count; i++)
        if (!*args->aliases.at[i]) {
            qn_cli_error("--alias: the name is empty");
            return QN_EXIT_USAGE;
        }
    if (args->batch && args->sequences > args->batch) {
        qn_cli_error("--parallel: %lld requests, at most %lld are allowed: one a row of --batch",
                     (long long)args->sequences, (long long)args->batch);
        return QN_EXIT_USAGE;
    }
    if ((args->models_dir && !*args->models_dir) || !*args->host) {
        qn_cli_error("%s: the name is empty", *args->host ? "--models-dir" : "--host");
        return QN_EXIT_USAGE;
    }
    return QN_EXIT_DONE;
}

static int check_args(qn_args *args)
{
    take_models(args);
    if (qn_args_no_more("serve", args, 0) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    const size_t n_models = args->models.count ? args->models.count : 1;
    if (args->aliases.count && args->aliases.count != n_models) {
        qn_cli_error("--alias: %zu names for %zu models, expected one for each -m", args->aliases.count, n_models);
        return QN_EXIT_USAGE;
    }
    if (args->models_dir && args->aliases.count && !args->models.count) {
        qn_cli_error("--alias: models of --models-dir have the names of their files");
        return QN_EXIT_USAGE;
    }
    if (!args->tls_cert != !args->tls_key) {
        qn_cli_error("--tls-cert and --tls-key: one needs the other");
        return QN_EXIT_USAGE;
    }
    int status = check_values(args);
    status = status ? status : qn_check_draft(args);
    return status ? status : qn_check_breakers(args);
}

static int open_keys(serve *s)
{
    const qn_args *args = s->args;
    if (!args->api_keys.count && !args->api_key_files.count)
        return QN_EXIT_DONE;
    const qn_status status = qn_keys_create(args->api_keys.at, args->api_keys.count, args->api_key_files.at,
                                            args->api_key_files.count, args->quiet ? NULL : print_note, &s->keys);
    for (size_t i = 0; i < args->api_keys.count; i++)
        qn_args_hide(args->api_keys.at[i]);
    return status ? qn_cli_fail() : QN_EXIT_DONE;
}

/* Warns of a private key that all users can read, as for files of API keys. */
static void check_key_mode(const char *path)
{
    enum { OTHERS_READ = 04, PERMISSIONS = 0777 };
    qn_file_info key;
    if (qn_file_describe(path, &key) && key.kind == QN_FILE_REGULAR && key.mode & OTHERS_READ)
        qn_cli_note("%s: all users can read this private key (mode %03o, expected 600)", path, key.mode & PERMISSIONS);
}

static int open_log(serve *s)
{
    if (s->args->quiet && !s->args->access_log)
        return QN_EXIT_DONE;
    const char *chosen = s->args->log_format;
    const bool is_text = chosen ? strcmp(chosen, "text") == 0 : !s->args->access_log && qn_is_terminal(STDERR_FILENO);
    const qn_access_format format = is_text ? QN_ACCESS_TEXT : QN_ACCESS_JSON;
    return qn_access_log_create(s->args->access_log, format, &s->log) ? qn_cli_fail() : QN_EXIT_DONE;
}

/* ---- The server ---- */

static int open_server(serve *s)
{
    const qn_args *args = s->args;
    const qn_server_params params = { .host = args->host,
                                      .port = (uint16_t)args->port,
                                      .tls_cert = args->tls_cert,
                                      .tls_key = args->tls_key,
                                      .keys = s->keys,
                                      .allows_anyone = args->allow_unauthenticated,
                                      .hosts = args->allowed_hosts.at,
                                      .n_hosts = args->allowed_hosts.count,
                                      .origins = args->cors_origins.at,
                                      .n_origins = args->cors_origins.count,
                                      .max_header = args->max_header,
                                      .max_body = args->max_body,
                                      .max_connections = (size_t)args->max_connections,
                                      .max_per_address = (size_t)args->max_per_address,
                                      .header_seconds = (double)args->header_timeout,
                                      .body_seconds = (double)args->body_timeout,
                                      .idle_seconds = (double)args->idle_timeout,
                                      .drain_seconds = (double)args->drain,
                                      .n_workers = WORKERS,
                                      .shares_prefixes = args->prefix_scope && !strcmp(args->prefix_scope, "all"),
                                      .no_page = args->no_page,
                                      .no_slots = args->no_slots,
                                      .has_seed = args->sampling.seed != QN_NO_SEED,
                                      .seed = args->sampling.seed,
                                      .log = s->log,
                                      .note = print_note };
    if (qn_server_create(&params, &s->server))
        return qn_cli_fail();
    if (args->tls_key && !args->quiet)
        check_key_mode(args->tls_key);
    s->signals = (qn_signals_server){ .stop = stop_server, .reload = reload_server, .user = s->server };
    qn_signals_serve(&s->signals);
    printf("listening on %s\n", qn_server_url(s->server));
    return qn_out_flush() ? QN_EXIT_DONE : QN_EXIT_FAILED;
}

/* ---- The model ---- */

static int add_model(serve *s)
{
    char memory[32];
    const char *const path = s->args->model;
    qn_registered model = { .name = s->name };
    if (s->args->aliases.count)
        snprintf(s->name, sizeof s->name, "%s", s->args->aliases.at[0]);
    else
        qn_serve_name(path, s->name);
    model.created = (int64_t)time(NULL);
    if (qn_serve_prepare(s->args, path, s->model, &model))
        return qn_cli_fail();
    s->scheduler = model.scheduler;
    if (qn_server_add(s->server, &model))
        return qn_cli_fail();
    fputs("ready: ", stdout);
    qn_print_escaped(stdout, s->name, strlen(s->name));
    printf(", %u tokens of context, %u requests at a time, %s for contexts", (unsigned)model.served.n_ctx,
           (unsigned)model.n_parallel,
           qn_print_size(memory, model.bytes - qn_serve_weight_bytes(qn_model_get_info(s->model)->file_bytes)));
    if (model.served.effort)
        printf(", reasoning effort %s", model.served.effort);
    putchar('\n');
    return qn_out_flush() ? QN_EXIT_DONE : QN_EXIT_FAILED;
}

/* Finds the models before the server listens, so that it never waits for a model that does not exist. */
static int find_models(serve *s)
{
    return has_files(s->args) ? qn_serve_files_find(s->args, &s->files) : qn_find_model(s->args);
}

static int load_model(serve *s)
{
    if (s->files)
        return qn_serve_files_start(s->files, s->server);
    const int status = qn_load_model(s->args, false, true, &s->model);
    return status == QN_EXIT_DONE ? add_model(s) : status;
}

/* On a terminal, says what a person does next. */
static void greet(const serve *s)
{
    const char *url = qn_server_url(s->server);
    if (s->args->quiet || !qn_is_terminal(STDOUT_FILENO))
        return;
    if (!s->args->no_page)
        printf("chat page: %s/ in a browser\n", url);
    printf("API: %s/v1 as OpenAI's\nCtrl-C stops\n", url);
    (void)qn_out_flush(); /* the server needs no terminal */
}

/* Stops the server after loading has failed. Returns the exit status: `status`, or QN_EXIT_DONE if a signal ended
 * loading, which is not a failure. */
static int end_early(const serve *s, int status)
{
    const int end = qn_signals_serve_stops() ? QN_EXIT_DONE : status;
    qn_server_stop(s->server);
    qn_server_wait(s->server);
    return end;
}

int qn_cli_serve(qn_args *args)
{
    serve s = { .args = args };
    int status = check_args(args);
    if (status == QN_EXIT_DONE)
        status = open_keys(&s);
    if (status == QN_EXIT_DONE)
        status = open_log(&s);
    if (status == QN_EXIT_DONE)
        status = find_models(&s);
    if (status == QN_EXIT_DONE)
        status = open_server(&s);
    if (status == QN_EXIT_DONE)
        status = load_model(&s);
    if (status == QN_EXIT_DONE) {
        qn_notify_service("READY=1"); /* before a signal can stop the server, which then sends STOPPING=1 */
        (void)qn_signals_serve_stops();
        greet(&s);
        qn_server_wait(s.server);
    } else if (s.server) {
        status = end_early(&s, status);
    }
    qn_signals_served();
    qn_scheduler_free(s.scheduler);
    qn_server_free(s.server);
    qn_serve_files_free(s.files);
    qn_model_free(s.model);
    qn_access_log_free(s.log);
    qn_keys_free(s.keys);
    return status;
}
