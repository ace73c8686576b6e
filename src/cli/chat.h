/* What the files of quern chat share: the state of a chat, and its commands. */
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
    uint64_t seed;  /* of the next answer: the same question twice may get two answers */
    qn_answer last; /* numbers of the last answer, without its texts */
} qn_chat;

/* qn_chat_answer - answer the last user message. Without an answer the messages from index `n_before` on are dropped. False when
 * the chat cannot go on. */
bool qn_chat_answer(qn_chat *chat, size_t n_before);

/* qn_chat_ask - add a user message and answer it. False when the chat cannot go on. */
bool qn_chat_ask(qn_chat *chat, const char *text);

typedef enum qn_chat_next {
    QN_CHAT_GO_ON,
    QN_CHAT_LEAVE, /* the user asked for it */
    QN_CHAT_FAILED
} qn_chat_next;

/* qn_chat_command - do what a message that begins with one slash says. */
qn_chat_next qn_chat_command(qn_chat *chat, const char *text);

#endif
