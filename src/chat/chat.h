/* Chat templates: converts a conversation to text and tokens in the model's chat format.
 *
 * The template is the model file's own (tokenizer.chat_template), or one that the caller gives; src/jinja runs it. A file
 * without a template has ChatML if its vocabulary has ChatML's tokens. */
#ifndef QN_CHAT_CHAT_H
#define QN_CHAT_CHAT_H

#include "gguf/gguf.h"
#include "chat/adapt.h"
#include "jinja/jinja.h"
#include "chat/output_parser.h"
#include "text/tokenizer.h"

typedef struct qn_chat_template qn_chat_template;

/* qn_chat_template_create - the template of a file.
 *
 *   tok     the tokeniser of the file. Neither needs to outlive the template
 *   given   a template to use instead of the file's, or NULL
 *   out     free it with qn_chat_template_free; immutable, threads may use it at the same time
 *
 * A file without a template that can be used is not an error: its name is "", and qn_chat_render reports the reason.
 *
 * QN_ERR_FORMAT                        the file's key is not a string
 * QN_ERR_INVALID, QN_ERR_UNSUPPORTED   `given` is no template, or not a supported one */
qn_status qn_chat_template_create(const qn_gguf *file, const qn_tokenizer *tok, const char *given, qn_chat_template **out);
void qn_chat_template_free(qn_chat_template *chat);

/* qn_chat_template_name - "file", "given", "chatml" (the file has none), or "" if there is none that can be used. */
const char *qn_chat_template_name(const qn_chat_template *chat);

/* qn_chat_template_problem - what the model has in place of a template that can be used; "" if it has one. */
const char *qn_chat_template_problem(const qn_chat_template *chat);

/* qn_chat_template_jinja - the compiled template, or NULL. */
const qn_jinja *qn_chat_template_jinja(const qn_chat_template *chat);

/* qn_chat_template_output - how answers are parsed back: the form of qn_output_form_of, delimiters with their token ids, and
 * the words that end reasoning, which are the template's. False if the template has tools whose calls cannot be parsed back.
 * Without a template the form is plain. */
bool qn_chat_template_output(const qn_chat_template *chat, qn_output_params *output);

/* qn_chat_template_traits - what the template supports, or NULL. */
const qn_chat_traits *qn_chat_template_traits(const qn_chat_template *chat);

/* qn_chat_render - a conversation as text.
 *
 *   conversation   an object: its members are the template's variables (messages, tools, add_generation_prompt, ...), adapted
 *                  to what the template supports (chat_adapt.h). bos_token and eos_token are those of the vocabulary unless
 *                  they are given; tools and documents are none unless they are given. With continue_final_message the text ends
 *                  with the content of the last message (chat_continue.h)
 *   now            seconds since 1970, for templates that print the date
 *   output         free it with qn_jinja_output_free
 *
 * QN_ERR_UNSUPPORTED   there is no template; the text says why
 * QN_ERR_INVALID       what the template says against the conversation; or it fails */
qn_status qn_chat_render(const qn_tokenizer *tok, const qn_chat_template *chat, const json_t *conversation, int64_t now,
                         qn_jinja_output *output);

/* qn_chat_text_tokens - the tokens of a conversation that the template rendered. Its own bytes form control tokens and structural
 * ones, those of the conversation do not. Structural are user-defined tokens that the template spells, or that a form of output has
 * (qn_output_markers), as "<tool_call>".
 *
 *   most     the number of tokens that `tokens` has at most; `count` has all
 *   tokens   [*count or most] free them with free() */
qn_status qn_chat_text_tokens(const qn_tokenizer *tok, const qn_chat_template *chat, const qn_jinja_output *text, size_t most,
                              int32_t **tokens, size_t *count);

/* qn_chat_encode - a conversation as tokens: qn_chat_text_tokens of what qn_chat_render gives. Fails as they do. */
qn_status qn_chat_encode(const qn_tokenizer *tok, const qn_chat_template *chat, const json_t *conversation, int64_t now,
                         int32_t **tokens, size_t *count);

#endif
