/* quern perplexity: how well a model predicts a text. */
#include "cli/perplexity.h"

#include "base/file.h"
#include "base/memory.h"
#include "cli/kld.h"
#include "cli/logits_file.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include <math.h>
#include <string.h>

struct score {
    double sum, sum_of_squares; /* of -log p */
    uint64_t count;
};

/* A text being scored. */
struct scoring {
    qn_session *session;
    size_t c, n_vocab;
    float *logits;            /* [QN_SCORED_ROWS, n_vocab] */
    qn_logits_writer *writer; /* NULL: log probabilities are not saved */
    struct score score;
};

void qn_perplexity_defaults(qn_args *args)
{
    args->context = 512;
}

/* Scores the token after position `at` of a piece. */
static int score_row(struct scoring *s, const float *logits, size_t at, qn_token next)
{
    const double nll = qn_log_sum_exp(logits, s->n_vocab) - (double)logits[next];
    if (!isfinite(nll)) {
        qn_cli_error("the model's logits at position %zu of a piece are not finite", at);
        return QN_EXIT_FAILED;
    }
    s->score.sum += nll;
    s->score.sum_of_squares += nll * nll;
    s->score.count++;
    /* The file's rows begin one position later than those scored here. */
    return s->writer && at >= s->c / 2 && qn_logits_write(s->writer, logits) ? qn_cli_fail() : QN_EXIT_DONE;
}

/* Scores one piece of c tokens. */
static int score_chunk(struct scoring *s, const qn_token *tokens)
{
    const size_t first = s->c / 2 - 1; /* this token is not scored, but predicts the first scored one */
    if (qn_session_truncate(s->session, 0) || qn_session_eval(s->session, tokens, first, QN_LOGITS_NONE, NULL))
        return qn_cli_fail();
    /* The last token of a piece predicts a token outside it and is not evaluated. */
    for (size_t at = first; at < s->c - 1;) {
        const size_t n = s->c - 1 - at < QN_SCORED_ROWS ? s->c - 1 - at : QN_SCORED_ROWS;
        if (qn_session_eval(s->session, tokens + at, n, QN_LOGITS_ALL, s->logits))
            return qn_cli_fail();
        for (size_t i = 0; i < n; i++)
            if (score_row(s, s->logits + i * s->n_vocab, at + i, tokens[at + i + 1]) != QN_EXIT_DONE)
                return QN_EXIT_FAILED;
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

static int score_chunks(struct scoring *s, const qn_scored_text *text)
{
    const size_t n_chunks = text->count / s->c;
    int status = QN_EXIT_DONE;
    qn_progress progress;
    qn_progress_begin(&progress, "perplexity");
    for (size_t i = 0; i < n_chunks && status == QN_EXIT_DONE; i++) {
        if (text->n_begin)
            text->tokens[i * s->c] = *text->begin;
        status = score_chunk(s, text->tokens + i * s->c);
        snprintf(progress.note, sizeof progress.note, "%.4f",
                 exp(s->score.sum / (double)(s->score.count ? s->score.count : 1)));
        if (!qn_progress_update(&progress, i + 1, n_chunks))
            status = QN_EXIT_FAILED;
    }
    qn_progress_end(&progress);
    return status;
}

static int score_text(const qn_args *args, qn_session *session, size_t n_vocab, const qn_scored_text *text)
{
    struct scoring s = { .session = session, .c = (size_t)args->context, .n_vocab = n_vocab };
    qn_logits_writer writer = { .file.fd = -1 };
    int status = QN_EXIT_DONE;
    if (qn_alloc(&s.logits, QN_SCORED_ROWS * n_vocab, sizeof *s.logits, "logits"))
        return qn_cli_fail();
    if (args->save_logits) {
        s.writer = &writer;
        status = qn_logits_create(&writer, args->save_logits, s.c, n_vocab, text->count / s.c, text->tokens)
                     ? qn_cli_fail()
                     : QN_EXIT_DONE;
    }
    if (status == QN_EXIT_DONE)
        status = score_chunks(&s, text);
    if (status == QN_EXIT_DONE && s.writer && qn_logits_commit(&writer))
        status = qn_cli_fail();
    qn_logits_writer_free(&writer);
    qn_free(s.logits);
    if (status == QN_EXIT_DONE)
        report(&s.score);
    return status;
}

static int measure(const qn_args *args, qn_model *model)
{
    qn_scored_text text;
    qn_session *session = NULL;
    int status = qn_read_scored_text(args, model, &text);
    if (status == QN_EXIT_DONE)
        status = qn_open_session(args, model, 0, &session);
    qn_signals_session(session);
    if (status == QN_EXIT_DONE)
        status = score_text(args, session, qn_model_get_info(model)->n_vocab, &text);
    qn_signals_session(NULL);
    qn_session_free(session);
    qn_free_tokens(text.tokens);
    qn_free_tokens(text.begin);
    return status;
}

/* Checks, without a base, what only a comparison takes. */
static int check_alone(const qn_args *args)
{
    if (args->compare.count)
        qn_cli_error("--compare: needs --kl-divergence BASE");
    else if (args->kv && strchr(args->kv, ','))
        qn_cli_error("--kv: several formats need --kl-divergence BASE");
    else if (args->model && !args->file)
        qn_cli_error("-f: no text given");
    else if (args->kv && qn_kv_check(args->kv))
        qn_cli_error("--kv: %s", qn_error_text());
    else
        return QN_EXIT_DONE;
    return QN_EXIT_USAGE;
}

/* Whether --save-logits may write its file: a new or an empty one, or one of log probabilities. */
static bool may_save_logits(const qn_args *args)
{
    qn_file_info info;
    if (qn_check_output(args, NULL, args->save_logits) != QN_EXIT_DONE)
        return false;
    if (!qn_file_describe(args->save_logits, &info) || info.size == 0 || qn_logits_is_file(args->save_logits))
        return true;
    qn_cli_error("%s: exists and does not hold log probabilities; it is not replaced", args->save_logits);
    return false;
}

int qn_cli_perplexity(qn_args *args)
{
    qn_args_take_model(args, 0);
    if (qn_args_no_more("perplexity", args, 0) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (args->kl_divergence)
        return qn_measure_divergence(args);
    if (check_alone(args) != QN_EXIT_DONE)
        return QN_EXIT_USAGE;
    qn_model *model = NULL;
    if (args->save_logits)
        qn_signals_disable_force_quit(); /* the temporary file must be removed; pieces check for a stop */
    int status = qn_load_model(args, false, false, &model);
    if (status == QN_EXIT_DONE && args->save_logits && !may_save_logits(args))
        status = QN_EXIT_FAILED;
    if (status == QN_EXIT_DONE)
        status = measure(args, model);
    qn_model_free(model);
    return status;
}
