/* A conversation as chat and run --chat hold it: its messages, the tokens of its prompts, and files of it. The chat template
 * renders all messages for each prompt; what the session has of them already is reused by the caller. */
#ifndef QN_CLI_CONVERSATION_H
#define QN_CLI_CONVERSATION_H

#include "quern/quern.h"

#include <jansson.h>

typedef struct qn_conversation {
    const qn_model *model;
    char *system;     /* text of the system message; NULL: none */
    json_t *messages; /* array of the other messages */
    json_t *thinking; /* object: enable_thinking, reasoning_effort, where they are set */
    size_t first;     /* prompts leave out the messages before it */
    qn_token *loaded; /* [n_loaded] of a session file, before the messages; NULL: none */
    size_t n_loaded;
} qn_conversation;

typedef struct qn_prompt {
    qn_token *tokens; /* [count] free with qn_prompt_free */
    size_t count;
    size_t n_messages; /* tokens before the header of the answer: later prompts begin with them */
    size_t n_turns;    /* turns that were dropped for it, what was loaded counted as one */
} qn_prompt;

/* qn_conversation_begin - an empty conversation; `system` is copied, NULL: no system message. Free it with
 * qn_conversation_free, whatever the status. */
qn_status qn_conversation_begin(qn_conversation *c, const qn_model *model, const char *system);
void qn_conversation_free(qn_conversation *c);

/* qn_conversation_load_tokens - the conversation continues what the session holds: its tokens and its pending one, which begin
 * all prompts. The system's text is that of those tokens, or NULL where they begin otherwise. */
qn_status qn_conversation_load_tokens(qn_conversation *c, const qn_session *session);

/* qn_conversation_set_system - and begin again: no messages, nothing loaded. NULL removes it. */
qn_status qn_conversation_set_system(qn_conversation *c, const char *system);

/* qn_conversation_reset - begin again with the same system message. */
void qn_conversation_reset(qn_conversation *c);

/* qn_conversation_add - append a message. Bytes of `content` that are not UTF-8 become U+FFFD.
 *
 *   reasoning   reasoning_content of the message; NULL or "": none */
qn_status qn_conversation_add(qn_conversation *c, const char *role, const char *content, const char *reasoning);

/* qn_conversation_truncate - drop the messages from the index `n` on. */
void qn_conversation_truncate(qn_conversation *c, size_t n);

/* qn_conversation_last_user - the index of the last user message that prompts have, and its text unless that is NULL; SIZE_MAX
 * if there is none. */
size_t qn_conversation_last_user(const qn_conversation *c, const char **text);

/* qn_conversation_prompt - the tokens of all messages and of the answer's header.
 *
 *   capacity   of the context. Where the prompt and the reserve do not fit, the oldest turns after the system message are left
 *              out of this prompt and all later ones, as few as possible and never the last; the reserve may be cut then
 *   reserve    tokens kept for the answer
 *
 * QN_ERR_CONTEXT     the last turn alone does not fit
 * QN_ERR_UNSUPPORTED, QN_ERR_INVALID   as qn_conversation_tokens
 * After an error the conversation is unchanged. */
qn_status qn_conversation_prompt(qn_conversation *c, size_t capacity, size_t reserve, qn_prompt *prompt);
void qn_prompt_free(qn_prompt *prompt);

/* qn_conversation_save - as JSON, {"messages": [...]} with enable_thinking and reasoning_effort where they are set; turns that
 * prompts leave out are in it. The file appears whole; a new one has mode 0600. One that exists must be empty or such a file. */
qn_status qn_conversation_save(const qn_conversation *c, const char *path);

/* qn_conversation_open - such a file in place of `c`, which is unchanged after an error. The template must accept it. */
qn_status qn_conversation_open(qn_conversation *c, const char *path);

#endif
