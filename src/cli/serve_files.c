/* Several models of quern serve: files of the command line and of a folder, which the server's registry loads on
 * request. */
#include "cli/serve_model.h"

#include "base/available.h"
#include "base/file.h"
#include "base/memory.h"
#include "base/status.h"
#include "cli/cli.h"
#include "engine/internal.h"
#include "gguf/gguf.h"
#include "model/model.h"
#include "model/role.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAUSE_SECONDS = 10, SCAN_SECONDS = 1 };

/* A file of the folder that was read: what it is for, as long as it does not change. */
struct judged {
    char *path;
    qn_file_identity identity;
    bool is_model;
};

struct qn_serve_files {
    const qn_args *args;
    const char *device; /* a name */
    bool is_cpu;
    char *chat_template; /* its source; NULL: those of the files */
    bool has_scanned;    /* notes about files are printed once */
    struct judged *judged;
    size_t n_judged, judged_capacity;
};

/* ---- Loading: members of qn_registry_loader, which says which threads call them ---- */

/* Member on_progress of the model's params: false ends the loading when the server stops. */
static bool goes_on(void *registry, size_t done, size_t total)
{
    (void)done;
    (void)total;
    return !qn_registry_is_stopping(registry);
}

/* Loads a model and creates its scheduler; free_model frees both. */
static qn_status load(void *user, qn_registry *registry, const char *path, uint64_t memory, qn_registered *out)
{
    const qn_serve_files *f = user;
    const qn_model_params params = { .size = sizeof(qn_model_params),
                                     .device = f->device,
                                     .n_threads = (int)f->args->threads,
                                     .memory = memory,
                                     .chat_template = f->chat_template,
                                     .deterministic = f->args->deterministic,
                                     .on_progress = goes_on,
                                     .on_log = f->args->quiet ? NULL : qn_cli_log_note,
                                     .user = registry };
    char size[32];
    qn_model *model;
    const double started = qn_seconds();
    qn_status status = qn_model_load(path, &params, &model);
    if (!status) {
        status = qn_serve_prepare(f->args, path, model, out);
        if (status)
            qn_model_free(model);
    }
    if (f->args->quiet)
        return status;
    if (status)
        qn_cli_note("%s is not loaded: %s", out->name, qn_error_text());
    else
        qn_cli_note("%s is loaded in %.1f s: %u tokens of context, %s with its contexts", out->name,
                    qn_seconds() - started, (unsigned)out->served.n_ctx, qn_print_size(size, out->bytes));
    return status;
}

/* Checks the keys and tensors of a file, not the weights. */
static qn_status check(void *user, const char *path)
{
    const qn_serve_files *f = user;
    qn_gguf *file = NULL;
    qn_hparams hparams;
    qn_plan plan;
    qn_status status = qn_gguf_open(path, &file);
    if (!status) {
        status = qn_model_build(file, &hparams, &plan);
        if (!status)
            qn_plan_free(&plan);
        qn_gguf_close(file);
    }
    if (status && !f->args->quiet)
        qn_cli_note("not loaded: %s", qn_error_text());
    return status;
}

/* Whether the file of a loaded model was truncated; prints a note. Called with the registry's lock: notes never
 * block. */
static bool is_lost(void *user, const qn_registered *model)
{
    const qn_serve_files *f = user;
    const bool lost = qn_model_check(model->served.model) != QN_OK;
    if (lost && !f->args->quiet)
        qn_cli_note("%s is not used any more: %s", model->name, qn_error_text());
    return lost;
}

static void free_model(void *user, const qn_registered *model)
{
    const qn_serve_files *f = user;
    qn_scheduler_free(model->scheduler);
    qn_model_free(model->served.model);
    if (!f->args->quiet)
        qn_cli_note("%s is freed", model->name);
}

/* ---- Files ---- */

static uint64_t size_of(const char *path)
{
    qn_file_info file;
    return qn_file_describe(path, &file) && file.kind == QN_FILE_REGULAR ? file.size : 0;
}

/* Returns the size of a model file; of a split model, the size of all its files. */
static uint64_t size_of_all(const char *path)
{
    uint32_t number, count;
    uint64_t sum = 0;
    if (!qn_gguf_split_numbers(path, &number, &count))
        return size_of(path);
    char *part = strdup(path);
    for (uint32_t i = 0; part && i < count; i++) {
        qn_gguf_split_rename(part, i, count);
        sum += size_of(part);
    }
    free(part);
    return sum;
}

