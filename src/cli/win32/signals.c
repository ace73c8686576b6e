/* Requests of Windows to stop: Ctrl-C, Ctrl-Break and the end of the console, which come on a thread of their own.
 * Changes of the console's size come with its input. */
#include "cli/signals.h"

#include "cli/terminal.h"

#include "base/program.h"

#include <io.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <windows.h>

/* What a console reports as the exit status of a program that Ctrl-C has ended. */
enum { ENDED_BY_CONTROL_C = (int)0xC000013A };

enum { NO_EVENT = -1 };

static atomic_int caught = NO_EVENT; /* the last event */
static atomic_bool force_quit_disabled;
static _Atomic(qn_session *) session; /* that on_event cancels; NULL: none */
static HANDLE wake;                   /* an event, set when a stop is requested */
static const qn_signals_server *server;
static atomic_bool stops_server; /* on_event stops it */
static atomic_bool has_stopped;  /* it did */

/* Requests a stop; the second event ends the program. */
static BOOL WINAPI on_event(DWORD event)
{
    if (atomic_load(&stops_server)) {
        const bool is_second = atomic_exchange(&has_stopped, true);
        if (!is_second)
            server->stop(server->user);
        return !is_second;
    }
    if (atomic_load(&caught) != NO_EVENT && !atomic_load(&force_quit_disabled)) {
        qn_terminal_leave();
        return FALSE; /* the system's handler ends the program */
    }
    atomic_store(&caught, (int)event);
    qn_session *cancelled = atomic_load(&session);
    if (cancelled)
        qn_session_cancel(cancelled);
    SetEvent(wake);
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
    atomic_store(&session, new_session);
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
    atomic_store(&stops_server, true);
    if (atomic_exchange(&caught, NO_EVENT) == NO_EVENT)
        return false;
    ResetEvent(wake);
    atomic_store(&has_stopped, true);
    server->stop(server->user);
    return true;
}

void qn_signals_served(void)
{
    atomic_store(&stops_server, false);
}

void qn_signals_clear(void)
{
    if (atomic_load(&caught) != CTRL_C_EVENT)
        return;
    ResetEvent(wake);
    atomic_store(&caught, NO_EVENT);
}

/* Whether the console has something to read: its queue also has changes of the size and releases of keys, at which a
 * read would wait. Drops those; sets *is_resized. */
static bool has_keys(HANDLE console, bool *is_resized)
{
    INPUT_RECORD record;
    DWORD n;
    while (PeekConsoleInputW(console, &record, 1, &n) && n) {
        if (record.EventType == KEY_EVENT && record.Event.KeyEvent.bKeyDown)
            return true;
        *is_resized = *is_resized || record.EventType == WINDOW_BUFFER_SIZE_EVENT;
        ReadConsoleInputW(console, &record, 1, &n);
    }
    return false;
}

qn_signals_wake qn_signals_wait_for_input(int fd)
{
    const HANDLE input = (HANDLE)_get_osfhandle(fd), both[] = { wake, input };
    if (!qn_is_terminal(fd))
        return qn_signals_stop_requested() ? QN_WAKE_STOP : QN_WAKE_INPUT;
    for (;;) {
        bool is_resized = false;
        if (WaitForMultipleObjects(2, both, FALSE, INFINITE) != WAIT_OBJECT_0 + 1 || qn_signals_stop_requested())
            return QN_WAKE_STOP;
        if (has_keys(input, &is_resized))
            return QN_WAKE_INPUT;
        if (is_resized)
            return QN_WAKE_RESIZE;
    }
}

bool qn_signals_drop_redraw(void)
{
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
