/* quern batch: answers a file of requests in OpenAI's batch format, many at a time. The main thread reads and submits;
 * the scheduler's callback thread writes the answers, one per line. */
#include "base/file.h"
#include "base/strings.h"
#include "cli/batch.h"
#include "cli/draft.h"
#include "cli/effort.h"
#include "cli/progress.h"
#include "cli/signals.h"

#include "base/memory.h"
#include "base/utf8.h"
#include "quern/grammar.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* Requests submitted for each one that is evaluated: the queue is never empty, and memory stays bounded. */
enum { AHEAD = 4, LEAST_AHEAD = 128 /* the most requests of a line */ };

typedef struct qn_batch {
    const qn_args *args;
    qn_served served;
    qn_progress progress;
    qn_scheduler *scheduler;
    FILE *in;
    int out;
    size_t most_in_flight;
    qn_batch_set seen, done_ids, done_lines;
    size_t n_answered_before; /* answers in the output of an earlier run */

    pthread_mutex_t lock;   /* protects the members below, and `out` while lines are written */
    pthread_cond_t changed; /* n_in_flight has become less */
    size_t n_in_flight, n_lines, n_finished, n_answers, n_errors, n_skipped;
    uint64_t n_tokens;
    bool has_failed; /* the output cannot be written, there is no memory, or no request can be evaluated any more */
    /* With --ordered: lines of the output that wait for earlier ones. */
    char **waiting; /* [cap_waiting], by line of the input - 1 */
    size_t cap_waiting, n_written;
} qn_batch;

/* ---- Output ---- */

static bool is_stream(const char *path)
{
    return strcmp(path, "-") == 0;
}

static const char *output_name(const qn_args *args)
{
    return is_stream(args->operands[1]) ? "standard output" : args->operands[1];
}

/* Ends the run with an error line, unless it has ended so. The caller holds the lock. */
static void fail(qn_batch *b, const char *what)
{
    if (!b->has_failed)
        qn_cli_error("%s", what);
    b->has_failed = true;
}

/* Writes a line to the output and frees it. The caller holds the lock. */
static void write_line(qn_batch *b, char *line)
{
    if (!b->has_failed && !qn_batch_write(b->out, line)) {
        qn_cli_error("%s: %s", output_name(b->args), strerror(errno));
        b->has_failed = true;
    }
    free(line);
}

/* Stands for a line that was already answered: nothing is written for it. */
static char skipped[] = "";

/* Keeps the line of input line `number` until all lines before it have ended, then writes it. Takes `line` over. The
 * caller holds the lock. */
static void write_in_order(qn_batch *b, size_t number, char *line)
{
    const size_t before = b->cap_waiting;
    if (qn_realloc_array(&b->waiting, &b->cap_waiting, number, sizeof(char *), "lines that wait")) {
        fail(b, qn_error_text());
        if (line != skipped)
            free(line);
        return;
    }
    memset(b->waiting + before, 0, (b->cap_waiting - before) * sizeof(char *));
    b->waiting[number - 1] = line;
    for (; b->n_written < b->cap_waiting && b->waiting[b->n_written]; b->n_written++) {
        if (b->waiting[b->n_written] != skipped)
            write_line(b, b->waiting[b->n_written]);
        b->waiting[b->n_written] = NULL;
    }
}

/* Ends a line of the input. Takes `line` over; NULL: there was no memory for it. Takes the lock. */
static void finish(qn_batch *b, size_t number, char *line)
{
    pthread_mutex_lock(&b->lock);
    b->n_finished++;
    if (!line)
        fail(b, "an answer: not enough memory");
    else if (b->args->ordered)
        write_in_order(b, number, line);
    else if (line != skipped)
        write_line(b, line);
    pthread_mutex_unlock(&b->lock);
}

static void finish_error(qn_batch *b, const qn_batch_job *job, const qn_batch_error *error)
{
    pthread_mutex_lock(&b->lock);
    b->n_errors++;
    pthread_mutex_unlock(&b->lock);
    finish(b, job->line, qn_batch_error_line(job, error));
}

/* ---- Callbacks ---- */

