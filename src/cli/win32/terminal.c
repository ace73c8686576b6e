/* The console of Windows 10 and later, which knows the sequences of terminals once that is turned on. */
#include "cli/terminal.h"

#include "base/program.h"

#include <io.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <windows.h>

#define PASTE_ON "\033[?2004h"
#define PASTE_OFF "\033[?2004l"

static DWORD found; /* modes of the input; valid if is_found */
static atomic_bool is_found, is_changed, pastes;
static wchar_t first_half; /* of a character of two units, whose second was not read yet */

static HANDLE input(void)
{
    return (HANDLE)_get_osfhandle(STDIN_FILENO);
}

void qn_terminal_set(qn_terminal_mode mode)
{
    if (!is_found && !GetConsoleMode(input(), &found))
        return;
    is_found = true;
    DWORD modes = found;
    if (mode != QN_TERMINAL_FOUND)
        modes &= ~(DWORD)ENABLE_ECHO_INPUT;
    if (mode == QN_TERMINAL_KEYS) {
        modes &= ~(DWORD)(ENABLE_LINE_INPUT | ENABLE_QUICK_EDIT_MODE);
        modes |= ENABLE_PROCESSED_INPUT | ENABLE_VIRTUAL_TERMINAL_INPUT | ENABLE_WINDOW_INPUT | ENABLE_EXTENDED_FLAGS;
    }
    SetConsoleMode(input(), modes);
    is_changed = mode != QN_TERMINAL_FOUND;
}

ptrdiff_t qn_terminal_read(char *bytes, size_t size)
{
    wchar_t units[2];
    DWORD n = 0, n_units = 0;
    if (!qn_is_terminal(STDIN_FILENO))
        return read(STDIN_FILENO, bytes, (unsigned)size);
    if (first_half)
        units[n_units++] = first_half;
    first_half = 0;
    if (!ReadConsoleW(input(), units + n_units, 1, &n, NULL) || !n)
        return n_units ? -1 : 0;
    n_units += n;
    if (n_units == 1 && IS_HIGH_SURROGATE(units[0])) {
        if (!ReadConsoleW(input(), units + 1, 1, &n, NULL) || !n)
            return -1;
        n_units = 2;
    }
    /* Ctrl-Z ends the input of a console. */
    if (units[0] == 0x1a)
        return 0;
    return WideCharToMultiByte(CP_UTF8, 0, units, (int)n_units, bytes, (int)size, NULL, NULL);
}

static void print_now(const char *sequence)
{
    DWORD done;
    WriteFile((HANDLE)_get_osfhandle(STDOUT_FILENO), sequence, (DWORD)strlen(sequence), &done, NULL);
}

void qn_terminal_paste(bool on)
{
    fflush(stdout);
    pastes = on;
    print_now(on ? PASTE_ON : PASTE_OFF);
}

void qn_terminal_drop_input(void)
{
    FlushConsoleInputBuffer(input());
}

void qn_terminal_keep_input(void)
{
}

size_t qn_terminal_take_kept(char *bytes, size_t size)
{
    (void)bytes, (void)size;
    return 0;
}

void qn_terminal_leave(void)
{
    if (is_changed)
        SetConsoleMode(input(), found);
    if (pastes)
        print_now(PASTE_OFF);
    if (is_changed && qn_is_terminal(STDOUT_FILENO))
        print_now(QN_STYLE_PLAIN);
}

void qn_terminal_return(void)
{
}

void qn_terminal_size(FILE *stream, size_t *columns, size_t *rows)
{
    CONSOLE_SCREEN_BUFFER_INFO info;
    const bool is_known = GetConsoleScreenBufferInfo((HANDLE)_get_osfhandle(fileno(stream)), &info);
    *columns = is_known ? (size_t)(info.srWindow.Right - info.srWindow.Left + 1) : 80;
    *rows = is_known ? (size_t)(info.srWindow.Bottom - info.srWindow.Top + 1) : 24;
}

bool qn_terminal_moves(FILE *stream)
{
    const HANDLE console = (HANDLE)_get_osfhandle(fileno(stream));
    DWORD modes;
    return GetConsoleMode(console, &modes) && (modes & ENABLE_VIRTUAL_TERMINAL_PROCESSING ||
                                               SetConsoleMode(console, modes | ENABLE_VIRTUAL_TERMINAL_PROCESSING));
}

const char *qn_terminal_style(FILE *stream, const char *sequence)
{
    const char *without = getenv("NO_COLOR");
    return qn_terminal_moves(stream) && !(without && *without) ? sequence : "";
}
