/* quern quantize: rewrites a model in another weight type. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "gguf/gguf.h"
#include "quant/quant.h"

#include <string.h>

/* Returns the type's name as the library spells it. NULL: it cannot be written, an error line was printed. */
static const char *writable_type(const char *name)
{
    const qn_type_info *info;
    if (!qn_type_find_writable(name, false, &info))
        return info->name;
    qn_cli_error("%s", qn_error_text());
    return NULL;
}

struct quantizing {
    qn_progress progress;
    bool verbose;
    size_t n_wider; /* tensors that keep a wider type */
};

static bool on_progress(void *user, size_t done, size_t total)
{
    struct quantizing *q = user;
    return qn_progress_update(&q->progress, done, total);
}

/* Receives a line for each tensor that keeps a wider type, and warnings. */
static void on_log(void *user, const char *line)
{
    struct quantizing *q = user;
    if (strncmp(line, "warning:", 8) == 0) {
        qn_progress_log(&q->progress, line);
        return;
    }
    q->n_wider++;
    if (q->verbose)
        qn_progress_log(&q->progress, line);
}

int qn_cli_quantize(qn_args *args)
{
    const char *in = args->operands[0], *out = args->operands[1], *type = writable_type(args->operands[2]);
    if (!type)
        return QN_EXIT_USAGE;
    if (!qn_may_replace_model(out)) /* OUT may be IN */
        return QN_EXIT_FAILED;
    const int resolved = qn_resolve_model(&in, false);
    if (resolved != QN_EXIT_DONE)
        return resolved;
    qn_file_info after;
    qn_gguf *source;
    if (qn_gguf_open(in, &source))
        return qn_cli_fail();
    const size_t size_before = qn_gguf_file_size(source); /* read now: `out` may be one of its files */
    qn_gguf_close(source);
    qn_signals_disable_force_quit(); /* the temporary file must be removed; the work checks for a stop often enough */
    struct quantizing q = { .verbose = args->verbose };
    qn_progress_begin(&q.progress, "quantizing");
    const qn_quantize_params params = {
        .size = sizeof(qn_quantize_params),
        .n_threads = (int)args->threads,
        .force = args->force,
        .on_progress = on_progress,
        .on_log = on_log,
        .user = &q,
    };
    const qn_status status = qn_quantize_file(in, out, type, &params);
    qn_progress_end(&q.progress);
    if (status)
        return qn_cli_fail();
    if (q.n_wider)
        qn_cli_error("note: %zu tensor%s keep%s a wider type than %s%s", q.n_wider, q.n_wider == 1 ? "" : "s",
                     q.n_wider == 1 ? "s" : "", type, q.verbose ? "" : " (-v names them)");
    if (qn_file_describe(out, &after)) {
        char size_in[32], size_out[32];
        printf("%s, %s to %s\n", type, qn_print_size(size_in, size_before), qn_print_size(size_out, after.size));
    }
    return QN_EXIT_DONE;
}