/* Sets the error of a job, unless it has one. Takes the lock. */
static void set_error(qn_batch *b, qn_batch_job *job, const char *code, const char *text)
{
    pthread_mutex_lock(&b->lock);
    if (!job->error.code)
        (void)qn_batch_fail(&job->error, job, code, "%s", text);
    pthread_mutex_unlock(&b->lock);
}

/* Writes the error of a job whose requests have all ended, or its answer unless it was cancelled. */
static void finish_job(qn_batch *b, const qn_batch_job *job)
{
    if (job->error.code) {
        finish_error(b, job, &job->error);
    } else if (!job->is_cancelled) {
        finish(b, job->line, qn_batch_answer(job));
        pthread_mutex_lock(&b->lock);
        b->n_answers++;
        pthread_mutex_unlock(&b->lock);
    }
}

/* Counts n requests that have ended or were not submitted. After the last one the job is finished and freed. */
static void end_requests(qn_batch *b, qn_batch_job *job, size_t n)
{
    pthread_mutex_lock(&b->lock);
    job->n_left -= n;
    const bool is_last = !job->n_left;
    pthread_mutex_unlock(&b->lock);
    if (is_last) {
        finish_job(b, job);
        qn_batch_job_free(job);
        qn_free(job);
    }
    pthread_mutex_lock(&b->lock);
    b->n_in_flight -= n;
    pthread_cond_signal(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

/* Hands an event to the protocol. Without the lock: the callbacks of a job come one at a time. */
static bool pass(qn_batch_slot *slot, const qn_exchange_event *event)
{
    qn_exchange *exchange = slot->job->exchange;
    exchange->protocol->event(exchange, slot->index, event, NULL);
    return !exchange->has_failed;
}

static bool on_prompt_token(void *user, size_t index, qn_token token, const qn_logprobs *logprobs)
{
    return pass(
        user, &(qn_exchange_event){ .kind = QN_EXCHANGE_PROMPT, .index = index, .token = token, .logprobs = logprobs });
}

static bool on_text(void *user, const char *text, size_t length)
{
    return pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_TEXT, .text = text, .length = length });
}

static bool on_event(void *user, const qn_output_event *event)
{
    return pass(user, &(qn_exchange_event){ .kind = QN_EXCHANGE_OUTPUT, .output = event });
}

static bool on_token(void *user, qn_token token, const qn_logprobs *logprobs)
{
    qn_batch_slot *slot = user;
    qn_batch *b = slot->job->batch;
    const bool has_memory =
        pass(slot, &(qn_exchange_event){ .kind = QN_EXCHANGE_TOKEN, .token = token, .logprobs = logprobs });
    pthread_mutex_lock(&b->lock);
    b->n_tokens++;
    const bool go_on = !b->has_failed && has_memory;
    pthread_mutex_unlock(&b->lock);
    return go_on;
}

/* Whether every later request fails, too: after a failure of the GPU or of the model's file. */
static bool fails_all(qn_status status)
{
    return status == QN_ERR_DEVICE || status == QN_ERR_IO;
}

/* Ends the batch with an error. The job is not written: --resume answers it. */
static void stop(qn_batch *b, qn_batch_job *job, const char *text)
{
    pthread_mutex_lock(&b->lock);
    fail(b, text);
    job->is_cancelled = true;
    pthread_mutex_unlock(&b->lock);
}

static void on_end(void *user, const qn_request_result *result)
{
    qn_batch_slot *slot = user;
    qn_batch_job *job = slot->job;
    qn_batch *b = job->batch;
    const bool has_failed = !pass(slot, &(qn_exchange_event){ .kind = QN_EXCHANGE_END, .result = result });
    if (result->finish == QN_FINISH_ERROR && fails_all(result->status)) {
        stop(b, job, result->error);
    } else if (result->finish == QN_FINISH_ERROR || has_failed) {
        set_error(b, job, "failed", *result->error ? result->error : "not enough memory for its answer");
    } else if (qn_is_cancelled(result)) {
        pthread_mutex_lock(&b->lock);
        job->is_cancelled = true;
        pthread_mutex_unlock(&b->lock);
    }
    end_requests(b, job, 1);
}

/* ---- Input ---- */

