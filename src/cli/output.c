/* Text output to the user, and files that are read whole. */
#include "base/file.h"
#include "base/program.h"
#include "cli/cli.h"
#include "cli/signals.h"

#include "base/append.h"
#include "base/memory.h"
#include "base/printable.h"
#include "base/write_line.h"

#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

void qn_print_escaped(FILE *stream, const char *bytes, size_t length)
{
    for (size_t i = 0; i < length;) {
        const size_t n = qn_printable(bytes + i, length - i);
        if (bytes[i] == '\\')
            fputs("\\\\", stream);
        else if (n)
            fwrite(bytes + i, 1, n, stream);
        else if (bytes[i] == '\n')
            fputs("\\n", stream);
        else if (bytes[i] == '\t')
            fputs("\\t", stream);
        else
            fprintf(stream, "\\x%02x", (unsigned char)bytes[i]);
        i += n ? n : 1;
    }
}

void qn_print_text(FILE *stream, const char *text, size_t length)
{
    if (!qn_is_terminal(fileno(stream))) {
        fwrite(text, 1, length, stream);
        return;
    }
    for (size_t i = 0; i < length;) {
        const size_t n = qn_harmless(text + i, length - i);
        if (n)
            fwrite(text + i, 1, n, stream);
        else if (text[i] == '\n' || text[i] == '\t')
            fputc(text[i], stream);
        i += n ? n : 1;
    }
}

const char *qn_print_size(char *buffer, uint64_t bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB" };
    double size = (double)bytes;
    size_t unit = 0;
    while (size >= 1024 && unit + 1 < sizeof units / sizeof *units) {
        size /= 1024;
        unit++;
    }
    snprintf(buffer, 32, unit ? "%.1f %s" : "%.0f %s", size, units[unit]);
    return buffer;
}

void qn_cli_error(const char *format, ...)
{
    char text[1024], line[1100];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    qn_mask(text);
    qn_text_buffer to = QN_APPEND_TO(line);
    qn_append(&to, "quern: %s\n", text);
    fflush(stdout); /* what was printed before is shown before */
    fwrite(line, 1, to.length, stderr);
}

void qn_cli_note(const char *format, ...)
{
    static atomic_uint n_lost;
    char text[1024], line[1200];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    qn_mask(text);
    qn_text_buffer to = QN_APPEND_TO(line);
    const unsigned n = atomic_exchange(&n_lost, 0);
    if (n)
        qn_append(&to, "quern: note: %u notes were lost, as nobody read them\n", n);
    qn_append(&to, "quern: note: %s\n", text);
    if (!qn_write_line(STDERR_FILENO, line, to.length))
        atomic_fetch_add(&n_lost, n + 1);
}

void qn_cli_log_note(void *unused, const char *line)
{
    (void)unused;
    qn_cli_note("%s", line);
}

int qn_cli_fail(void)
{
    if (!qn_signals_stop_requested())
        qn_cli_error("%s", qn_error_text());
    return QN_EXIT_FAILED;
}

bool qn_out_flush(void)
{
    return fflush(stdout) == 0 && !ferror(stdout);
}

int qn_out_finish(int status)
{
    if (qn_out_flush() || errno == EPIPE)
        return status;
    qn_cli_error("standard output: %s", strerror(errno));
    return QN_EXIT_FAILED;
}

bool qn_read_all(const char *path, uint64_t limit, char **text, size_t *length)
{
    const char *name = path ? path : "standard input";
    FILE *file = path ? qn_file_stream(path, "r") : stdin;
    char *bytes = NULL;
    size_t capacity = 0, count = 0;
    bool ok = false;
    if (!file) {
        qn_cli_error("%s: %s", name, strerror(errno));
        return false;
    }
    for (;;) {
        if (qn_realloc_array(&bytes, &capacity, count + 65536 + 1, 1, name)) {
            qn_cli_fail();
            break;
        }
        size_t want = capacity - count - 1;
        if (want > limit - count)
            want = (size_t)(limit - count);
        const size_t got = want ? fread(bytes + count, 1, want, file) : 0;
        count += got;
        if (got && !feof(file)) /* a terminal would be read beyond its end of input */
            continue;
        if (ferror(file)) {
            qn_cli_error("%s: %s", name, strerror(errno));
            break;
        }
        ok = true;
        break;
    }
    if (path)
        fclose(file);
    if (!ok) {
        free(bytes);
        return false;
    }
    bytes[count] = 0;
    *text = bytes;
    *length = count;
    return true;
}

bool qn_read_option(const char *option, const char *value, bool is_text, uint64_t limit, char **text, size_t *length,
                    const char **name)
{
    *name = is_text ? option : value;
    if (!is_text)
        return qn_read_all(value, limit, text, length);
    *length = strlen(value);
    *text = strdup(value);
    if (!*text)
        qn_cli_error("%s: no memory for %zu bytes", option, *length);
    return *text != NULL;
}

bool qn_is_json_object(const char *value)
{
    return value[strspn(value, " \t\r\n")] == '{';
}

bool qn_read_text(const char *path, char **text)
{
    size_t length;
    if (!qn_read_all(path, UINT64_MAX, text, &length))
        return false;
    if (strlen(*text) == length)
        return true;
    qn_cli_error("%s: has a NUL character", path);
    free(*text);
    *text = NULL;
    return false;
}

bool qn_begins_as_gguf(const char *path)
{
    char magic[4];
    FILE *file = qn_file_stream(path, "r");
    const bool gguf =
        file && fread(magic, 1, sizeof magic, file) == sizeof magic && memcmp(magic, "GGUF", sizeof magic) == 0;
    if (file)
        fclose(file);
    return gguf;
}

/* These commands write no other kind of file. */
bool qn_check_output_name(const char *path)
{
    if (strcmp(path, "-") != 0)
        return true;
    qn_cli_error("-: expected a file, not standard output; ./- is a file with that name");
    return false;
}

bool qn_may_replace_model(const char *path)
{
    qn_file_info info;
    if (!qn_check_output_name(path))
        return false;
    if (!qn_file_describe(path, &info))
        return true;
    if (info.kind != QN_FILE_REGULAR) {
        qn_cli_error("%s: exists and is not a regular file", path);
        return false;
    }
    const bool gguf = info.size == 0 || qn_begins_as_gguf(path);
    if (!gguf)
        qn_cli_error("%s: exists and is not a GGUF file; it is not replaced", path);
    return gguf;
}

uint64_t qn_peak_rss(void)
{
    return qn_program_peak_memory();
}

double qn_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}
