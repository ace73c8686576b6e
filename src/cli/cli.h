/* What the commands share: their entry points, exit statuses, the one way to print an error, text that is safe to show on a
 * terminal, files read whole, and the way from the command line to a model, a session and sampling parameters. */
#ifndef QN_CLI_CLI_H
#define QN_CLI_CLI_H

#include "cli/args.h"
#include "quern/quern.h"

#include <stdio.h>

enum { QN_EXIT_DONE = 0, QN_EXIT_FAILED = 1, QN_EXIT_USAGE = 2 };

/* The commands; the result is the exit status. */
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
int qn_cli_convert(qn_args *args);
int qn_cli_pull(qn_args *args);
int qn_cli_list(qn_args *args);
int qn_cli_rm(qn_args *args);

/* What a command's options are where they are not given. */
void qn_run_defaults(qn_args *args);
void qn_chat_defaults(qn_args *args);
void qn_bench_defaults(qn_args *args);
void qn_bench_serve_defaults(qn_args *args);
void qn_serve_defaults(qn_args *args);
void qn_perplexity_defaults(qn_args *args);

enum { QN_BENCH_MAX_REPETITIONS = 1000 };

/* qn_cli_error - "quern: " and the text on one line of standard error, control characters made harmless. */
void qn_cli_error(const char *format, ...) QN_PRINTF(1, 2);

/* qn_cli_note - "quern: note: " and the text likewise, from any thread of a server: a pipe that nobody reads loses notes and
 * makes nobody wait; the next one says how many. */
void qn_cli_note(const char *format, ...) QN_PRINTF(1, 2);

/* qn_cli_log_note - qn_cli_note as a qn_log_fn. */
void qn_cli_log_note(void *unused, const char *line);

/* qn_cli_fail - qn_cli_error with qn_error_text(), or nothing after Ctrl-C. Returns QN_EXIT_FAILED. */
int qn_cli_fail(void);

/* ---- Output ---- */

/* qn_print_escaped - bytes as one line can show them: well-formed UTF-8 as it is, control characters and everything else as
 * \n, \t or \xNN; a backslash doubled. */
void qn_print_escaped(FILE *stream, const char *bytes, size_t length);

/* qn_print_text - text: unchanged into a file or pipe; on a terminal without the control characters that
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

/* qn_read_text - the same of a file that becomes a C string: one with a NUL character is an error, too. */
bool qn_read_text(const char *path, char **text);

/* qn_begins_as_gguf - whether the file can be read and begins with GGUF's magic number. */
bool qn_begins_as_gguf(const char *path);

/* ---- The model ---- */

extern const char *const qn_kv_names[];
extern const char *const qn_json_spaces[], *const qn_json_orders[]; /* as qn_json_space and qn_json_order are */
extern const char *const qn_jumps[];                                /* as qn_jump_forward */

/* qn_resolve_model - make *model, where it is no file and a name of the hub (hub/name.h), the path of that model in the cache,
 * which the program keeps until it ends; downloads what is not there. Returns as qn_load_model. */
int qn_resolve_model(const char **model, bool quiet);

/* qn_load_model - load args->model with a progress display; if it is NULL and `demo_fallback` is set, the demo model,
 * whose path goes to args->model and to a note. Returns QN_EXIT_DONE, or the exit status with an error line printed.
 * args->quiet drops log and note; args->verbose adds a line about the memory. The device is checked here
 * (qn_device_name_select). */
int qn_load_model(qn_args *args, bool vocab_only, bool demo_fallback, qn_model **model);

/* qn_find_model - args->model as a file that can be opened, and args->chat_template as one that is a template, before either is loaded:
 * for the rest as qn_load_model, with `demo_fallback`. */
int qn_find_model(qn_args *args);

/* qn_check_template - whether args->chat_template, if it is given, can be read and is a template; one that is no regular file is read
 * later. Returns as qn_load_model. */
int qn_check_template(const qn_args *args);

/* qn_check_device - the name of the device that args or the environment choose, for qn_model_params, and whether it is the CPU,
 * as far as that is known before a model is loaded. Returns as qn_load_model. */
int qn_check_device(const qn_args *args, const char **name, bool *is_cpu);

/* Of chat: after the messages of the last prompt, for the next one and /regen, and of the one before, for /edit. */
enum { QN_SESSION_CHECKPOINTS = 2 };

/* qn_choose_context - the context of a scheduler's requests: that of args or the one used in training, at most what the memory
 * holds (quern.h, qn_session_params.n_ctx). Prints a note if that is less than was asked for, or more than in training. */
uint32_t qn_choose_context(const qn_args *args, const qn_model *model, const qn_capacity *capacity);

/* qn_open_session - a session of args' context (or `context`, when the user gave none), cache format and batch; the one in the
 * file args->load, if that is set. It keeps QN_SESSION_CHECKPOINTS checkpoints. Prints a note if the context is longer than
 * the model's training context. Returns as qn_load_model. The caller frees it with qn_session_free. */
int qn_open_session(const qn_args *args, qn_model *model, uint32_t context, qn_session **session);

/* qn_check_save - before anything is evaluated: whether a session may and can be saved to args->save, if that is set; a file is
 * begun there and removed. Returns as qn_load_model. */
int qn_check_save(const qn_args *args);

/* qn_save_session - into the file args->save, if that is set; if that fails into one of the folder for temporary files, which is named.
 * Signals wait from then on. Returns as qn_load_model. */
int qn_save_session(const qn_args *args, const qn_session *session);

/* ---- Files that commands write ---- */

/* qn_check_output_name - whether a path is a file's: "-", which elsewhere is standard output, is not. Prints an error line. */
bool qn_check_output_name(const char *path);

/* qn_check_output - whether `path` may be written: it has a file's name, and is not the model, not args->file, not `input`, another file that the command
 * reads, or NULL, and not what standard input is redirected from (by device and inode, so that links are seen through).
 * QN_EXIT_DONE, or QN_EXIT_FAILED with an error line. */
int qn_check_output(const qn_args *args, const char *input, const char *path);

/* qn_may_replace_model - whether a command that writes models may write `path`: a new file, an empty one or a GGUF file. False
 * with an error line. */
bool qn_may_replace_model(const char *path);

/* ---- Sampling ---- */

/* qn_sampling_args_defaults - the library's defaults, with a seed of its own each time. */
void qn_sampling_args_defaults(qn_args *args);

/* qn_breaker_texts - DRY's breakers, [*n]: those of --dry-sequence-breaker, or the defaults. qn_check_breakers - QN_EXIT_DONE, or
 * QN_EXIT_USAGE with an error line where one is empty or too long. qn_load_breakers - where DRY is on they become those of
 * args->sampling, which the caller frees with qn_free_tokens; returns as qn_load_model. */
const char *const *qn_breaker_texts(const qn_args *args, size_t *n);
int qn_check_breakers(const qn_args *args);
int qn_load_breakers(qn_args *args, const qn_model *model, qn_token **breakers);

/* qn_check_stops - QN_EXIT_DONE, or QN_EXIT_USAGE with an error line where a --stop is empty. */
int qn_check_stops(const qn_args *args);

/* qn_peak_rss - the most memory this process ever had resident, in bytes. */
uint64_t qn_peak_rss(void);

/* qn_seconds - a clock that never goes back. */
double qn_seconds(void);

#endif