static bool is_finished(const qn_batch *b, const qn_batch_job *job)
{
    char number[24];
    snprintf(number, sizeof number, "%zu", job->line);
    return (job->custom_id && qn_batch_set_has(&b->done_ids, job->custom_id)) ||
           qn_batch_set_has(&b->done_lines, number);
}

static void skip(qn_batch *b, const qn_batch_job *job)
{
    pthread_mutex_lock(&b->lock);
    b->n_skipped++;
    pthread_mutex_unlock(&b->lock);
    finish(b, job->line, skipped);
}

/* Waits until at most `most` requests are in flight, with a progress line. False: Ctrl-C or a failure. */
static bool wait_for(qn_batch *b, size_t most)
{
    qn_progress *progress = &b->progress;
    struct timespec until;
    bool go_on = true;
    pthread_mutex_lock(&b->lock);
    for (;;) {
        const double seconds = qn_seconds() - progress->started;
        snprintf(progress->note, sizeof progress->note, "%.1f tok/s",
                 seconds > 0 ? (double)b->n_tokens / seconds : 0.0);
        go_on = qn_progress_update(progress, b->n_finished, b->n_lines) && !b->has_failed;
        if (!go_on || b->n_in_flight <= most)
            break;
        clock_gettime(CLOCK_REALTIME, &until);
        until.tv_nsec += 100000000;
        until.tv_sec += until.tv_nsec / 1000000000;
        until.tv_nsec %= 1000000000;
        pthread_cond_timedwait(&b->changed, &b->lock, &until);
    }
    pthread_mutex_unlock(&b->lock);
    return go_on;
}

/* Submits the requests of a job, which then belongs to their callbacks. */
static void submit(qn_batch *b, qn_batch_job *job)
{
    const size_t n = job->exchange->n_requests;
    qn_bytes none = { 0 };
    qn_submit_refusal refused = QN_SUBMIT_REFUSAL_INIT;
    qn_refusal refusal;
    job->batch = b;
    job->n_left = n;
    pthread_mutex_lock(&b->lock);
    b->n_in_flight += n;
    pthread_mutex_unlock(&b->lock);
    job->exchange->protocol->begin(job->exchange, &none);
    for (size_t i = 0; i < n; i++) {
        qn_request_params *params = &job->exchange->requests[i];
        job->slots[i] = (qn_batch_slot){ job, i };
        params->on_text = job->exchange->has_events ? NULL : on_text;
        params->on_event = job->exchange->has_events ? on_event : NULL;
        params->on_prompt_token = on_prompt_token;
        params->on_token = on_token;
        params->on_end = on_end;
        params->user = &job->slots[i];
    }
    const qn_status status = qn_scheduler_submit_all(b->scheduler, job->exchange->requests, n, NULL, &refused);
    if (status == QN_OK)
        return;
    qn_exchange_refuse_status(&b->served, status, refused.n_prompt, &refusal);
    set_error(b, job, refusal.code ? refusal.code : "invalid_request", refusal.message);
    end_requests(b, job, n);
}

/* Reads one line of the input. False: the run cannot continue. */
static bool take_line(qn_batch *b, const char *text, size_t length, size_t number)
{
    qn_batch_job *job;
    qn_batch_error error;
    bool failed = false, is_new = true;
    if (qn_alloc(&job, 1, sizeof *job, "request"))
        return qn_cli_fail() == QN_EXIT_DONE;
    job->line = number;
    const bool is_valid = qn_batch_parse(text, length, job, &error);
    if (job->custom_id)
        is_new = qn_batch_set_add(&b->seen, job->custom_id, &failed);
    if (is_finished(b, job)) {
        skip(b, job);
    } else if (!is_new && !failed) {
        (void)qn_batch_fail(&error, job, QN_BATCH_DUPLICATE, "an earlier line has the custom_id '%s'", job->custom_id);
        finish_error(b, job, &error);
    } else if (!is_valid || !qn_batch_bind(job, &b->served, &error)) {
        finish_error(b, job, &error);
    } else if (!failed && wait_for(b, b->most_in_flight - job->exchange->n_requests)) {
        submit(b, job);
        return true;
    } else {
        failed = true;
    }
    qn_batch_job_free(job);
    qn_free(job);
    return !failed;
}

static bool is_blank(const char *text)
{
    return !text[strspn(text, " \t\r\n")];
}

