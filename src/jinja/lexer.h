/* Tokens of a template: the text between tags, and the contents of tags. */
#ifndef QN_JINJA_LEXER_H
#define QN_JINJA_LEXER_H

#include "jinja/arena.h"

#include <stdbool.h>
#include <stdint.h>

typedef enum qn_token_kind {
    QN_TOKEN_TEXT,
    QN_TOKEN_PRINT_BEGIN, /* {{ */
    QN_TOKEN_PRINT_END,
    QN_TOKEN_BLOCK_BEGIN, /* {% */
    QN_TOKEN_BLOCK_END,
    QN_TOKEN_NAME,
    QN_TOKEN_STRING, /* with its quotes */
    QN_TOKEN_INT,
    QN_TOKEN_FLOAT,
    QN_TOKEN_OPERATOR,
    QN_TOKEN_END,
} qn_token_kind;

typedef struct qn_template_token {
    qn_token_kind kind;
    uint32_t begin, end; /* bytes of the source */
    uint32_t line;
} qn_template_token;

/* qn_template_lex - splits a source with normalised newlines into tokens, allocated in the arena; the last is
 * QN_TOKEN_END.
 *
 * QN_ERR_INVALID, with the line: a tag, comment or string without an end, brackets that do not match, an unexpected
 * character. */
qn_status qn_template_lex(qn_arena *arena, const char *source, size_t length, qn_template_token **tokens);

/* qn_space_at - the number of bytes of the white space character (Python's str.isspace) at data[at]; 0 if there is
 * none. */
size_t qn_space_at(const char *data, size_t length, size_t at);

/* qn_space_before - the number of bytes of the white space character that ends before data[at]; 0 if there is none. */
size_t qn_space_before(const char *data, size_t at);

#endif
