/* What the subcommands share: their entry points, exit statuses, the one way to print an error, text that is safe to show on a
 * terminal, files read whole, and the options that every subcommand with a model takes. */
#ifndef QN_CLI_CLI_H
#define QN_CLI_CLI_H

#include "cli/args.h"
#include "quern/quern.h"

#include <stdio.h>

enum { QN_EXIT_DONE = 0, QN_EXIT_FAILED = 1, QN_EXIT_USAGE = 2 };

/* The subcommands: argv[0] is the name; the result is the exit status. */
int qn_cli_run(int argc, char **argv);
int qn_cli_chat(int argc, char **argv);
int qn_cli_bench(int argc, char **argv);
int qn_cli_perplexity(int argc, char **argv);
int qn_cli_tokenize(int argc, char **argv);
int qn_cli_logits(int argc, char **argv);
int qn_cli_info(int argc, char **argv);
int qn_cli_quantize(int argc, char **argv);
int qn_cli_kernels(int argc, char **argv);

/* qn_cli_error - "quern: " and the text on one line of standard error, control characters made harmless. */
void qn_cli_error(const char *format, ...) QN_PRINTF(1, 2);

/* qn_cli_fail - qn_cli_error with what the library had to say, or nothing when the user asked to stop; QN_EXIT_FAILED. */
int qn_cli_fail(void);

/* ---- Text on its way out ---- */

/* qn_print_escaped - bytes as one line can show them: well-formed UTF-8 as it is, control characters and everything else as
 * \n, \t or \xNN; a backslash doubled. */
void qn_print_escaped(FILE *stream, const char *bytes, size_t length);

/* qn_print_text - text as a reader wants it: unchanged into a file or pipe; on a terminal without the control characters that
 * could drive it (newline and tab stay). */
void qn_print_text(FILE *stream, const char *text, size_t length);

/* qn_print_size - "231.4 MiB" into a buffer of at least 32 bytes, which it returns. */
const char *qn_print_size(char *buffer, uint64_t bytes);

/* qn_out_flush - push out what was written to standard output; false when that failed for good, because the reader has gone
 * away or otherwise. */
bool qn_out_flush(void);

/* qn_out_finish - the exit status after the last output: `status`, or QN_EXIT_FAILED with an error line when standard output
 * could not be written. A reader that went away has what it wanted and is no failure. */
int qn_out_finish(int status);

/* ---- Input ---- */

/* qn_read_all - a whole file, or standard input for path NULL, at most `limit` bytes of it; free() the text. The text has a
 * terminating zero beyond its length. False with an error line. */
bool qn_read_all(const char *path, uint64_t limit, char **text, size_t *length);

/* ---- The model ---- */

typedef struct qn_model_args {
    const char *model;
    bool or_demo; /* without a model, the one that comes with quern serves */
    int64_t threads, context, batch;
    const char *kv, *device;
    const char *load, *save; /* files of sessions, or NULL */
} qn_model_args;

extern const char *const qn_kv_names[];

/* The rows of an option table that belong to every subcommand with a model. */
#define QN_MODEL_OPTION(args) QN_OPT_TEXT("-m", "--model", &(args).model, "FILE", "the model, a GGUF file")
#define QN_THREADS_OPTION(args)                                                                                                \
    QN_OPT_INT("-t", "--threads", &(args).threads, "N", 1, 1024, "threads (default: physical cores)")
#define QN_CONTEXT_OPTION(args)                                                                                                \
    QN_OPT_INT("-c", "--ctx", &(args).context, "N", 1, 1 << 30, "context: tokens held (default: the model's, at most 4096)")
#define QN_SAVE_OPTIONS(args)                                                                                                  \
    QN_OPT_TEXT("--load", NULL, &(args).load, "FILE", "go on with the conversation in this file"),                             \
        QN_OPT_TEXT("--save", NULL, &(args).save, "FILE", "write the conversation to this file at the end")
#define QN_DEVICE_OPTION(args)                                                                                                 \
    QN_OPT_TEXT("--device", NULL, &(args).device, "NAME", "cpu, cuda, cuda:N (the N-th GPU, from 0) or auto (default auto)")
#define QN_EVAL_OPTIONS(args)                                                                                                  \
    QN_OPT_INT("--batch", NULL, &(args).batch, "N", 1, 4096, "rows a step works on (default 128; 2048 on a GPU)"),             \
        QN_OPT_CHOICE("--kv", NULL, &(args).kv, "TYPE", qn_kv_names, "cache format (default f16)"), QN_DEVICE_OPTION(args)

/* qn_load_model - load args->model with a progress display; where it is not set and args->or_demo is, the model that comes with
 * quern, and a note says which. Returns QN_EXIT_DONE, or the exit status with an error line printed. `quiet` drops log and
 * note. The device is checked here. */
int qn_load_model(const qn_model_args *args, bool vocab_only, bool quiet, qn_model **model);

/* qn_open_session - a session of args' context (or `context`, when the user gave none), cache format and batch; the one in the
 * file args->load, if that is set. It keeps one checkpoint. Returns as qn_load_model. The caller frees it with qn_session_free.
 */
int qn_open_session(const qn_model_args *args, qn_model *model, uint32_t context, qn_session **session);

/* qn_save_session - into the file args->save, if that is set. Signals wait from then on. Returns as qn_load_model. */
int qn_save_session(const qn_model_args *args, const qn_session *session);

/* ---- Sampling ---- */

typedef struct qn_sampling_args {
    double temperature, top_p, min_p, repeat_penalty;
    int64_t top_k, repeat_last_n;
    uint64_t seed;
} qn_sampling_args;

#define QN_SAMPLING_OPTIONS(args)                                                                                              \
    QN_OPT_NUMBER("--temp", NULL, &(args).temperature, "T", 0, 1e6, "temperature (default 0.8); 0 is greedy"),                 \
        QN_OPT_INT("--top-k", NULL, &(args).top_k, "K", 0, INT32_MAX,                                                          \
                   "keep the K likeliest tokens (default 40); 0 keeps all"),                                                   \
        QN_OPT_NUMBER("--top-p", NULL, &(args).top_p, "P", 1e-9, 1, "keep tokens up to this probability (default 0.95)"),      \
        QN_OPT_NUMBER("--min-p", NULL, &(args).min_p, "P", 0, 0.999999,                                                        \
                      "drop tokens below P times the likeliest (default 0.05)"),                                               \
        QN_OPT_NUMBER("--repeat-penalty", NULL, &(args).repeat_penalty, "X", 1e-3, 1e3,                                        \
                      "make recent tokens less likely (default 1: off)"),                                                      \
        QN_OPT_INT("--repeat-last-n", NULL, &(args).repeat_last_n, "N", 0, INT32_MAX,                                          \
                   "how many recent tokens that looks at (default 64)"),                                                       \
        QN_OPT_U64("--seed", NULL, &(args).seed, "S", "seed of the draw (default: a new one each time)")

/* qn_sampling_args_defaults - the library's defaults, with a seed of its own each time. */
qn_sampling_args qn_sampling_args_defaults(void);
qn_sampling qn_sampling_from_args(const qn_sampling_args *args);

/* qn_peak_rss - the most memory this process ever had resident, in bytes. */
uint64_t qn_peak_rss(void);

/* qn_seconds - a clock that never goes back. */
double qn_seconds(void);

#endif
