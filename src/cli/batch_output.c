/* The output of quern batch: writes its lines, and reads back those of an earlier run. */
#include "cli/batch.h"

#include "base/file.h"
#include "base/keyed_hash.h"
#include "base/memory.h"
#include "base/strings.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The beginning of ids: "batch_req_12" is the answer to line 12. */
#define ID_PREFIX "batch_req_"

/* ---- Sets ---- */

static char **slot_of(const qn_batch_set *set, const char *text)
{
    size_t at = qn_keyed_hash(text, strlen(text)) & (set->capacity - 1);
    while (set->slots[at] && strcmp(set->slots[at], text) != 0)
        at = (at + 1) & (set->capacity - 1);
    return &set->slots[at];
}

static qn_status grow(qn_batch_set *set)
{
    qn_batch_set larger = { .n = set->n, .capacity = set->capacity ? 2 * set->capacity : 1024 };
    if (2 * (set->n + 1) <= set->capacity)
        return QN_OK;
    QN_TRY(qn_alloc(&larger.slots, larger.capacity, sizeof(char *), "custom ids"));
    for (size_t i = 0; i < set->capacity; i++)
        if (set->slots[i])
            *slot_of(&larger, set->slots[i]) = set->slots[i];
    qn_free(set->slots);
    *set = larger;
    return QN_OK;
}

bool qn_batch_set_has(const qn_batch_set *set, const char *text)
{
    return set->n && *slot_of(set, text);
}

bool qn_batch_set_add(qn_batch_set *set, const char *text, bool *failed)
{
    if (qn_batch_set_has(set, text))
        return false;
    char *copy = strdup(text);
    if (!copy || grow(set)) {
        qn_cli_error("custom ids: not enough memory");
        free(copy);
        *failed = true;
        return false;
    }
    *slot_of(set, text) = copy;
    set->n++;
    return true;
}

void qn_batch_set_free(qn_batch_set *set)
{
    for (size_t i = 0; i < set->capacity; i++)
        free(set->slots[i]);
    qn_free(set->slots);
}

/* ---- Reading back ---- */

/* Records which request a line of an earlier run answers. */
static bool note_line(const char *path, size_t number, const char *text, size_t length, qn_batch_set *ids,
                      qn_batch_set *lines, size_t *n_answers)
{
    bool failed = false;
    json_t *json = json_loadb(text, length, JSON_ALLOW_NUL, NULL);
    const char *id = json_string_value(json_object_get(json, "id")),
               *custom_id = json_string_value(json_object_get(json, "custom_id")),
               *code = json_string_value(json_object_get(json_object_get(json, "error"), "code"));
    const bool is_ours = id && !strncmp(id, ID_PREFIX, strlen(ID_PREFIX));
    *n_answers += is_ours && !code;
    if (!is_ours)
        qn_cli_error("%s:%zu: not a line written by quern batch", path, number);
    else if (custom_id && !(code && !strcmp(code, QN_BATCH_DUPLICATE)))
        (void)qn_batch_set_add(ids, custom_id, &failed);
    else
        (void)qn_batch_set_add(lines, id + strlen(ID_PREFIX), &failed);
    json_decref(json);
    return is_ours && !failed;
}

/* Reads the complete lines and removes the rest after them. */
static bool read_back(int fd, const char *path, qn_batch_set *ids, qn_batch_set *lines, size_t *n_answers)
{
    FILE *file = qn_file_stream(path, "r");
    char *line = NULL;
    size_t capacity = 0, number = 0;
    uint64_t end = 0;
    bool done = file != NULL;
    for (ptrdiff_t n; done && (n = qn_getline(&line, &capacity, file)) > 0 && line[n - 1] == '\n'; end += (uint64_t)n)
        done = note_line(path, ++number, line, (size_t)n - 1, ids, lines, n_answers);
    if (!file || (done && ferror(file)) || (done && !qn_file_truncate(fd, end))) {
        qn_cli_error("%s: %s", path, strerror(errno));
        done = false;
    }
    free(line);
    if (file)
        fclose(file);
    return done;
}

int qn_batch_open(const char *path, bool resume, qn_batch_set *ids, qn_batch_set *lines, size_t *n_answers)
{
    qn_file_info found;
    const int fd = qn_file_open_append(path, 0666);
    if (fd < 0 || !qn_file_describe_fd(fd, &found)) {
        qn_cli_error("%s: %s", path, strerror(errno));
    } else if (!qn_file_lock(fd)) {
        qn_cli_error("%s: another program is writing to it", path);
    } else if (!resume && found.kind == QN_FILE_REGULAR && found.size) {
        qn_cli_error("%s: exists and is not empty; --resume continues it", path);
    } else if (!resume || found.kind != QN_FILE_REGULAR || read_back(fd, path, ids, lines, n_answers)) {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* ---- Lines ---- */

/* Writes a line up to the value of "response". */
static void open_line(const qn_batch_job *job, qn_bytes *line)
{
    qn_json_open(line, '{');
    qn_json_key(line, "id");
    qn_bytes_print(line, "\"" ID_PREFIX "%zu\"", job->line);
    qn_json_member_string(line, "custom_id", job->custom_id);
    qn_json_key(line, "response");
}

static char *close_line(qn_bytes *line)
{
    qn_json_close(line, '}');
    qn_bytes_add(line, "\n", sizeof "\n");
    if (!line->has_failed)
        return line->data;
    qn_bytes_free(line);
    return NULL;
}

char *qn_batch_error_line(const qn_batch_job *job, const qn_batch_error *error)
{
    qn_bytes line = { 0 };
    open_line(job, &line);
    qn_json_null(&line);
    qn_json_key(&line, "error");
    qn_json_open(&line, '{');
    qn_json_member_string(&line, "code", error->code);
    qn_json_member_string(&line, "message", error->message);
    qn_json_close(&line, '}');
    return close_line(&line);
}

char *qn_batch_answer(const qn_batch_job *job)
{
    qn_bytes line = { 0 };
    qn_exchange *exchange = job->exchange;
    open_line(job, &line);
    qn_json_open(&line, '{');
    qn_json_member_integer(&line, "status_code", 200);
    qn_json_key(&line, "request_id");
    qn_bytes_print(&line, "\"%s-%zu\"", exchange->has_events ? "chatcmpl" : "cmpl", job->line);
    qn_json_key(&line, "body");
    line.has_failed = exchange->protocol->end(exchange, &line) != 200 || line.has_failed;
    qn_json_close(&line, '}');
    qn_json_member_string(&line, "error", NULL);
    return close_line(&line);
}

bool qn_batch_write(int fd, const char *line)
{
    for (size_t left = strlen(line); left;) {
        const ssize_t n = write(fd, line, left);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return false;
        line += n;
        left -= (size_t)n;
    }
    return true;
}
