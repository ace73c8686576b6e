/* Commands of quern chat: messages that begin with one slash. */
#include "cli/chat.h"

#include "base/strings.h"
#include "cli/cli.h"
#include "cli/draft.h"
#include "cli/wrap.h"

#include "chat/adapt.h"

#include <stdlib.h>
#include <string.h>

static qn_chat_next fail(void)
{
    qn_cli_fail();
    return QN_CHAT_GO_ON;
}

/* ---- The conversation ---- */

static qn_chat_next run_system(qn_chat *chat, const char *text)
{
    const char *system = chat->conversation.system;
    if (*text) {
        if (qn_conversation_set_system(&chat->conversation, text) || qn_session_truncate(chat->session, 0))
            return fail();
        qn_wrap_print(stderr, "The system's turn is set, and the conversation begins again.\n");
    } else if (system) {
        qn_print_text(stderr, system, strlen(system));
        fputc('\n', stderr);
    } else {
        fputs("There is no system turn.\n", stderr);
    }
    return QN_CHAT_GO_ON;
}

static qn_chat_next run_reset(qn_chat *chat, const char *rest)
{
    (void)rest;
    qn_conversation_reset(&chat->conversation);
    if (qn_session_truncate(chat->session, 0))
        return fail();
    fputs("The conversation begins again.\n", stderr);
    return QN_CHAT_GO_ON;
}

static qn_chat_next run_exit(qn_chat *chat, const char *rest)
{
    (void)chat;
    (void)rest;
    return QN_CHAT_LEAVE;
}

/* Answers the user message at index `at` again, or `text` instead. Without an answer the messages are unchanged. */
static qn_chat_next answer_again(qn_chat *chat, size_t at, const char *text)
{
    qn_conversation *c = &chat->conversation;
    json_t *before = json_copy(c->messages);
    if (!before) {
        qn_cli_error("no memory for the conversation");
        return QN_CHAT_GO_ON;
    }
    qn_conversation_truncate(c, text ? at : at + 1);
    const bool go_on = text ? qn_chat_ask(chat, text) : qn_chat_answer(chat, at + 1);
    if (json_array_size(c->messages) <= at + 1) {
        json_decref(c->messages);
        c->messages = before;
    } else {
        json_decref(before);
    }
    return go_on ? QN_CHAT_GO_ON : QN_CHAT_FAILED;
}

static qn_chat_next run_regen(qn_chat *chat, const char *rest)
{
    (void)rest;
    const size_t at = qn_conversation_last_user(&chat->conversation, NULL);
    if (at != SIZE_MAX)
        return answer_again(chat, at, NULL);
    qn_cli_error("/regen: there is no message to answer");
    return QN_CHAT_GO_ON;
}

/* Returns the text that replaces the last message: `given`, or `old` after editing. NULL: an error line was printed. */
static char *edited_text(qn_chat *chat, const char *given, const char *old)
{
    char *text = NULL;
    size_t length;
    if (*given) {
        text = strdup(given);
        if (!text)
            qn_cli_error("no memory for the message");
        return text;
    }
    if (!qn_line_can_edit(chat->lines)) {
        qn_cli_error("/edit: there is no line editor; /edit TEXT replaces the last message");
        return NULL;
    }
    if (qn_line_read(chat->lines, "edit> ", old, &text, &length) != QN_LINE_READ)
        return NULL;
    if (length && strlen(text) == length)
        return text;
    qn_cli_error("/edit: the message is empty or has a zero byte; the last one is kept");
    free(text);
    return NULL;
}

static qn_chat_next run_edit(qn_chat *chat, const char *given)
{
    const char *old = NULL;
    const size_t at = qn_conversation_last_user(&chat->conversation, &old);
    if (at == SIZE_MAX || !old) {
        qn_cli_error("/edit: there is no message to edit");
        return QN_CHAT_GO_ON;
    }
    char *text = edited_text(chat, given, old);
    if (!text)
        return QN_CHAT_GO_ON;
    const qn_chat_next next = answer_again(chat, at, text);
    free(text);
    return next;
}

/* ---- Files ---- */

