/* Writes the access log. Each line is one call of write(), so that lines of several threads and processes do not
 * mix. */
#include "http/access_log.h"

#include "base/file.h"
#include "base/memory.h"
#include "base/printable.h"
#include "base/write_line.h"
#include "http/bytes.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { MAX_TARGET = 256, MAX_TEXT = 64 };
#define LAST_SECOND 253402300799.0 /* of the year 9999 */

/* `lock` protects fd and n_lost, and is held while a line is written; path and format are constant. */
struct qn_access_log {
    char *path; /* NULL: stderr */
    qn_access_format format;
    pthread_mutex_t lock;
    int fd;
    uint64_t n_lost; /* since the last line that was written */
};

static qn_status open_path(const char *path, int *fd)
{
    *fd = qn_file_open_log(path, 0640);
    return *fd >= 0 ? QN_OK : qn_fail(QN_ERR_IO, "%s: cannot open the access log: %s", path, strerror(errno));
}

qn_status qn_access_log_create(const char *path, qn_access_format format, qn_access_log **out)
{
    qn_access_log *log;
    *out = NULL;
    QN_TRY(qn_alloc(&log, 1, sizeof *log, "the access log"));
    log->fd = STDERR_FILENO;
    log->format = format;
    log->path = path ? strdup(path) : NULL;
    const qn_status status = !path        ? QN_OK
                             : !log->path ? qn_fail(QN_ERR_MEMORY, "not enough memory for the access log")
                                          : open_path(path, &log->fd);
    if (status) {
        free(log->path);
        qn_free(log);
        return status;
    }
    pthread_mutex_init(&log->lock, NULL);
    *out = log;
    return QN_OK;
}

void qn_access_log_free(qn_access_log *log)
{
    if (!log)
        return;
    if (log->path)
        close(log->fd);
    free(log->path);
    pthread_mutex_destroy(&log->lock);
    qn_free(log);
}

qn_status qn_access_log_reopen(qn_access_log *log)
{
    int fd;
    if (!log->path)
        return QN_OK;
    QN_TRY(open_path(log->path, &fd));
    pthread_mutex_lock(&log->lock);
    const int old = log->fd;
    log->fd = fd;
    pthread_mutex_unlock(&log->lock);
    close(old);
    return QN_OK;
}

/* ---- Lines ---- */

static void add_time(qn_bytes *line, double seconds)
{
    char text[40];
    struct tm utc;
    const double in_range = fmin(fmax(seconds, 0.0), LAST_SECOND), whole = floor(in_range);
    const time_t now = (time_t)whole;
    if (!gmtime_r(&now, &utc) || !strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc))
        *text = '\0';
    qn_bytes_print(line, "{\"time\":\"%s.%03dZ\"", text, (int)((in_range - whole) * 1000.0));
}

static void add_text(qn_bytes *line, const char *key, const char *text, size_t most)
{
    qn_json_key(line, key);
    if (text)
        qn_json_line_text(line, text, strnlen(text, most));
    else
        qn_json_null(line);
}

static void add_json(const qn_access *a, uint64_t n_lost, qn_bytes *line)
{
    add_time(line, a->time);
    add_text(line, "id", a->id, MAX_TEXT);
    add_text(line, "address", a->address, MAX_TEXT);
    add_text(line, "key", a->key, MAX_TEXT);
    add_text(line, "method", a->method, MAX_TEXT);
    add_text(line, "path", a->path, MAX_TARGET);
    qn_json_member_integer(line, "status", a->status);
    qn_json_member_integer(line, "bytes", (int64_t)a->bytes);
    qn_json_member_integer(line, "prompt_tokens", (int64_t)a->n_prompt);
    qn_json_member_integer(line, "cached_tokens", (int64_t)a->n_cached);
    qn_json_member_integer(line, "completion_tokens", (int64_t)a->n_generated);
    qn_json_key(line, "seconds");
    qn_json_number(line, round(a->seconds * 1e6) * 1e-6);
    qn_json_key(line, "cancelled");
    qn_json_bool(line, a->is_cancelled);
    if (n_lost)
        qn_json_member_integer(line, "lost", (int64_t)n_lost);
    qn_bytes_add(line, "}\n", 2);
}

/* Adds a text of a stranger that cannot falsify the line. */
static void add_masked(qn_bytes *line, const char *text, size_t most)
{
    char shown[MAX_TARGET + 1];
    snprintf(shown, sizeof shown, "%.*s", (int)most, text);
    qn_mask(shown);
    qn_bytes_add(line, shown, strlen(shown));
}

static void add_text_line(const qn_access *a, uint64_t n_lost, qn_bytes *line)
{
    char clock[16] = "";
    struct tm local;
    const time_t time = (time_t)fmin(fmax(a->time, 0.0), LAST_SECOND);
    if (localtime_r(&time, &local))
        strftime(clock, sizeof clock, "%H:%M:%S ", &local);
    qn_bytes_print(line, "%s", clock);
    add_masked(line, a->method, MAX_TEXT);
    qn_bytes_print(line, " ");
    add_masked(line, a->path, MAX_TARGET);
    qn_bytes_print(line, " %d", a->status);
    if (a->n_prompt)
        qn_bytes_print(line, ", prompt %zu tokens (%zu cached), answer %zu", a->n_prompt, a->n_cached, a->n_generated);
    qn_bytes_print(line, ", %.2f s, ", a->seconds);
    add_masked(line, a->address, MAX_TEXT);
    if (a->key) {
        qn_bytes_print(line, ", ");
        add_masked(line, a->key, MAX_TEXT);
    }
    qn_bytes_print(line, "%s", a->is_cancelled ? ", the client disconnected" : "");
    if (n_lost)
        qn_bytes_print(line, ", %llu lines lost before", (unsigned long long)n_lost);
    qn_bytes_add(line, "\n", 1);
}

/* Takes the lock, then makes and writes the line. Every line is shorter than PIPE_BUF, so that a pipe takes it whole or
 * not at all: escaping makes at most 6 bytes of one. */
void qn_access_log_write(qn_access_log *log, const qn_access *access)
{
    qn_bytes line = { 0 };
    pthread_mutex_lock(&log->lock);
    (log->format == QN_ACCESS_TEXT ? add_text_line : add_json)(access, log->n_lost, &line);
    if (!line.has_failed && qn_write_line(log->fd, line.data, line.length))
        log->n_lost = 0;
    else
        log->n_lost++;
    pthread_mutex_unlock(&log->lock);
    qn_bytes_free(&line);
}
