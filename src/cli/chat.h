/* Shared by the files of quern chat: the state of a chat, and its commands. */
#ifndef QN_CLI_CHAT_H
#define QN_CLI_CHAT_H

#include "cli/answer.h"
#include "cli/line.h"

#include <limits.h>

typedef struct qn_chat {
    const qn_args *args;
    qn_model *model;
    qn_session *session; /* replaced by one that is loaded */
    qn_line *lines;
    qn_conversation conversation;
    qn_reasoning_view view;
    uint64_t seed;      /* of the next answer; changes, so that a repeated question may get another answer */
    qn_cli_answer last; /* of the last answer only the numbers */
} qn_chat;

/* qn_chat_answer - answer the last user message. If that fails, messages from index n_before on are dropped. False: the
 * chat cannot continue. */
bool qn_chat_answer(qn_chat *chat, size_t n_before);

/* qn_chat_ask - add a user message and answer it. False: the chat cannot continue. */
bool qn_chat_ask(qn_chat *chat, const char *text);

typedef enum qn_chat_next {
    QN_CHAT_GO_ON,
    QN_CHAT_LEAVE, /* the user leaves */
    QN_CHAT_FAILED
} qn_chat_next;

typedef enum qn_chat_takes { QN_CHAT_TAKES_TEXT, QN_CHAT_TAKES_FILE, QN_CHAT_TAKES_LEVEL } qn_chat_takes;

typedef struct qn_chat_command_info {
    const char *name, *arguments, *help;
    qn_chat_next (*run)(qn_chat *chat, const char *rest); /* `rest`: the text after the name, trimmed */
    qn_chat_takes takes;                                  /* what Tab completes */
} qn_chat_command_info;

/* qn_chat_commands - the table of commands [*n]. */
const qn_chat_command_info *qn_chat_commands(size_t *n);

/* qn_chat_command - run the command of a message that begins with one slash. */
qn_chat_next qn_chat_command(qn_chat *chat, const char *text);

/* qn_chat_complete - a qn_complete_fn for messages and commands, without a user pointer. */
void qn_chat_complete(void *unused, const char *text, size_t length, qn_completions *completions);

/* ---- Files ---- */

/* qn_chat_path - the path of a file that the user names: "~/" is the home directory. False: it is too long. */
bool qn_chat_path(const char *name, char path[PATH_MAX]);

/* qn_chat_save - write the messages to a file and the session's cache to another, with ".session" after the name; says
 * so, or prints an error line. */
void qn_chat_save(const qn_chat *chat, const char *path);

/* qn_chat_load - replace the conversation by that of a file of /save or a session file, and the session by its cache.
 * After an error the conversation may be changed. */
qn_status qn_chat_load(qn_chat *chat, const char *path);

/* qn_chat_show_last - on a terminal, show the last turns. */
void qn_chat_show_last(const qn_chat *chat);

#endif
