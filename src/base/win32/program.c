/* The program on Windows. */
#include "base/program.h"

#include "base/win32/wide.h"

#include <errno.h>
#include <fcntl.h>
#include <io.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <windows.h>
/* after windows.h, whose types they need */
#include <psapi.h>
#include <shellapi.h>

enum { OUTPUT_BYTES = 1 << 16 };

static UINT found_output, found_input;

static void restore_code_pages(void)
{
    SetConsoleOutputCP(found_output);
    SetConsoleCP(found_input);
}

/* The console shows bytes in a code page, which stays after the program: UTF-8 until it ends. */
static void use_utf8(void)
{
    found_output = GetConsoleOutputCP();
    found_input = GetConsoleCP();
    if (!found_output || !SetConsoleOutputCP(CP_UTF8))
        return;
    SetConsoleCP(CP_UTF8);
    atexit(restore_code_pages);
}

/* Windows' C library writes to a console without a buffer, and formatted text a byte at a time: characters would be
 * cut, and every one is a call. */
static void buffer_output(void)
{
    if (qn_is_terminal(1))
        (void)setvbuf(stdout, NULL, _IOFBF, OUTPUT_BYTES);
}

char **qn_program_begin(int *argc, char **argv)
{
    for (int fd = 0; fd <= 2; fd++)
        (void)_setmode(fd, _O_BINARY);
    use_utf8();
    buffer_output();
    int n = 0;
    wchar_t **wide = CommandLineToArgvW(GetCommandLineW(), &n);
    char **narrow = wide ? calloc((size_t)n + 1, sizeof *narrow) : NULL;
    for (int i = 0; narrow && i < n; i++) {
        narrow[i] = qn_narrow(wide[i]);
        if (!narrow[i])
            return argv;
    }
    if (!narrow)
        return argv;
    LocalFree(wide);
    *argc = n;
    return narrow;
}

bool qn_program_path(char *path, size_t size)
{
    wchar_t wide[1024];
    const DWORD length = GetModuleFileNameW(NULL, wide, sizeof wide / sizeof *wide);
    return length > 0 && length < sizeof wide / sizeof *wide &&
           WideCharToMultiByte(CP_UTF8, 0, wide, -1, path, (int)size, NULL, NULL) > 0;
}

uint64_t qn_program_peak_memory(void)
{
    PROCESS_MEMORY_COUNTERS counters = { .cb = sizeof counters };
    return GetProcessMemoryInfo(GetCurrentProcess(), &counters, sizeof counters) ? counters.PeakWorkingSetSize : 0;
}

bool qn_is_terminal(int fd)
{
    /* isatty also says so of NUL */
    DWORD mode;
    return GetConsoleMode((HANDLE)_get_osfhandle(fd), &mode);
}

bool qn_is_utf8_terminal(void)
{
    return GetConsoleOutputCP() == CP_UTF8;
}

/* ---- A part that runs on its own ---- */

struct part {
    void (*serve)(int in, int out);
    int in, out;
    pthread_t thread;
};

static void *run_part(void *context)
{
    const struct part *part = context;
    part->serve(part->in, part->out);
    close(part->in);
    close(part->out);
    return NULL;
}

bool qn_child_start(void (*serve)(int in, int out), qn_child *child)
{
    int down[2] = { -1, -1 }, up[2] = { -1, -1 };
    struct part *part = calloc(1, sizeof *part);
    int error = !part                                                                                      ? ENOMEM
                : _pipe(down, 4096, _O_BINARY | _O_NOINHERIT) || _pipe(up, 4096, _O_BINARY | _O_NOINHERIT) ? errno
                                                                                                           : 0;
    if (!error) {
        *part = (struct part){ .serve = serve, .in = down[0], .out = up[1] };
        error = pthread_create(&part->thread, NULL, run_part, part);
    }
    *child = (qn_child){ .to = down[1], .from = up[0], .id = (intptr_t)part };
    if (!error)
        return true;
    for (int i = 0; i < 2; i++) {
        if (down[i] >= 0)
            close(down[i]);
        if (up[i] >= 0)
            close(up[i]);
    }
    free(part);
    errno = error;
    return false;
}

void qn_child_stop(qn_child *child)
{
    struct part *part = (struct part *)child->id;
    close(child->to);
    pthread_join(part->thread, NULL);
    close(child->from);
    free(part);
}
