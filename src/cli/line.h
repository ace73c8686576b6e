/* Reads messages from the user: a line of a pipe; on a terminal, a line with editing and history if libedit was present
 * at build time. Lines that are pasted together (bracketed paste) are one message; a line that ends with a backslash
 * continues on the next. Edited messages are kept in a file (cli/history.h). */
#ifndef QN_CLI_LINE_H
#define QN_CLI_LINE_H

#include <stdbool.h>
#include <stddef.h>

typedef struct qn_line qn_line;

typedef enum qn_line_result {
    QN_LINE_READ,        /* a message, without its last newline */
    QN_LINE_END,         /* end of input */
    QN_LINE_INTERRUPTED, /* by a signal while waiting; typed text is dropped */
    QN_LINE_FAILED       /* the reason was printed */
} qn_line_result;

/* qn_line_open - open the reader. If the locale is not UTF-8, lines are read without editing, with a note unless
 * `quiet`. False: no memory, an error line was printed. */
bool qn_line_open(qn_line **out, bool quiet);
void qn_line_close(qn_line *line);

/* qn_line_can_edit - whether lines are read with editing. */
bool qn_line_can_edit(const qn_line *line);

/* qn_line_read - read a message; the prompt is shown only on a terminal. For QN_LINE_READ *text is set, for the caller
 * to free(), with a zero byte after *length bytes; the text may have zero bytes, too. The "\r" of a "\r\n" is removed.
 *
 *   initial   text to edit, ignored without editing; NULL: none */
qn_line_result qn_line_read(qn_line *line, const char *prompt, const char *initial, char **text, size_t *length);

#endif
