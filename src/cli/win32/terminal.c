/* The console of Windows 10 and later, which knows the sequences of terminals once that is turned on. */
#include "cli/terminal.h"

#include "cli/win32/console.h"
#include "cli/win32/keys.h"

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
static bool has_keys; /* single keys are read */

static DWORD found_output; /* modes of the output; valid if changed_output is set */
static _Atomic(HANDLE) changed_output;

static qn_keys keys;
static bool is_resized;
static bool has_ended; /* the console is gone */

static HANDLE input(void)
{
    return (HANDLE)_get_osfhandle(STDIN_FILENO);
}

void qn_terminal_set(qn_terminal_mode mode)
{
    if (!is_found && !GetConsoleMode(input(), &found))
        return;
    is_found = true;
    has_keys = mode == QN_TERMINAL_KEYS;
    DWORD modes = found;
    if (mode != QN_TERMINAL_FOUND)
        modes &= ~(DWORD)ENABLE_ECHO_INPUT;
    if (mode == QN_TERMINAL_KEYS) {
        modes &= ~(DWORD)ENABLE_LINE_INPUT;
        modes |= ENABLE_PROCESSED_INPUT | ENABLE_VIRTUAL_TERMINAL_INPUT | ENABLE_WINDOW_INPUT;
    }
    SetConsoleMode(input(), modes);
    is_changed = mode != QN_TERMINAL_FOUND;
}

/* ---- Input ---- */

static void put(const KEY_EVENT_RECORD *event)
{
    const qn_key key = { .is_down = event->bKeyDown,
                         .n = event->wRepeatCount,
                         .code = event->wVirtualKeyCode,
                         .unit = event->uChar.UnicodeChar,
                         .state = event->dwControlKeyState };
    qn_keys_put(&keys, &key);
}

/* Whether the first record of the queue is for a read of lines, which takes it. */
static bool is_for_lines(const INPUT_RECORD *record)
{
    return !has_keys && record->EventType == KEY_EVENT && record->Event.KeyEvent.bKeyDown;
}

bool qn_console_has_input(void)
{
    INPUT_RECORD record;
    DWORD n = 0;
    while (!qn_keys_has(&keys) && !has_ended) {
        has_ended = !PeekConsoleInputW(input(), &record, 1, &n);
        if (!n)
            break;
        if (is_for_lines(&record))
            return true;
        has_ended = !ReadConsoleInputW(input(), &record, 1, &n);
        if (n && record.EventType == KEY_EVENT && has_keys)
            put(&record.Event.KeyEvent);
        is_resized = is_resized || (n && record.EventType == WINDOW_BUFFER_SIZE_EVENT);
    }
    return qn_keys_has(&keys) || has_ended;
}

bool qn_console_was_resized(void)
{
    const bool was = is_resized;
    is_resized = false;
    return was;
}

ptrdiff_t qn_terminal_read(char *bytes, size_t size)
{
    size_t n = 0;
    while (n < size && qn_console_has_input() && !has_ended)
        n += qn_keys_take(&keys, bytes + n, size - n);
    return (ptrdiff_t)n;
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
    keys = (qn_keys){ 0 };
}

void qn_terminal_keep_input(void)
{
}

size_t qn_terminal_take_kept(char *bytes, size_t size)
{
    (void)bytes, (void)size;
    return 0;
}

static void restore_output(void)
{
    const HANDLE console = atomic_exchange(&changed_output, NULL);
    if (console)
        SetConsoleMode(console, found_output);
}

void qn_terminal_leave(void)
{
    if (is_changed)
        SetConsoleMode(input(), found);
    if (pastes)
        print_now(PASTE_OFF);
    if (is_changed && qn_is_terminal(STDOUT_FILENO))
        print_now(QN_STYLE_PLAIN);
    restore_output();
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

/* Turns sequences on until the program ends. */
static bool use_sequences(HANDLE console, DWORD modes)
{
    if (!SetConsoleMode(console, modes | ENABLE_VIRTUAL_TERMINAL_PROCESSING))
        return false;
    if (!atomic_load(&changed_output)) {
        found_output = modes;
        atomic_store(&changed_output, console);
        atexit(restore_output);
    }
    return true;
}

bool qn_terminal_moves(FILE *stream)
{
    const HANDLE console = (HANDLE)_get_osfhandle(fileno(stream));
    DWORD modes;
    return GetConsoleMode(console, &modes) &&
           (modes & ENABLE_VIRTUAL_TERMINAL_PROCESSING || use_sequences(console, modes));
}

const char *qn_terminal_style(FILE *stream, const char *sequence)
{
    const char *without = getenv("NO_COLOR");
    return qn_terminal_moves(stream) && !(without && *without) ? sequence : "";
}
