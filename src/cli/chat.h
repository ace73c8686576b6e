/* Shared by the files of quern chat: the state of a chat, and its commands. */
#ifndef QN_CLI_CHAT_H
#define QN_CLI_CHAT_H

#include "cli/answer.h"
#include "cli/line.h"

typedef struct qn_chat {
    const qn_args *args;
    const qn_model *model;
    qn_session *session;
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

/* qn_chat_command - run the command of a message that begins with one slash. */
qn_chat_next qn_chat_command(qn_chat *chat, const char *text);

#endif
