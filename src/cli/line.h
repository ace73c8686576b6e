/* Reads messages from the user: a line of a pipe; on a terminal, a line with editing and history (cli/editor.h). Lines
 * that are pasted together (bracketed paste) are one message; a line that ends with a backslash continues on the next.
 * Edited messages are kept in a file (cli/history.h). Between messages a terminal does not echo: what is typed during
 * an answer is read with the next message. */
#ifndef QN_CLI_LINE_H
#define QN_CLI_LINE_H

#include "cli/editor.h"

typedef struct qn_line qn_line;

typedef enum qn_line_result {
    QN_LINE_READ,        /* a message, without its last newline */
    QN_LINE_END,         /* end of input */
    QN_LINE_INTERRUPTED, /* by a signal while waiting; typed text is dropped */
    QN_LINE_FAILED       /* the reason was printed */
} qn_line_result;

/* qn_line_open - open the reader. Lines are edited if standard input and output are a terminal that moves the cursor
 * (cli/terminal.h). If the locale is not UTF-8, they are read without editing, with a note unless `quiet`. False: no
 * memory, an error line was printed. */
bool qn_line_open(qn_line **out, bool quiet);

/* qn_line_close - free the reader and leave the terminal as it was found. */
void qn_line_close(qn_line *line);

/* qn_line_completer - set what the Tab key completes. */
void qn_line_completer(qn_line *line, qn_complete_fn *complete, void *user);

/* qn_line_quiet - from now on the terminal does not echo, until the next message is read. */
void qn_line_quiet(qn_line *line);

/* qn_line_can_edit - whether lines are read with editing. */
bool qn_line_can_edit(const qn_line *line);

/* qn_line_read - read a message; the prompt is shown only on a terminal. For QN_LINE_READ *text is set, for the caller
 * to free(), with a zero byte after *length bytes; the text may have zero bytes, too. The "\r" of a "\r\n" is removed.
 *
 *   initial   text to edit, ignored without editing; NULL: none */
qn_line_result qn_line_read(qn_line *line, const char *prompt, const char *initial, char **text, size_t *length);

#endif
