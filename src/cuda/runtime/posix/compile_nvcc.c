/* Compiling with the installed nvcc: in a temporary directory and a separate process group, with a time limit,
 * capturing its output. */
#include "cuda/runtime/compile.h"

#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

extern char **environ;

enum { OUTPUT_MAX = 8192 };

/* ---- Finding nvcc ---- */

/* The path `folder` + `below` if it is an executable regular file, else NULL; the caller free()s it. */
static char *program_in(const char *folder, size_t length, const char *below)
{
    char *path;
    struct stat st;
    if (length == 0 || asprintf(&path, "%.*s%s", (int)length, folder, below) < 0)
        return NULL;
    if (stat(path, &st) == 0 && S_ISREG(st.st_mode) && access(path, X_OK) == 0)
        return path;
    free(path);
    return NULL;
}

qn_status qn_nvcc_find(char **path)
{
    const char *named = getenv("QN_NVCC");
    *path = NULL;
    if (named) { /* explicit: no other location is tried */
        *path = program_in(named, strlen(named), "");
        return *path || !*named ? QN_OK : qn_fail(QN_ERR_INVALID, "QN_NVCC: '%s' is not a program", named);
    }
    static const char *const homes[] = { "CUDA_HOME", "CUDA_PATH" };
    for (size_t i = 0; i < 2 && !*path; i++) {
        const char *home = getenv(homes[i]);
        if (home)
            *path = program_in(home, strlen(home), "/bin/nvcc");
    }
    const char *at = getenv("PATH");
    while (at && *at && !*path) {
        const size_t length = strcspn(at, ":");
        if (*at == '/') /* never from the current directory */
            *path = program_in(at, length, "/nvcc");
        at += length + (at[length] == ':');
    }
    static const char usual[] = "/usr/local/cuda";
    if (!*path)
        *path = program_in(usual, sizeof usual - 1, "/bin/nvcc");
    return QN_OK;
}

/* ---- Running a program ---- */

static double seconds_now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

struct output {
    char text[OUTPUT_MAX];
    size_t length;
};

/* Reads the pipe until it is closed; stores the first OUTPUT_MAX - 1 bytes, drops the rest. False if the deadline has
 * passed. */
static bool collect(int fd, double deadline, struct output *out)
{
    for (;;) {
        const double left = deadline - seconds_now();
        if (left <= 0)
            return false;
        struct pollfd wait = { .fd = fd, .events = POLLIN };
        const int ready = poll(&wait, 1, left > 1 ? 1000 : (int)(left * 1000) + 1);
        if (ready < 0 && errno != EINTR)
            return false;
        if (ready <= 0)
            continue;
        char spill[4096];
        const ssize_t n = read(fd, spill, sizeof spill);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return true;
        const size_t free_bytes = sizeof out->text - 1 - out->length,
                     kept = (size_t)n < free_bytes ? (size_t)n : free_bytes;
        memcpy(out->text + out->length, spill, kept);
        out->length += kept;
    }
}

/* Waits for the child to exit. False if the deadline has passed. */
static bool reap(pid_t child, double deadline, int *state)
{
    for (;;) {
        const pid_t got = waitpid(child, state, WNOHANG);
        if (got == child)
            return true;
        if (got < 0 && errno != EINTR) {
            *state = -1;
            return true;
        }
        if (seconds_now() > deadline)
            return false;
        nanosleep(&(struct timespec){ .tv_nsec = 2000000 }, NULL);
    }
}

static int spawn(char *const *argv, char *const *environment, int output, pid_t *child)
{
    posix_spawn_file_actions_t files;
    posix_spawnattr_t how;
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    if (posix_spawn_file_actions_init(&files) != 0)
        return ENOMEM;
    if (posix_spawnattr_init(&how) != 0) {
        posix_spawn_file_actions_destroy(&files);
        return ENOMEM;
    }
    /* a separate process group, so that nvcc's own child processes can be killed with it */
    posix_spawnattr_setflags(&how, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&how, 0);
    posix_spawnattr_setsigmask(&how, &none);
    posix_spawnattr_setsigdefault(&how, &all);
    int failed = posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
    if (!failed)
        failed = posix_spawn_file_actions_adddup2(&files, output, 1);
    if (!failed)
        failed = posix_spawn_file_actions_adddup2(&files, output, 2);
    if (!failed)
        failed = posix_spawn(child, argv[0], &files, &how, argv, environment);
    posix_spawnattr_destroy(&how);
    posix_spawn_file_actions_destroy(&files);
    return failed;
}

