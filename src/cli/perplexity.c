/* quern perplexity: how well a model predicts a text. */
#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "base/memory.h"

#include <math.h>
#include <stdlib.h>

/* Rows of logits held at once: enough for a full step, and 40 MB for the largest vocabularies. */
enum { ROWS = 64 };

struct score {
    double sum, sum_of_squares; /* of -log p */
    uint64_t count;
};

void qn_perplexity_defaults(qn_args *args)
{
    args->context = 512;
}

/* -log p of `token`; NaN if the logits are not sound. Without the largest logit the terms cannot overflow, and float
 * exp is accurate to 1e-7 of each; only the sum needs double. */
static double nll(const float *logits, size_t n_vocab, qn_token token)
{
    float largest = -INFINITY;
    for (size_t i = 0; i < n_vocab; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    double sum = 0;
    for (size_t i = 0; i < n_vocab; i++)
        sum += (double)expf(logits[i] - largest);
    return log(sum) - ((double)logits[token] - (double)largest);
}

/* Scores one piece of c tokens. */
static int score_chunk(qn_session *session, const qn_token *tokens, size_t c, size_t n_vocab, float *logits,
                       struct score *score)
{
    const size_t first = c / 2 - 1; /* this token is not scored, but predicts the first scored one */
    if (qn_session_truncate(session, 0) || qn_session_eval(session, tokens, first, QN_LOGITS_NONE, NULL))
        return qn_cli_fail();
    /* The last token of a piece predicts a token outside it and is not evaluated. */
    for (size_t at = first; at < c - 1;) {
        const size_t n = c - 1 - at < ROWS ? c - 1 - at : ROWS;
        if (qn_session_eval(session, tokens + at, n, QN_LOGITS_ALL, logits))
            return qn_cli_fail();
        for (size_t i = 0; i < n; i++) {
            const double s = nll(logits + i * n_vocab, n_vocab, tokens[at + i + 1]);
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

static int score_text(qn_session *session, qn_token *tokens, size_t count, size_t c, size_t n_vocab,
                      const qn_token *begin)
{
    float *logits;
    if (qn_alloc(&logits, ROWS * n_vocab, sizeof *logits, "logits"))
        return qn_cli_fail();
    const size_t n_chunks = count / c;
    struct score score = { 0 };
    int status = QN_EXIT_DONE;
    qn_progress progress;
    qn_progress_begin(&progress, "perplexity");
    for (size_t i = 0; i < n_chunks && status == QN_EXIT_DONE; i++) {
        if (begin)
            tokens[i * c] = *begin;
        status = score_chunk(session, tokens + i * c, c, n_vocab, logits, &score);
        snprintf(progress.note, sizeof progress.note, "%.4f", exp(score.sum / (double)(score.count ? score.count : 1)));
        if (!qn_progress_update(&progress, i + 1, n_chunks))
            status = QN_EXIT_FAILED;
    }
    qn_progress_end(&progress);
    qn_free(logits);
    if (status == QN_EXIT_DONE)
        report(&score);
    return status;
}

static int measure(const qn_args *args, qn_model *model)
{
    char *text;
    size_t length;
    const bool from_stdin = args->file[0] == '-' && !args->file[1];
    if (!qn_read_all(from_stdin ? NULL : args->file, args->limit_bytes ? (uint64_t)args->limit_bytes : UINT64_MAX,
                     &text, &length))
        return QN_EXIT_FAILED;
    qn_token *begin = NULL, *tokens = NULL;
    size_t n_begin, count;
    qn_session *session = NULL;
    const size_t c = (size_t)args->context;
    int status = QN_EXIT_DONE;
    if (qn_tokenize(model, "", 0, false, true, &begin, &n_begin) ||
        qn_tokenize(model, text, length, false, true, &tokens, &count))
        status = qn_cli_fail();
    free(text);
    if (status == QN_EXIT_DONE && count < c) {
        qn_cli_error("%s: %zu tokens are fewer than one piece of %zu (-c)", args->file, count, c);
        status = QN_EXIT_FAILED;
    }
    if (status == QN_EXIT_DONE)
        status = qn_open_session(args, model, 0, &session);
    qn_signals_session(session);
    if (status == QN_EXIT_DONE)
        status = score_text(session, tokens, count, c, qn_model_get_info(model)->n_vocab, n_begin ? begin : NULL);
    qn_signals_session(NULL);
    qn_session_free(session);
    qn_free_tokens(tokens);
    qn_free_tokens(begin);
    return status;
}

int qn_cli_perplexity(qn_args *args)
{
    qn_args_take_model(args, 0);
    if (qn_args_no_more("perplexity", args, 0) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (args->model && !args->file) {
        qn_cli_error("-f: no text given");
        return QN_EXIT_USAGE;
    }
    qn_model *model;
    int status = qn_load_model(args, false, false, &model);
    if (status == QN_EXIT_DONE)
        status = measure(args, model);
    qn_model_free(model);
    return status;
}
