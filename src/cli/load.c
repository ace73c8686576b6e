/* From the options of the command line to a model, a session and sampling parameters. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/demo_model.h"
#include "cli/draft.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "base/append.h"
#include "base/atomic_file.h"
#include "base/environment.h"
#include "base/random.h"
#include "base/utf8.h"
#include "device/registry.h"
#include "engine/state_file.h"
#include "gguf/gguf.h"
#include "jinja/jinja.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Selects the device of the options or the environment. Returns QN_EXIT_DONE, or the exit status after an error
 * line. */
static int select_device(const qn_args *args, qn_device_name *device)
{
    int count;
    if (qn_device_name_select(args->device, device)) {
        qn_cli_error("%s", qn_error_text());
        return QN_EXIT_USAGE;
    }
    if (qn_device_count(device, &count) == QN_OK)
        return QN_EXIT_DONE;
    qn_cli_error("%s %s: %s", device->source, device->text, qn_error_text());
    return QN_EXIT_FAILED;
}

int qn_check_device(const qn_args *args, const char **name, bool *is_cpu)
{
    qn_device_name device;
    const int status = select_device(args, &device);
    *name = device.text;
    *is_cpu = qn_device_is_cpu(&device);
    return status;
}

/* Sets args->model to the demo model. */
static int find_demo_model(qn_args *args)
{
    static char path[QN_DEMO_MODEL_PATH]; /* args keep it as long as the program runs */
    if (!qn_demo_model_find(path)) {
        qn_cli_error("-m: no model given, and the demo model is not at %s; name a GGUF file with -m FILE", path);
        return QN_EXIT_USAGE;
    }
    if (!args->quiet)
        qn_cli_error("note: no -m given, using the demo model, %s", path);
    args->model = path;
    return QN_EXIT_DONE;
}

/* Prints one line. Returns as qn_load_model. */
static int print_capacity(const qn_args *args, qn_model *model)
{
    qn_capacity one = QN_CAPACITY_INIT, eight = QN_CAPACITY_INIT;
    char limit[32], position[32], sequence[32];
    if (qn_model_get_capacity(model, args->kv, 1, &one) || qn_model_get_capacity(model, args->kv, 8, &eight))
        return qn_cli_fail();
    qn_cli_error(
        "memory for contexts %s: %s a position, %s a sequence; fits 1 sequence of %llu tokens, or 8 of %llu each",
        qn_print_size(limit, one.memory_limit), qn_print_size(position, one.bytes_per_position),
        qn_print_size(sequence, one.bytes_per_sequence), (unsigned long long)one.tokens_per_sequence,
        (unsigned long long)eight.tokens_per_sequence);
    return QN_EXIT_DONE;
}

static int load(const qn_args *args, bool vocab_only, const char *device, const char *chat_template, qn_model **model)
{
    static qn_progress progress; /* notes may also be printed later, while the model is used */
    qn_progress_begin(&progress, "loading");
    const qn_model_params params = {
        .size = sizeof(qn_model_params),
        .device = device,
        .n_threads = (int)args->threads,
        .memory = args->memory,
        .chat_template = chat_template,
        .vocab_only = vocab_only,
        .deterministic = args->deterministic,
        .draft_model = vocab_only ? NULL : args->draft_model,
        .on_progress = qn_progress_update,
        .on_log = args->quiet ? NULL : qn_progress_log,
        .user = &progress,
        .draft = qn_find_draft(args),
    };
    const qn_status loaded = qn_model_load(args->model, &params, model);
    qn_progress_end(&progress);
    return loaded ? qn_cli_fail() : QN_EXIT_DONE;
}

static int load_with_template(const qn_args *args, bool vocab_only, const char *device, qn_model **model)
{
    char *chat_template = NULL;
    if (args->chat_template && !qn_read_text(args->chat_template, &chat_template))
        return QN_EXIT_FAILED;
    const int status = load(args, vocab_only, device, chat_template, model);
    free(chat_template);
    return status;
}

int qn_check_template(const qn_args *args)
{
    qn_file_info file;
    char *text;
    qn_jinja *jinja;
    if (!args->chat_template)
        return QN_EXIT_DONE;
    if (!qn_file_describe(args->chat_template, &file) || !qn_file_is_readable(args->chat_template)) {
        qn_cli_error("%s: %s", args->chat_template, strerror(errno));
        return QN_EXIT_FAILED;
    }
    if (file.kind != QN_FILE_REGULAR)
        return QN_EXIT_DONE;
    if (!qn_read_text(args->chat_template, &text))
        return QN_EXIT_FAILED;
    const size_t mark = qn_utf8_mark(text, strlen(text));
    const qn_status status = qn_jinja_compile(text + mark, strlen(text) - mark, &jinja);
    if (status == QN_OK)
        qn_jinja_free(jinja);
    free(text);
    return status ? qn_cli_fail() : QN_EXIT_DONE;
}

