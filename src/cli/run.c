/* quern run: generates text from a prompt. */
#include "base/file.h"
#include "base/program.h"
#include "cli/cli.h"
#include "cli/conversation.h"
#include "cli/effort.h"
#include "cli/generate.h"
#include "cli/draft.h"
#include "cli/grammar.h"

#include "base/utf8.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void qn_run_defaults(qn_args *args)
{
    qn_sampling_args_defaults(args);
    args->n_predict = args->reasoning_budget = -1;
}

/* Parses the ids of --stop-token. False: an error line was printed. */
static bool parse_stop_tokens(const qn_args *args, qn_token tokens[QN_TEXTS_MAX])
{
    for (size_t i = 0; i < args->stop_tokens.count; i++) {
        const char *text = args->stop_tokens.at[i];
        char *end;
        errno = 0;
        const long id = strtol(text, &end, 10);
        if (*text < '0' || *text > '9' || *end || errno || id > INT32_MAX) {
            qn_cli_error("--stop-token: '%s' is not a token id", text);
            return false;
        }
        tokens[i] = (qn_token)id;
    }
    return true;
}

/* Checks the meaning of operands, and options that exclude each other. */
static int check_args(qn_args *args)
{
    qn_args_take_model(args, args->prompt || args->file ? 0 : 1);
    if (args->n_operands && (args->prompt || args->file)) {
        qn_cli_error("run: unexpected argument '%s': the prompt is given with %s", args->operands[0],
                     args->prompt ? "-p" : "-f");
        return QN_EXIT_USAGE;
    }
    if (qn_args_no_more("run", args, 1) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (qn_args_check_prompt("run", args) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (args->n_operands)
        args->prompt = args->operands[0];
    if (args->prompt && args->file) {
        qn_cli_error("-p and -f: only one prompt can be given");
        return QN_EXIT_USAGE;
    }
    if (args->system && !args->chat) {
        qn_cli_error("--system: needs --chat");
        return QN_EXIT_USAGE;
    }
    if (args->system && args->load) {
        qn_cli_error("--system: the conversation of --load has already begun");
        return QN_EXIT_USAGE;
    }
    if (!args->prompt && !args->file && !args->load && qn_is_terminal(STDIN_FILENO)) {
        qn_cli_error("-p: no prompt given; use -p TEXT, -f FILE or standard input");
        return QN_EXIT_USAGE;
    }
    if (args->n_predict >= 0 && args->min_tokens > args->n_predict) {
        qn_cli_error("--min-tokens: %lld is more than the %lld of -n", (long long)args->min_tokens,
                     (long long)args->n_predict);
        return QN_EXIT_USAGE;
    }
    qn_token stop_tokens[QN_TEXTS_MAX];
    if (!parse_stop_tokens(args, stop_tokens))
        return QN_EXIT_USAGE;
    int status = qn_check_grammar(args);
    if (status == QN_EXIT_DONE)
        status = qn_check_draft(args);
    if (status == QN_EXIT_DONE)
        status = qn_check_breakers(args);
    return status ? status : qn_check_stops(args);
}

/* Finds the tokens to evaluate when a session continues without a new prompt: the pending token, or else the session's
 * last token again, for its logits. Recurrent layers may have to be rewound by a few more tokens. */
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

/* Makes the tokens of a text after the session's tokens and the pending token; a pending end token is dropped, as the
 * text continues. */
static qn_status text_tokens(qn_session *session, const qn_model *model, const char *text, size_t length,
                             qn_token **tokens, size_t *count)
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

/* Makes the tokens of a user's turn after the session's tokens. */
static qn_status turn_tokens(const qn_args *args, const qn_model *model, const qn_session *session, const char *text,
                             qn_token **tokens, size_t *count)
{
    qn_conversation c;
    qn_cli_prompt prompt = { 0 };
    const size_t length = qn_session_length(session);
    qn_status status = qn_conversation_begin(&c, model, args->system, qn_choose_effort(args, model));
    if (status == QN_OK)
        status = qn_conversation_load_tokens(&c, session);
    if (status == QN_OK)
        status = qn_conversation_add(&c, "user", text, NULL);
    if (status == QN_OK)
        status = qn_conversation_prompt(&c, SIZE_MAX, 0, &prompt);
    qn_conversation_free(&c);
    if (status)
        return status;
    *tokens = prompt.tokens;
    *count = prompt.count - length;
    memmove(*tokens, *tokens + length, *count * sizeof **tokens);
    return QN_OK;
}

/* Removes a newline at the end of a text that was read, as editors and echo add it, and a byte order mark at its
 * beginning. */
static const char *trim(char *text, size_t *length)
{
    const size_t mark = qn_utf8_mark(text, *length);
    if (*length && text[*length - 1] == '\n')
        *length -= *length > 1 && text[*length - 2] == '\r' ? 2 : 1;
    text[*length] = 0;
    *length -= mark;
    return text + mark;
}

static bool prompt_tokens(const qn_args *args, const qn_model *model, qn_session *session, qn_token **tokens,
                          size_t *count)
{
    char *read = NULL;
    const char *text = args->prompt;
    size_t length = text ? strlen(text) : 0;
    const bool resumes = args->load && qn_session_length(session);
    if (!text && !(resumes && !args->file && qn_is_terminal(STDIN_FILENO))) {
        const bool from_stdin = !args->file || strcmp(args->file, "-") == 0;
        if (!qn_read_all(from_stdin ? NULL : args->file, UINT64_MAX, &read, &length))
            return false;
        text = trim(read, &length);
    }
    qn_status status = QN_OK;
    if (resumes && !length) {
        free(read);
        return resume_tokens(session, tokens, count);
    }
    if (args->chat && memchr(text, 0, length)) {
        free(read);
        qn_cli_error("--chat: the prompt has a zero byte, which chat messages cannot have");
        return false;
    }
    if (args->chat)
        status = turn_tokens(args, model, session, text, tokens, count);
    else
        status = text_tokens(session, model, text, length, tokens, count);
    free(read);
    if (status) {
        qn_cli_fail();
        return false;
    }
    if (*count == 0) {
        qn_free_tokens(*tokens);
        qn_cli_error(
            "the prompt is empty, and this model needs at least one token to begin with: use -p, -f or quern chat");
        return false;
    }
    return true;
}

static double rate(size_t n, double seconds)
{
    return n && seconds > 0 ? (double)n / seconds : 0;
}

/* Whether standard output and standard error are the same file or pipe, where a line of one would continue the
 * other's. */
static bool same_output(void)
{
    qn_file_info out, error;
    return qn_file_describe_fd(STDOUT_FILENO, &out) && qn_file_describe_fd(STDERR_FILENO, &error) &&
           qn_file_id_equal(out.identity.id, error.identity.id);
}

static const char *finish_text(const qn_request_result *result)
{
    switch (result->finish) {
    case QN_FINISH_STOP: return result->is_stop_string ? "stop text" : "end of text";
    case QN_FINISH_LENGTH: return "token limit";
    case QN_FINISH_CONTEXT: return "context full";
    case QN_FINISH_CALLBACK: return "output closed";
    case QN_FINISH_CANCELLED: return "interrupted";
    case QN_FINISH_DEADLINE:
    case QN_FINISH_ERROR:
    case QN_FINISH_WITHDRAWN: break; /* of no request of qn_generate without a deadline */
    }
    return "";
}

static void print_stats(const qn_args *args, const qn_request_result *result)
{
    char peak[32];
    /* The evaluation of the prompt gives the first token; the time measured is that of the others. */
    const size_t n_timed = result->n_generated > 1 ? result->n_generated - 1 : 0;
    char forced[48] = "", drafted[QN_DRAFT_TEXT];
    if (result->n_jumped)
        snprintf(forced, sizeof forced, " (%zu forced)", result->n_jumped);
    fprintf(
        stderr,
        "quern: prompt %zu tokens, %.1f tok/s; generated %zu tokens%s, %.1f tok/s%s; peak memory %s; seed %llu; %s\n",
        result->n_prompt, rate(result->n_prompt, result->prompt_seconds), result->n_generated, forced,
        rate(n_timed, result->generate_seconds),
        qn_draft_text(result->n_generated, result->n_jumped, result->n_drafted, result->n_accepted, drafted),
        qn_print_size(peak, qn_peak_rss()), (unsigned long long)args->sampling.seed, finish_text(result));
}

static int generate(const qn_args *args, const qn_model *model, qn_session *session, qn_grammar *grammar)
{
    qn_token *tokens, stop_tokens[QN_TEXTS_MAX];
    size_t count;
    (void)parse_stop_tokens(args, stop_tokens); /* already checked before the model was loaded */
    if (!prompt_tokens(args, model, session, &tokens, &count))
        return QN_EXIT_FAILED;
    qn_request_params params = QN_REQUEST_PARAMS_INIT;
    params.sampling = args->sampling;
    params.max_tokens = args->n_predict;
    params.ignore_end = args->ignore_end;
    params.stop = args->stop.at;
    params.n_stop = args->stop.count;
    params.stop_tokens = stop_tokens;
    params.n_stop_tokens = args->stop_tokens.count;
    params.min_tokens = args->min_tokens;
    params.reasoning_budget = args->reasoning_budget;
    params.grammar = grammar;
    params.jump_forward = qn_find_jump_forward(args);
    params.draft = qn_find_draft(args);
    params.grammar_trigger.when = args->chat ? QN_GRAMMAR_AFTER_REASONING : QN_GRAMMAR_AT_ONCE;
    qn_stream stream;
    qn_request_result result = QN_REQUEST_RESULT_INIT;
    const qn_status status = qn_stream_generate(session, tokens, count, params, &stream, &result);
    qn_free_tokens(tokens);
    if (!stream.broken && !stream.ends_line && qn_is_terminal(STDOUT_FILENO))
        stream.ends_line = putchar('\n') == '\n';
    if (status)
        return qn_cli_fail();
    if (!args->quiet && !stream.broken) {
        qn_out_flush();
        if (!stream.ends_line && same_output())
            fputc('\n', stderr);
        print_stats(args, &result);
    }
    return qn_save_session(args, session);
}

int qn_cli_run(qn_args *args)
{
    int status = check_args(args);
    qn_model *model;
    if (status == QN_EXIT_DONE)
        status = qn_load_model(args, false, true, &model);
    if (status)
        return status;
    qn_session *session = NULL;
    qn_grammar *grammar = NULL;
    qn_token *breakers = NULL;
    status = qn_check_save(args);
    if (status == QN_EXIT_DONE)
        status = qn_load_breakers(args, model, &breakers);
    if (status == QN_EXIT_DONE)
        status = qn_load_grammar(args, model, &grammar);
    if (status == QN_EXIT_DONE && !args->load)
        args->kv = qn_choose_kv(args, model);
    if (status == QN_EXIT_DONE)
        status = qn_open_session(args, model, 0, &session);
    if (status == QN_EXIT_DONE)
        status = generate(args, model, session, grammar);
    qn_grammar_free(grammar);
    qn_free_tokens(breakers);
    qn_session_free(session);
    qn_model_free(model);
    return status;
}
