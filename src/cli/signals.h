/* Signals. The first Ctrl-C requests a stop; the second restores the terminal and ends the program by the signal.
 * SIGBUS is handled for model files that are truncated while in use. A conversation on a terminal also handles Ctrl-Z
 * and changes of the terminal's size. */
#ifndef QN_CLI_SIGNALS_H
#define QN_CLI_SIGNALS_H

#include "quern/quern.h"

/* qn_signals_install - catch SIGINT, SIGTERM, SIGHUP, SIGQUIT and SIGBUS, and ignore SIGPIPE and SIGXFSZ. */
void qn_signals_install(void);

/* qn_signals_watch_terminal - from now on, the terminal is as it was found (cli/terminal.h) while the program is
 * stopped by Ctrl-Z, and when it is ended by a signal that it does not catch otherwise; changes of the size wake
 * qn_signals_wait_for_input. */
void qn_signals_watch_terminal(void);

/* qn_signals_session - set the session that a signal cancels; NULL: none. Set NULL before the session is freed. */
void qn_signals_session(qn_session *session);

/* qn_signals_stop_requested - whether a signal has requested a stop. */
bool qn_signals_stop_requested(void);

/* What signals do to a server. The functions are called by signal handlers. */
typedef struct qn_signals_server {
    void (*stop)(void *user);   /* the first SIGINT or SIGTERM */
    void (*reload)(void *user); /* SIGHUP */
    void *user;
} qn_signals_server;

/* qn_signals_serve - SIGHUP has the server reload from now on. *server is valid until qn_signals_served. */
void qn_signals_serve(const qn_signals_server *server);

/* qn_signals_serve_stops - from now on, SIGINT and SIGTERM stop the server, the second one ends the program. If one of
 * them has requested a stop before, `stop` is called now and true is returned: the program does not end by it. */
bool qn_signals_serve_stops(void);

/* qn_signals_served - the server is freed next: SIGHUP is ignored; SIGINT and SIGTERM end the program. */
void qn_signals_served(void);

/* qn_signals_clear - clear a SIGINT, so that a conversation continues after Ctrl-C. Other signals stay set. */
void qn_signals_clear(void);

typedef enum qn_signals_wake {
    QN_WAKE_INPUT,  /* there is input, or its end */
    QN_WAKE_STOP,   /* a stop was requested, also before the call */
    QN_WAKE_RESIZE, /* the terminal has another size */
    QN_WAKE_RETURN  /* the program was stopped and goes on: others have written to the terminal */
} qn_signals_wake;

/* qn_signals_wait_for_input - wait until `fd` can be read or a signal came. */
qn_signals_wake qn_signals_wait_for_input(int fd);

/* qn_signals_drop_redraw - forget changes of the terminal until now: all is drawn next. Returns whether the program was
 * stopped and went on. */
bool qn_signals_drop_redraw(void);

/* qn_signals_disable_force_quit - from now on a second signal has no effect: for work that must clean up and checks for
 * a stop often enough. */
void qn_signals_disable_force_quit(void);

/* qn_signals_exit - if a signal was caught, end the program by it, so that the calling shell sees it; else return. */
void qn_signals_exit(void);

#endif
