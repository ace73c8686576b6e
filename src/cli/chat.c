/* quern chat: a conversation. For each answer all messages are rendered, and the session evaluates the part that it
 * does not hold. cli/line.c reads messages, cli/conversation.c makes prompts, cli/answer.c generates answers,
 * cli/chat_commands.c has the commands. */
#include "cli/chat.h"

#include "base/file.h"
#include "base/program.h"
#include "cli/cli.h"
#include "cli/draft.h"
#include "cli/effort.h"
#include "cli/signals.h"
#include "cli/wrap.h"

#include "base/append.h"
#include "base/printable.h"
#include "hub/name.h"

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

/* Whether the conversation goes on after a message; otherwise sets the exit status. */
static bool goes_on(qn_chat_next next, int *status)
{
    qn_signals_clear();
    *status = next == QN_CHAT_FAILED && !ferror(stdout) ? QN_EXIT_FAILED : QN_EXIT_DONE; /* qn_out_finish reports a
                                                                                            failing output */
    return next == QN_CHAT_GO_ON && !qn_signals_stop_requested();
}

static int converse(qn_chat *chat)
{
    const char *first = chat->args->prompt; /* is never a command */
    int status = QN_EXIT_DONE;
    bool go_on = !first || !*first || goes_on(qn_chat_ask(chat, first) ? QN_CHAT_GO_ON : QN_CHAT_FAILED, &status);
    while (go_on) {
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
        go_on = goes_on(next, &status);
    }
    return status;
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
    if (status == QN_OK && chat->args->load && qn_conversation_is_file(chat->args->load))
        return qn_chat_load(chat, chat->args->load);
    if (status == QN_OK && chat->args->load)
        status = qn_conversation_load_tokens(c, chat->session);
    return status;
}

static qn_reasoning_view view_of(const qn_args *args)
{
    if (!args->reasoning)
        return qn_is_terminal(STDOUT_FILENO) ? QN_REASONING_FOLD : QN_REASONING_SHOW;
    if (strcmp(args->reasoning, "show") == 0)
        return QN_REASONING_SHOW;
    return strcmp(args->reasoning, "fold") == 0 ? QN_REASONING_FOLD : QN_REASONING_HIDE;
}

/* Prints the model and its context, and what to do. */
static void greet(const qn_chat *chat)
{
    const qn_model_info *info = qn_model_get_info(chat->model);
    const uint32_t context = qn_session_capacity(chat->session), used = qn_session_length(chat->session);
    if (chat->args->quiet || !qn_is_terminal(STDIN_FILENO))
        return;
    char name[256];
    (void)qn_print(name, sizeof name, "%s", *info->name ? info->name : qn_file_name(chat->args->model));
    qn_mask(name);
    char of_them[64] = "";
    if (used)
        (void)qn_print(of_them, sizeof of_them, ", of which %u are used", used);
    qn_wrap_print(stderr, "%s, %s, context of %u tokens%s.\n", name, info->quantisation, context, of_them);
    qn_wrap_print(stderr, "/help lists the commands, Ctrl-D leaves.\n");
}

static int chat_on_session(const qn_args *args, qn_model *model, qn_session **session)
{
    qn_chat chat = {
        .args = args, .model = model, .session = *session, .view = view_of(args), .seed = args->sampling.seed
    };
    int status = QN_EXIT_FAILED;
    if (begin(&chat))
        qn_cli_fail();
    else if (qn_line_open(&chat.lines, args->quiet)) {
        qn_line_completer(chat.lines, qn_chat_complete, NULL);
        greet(&chat);
        if (args->load && !args->quiet)
            qn_chat_show_last(&chat);
        status = converse(&chat);
        qn_line_close(chat.lines);
    }
    qn_conversation_free(&chat.conversation);
    *session = chat.session;
    return status;
}

static int check_args(qn_args *args)
{
    /* OWNER/REPO alone is a model here, as nobody begins a conversation with "and/or". */
    const bool has_message = !args->prompt && args->n_operands && !qn_hub_name_is(args->operands[0]);
    qn_args_take_model(args, has_message ? 1 : 0);
    if (qn_args_no_more("chat", args, args->prompt ? 0 : 1) != QN_ARGS_OK ||
        qn_args_check_prompt("chat", args) != QN_ARGS_OK)
        return QN_EXIT_USAGE;
    if (args->n_operands)
        args->prompt = args->operands[0];
    if (args->system && args->load) {
        qn_cli_error("--system: the conversation of --load has already begun");
        return QN_EXIT_USAGE;
    }
    int status = qn_check_breakers(args);
    status = status ? status : qn_check_draft(args);
    return status ? status : qn_check_stops(args);
}

/* Opens the session of --load, or an empty one for the messages of a file. Returns as qn_load_model. */
static int open_session(const qn_args *args, qn_model *model, qn_session **session)
{
    qn_args own = *args;
    if (own.load && qn_conversation_is_file(own.load))
        own.load = NULL;
    return qn_open_session(&own, model, 0, session);
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
    if (status == QN_EXIT_DONE && !args->load)
        args->kv = qn_choose_kv(args, model);
    if (status == QN_EXIT_DONE)
        status = open_session(args, model, &session);
    if (status == QN_EXIT_DONE) {
        status = chat_on_session(args, model, &session);
        const int saved = qn_save_session(args, session);
        status = status ? status : saved;
    }
    qn_free_tokens(breakers);
    qn_session_free(session);
    qn_model_free(model);
    return status;
}
