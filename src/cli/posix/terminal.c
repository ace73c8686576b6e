/* Modes, style and size of the terminal. */
#include "cli/terminal.h"

#include "base/program.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

/* Bracketed paste: in this mode a terminal sends marks around pasted text (xterm, "Bracketed Paste Mode"). */
#define PASTE_ON "\033[?2004h"
#define PASTE_OFF "\033[?2004l"

/* Shared with signal handlers: written by the program in an order that lets a handler run between any two lines. */
static struct termios found;  /* valid if is_found */
static struct termios wanted; /* of the current mode; valid if is_changed */
static volatile sig_atomic_t is_found, is_changed, pastes, has_keys;

/* Keys that the handler appends and the reader takes. Only the handler goes back to the beginning, when all are taken.
 */
static char kept[4096];
static volatile size_t kept_begin, kept_end;

static bool find(void)
{
    if (!is_found)
        is_found = tcgetattr(STDIN_FILENO, &found) == 0;
    return is_found;
}

/* Sets the modes of the terminal, and notes whether they are to be taken back. A signal between the two lines of either
 * order leaves the terminal as found or as wanted, never half of both. */
static void apply(const struct termios *modes, bool changes)
{
    is_changed = 0;
    if (changes) {
        wanted = *modes;
        is_changed = 1;
    }
    while (tcsetattr(STDIN_FILENO, TCSADRAIN, modes) && errno == EINTR)
        ;
}

void qn_terminal_set(qn_terminal_mode mode)
{
    if (!find())
        return;
    struct termios modes = found;
    has_keys = mode == QN_TERMINAL_KEYS;
    if (mode == QN_TERMINAL_FOUND) {
        if (is_changed)
            apply(&found, false);
        return;
    }
    modes.c_lflag &= ~(tcflag_t)(ECHO | ECHONL);
    if (mode == QN_TERMINAL_KEYS) {
        modes.c_lflag &= ~(tcflag_t)(ICANON | IEXTEN);
        modes.c_lflag |= ISIG | NOFLSH; /* Ctrl-C and Ctrl-Z do not drop what was typed for the next message */
        modes.c_iflag &= ~(tcflag_t)(IXON | ICRNL | INLCR | IGNCR | ISTRIP);
        modes.c_cc[VMIN] = 1;
        modes.c_cc[VTIME] = 0;
    }
    if (!is_changed || memcmp(&modes, &wanted, sizeof modes) != 0)
        apply(&modes, true);
}

ptrdiff_t qn_terminal_read(char *bytes, size_t size)
{
    return read(STDIN_FILENO, bytes, size);
}

static void print_now(const char *sequence)
{
    const ssize_t ignored = write(STDOUT_FILENO, sequence, strlen(sequence));
    (void)ignored; /* a terminal that is gone has no modes */
}

void qn_terminal_paste(bool on)
{
    fflush(stdout);
    pastes = on;
    print_now(on ? PASTE_ON : PASTE_OFF);
}

void qn_terminal_drop_input(void)
{
    tcflush(STDIN_FILENO, TCIFLUSH);
    kept_begin = kept_end;
}

void qn_terminal_keep_input(void)
{
    struct pollfd input = { .fd = STDIN_FILENO, .events = POLLIN };
    if (kept_begin == kept_end)
        kept_begin = kept_end = 0;
    while (has_keys && kept_end < sizeof kept && poll(&input, 1, 0) > 0 && input.revents & POLLIN) {
        const ssize_t n = read(STDIN_FILENO, kept + kept_end, sizeof kept - kept_end);
        if (n <= 0)
            break;
        kept_end += (size_t)n;
    }
}

size_t qn_terminal_take_kept(char *bytes, size_t size)
{
    const size_t begin = kept_begin, end = kept_end, n = end - begin < size ? end - begin : size;
    if (n) {
        memcpy(bytes, kept + begin, n);
        kept_begin = begin + n;
    }
    return n;
}

void qn_terminal_leave(void)
{
    if (is_changed)
        tcsetattr(STDIN_FILENO, TCSANOW, &found);
    if (pastes)
        print_now(PASTE_OFF);
    if (is_changed && qn_is_terminal(STDOUT_FILENO))
        print_now(QN_STYLE_PLAIN);
}

void qn_terminal_return(void)
{
    if (!is_changed || tcgetpgrp(STDIN_FILENO) != getpgrp())
        return;
    tcsetattr(STDIN_FILENO, TCSANOW, &wanted);
    if (pastes)
        print_now(PASTE_ON);
}

void qn_terminal_size(FILE *stream, size_t *columns, size_t *rows)
{
    struct winsize size;
    const bool is_known = ioctl(fileno(stream), TIOCGWINSZ, &size) == 0;
    *columns = is_known && size.ws_col ? size.ws_col : 80;
    *rows = is_known && size.ws_row ? size.ws_row : 24;
}

bool qn_terminal_moves(FILE *stream)
{
    const char *type = getenv("TERM");
    return qn_is_terminal(fileno(stream)) && type && *type && strcmp(type, "dumb") != 0;
}

const char *qn_terminal_style(FILE *stream, const char *sequence)
{
    const char *without = getenv("NO_COLOR");
    return qn_terminal_moves(stream) && !(without && *without) ? sequence : "";
}
