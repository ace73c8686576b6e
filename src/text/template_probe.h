/* What a chat template prints for a conversation whose contents are stand-ins: what src/text/chatml.c decides by.
 *
 * This is no interpreter of Jinja. It follows text, output, if, for over the messages and set; names, strings, ==, !=, +, ~,
 * and, or, not and a few tests; and it knows the settings of transformers' environment (trim_blocks, lstrip_blocks). Whatever
 * else is met in a part that a conversation reaches, above all anything that looks into a content or changes it, is a refusal
 * that names it. Parts that are not reached (tools, for one) may hold anything. */
#ifndef QN_TEXT_TEMPLATE_PROBE_H
#define QN_TEXT_TEMPLATE_PROBE_H

#include "gguf/gguf.h"
#include "quern/status.h"

#include <stdbool.h>
#include <stddef.h>

enum { QN_PROBE_MAX_MESSAGES = 4 };

/* Bytes that stand for something in what is printed; templates with control characters are refused. */
enum { QN_PROBE_BOS = 0x02, QN_PROBE_CONTENT = 0x10 /* and above: of message 0, 1, ... */ };

typedef struct qn_probe qn_probe;

/* qn_probe_create - a probe of one template's text, which is copied; owned by the caller. */
qn_status qn_probe_create(qn_string text, qn_probe **out);
void qn_probe_free(qn_probe *probe);

/* qn_probe_print - what the template prints for messages of these roles: *text, until the next call. False where it has
 * something that is not followed: qn_probe_problem says what and where. */
bool qn_probe_print(qn_probe *probe, const char *const *roles, size_t n, bool add_generation_prompt, qn_string *text);
const char *qn_probe_problem(const qn_probe *probe);

#endif
