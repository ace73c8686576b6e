/* quern run: a prompt in, text out. */
#include "cli/cli.h"
#include "cli/generate.h"
#include "cli/turn.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct run {
    qn_model_args model;
    qn_sampling_args sampling;
    const char *prompt, *file, *system;
    int64_t n_predict;
    qn_texts stop;
    bool chat, ignore_end, quiet;
};

static const char purpose[] =
    "Reads the prompt and goes on with it until the model ends its text, N tokens are made, or the context is full.\n"
    "The prompt comes from -p, from a file, or from standard input. Only generated text goes to standard output; a line\n"
    "with the speed goes to standard error. Ctrl-C stops.";

static qn_args_result parse(struct run *run, int argc, char **argv)
{
    const qn_option options[] = {
        QN_MODEL_OPTION(run->model),
        QN_OPT_TEXT("-p", "--prompt", &run->prompt, "TEXT", "the prompt"),
        QN_OPT_TEXT("-f", "--file", &run->file, "FILE", "read the prompt from a file; - is standard input"),
        QN_OPT_INT("-n", "--predict", &run->n_predict, "N", -1, INT32_MAX, "new tokens at most (default -1: no limit)"),
        QN_OPT_FLAG("--chat", NULL, &run->chat, "the prompt is a user's turn in the model's chat format"),
        QN_OPT_TEXT("--system", NULL, &run->system, "TEXT", "with --chat: the system's turn before it"),
        QN_CONTEXT_OPTION(run->model),
        QN_THREADS_OPTION(run->model),
        QN_SAVE_OPTIONS(run->model),
        QN_SAMPLING_OPTIONS(run->sampling),
        QN_OPT_TEXTS("--stop", NULL, &run->stop, "TEXT", "stop where this text appears; may be repeated"),
        QN_OPT_FLAG("--ignore-eos", NULL, &run->ignore_end, "go on past the end of the text"),
        QN_EVAL_OPTIONS(run->model),
        QN_OPT_FLAG("-q", "--quiet", &run->quiet, "no notes and no speed line"),
    };
    const qn_command_line line = {
        .usage = "run [-m MODEL] -p PROMPT [options]",
        .purpose = purpose,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    const qn_args_result result = qn_args_parse(&line, argc, argv);
    if (result != QN_ARGS_OK)
        return result;
    if (run->prompt && run->file) {
        qn_cli_error("-p and -f: only one prompt can be given");
        return QN_ARGS_BAD;
    }
    if (run->system && !run->chat) {
        qn_cli_error("--system: needs --chat");
        return QN_ARGS_BAD;
    }
    if (run->system && run->model.load) {
        qn_cli_error("--system: the conversation of --load has begun already");
        return QN_ARGS_BAD;
    }
    for (size_t i = 0; i < run->stop.count; i++)
        if (!*run->stop.at[i]) {
            qn_cli_error("--stop: the text is empty");
            return QN_ARGS_BAD;
        }
    if (!run->prompt && !run->file && !run->model.load && isatty(STDIN_FILENO)) {
        qn_cli_error("-p: no prompt given; use -p TEXT, -f FILE or standard input");
        return QN_ARGS_BAD;
    }
    return QN_ARGS_OK;
}

/* What to evaluate where the session goes on without anything new: the token that is pending, or else the last one that it
 * holds once more, for its logits; the shortest way back to those may be a few tokens longer. */
static bool resume_tokens(qn_session *session, qn_token **tokens, size_t *count)
{
    const uint32_t length = qn_session_length(session);
    uint32_t keep = length;
    qn_token pending;
    const bool has_pending = qn_session_pending(session, &pending);
    if (!has_pending)
        keep = qn_session_reach(session, length - 1);
    const size_t n = has_pending ? 1 : length - keep;
    *tokens = malloc(n * sizeof **tokens);
    if (!*tokens) {
        qn_cli_error("no memory for %zu tokens", n);
        return false;
    }
    memcpy(*tokens, has_pending ? &pending : qn_session_tokens(session) + keep, n * sizeof **tokens);
    *count = n;
    if (qn_session_truncate(session, keep) == QN_OK)
        return true;
    free(*tokens);
    qn_cli_fail();
    return false;
}

/* A text after what the session holds and what is pending, unless that is the end, which the text now goes past. */
static qn_status text_tokens(qn_session *session, const qn_model *model, const char *text, size_t length, qn_token **tokens,
                             size_t *count)
{
    const bool begins = !qn_session_length(session);
    qn_token pending;
    if (qn_session_pending(session, &pending) && !qn_token_is_end(model, pending)) {
        const qn_status status = qn_session_eval(session, &pending, 1, QN_LOGITS_NONE, NULL);
        if (status)
            return status;
    }
    return qn_tokenize(model, text, length, true, begins, tokens, count);
}

static bool prompt_tokens(const struct run *run, const qn_model *model, qn_session *session, qn_token **tokens, size_t *count)
{
    char *read = NULL;
    const char *text = run->prompt;
    size_t length = text ? strlen(text) : 0;
    const bool resumes = run->model.load && qn_session_length(session);
    if (!text && !(resumes && !run->file && isatty(STDIN_FILENO))) {
        const bool from_stdin = !run->file || strcmp(run->file, "-") == 0;
        if (!qn_read_all(from_stdin ? NULL : run->file, UINT64_MAX, &read, &length))
            return false;
        text = read;
    }
    qn_status status = QN_OK;
    if (resumes && !length) {
        free(read);
        return resume_tokens(session, tokens, count);
    }
    if (run->chat && memchr(text, 0, length)) {
        free(read);
        qn_cli_error("--chat: the prompt holds a zero byte, which a chat message cannot");
        return false;
    }
    if (run->chat)
        status = qn_turn_tokens(session, model, run->system, text, tokens, count);
    else
        status = text_tokens(session, model, text, length, tokens, count);
    free(read);
    if (status) {
        qn_cli_fail();
        return false;
    }
    if (*count == 0) {
        qn_free_tokens(*tokens);
        qn_cli_error("the prompt is empty, and this model needs at least one token to begin with");
        return false;
    }
    return true;
}

static double rate(size_t n, double seconds)
{
    return n && seconds > 0 ? (double)n / seconds : 0;
}

static const char *reason_text(qn_stop_reason reason)
{
    switch (reason) {
    case QN_STOP_END: return "end of text";
    case QN_STOP_STRING: return "stop text";
    case QN_STOP_LENGTH: return "token limit";
    case QN_STOP_CONTEXT: return "context full";
    case QN_STOP_CALLBACK: return "output closed";
    case QN_STOP_CANCELLED: return "interrupted";
    }
    return "";
}

static void print_stats(const struct run *run, const qn_generate_result *result)
{
    char peak[32];
    /* The first new token comes out of the prompt's evaluation: the time measured covers the others. */
    const size_t n_timed = result->n_generated > 1 ? result->n_generated - 1 : 0;
    fprintf(stderr, "quern: prompt %zu tokens, %.1f tok/s; generated %zu tokens, %.1f tok/s; peak memory %s; seed %llu; %s\n",
            result->n_prompt, rate(result->n_prompt, result->prompt_seconds), result->n_generated,
            rate(n_timed, result->generate_seconds), qn_print_size(peak, qn_peak_rss()), (unsigned long long)run->sampling.seed,
            reason_text(result->reason));
}

static int generate(const struct run *run, const qn_model *model, qn_session *session)
{
    qn_token *tokens;
    size_t count;
    if (!prompt_tokens(run, model, session, &tokens, &count))
        return QN_EXIT_FAILED;
    qn_generate_params params = qn_generate_defaults();
    params.sampling = qn_sampling_from_args(&run->sampling);
    params.max_tokens = run->n_predict;
    params.ignore_end = run->ignore_end;
    params.stop = run->stop.at;
    params.n_stop = run->stop.count;
    qn_stream stream;
    qn_generate_result result = { 0 };
    const qn_status status = qn_stream_generate(session, tokens, count, params, &stream, &result);
    qn_free_tokens(tokens);
    if (!stream.broken && !stream.ends_line && isatty(STDOUT_FILENO))
        putchar('\n');
    if (status)
        return qn_cli_fail();
    if (!run->quiet && !stream.broken)
        print_stats(run, &result);
    return qn_save_session(&run->model, session);
}

int qn_cli_run(int argc, char **argv)
{
    struct run run = { .model.or_demo = true, .sampling = qn_sampling_args_defaults(), .n_predict = -1 };
    const qn_args_result parsed = parse(&run, argc, argv);
    if (parsed != QN_ARGS_OK)
        return qn_args_exit(parsed);
    qn_model *model;
    int status = qn_load_model(&run.model, false, run.quiet, &model);
    if (status)
        return status;
    qn_session *session;
    status = qn_open_session(&run.model, model, 0, &session);
    if (status == QN_EXIT_DONE) {
        status = generate(&run, model, session);
        qn_session_free(session);
    }
    qn_model_free(model);
    return status;
}