static void add_file(const qn_serve_files *f, qn_registry *registry, const char *name, const char *path)
{
    const uint64_t bytes = size_of_all(path);
    if (bytes && qn_registry_add_file(registry, name, path, qn_serve_weight_bytes(bytes)) && !f->has_scanned)
        qn_cli_note("%s: %s", path, qn_error_text());
}

static void add_arguments(const qn_serve_files *f, qn_registry *registry)
{
    const qn_args *args = f->args;
    for (size_t i = 0; i < args->models.count; i++) {
        char name[QN_REGISTRY_NAME_BYTES];
        qn_serve_name(args->models.at[i], name);
        add_file(f, registry, args->aliases.count ? args->aliases.at[i] : name, args->models.at[i]);
    }
}

/* Whether a file is a model's, or the first of a split model. */
static bool is_model(const char *name)
{
    const size_t length = strlen(name);
    uint32_t number, count;
    if (*name == '.' || length < 6 || strcmp(name + length - 5, ".gguf") != 0)
        return false;
    return !qn_gguf_split_numbers(name, &number, &count) || number == 0;
}

/* Names of models in the folder, sorted. */
struct names {
    char **at;
    size_t count, capacity;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Reads the names; some are missing without memory. */
static struct names read_names(const char *path)
{
    struct names names = { 0 };
    qn_folder *folder = qn_folder_open(path);
    const char *name;
    while (folder && (name = qn_folder_next(folder))) {
        if (!is_model(name) ||
            qn_realloc_array(&names.at, &names.capacity, names.count + 1, sizeof *names.at, "files of a folder"))
            continue;
        names.at[names.count] = strdup(name);
        names.count += names.at[names.count] != NULL;
    }
    qn_folder_close(folder);
    if (names.count)
        qsort(names.at, names.count, sizeof *names.at, by_name);
    return names;
}

static void free_names(const struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->at[i]);
    free(names->at);
}

/* Reads what a file is for. One that cannot be read is a model: loading it says why. */
static bool judge(const qn_serve_files *f, const char *path, const char *file)
{
    qn_file_role role;
    if (!qn_file_role_read(path, &role) || role == QN_FILE_MODEL)
        return true;
    if (!f->args->quiet)
        qn_cli_note("%s is not served: it is %s", file,
                    role == QN_FILE_DRAFTER     ? "a drafter, which runs next to a model (--draft-model)"
                    : role == QN_FILE_PROJECTOR ? "a projector (mmproj)"
                                                : "an importance matrix");
    return false;
}

/* Whether a file of the folder may answer requests. Files are read again when they have changed. */
static bool may_serve(qn_serve_files *f, const char *path, const char *file)
{
    qn_file_info info;
    size_t i = 0;
    if (!qn_file_describe(path, &info))
        return false;
    while (i < f->n_judged && strcmp(f->judged[i].path, path) != 0)
        i++;
    if (i < f->n_judged && qn_file_identity_equal(&f->judged[i].identity, &info.identity))
        return f->judged[i].is_model;
    const bool is_model = judge(f, path, file);
    if (i == f->n_judged) {
        char *copy = strdup(path);
        if (!copy || qn_realloc_array(&f->judged, &f->judged_capacity, i + 1, sizeof *f->judged, "files of a folder")) {
            free(copy);
            return is_model; /* the next scan reads it again */
        }
        f->judged[f->n_judged++].path = copy;
    }
    f->judged[i].identity = info.identity;
    f->judged[i].is_model = is_model;
    return is_model;
}

static void add_entry(qn_serve_files *f, qn_registry *registry, const char *file)
{
    char name[QN_REGISTRY_NAME_BYTES], *path;
    if (asprintf(&path, "%s/%s", f->args->models_dir, file) < 0)
        return; /* the next scan may succeed */
    qn_serve_name(file, name);
    if (may_serve(f, path, file))
        add_file(f, registry, name, path);
    free(path);
}

/* Removes models whose files have gone. */
static void remove_missing(qn_registry *registry)
{
    const size_t n = qn_registry_count(registry);
    for (size_t i = 0; i < n; i++) {
        qn_registry_view view;
        if (qn_registry_look(registry, i, &view) && view.path && !size_of(view.path))
            qn_registry_remove_file(registry, view.name);
    }
}

/* Tells the registry of all files that are there, and of those that have gone. One call at a time. */
static void scan(void *user, qn_registry *registry)
{
    qn_serve_files *f = user;
    add_arguments(f, registry);
    const struct names names = f->args->models_dir ? read_names(f->args->models_dir) : (struct names){ 0 };
    for (size_t i = 0; i < names.count; i++)
        add_entry(f, registry, names.at[i]);
    free_names(&names);
    remove_missing(registry);
    f->has_scanned = true;
}