/* False: an error line was printed. */
static bool take_path(const char *command, const char *name, char path[PATH_MAX])
{
    if (*name && qn_chat_path(name, path))
        return true;
    if (*name)
        qn_cli_error("%s: the file's name is too long", command);
    else
        qn_cli_error("%s: a file is missing: %s FILE", command, command);
    return false;
}

static qn_chat_next run_save(qn_chat *chat, const char *name)
{
    char path[PATH_MAX];
    if (take_path("/save", name, path))
        qn_chat_save(chat, path);
    return QN_CHAT_GO_ON;
}

static qn_chat_next run_load(qn_chat *chat, const char *name)
{
    char path[PATH_MAX];
    const qn_conversation *c = &chat->conversation;
    if (!take_path("/load", name, path))
        return QN_CHAT_GO_ON;
    if (qn_chat_load(chat, path))
        return fail();
    const size_t n = json_array_size(c->messages), last = qn_conversation_last_user(c, NULL);
    qn_chat_show_last(chat);
    if (c->loaded)
        fprintf(stderr, "%zu tokens are loaded.%s", c->n_loaded, n ? " " : "\n");
    if (n || !c->loaded)
        qn_wrap_print(stderr, "%zu messages are loaded.%s\n", n,
                      n && last == n - 1 ? " /regen answers the last one." : "");
    return QN_CHAT_GO_ON;
}

/* ---- Thinking ---- */

static bool is_level(const char *text)
{
    for (size_t i = 0; i < QN_EFFORT_LEVELS; i++)
        if (strcmp(text, qn_effort_levels[i]) == 0)
            return true;
    return false;
}

static void print_thinking(const qn_conversation *c)
{
    const json_t *enabled = json_object_get(c->thinking, "enable_thinking");
    const char *effort = json_string_value(json_object_get(c->thinking, "reasoning_effort"));
    const char *state = enabled ? json_is_true(enabled) ? "on" : "off" : "the chat template's default";
    fprintf(stderr, "Thinking is %s%s%s.\n", state, effort ? ", level " : "", effort ? effort : "");
}

static void set_thinking(qn_conversation *c, const char *text)
{
    const qn_chat_format format = *qn_model_get_chat_format(c->model);
    const bool is_on = strcmp(text, "on") == 0, is_off = strcmp(text, "off") == 0;
    int failed = 0;
    if (!is_on && !is_off && !is_level(text)) {
        qn_cli_error("/think: '%s' is neither on, off nor a level: none, minimal, low, medium, high, xhigh, max", text);
        return;
    }
    if (is_on || is_off ? !format.has_enable_thinking : !format.has_reasoning_effort) {
        qn_cli_error("/think: the model's chat template has no %s", is_on || is_off
                                                                        ? "enable_thinking, which on and off set"
                                                                        : "reasoning_effort, which a level sets");
        return;
    }
    if (is_on || is_off) {
        failed = json_object_set_new(c->thinking, "enable_thinking", json_boolean(is_on));
        json_object_del(c->thinking, "reasoning_effort");
    } else {
        failed = json_object_set_new(c->thinking, "reasoning_effort", json_string(text));
        json_object_del(c->thinking, "enable_thinking");
    }
    if (failed)
        qn_cli_error("no memory for the conversation");
    else
        print_thinking(c);
}

static qn_chat_next run_think(qn_chat *chat, const char *rest)
{
    if (*rest)
        set_thinking(&chat->conversation, rest);
    else
        print_thinking(&chat->conversation);
    return QN_CHAT_GO_ON;
}

/* ---- Numbers ---- */

static double rate(size_t n, double seconds)
{
    return n && seconds > 0 ? (double)n / seconds : 0;
}

