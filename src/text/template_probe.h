/* Evaluates a chat template for a conversation whose contents are placeholders; chatml.c compares the output with plain
 * ChatML.
 *
 * This is not a Jinja interpreter. It supports text, output, if, for over the messages, and set; names, strings, ==, !=, +, ~,
 * and, or, not and some tests; and the settings of transformers' environment (trim_blocks, lstrip_blocks). Any other construct
 * in code that is executed for the conversation is rejected by name, in particular any that reads or changes a content. Code
 * that is not executed, for example for tools, may contain anything. */
#ifndef QN_TEXT_TEMPLATE_PROBE_H
#define QN_TEXT_TEMPLATE_PROBE_H

#include "gguf/gguf.h"
#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { QN_PROBE_MAX_MESSAGES = 4 };

/* Placeholder bytes in the output. Templates with control characters are rejected. */
enum { QN_PROBE_BOS = 0x02, QN_PROBE_CONTENT = 0x10 /* of message 0; QN_PROBE_CONTENT + i of message i */ };

typedef struct qn_probe qn_probe;

/* qn_probe_create - create a probe of a template, which is copied. Free it with qn_probe_free. */
qn_status qn_probe_create(qn_string text, qn_probe **out);
void qn_probe_free(qn_probe *probe);

/* qn_probe_print - evaluate the template for messages of these roles.
 *
 *   roles                   [n] at most QN_PROBE_MAX_MESSAGES
 *   add_generation_prompt   the template variable of this name
 *   text                    the output, valid until the next call
 *
 * False for a construct that is not supported; qn_probe_problem then describes it, with its line. */
bool qn_probe_print(qn_probe *probe, const char *const *roles, size_t n, bool add_generation_prompt, qn_string *text);
const char *qn_probe_problem(const qn_probe *probe);

#endif
