/* quern chat: a conversation. The session keeps it, so that a turn costs the evaluation of that turn alone. cli/line.c reads
 * messages, cli/turn.c makes the tokens of a turn. */
#include "cli/cli.h"
#include "cli/generate.h"
#include "cli/line.h"
#include "cli/signals.h"
#include "cli/turn.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct chat {
    const qn_args *args;
    uint64_t seed;
    char *system; /* NULL: none */
};

static const char commands[] = "/system TEXT  set the system's turn and begin again\n"
                               "/system       show the system's turn\n"
                               "/reset        begin again\n"
                               "/exit         leave (or Ctrl-D)\n"
                               "//TEXT        send /TEXT\n"
                               "Ctrl-C stops an answer.\n";

void qn_chat_defaults(qn_args *args)
{
    qn_sampling_args_defaults(args);
    args->n_predict = -1;
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

/* `n` tokens were to be added. A message that would not fit by itself is not helped by beginning again. */
static void context_full(const qn_session *session, size_t n, size_t n_first)
{
    const uint32_t capacity = qn_session_capacity(session);
    if (n_first >= capacity)
        qn_cli_error("the message takes %zu tokens, the context holds %u: a larger -c holds more", n_first, capacity);
    else
        qn_cli_error("the context of %u tokens is full, and the message takes %zu: /reset begins again, a larger -c holds more",
                     capacity, n);
}

/* How many tokens the message would take as the first of a conversation. */
static size_t first_turn_tokens(const struct chat *chat, const qn_model *model, const char *text)
{
    qn_token *tokens;
    size_t count;
    if (qn_first_turn_tokens(model, chat->system, text, &tokens, &count))
        return 0;
    qn_free_tokens(tokens);
    return count;
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
    params.sampling = chat->args->sampling;
    params.sampling.seed = chat->seed++; /* the same question twice may get two answers */
    params.max_tokens = chat->args->n_predict;
    params.stop = chat->args->stop.at;
    params.n_stop = chat->args->stop.count;
    qn_stream stream;
    qn_generate_result result = { 0 };
    const qn_status status = qn_stream_generate(session, tokens, count, params, &stream, &result);
    qn_free_tokens(tokens);
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
            context_full(session, count, first_turn_tokens(chat, model, text));
        else if (!interrupted && status)
            qn_cli_fail();
        return qn_session_truncate(session, before) == QN_OK && (status == QN_ERR_CONTEXT || interrupted || !status);
    }
    if (result.reason == QN_STOP_CONTEXT)
        qn_cli_error("the context of %u tokens is full: /reset begins again, a larger -c holds more",
                     qn_session_capacity(session));
    return true;
}

static void begin_again(qn_session *session)
{
    qn_session_truncate(session, 0);
    fputs("The conversation begins again.\n", stderr);
}

static void system_command(struct chat *chat, qn_session *session, const char *text)
{
    if (*text && set_system(chat, text)) {
        qn_session_truncate(session, 0);
        fputs("The system's turn is set, and the conversation begins again.\n", stderr);
    } else if (!*text && chat->system) {
        qn_print_text(stderr, chat->system, strlen(chat->system));
        fputc('\n', stderr);
    } else if (!*text) {
        fputs("There is no system turn.\n", stderr);
    }
}

/* A message that begins with one slash. False to end the conversation. */
static bool command(struct chat *chat, qn_session *session, const char *text)
{
    const size_t name = strcspn(text, " \t\n");
    const char *rest = text + name + strspn(text + name, " \t\n");
    if (strcmp(text, "/exit") == 0 || strcmp(text, "/quit") == 0)
        return false;
    if (strcmp(text, "/help") == 0)
        fputs(commands, stderr);
    else if (strcmp(text, "/reset") == 0)
        begin_again(session);
    else if (name == strlen("/system") && strncmp(text, "/system", name) == 0)
        system_command(chat, session, rest);
    else
        qn_cli_error("unknown command '%s'; the commands are /help /reset /system [TEXT] /exit; //TEXT sends /TEXT", text);
    return true;
}

