/* Text that arrives in pieces, wrapped at words at a terminal's edge. Every piece is shown at once; a word that turns
 * out to be too long for its line is moved to the next one. Lines of fenced code are not wrapped at words. */
#ifndef QN_CLI_WRAP_H
#define QN_CLI_WRAP_H

#include "cli/columns.h"
#include "quern/status.h"

#include <stdio.h>

typedef struct qn_wrap {
    FILE *to;
    size_t columns; /* of the terminal */
    size_t column;  /* of the cursor, `columns` after the last one */
    qn_columns text;
    char word[1024];      /* what was printed since the last place where the line may end */
    size_t n_word;        /* bytes of it */
    size_t word_column;   /* where it begins */
    bool is_fixed;        /* the word is not moved: it does not fit in `word`, or it is not known where it stands */
    bool has_unsure_line; /* terminals differ about the columns of something in the line before the word */
    bool has_unsure_word; /* or in the word */
    bool breaks;          /* the line ends here if more than spaces or a newline follows */
    size_t n_fence;       /* characters of the fence of the code that this line belongs to; 0: no code */
    char fence;           /* '`' or '~' */
    size_t n_marks;       /* characters of a fence with which this line begins */
    char mark;            /* its character, 0: not yet known; ' ': it begins otherwise */
    bool has_info;        /* something other than spaces follows them */
} qn_wrap;

/* qn_wrap_begin - begins a text in the first column. */
void qn_wrap_begin(qn_wrap *wrap, FILE *to);

/* qn_wrap_again - others have printed something, or not: the text goes on in another line. */
void qn_wrap_again(qn_wrap *wrap);

/* qn_wrap_text - prints a piece of whole UTF-8 characters. Control characters other than newline and tab, and bytes
 * that are not UTF-8, are dropped.
 *
 *   columns   of the terminal now, at least 1; may differ from call to call */
void qn_wrap_text(qn_wrap *wrap, const char *text, size_t length, size_t columns);

/* qn_wrap_print - prints a formatted text of at most 4095 bytes that begins a line: wrapped on a terminal that moves
 * the cursor, unchanged elsewhere. */
void qn_wrap_print(FILE *to, const char *format, ...) QN_PRINTF(2, 3);

#endif
