/* Signal handlers, and their state: what a handler shares with the program is volatile and written in one piece. */
#include "cli/signals.h"

#include "base/program.h"
#include "cli/terminal.h"

#include "base/mapping.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

static volatile sig_atomic_t caught;              /* the last signal, 0 for none */
static volatile sig_atomic_t force_quit_disabled; /* a second signal does not end the program */
static int wake[2] = { -1, -1 };                  /* the handler writes to it; qn_signals_wait_for_input polls it */
static qn_session *volatile session;              /* that on_signal cancels; NULL: none */
static volatile sig_atomic_t is_resized, has_returned; /* set by handlers, cleared when they were seen */

static void wake_reader(void)
{
    const ssize_t woken = write(wake[1], "", 1);
    (void)woken; /* a full pipe wakes the reader as well */
}

/* Requests a stop; the second signal ends the program. */
static void on_signal(int number)
{
    const int saved_errno = errno;
    if (caught && !force_quit_disabled) {
        qn_terminal_leave();
        if (qn_is_terminal(STDERR_FILENO)) {
            static const char clear[] = "\033[0m\r\033[K";
            const ssize_t ignored = write(STDERR_FILENO, clear, sizeof clear - 1);
            (void)ignored; /* the program ends anyway */
        }
        signal(number, SIG_DFL);
        raise(number);
    }
    caught = number;
    if (session)
        qn_session_cancel(session);
    wake_reader();
    errno = saved_errno;
}

/* Handles SIGBUS: a model's file was truncated while mapped. The missing part becomes zeros, and the library reports
 * the file. Runs on the thread that read it. */
static void on_bus_error(int number, siginfo_t *info, void *context)
{
    (void)context;
    if (info->si_code > 0 && qn_mapping_replace(info->si_addr)) /* sent by the kernel, not by kill() */
        return;
    signal(number, SIG_DFL);
    raise(number);
}