/* One message. False when the conversation cannot go on, or the user leaves; *exit_status is then set. */
static bool take_message(struct chat *chat, const qn_model *model, qn_session *session, const char *text, size_t length,
                         int *exit_status)
{
    if (memchr(text, 0, length)) {
        qn_cli_error("the message holds a zero byte, which a chat message cannot");
        *exit_status = QN_EXIT_FAILED;
        return false;
    }
    if (*text == '/' && text[1] != '/')
        return command(chat, session, text);
    if (!*text)
        return true;
    if (answer(chat, model, session, *text == '/' ? text + 1 : text))
        return true;
    *exit_status = ferror(stdout) ? QN_EXIT_DONE : QN_EXIT_FAILED; /* qn_out_finish tells the one from the other */
    return false;
}

/* The system's turn: of --system, or of the conversation that was loaded, so that /reset keeps it. And whether the model has a
 * chat format at all: one without is refused before anything is typed. */
static bool find_system(struct chat *chat, const qn_model *model, const qn_session *session)
{
    qn_token *probe;
    size_t count;
    if (chat->args->system && !set_system(chat, chat->args->system))
        return false;
    qn_status status = qn_first_turn_tokens(model, chat->system, ".", &probe, &count);
    if (status == QN_OK) {
        qn_free_tokens(probe);
        status = chat->args->load ? qn_session_system(session, model, &chat->system) : QN_OK;
    }
    if (status)
        qn_cli_fail();
    return status == QN_OK;
}

static int converse(struct chat *chat, const qn_model *model, qn_session *session)
{
    if (!find_system(chat, model, session))
        return QN_EXIT_FAILED;
    qn_line *lines;
    if (!qn_line_open(&lines, chat->args->quiet))
        return QN_EXIT_FAILED;
    if (!chat->args->quiet && isatty(STDIN_FILENO))
        fprintf(stderr, "/help lists the commands, Ctrl-D leaves.\n");
    int exit_status = QN_EXIT_DONE;
    for (bool go_on = true; go_on;) {
        char *text;
        size_t length;
        const qn_line_result got = qn_line_read(lines, "> ", &text, &length);
        if (got == QN_LINE_INTERRUPTED) {
            qn_signals_clear();
            if (qn_signals_stop_requested())
                break;
            continue;
        }
        if (got != QN_LINE_READ) {
            exit_status = got == QN_LINE_END ? QN_EXIT_DONE : QN_EXIT_FAILED;
            break;
        }
        go_on = take_message(chat, model, session, text, length, &exit_status);
        free(text);
        qn_signals_clear();
        if (qn_signals_stop_requested())
            break;
    }
    qn_line_close(lines);
    return exit_status;
}

static int check_args(qn_args *args)
{
    qn_args_take_model(args);
    if (qn_args_no_more("chat", args, 0) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (args->system && args->load) {
        qn_cli_error("--system: the conversation of --load has begun already");
        return QN_EXIT_USAGE;
    }
    return qn_check_stops(args);
}

int qn_cli_chat(qn_args *args)
{
    int status = check_args(args);
    qn_model *model;
    if (status == QN_EXIT_DONE)
        status = qn_load_model(args, false, true, &model);
    if (status)
        return status;
    struct chat chat = { .args = args, .seed = args->sampling.seed };
    qn_session *session = NULL;
    status = qn_check_save(args);
    if (status == QN_EXIT_DONE)
        status = qn_open_session(args, model, 0, &session);
    if (status == QN_EXIT_DONE) {
        status = converse(&chat, model, session);
        const int saved = qn_save_session(args, session);
        status = status ? status : saved;
    }
    qn_session_free(session);
    qn_model_free(model);
    free(chat.system);
    return status;
}
