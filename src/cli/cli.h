/* Shared by the commands: their entry points, exit statuses, error lines, text that is safe to show on a terminal,
 * whole files, and the way from the command line to a model, a session and sampling parameters. */
#ifndef QN_CLI_CLI_H
#define QN_CLI_CLI_H

#include "cli/args.h"
#include "quern/quern.h"

#include <stdio.h>

enum { QN_EXIT_DONE = 0, QN_EXIT_FAILED = 1, QN_EXIT_USAGE = 2 };

/* The commands. Each returns the exit status. */
int qn_cli_run(qn_args *args);
int qn_cli_chat(qn_args *args);
int qn_cli_batch(qn_args *args);
int qn_cli_bench(qn_args *args);
int qn_cli_bench_serve(qn_args *args);
int qn_cli_serve(qn_args *args);
int qn_cli_perplexity(qn_args *args);
int qn_cli_tokenize(qn_args *args);
int qn_cli_logits(qn_args *args);
int qn_cli_info(qn_args *args);
int qn_cli_quantize(qn_args *args);
int qn_cli_kernels(qn_args *args);
int qn_cli_devices(qn_args *args);
int qn_cli_convert(qn_args *args);
int qn_cli_graft(qn_args *args);
int qn_cli_pull(qn_args *args);
int qn_cli_list(qn_args *args);
int qn_cli_rm(qn_args *args);

/* Set the defaults of a command's options. */
void qn_run_defaults(qn_args *args);
void qn_chat_defaults(qn_args *args);
void qn_bench_defaults(qn_args *args);
void qn_bench_serve_defaults(qn_args *args);
void qn_serve_defaults(qn_args *args);
void qn_batch_defaults(qn_args *args);
void qn_perplexity_defaults(qn_args *args);

enum { QN_BENCH_MAX_REPETITIONS = 1000 };

/* qn_cli_error - print "quern: " and a text as one line on standard error; control characters are made harmless. */
void qn_cli_error(const char *format, ...) QN_PRINTF(1, 2);

/* qn_cli_note - print "quern: note: " and a text, from any thread of a server. Without blocking: a pipe that nobody
 * reads loses notes, and the next note says how many. */
void qn_cli_note(const char *format, ...) QN_PRINTF(1, 2);

/* qn_cli_log_note - a qn_log_fn that calls qn_cli_note. */
void qn_cli_log_note(void *unused, const char *line);

/* qn_cli_fail - print qn_error_text() with qn_cli_error, or nothing after Ctrl-C. Returns QN_EXIT_FAILED. */
int qn_cli_fail(void);

/* ---- Output ---- */

/* qn_print_escaped - print bytes on one line: valid UTF-8 as it is, control characters and all other bytes as \n, \t or
 * \xNN, a backslash doubled. */
void qn_print_escaped(FILE *stream, const char *bytes, size_t length);

/* qn_print_text - print a text: unchanged into a file or pipe; on a terminal without control characters other than
 * newline and tab. */
void qn_print_text(FILE *stream, const char *text, size_t length);

/* qn_print_size - write a size as "231.4 MiB" into a buffer of at least 32 bytes; returns the buffer. */
const char *qn_print_size(char *buffer, uint64_t bytes);

/* qn_out_flush - flush standard output. False: it cannot be written any more, because the reader has closed it or after
 * an error. */
bool qn_out_flush(void);

/* qn_out_finish - returns the exit status after the last output: `status`, or QN_EXIT_FAILED with an error line if
 * standard output could not be written. A reader that closed it is no failure. */
int qn_out_finish(int status);

/* ---- Input ---- */

/* qn_read_all - read a whole file, or standard input for path NULL, at most `limit` bytes; free() the text. A zero byte
 * follows it. False: an error line was printed. */
bool qn_read_all(const char *path, uint64_t limit, char **text, size_t *length);

/* qn_read_option - read the value of an option that is either a text or a file's name: `is_text` says which. *name is
 * what error lines name. free() the text. As qn_read_all. */
bool qn_read_option(const char *option, const char *value, bool is_text, uint64_t limit, char **text, size_t *length,
                    const char **name);

/* qn_is_json_object - whether the value of an option is a JSON object rather than a file's name: it begins with '{'. */
bool qn_is_json_object(const char *value);

/* qn_read_text - read a file as a C string; a file with a NUL character is an error, too. */
bool qn_read_text(const char *path, char **text);

/* qn_begins_as_gguf - whether a file can be read and begins with GGUF's magic number. */
bool qn_begins_as_gguf(const char *path);

/* ---- The model ---- */

extern const char *const qn_kv_names[];
extern const char *const qn_json_spaces[], *const qn_json_orders[]; /* in the order of their enums */
extern const char *const qn_jumps[];                                /* in the order of its enum */

/* qn_resolve_model - if *model is not a file but a name of the hub (hub/name.h), replace it by the path of that model
 * in the cache; a model that is not there is downloaded. The path is valid until the program ends. `quiet` drops the
 * progress display and the log. Returns as qn_load_model. */
