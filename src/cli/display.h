/* Shows a text that is edited in rows of a terminal, after a prompt, and its cursor. Only rows that differ from those
 * shown are printed. A text with more rows than the terminal is shown in part. */
#ifndef QN_CLI_DISPLAY_H
#define QN_CLI_DISPLAY_H

#include "cli/measure.h"

#include <stdio.h>

typedef struct qn_display_row {
    size_t begin, end; /* of its bytes */
    size_t columns;
} qn_display_row;

typedef struct qn_frame {
    char *bytes;
    size_t length, capacity;
    qn_display_row *rows; /* [n_rows] */
    size_t n_rows, rows_capacity;
    size_t cursor_row, cursor_column;
} qn_frame;

/* Zero it, and set the first four; free it with qn_display_free. */
typedef struct qn_display {
    FILE *to;
    const char *prompt_style, *text_style; /* sequences, or "" */
    const char *prompt;                    /* printable ASCII */
    qn_frame shown, next;
    size_t columns, n_rows; /* of the terminal */
    qn_measure measure;
} qn_display;

void qn_display_free(qn_display *display);

/* qn_display_size - sets the size of the terminal. If it has changed, all is drawn again the next time. */
void qn_display_size(qn_display *display, size_t columns, size_t rows);

/* qn_display_draw - shows a text with the cursor at an index, which is the boundary of a cluster. */
void qn_display_draw(qn_display *display, const char *text, size_t length, size_t cursor);

/* qn_display_leave - moves the cursor below the text, which stays there. The next text is drawn from there on. */
void qn_display_leave(qn_display *display);

/* qn_display_again - forgets what is shown, as something else was printed: the cursor is in the first column of the
 * row with which the next drawing begins. */
void qn_display_again(qn_display *display);

#endif
