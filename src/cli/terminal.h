/* The terminal of a conversation: its size, whether it is styled, and the modes of its input. What is set here is taken
 * back by qn_terminal_leave, which signal handlers call, too. */
#ifndef QN_CLI_TERMINAL_H
#define QN_CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

typedef enum qn_terminal_mode {
    QN_TERMINAL_FOUND, /* as the program found it */
    QN_TERMINAL_QUIET, /* lines, without echo */
    QN_TERMINAL_KEYS   /* single keys, without echo; Ctrl-C, Ctrl-Z and Ctrl-\ are still signals */
} qn_terminal_mode;

/* qn_terminal_set - sets the mode of standard input, if that is a terminal. Keys that were typed before are kept. */
void qn_terminal_set(qn_terminal_mode mode);

/* qn_terminal_read - reads what was typed, at most `size` bytes of UTF-8, when there is input
 * (qn_signals_wait_for_input). Returns their number, 0 at the end of the input, -1 with errno. */
ptrdiff_t qn_terminal_read(char *bytes, size_t size);

/* qn_terminal_paste - turns bracketed paste on or off on standard output, which is a terminal. */
void qn_terminal_paste(bool on);

/* qn_terminal_drop_input - drops keys that were typed and not read. */
void qn_terminal_drop_input(void);

/* qn_terminal_keep_input - reads keys that were typed and not yet read, for qn_terminal_take_kept: while the program is
 * stopped, they would be read by another, as a shell's commands. For a signal handler, in QN_TERMINAL_KEYS. */
void qn_terminal_keep_input(void);

/* qn_terminal_take_kept - takes at most `size` such bytes. Returns their number. */
size_t qn_terminal_take_kept(char *bytes, size_t size);

/* qn_terminal_leave - leaves the terminal as it was found: modes, style, bracketed paste. qn_terminal_return takes that
 * back if the program is in the foreground. Both may be called by a signal handler. */
void qn_terminal_leave(void);
void qn_terminal_return(void);

/* qn_terminal_size - the columns and rows of a stream's terminal; 80 and 24 if they are unknown. */
void qn_terminal_size(FILE *stream, size_t *columns, size_t *rows);

/* qn_terminal_moves - whether a stream is a terminal that moves the cursor: one that is not "dumb". */
bool qn_terminal_moves(FILE *stream);

/* qn_terminal_style - `sequence`, which sets a style, if the stream is such a terminal and NO_COLOR (no-color.org) is
 * not set; else "". */
const char *qn_terminal_style(FILE *stream, const char *sequence);

#define QN_STYLE_PLAIN "\033[0m"
#define QN_STYLE_DIM "\033[2m"
#define QN_STYLE_PROMPT "\033[1;32m"
#define QN_STYLE_MESSAGE "\033[32m"

#endif