/* Reads the next line; its length is negative at the end of the file. A byte order mark before the first line is
 * skipped. */
static ssize_t next_line(qn_batch *b, char **line, size_t *capacity, size_t number)
{
    ptrdiff_t n = qn_getline(line, capacity, b->in);
    const size_t mark = n > 0 && number == 1 ? qn_utf8_mark(*line, (size_t)n) : 0;
    if (mark) {
        n -= (ssize_t)mark;
        memmove(*line, *line + mark, (size_t)n + 1);
    }
    return n;
}

static const char *input_name(const qn_batch *b)
{
    return is_stream(b->args->operands[0]) ? "standard input" : b->args->operands[0];
}

/* Counts the lines that hold requests, for the progress. A pipe cannot be read twice, and has no progress. */
static bool count_lines(qn_batch *b)
{
    qn_file_info info;
    if (!qn_file_describe_fd(fileno(b->in), &info) || info.kind != QN_FILE_REGULAR)
        return true;
    char *line = NULL;
    size_t capacity = 0;
    for (size_t number = 1; next_line(b, &line, &capacity, number) >= 0; number++)
        b->n_lines += !is_blank(line);
    free(line);
    if (ferror(b->in) || fseek(b->in, 0, SEEK_SET)) {
        qn_cli_error("%s: %s", input_name(b), strerror(errno));
        return false;
    }
    return true;
}

static bool run_all(qn_batch *b)
{
    char *line = NULL;
    size_t capacity = 0, number = 0;
    bool go_on = true;
    for (ssize_t n; go_on && (n = next_line(b, &line, &capacity, ++number)) >= 0;) {
        const bool blank = is_blank(line);
        if (blank && b->args->ordered) {
            pthread_mutex_lock(&b->lock);
            write_in_order(b, number, skipped);
            pthread_mutex_unlock(&b->lock);
        }
        if (!blank)
            go_on = wait_for(b, b->most_in_flight) && take_line(b, line, (size_t)n, number);
    }
    free(line);
    return go_on && wait_for(b, 0);
}

/* ---- The command ---- */

static void print_summary(qn_batch *b, double seconds)
{
    qn_scheduler_counters c = QN_SCHEDULER_COUNTERS_INIT;
    (void)qn_scheduler_get_counters(b->scheduler, &c);
    if (!b->args->quiet)
        qn_cli_error(
            "note: %zu answers, %zu errors, %zu already there; %llu tokens in %.1f s, %.1f tok/s; %llu of %llu prompt "
            "tokens reused",
            b->n_answers, b->n_errors, b->n_skipped, (unsigned long long)b->n_tokens, seconds,
            seconds > 0 ? (double)b->n_tokens / seconds : 0.0, (unsigned long long)c.reused_tokens,
            (unsigned long long)c.prompt_tokens);
}

/* Whether the run has an answer. One without a single answer has failed: its lines are probably not requests. */
static bool has_answers(const qn_batch *b)
{
    if (b->n_answers || b->n_answered_before || !(b->n_errors || b->n_skipped))
        return true;
    qn_cli_error("%s: none of its %zu requests was answered; see %s for the errors", input_name(b),
                 b->n_errors + b->n_skipped, output_name(b->args));
    return false;
}

