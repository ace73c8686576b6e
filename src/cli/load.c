/* From the options of a command line to a model, a session and sampling parameters. */
#include "cli/cli.h"
#include "cli/demo_model.h"
#include "cli/progress.h"
#include "cli/signals.h"
#include "device/cuda/cuda.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

const char *const qn_kv_names[] = { "f16", "aura8", "aura6", "aura4", "aura4v3", "aura4v2", "aura3", "aura2", NULL };

/* QN_EXIT_DONE, or the exit status with an error line printed. */
static int check_device(const char *name)
{
    int ordinal, count;
    if (strcmp(name, "cpu") == 0 || strcmp(name, "auto") == 0)
        return QN_EXIT_DONE;
    if (!qn_cuda_parse_name(name, &ordinal)) {
        qn_cli_error("--device: '%s' is not one of cpu, cuda, cuda:N, auto", name);
        return QN_EXIT_USAGE;
    }
    if (qn_cuda_count(NULL, &count) == QN_OK)
        return QN_EXIT_DONE;
    qn_cli_error("--device %s: %s", name, qn_error_text());
    return QN_EXIT_FAILED;
}

int qn_load_model(const qn_model_args *args, bool vocab_only, bool quiet, qn_model **model)
{
    char demo[QN_DEMO_MODEL_PATH];
    const char *path = args->model;
    *model = NULL;
    if (!path && !args->or_demo) {
        qn_cli_error("-m: no model given; name a GGUF file with -m FILE");
        return QN_EXIT_USAGE;
    }
    if (!path && !qn_demo_model_find(demo)) {
        qn_cli_error("-m: no model given, and none that came with quern is at %s; name a GGUF file with -m FILE", demo);
        return QN_EXIT_USAGE;
    }
    const char *named = getenv("QN_DEVICE");
    const char *device = args->device ? args->device : named && *named ? named : "auto";
    const int checked = check_device(device);
    if (checked != QN_EXIT_DONE)
        return checked;
    if (!path) {
        path = demo;
        if (!quiet)
            qn_cli_error("note: no -m given, this is the demo model, %s", path);
    }
    qn_progress progress;
    qn_progress_begin(&progress, "loading");
    const qn_model_params params = {
        .device = device,
        .n_threads = (int)args->threads,
        .vocab_only = vocab_only,
        .on_progress = qn_progress_update,
        .on_log = quiet ? NULL : qn_progress_log,
        .user = &progress,
    };
    const qn_status status = qn_model_load(path, &params, model);
    qn_progress_end(&progress);
    return status ? qn_cli_fail() : QN_EXIT_DONE;
}

static void log_note(void *unused, const char *line)
{
    (void)unused;
    qn_cli_error("note: %s", line);
}

int qn_open_session(const qn_model_args *args, qn_model *model, uint32_t context, qn_session **session)
{
    const qn_session_params params = {
        .n_ctx = args->context ? (uint32_t)args->context : context,
        .n_batch = (uint32_t)args->batch,
        .kv = args->kv,
        .n_checkpoints = 1,
        .on_log = log_note,
    };
    const qn_status status =
        args->load ? qn_session_restore(model, args->load, &params, session) : qn_session_create(model, &params, session);
    return status ? qn_cli_fail() : QN_EXIT_DONE;
}

int qn_save_session(const qn_model_args *args, const qn_session *session)
{
    if (!args->save)
        return QN_EXIT_DONE;
    qn_signals_patient(); /* a second Ctrl-C would leave the temporary file behind */
    if (qn_session_save(session, args->save) == QN_OK)
        return QN_EXIT_DONE;
    qn_cli_error("%s", qn_error_text()); /* after Ctrl-C, too: what was to be kept is not */
    return QN_EXIT_FAILED;
}

qn_sampling_args qn_sampling_args_defaults(void)
{
    const qn_sampling d = qn_sampling_defaults();
    qn_sampling_args args = {
        .temperature = (double)d.temperature,
        .top_p = (double)d.top_p,
        .min_p = (double)d.min_p,
        .repeat_penalty = (double)d.repeat_penalty,
        .top_k = d.top_k,
        .repeat_last_n = d.repeat_last_n,
        .seed = d.seed,
    };
    uint32_t fresh; /* 32 bits: short enough to be typed again */
    if (getrandom(&fresh, sizeof fresh, 0) == (ssize_t)sizeof fresh)
        args.seed = fresh;
    return args;
}

qn_sampling qn_sampling_from_args(const qn_sampling_args *args)
{
    return (qn_sampling){
        .temperature = (float)args->temperature,
        .top_k = (int)args->top_k,
        .top_p = (float)args->top_p,
        .min_p = (float)args->min_p,
        .repeat_penalty = (float)args->repeat_penalty,
        .repeat_last_n = (int)args->repeat_last_n,
        .seed = args->seed,
    };
}
