/* The output of quern batch: its lines, reading back what an earlier run wrote, and appending. */
#include "cli/batch.h"

#include "base/memory.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include <xxhash.h>

/* Of an id: "batch_req_12" is line 12's. */
#define ID_PREFIX "batch_req_"

/* ---- Sets ---- */

static char **slot_of(const qn_batch_set *set, const char *text)
{
    size_t at = XXH64(text, strlen(text), 0) & (set->capacity - 1);
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

/* Notes what a line of an earlier run is about. */
static bool note_line(const char *path, size_t number, const char *text, size_t length, qn_batch_set *ids, qn_batch_set *lines)
{
    bool failed = false;
    json_t *json = json_loadb(text, length, JSON_ALLOW_NUL, NULL);
    const char *id = json_string_value(json_object_get(json, "id")),
               *custom_id = json_string_value(json_object_get(json, "custom_id")),
               *code = json_string_value(json_object_get(json_object_get(json, "error"), "code"));
    const bool is_ours = id && !strncmp(id, ID_PREFIX, strlen(ID_PREFIX));
    if (!is_ours)
        qn_cli_error("%s:%zu: it is not a line that quern batch has written", path, number);
    else if (custom_id && !(code && !strcmp(code, QN_BATCH_DUPLICATE)))
        (void)qn_batch_set_add(ids, custom_id, &failed);
    else
        (void)qn_batch_set_add(lines, id + strlen(ID_PREFIX), &failed);
    json_decref(json);
    return is_ours && !failed;
}

/* Reads the complete lines, and removes what follows the last. */
static bool read_back(int fd, const char *path, qn_batch_set *ids, qn_batch_set *lines)
{
    const int copy = dup(fd);
    FILE *file = copy < 0 ? NULL : fdopen(copy, "r");
    char *line = NULL;
    size_t capacity = 0, number = 0;
    off_t end = 0;
    bool done = file != NULL;
    for (ssize_t n; done && (n = getline(&line, &capacity, file)) > 0 && line[n - 1] == '\n'; end += n)
        done = note_line(path, ++number, line, (size_t)n - 1, ids, lines);
    if (!file || (done && ferror(file)) || (done && ftruncate(fd, end))) {
        qn_cli_error("%s: %s", path, strerror(errno));
        done = false;
    }
    free(line);
    if (file)
        fclose(file);
    else if (copy >= 0)
        close(copy);
    return done;
}

int qn_batch_open(const char *path, bool resume, qn_batch_set *ids, qn_batch_set *lines)
{
    struct stat found;
    const int fd = open(path, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0 || fstat(fd, &found)) {
        qn_cli_error("%s: %s", path, strerror(errno));
    } else if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) {
        qn_cli_error("%s: another program is writing to it", path);
    } else if (!resume && S_ISREG(found.st_mode) && found.st_size) {
        qn_cli_error("%s: it exists and is not empty; --resume continues it", path);
    } else if (!resume || !S_ISREG(found.st_mode) || read_back(fd, path, ids, lines)) {
        return fd;
    }
    if (fd >= 0)
        close(fd);
    return -1;
}

/* ---- Lines ---- */

/* With its newline. `line` is released. Nine digits are a float's. */
static char *dump(json_t *line)
{
    char *text = line ? json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9)) : NULL, *longer = NULL;
    if (text) {
        const size_t length = strlen(text);
        longer = realloc(text, length + 2);
        if (longer)
            memcpy(longer + length, "\n", 2);
        else
            free(text);
    }
    json_decref(line);
    return longer;
}

char *qn_batch_error_line(const qn_batch_job *job, const qn_batch_error *error)
{
    char id[40];
    snprintf(id, sizeof id, ID_PREFIX "%zu", job->line);
    /* A text of the library may be cut inside a character. */
    json_t *message = json_string(error->message);
    return dump(json_pack("{s:s, s:s?, s:n, s:{s:s, s:o}}", "id", id, "custom_id", job->custom_id, "response", "error", "code",
                          error->code, "message", message ? message : json_string("the message is not valid UTF-8")));
}

static json_t *choices_of(const qn_batch_job *job, const qn_model *model)
{
    json_t *choices = json_array();
    for (size_t i = 0; choices && i < job->n_choices; i++)
        if (json_array_append_new(choices, qn_batch_choice_json(&job->choices[i], model, i))) {
            json_decref(choices);
            return NULL;
        }
    return choices;
}

/* The prompt counts once, the tokens of all choices do. */
static json_t *usage_of(const qn_batch_job *job)
{
    const qn_request_result *first = &job->choices[0].result;
    size_t n_generated = 0;
    for (size_t i = 0; i < job->n_choices; i++)
        n_generated += job->choices[i].result.n_generated;
    return json_pack("{s:I, s:I, s:I, s:{s:I}}", "prompt_tokens", (json_int_t)first->n_prompt, "completion_tokens",
                     (json_int_t)n_generated, "total_tokens", (json_int_t)(first->n_prompt + n_generated),
                     "prompt_tokens_details", "cached_tokens", (json_int_t)first->n_reused);
}

char *qn_batch_answer(const qn_batch_job *job, const qn_model *model, const char *model_name)
{
    char id[40], answer_id[40];
    const json_t *asked = json_object_get(json_object_get(job->json, "body"), "model");
    snprintf(id, sizeof id, ID_PREFIX "%zu", job->line);
    snprintf(answer_id, sizeof answer_id, "%s-%zu", job->is_chat ? "chatcmpl" : "cmpl", job->line);
    json_t *body = json_pack("{s:s, s:s, s:I, s:s, s:o, s:o}", "id", answer_id, "object",
                             job->is_chat ? "chat.completion" : "text_completion", "created", (json_int_t)time(NULL), "model",
                             json_is_string(asked) ? json_string_value(asked) : model_name, "choices", choices_of(job, model),
                             "usage", usage_of(job));
    return dump(json_pack("{s:s, s:s, s:{s:i, s:s, s:o}, s:n}", "id", id, "custom_id", job->custom_id, "response",
                          "status_code", 200, "request_id", answer_id, "body", body, "error"));
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
