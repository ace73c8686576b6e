/* Lines from the user: with editing and history on a terminal where libedit was there at build time, plainly otherwise. */
#ifndef QN_CLI_LINE_H
#define QN_CLI_LINE_H

#include <stdbool.h>

typedef struct qn_line qn_line;

typedef enum qn_line_result {
    QN_LINE_READ,        /* a line, without its newline */
    QN_LINE_END,         /* end of input */
    QN_LINE_INTERRUPTED, /* a signal came while waiting: what was typed is dropped */
    QN_LINE_FAILED       /* reading failed; the reason has been printed */
} qn_line_result;

/* qn_line_open - false with an error line when there is no memory. */
bool qn_line_open(qn_line **out);
void qn_line_close(qn_line *line);

/* qn_line_read - the prompt is shown on a terminal only. *text is the caller's to free(), set for QN_LINE_READ. */
qn_line_result qn_line_read(qn_line *line, const char *prompt, char **text);

#endif