static qn_chat_next run_context(qn_chat *chat, const char *rest)
{
    (void)rest;
    char bytes[32], drafted[QN_DRAFT_TEXT];
    const qn_session *session = chat->session;
    const qn_conversation *c = &chat->conversation;
    const qn_cli_answer *last = &chat->last;
    const uint32_t length = qn_session_length(session);
    const size_t n_new = last->n_prompt - last->n_reused;
    /* The evaluation of the prompt gives the first token. */
    const size_t n_timed = last->n_generated > 1 ? last->n_generated - 1 : 0;
    qn_wrap_print(stderr, "context  %u of %u tokens, %zu messages, of which %zu dropped\n", length,
                  qn_session_capacity(session), json_array_size(c->messages), c->first);
    fprintf(stderr, "cache    %s, %s\n", qn_print_size(bytes, qn_session_cache_bytes(session, length)),
            qn_session_kv(session));
    if (last->n_prompt) {
        qn_wrap_print(stderr, "prompt   %zu tokens, of which %zu were evaluated, %.1f tok/s\n", last->n_prompt, n_new,
                      rate(n_new, last->prompt_seconds));
        fprintf(stderr, "answer   %zu tokens, %.1f tok/s%s\n", last->n_generated, rate(n_timed, last->generate_seconds),
                qn_draft_text(last->n_generated, 0, last->n_drafted, last->n_accepted, drafted));
    }
    return QN_CHAT_GO_ON;
}

/* ---- The table ---- */

static qn_chat_next run_help(qn_chat *chat, const char *rest);

static const qn_chat_command_info commands[] = {
    { "/help", "", "list the commands", run_help, QN_CHAT_TAKES_TEXT },
    { "/regen", "", "answer the last message again", run_regen, QN_CHAT_TAKES_TEXT },
    { "/edit", "[TEXT]", "edit the last message, or replace it by TEXT, and answer it", run_edit, QN_CHAT_TAKES_TEXT },
    { "/think", "[on|off|LEVEL]", "thinking; LEVEL is none, minimal, low, medium, high, xhigh or max", run_think,
      QN_CHAT_TAKES_LEVEL },
    { "/system", "[TEXT]", "show the system's turn, or set it and begin again", run_system, QN_CHAT_TAKES_TEXT },
    { "/reset", "", "begin again with the same system's turn", run_reset, QN_CHAT_TAKES_TEXT },
    { "/save", "FILE", "write the messages to FILE, as JSON, and their cache to FILE.session", run_save,
      QN_CHAT_TAKES_FILE },
    { "/load", "FILE", "continue such a file, or a session file of --save", run_load, QN_CHAT_TAKES_FILE },
    { "/context", "", "tokens and memory used, speed of the last answer", run_context, QN_CHAT_TAKES_TEXT },
    { "/exit", "", "leave (or Ctrl-D)", run_exit, QN_CHAT_TAKES_TEXT },
    { "/quit", "", "the same", run_exit, QN_CHAT_TAKES_TEXT },
};
enum { N_COMMANDS = sizeof commands / sizeof *commands };

const qn_chat_command_info *qn_chat_commands(size_t *n)
{
    *n = N_COMMANDS;
    return commands;
}

static qn_chat_next run_help(qn_chat *chat, const char *rest)
{
    (void)chat;
    (void)rest;
    for (size_t i = 0; i < N_COMMANDS; i++)
        qn_wrap_print(stderr, "%-8s %-15s %s\n", commands[i].name, commands[i].arguments, commands[i].help);
    qn_wrap_print(
        stderr, "%s",
        "//TEXT                   send /TEXT\n"
        "A backslash at the end of a line continues the message on the next one. Tab completes commands and files.\n"
        "Ctrl-C stops an answer, Ctrl-Z the program. What is typed during an answer is kept for the next message.\n");
    return QN_CHAT_GO_ON;
}

qn_chat_next qn_chat_command(qn_chat *chat, const char *text)
{
    const size_t n = strcspn(text, " \t\n");
    const char *rest = text + n + strspn(text + n, " \t\n");
    for (size_t i = 0; i < N_COMMANDS; i++) {
        if (strlen(commands[i].name) != n || strncmp(commands[i].name, text, n) != 0)
            continue;
        if (!*commands[i].arguments && *rest) {
            qn_cli_error("%s takes no argument", commands[i].name);
            return QN_CHAT_GO_ON;
        }
        size_t length = strlen(rest);
        while (length && strchr(" \t\n", rest[length - 1]))
            length--;
        char *trimmed = qn_strndup(rest, length);
        if (!trimmed) {
            qn_cli_error("no memory for the command");
            return QN_CHAT_GO_ON;
        }
        const qn_chat_next next = commands[i].run(chat, trimmed);
        free(trimmed);
        return next;
    }
    qn_cli_error("unknown command '%s'; /help lists the commands, //TEXT sends /TEXT", text);
    return QN_CHAT_GO_ON;
}