int qn_find_model(qn_args *args)
{
    qn_device_name device;
    qn_gguf *file;
    int status = select_device(args, &device);
    if (status == QN_EXIT_DONE && !args->model)
        status = find_demo_model(args);
    if (status == QN_EXIT_DONE)
        status = qn_resolve_model(&args->model, args->quiet);
    if (status == QN_EXIT_DONE)
        status = qn_check_template(args);
    if (status != QN_EXIT_DONE)
        return status;
    if (qn_gguf_open(args->model, &file))
        return qn_cli_fail();
    qn_gguf_close(file);
    return QN_EXIT_DONE;
}

int qn_load_model(qn_args *args, bool vocab_only, bool demo_fallback, qn_model **model)
{
    *model = NULL;
    if (!args->model && !demo_fallback) {
        qn_cli_error("-m: no model given; name a GGUF file with -m FILE, or one of the hub with -m OWNER/REPO");
        return QN_EXIT_USAGE;
    }
    qn_device_name device;
    int status = select_device(args, &device);
    if (status == QN_EXIT_DONE && !args->model)
        status = find_demo_model(args);
    if (status == QN_EXIT_DONE)
        status = qn_resolve_model(&args->model, args->quiet);
    if (status == QN_EXIT_DONE && args->draft_model)
        status = qn_resolve_model(&args->draft_model, args->quiet);
    if (status != QN_EXIT_DONE)
        return status;
    status = load_with_template(args, vocab_only, device.text, model);
    if (status != QN_EXIT_DONE)
        return status;
    status = args->verbose ? print_capacity(args, *model) : QN_EXIT_DONE;
    if (status != QN_EXIT_DONE) {
        qn_model_free(*model);
        *model = NULL;
    }
    return status;
}

static void note_longer_than_trained(const qn_args *args, uint32_t trained)
{
    if (args->context > (int64_t)trained && !args->quiet)
        qn_cli_note("-c %lld is more than the %u tokens that the model was trained for", (long long)args->context,
                    (unsigned)trained);
}

/* Returns the tokens of a sequence that the memory holds in a cache format; 0 if they cannot be found. */
static uint64_t tokens_in(qn_model *model, const char *kv)
{
    qn_capacity capacity = QN_CAPACITY_INIT;
    return qn_model_get_capacity(model, kv, 1, &capacity) ? 0 : capacity.tokens_per_sequence;
}

const char *qn_choose_kv(const qn_args *args, qn_model *model)
{
    enum { ENOUGH = 32768 }; /* without -c: a longer context is not worth codes that nobody asked for */
    static const char *const smaller[] = { "aura8", "aura4" };
    const uint32_t trained = qn_model_get_info(model)->n_ctx_train;
    const uint64_t wanted = args->context      ? (uint64_t)args->context
                            : trained < ENOUGH ? trained
                                               : ENOUGH,
                   in_f16 = args->kv ? 0 : tokens_in(model, NULL);
    const char *best = NULL;
    uint64_t most = in_f16;
    if (args->kv)
        return args->kv;
    for (size_t i = 0; i < sizeof smaller / sizeof *smaller && most < wanted; i++) {
        const uint64_t tokens = tokens_in(model, smaller[i]); /* as many as in f16 where it has no codes */
        if (tokens > most) {
            most = tokens;
            best = smaller[i];
        }
    }
    if (best && !args->quiet)
        qn_cli_note(
            "the memory holds %llu tokens of context in f16, %llu in %s, which is used; see --kv, --memory and -c",
            (unsigned long long)in_f16, (unsigned long long)most, best);
    return best;
}

uint32_t qn_choose_context(const qn_args *args, const qn_model *model, const qn_capacity *capacity)
{
    const uint32_t trained = qn_model_get_info(model)->n_ctx_train;
    const uint64_t wanted = args->context ? (uint64_t)args->context : trained, fits = capacity->tokens_per_sequence;
    note_longer_than_trained(args, trained);
    if (fits < wanted && !args->quiet)
        qn_cli_note("%llu tokens of context do not fit in memory, %llu do; see --memory and --kv",
                    (unsigned long long)wanted, (unsigned long long)fits);
    return (uint32_t)(fits < wanted ? fits : wanted);
}

int qn_open_session(const qn_args *args, qn_model *model, uint32_t context, qn_session **session)
{
    note_longer_than_trained(args, qn_model_get_info(model)->n_ctx_train);
    const qn_session_params params = {
        .size = sizeof(qn_session_params),
        .n_ctx = args->context ? (uint32_t)args->context : context,
        .n_batch = (uint32_t)args->batch,
        .kv = args->kv,
        .n_checkpoints = QN_SESSION_CHECKPOINTS,
        .on_log = args->quiet ? NULL : qn_cli_log_note,
    };
    const qn_status status = args->load ? qn_session_restore(model, args->load, &params, session)
                                        : qn_session_create(model, &params, session);
    return status ? qn_cli_fail() : QN_EXIT_DONE;
}