static void catch_bus_errors(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_sigaction = on_bus_error;
    action.sa_flags = SA_SIGINFO | SA_RESTART;
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

/* Without a pipe a signal between two checks is noticed at the next key. Not by pipe2, which macOS lacks. */
static void open_wake_pipe(void)
{
    if (pipe(wake)) {
        wake[0] = wake[1] = -1;
        return;
    }
    for (int i = 0; i < 2; i++) {
        (void)fcntl(wake[i], F_SETFD, FD_CLOEXEC);
        (void)fcntl(wake[i], F_SETFL, O_NONBLOCK);
    }
}

void qn_signals_install(void)
{
    open_wake_pipe();
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_signal; /* without SA_RESTART: it must interrupt reads from the terminal */
    sigemptyset(&action.sa_mask);
    const int stops[] = { SIGINT, SIGTERM, SIGHUP, SIGQUIT };
    for (size_t i = 0; i < sizeof stops / sizeof *stops; i++) {
        struct sigaction before;
        /* A signal that the parent process ignores (nohup, background jobs) stays ignored. */
        if (sigaction(stops[i], NULL, &before) == 0 && before.sa_handler != SIG_IGN)
            sigaction(stops[i], &action, NULL);
    }
    catch_bus_errors();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* writing a file that is too large is an error to report */
}

/* ---- The terminal of a conversation ---- */

static void catch_signal(int number, void (*handler)(int))
{
    struct sigaction action, before;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (sigaction(number, NULL, &before) == 0 && before.sa_handler == SIG_DFL)
        sigaction(number, &action, NULL);
}

static void on_resize(int number)
{
    const int saved_errno = errno;
    (void)number;
    is_resized = 1;
    wake_reader();
    errno = saved_errno;
}

static void on_continue(int number)
{
    const int saved_errno = errno;
    (void)number;
    qn_terminal_return();
    has_returned = 1;
    wake_reader();
    errno = saved_errno;
}

/* Stops the program by the signal's own action, with the terminal as it was found, and returns when it goes on. */
static void on_suspend(int number)
{
    const int saved_errno = errno;
    struct sigaction stop, caught_here;
    sigset_t this_one, before;
    qn_terminal_keep_input();
    qn_terminal_leave();
    memset(&stop, 0, sizeof stop);
    stop.sa_handler = SIG_DFL;
    sigemptyset(&stop.sa_mask);
    sigaction(number, &stop, &caught_here);
    sigemptyset(&this_one);
    sigaddset(&this_one, number);
    raise(number);
    pthread_sigmask(SIG_UNBLOCK, &this_one, &before); /* it stops here */
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    sigaction(number, &caught_here, NULL);
    qn_terminal_return(); /* also if the kernel did not stop it, as nobody could continue it */
    errno = saved_errno;
}

/* Leaves the terminal as it was found before a signal ends the program. */
static void on_end(int number)
{
    qn_terminal_leave();
    signal(number, SIG_DFL);
    raise(number);
}

void qn_signals_watch_terminal(void)
{
    static const int ends[] = { SIGSEGV, SIGABRT, SIGFPE, SIGILL, SIGALRM, SIGUSR1, SIGUSR2, SIGXCPU };
    catch_signal(SIGWINCH, on_resize);
    catch_signal(SIGCONT, on_continue);
    catch_signal(SIGTSTP, on_suspend);
    for (size_t i = 0; i < sizeof ends / sizeof *ends; i++)
        catch_signal(ends[i], on_end);
}

/* ---- State ---- */

void qn_signals_session(qn_session *new_session)
{
    session = new_session;
}

bool qn_signals_stop_requested(void)
{
    return caught != 0;
}

/* ---- A server ---- */

static const qn_signals_server *volatile server;
static volatile sig_atomic_t n_stops;

static void on_reload(int number)
{
    (void)number;
    server->reload(server->user);
}

static void on_stop(int number)
{
    if (n_stops++) {
        signal(number, SIG_DFL);
        raise(number);
    } else {
        server->stop(server->user);
    }
}

/* Sets the handler of a signal. One that the parent process ignores stays ignored. */
static void serve_signal(int number, void (*handler)(int))
{
    struct sigaction before, action;
    memset(&action, 0, sizeof action);
    action.sa_handler = handler;
    action.sa_flags = SA_RESTART;
    sigemptyset(&action.sa_mask);
    if (!sigaction(number, NULL, &before) && before.sa_handler != SIG_IGN)
        sigaction(number, &action, NULL);
}

void qn_signals_serve(const qn_signals_server *of)
{
    server = of;
    serve_signal(SIGHUP, on_reload);
}

bool qn_signals_serve_stops(void)
{
    serve_signal(SIGTERM, on_stop);
    serve_signal(SIGINT, on_stop);
    serve_signal(SIGQUIT, SIG_DFL);
    if (caught != SIGINT && caught != SIGTERM)
        return false;
    caught = 0;
    n_stops = 1;
    server->stop(server->user);
    return true;
}

void qn_signals_served(void)
{
    serve_signal(SIGHUP, SIG_IGN);
    serve_signal(SIGTERM, SIG_DFL);
    serve_signal(SIGINT, SIG_DFL);
}

static void empty_wake_pipe(void)
{
    char bytes[16];
    while (read(wake[0], bytes, sizeof bytes) > 0)
        ;
}

void qn_signals_clear(void)
{
    if (caught != SIGINT)
        return;
    empty_wake_pipe();
    caught = 0;
}

qn_signals_wake qn_signals_wait_for_input(int fd)
{
    struct pollfd polls[2] = { { .fd = fd, .events = POLLIN }, { .fd = wake[0], .events = POLLIN } };
    for (;;) {
        if (caught)
            return QN_WAKE_STOP;
        if (is_resized || has_returned) {
            const qn_signals_wake why = has_returned ? QN_WAKE_RETURN : QN_WAKE_RESIZE;
            is_resized = has_returned = 0; /* before the pipe is emptied: a later signal is then seen the next time */
            empty_wake_pipe();
            return why;
        }
        const int n = poll(polls, 2, -1);
        if ((n < 0 && errno != EINTR) || (n > 0 && polls[0].revents))
            return QN_WAKE_INPUT;
        if (n > 0)
            empty_wake_pipe();
    }
}

bool qn_signals_drop_redraw(void)
{
    const bool returned = has_returned;
    is_resized = has_returned = 0;
    return returned;
}

void qn_signals_disable_force_quit(void)
{
    force_quit_disabled = 1;
}

void qn_signals_exit(void)
{
    if (!caught)
        return;
    signal(caught, SIG_DFL);
    raise(caught);
}
