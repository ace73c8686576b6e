/* quern chat: a conversation. The session keeps it, so that a turn costs the evaluation of that turn alone; how its tokens are
 * found without the history is explained at turn_tokens(). Reading lines is cli/line.c's business. */
#include "cli/cli.h"
#include "cli/generate.h"
#include "cli/line.h"
#include "cli/signals.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat {
    qn_model_args model;
    qn_sampling_args sampling;
    const char *system_option;
    int64_t n_predict;
    bool quiet;
    /* The conversation. */
    char *system;     /* NULL: none */
    bool open;        /* a turn has been answered */
    bool has_pending; /* the last token of the answer is not in the session yet and does not end a turn */
    qn_token pending;
};

static const char purpose[] = "Talks with the model in its chat format. Ctrl-C stops an answer, Ctrl-D leaves. Commands: /help "
                              "/reset /system TEXT /exit.";

static const char commands[] = "/system TEXT  set the system's turn and begin again\n"
                               "/reset        begin again\n"
                               "/exit         leave (or Ctrl-D)\n"
                               "Ctrl-C stops an answer.\n";

static qn_args_result parse(struct chat *chat, int argc, char **argv)
{
    const qn_option options[] = {
        QN_MODEL_OPTION(chat->model),
        QN_OPT_TEXT("--system", NULL, &chat->system_option, "TEXT", "the system's turn"),
        QN_OPT_INT("-n", "--predict", &chat->n_predict, "N", -1, INT32_MAX,
                   "tokens of an answer at most (default -1: no limit)"),
        QN_CONTEXT_OPTION(chat->model),
        QN_THREADS_OPTION(chat->model),
        QN_SAMPLING_OPTIONS(chat->sampling),
        QN_EVAL_OPTIONS(chat->model),
        QN_OPT_FLAG("-q", "--quiet", &chat->quiet, "no notes and no greeting"),
    };
    const qn_command_line line = {
        .usage = "chat -m MODEL [options]",
        .purpose = purpose,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    return qn_args_parse(&line, argc, argv);
}

static bool set_system(struct chat *chat, const char *text)
{
    char *copy = strdup(text);
    if (!copy) {
        qn_cli_error("no memory for the system's turn");
        return false;
    }
    free(chat->system);
    chat->system = copy;
    return true;
}

static void reset(struct chat *chat, qn_session *session)
{
    qn_session_truncate(session, 0);
    chat->open = chat->has_pending = false;
}

/* Tokens of a short conversation: the system's turn, then `history` (a user's and an assistant's turn, when asked for), then
 * the user's text with the opening of the answer, when there is one. */
static qn_status render(const struct chat *chat, const qn_model *model, bool history, const char *text, qn_token **tokens,
                        size_t *count)
{
    qn_chat_message messages[4];
    size_t n = 0;
    if (chat->system)
        messages[n++] = (qn_chat_message){ "system", chat->system };
    if (history) {
        messages[n++] = (qn_chat_message){ "user", "." };
        messages[n++] = (qn_chat_message){ "assistant", "." };
    }
    if (text)
        messages[n++] = (qn_chat_message){ "user", text };
    return qn_chat_tokens(model, messages, n, text != NULL, tokens, count);
}

/* The tokens that a new turn adds to what the session holds. The first turn is simply the conversation so far. For a later one
 * the history itself is in the session and must not be made again (its tokens are those that were generated, which need not be
 * those of their text); what follows it is found on a stand-in: the tokens of (user, assistant, new turn) after those of (user,
 * assistant), preceded by what closes the assistant's turn, from the last end token on. */
static qn_status turn_tokens(const struct chat *chat, const qn_model *model, const char *text, qn_token **tokens, size_t *count)
{
    if (!chat->open)
        return render(chat, model, false, text, tokens, count);
    qn_token *before, *with;
    size_t n_before, n_with;
    qn_status status = render(chat, model, true, NULL, &before, &n_before);
    if (status)
        return status;
    status = render(chat, model, true, text, &with, &n_with);
    if (status) {
        qn_free_tokens(before);
        return status;
    }
    size_t close = n_before;
    for (size_t i = n_before; i-- > 0;)
        if (qn_token_is_end(model, before[i])) {
            close = i;
            break;
        }
    /* In place: with[] has room, since the closing tokens stand in it before the new turn. The pending token takes the slot of
     * the stand-in's text before them. */
    size_t first = close;
    if (chat->has_pending && first > 0)
        with[--first] = chat->pending;
    memmove(with, with + first, (n_with - first) * sizeof *with);
    qn_free_tokens(before);
    *tokens = with;
    *count = n_with - first;
    return QN_OK;
}

/* Where generation stands in the session: the engine leaves the last token unevaluated, and an end token is part of what
 * closes the turn. */
static void note_pending(struct chat *chat, const qn_model *model, const qn_session *session, uint32_t before, size_t n_prompt,
                         const qn_stream *stream, const qn_generate_result *result)
{
    const size_t held = qn_session_length(session) - before;
    chat->has_pending = held < n_prompt + result->n_generated && stream->n_tokens == result->n_generated &&
                        stream->n_tokens > 0 && !qn_token_is_end(model, stream->last);
    chat->pending = stream->last;
    chat->open = true;
}

static void context_full(const qn_session *session)
{
    qn_cli_error("the context of %u tokens is full: /reset begins again, a larger -c holds more", qn_session_capacity(session));
}

/* One turn. False when the conversation cannot go on. */
static bool answer(struct chat *chat, const qn_model *model, qn_session *session, const char *text)
{
    qn_token *tokens;
    size_t count;
    if (turn_tokens(chat, model, text, &tokens, &count)) {
        qn_cli_fail();
        return false;
    }
    const uint32_t before = qn_session_length(session);
    qn_generate_params params = qn_generate_defaults();
    params.sampling = qn_sampling_from_args(&chat->sampling);
    params.max_tokens = chat->n_predict;
    qn_stream stream;
    qn_generate_result result = { 0 };
    const qn_status status = qn_stream_generate(session, tokens, count, params, &stream, &result);
    qn_free_tokens(tokens);
    chat->sampling.seed++; /* the same question asked again may get another answer */
    if (stream.broken)
        return false;
    if (!stream.ends_line)
        putchar('\n');
    if (isatty(STDOUT_FILENO))
        putchar('\n');
    qn_out_flush();
    const bool interrupted = status == QN_ERR_CANCELLED || (!status && result.reason == QN_STOP_CANCELLED);
    if (status || result.n_generated == 0) { /* the turn did not happen */
        if (status == QN_ERR_CONTEXT)
            context_full(session);
        else if (!interrupted && status)
            qn_cli_fail();
        return qn_session_truncate(session, before) == QN_OK && (status == QN_ERR_CONTEXT || interrupted || !status);
    }
    note_pending(chat, model, session, before, count, &stream, &result);
    if (result.reason == QN_STOP_CONTEXT)
        context_full(session);
    return true;
}

/* A line that begins with a slash. False when the user wants to leave. */
static bool command(struct chat *chat, qn_session *session, const char *line)
{
    if (strcmp(line, "/exit") == 0 || strcmp(line, "/quit") == 0)
        return false;
    if (strcmp(line, "/help") == 0) {
        fputs(commands, stderr);
    } else if (strcmp(line, "/reset") == 0) {
        reset(chat, session);
    } else if (strncmp(line, "/system ", 8) == 0) {
        if (set_system(chat, line + 8))
            reset(chat, session);
    } else {
        qn_cli_error("unknown command '%s'; the commands are /help /reset /system TEXT /exit", line);
    }
    return true;
}

static int converse(struct chat *chat, const qn_model *model, qn_session *session)
{
    if (chat->system_option && !set_system(chat, chat->system_option))
        return QN_EXIT_FAILED;
    qn_token *probe; /* a model without a chat format is refused before anything is typed */
    size_t count;
    if (render(chat, model, false, ".", &probe, &count))
        return qn_cli_fail();
    qn_free_tokens(probe);
    qn_line *lines;
    if (!qn_line_open(&lines))
        return QN_EXIT_FAILED;
    if (!chat->quiet && isatty(STDIN_FILENO))
        fprintf(stderr, "/help lists the commands, Ctrl-D leaves.\n");
    int exit_status = QN_EXIT_DONE;
    for (;;) {
        char *line;
        const qn_line_result got = qn_line_read(lines, "> ", &line);
        if (got == QN_LINE_INTERRUPTED) {
            qn_signals_clear();
            if (qn_signals_stop())
                break;
            continue;
        }
        if (got != QN_LINE_READ) {
            exit_status = got == QN_LINE_END ? QN_EXIT_DONE : QN_EXIT_FAILED;
            break;
        }
        bool go_on = true;
        if (*line == '/')
            go_on = command(chat, session, line);
        else if (*line && !answer(chat, model, session, line)) {
            go_on = false;
            exit_status = ferror(stdout) ? QN_EXIT_DONE : QN_EXIT_FAILED; /* qn_out_finish tells the one from the other */
        }
        free(line);
        qn_signals_clear();
        if (!go_on || qn_signals_stop())
            break;
    }
    qn_line_close(lines);
    return exit_status;
}

int qn_cli_chat(int argc, char **argv)
{
    struct chat chat = { .sampling = qn_sampling_args_defaults(), .n_predict = -1 };
    const qn_args_result parsed = parse(&chat, argc, argv);
    if (parsed != QN_ARGS_OK)
        return qn_args_exit(parsed);
    qn_model *model;
    int status = qn_load_model(&chat.model, false, chat.quiet, &model);
    if (status)
        return status;
    qn_session *session;
    status = qn_open_session(&chat.model, model, 0, &session);
    if (status == QN_EXIT_DONE) {
        status = converse(&chat, model, session);
        qn_session_free(session);
    }
    qn_model_free(model);
    free(chat.system);
    return status;
}