static int run(qn_batch *b, qn_model *model)
{
    const qn_args *args = b->args;
    const uint32_t sequences = (uint32_t)args->sequences;
    const size_t ahead = (size_t)AHEAD * sequences;
    const char *const kv = qn_choose_kv(args, model);
    qn_capacity capacity = QN_CAPACITY_INIT;
    if (qn_model_get_capacity(model, kv, 1, &capacity))
        return qn_cli_fail();
    b->most_in_flight = ahead > LEAST_AHEAD ? ahead : LEAST_AHEAD;
    const qn_scheduler_params params = { .size = sizeof(qn_scheduler_params),
                                         .kv = kv,
                                         .n_ctx = qn_choose_context(args, model, &capacity),
                                         .max_sequences = sequences,
                                         .max_queued = (uint32_t)b->most_in_flight,
                                         .max_rows = (uint32_t)args->batch,
                                         .prefix_states = args->prefix_cache == QN_BYTES_OFF ? 0 : args->prefix_cache,
                                         .no_prefix_cache = args->prefix_cache == QN_BYTES_OFF,
                                         .prefix_host = args->prefix_host == QN_BYTES_OFF ? 0 : args->prefix_host,
                                         .no_prefix_host = args->prefix_host == QN_BYTES_OFF,
                                         .on_log = args->quiet ? NULL : qn_cli_log_note,
                                         .draft = qn_find_draft(args) };
    b->served = (qn_served){ .model = model,
                             .n_ctx = params.n_ctx,
                             .max_tokens = -1,
                             .sampling = (qn_sampling)QN_SAMPLING_INIT,
                             .effort = qn_choose_effort(b->args, model),
                             .thinking = qn_choose_thinking(b->args),
                             .reasoning_budget = b->args->reasoning_budget };
    b->served.sampling.temperature = 1; /* as OpenAI's, without filters */
    b->served.sampling.top_k = 0;
    b->served.sampling.top_p = 1;
    b->served.sampling.min_p = 0;
    if (!count_lines(b))
        return QN_EXIT_FAILED;
    (void)qn_grammar_prepare(model); /* an error returns with the first constrained request */
    if (qn_scheduler_create(model, &params, &b->scheduler))
        return qn_cli_fail();
    qn_progress_begin(&b->progress, "batch");
    const bool done = run_all(b);
    const double seconds = qn_seconds() - b->progress.started;
    qn_progress_end(&b->progress);
    if (done)
        print_summary(b, seconds);
    qn_scheduler_free(b->scheduler);
    return done && !b->has_failed && has_answers(b) ? QN_EXIT_DONE : QN_EXIT_FAILED;
}

static int check_args(qn_args *args)
{
    qn_args_take_model(args, 2);
    if (args->n_operands < 2) {
        qn_cli_error("batch: too few arguments: expected IN.jsonl and OUT.jsonl (see quern batch --help)");
        return QN_EXIT_USAGE;
    }
    if (qn_args_no_more("batch", args, 2) != QN_ARGS_OK || qn_check_draft(args) != QN_EXIT_DONE)
        return QN_EXIT_USAGE;
    if (!is_stream(args->operands[1]))
        return qn_check_output(args, args->operands[0], args->operands[1]);
    if (args->resume) {
        qn_cli_error("--resume: the answers before are read from OUT, which is standard output: expected a file");
        return QN_EXIT_USAGE;
    }
    return QN_EXIT_DONE;
}

static int open_files(qn_batch *b)
{
    const qn_args *args = b->args;
    b->in = is_stream(args->operands[0]) ? stdin : qn_file_stream(args->operands[0], "r");
    if (!b->in) {
        qn_cli_error("%s: %s", args->operands[0], strerror(errno));
        return QN_EXIT_FAILED;
    }
    if (is_stream(args->operands[1])) {
        b->out = STDOUT_FILENO;
        return QN_EXIT_DONE;
    }
    b->out = qn_batch_open(args->operands[1], args->resume, &b->done_ids, &b->done_lines, &b->n_answered_before);
    return b->out < 0 ? QN_EXIT_FAILED : QN_EXIT_DONE;
}

void qn_batch_defaults(qn_args *args)
{
    args->reasoning_budget = -1;
}

int qn_cli_batch(qn_args *args)
{
    qn_batch b = { .args = args, .out = -1, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER };
    qn_model *model = NULL;
    int status = check_args(args);
    if (status == QN_EXIT_DONE)
        status = open_files(&b);
    if (status == QN_EXIT_DONE)
        status = qn_load_model(args, false, true, &model);
    if (status == QN_EXIT_DONE)
        status = run(&b, model);
    qn_model_free(model);
    for (size_t i = 0; i < b.cap_waiting; i++)
        if (b.waiting[i] != skipped)
            free(b.waiting[i]);
    free(b.waiting);
    qn_batch_set_free(&b.seen);
    qn_batch_set_free(&b.done_ids);
    qn_batch_set_free(&b.done_lines);
    if (b.in && b.in != stdin)
        fclose(b.in);
    if (b.out > STDERR_FILENO && close(b.out)) {
        qn_cli_error("%s: %s", output_name(args), strerror(errno));
        return QN_EXIT_FAILED;
    }
    return status;
}
