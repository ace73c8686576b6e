/* quern logits: writes the logits of given tokens into a file, for tests and other programs to compare. */
#include "base/file.h"
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "base/atomic_file.h"
#include "base/memory.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Parses "1,2,3". False: an error line was printed. */
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
                qn_cli_error("--ids: expected a token id after the last separator");
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

/* The output: a regular file is replaced once it is whole. An existing path that is not a regular file (a pipe, a
 * device) is written directly: renaming would replace it. */
struct output {
    const char *path;
    FILE *file; /* NULL: written through `replaced` */
    qn_atomic_file replaced;
};

static int output_discard(struct output *out, int status)
{
    if (out->file)
        fclose(out->file);
    qn_atomic_file_free(&out->replaced);
    return status;
}

static int output_fail(const struct output *out)
{
    qn_cli_error("%s: %s", out->path, strerror(errno));
    return QN_EXIT_FAILED;
}

/* Whether an existing file may be replaced: if it is empty or looks like logits: 32-bit floats of ordinary magnitude,
 * unlike text and other files. The file that standard output was redirected to (-o /dev/stdout) is the user's
 * choice. */
static bool may_be_logits(const char *path, const qn_file_info *info)
{
    qn_file_info out;
    float values[1024];
    if (info->size == 0)
        return true;
    if (qn_file_describe_fd(STDOUT_FILENO, &out) && qn_file_id_equal(out.identity.id, info->identity.id))
        return true;
    FILE *file = qn_file_stream(path, "r");
    if (!file)
        return false;
    const size_t n = fread(values, sizeof *values, sizeof values / sizeof *values, file);
    fclose(file);
    bool like = n > 0 && info->size % sizeof *values == 0;
    for (size_t i = 0; i < n; i++)
        like = like && (values[i] == 0 || (fabsf(values[i]) > 1e-9f && fabsf(values[i]) < 1e6f));
    return like;
}

static int output_open(const char *path, struct output *out)
{
    qn_file_info info;
    const bool exists = qn_file_describe(path, &info);
    const bool regular = exists && info.kind == QN_FILE_REGULAR; /* links are followed; "/dev/stdout" leads to no path
                                                                  */
    if (regular && !may_be_logits(path, &info)) {
        qn_cli_error("%s: exists and does not hold logits; it is not replaced", path);
        return QN_EXIT_FAILED;
    }
    *out = (struct output){ .path = path, .replaced = { .fd = -1 } };
    if (!exists || regular)
        return qn_atomic_file_create(&out->replaced, path, QN_FILE_SHARED) ? output_discard(out, qn_cli_fail())
                                                                           : QN_EXIT_DONE;
    out->file = qn_file_stream(path, "w");
    return out->file ? QN_EXIT_DONE : output_fail(out);
}

static int output_write(struct output *out, const float *values, size_t n)
{
    if (!out->file)
        return qn_atomic_file_write(&out->replaced, values, n * sizeof *values) ? qn_cli_fail() : QN_EXIT_DONE;
    return fwrite(values, sizeof *values, n, out->file) == n ? QN_EXIT_DONE : output_fail(out);
}

static int output_finish(struct output *out)
{
    if (!out->file)
        return output_discard(out, qn_atomic_file_commit(&out->replaced) ? qn_cli_fail() : QN_EXIT_DONE);
    FILE *file = out->file;
    out->file = NULL;
    return fclose(file) == 0 ? QN_EXIT_DONE : output_fail(out);
}

/* Computes and writes the logits of ids[at] to ids[at + n - 1]. */
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
    return output_write(out, rows, n * n_vocab);
}

static int evaluate(const qn_args *args, qn_model *model, const qn_token *ids, size_t count)
{
    const size_t n_vocab = qn_model_get_info(model)->n_vocab;
    const uint32_t n_ctx_train = qn_model_get_info(model)->n_ctx_train;
    if (count > n_ctx_train) {
        qn_cli_error("--ids: %zu ids, but the model was trained for contexts of %u", count, (unsigned)n_ctx_train);
        return QN_EXIT_FAILED;
    }
    const size_t batch = args->batch && (uint64_t)args->batch < count ? (size_t)args->batch : count;
    size_t n_logits;
    qn_args session_args = *args;
    session_args.batch = 0; /* here it is the number of ids per call, not the rows of a step */
    if (!qn_mul_size(batch, n_vocab, &n_logits)) {
        qn_cli_error("logits of %zu tokens do not fit in memory: use a smaller --batch", batch);
        return QN_EXIT_FAILED;
    }
    qn_session *session = NULL;
    float *rows = NULL;
    struct output out;
    int status = qn_open_session(&session_args, model, (uint32_t)count, &session);
    if (status == QN_EXIT_DONE && qn_alloc(&rows, n_logits, sizeof *rows, "logits"))
        status = qn_cli_fail();
    if (status == QN_EXIT_DONE)
        status = output_open(args->output, &out);
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
        status = status == QN_EXIT_DONE ? output_finish(&out) : output_discard(&out, status);
    }
    qn_free(rows);
    qn_signals_session(NULL);
    qn_session_free(session);
    return status;
}

int qn_cli_logits(qn_args *args)
{
    qn_args_take_model(args, 0);
    if (qn_args_no_more("logits", args, 0) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (!args->ids || !args->output) {
        qn_cli_error("%s", !args->ids ? "--ids: no token ids given" : "-o: no output file given");
        return QN_EXIT_USAGE;
    }
    qn_token *ids;
    size_t count;
    if (!parse_ids(args->ids, &ids, &count)) {
        free(ids);
        return QN_EXIT_USAGE;
    }
    qn_signals_disable_force_quit(); /* the temporary file must be removed; the loop checks for a stop often enough */
    qn_model *model = NULL;
    int status = qn_load_model(args, false, false, &model);
    if (status == QN_EXIT_DONE)
        status = qn_check_output(args, NULL, args->output);
    if (status == QN_EXIT_DONE)
        status = evaluate(args, model, ids, count);
    qn_model_free(model);
    free(ids);
    return status;
}