/* ---- Begin and end ---- */

/* Prints a note if the folder has no models; they may come later. */
static void note_empty(const qn_args *args)
{
    const struct names names = read_names(args->models_dir);
    free_names(&names);
    if (!names.count && !args->quiet)
        qn_cli_note("--models-dir %s: has no GGUF files yet", args->models_dir);
}

/* Checks a file as for a single model, which is loaded at once. */
static int check_header(const char *path)
{
    qn_gguf *file;
    if (qn_gguf_open(path, &file))
        return qn_cli_fail();
    qn_gguf_close(file);
    return QN_EXIT_DONE;
}

/* Replaces names of the hub by paths. */
static int resolve(qn_args *args)
{
    int status = QN_EXIT_DONE;
    for (size_t i = 0; i < args->models.count && status == QN_EXIT_DONE; i++) {
        status = qn_resolve_model(&args->models.at[i], args->quiet);
        if (status == QN_EXIT_DONE && !size_of(args->models.at[i])) {
            qn_cli_error("%s: there is no such file", args->models.at[i]);
            status = QN_EXIT_FAILED;
        }
        if (status == QN_EXIT_DONE)
            status = check_header(args->models.at[i]);
    }
    if (status == QN_EXIT_DONE && args->models_dir) {
        qn_folder *folder = qn_folder_open(args->models_dir);
        if (!folder) {
            qn_cli_error("--models-dir %s: %s", args->models_dir, strerror(errno));
            return QN_EXIT_FAILED;
        }
        qn_folder_close(folder);
        note_empty(args);
    }
    return status;
}

/* Returns the memory for all models together; 0: each takes its default. */
static uint64_t choose_memory(const qn_args *args, bool is_cpu)
{
    const uint64_t available = is_cpu ? qn_available_memory() : UINT64_MAX;
    if (args->memory)
        return args->memory;
    return available == UINT64_MAX ? 0 : available / 10 * 9;
}

static int start(qn_serve_files *f, qn_server *server)
{
    const qn_args *args = f->args;
    char memory[32], number[48] = "";
    qn_registry_loader loader = { .load = load,
                                  .free = free_model,
                                  .is_lost = is_lost,
                                  .check = check,
                                  .scan = scan,
                                  .user = f,
                                  .memory = choose_memory(args, f->is_cpu),
                                  .max_loaded = (size_t)args->models_max,
                                  .max_queued = (uint32_t)args->max_queued,
                                  .stay_seconds = (double)args->models_stay,
                                  .pause_seconds = PAUSE_SECONDS,
                                  .scan_seconds = SCAN_SECONDS };
    if (!loader.memory && args->models_max > 1) {
        qn_cli_error("--models-max %lld: on a GPU several models need --memory, for the weights and contexts of all",
                     (long long)args->models_max);
        return QN_EXIT_USAGE;
    }
    if (!loader.memory)
        loader.max_loaded = 1;
    if (qn_server_add_files(server, &loader))
        return qn_cli_fail();
    if (loader.max_loaded)
        snprintf(number, sizeof number, ", at most %zu at a time", loader.max_loaded);
    printf("ready: models are loaded when requests name them%s%s%s\n", number, loader.memory ? ", in " : "",
           loader.memory ? qn_print_size(memory, loader.memory) : "");
    return qn_out_flush() ? QN_EXIT_DONE : QN_EXIT_FAILED;
}

int qn_serve_files_find(qn_args *args, qn_serve_files **out)
{
    qn_serve_files *f = calloc(1, sizeof *f);
    *out = f;
    if (!f) {
        qn_cli_error("serve: no memory for models");
        return QN_EXIT_FAILED;
    }
    f->args = args;
    int status = qn_check_device(args, &f->device, &f->is_cpu);
    if (status == QN_EXIT_DONE)
        status = resolve(args);
    return status == QN_EXIT_DONE ? qn_check_template(args) : status;
}

int qn_serve_files_start(qn_serve_files *f, qn_server *server)
{
    if (f->args->chat_template && !qn_read_text(f->args->chat_template, &f->chat_template))
        return QN_EXIT_FAILED;
    return start(f, server);
}

void qn_serve_files_free(qn_serve_files *f)
{
    if (!f)
        return;
    for (size_t i = 0; i < f->n_judged; i++)
        free(f->judged[i].path);
    free(f->judged);
    free(f->chat_template);
    free(f);
}
