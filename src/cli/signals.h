/* Ctrl-C: the first one asks the work to stop, the second one restores the terminal and ends the program by the signal. */
#ifndef QN_CLI_SIGNALS_H
#define QN_CLI_SIGNALS_H

#include "quern/quern.h"

/* qn_signals_install - catch SIGINT, SIGTERM, SIGHUP and SIGQUIT, ignore SIGPIPE and SIGXFSZ, remember the terminal's settings,
 * and make sure that descriptors 0 to 2 are taken, so that no file opened later becomes the standard output. */
void qn_signals_install(void);

/* qn_signals_session - the session that a signal cancels from now on; NULL for none. */
void qn_signals_session(qn_session *session);

/* qn_signals_stop_requested - whether a signal has asked to stop. */
bool qn_signals_stop_requested(void);

/* qn_signals_clear - clear a SIGINT: a conversation continues after Ctrl-C. Other signals stay set. */
void qn_signals_clear(void);

/* qn_signals_wait_for_input - wait until `fd` can be read (true) or a signal asks to stop (false), also one that came before.
 */
bool qn_signals_wait_for_input(int fd);

/* qn_signals_disable_force_quit - from now on a second signal does nothing more than the first: for work that leaves something to clean up
 * and asks often enough whether to stop. */
void qn_signals_disable_force_quit(void);

/* qn_signals_exit - end the program as the caught signal would have, so that a calling shell sees it; returns when there was
 * none. */
void qn_signals_exit(void);

#endif
