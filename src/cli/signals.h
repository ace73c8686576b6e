/* Ctrl-C: the first one requests a stop, the second one restores the terminal and ends the program by the signal. And SIGBUS
 * of models whose files are cut while they are in use. */
#ifndef QN_CLI_SIGNALS_H
#define QN_CLI_SIGNALS_H

#include "quern/quern.h"

/* qn_signals_install - catch SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGBUS, ignore SIGPIPE and SIGXFSZ, remember the terminal's
 * settings, and make sure that descriptors 0 to 2 are taken, so that no file opened later becomes the standard output.
 * */
void qn_signals_install(void);

/* qn_signals_session - the session that a signal cancels from now on; NULL for none. */
void qn_signals_session(qn_session *session);

/* qn_signals_stop_requested - whether a signal has requested a stop. */
bool qn_signals_stop_requested(void);

/* qn_signals_take_stop - whether SIGINT or SIGTERM has requested a stop, which the caller does in its own way: the program does not
 * end by the signal. */
bool qn_signals_take_stop(void);

/* qn_signals_clear - clear a SIGINT: a conversation continues after Ctrl-C. Other signals stay set. */
void qn_signals_clear(void);

/* qn_signals_wait_for_input - wait until `fd` can be read (true) or a stop is requested (false), also before the call. */
bool qn_signals_wait_for_input(int fd);

/* qn_signals_disable_force_quit - from now on a second signal has no further effect: for work that must clean up and
 * that checks for a stop often enough. */
void qn_signals_disable_force_quit(void);

/* qn_signals_exit - end the program as the caught signal would have, so that a calling shell sees it; returns when there was
 * none. */
void qn_signals_exit(void);

#endif
