/* Internal declarations shared by template_probe.c and template_expression.c. */
#ifndef QN_TEXT_TEMPLATE_PROBE_INTERNAL_H
#define QN_TEXT_TEMPLATE_PROBE_INTERNAL_H

#include "text/template_probe.h"

enum { QN_PROBE_MAX_VARIABLES = 16, QN_PROBE_MAX_TEXT = 1 << 16 };

typedef enum qn_probe_token_kind {
    QN_PROBE_NOTHING,
    QN_PROBE_NAME,
    QN_PROBE_STRING, /* text: between the quotes, with escapes */
    QN_PROBE_NUMBER,
    QN_PROBE_SIGN
} qn_probe_token_kind;

typedef struct qn_probe_token {
    qn_probe_token_kind kind;
    const char *text;
    size_t n;
} qn_probe_token;

typedef enum qn_probe_kind {
    QN_PROBE_UNDEFINED,
    QN_PROBE_NONE,
    QN_PROBE_BOOL,
    QN_PROBE_TEXT,    /* strings[at .. at + n) */
    QN_PROBE_LIST,    /* messages `at` and following */
    QN_PROBE_MESSAGE, /* message `at` */
    QN_PROBE_LOOP
} qn_probe_kind;

typedef struct qn_probe_value {
    qn_probe_kind kind;
    bool truth;
    size_t at, n;
} qn_probe_value;

typedef struct qn_probe_variable {
    const char *name;
    size_t n;
    qn_probe_value value;
} qn_probe_variable;

struct qn_probe {
    char *text, *end;
    bool too_long, has_controls;
    /* The conversation. */
    const char *const *roles;
    size_t n_messages;
    bool add_generation_prompt;
    /* The current position. */
    const char *at, *tag; /* tag: the latest tag, for qn_probe_refuse */
    bool line_begins;     /* `at` is at the beginning of a line */
    const char *token_at, *token_end;
    qn_probe_token token, stop;
    bool in_loop, loop_first, loop_last;
    size_t nesting;
    qn_probe_variable variables[QN_PROBE_MAX_VARIABLES];
    size_t n_variables, n_strings, n_out;
    char strings[QN_PROBE_MAX_TEXT], out[QN_PROBE_MAX_TEXT];
    char problem[256];
};

/* Sets the problem, with line and excerpt of the current tag. Returns false. */
bool qn_probe_refuse(qn_probe *p, const char *format, ...) __attribute__((format(printf, 2, 3)));

void qn_probe_next_token(qn_probe *p);
bool qn_probe_is(const qn_probe *p, const char *word); /* whether the current token is this name or sign */
bool qn_probe_expect_end(qn_probe *p);

/* Evaluates the expression that begins with the current token. */
bool qn_probe_expression(qn_probe *p, qn_probe_value *v);
bool qn_probe_truth(qn_probe *p, const qn_probe_value *v, bool *truth);
bool qn_probe_set(qn_probe *p, qn_probe_token name, qn_probe_value v);

#endif
