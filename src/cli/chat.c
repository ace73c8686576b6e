/* quern chat: a conversation. The session keeps it, so that a turn costs the evaluation of that turn alone. Reading lines is
 * cli/line.c's business, the tokens of a turn cli/turn.c's. */
#include "cli/cli.h"
#include "cli/generate.h"
#include "cli/line.h"
#include "cli/signals.h"
#include "cli/turn.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat {
    qn_model_args model;
    qn_sampling_args sampling;
    const char *system_option;
    int64_t n_predict;
    bool quiet;
    char *system; /* NULL: none */
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
        QN_SAVE_OPTIONS(chat->model),
        QN_SAMPLING_OPTIONS(chat->sampling),
        QN_EVAL_OPTIONS(chat->model),
        QN_OPT_FLAG("-q", "--quiet", &chat->quiet, "no notes and no greeting"),
    };
    const qn_command_line line = {
        .usage = "chat [-m MODEL] [options]",
        .purpose = purpose,
        .options = options,
        .n_options = sizeof options / sizeof *options,
    };
    const qn_args_result result = qn_args_parse(&line, argc, argv);
    if (result == QN_ARGS_OK && chat->system_option && chat->model.load) {
        qn_cli_error("--system: the conversation of --load has begun already");
        return QN_ARGS_BAD;
    }
    return result;
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

static void context_full(const qn_session *session)
{
    qn_cli_error("the context of %u tokens is full: /reset begins again, a larger -c holds more", qn_session_capacity(session));
}

/* One turn. False when the conversation cannot go on. */
static bool answer(struct chat *chat, const qn_model *model, qn_session *session, const char *text)
{
    qn_token *tokens;
    size_t count;
    if (qn_turn_tokens(session, model, chat->system, text, &tokens, &count)) {
        qn_cli_fail();
        return false;
    }
    const uint32_t before = qn_session_length(session);
    if (qn_session_checkpoint(session)) {
        qn_free_tokens(tokens);
        qn_cli_fail();
        return false;
    }
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
        qn_session_truncate(session, 0);
    } else if (strncmp(line, "/system ", 8) == 0) {
        if (set_system(chat, line + 8))
            qn_session_truncate(session, 0);
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
    if (qn_turn_tokens(session, model, chat->system, ".", &probe, &count))
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
    struct chat chat = { .model.or_demo = true, .sampling = qn_sampling_args_defaults(), .n_predict = -1 };
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
        const int saved = qn_save_session(&chat.model, session);
        status = status ? status : saved;
        qn_session_free(session);
    }
    qn_model_free(model);
    free(chat.system);
    return status;
}
