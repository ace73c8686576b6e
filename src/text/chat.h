/* Chat templates: a conversation as the tokens that a model was trained to see.
 *
 * A file carries its template as a Jinja program. quern does not run it for a conversation: text/chatml.c finds out whether it
 * is plain ChatML for all of them, and the two things in which such templates differ: a system message that goes first when the
 * conversation begins without one, and whether the beginning-of-text token does. */
#ifndef QN_TEXT_CHAT_H
#define QN_TEXT_CHAT_H

#include "gguf/gguf.h"
#include "quern/quern.h"
#include "text/tokenizer.h"

typedef struct qn_chat_template qn_chat_template;

/* qn_chat_template_create - what tokenizer.chat_template of a file is; owned by the caller. A file without one, or with one
 * that is not known, is no failure: the name is then "" and qn_chat_encode says what it carries. QN_ERR_FORMAT where it is no
 * string. The tokeniser must be the file's; neither needs to outlive this. */
qn_status qn_chat_template_create(const qn_gguf *file, const qn_tokenizer *tok, qn_chat_template **out);
void qn_chat_template_free(qn_chat_template *chat);

/* qn_chat_template_name - "chatml", or "" where the file has none that is known. */
const char *qn_chat_template_name(const qn_chat_template *chat);

/* qn_chat_encode - the tokens of a conversation.
 *
 *   messages, n     in order; roles are "system", "user" and "assistant"; contents are never read as control tokens
 *   add_assistant   whether the opening of the assistant's next turn follows
 *   tokens, count   owned by the caller: free()
 *
 * ChatML is "<|im_start|>role\ncontent<|im_end|>\n" for each message. QN_ERR_UNSUPPORTED for a template that is missing or not
 * known, saying what the file carries; QN_ERR_INVALID for a role that is not one of the three, or a NULL. */
qn_status qn_chat_encode(const qn_tokenizer *tok, const qn_chat_template *chat, const qn_chat_message *messages, size_t n,
                         bool add_assistant, int32_t **tokens, size_t *count);

#endif
