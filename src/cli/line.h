/* Messages from the user, one at a time: a line of a pipe; on a terminal a line with editing and history where libedit was
 * there at build time. Lines that are pasted together (bracketed paste) are one message, and a line that ends in a backslash is
 * continued by the next one. What was edited is kept in a file (cli/history.h). */
#ifndef QN_CLI_LINE_H
#define QN_CLI_LINE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_line qn_line;

typedef enum qn_line_result {
    QN_LINE_READ,        /* a message, without its last newline */
    QN_LINE_END,         /* end of input */
    QN_LINE_INTERRUPTED, /* a signal came while waiting: what was typed is dropped */
    QN_LINE_FAILED       /* reading failed; the reason has been printed */
} qn_line_result;

/* qn_line_open - false with an error line when there is no memory. Where the locale is not UTF-8 lines are read without
 * editing, with a note unless `quiet`. */
bool qn_line_open(qn_line **out, bool quiet);
void qn_line_close(qn_line *line);

/* qn_line_can_edit - whether lines are read with editing. */
bool qn_line_can_edit(const qn_line *line);

/* qn_line_read - the prompt is shown on a terminal only. *text is the caller's to free(), set for QN_LINE_READ, with a
 * terminating zero; its length tells whether it holds another. The "\r" of a "\r\n" is not part of it.
 *
 *   initial   text to edit, without effect where lines are not edited; NULL: none */
qn_line_result qn_line_read(qn_line *line, const char *prompt, const char *initial, char **text, size_t *length);

#endif
