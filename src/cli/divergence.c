/* quern perplexity --kl-divergence: models and formats of the KV cache compared with a base, token by token. All are
 * evaluated side by side, a few rows at a time, so that the base is read or evaluated once. */
#include "cli/perplexity.h"

#include "base/memory.h"
#include "cli/kld.h"
#include "cli/logits_file.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include <string.h>

enum { MAX_KV = 8, MAX_MODELS = QN_TEXTS_MAX + 1, KV_BYTES = 16 };

/* A model with a format of the KV cache. */
struct measured {
    const char *path, *kv;
    qn_session *session;
    qn_kld kld;
};

struct comparison {
    qn_model *models[MAX_MODELS];
    const char *paths[MAX_MODELS];
    size_t n_models;
    char kv[MAX_KV][KV_BYTES];
    size_t n_kv;
    struct measured *measured; /* [n_models * n_kv] */
    size_t n_measured;
    /* The base is a file or a model. */
    bool base_is_file;
    qn_logits_reader file;
    qn_model *base_model;
    qn_session *base_session;
    /* The text, in pieces of c tokens. */
    qn_scored_text text;
    const qn_token *tokens;
    size_t c, n_chunks, n_vocab;
    qn_token *piece;               /* [c] */
    float *base_probs, *log_probs; /* [QN_SCORED_ROWS, n_vocab] */
};

/* ---- Options ---- */

/* Splits --kv. */
static int parse_kv(const char *list, struct comparison *k)
{
    for (const char *at = list ? list : "f16";; at++) {
        const size_t length = strcspn(at, ",");
        if (k->n_kv == MAX_KV || length >= KV_BYTES) {
            qn_cli_error(k->n_kv == MAX_KV ? "--kv: more than %d formats" : "--kv: a name is longer than %d characters",
                         k->n_kv == MAX_KV ? MAX_KV : KV_BYTES - 1);
            return QN_EXIT_USAGE;
        }
        memcpy(k->kv[k->n_kv], at, length);
        k->kv[k->n_kv][length] = '\0';
        if (qn_kv_check(k->kv[k->n_kv++])) {
            qn_cli_error("--kv: %s", qn_error_text());
            return QN_EXIT_USAGE;
        }
        at += length;
        if (!*at)
            return QN_EXIT_DONE;
    }
}

static int check_options(const qn_args *args, struct comparison *k)
{
    k->base_is_file = qn_logits_is_file(args->kl_divergence);
    const char *problem = args->save_logits ? "--save-logits: not with --kl-divergence"
                          : k->base_is_file && args->file
                              ? "-f: not with a file of log probabilities, which has its text's tokens"
                          : !k->base_is_file && !args->file ? "-f: no text given, which a model as the base needs"
                                                            : NULL;
    if (problem) {
        qn_cli_error("%s", problem);
        return QN_EXIT_USAGE;
    }
    return parse_kv(args->kv, k);
}

/* ---- Loading ---- */

static int load_model(const qn_args *args, const char *path, qn_model **model, const char **found)
{
    qn_args own = *args;
    own.model = path;
    own.kv = NULL;
    const int status = qn_load_model(&own, false, false, model);
    *found = own.model;
    return status;
}

/* Refuses a model of another vocabulary. */
static int check_vocab(const struct comparison *k, const qn_model *model, const char *path)
{
    const size_t n_vocab = qn_model_get_info(model)->n_vocab;
    if (n_vocab == k->n_vocab)
        return QN_EXIT_DONE;
    qn_cli_error("%s: %zu tokens in the vocabulary, but %s has %zu", path, n_vocab, k->paths[0], k->n_vocab);
    return QN_EXIT_FAILED;
}

static int load_models(const qn_args *args, struct comparison *k)
{
    const char *base_path = args->kl_divergence;
    int status = QN_EXIT_DONE;
    for (size_t i = 0; i <= args->compare.count && status == QN_EXIT_DONE; i++) {
        status = load_model(args, i ? args->compare.at[i - 1] : args->model, &k->models[i], &k->paths[i]);
        if (status != QN_EXIT_DONE)
            break;
        k->n_models++;
        k->n_vocab = qn_model_get_info(k->models[0])->n_vocab;
        status = check_vocab(k, k->models[i], k->paths[i]);
    }
    if (status != QN_EXIT_DONE || k->base_is_file)
        return status;
    status = load_model(args, args->kl_divergence, &k->base_model, &base_path);
    return status == QN_EXIT_DONE ? check_vocab(k, k->base_model, base_path) : status;
}

