/* The conversation of chat and run --chat: its messages, the tokens of its prompts, and its files. The chat template
 * renders all messages for each prompt; the caller reuses the part that the session already holds. */
#ifndef QN_CLI_CONVERSATION_H
#define QN_CLI_CONVERSATION_H

#include "quern/quern.h"

#include <jansson.h>
#include <stdbool.h>

typedef struct qn_conversation {
    const qn_model *model;
    char *system;     /* the system message; NULL: none */
    json_t *messages; /* array of the other messages */
    json_t *thinking; /* object with enable_thinking and reasoning_effort, if set */
    size_t first;     /* index of the first message that prompts include */
    qn_token *loaded; /* [n_loaded] tokens of a session file, before the messages; NULL: none */
    size_t n_loaded;
} qn_conversation;

typedef struct qn_cli_prompt {
    qn_token *tokens; /* [count] free with qn_cli_prompt_free */
    size_t count;
    size_t n_messages; /* tokens before the answer's header: later prompts begin with them */
    size_t n_turns;    /* turns dropped to make it fit; loaded tokens count as one */
} qn_cli_prompt;

/* qn_conversation_begin - begin an empty conversation; `system` is copied, NULL: no system message. `effort`: the level
 * of reasoning, or NULL. Free it with qn_conversation_free, whatever the status. */
qn_status qn_conversation_begin(qn_conversation *c, const qn_model *model, const char *system, const char *effort);
void qn_conversation_free(qn_conversation *c);

/* qn_conversation_load_tokens - continue the session: its tokens and its pending token begin all prompts. `system`
 * becomes the system text found in those tokens, or NULL if they begin otherwise. */
qn_status qn_conversation_load_tokens(qn_conversation *c, const qn_session *session);

/* qn_conversation_set_system - set the system message and begin again: no messages, nothing loaded. NULL removes it. */
qn_status qn_conversation_set_system(qn_conversation *c, const char *system);

/* qn_conversation_reset - begin again with the same system message. */
void qn_conversation_reset(qn_conversation *c);

/* qn_conversation_add - append a message. Bytes of `content` that are not UTF-8 become U+FFFD.
 *
 *   reasoning   reasoning_content of the message; NULL or "": none */
qn_status qn_conversation_add(qn_conversation *c, const char *role, const char *content, const char *reasoning);

/* qn_conversation_truncate - drop the messages from index n on. */
void qn_conversation_truncate(qn_conversation *c, size_t n);

/* qn_conversation_last_user - returns the index of the last user message in prompts, and its text if `text` is not
 * NULL; SIZE_MAX: there is none. */
size_t qn_conversation_last_user(const qn_conversation *c, const char **text);

/* qn_conversation_prompt - get the tokens of all messages and of the answer's header.
 *
 *   capacity   tokens of the context. If prompt and reserve do not fit, the oldest turns after the system message are
 *              left out of this and all later prompts: as few as possible, never the last. The reserve may then be cut
 *   reserve    tokens kept free for the answer
 *
 * QN_ERR_CONTEXT                       the last turn alone does not fit
 * QN_ERR_UNSUPPORTED, QN_ERR_INVALID   as qn_conversation_tokens After an error the conversation is unchanged. */
qn_status qn_conversation_prompt(qn_conversation *c, size_t capacity, size_t reserve, qn_cli_prompt *prompt);
void qn_cli_prompt_free(qn_cli_prompt *prompt);

/* qn_conversation_save - write a JSON file: {"messages": [...]}, with enable_thinking and reasoning_effort if set, and
 * with the turns that prompts leave out. The number of loaded tokens, which have no messages, is written as
 * "loaded_tokens". The file appears whole; a new one has mode 0600. An existing file must be empty or a conversation.
 */
qn_status qn_conversation_save(const qn_conversation *c, const char *path);

/* qn_conversation_open - replace the conversation by that of a file, which the template must accept. Thinking and its
 * level are kept if the file sets neither. After an error the conversation is unchanged.
 *
 *   n_loaded   tokens that came before the messages of the file (qn_conversation_take_loaded), usually 0 */
qn_status qn_conversation_open(qn_conversation *c, const char *path, size_t *n_loaded);

/* qn_conversation_take_loaded - the first n tokens of the session come before the messages. QN_ERR_INVALID: it has
 * fewer. */
qn_status qn_conversation_take_loaded(qn_conversation *c, const qn_session *session, size_t n);

/* qn_conversation_is_file - whether a file begins as JSON does, and not as a session file. */
bool qn_conversation_is_file(const char *path);

#endif
