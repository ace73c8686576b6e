/* quern pull: downloads a model of the hub into the cache; also for models named on other command lines. */
#include "base/file.h"
#include "base/program.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "base/printable.h"
#include "hub/hub.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* If standard error is not a terminal: seconds until the first line; the interval then doubles up to
 * longest_interval. */
static const double first_line = 5, longest_interval = 60;
static const double rate_interval = 0.5;

struct download {
    qn_progress progress;
    bool quiet, known; /* known: the members below are of the current file */
    uint32_t part;
    char label[80];
    double measured, rate; /* qn_seconds() of the measurement; bytes a second */
    uint64_t measured_at;  /* bytes done by then */
    double next_line, interval;
};

static void begin_file(struct download *d, const qn_hub_progress *p)
{
    const char *slash = strrchr(p->file, '/'), *name = slash ? slash + 1 : p->file;
    char parts[32] = "";
    qn_progress_end(&d->progress);
    if (p->n_parts > 1)
        snprintf(parts, sizeof parts, " (%" PRIu32 " of %" PRIu32 ")", p->part + 1, p->n_parts);
    snprintf(d->label, sizeof d->label, "%.40s%s", name, parts);
    qn_mask(d->label);
    qn_progress_begin(&d->progress, d->label);
    d->known = true;
    d->part = p->part;
    d->rate = 0;
    d->measured = d->progress.started;
    d->measured_at = p->done;
    d->interval = first_line;
    d->next_line = d->progress.started + first_line;
}

static void measure_rate(struct download *d, const qn_hub_progress *p, double now)
{
    if (p->done < d->measured_at || p->before != d->progress.before) { /* started again, or reading the old part */
        d->progress.started = d->measured = now;
        d->progress.before = (size_t)p->before;
        d->measured_at = p->done;
        d->rate = 0;
    }
    if (now - d->measured < rate_interval)
        return;
    const double rate = (double)(p->done - d->measured_at) / (now - d->measured);
    d->rate = d->rate > 0 ? 0.7 * d->rate + 0.3 * rate : rate;
    d->measured = now;
    d->measured_at = p->done;
}

static void print_line(struct download *d, const qn_hub_progress *p, double now)
{
    const long left = d->rate > 0 ? (long)((double)(p->total - p->done) / d->rate + 0.5) : -1;
    char time[48] = "";
    if (left >= 0 && left < 360000)
        snprintf(time, sizeof time, ", %ld:%02ld left", left / 60, left % 60);
    qn_cli_error("note: %s: %.0f%%, %s%s", d->label, 100.0 * (double)p->done / (double)p->total, d->progress.note,
                 time);
    d->interval = 2 * d->interval < longest_interval ? 2 * d->interval : longest_interval;
    d->next_line = now + d->interval;
}

static bool on_progress(void *user, const qn_hub_progress *p)
{
    struct download *d = user;
    if (!p->file || !p->total || d->quiet)
        return !qn_signals_stop_requested();
    const double now = qn_seconds();
    char done[32], total[32], rate[32];
    if (!d->known || d->part != p->part)
        begin_file(d, p);
    measure_rate(d, p, now);
    const bool terminal = qn_is_terminal(STDERR_FILENO);
    if (terminal || now >= d->next_line)
        snprintf(d->progress.note, sizeof d->progress.note, "%.15s of %.15s  %.15s/s", qn_print_size(done, p->done),
                 qn_print_size(total, p->total), qn_print_size(rate, (uint64_t)d->rate));
    if (!terminal && now >= d->next_line)
        print_line(d, p, now);
    return qn_progress_update(&d->progress, (size_t)p->done, (size_t)p->total);
}

static void on_log(void *user, const char *line)
{
    struct download *d = user;
    if (!d->quiet)
        qn_progress_log(&d->progress, line);
}

typedef qn_status (*get_fn)(const char *name, const qn_hub_params *params, char **path);

static int get(get_fn hub_get, const char *name, bool quiet, char **path)
{
    struct download d = { .quiet = quiet };
    const qn_hub_params params = { .on_log = on_log, .on_progress = on_progress, .user = &d };
    const qn_status status = hub_get(name, &params, path);
    qn_progress_end(&d.progress);
    return status ? qn_cli_fail() : QN_EXIT_DONE;
}

/* Refuses a name that can be neither a file's nor the hub's. Others are paths, which fail when they are opened. */
static int check_path(const char *model)
{
    qn_hub_name name;
    if (qn_hub_is_address(model) && qn_hub_name_parse(model, &name))
        return qn_cli_fail();
    if (!strstr(model, "://") && (strchr(model, '/') || qn_hub_path_is_gguf(model)))
        return QN_EXIT_DONE;
    qn_cli_error("%s: there is no such file, and it is no name of the hub: expected a GGUF file, or OWNER/REPO as in "
                 "prism-ml/Bonsai-8B-gguf (quern list shows the models that are here)",
                 model);
    return QN_EXIT_FAILED;
}

int qn_resolve_model(const char **model, bool quiet)
{
    static char *paths[QN_TEXTS_MAX]; /* live until the program ends; an option takes no more names */
    static size_t n_paths;
    if (!*model || qn_file_exists(*model))
        return QN_EXIT_DONE;
    if (!qn_hub_name_is(*model))
        return check_path(*model);
    char **path = &paths[n_paths];
    const int status = get(qn_hub_find, *model, quiet, path);
    if (status == QN_EXIT_DONE) {
        *model = *path;
        n_paths++;
    }
    return status;
}

int qn_cli_pull(qn_args *args)
{
    qn_hub_name name;
    char *path = NULL;
    if (qn_hub_name_parse(args->operands[0], &name)) {
        qn_cli_error("%s", qn_error_text());
        return QN_EXIT_USAGE;
    }
    const int status = get(qn_hub_pull, args->operands[0], args->quiet, &path);
    if (status == QN_EXIT_DONE) {
        /* A script gets the path as it is; on a terminal, deceptive characters are escaped. */
        if (qn_is_terminal(STDOUT_FILENO))
            qn_print_escaped(stdout, path, strlen(path));
        else
            fputs(path, stdout);
        putchar('\n');
    }
    free(path);
    return status;
}