int qn_resolve_model(const char **model, bool quiet);

/* qn_load_model - load args->model with a progress display. If it is NULL and `demo_fallback` is set, load the demo
 * model, whose path goes to args->model and into a note. args->quiet drops the log and the note; args->verbose adds a
 * line about the memory. Also checks the device (qn_device_name_select). Returns QN_EXIT_DONE, or the exit status after
 * an error line. */
int qn_load_model(qn_args *args, bool vocab_only, bool demo_fallback, qn_model **model);

/* qn_find_model - before anything is loaded, check that args->model is a file that can be opened and
 * args->chat_template a template. Otherwise as qn_load_model with `demo_fallback`. */
int qn_find_model(qn_args *args);

/* qn_check_template - check that args->chat_template, if given, can be read and is a template; if it is not a regular
 * file, it is read later. Returns as qn_load_model. */
int qn_check_template(const qn_args *args);

/* qn_check_device - get the device that args or the environment choose, as a name for qn_model_params, and whether it
 * is the CPU, as far as that is known before a model is loaded. Returns as qn_load_model. */
int qn_check_device(const qn_args *args, const char **name, bool *is_cpu);

/* In chat: after the messages of the last prompt, for the next prompt and /regen; and of the one before, for /edit. */
enum { QN_SESSION_CHECKPOINTS = 2 };

/* qn_choose_kv - the format of the KV cache: --kv; NULL, the default of f16, if the memory holds the tokens of -c in it
 * (without -c the training context, at most 32768); else the first of aura8 and aura4 that holds them, or that holds
 * most. Prints a note if it is not f16. */
const char *qn_choose_kv(const qn_args *args, qn_model *model);

/* qn_choose_context - the context of a scheduler's requests: -c or the training context, at most what the memory holds
 * (quern.h, qn_session_params.n_ctx). Prints a note if that is less than wanted, or more than in training. */
uint32_t qn_choose_context(const qn_args *args, const qn_model *model, const qn_capacity *capacity);

/* qn_open_session - open a session with the context of args (`context` if none was given), the cache format and batch;
 * or the session in the file args->load. It keeps QN_SESSION_CHECKPOINTS checkpoints. Prints a note if the context is
 * longer than the model's training context. Returns as qn_load_model. The caller frees the session with
 * qn_session_free. */
int qn_open_session(const qn_args *args, qn_model *model, uint32_t context, qn_session **session);

/* qn_check_save - before anything is evaluated, check that a session may and can be saved to args->save, if set: a
 * trial file is created there and removed. Returns as qn_load_model. */
int qn_check_save(const qn_args *args);

/* qn_save_session - save the session to args->save, if set; if that fails, to a file in the folder for temporary files,
 * whose name is printed. From then on a second signal does not end the program. Returns as qn_load_model. */
int qn_save_session(const qn_args *args, const qn_session *session);

/* ---- Files that commands write ---- */

/* qn_check_output_name - whether a path is a file's: "-", elsewhere standard output, is not. False: an error line was
 * printed. */
bool qn_check_output_name(const char *path);

/* qn_check_output - check that `path` may be written: it has a file's name and is neither the model nor args->file nor
 * `input`, another file that the command reads (or NULL), nor the file that standard input comes from. Compares device
 * and inode, so that links are recognised. Returns QN_EXIT_DONE, or QN_EXIT_FAILED after an error line. */
int qn_check_output(const qn_args *args, const char *input, const char *path);

/* qn_may_replace_model - whether a command that writes models may write `path`: a new file, an empty one or a GGUF
 * file. False: an error line was printed. */
bool qn_may_replace_model(const char *path);

/* ---- Sampling ---- */

/* qn_sampling_args_defaults - set the library's defaults, with a new random seed. */
void qn_sampling_args_defaults(qn_args *args);

/* qn_breaker_texts - returns DRY's breakers [*n]: those of --dry-sequence-breaker, or the defaults. */
const char *const *qn_breaker_texts(const qn_args *args, size_t *n);

/* qn_check_breakers - returns QN_EXIT_DONE, or QN_EXIT_USAGE after an error line if a breaker is empty or too long. */
int qn_check_breakers(const qn_args *args);

/* qn_load_breakers - if DRY is on, set the breakers of args->sampling; the caller frees them with qn_free_tokens.
 * Returns as qn_load_model. */
int qn_load_breakers(qn_args *args, const qn_model *model, qn_token **breakers);

/* qn_check_stops - returns QN_EXIT_DONE, or QN_EXIT_USAGE after an error line if a --stop is empty. */
int qn_check_stops(const qn_args *args);

/* qn_peak_rss - returns the peak resident memory of this process, in bytes. */
uint64_t qn_peak_rss(void);

/* qn_seconds - returns seconds of a clock that never goes back. */
double qn_seconds(void);

#endif
