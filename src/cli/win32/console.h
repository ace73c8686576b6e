/* What the files of this folder share of the console's input. */
#ifndef QN_CLI_WIN32_CONSOLE_H
#define QN_CLI_WIN32_CONSOLE_H

#include <stdbool.h>

/* qn_console_has_input - whether a read of the console returns at once: its queue also has changes of the size and
 * keys without characters. Those before the first other one are taken from it. */
bool qn_console_has_input(void);

/* qn_console_was_resized - whether a change of the size was taken; it is then forgotten. */
bool qn_console_was_resized(void);

#endif
