/* Chat templates: an interpreter of the part of Jinja that they use, in the environment that transformers gives them.
 *
 * The reference is jinja2 with trim_blocks, lstrip_blocks, the extension loopcontrols, the tag `generation`, and
 * transformers' tojson, raise_exception and strftime_now. docs/chat-templates.md lists the supported constructs.
 *
 * A template is untrusted: steps, nesting, loops, memory and output are limited, and it can do nothing but print
 * text. Its output is divided into spans: bytes from the template's own source, which may form special tokens, and
 * bytes from its variables, which may not. */
#ifndef QN_JINJA_JINJA_H
#define QN_JINJA_JINJA_H

#include "quern/status.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct qn_jinja qn_jinja;

/* qn_jinja_compile - parses a template.
 *
 *   source   [length] bytes of UTF-8, copied
 *   out      free it with qn_jinja_free; immutable, several threads may render it at the same time
 *
 * QN_ERR_INVALID       not a valid template: the error text has the line
 * QN_ERR_UNSUPPORTED   an unsupported construct: the error text names it and its line
 * QN_ERR_MEMORY        not enough memory */
qn_status qn_jinja_compile(const char *source, size_t length, qn_jinja **out);
void qn_jinja_free(qn_jinja *jinja); /* when no thread renders it; NULL is allowed */

/* Limits of one rendering. 0 means the default. */
typedef struct qn_jinja_limits {
    uint64_t steps; /* about one for an expression, 64 bytes copied or 16 searched; default 20 million: seconds */
    size_t memory;  /* bytes of values; default 512 MiB */
    size_t output;  /* bytes printed; default 64 MiB */
} qn_jinja_limits;

typedef struct qn_jinja_variable {
    const char *name;
    json_t *value;      /* borrowed. NULL: undefined */
    bool from_template; /* its strings may form special tokens: bos_token */
} qn_jinja_variable;

/* Bytes [begin, end) of the output, all of one origin: the template's source, or its variables. */
typedef struct qn_jinja_span {
    size_t begin, end;
    bool from_template;
} qn_jinja_span;

typedef struct qn_jinja_output {
    char *text; /* [length] and a terminator; free text and spans with qn_jinja_output_free */
    size_t length;
    qn_jinja_span *spans; /* [n_spans] ascending, without gaps */
    size_t n_spans;
} qn_jinja_output;

/* qn_jinja_render - renders a template.
 *
 *   variables   [n] Jansson's values. Objects keep the order of their keys
 *   now         seconds since 1970, which strftime_now prints as local time
 *   limits      NULL: the defaults
 *   output      set on success; free it with qn_jinja_output_free
 *
 * QN_ERR_INVALID   the template raised an exception (the error text is the template's own), failed (line and
 *                  expression), or exceeded a limit */
qn_status qn_jinja_render(const qn_jinja *jinja, const qn_jinja_variable *variables, size_t n, int64_t now,
                          const qn_jinja_limits *limits, qn_jinja_output *output);
void qn_jinja_output_free(qn_jinja_output *output);

/* qn_jinja_uses - whether the template's code contains a variable, attribute, filter or key with a name: a hint, not
 * a proof, of what it does. */
bool qn_jinja_uses(const qn_jinja *jinja, const char *name);

/* qn_jinja_spells - calls `visit` for each string constant and each text of the template, until it returns false. */
void qn_jinja_spells(const qn_jinja *jinja, bool (*visit)(const char *text, size_t length, void *user), void *user);

#endif
