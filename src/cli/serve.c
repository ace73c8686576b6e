/* quern serve: a model behind HTTP. The main thread loads the model while the server already listens, and then waits. */
#include "cli/cli.h"
#include "cli/signals.h"

#include "cache/sequence.h"
#include "gguf/gguf.h"
#include "server/listen.h"
#include "server/server.h"

#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MAX_QUEUED = 512, WORKERS = 2, CPU_SEQUENCES = 16, GPU_SEQUENCES = 64 };

#define NO_SEED UINT64_MAX

typedef struct serve {
    qn_args *args;
    qn_keys *keys;
    qn_access_log *log;
    qn_server *server;
    qn_model *model;
    qn_scheduler *scheduler;
    char name[256], fingerprint[32]; /* of the model, of answers */
} serve;

/* What the command line does not say is in the model's file, or the library's default. */
void qn_serve_defaults(qn_args *args)
{
    args->sampling = (qn_sampling){ .temperature = NAN,
                                    .top_k = -1,
                                    .top_p = NAN,
                                    .min_p = NAN,
                                    .repeat_penalty = NAN,
                                    .repeat_last_n = -1,
                                    .frequency_penalty = NAN,
                                    .presence_penalty = NAN,
                                    .seed = NO_SEED };
    args->host = "127.0.0.1";
    args->port = 8080;
    args->max_tokens = -1;
    args->max_queued = MAX_QUEUED;
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

static qn_server *volatile signalled;
static volatile sig_atomic_t n_stops;

static void on_signal(int number)
{
    if (number == SIGHUP) {
        qn_server_reload(signalled);
    } else if (n_stops++) {
        signal(number, SIG_DFL);
        raise(number);
    } else {
        qn_server_stop(signalled);
    }
}

/* A signal that the parent process ignores stays ignored. */
static void catch (int number, void (*handler)(int))
{
    struct sigaction before, action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (!sigaction(number, NULL, &before) && before.sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

/* Up to here Ctrl-C stops loading. */
static void catch_stops(const serve *s)
{
    catch (SIGTERM, on_signal);
    catch (SIGINT, on_signal);
    catch (SIGQUIT, SIG_DFL);
    if (qn_signals_stop_requested())
        qn_server_stop(s->server);
}

static void forget_signals(void)
{
    catch (SIGHUP, SIG_IGN);
    if (n_stops) {
        catch (SIGTERM, SIG_DFL);
        catch (SIGINT, SIG_DFL);
    }
}

/* ---- Arguments ---- */

static void print_note(const char *text)
{
    qn_cli_error("note: %s", text);
}

static int check_args(qn_args *args)
{
    qn_args_take_model(args);
    if (qn_args_no_more("serve", args, 0) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (!args->tls_cert != !args->tls_key) {
        qn_cli_error("--tls-cert and --tls-key: one needs the other");
        return QN_EXIT_USAGE;
    }
    return QN_EXIT_DONE;
}

static int open_keys(serve *s)
{
    const qn_args *args = s->args;
    if (!args->api_keys.count && !args->api_key_files.count)
        return QN_EXIT_DONE;
    return qn_keys_create(args->api_keys.at, args->api_keys.count, args->api_key_files.at, args->api_key_files.count,
                          args->quiet ? NULL : print_note, &s->keys)
               ? qn_cli_fail()
               : QN_EXIT_DONE;
}

static int open_log(serve *s)
{
    if (s->args->quiet && !s->args->access_log)
        return QN_EXIT_DONE;
    return qn_access_log_create(s->args->access_log, &s->log) ? qn_cli_fail() : QN_EXIT_DONE;
}

/* ---- The server ---- */

static int open_server(serve *s)
{
    const qn_args *args = s->args;
    static const char *hosts[QN_TEXTS_MAX + 1];
    memcpy(hosts, args->allowed_hosts.at, args->allowed_hosts.count * sizeof *hosts);
    hosts[args->allowed_hosts.count] = args->host;
    const qn_server_params params = { .host = args->host,
                                      .port = (uint16_t)args->port,
                                      .tls_cert = args->tls_cert,
                                      .tls_key = args->tls_key,
                                      .keys = s->keys,
                                      .allows_anyone = args->allow_unauthenticated,
                                      .hosts = hosts,
                                      .n_hosts = args->allowed_hosts.count + 1,
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
                                      .has_seed = args->sampling.seed != NO_SEED,
                                      .seed = args->sampling.seed,
                                      .log = s->log,
                                      .note = print_note };
    if (qn_server_create(&params, &s->server))
        return qn_cli_fail();
    signalled = s->server;
    catch (SIGHUP, on_signal);
    printf("listening on %s\n", qn_server_url(s->server));
    return qn_out_flush() ? QN_EXIT_DONE : QN_EXIT_FAILED;
}

/* ---- The model ---- */

static float pick(float given, float otherwise)
{
    return isnan(given) ? otherwise : given;
}

static int32_t pick_integer(int32_t given, int32_t otherwise)
{
    return given < 0 ? otherwise : given;
}

/* What the file recommends. */
static qn_status read_sampling(const char *path, qn_sampling *sampling)
{
    qn_gguf *file;
    uint32_t top_k = (uint32_t)sampling->top_k, last_n = (uint32_t)sampling->repeat_last_n;
    const qn_status status = qn_gguf_open_alone(path, &file);
    if (status)
        return status;
    const bool is_read = !qn_gguf_get_f32(file, "general.sampling.temp", false, &sampling->temperature) &&
                         !qn_gguf_get_u32(file, "general.sampling.top_k", false, &top_k) &&
                         !qn_gguf_get_f32(file, "general.sampling.top_p", false, &sampling->top_p) &&
                         !qn_gguf_get_f32(file, "general.sampling.min_p", false, &sampling->min_p) &&
                         !qn_gguf_get_f32(file, "general.sampling.penalty_repeat", false, &sampling->repeat_penalty) &&
                         !qn_gguf_get_u32(file, "general.sampling.penalty_last_n", false, &last_n);
    qn_gguf_close(file);
    sampling->top_k = top_k < INT32_MAX ? (int)top_k : 0;
    sampling->repeat_last_n = last_n < INT32_MAX ? (int)last_n : INT32_MAX;
    if (!is_read)
        return QN_ERR_FORMAT;
    const bool is_valid = sampling->temperature >= 0 && sampling->top_p > 0 && sampling->top_p <= 1 && sampling->min_p >= 0 &&
                          sampling->min_p < 1 && sampling->repeat_penalty >= 1e-3F && sampling->repeat_penalty <= 1e3F;
    return is_valid ? QN_OK : QN_ERR_INVALID;
}

/* A file's bad advice is left out. */
static qn_sampling choose_sampling(const qn_args *args)
{
    qn_sampling file = qn_sampling_defaults();
    if (read_sampling(args->model, &file)) {
        if (!args->quiet)
            qn_cli_error("note: general.sampling of the model is not valid, and is ignored");
        file = qn_sampling_defaults();
    }
    const qn_sampling *given = &args->sampling;
    return (qn_sampling){ .temperature = pick(given->temperature, file.temperature),
                          .top_k = pick_integer(given->top_k, file.top_k),
                          .top_p = pick(given->top_p, file.top_p),
                          .min_p = pick(given->min_p, file.min_p),
                          .repeat_penalty = pick(given->repeat_penalty, file.repeat_penalty),
                          .repeat_last_n = pick_integer(given->repeat_last_n, file.repeat_last_n),
                          .frequency_penalty = pick(given->frequency_penalty, 0),
                          .presence_penalty = pick(given->presence_penalty, 0) };
}

static const char *file_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* That of the file, without what says that it is one, or one of several. */
static void choose_name(serve *s)
{
    const char *const file = file_name(s->args->model);
    const size_t length = strlen(file);
    uint32_t number, count;
    snprintf(s->name, sizeof s->name, "%s", s->args->alias ? s->args->alias : file);
    if (s->args->alias || length >= sizeof s->name || length < 6 || strcmp(file + length - 5, ".gguf") != 0)
        return;
    s->name[length - 5] = 0;
    if (qn_gguf_split_numbers(file, &number, &count))
        s->name[length - strlen("-00001-of-00001.gguf")] = 0;
}

/* The context of a request: what was given or trained, at most what the memory holds. */
static uint32_t choose_context(const serve *s, const qn_capacity *capacity)
{
    const qn_args *args = s->args;
    const uint32_t trained = qn_model_get_info(s->model).n_ctx_train;
    const uint64_t wanted = args->context ? (uint64_t)args->context : trained, fits = capacity->tokens_per_sequence;
    if (wanted > trained && !args->quiet)
        qn_cli_error("note: -c %llu is more than the %u tokens that the model was trained for", (unsigned long long)wanted,
                     (unsigned)trained);
    if (fits < wanted && !args->quiet)
        qn_cli_error("note: %llu tokens of context do not fit in memory, %llu do; see --memory and --kv",
                     (unsigned long long)wanted, (unsigned long long)fits);
    return (uint32_t)(fits < wanted ? fits : wanted);
}

static int create_scheduler(serve *s, uint32_t n_ctx, uint32_t n_parallel)
{
    const qn_args *args = s->args;
    const qn_scheduler_params params = { .kv = args->kv,
                                         .n_ctx = n_ctx,
                                         .max_sequences = n_parallel,
                                         .max_queued = (uint32_t)args->max_queued,
                                         .max_rows = (uint32_t)args->batch,
                                         .prefix_states = args->prefix_cache == QN_BYTES_OFF ? 0 : args->prefix_cache,
                                         .no_prefix_cache = args->prefix_cache == QN_BYTES_OFF,
                                         .prefix_host = args->prefix_host == QN_BYTES_OFF ? 0 : args->prefix_host,
                                         .no_prefix_host = args->prefix_host == QN_BYTES_OFF };
    return qn_scheduler_create(s->model, &params, &s->scheduler) ? qn_cli_fail() : QN_EXIT_DONE;
}

static uint32_t choose_parallel(const serve *s)
{
    const qn_args *args = s->args;
    const uint32_t most = strcmp(qn_model_get_info(s->model).device, "cpu") ? GPU_SEQUENCES : CPU_SEQUENCES;
    if (args->sequences)
        return (uint32_t)args->sequences;
    return args->batch && args->batch < most ? (uint32_t)args->batch : most;
}

static int add_model(serve *s)
{
    qn_capacity capacity;
    char memory[32];
    const uint32_t n_parallel = choose_parallel(s);
    if (qn_model_get_capacity(s->model, s->args->kv, 1, &capacity))
        return qn_cli_fail();
    if (!capacity.tokens_per_sequence) {
        qn_cli_error("serve: the memory does not hold a request; see --memory");
        return QN_EXIT_FAILED;
    }
    const uint32_t n_ctx = choose_context(s, &capacity);
    if (create_scheduler(s, n_ctx, n_parallel) != QN_EXIT_DONE)
        return QN_EXIT_FAILED;
    choose_name(s);
    snprintf(s->fingerprint, sizeof s->fingerprint, "quern-%s", qn_version());
    const uint64_t page_bytes = capacity.bytes_per_position * QN_PAGE;
    const qn_registered model = { .name = s->name,
                                  .file = file_name(s->args->model),
                                  .served = { .model = s->model,
                                              .fingerprint = s->fingerprint,
                                              .n_ctx = n_ctx,
                                              .max_tokens = s->args->max_tokens,
                                              .sampling = choose_sampling(s->args) },
                                  .scheduler = s->scheduler,
                                  .n_parallel = n_parallel,
                                  .max_queued = (uint32_t)s->args->max_queued,
                                  .page_tokens = QN_PAGE,
                                  .n_pages = page_bytes ? capacity.memory_limit / page_bytes : 0,
                                  .created = (int64_t)time(NULL) };
    if (qn_server_add(s->server, &model))
        return qn_cli_fail();
    printf("ready: %s, %u tokens of context, %u requests at a time, %s for contexts\n", s->name, (unsigned)n_ctx,
           (unsigned)n_parallel, qn_print_size(memory, capacity.memory_limit));
    return qn_out_flush() ? QN_EXIT_DONE : QN_EXIT_FAILED;
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
        status = open_server(&s);
    if (status == QN_EXIT_DONE)
        status = qn_load_model(args, false, true, &s.model);
    if (status == QN_EXIT_DONE)
        status = add_model(&s);
    if (status == QN_EXIT_DONE) {
        catch_stops(&s);
        qn_notify("READY=1");
        qn_server_wait(s.server);
    } else if (s.server) {
        qn_server_stop(s.server);
        qn_server_wait(s.server);
    }
    forget_signals();
    qn_scheduler_free(s.scheduler);
    qn_server_free(s.server);
    qn_model_free(s.model);
    qn_access_log_free(s.log);
    qn_keys_free(s.keys);
    return status;
}
