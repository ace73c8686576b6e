/* Chat templates: converts a conversation to tokens in the model's chat format.
 *
 * A GGUF file contains its template as Jinja source. quern does not execute it for a conversation: text/chatml.c determines
 * once whether its output is plain ChatML for all conversations, and the two properties in which such templates differ: a
 * default system message, and whether the beginning-of-text token is added. */
#ifndef QN_TEXT_CHAT_H
#define QN_TEXT_CHAT_H

#include "gguf/gguf.h"
#include "quern/quern.h"
#include "text/tokenizer.h"

typedef struct qn_chat_template qn_chat_template;

/* qn_chat_template_create - analyse tokenizer.chat_template of a file.
 *
 *   tok   the tokeniser of the file. Neither needs to outlive the template
 *   out   free it with qn_chat_template_free
 *
 * A missing or unsupported template is not an error: its name is "", and qn_chat_encode reports the reason. QN_ERR_FORMAT if
 * the key is not a string. */
qn_status qn_chat_template_create(const qn_gguf *file, const qn_tokenizer *tok, qn_chat_template **out);
void qn_chat_template_free(qn_chat_template *chat);

/* qn_chat_template_name - "chatml", or "" if the template is missing or not supported. */
const char *qn_chat_template_name(const qn_chat_template *chat);

/* qn_chat_encode - convert a conversation to tokens.
 *
 *   messages        [n] in order. Control tokens spelled in contents are not parsed
 *   n               number of messages
 *   add_assistant   append the header of the assistant's next turn
 *   tokens          [*count] free them with free()
 *   count           number of tokens
 *
 * ChatML is "<|im_start|>role\ncontent<|im_end|>\n" for each message.
 *
 * QN_ERR_UNSUPPORTED   the template is missing or not supported; the text describes it
 * QN_ERR_INVALID       a role other than "system", "user" and "assistant", or a NULL */
qn_status qn_chat_encode(const qn_tokenizer *tok, const qn_chat_template *chat, const qn_chat_message *messages, size_t n,
                         bool add_assistant, int32_t **tokens, size_t *count);

#endif
