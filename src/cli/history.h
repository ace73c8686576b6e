/* The file of messages that were edited, quern/chat_history in $XDG_STATE_HOME, else in $HOME/.local/state: one a line, "\\"
 * and newlines escaped by a backslash. Only its owner can read it. Where it cannot be read or written there is no history of
 * earlier programs, and no error. */
#ifndef QN_CLI_HISTORY_H
#define QN_CLI_HISTORY_H

#include <stddef.h>

enum { QN_HISTORY_ENTRIES = 500 };

/* qn_history_load - call `remember` for each of the last QN_HISTORY_ENTRIES entries, the oldest first. A file of more than
 * twice as many is cut to them. */
void qn_history_load(void (*remember)(void *user, const char *text), void *user);

/* qn_history_add - append an entry; its last newline is not part of it. Programs may do so at the same time. */
void qn_history_add(const char *text, size_t length);

#endif
