/* Requests of Windows to stop: Ctrl-C, Ctrl-Break and the end of the console, which come on a thread of their own.
 * Changes of the console's size come with its input. */
#include "cli/signals.h"

#include "cli/terminal.h"
#include "cli/win32/console.h"

#include "base/program.h"

#include <io.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <windows.h>

/* What a console reports as the exit status of a program that Ctrl-C has ended. */
enum { ENDED_BY_CONTROL_C = (int)0xC000013A };

enum { NO_EVENT = -1 };

static atomic_int caught = NO_EVENT; /* the last event; written with the lock */
static atomic_bool force_quit_disabled;
static HANDLE wake; /* an event, set when a stop is requested */

/* What events stop: a session or server is not freed while an event uses it, and each event is seen by one of them. */
static SRWLOCK lock = SRWLOCK_INIT;
static qn_session *session; /* that an event cancels; NULL: none */
static const qn_signals_server *server;
static bool stops_server; /* an event stops it */
static bool has_stopped;  /* one did */

/* Requests a stop, with the lock. False if one was requested before. */
static bool request_stop(DWORD event)
{
    if (stops_server) {
        const bool is_first = !has_stopped;
        has_stopped = true;
        if (is_first)
            server->stop(server->user);
        return is_first;
    }
    if (atomic_load(&caught) != NO_EVENT && !atomic_load(&force_quit_disabled))
        return false;
    atomic_store(&caught, (int)event);
    if (session)
        qn_session_cancel(session);
    SetEvent(wake);
    return true;
}

/* Requests a stop; the second event ends the program. */
static BOOL WINAPI on_event(DWORD event)
{
    AcquireSRWLockExclusive(&lock);
    const bool is_first = request_stop(event);
    ReleaseSRWLockExclusive(&lock);
    if (!is_first) {
        qn_terminal_leave();
        return FALSE; /* the system's handler ends the program */
    }
    /* When the console is closed or the system shut down, Windows ends the program as soon as this returns: it has the
     * seconds that Windows gives it to end by itself. */
    if (event != CTRL_C_EVENT && event != CTRL_BREAK_EVENT)
        Sleep(INFINITE);
    return TRUE;
}

void qn_signals_install(void)
{
    wake = CreateEventW(NULL, TRUE, FALSE, NULL);
    SetConsoleCtrlHandler(on_event, TRUE);
}

void qn_signals_watch_terminal(void)
{
}

void qn_signals_session(qn_session *new_session)
{
    AcquireSRWLockExclusive(&lock);
    session = new_session;
    ReleaseSRWLockExclusive(&lock);
}

bool qn_signals_stop_requested(void)
{
    return atomic_load(&caught) != NO_EVENT;
}

void qn_signals_serve(const qn_signals_server *of)
{
    server = of; /* nothing tells it to reload */
}

bool qn_signals_serve_stops(void)
{
    AcquireSRWLockExclusive(&lock);
    const bool was_requested = atomic_exchange(&caught, NO_EVENT) != NO_EVENT;
    stops_server = true;
    if (was_requested) {
        ResetEvent(wake);
        has_stopped = true;
        server->stop(server->user);
    }
    ReleaseSRWLockExclusive(&lock);
    return was_requested;
}

void qn_signals_served(void)
{
    AcquireSRWLockExclusive(&lock);
    stops_server = false;
    ReleaseSRWLockExclusive(&lock);
}

void qn_signals_clear(void)
{
    AcquireSRWLockExclusive(&lock);
    if (atomic_load(&caught) == CTRL_C_EVENT) {
        ResetEvent(wake);
        atomic_store(&caught, NO_EVENT);
    }
    ReleaseSRWLockExclusive(&lock);
}

qn_signals_wake qn_signals_wait_for_input(int fd)
{
    const HANDLE both[] = { wake, (HANDLE)_get_osfhandle(fd) };
    if (!qn_is_terminal(fd))
        return qn_signals_stop_requested() ? QN_WAKE_STOP : QN_WAKE_INPUT;
    for (;;) {
        if (qn_signals_stop_requested())
            return QN_WAKE_STOP;
        if (qn_console_has_input())
            return QN_WAKE_INPUT;
        if (qn_console_was_resized())
            return QN_WAKE_RESIZE;
        WaitForMultipleObjects(2, both, FALSE, INFINITE);
    }
}

bool qn_signals_drop_redraw(void)
{
    (void)qn_console_was_resized();
    return false;
}

void qn_signals_disable_force_quit(void)
{
    atomic_store(&force_quit_disabled, true);
}

void qn_signals_exit(void)
{
    if (qn_signals_stop_requested())
        exit(ENDED_BY_CONTROL_C);
}
