/* quern chat: a conversation. For each answer all messages are rendered, and the session evaluates the part that it
 * does not hold. cli/line.c reads messages, cli/conversation.c makes prompts, cli/answer.c generates answers,
 * cli/chat_commands.c has the commands. */
#include "cli/chat.h"

#include "cli/cli.h"
#include "cli/effort.h"
#include "cli/signals.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void qn_chat_defaults(qn_args *args)
{
    qn_sampling_args_defaults(args);
    args->n_predict = args->reasoning_budget = -1;
}

/* ---- Messages ---- */

static qn_chat_next take_message(qn_chat *chat, const char *text, size_t length)
{
    if (memchr(text, 0, length)) {
        qn_cli_error("the message has a zero byte, which chat messages cannot have");
        return QN_CHAT_FAILED;
    }
    if (*text == '/' && text[1] != '/')
        return qn_chat_command(chat, text);
    if (!*text || qn_chat_ask(chat, *text == '/' ? text + 1 : text))
        return QN_CHAT_GO_ON;
    return QN_CHAT_FAILED;
}

static int converse(qn_chat *chat)
{
    for (;;) {
        char *text;
        size_t length;
        const qn_line_result got = qn_line_read(chat->lines, "> ", NULL, &text, &length);
        qn_chat_next next = QN_CHAT_GO_ON;
        if (got == QN_LINE_END)
            return QN_EXIT_DONE;
        if (got == QN_LINE_FAILED)
            return QN_EXIT_FAILED;
        if (got == QN_LINE_READ) {
            next = take_message(chat, text, length);
            free(text);
        }
        qn_signals_clear();
        if (next == QN_CHAT_FAILED)
            return ferror(stdout) ? QN_EXIT_DONE : QN_EXIT_FAILED; /* qn_out_finish reports a failing standard output */
        if (next == QN_CHAT_LEAVE || qn_signals_stop_requested())
            return QN_EXIT_DONE;
    }
}

/* ---- The command ---- */

/* Checks that the model has a chat format, before anything is typed. */
static qn_status probe(qn_conversation *c)
{
    qn_cli_prompt prompt;
    qn_status status = qn_conversation_add(c, "user", ".", NULL);
    if (status == QN_OK)
        status = qn_conversation_prompt(c, SIZE_MAX, 0, &prompt);
    if (status == QN_OK)
        qn_cli_prompt_free(&prompt);
    qn_conversation_truncate(c, 0);
    return status;
}

static qn_status begin(qn_chat *chat)
{
    qn_conversation *c = &chat->conversation;
    qn_status status =
        qn_conversation_begin(c, chat->model, chat->args->system, qn_choose_effort(chat->args, chat->model));
    if (status == QN_OK)
        status = probe(c);
    if (status == QN_OK && chat->args->load)
        status = qn_conversation_load_tokens(c, chat->session);
    return status;
}

static qn_reasoning_view view_of(const qn_args *args)
{
    if (!args->reasoning)
        return isatty(STDOUT_FILENO) ? QN_REASONING_FOLD : QN_REASONING_SHOW;
    if (strcmp(args->reasoning, "show") == 0)
        return QN_REASONING_SHOW;
    return strcmp(args->reasoning, "fold") == 0 ? QN_REASONING_FOLD : QN_REASONING_HIDE;
}

static int chat_on_session(const qn_args *args, const qn_model *model, qn_session *session)
{
    qn_chat chat = {
        .args = args, .model = model, .session = session, .view = view_of(args), .seed = args->sampling.seed
    };
    int status = QN_EXIT_FAILED;
    if (begin(&chat))
        qn_cli_fail();
    else if (qn_line_open(&chat.lines, args->quiet)) {
        if (!args->quiet && isatty(STDIN_FILENO))
            fprintf(stderr, "/help lists the commands, Ctrl-D leaves.\n");
        status = converse(&chat);
        qn_line_close(chat.lines);
    }
    qn_conversation_free(&chat.conversation);
    return status;
}

static int check_args(qn_args *args)
{
    qn_args_take_model(args);
    if (qn_args_no_more("chat", args, 0) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (args->system && args->load) {
        qn_cli_error("--system: the conversation of --load has already begun");
        return QN_EXIT_USAGE;
    }
    const int status = qn_check_breakers(args);
    return status ? status : qn_check_stops(args);
}

int qn_cli_chat(qn_args *args)
{
    int status = check_args(args);
    qn_model *model;
    if (status == QN_EXIT_DONE)
        status = qn_load_model(args, false, true, &model);
    if (status)
        return status;
    qn_session *session = NULL;
    qn_token *breakers = NULL;
    status = qn_check_save(args);
    if (status == QN_EXIT_DONE)
        status = qn_load_breakers(args, model, &breakers);
    if (status == QN_EXIT_DONE)
        status = qn_open_session(args, model, 0, &session);
    if (status == QN_EXIT_DONE) {
        status = chat_on_session(args, model, session);
        const int saved = qn_save_session(args, session);
        status = status ? status : saved;
    }
    qn_free_tokens(breakers);
    qn_session_free(session);
    qn_model_free(model);
    return status;
}