/* Reads the text's tokens: those of the file, or of -f. */
static int take_text(qn_args *args, struct comparison *k)
{
    if (!k->base_is_file) {
        const int status = qn_read_scored_text(args, k->models[0], &k->text);
        k->tokens = k->text.tokens;
        k->c = (size_t)args->context;
        k->n_chunks = k->text.count / k->c;
        return status;
    }
    if (qn_logits_open(&k->file, args->kl_divergence, k->n_vocab) ||
        qn_tokenize(k->models[0], "", 0, false, true, &k->text.begin, &k->text.n_begin))
        return qn_cli_fail();
    if (qn_args_has(args, offsetof(qn_args, context)) && (size_t)args->context != k->file.n_ctx) {
        qn_cli_error("-c %lld: %s has pieces of %zu tokens", (long long)args->context, args->kl_divergence,
                     k->file.n_ctx);
        return QN_EXIT_FAILED;
    }
    k->tokens = k->file.tokens;
    k->c = k->file.n_ctx;
    k->n_chunks = k->file.n_chunks;
    args->context = (int64_t)k->c;
    return QN_EXIT_DONE;
}

static int open_sessions(const qn_args *args, struct comparison *k)
{
    qn_args own = *args;
    const size_t n_rows = k->n_chunks * qn_logits_rows(k->c);
    if (qn_alloc(&k->measured, k->n_models * k->n_kv, sizeof *k->measured, "statistics") ||
        qn_alloc(&k->piece, k->c, sizeof *k->piece, "tokens") ||
        qn_alloc(&k->base_probs, QN_SCORED_ROWS * k->n_vocab, sizeof *k->base_probs, "logits") ||
        qn_alloc(&k->log_probs, QN_SCORED_ROWS * k->n_vocab, sizeof *k->log_probs, "logits"))
        return qn_cli_fail();
    own.kv = NULL;
    int status = k->base_model ? qn_open_session(&own, k->base_model, 0, &k->base_session) : QN_EXIT_DONE;
    for (size_t i = 0; i < k->n_models * k->n_kv && status == QN_EXIT_DONE; i++) {
        struct measured *m = &k->measured[k->n_measured++];
        *m = (struct measured){ .path = k->paths[i / k->n_kv], .kv = k->kv[i % k->n_kv] };
        if (qn_kld_create(&m->kld, n_rows))
            return qn_cli_fail();
        own.kv = m->kv;
        status = qn_open_session(&own, k->models[i / k->n_kv], 0, &m->session);
    }
    return status;
}

static void free_comparison(struct comparison *k)
{
    qn_signals_session(NULL);
    for (size_t i = 0; i < k->n_measured; i++) {
        qn_session_free(k->measured[i].session);
        qn_kld_free(&k->measured[i].kld);
    }
    qn_session_free(k->base_session);
    qn_logits_close(&k->file);
    qn_free_tokens(k->text.tokens);
    qn_free_tokens(k->text.begin);
    qn_free(k->measured);
    qn_free(k->piece);
    qn_free(k->base_probs);
    qn_free(k->log_probs);
    qn_model_free(k->base_model);
    for (size_t i = 0; i < k->n_models; i++)
        qn_model_free(k->models[i]);
}

/* ---- Evaluation ---- */

/* Evaluates the tokens of a piece before its rows. */
static int begin_piece(qn_session *session, const struct comparison *k)
{
    if (!session)
        return QN_EXIT_DONE;
    qn_signals_session(session);
    return qn_session_truncate(session, 0) || qn_session_eval(session, k->piece, k->c / 2, QN_LOGITS_NONE, NULL)
               ? qn_cli_fail()
               : QN_EXIT_DONE;
}

/* Computes the log probabilities of n rows from position `at` on. */
static int eval_rows(qn_session *session, const struct comparison *k, size_t at, size_t n, float *log_probs)
{
    qn_signals_session(session);
    if (qn_session_eval(session, k->piece + at, n, QN_LOGITS_ALL, log_probs))
        return qn_cli_fail();
    for (size_t i = 0; i < n; i++)
        if (!qn_log_softmax(log_probs + i * k->n_vocab, k->n_vocab, log_probs + i * k->n_vocab)) {
            qn_cli_error("the model's logits at position %zu of a piece are not finite", at + i);
            return QN_EXIT_FAILED;
        }
    return QN_EXIT_DONE;
}

static int read_base(struct comparison *k, size_t at, size_t n)
{
    if (!k->base_is_file)
        return eval_rows(k->base_session, k, at, n, k->base_probs);
    for (size_t i = 0; i < n; i++)
        if (qn_logits_read(&k->file, k->base_probs + i * k->n_vocab))
            return qn_cli_fail();
    return QN_EXIT_DONE;
}

