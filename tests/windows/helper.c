/* What tests of Windows programs under Wine cannot do from outside.
 *   helper.exe run PROGRAM ARGUMENT...     ends with the program's status; the last line tells of the console's modes
 *   helper.exe send PROGRAM COMMAND...     to the console of the running program of that name:
 *       units HEX,HEX...      characters of UTF-16, as a console sends them which translates keys itself
 *       key CODE,STATE,N      a key by its number in winuser.h, held with others (wincon.h), N times
 *       number HEX            a character by its number: it comes when Alt is let go
 *       size COLUMNS,ROWS
 *   helper.exe hold FILE                   has the file open until standard input ends; prints "open" */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>
#include <windows.h>
/* after windows.h, whose types they need */
#include <shellapi.h>
#include <tlhelp32.h>

static HANDLE open_console(const wchar_t *name)
{
    return CreateFileW(name, GENERIC_READ | GENERIC_WRITE, FILE_SHARE_READ | FILE_SHARE_WRITE, NULL, OPEN_EXISTING, 0,
                       NULL);
}

static int fail(const char *what)
{
    printf("helper: %s: error %lu\n", what, (unsigned long)GetLastError());
    return 1;
}

/* ---- run ---- */

static BOOL WINAPI ignore(DWORD event)
{
    return event == CTRL_C_EVENT;
}

static int run(void)
{
    STARTUPINFOW startup = { .cb = sizeof startup };
    PROCESS_INFORMATION process;
    DWORD before[2] = { 0 }, after[2] = { 0 }, status = 1;
    const UINT page = GetConsoleOutputCP();
    /* The command line without the first two words, neither of which has spaces. */
    wchar_t *line = wcschr(GetCommandLineW(), L' ');
    line = line ? wcschr(line + 1 + wcsspn(line + 1, L" "), L' ') : NULL;
    const HANDLE input = open_console(L"CONIN$"), output = open_console(L"CONOUT$");
    if (!line || !GetConsoleMode(input, &before[0]) || !GetConsoleMode(output, &before[1]))
        return fail("run");
    if (!CreateProcessW(NULL, line + wcsspn(line, L" "), NULL, NULL, TRUE, 0, NULL, NULL, &startup, &process))
        return fail("the program");
    SetConsoleCtrlHandler(ignore, TRUE); /* Ctrl-C is for the program */
    WaitForSingleObject(process.hProcess, INFINITE);
    GetExitCodeProcess(process.hProcess, &status);
    GetConsoleMode(input, &after[0]);
    GetConsoleMode(output, &after[1]);
    const BOOL same = before[0] == after[0] && before[1] == after[1] && page == GetConsoleOutputCP();
    printf("status %lu, modes %s\n", (unsigned long)status, same ? "same" : "changed");
    return (int)status;
}

/* ---- send ---- */

static BOOL attach(const char *program)
{
    PROCESSENTRY32 entry = { .dwSize = sizeof entry };
    const HANDLE all = CreateToolhelp32Snapshot(TH32CS_SNAPPROCESS, 0);
    FreeConsole();
    for (BOOL more = Process32First(all, &entry); more; more = Process32Next(all, &entry))
        if (strcmp(entry.szExeFile, program) == 0)
            return AttachConsole(entry.th32ProcessID);
    return FALSE;
}

static void send_key(HANDLE input, BOOL is_down, unsigned n, unsigned code, unsigned unit, unsigned state)
{
    INPUT_RECORD record = { .EventType = KEY_EVENT };
    DWORD done;
    record.Event.KeyEvent.bKeyDown = is_down;
    record.Event.KeyEvent.wRepeatCount = (WORD)n;
    record.Event.KeyEvent.wVirtualKeyCode = (WORD)code;
    record.Event.KeyEvent.uChar.UnicodeChar = (WCHAR)unit;
    record.Event.KeyEvent.dwControlKeyState = state;
    WriteConsoleInputW(input, &record, 1, &done);
}

static void send_units(HANDLE input, const char *units)
{
    for (char *end; *units; units = *end ? end + 1 : end) {
        const unsigned unit = (unsigned)strtoul(units, &end, 16);
        send_key(input, TRUE, 1, 0, unit, 0);
        send_key(input, FALSE, 1, 0, unit, 0);
    }
}

static BOOL set_size(HANDLE output, unsigned columns, unsigned rows)
{
    const SMALL_RECT least = { 0, 0, 0, 0 }, window = { 0, 0, (SHORT)(columns - 1), (SHORT)(rows - 1) };
    const COORD size = { (SHORT)columns, (SHORT)rows };
    SetConsoleWindowInfo(output, TRUE, &least);
    return SetConsoleScreenBufferSize(output, size) && SetConsoleWindowInfo(output, TRUE, &window);
}

static BOOL send(HANDLE input, HANDLE output, const char *command, const char *value)
{
    unsigned a = 0, b = 0, c = 0;
    if (strcmp(command, "units") == 0)
        send_units(input, value);
    else if (strcmp(command, "key") == 0 && sscanf(value, "%u,%u,%u", &a, &b, &c) == 3)
        send_key(input, TRUE, c, a, 0, b);
    else if (strcmp(command, "number") == 0)
        send_key(input, FALSE, 1, VK_MENU, (unsigned)strtoul(value, NULL, 16), 0);
    else if (strcmp(command, "size") == 0 && sscanf(value, "%u,%u", &a, &b) == 2)
        return set_size(output, a, b);
    else
        return FALSE;
    return TRUE;
}

/* ---- hold ---- */

static int hold(void)
{
    int n;
    wchar_t **words = CommandLineToArgvW(GetCommandLineW(), &n);
    const DWORD shared = FILE_SHARE_READ | FILE_SHARE_WRITE | FILE_SHARE_DELETE;
    if (!words || CreateFileW(words[2], GENERIC_READ, shared, NULL, OPEN_EXISTING, 0, NULL) == INVALID_HANDLE_VALUE)
        return fail("the file");
    puts("open");
    fflush(stdout);
    while (getchar() != EOF)
        ;
    return 0;
}

int main(int argc, char **argv)
{
    if (argc > 2 && strcmp(argv[1], "hold") == 0)
        return hold();
    if (argc > 2 && strcmp(argv[1], "run") == 0)
        return run();
    if (argc < 5 || strcmp(argv[1], "send") != 0 || !attach(argv[2]))
        return fail("no such program");
    const HANDLE input = open_console(L"CONIN$"), output = open_console(L"CONOUT$");
    for (int i = 3; i + 1 < argc; i += 2)
        if (!send(input, output, argv[i], argv[i + 1]))
            return fail(argv[i]);
    return 0;
}