/* Runs a program for at most `seconds`; returns its output and whether it exited with status 0. */
static qn_status run(char *const *argv, char *const *environment, unsigned seconds, struct output *out, bool *succeeded)
{
    int ends[2];
    out->length = 0;
    if (pipe2(ends, O_CLOEXEC) != 0)
        return qn_fail(QN_ERR_IO, "%s: no pipe for its output: %s", argv[0], strerror(errno));
    const double deadline = seconds_now() + seconds;
    pid_t child;
    const int failed = spawn(argv, environment, ends[1], &child);
    close(ends[1]);
    if (failed) {
        close(ends[0]);
        errno = failed;
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: cannot be run: %s", argv[0], strerror(errno));
    }
    int state = -1;
    const bool in_time = collect(ends[0], deadline, out) && reap(child, deadline, &state);
    close(ends[0]);
    if (!in_time) {
        kill(-child, SIGKILL);
        while (waitpid(child, &state, 0) < 0 && errno == EINTR)
            ;
        return qn_fail(QN_ERR_UNSUPPORTED, "%s: still running after %u s", argv[0], seconds);
    }
    out->text[out->length] = '\0';
    *succeeded = WIFEXITED(state) && WEXITSTATUS(state) == 0;
    return QN_OK;
}

/* Reduces the text to its first line with "error", or to its first non-empty line. */
static void first_error_line(char *text)
{
    char *line = strstr(text, "error");
    while (line && line > text && line[-1] != '\n')
        line--;
    if (!line)
        line = text + strspn(text, "\r\n");
    line[strcspn(line, "\r\n")] = '\0';
    memmove(text, line, strlen(line) + 1);
}

/* Finds the compiler's name and version, "nvcc 13.0.88", in what nvcc --version prints. */
static void version(const char *nvcc, char *const *environment, char compiler[QN_COMPILER_MAX])
{
    struct output out;
    bool succeeded;
    char program[4096], option[] = "--version";
    snprintf(program, sizeof program, "%s", nvcc);
    char *argv[] = { program, option, NULL };
    const char *at = NULL;
    if (run(argv, environment, 30, &out, &succeeded) == QN_OK && succeeded)
        at = strstr(out.text, ", V");
    snprintf(compiler, QN_COMPILER_MAX, "nvcc %.*s", at ? (int)strcspn(at + 3, " \r\n") : 7, at ? at + 3 : "unknown");
}

/* ---- The temporary directory ---- */

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *at)
{
    (void)st;
    (void)type;
    (void)at;
    (void)remove(path);
    return 0;
}

static qn_status write_file(const char *folder, const qn_gpu_file *file)
{
    char *path;
    if (asprintf(&path, "%s/%s", folder, file->name) < 0)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for the name of a file", folder);
    for (char *at = path + strlen(folder) + 1; (at = strchr(at, '/')) != NULL; at++) {
        *at = '\0';
        (void)mkdir(path, 0700); /* open() fails if this did */
        *at = '/';
    }
    const int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const size_t bytes = qn_gpu_file_bytes(file);
    size_t done = 0;
    while (fd >= 0 && done < bytes) {
        const ssize_t n = write(fd, file->text + done, bytes - done);
        if (n < 0 && errno != EINTR)
            break;
        done += n > 0 ? (size_t)n : 0;
    }
    const qn_status status = fd < 0 || done < bytes
                                 ? qn_fail(QN_ERR_IO, "%s: cannot write for nvcc to read: %s", path, strerror(errno))
                                 : QN_OK;
    if (fd >= 0)
        close(fd);
    free(path);
    return status;
}

