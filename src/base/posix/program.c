/* The program on POSIX systems. */
#include "base/program.h"

#include <errno.h>
#include <fcntl.h>
#include <langinfo.h>
#include <locale.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#ifdef __APPLE__
#include <mach-o/dyld.h>
#endif

/* Messages and the editor need to know the width of characters, so without a UTF-8 locale C.UTF-8 is used. */
static void set_locale(void)
{
    if (!setlocale(LC_CTYPE, "") || strcmp(nl_langinfo(CODESET), "UTF-8") != 0)
        setlocale(LC_CTYPE, "C.UTF-8");
}

char **qn_program_begin(int *argc, char **argv)
{
    (void)argc;
    set_locale();
    /* Open a missing descriptor so that its use fails: writing to a closed standard output stays an error. */
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF)
            (void)!open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
    return argv;
}

bool qn_program_path(char *path, size_t size)
{
#ifdef __APPLE__
    uint32_t room = (uint32_t)size;
    return _NSGetExecutablePath(path, &room) == 0;
#else
    const ssize_t length = readlink("/proc/self/exe", path, size);
    if (length < 0 || (size_t)length >= size)
        return false;
    path[length] = '\0';
    return true;
#endif
}

uint64_t qn_program_peak_memory(void)
{
    struct rusage usage;
#ifdef __APPLE__
    const uint64_t unit = 1;
#else
    const uint64_t unit = 1024;
#endif
    return getrusage(RUSAGE_SELF, &usage) ? 0 : (uint64_t)usage.ru_maxrss * unit;
}

bool qn_is_terminal(int fd)
{
    return isatty(fd);
}

bool qn_is_utf8_terminal(void)
{
    return strcmp(nl_langinfo(CODESET), "UTF-8") == 0;
}

bool qn_child_start(void (*serve)(int in, int out), qn_child *child)
{
    int down[2], up[2];
    if (pipe(down))
        return false;
    if (pipe(up)) {
        close(down[0]);
        close(down[1]);
        return false;
    }
    const pid_t id = fork();
    if (id == 0) {
        close(down[1]);
        close(up[0]);
        serve(down[0], up[1]);
        _exit(0);
    }
    const int error = errno;
    close(down[0]);
    close(up[1]);
    *child = (qn_child){ .to = down[1], .from = up[0], .id = id };
    if (id > 0)
        return true;
    close(child->to);
    close(child->from);
    errno = error;
    return false;
}

void qn_child_stop(qn_child *child)
{
    close(child->to);
    close(child->from);
    while (waitpid((pid_t)child->id, NULL, 0) < 0 && errno == EINTR)
        ;
}