int qn_check_save(const qn_args *args)
{
    if (!args->save)
        return QN_EXIT_DONE;
    if (qn_check_output(args, NULL, args->save))
        return QN_EXIT_FAILED;
    if (qn_session_check_target(args->save))
        return qn_cli_fail();
    qn_atomic_file trial; /* an existing file is not changed */
    const qn_status status = qn_atomic_file_create(&trial, args->save, QN_FILE_PRIVATE);
    qn_atomic_file_free(&trial);
    return status ? qn_cli_fail() : QN_EXIT_DONE;
}

/* Saves to a new file in a folder for temporary files, and prints its name. */
static bool save_elsewhere(const qn_session *session, const char *folder)
{
    char path[PATH_MAX];
    const int fd =
        folder && qn_print(path, sizeof path, "%s/quern-session-XXXXXX", folder) ? qn_file_make_temporary(path) : -1;
    if (fd < 0)
        return false;
    close(fd);
    if (qn_session_save(session, path)) {
        qn_file_remove(path);
        return false;
    }
    qn_cli_error("the conversation is in %s instead: --load it, and --save it where it belongs", path);
    return true;
}

int qn_save_session(const qn_args *args, const qn_session *session)
{
    if (!args->save)
        return QN_EXIT_DONE;
    qn_signals_disable_force_quit(); /* a second Ctrl-C would leave the temporary file behind */
    if (qn_session_save(session, args->save) == QN_OK)
        return QN_EXIT_DONE;
    qn_cli_error("%s", qn_error_text()); /* also after Ctrl-C: the session was not saved */
    if (!save_elsewhere(session, qn_environment("TMPDIR")) && !save_elsewhere(session, qn_file_temporary_folder()))
        qn_cli_error("it cannot be saved in the folder for temporary files either: the conversation is lost");
    return QN_EXIT_FAILED;
}

/* ---- Files that commands write ---- */

static bool same_file(const qn_file_info *file, const char *path)
{
    qn_file_info other;
    return path && qn_file_describe(path, &other) && qn_file_id_equal(other.identity.id, file->identity.id);
}

int qn_check_output(const qn_args *args, const char *input, const char *path)
{
    qn_file_info target, from;
    if (!qn_check_output_name(path))
        return QN_EXIT_FAILED;
    if (!qn_file_describe(path, &target) || target.kind != QN_FILE_REGULAR)
        return QN_EXIT_DONE;
    const char *what =
        same_file(&target, args->model)  ? "the model"
        : same_file(&target, args->file) ? "the file given to -f"
        : same_file(&target, input)      ? "the input"
        : qn_file_describe_fd(STDIN_FILENO, &from) && qn_file_id_equal(from.identity.id, target.identity.id)
            ? "what standard input reads"
            : NULL;
    if (!what)
        return QN_EXIT_DONE;
    qn_cli_error("%s: it is %s itself, which would be overwritten", path, what);
    return QN_EXIT_FAILED;
}

/* ---- Sampling ---- */

const char *const *qn_breaker_texts(const qn_args *args, size_t *n)
{
    const qn_texts *given = &args->dry_breakers;
    size_t begin = 0;
    for (size_t i = 0; i < given->count; i++)
        if (!strcmp(given->at[i], "none"))
            begin = i + 1;
    *n = given->count - begin;
    return given->count ? given->at + begin : qn_dry_default_breakers(n);
}

int qn_check_breakers(const qn_args *args)
{
    size_t n;
    const char *const *texts = qn_breaker_texts(args, &n);
    for (size_t i = 0; i < n; i++) {
        const size_t length = strnlen(texts[i], QN_MAX_DRY_BREAKER_BYTES + 1);
        if (length && length <= QN_MAX_DRY_BREAKER_BYTES)
            continue;
        qn_cli_error(length ? "--dry-sequence-breaker: the text is longer than %d bytes"
                            : "--dry-sequence-breaker: the text is empty, expected 1 to %d bytes, or none",
                     QN_MAX_DRY_BREAKER_BYTES);
        return QN_EXIT_USAGE;
    }
    return QN_EXIT_DONE;
}

int qn_load_breakers(qn_args *args, const qn_model *model, qn_token **breakers)
{
    size_t n;
    const char *const *texts = qn_breaker_texts(args, &n);
    *breakers = NULL;
    if (!(args->sampling.dry_multiplier > 0))
        return QN_EXIT_DONE;
    if (qn_dry_breakers(model, texts, n, breakers, &args->sampling.n_dry_breakers))
        return qn_cli_fail();
    args->sampling.dry_breakers = *breakers;
    return QN_EXIT_DONE;
}

int qn_check_stops(const qn_args *args)
{
    for (size_t i = 0; i < args->stop.count; i++)
        if (!*args->stop.at[i]) {
            qn_cli_error("--stop: the text is empty");
            return QN_EXIT_USAGE;
        }
    return QN_EXIT_DONE;
}

void qn_sampling_args_defaults(qn_args *args)
{
    uint32_t random_seed; /* 32 bits, so that it can be typed again */
    args->sampling = (qn_sampling)QN_SAMPLING_INIT;
    if (qn_random_bytes(&random_seed, sizeof random_seed))
        args->sampling.seed = random_seed;
}
