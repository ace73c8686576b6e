/* Chat templates: converts a conversation to text and tokens in the model's chat format.
 *
 * The template is the model file's own (tokenizer.chat_template) or one that the caller gives; src/jinja runs it. A
 * file without a template gets ChatML if its vocabulary has ChatML's tokens. */
#ifndef QN_CHAT_CHAT_H
#define QN_CHAT_CHAT_H

#include "gguf/gguf.h"
#include "chat/adapt.h"
#include "jinja/jinja.h"
#include "chat/output_parser.h"
#include "text/tokenizer.h"

typedef struct qn_chat_template qn_chat_template;

/* qn_chat_template_create - loads the template of a file.
 *
 *   tok     the tokeniser of the file. Neither needs to outlive the template
 *   given   a template to use instead of the file's, or NULL
 *   out     free it with qn_chat_template_free; immutable, several threads may use it at the same time
 *
 * A file without a usable template is not an error: the template's name is then "", and qn_chat_render reports the
 * reason.
 *
 * QN_ERR_FORMAT                        the file's key is not a string
 * QN_ERR_INVALID, QN_ERR_UNSUPPORTED   `given` is not a template, or not a supported one */
qn_status qn_chat_template_create(const qn_gguf *file, const qn_tokenizer *tok, const char *given,
                                  qn_chat_template **out);
void qn_chat_template_free(qn_chat_template *chat);

/* qn_chat_template_name - "file", "given", "chatml" (the file has no template), or "" without a usable template. */
const char *qn_chat_template_name(const qn_chat_template *chat);

/* qn_chat_template_text - its source; "" without a usable template. */
const char *qn_chat_template_text(const qn_chat_template *chat);

/* qn_chat_template_problem - why there is no usable template; "" if there is one. */
const char *qn_chat_template_problem(const qn_chat_template *chat);

/* qn_chat_template_jinja - the compiled template, or NULL. */
const qn_jinja *qn_chat_template_jinja(const qn_chat_template *chat);

/* qn_chat_template_output - the parameters for parsing answers: the form of qn_output_form_of, delimiters with their
 * token ids, and the template's own words to end reasoning. Without a template the form is plain. Returns false if
 * the template has tools but its calls cannot be parsed. */
bool qn_chat_template_output(const qn_chat_template *chat, qn_output_params *output);

/* qn_chat_template_traits - what the template supports, or NULL. */
const qn_chat_traits *qn_chat_template_traits(const qn_chat_template *chat);

/* qn_chat_render - renders a conversation to text.
 *
 *   conversation   an object: its members are the template's variables (messages, tools, add_generation_prompt, ...),
 *                  adapted to the template (adapt.h). bos_token and eos_token default to the vocabulary's, tools and
 *                  documents to none. With continue_final_message the text ends with the content of the last message
 *                  (continue.h)
 *   now            seconds since 1970, for templates that print the date
 *   output         free it with qn_jinja_output_free
 *
 * QN_ERR_UNSUPPORTED   there is no template; the error text says why
 * QN_ERR_INVALID       the template rejects the conversation, with its own message, or fails */
qn_status qn_chat_render(const qn_tokenizer *tok, const qn_chat_template *chat, const json_t *conversation, int64_t now,
                         qn_jinja_output *output);

/* qn_chat_text_tokens - tokenises a rendered conversation. Only bytes that come from the template, not from the
 * conversation, form control tokens and structural tokens. Structural tokens are user-defined tokens that the template
 * spells or that an output form uses (qn_output_markers), such as "<tool_call>".
 *
 *   most     the greatest number of tokens to return; `count` is the number of all
 *   tokens   [*count, at most `most`] free them with free() */
qn_status qn_chat_text_tokens(const qn_tokenizer *tok, const qn_chat_template *chat, const qn_jinja_output *text,
                              size_t most, int32_t **tokens, size_t *count);

/* qn_chat_encode - renders a conversation and tokenises it: qn_chat_render and qn_chat_text_tokens. Fails as they
 * do. */
qn_status qn_chat_encode(const qn_tokenizer *tok, const qn_chat_template *chat, const json_t *conversation, int64_t now,
                         int32_t **tokens, size_t *count);

#endif