static int measure_rows(struct comparison *k, struct measured *m, size_t at, size_t n)
{
    if (eval_rows(m->session, k, at, n, k->log_probs) != QN_EXIT_DONE)
        return QN_EXIT_FAILED;
    for (size_t i = 0; i < n; i++)
        if (!qn_kld_add(&m->kld, k->base_probs + i * k->n_vocab, k->log_probs + i * k->n_vocab, k->n_vocab,
                        k->piece[at + i + 1])) {
            qn_cli_error("the divergence at position %zu of a piece is not finite", at + i);
            return QN_EXIT_FAILED;
        }
    return QN_EXIT_DONE;
}

static int measure_piece(struct comparison *k, size_t chunk)
{
    memcpy(k->piece, k->tokens + chunk * k->c, k->c * sizeof *k->piece);
    if (k->text.n_begin)
        k->piece[0] = *k->text.begin;
    int status = begin_piece(k->base_session, k);
    for (size_t i = 0; i < k->n_measured && status == QN_EXIT_DONE; i++)
        status = begin_piece(k->measured[i].session, k);
    for (size_t at = k->c / 2, n; at < k->c - 1 && status == QN_EXIT_DONE; at += n) {
        n = k->c - 1 - at < QN_SCORED_ROWS ? k->c - 1 - at : QN_SCORED_ROWS;
        status = read_base(k, at, n);
        for (size_t i = 0; i < k->n_measured && status == QN_EXIT_DONE; i++)
            status = measure_rows(k, &k->measured[i], at, n);
    }
    return status;
}

static int measure_text(struct comparison *k)
{
    int status = QN_EXIT_DONE;
    qn_progress progress;
    qn_progress_begin(&progress, "divergence");
    for (size_t i = 0; i < k->n_chunks && status == QN_EXIT_DONE; i++) {
        status = measure_piece(k, i);
        const qn_kld *first = &k->measured[0].kld;
        snprintf(progress.note, sizeof progress.note, "%.6f",
                 first->divergence_sum / (double)(first->count ? first->count : 1));
        if (!qn_progress_update(&progress, i + 1, k->n_chunks))
            status = QN_EXIT_FAILED;
    }
    qn_progress_end(&progress);
    return status;
}

/* ---- Results ---- */

static void print_row(const struct measured *m, const qn_kld_summary *s)
{
    const float *values = m->kld.divergence;
    const size_t n = m->kld.count;
    printf("%-8s %9.4f %8.4f %9.6f +/- %8.6f %9.6f %9.6f %9.6f %9.6f %7.3f +/- %5.3f  ", m->kv, s->ppl.value,
           s->ratio.value, s->divergence.value, s->divergence.error, qn_kld_percentile(values, n, 0.5),
           qn_kld_percentile(values, n, 0.99), qn_kld_percentile(values, n, 0.999), 100 * s->p_change_rms.value,
           100 * s->same_top.value, 100 * s->same_top.error);
    qn_print_escaped(stdout, m->path, strlen(m->path));
    putchar('\n');
}

static void report(const struct comparison *k)
{
    qn_kld_summary summaries[MAX_MODELS * MAX_KV];
    for (size_t i = 0; i < k->n_measured; i++) {
        struct measured *m = &k->measured[i];
        qn_kld_summarise(&m->kld, &summaries[i]);
        fputs(i ? "\n" : "", stdout);
        qn_print_escaped(stdout, m->path, strlen(m->path));
        printf(", KV cache %s, %zu tokens\n\n", m->kv, m->kld.count);
        qn_kld_print(&m->kld, &summaries[i]);
    }
    if (k->n_measured == 1)
        return;
    printf("\n%-8s %9s %8s %22s %9s %9s %9s %9s %17s  %s\n", "KV", "PPL(Q)", "/base", "mean KLD", "median", "99%",
           "99.9%", "RMS Δp %", "same top p %", "model");
    for (size_t i = 0; i < k->n_measured; i++)
        print_row(&k->measured[i], &summaries[i]);
}

int qn_measure_divergence(qn_args *args)
{
    struct comparison k = { 0 };
    int status = check_options(args, &k);
    if (status == QN_EXIT_DONE)
        status = load_models(args, &k);
    if (status == QN_EXIT_DONE)
        status = take_text(args, &k);
    if (status == QN_EXIT_DONE)
        status = open_sessions(args, &k);
    if (status == QN_EXIT_DONE)
        status = measure_text(&k);
    if (status == QN_EXIT_DONE)
        report(&k);
    free_comparison(&k);
    return status;
}