static qn_status read_result(const char *path, void **cubin, size_t *bytes)
{
    FILE *file = fopen(path, "rbe");
    struct stat st;
    if (!file || fstat(fileno(file), &st) != 0 || st.st_size <= 0) {
        if (file)
            fclose(file);
        return qn_fail(QN_ERR_UNSUPPORTED, "nvcc wrote no cubin");
    }
    *bytes = (size_t)st.st_size;
    *cubin = malloc(*bytes);
    const bool read = *cubin && fread(*cubin, 1, *bytes, file) == *bytes;
    fclose(file);
    if (read)
        return QN_OK;
    const bool no_memory = !*cubin;
    free(*cubin);
    *cubin = NULL;
    return no_memory ? qn_fail(QN_ERR_MEMORY, "no memory for a cubin of %zu bytes", *bytes)
                     : qn_fail(QN_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
}

/* A copy of the environment with TMPDIR replaced, so that temporary files of a killed nvcc are in the directory that is
 * removed; the caller free()s it. */
static char **environment_with(char *tmpdir)
{
    size_t n = 0;
    while (environ[n])
        n++;
    char **copy = malloc((n + 2) * sizeof *copy);
    if (!copy)
        return NULL;
    size_t kept = 0;
    for (size_t i = 0; i < n; i++)
        if (strncmp(environ[i], "TMPDIR=", 7) != 0)
            copy[kept++] = environ[i];
    copy[kept++] = tmpdir;
    copy[kept] = NULL;
    return copy;
}

struct work {
    char *folder, *tmpdir, *source, *result, *include, *gencode, *card, *defines;
    char **environment;
};

/* Writes the options for an architecture (qn_gpu_unit). */
static qn_status target_options(struct work *w, const char *arch)
{
    const size_t from = strcspn(arch, "/"), length = arch[from] ? strcspn(arch + from + 1, "/") : 0;
    const char *code = arch + from + 1;
    if (!arch[from] ? asprintf(&w->gencode, "-gencode=arch=compute_%s,code=%s", arch + strlen("sm_"), arch) < 0
                    : asprintf(&w->gencode, "-gencode=arch=%.*s,code=%.*s", (int)from, arch, (int)length, code) < 0)
        return qn_fail(QN_ERR_MEMORY, "no memory to run nvcc");
    if (length && code[length] && asprintf(&w->card, "-DQN_CUDA_ARCH=%s", code + length + 1) < 0)
        return qn_fail(QN_ERR_MEMORY, "no memory to run nvcc");
    return QN_OK;
}

static qn_status compile_in(struct work *w, const char *nvcc, unsigned seconds, const qn_gpu_unit *unit, void **cubin,
                            size_t *bytes, char compiler[QN_COMPILER_MAX])
{
    if (asprintf(&w->tmpdir, "TMPDIR=%s", w->folder) < 0 ||
        asprintf(&w->source, "%s/%s", w->folder, unit->files[0]->name) < 0 ||
        asprintf(&w->result, "%s/result.cubin", w->folder) < 0 || asprintf(&w->include, "-I%s", w->folder) < 0)
        return qn_fail(QN_ERR_MEMORY, "no memory to run nvcc");
    QN_TRY(target_options(w, unit->arch));
    w->environment = environment_with(w->tmpdir);
    if (!w->environment)
        return qn_fail(QN_ERR_MEMORY, "no memory for nvcc's environment");
    for (size_t i = 0; i < unit->n_files; i++)
        QN_TRY(write_file(w->folder, unit->files[i]));
    const char *argv[QN_GPU_MAX_DEFINES + 16] = { nvcc, "-cubin", "-std=c++17", "-O3", w->include, w->gencode };
    size_t n = 6, n_defines;
    QN_TRY(qn_gpu_options(unit->defines, &w->defines, argv + n, QN_GPU_MAX_DEFINES, &n_defines));
    n += n_defines;
    if (w->card)
        argv[n++] = w->card;
    argv[n++] = "-o";
    argv[n++] = w->result;
    argv[n++] = w->source;
    char *arguments[QN_GPU_MAX_DEFINES + 16];
    memcpy(arguments, argv, sizeof arguments); /* posix_spawn's prototype lacks const */
    struct output out;
    bool succeeded;
    QN_TRY(run(arguments, w->environment, seconds, &out, &succeeded));
    if (!succeeded) {
        first_error_line(out.text);
        return qn_fail(QN_ERR_UNSUPPORTED, "%s failed for %s: %.300s", nvcc, unit->arch, out.text);
    }
    QN_TRY(read_result(w->result, cubin, bytes));
    version(nvcc, w->environment, compiler);
    return QN_OK;
}

qn_status qn_nvcc_compile(const char *nvcc, unsigned seconds, const qn_gpu_unit *unit, void **cubin, size_t *bytes,
                          char compiler[QN_COMPILER_MAX])
{
    const char *base = getenv("TMPDIR");
    struct work w = { 0 };
    *cubin = NULL;
    if (asprintf(&w.folder, "%s/quern-nvcc.XXXXXX", base && *base == '/' ? base : "/tmp") < 0)
        return qn_fail(QN_ERR_MEMORY, "no memory for the name of a directory");
    qn_status status;
    if (mkdtemp(w.folder)) {
        status = compile_in(&w, nvcc, seconds, unit, cubin, bytes, compiler);
        (void)nftw(w.folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    } else {
        status = qn_fail(QN_ERR_IO, "%s: cannot create this directory for nvcc: %s", w.folder, strerror(errno));
    }
    free(w.folder);
    free(w.tmpdir);
    free(w.source);
    free(w.result);
    free(w.include);
    free(w.gencode);
    free(w.card);
    free(w.defines);
    free(w.environment);
    return status;
}
