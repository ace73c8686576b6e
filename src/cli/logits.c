/* quern logits: the logits of given tokens, raw, into a file. What tests and other programs compare. */
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct logits {
    qn_model_args model;
    const char *ids, *out;
    int64_t batch;
};

static const char purpose[] = "Writes little-endian f32 logits, [n_ids, n_vocab], row i for what follows ids 0 to i. --batch "
                              "gives the ids to the model N at\n"
                              "a time; that never changes a bit of the result. The file appears whole or not at all. Logits "
                              "that are not finite are an error.";

static qn_args_result parse(struct logits *l, int argc, char **argv)
{
    const qn_option options[] = {
        QN_MODEL_OPTION(l->model),
        QN_OPT_TEXT("--ids", NULL, &l->ids, "1,2,3", "token ids, separated by commas or spaces"),
        QN_OPT_TEXT("-o", "--output", &l->out, "FILE", "where the logits go"),
        QN_OPT_INT("--batch", NULL, &l->batch, "N", 1, INT32_MAX, "ids given at a time (default: all)"),
        QN_CONTEXT_OPTION(l->model),
        QN_THREADS_OPTION(l->model),
        QN_OPT_CHOICE("--kv", NULL, &l->model.kv, "TYPE", qn_kv_names, "cache format (default f16)"),
        QN_DEVICE_OPTION(l->model),
    };
    const qn_command_line line = {
        .usage = "logits -m MODEL --ids 1,2,3 -o OUT.f32 [options]",
        .purpose = purpose,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    const qn_args_result result = qn_args_parse(&line, argc, argv);
    if (result == QN_ARGS_OK && (!l->ids || !l->out)) {
        qn_cli_error("%s", !l->ids ? "--ids: no token ids given" : "-o: no output file given");
        return QN_ARGS_BAD;
    }
    return result;
}

/* "1,2,3" to ids; false with an error line. */
static bool parse_ids(const char *text, qn_token **ids, size_t *count)
{
    size_t capacity = 0;
    *ids = NULL;
    *count = 0;
    text += strspn(text, " ");
    for (const char *at = text; *at;) {
        char *end;
        const unsigned long id = strtoul(at, &end, 10);
        if (*at < '0' || *at > '9') {
            qn_cli_error("--ids: '%.20s' does not begin with a token id", at);
            return false;
        }
        if (id > INT32_MAX) {
            qn_cli_error("--ids: '%.20s' begins with a number larger than any token id", at);
            return false;
        }
        if (qn_realloc_array(ids, &capacity, *count + 1, sizeof **ids, "token ids")) {
            qn_cli_fail();
            return false;
        }
        (*ids)[(*count)++] = (qn_token)id;
        at = end + strspn(end, " ");
        if (*at == ',') {
            at += 1 + strspn(at + 1, " ");
            if (!*at) {
                qn_cli_error("--ids: nothing follows the last separator");
                return false;
            }
        } else if (*at && at == end) {
            qn_cli_error("--ids: '%.20s' is not a separator", at);
            return false;
        }
    }
    if (!*count)
        qn_cli_error("--ids: no token ids given");
    return *count > 0;
}

/* The output: a temporary file beside the target that is renamed onto it when whole. What exists and is no regular file (a
 * pipe, a device) is written straight: renaming would replace it. */
struct output {
    char *target, *temporary; /* temporary is NULL when writing straight */
    FILE *file;
};

static void output_discard(struct output *out)
{
    if (out->file)
        fclose(out->file);
    if (out->temporary)
        unlink(out->temporary);
    free(out->temporary);
    free(out->target);
    *out = (struct output){ 0 };
}

static int output_fail(struct output *out)
{
    qn_cli_error("%s: %s", out->target, strerror(errno));
    output_discard(out);
    return QN_EXIT_FAILED;
}

static bool same_file(const char *a, const char *b)
{
    struct stat status_a, status_b;
    return !stat(a, &status_a) && !stat(b, &status_b) && status_a.st_dev == status_b.st_dev &&
           status_a.st_ino == status_b.st_ino;
}

static int output_open(const char *path, struct output *out)
{
    struct stat status;
    const bool exists = stat(path, &status) == 0;
    const bool regular = exists && S_ISREG(status.st_mode); /* a link is followed; "/dev/stdout" leads to no path */
    *out = (struct output){ .target = regular ? realpath(path, NULL) : strdup(path) };
    if (!out->target) {
        qn_cli_error("%s: %s", path, strerror(errno));
        return QN_EXIT_FAILED;
    }
    if (exists && !regular) {
        out->file = fopen(out->target, "wb");
        return out->file ? QN_EXIT_DONE : output_fail(out);
    }
    const size_t room = strlen(out->target) + sizeof ".XXXXXX";
    out->temporary = malloc(room);
    if (!out->temporary)
        return output_fail(out);
    snprintf(out->temporary, room, "%s.XXXXXX", out->target);
    const int fd = mkstemp(out->temporary);
    if (fd < 0) {
        free(out->temporary);
        out->temporary = NULL;
        return output_fail(out);
    }
    const mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, exists ? status.st_mode & 07777 : 0666 & ~mask); /* mkstemp's own 0600 is for secrets */
    out->file = fdopen(fd, "wb");
    if (!out->file) {
        close(fd);
        return output_fail(out);
    }
    return QN_EXIT_DONE;
}

