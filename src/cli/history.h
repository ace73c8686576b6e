/* The history of edited messages: the file quern/chat_history in $XDG_STATE_HOME, else in $HOME/.local/state. One entry
 * per line; backslashes and newlines are escaped by a backslash. Only its owner can read it. If it cannot be read or
 * written, there is no history of earlier runs, and no error. */
#ifndef QN_CLI_HISTORY_H
#define QN_CLI_HISTORY_H

#include <stddef.h>

enum { QN_HISTORY_ENTRIES = 500 };

/* qn_history_load - call `remember` for each of the last QN_HISTORY_ENTRIES entries, the oldest first. A file of more
 * than twice that number is cut to them. */
void qn_history_load(void (*remember)(void *user, const char *text), void *user);

/* qn_history_add - append an entry without its last newline. Several programs may append at the same time. */
void qn_history_add(const char *text, size_t length);

#endif
