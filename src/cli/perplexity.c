/* quern perplexity: how well a model predicts a text. */
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* Rows of logits that are held at once: enough to keep a step busy, and 40 MB for the largest vocabularies. */
enum { ROWS = 64 };

struct perplexity {
    qn_model_args model;
    const char *file;
    int64_t limit_bytes;
};

struct score {
    double sum, sum_of_squares; /* of -log p */
    uint64_t count;
};

static const char purpose[] = "Splits the text into pieces of -c tokens that do not overlap, reads each from an empty context, "
                              "and scores the second half of\n"
                              "each: tokens c/2 to c-1, counted from 0, each predicted from all those before it in its piece. "
                              "A rest shorter than a piece is\n"
                              "left out. Where the model asks for a beginning-of-text token, it replaces the first token of "
                              "every piece. Special tokens written\n"
                              "in the text are plain text. Prints \"perplexity: X +/- Y (N tokens)\": exp of the mean of -log "
                              "p, its standard error, and how\n"
                              "many tokens were scored.";

static qn_args_result parse(struct perplexity *p, int argc, char **argv)
{
    const qn_option options[] = {
        QN_MODEL_OPTION(p->model),
        QN_OPT_TEXT("-f", "--file", &p->file, "TEXT", "the text; - is standard input"),
        QN_OPT_INT("-c", "--ctx", &p->model.context, "N", 8, 1 << 30, "tokens in a piece (default 512)"),
        QN_OPT_INT("--limit-bytes", NULL, &p->limit_bytes, "N", 1, 1e15, "read only the first N bytes of the text"),
        QN_THREADS_OPTION(p->model),
        QN_EVAL_OPTIONS(p->model),
    };
    const qn_command_line line = {
        .usage = "perplexity -m MODEL -f TEXT [options]",
        .purpose = purpose,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    const qn_args_result result = qn_args_parse(&line, argc, argv);
    if (result == QN_ARGS_OK && p->model.model && !p->file) {
        qn_cli_error("-f: no text given");
        return QN_ARGS_BAD;
    }
    return result;
}

/* -log p of `token`; NaN when the logits are not sound. Terms are far from overflow once the largest is taken off, and a float
 * exp is good to 1e-7 of each: the sum needs the double. */
static double surprise(const float *logits, size_t n_vocab, qn_token token)
{
    float largest = -INFINITY;
    for (size_t i = 0; i < n_vocab; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    double sum = 0;
    for (size_t i = 0; i < n_vocab; i++)
        sum += (double)expf(logits[i] - largest);
    return log(sum) - ((double)logits[token] - (double)largest);
}

/* One piece of c tokens. */
static int score_piece(qn_session *session, const qn_token *tokens, size_t c, size_t n_vocab, float *logits,
                       struct score *score)
{
    const size_t first = c / 2 - 1; /* the last token that is not scored predicts the first that is */
    if (qn_session_truncate(session, 0) || qn_session_eval(session, tokens, first, QN_LOGITS_NONE, NULL))
        return qn_cli_fail();
    /* The last token of a piece predicts one that is not in it: it is not read. */
    for (size_t at = first; at < c - 1;) {
        const size_t n = c - 1 - at < ROWS ? c - 1 - at : ROWS;
        if (qn_session_eval(session, tokens + at, n, QN_LOGITS_ALL, logits))
            return qn_cli_fail();
        for (size_t i = 0; i < n; i++) {
            const double s = surprise(logits + i * n_vocab, n_vocab, tokens[at + i + 1]);
            if (!isfinite(s)) {
                qn_cli_error("the model's logits at position %zu of a piece are not finite", at + i);
                return QN_EXIT_FAILED;
            }
            score->sum += s;
            score->sum_of_squares += s * s;
            score->count++;
        }
        at += n;
    }
    return QN_EXIT_DONE;
}

static void report(const struct score *score)
{
    const double n = (double)score->count;
    const double mean = score->sum / n;
    const double variance = score->sum_of_squares / n - mean * mean;
    const double error = n > 1 && variance > 0 ? exp(mean) * sqrt(variance / (n - 1)) : 0;
    printf("perplexity: %.4f +/- %.4f (%llu tokens)\n", exp(mean), error, (unsigned long long)score->count);
}

static int score_text(qn_session *session, qn_token *tokens, size_t count, size_t c, size_t n_vocab, const qn_token *begin)
{
    float *logits;
    if (qn_alloc(&logits, ROWS * n_vocab, sizeof *logits, "logits"))
        return qn_cli_fail();
    const size_t n_pieces = count / c;
    struct score score = { 0 };
    int status = QN_EXIT_DONE;
    qn_progress progress;
    qn_progress_begin(&progress, "perplexity");
    for (size_t i = 0; i < n_pieces && status == QN_EXIT_DONE; i++) {
        if (begin)
            tokens[i * c] = *begin;
        status = score_piece(session, tokens + i * c, c, n_vocab, logits, &score);
        snprintf(progress.note, sizeof progress.note, "%.4f", exp(score.sum / (double)(score.count ? score.count : 1)));
        if (!qn_progress_update(&progress, i + 1, n_pieces))
            status = QN_EXIT_FAILED;
    }
    qn_progress_end(&progress);
    qn_free(logits);
    if (status == QN_EXIT_DONE)
        report(&score);
    return status;
}

static int measure(const struct perplexity *p, qn_model *model)
{
    char *text;
    size_t length;
    const bool from_stdin = p->file[0] == '-' && !p->file[1];
    if (!qn_read_all(from_stdin ? NULL : p->file, p->limit_bytes ? (uint64_t)p->limit_bytes : UINT64_MAX, &text, &length))
        return QN_EXIT_FAILED;
    qn_token *begin = NULL, *tokens = NULL;
    size_t n_begin, count;
    qn_session *session = NULL;
    const size_t c = (size_t)p->model.context;
    int status = QN_EXIT_DONE;
    if (qn_tokenize(model, "", 0, false, true, &begin, &n_begin) ||
        qn_tokenize(model, text, length, false, true, &tokens, &count))
        status = qn_cli_fail();
    free(text);
    if (status == QN_EXIT_DONE && count < c) {
        qn_cli_error("%s: %zu tokens are less than one piece of %zu (-c)", p->file, count, c);
        status = QN_EXIT_FAILED;
    }
    if (status == QN_EXIT_DONE)
        status = qn_open_session(&p->model, model, 0, &session);
    qn_signals_session(session);
    if (status == QN_EXIT_DONE)
        status = score_text(session, tokens, count, c, qn_model_get_info(model).n_vocab, n_begin ? begin : NULL);
    qn_signals_session(NULL);
    qn_session_free(session);
    qn_free_tokens(tokens);
    qn_free_tokens(begin);
    return status;
}

int qn_cli_perplexity(int argc, char **argv)
{
    struct perplexity p = { .model = { .context = 512 } };
    const qn_args_result parsed = parse(&p, argc, argv);
    if (parsed != QN_ARGS_OK)
        return qn_args_exit(parsed);
    qn_model *model;
    int status = qn_load_model(&p.model, false, false, &model);
    if (status == QN_EXIT_DONE)
        status = measure(&p, model);
    qn_model_free(model);
    return status;
}