static int output_finish(struct output *out)
{
    const bool written = fflush(out->file) == 0 && (!out->temporary || fsync(fileno(out->file)) == 0);
    const int saved_errno = errno;
    const bool closed = fclose(out->file) == 0;
    out->file = NULL;
    if (!written)
        errno = saved_errno;
    if (!written || !closed || (out->temporary && rename(out->temporary, out->target)))
        return output_fail(out);
    free(out->temporary);
    free(out->target);
    return QN_EXIT_DONE;
}

/* The logits of ids[at] to ids[at + n - 1], computed and written. */
static int write_rows(qn_session *session, const qn_token *ids, size_t at, size_t n, size_t n_vocab, float *rows,
                      struct output *out)
{
    if (qn_session_eval(session, ids + at, n, QN_LOGITS_ALL, rows))
        return qn_cli_fail();
    for (size_t i = 0; i < n * n_vocab; i++)
        if (!isfinite(rows[i])) {
            qn_cli_error("the logit of token %zu at position %zu is not finite", i % n_vocab, at + i / n_vocab);
            return QN_EXIT_FAILED;
        }
    if (fwrite(rows, sizeof *rows, n * n_vocab, out->file) != n * n_vocab) {
        qn_cli_error("%s: %s", out->target, strerror(errno));
        return QN_EXIT_FAILED;
    }
    return QN_EXIT_DONE;
}

static int evaluate(const struct logits *l, qn_model *model, const qn_token *ids, size_t count)
{
    const size_t n_vocab = qn_model_get_info(model).n_vocab;
    const uint32_t n_ctx_train = qn_model_get_info(model).n_ctx_train;
    if (count > n_ctx_train) {
        qn_cli_error("--ids: %zu ids, the model was made for contexts of %u", count, (unsigned)n_ctx_train);
        return QN_EXIT_FAILED;
    }
    if (same_file(l->model.model, l->out)) {
        qn_cli_error("%s: it is the model itself", l->out);
        return QN_EXIT_FAILED;
    }
    const size_t batch = l->batch && (uint64_t)l->batch < count ? (size_t)l->batch : count;
    size_t n_logits;
    if (!qn_mul_size(batch, n_vocab, &n_logits)) {
        qn_cli_error("logits of %zu tokens do not fit in memory: use a smaller --batch", batch);
        return QN_EXIT_FAILED;
    }
    qn_session *session = NULL;
    float *rows = NULL;
    struct output out;
    int status = qn_open_session(&l->model, model, (uint32_t)count, &session);
    if (status == QN_EXIT_DONE && qn_alloc(&rows, n_logits, sizeof *rows, "logits"))
        status = qn_cli_fail();
    if (status == QN_EXIT_DONE)
        status = output_open(l->out, &out);
    if (status == QN_EXIT_DONE) {
        qn_signals_session(session);
        qn_progress progress;
        qn_progress_begin(&progress, "logits");
        for (size_t at = 0; at < count && status == QN_EXIT_DONE; at += batch) {
            status = write_rows(session, ids, at, count - at < batch ? count - at : batch, n_vocab, rows, &out);
            if (!qn_progress_update(&progress, at, count))
                status = QN_EXIT_FAILED;
        }
        qn_progress_end(&progress);
        if (status == QN_EXIT_DONE)
            status = output_finish(&out);
        else
            output_discard(&out);
    }
    qn_free(rows);
    qn_signals_session(NULL);
    qn_session_free(session);
    return status;
}

int qn_cli_logits(int argc, char **argv)
{
    struct logits l = { 0 };
    const qn_args_result parsed = parse(&l, argc, argv);
    if (parsed != QN_ARGS_OK)
        return qn_args_exit(parsed);
    qn_token *ids;
    size_t count;
    if (!parse_ids(l.ids, &ids, &count)) {
        free(ids);
        return QN_EXIT_USAGE;
    }
    qn_signals_patient(); /* the temporary file must go, whatever happens; the loop asks often enough */
    qn_model *model;
    int status = qn_load_model(&l.model, false, false, &model);
    if (status == QN_EXIT_DONE)
        status = evaluate(&l, model, ids, count);
    qn_model_free(model);
    free(ids);
    return status;
}
