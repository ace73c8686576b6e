/* Files of quern batch: an earlier run's output, read by --resume, and a line of the input. Whole lines of the output
 * are kept, and their custom_ids are known. A line of the input becomes requests, or an error line that the next run
 * knows.
 *
 * An input is: the line, a zero byte, the output. */
#include "body_words.h"
#include "mutate_json.h"
#include "vocab_model.h"

#include "cli/batch.h"

#include <sys/stat.h>

static qn_model *model;

static char *read_fd(int fd, size_t *n)
{
    struct stat info;
    require(fstat(fd, &info) == 0, "the file is there");
    char *text = malloc((size_t)info.st_size + 1);
    require(text && pread(fd, text, (size_t)info.st_size, 0) == info.st_size, "it is read");
    *n = (size_t)info.st_size;
    text[*n] = '\0';
    return text;
}

/* Checks that each line of an accepted output is one of quern batch, and known. */
static void check_lines(const char *text, size_t n, const qn_batch_set *ids, const qn_batch_set *lines)
{
    for (size_t at = 0, end; at < n; at = end + 1) {
        const char *newline = memchr(text + at, '\n', n - at);
        require(newline, "lines are whole");
        end = (size_t)(newline - text);
        json_t *json = json_loadb(text + at, end - at, JSON_ALLOW_NUL, NULL);
        const char *id = json_string_value(json_object_get(json, "id")),
                   *custom = json_string_value(json_object_get(json, "custom_id"));
        require(id && !strncmp(id, "batch_req_", 10), "a line has an id");
        require((custom && qn_batch_set_has(ids, custom)) || qn_batch_set_has(lines, id + 10),
                "what has a line is known");
        json_decref(json);
    }
}

static bool open_output(const char *path, qn_batch_set *ids, qn_batch_set *lines, const char *before, size_t n_before)
{
    size_t n;
    size_t n_answers;
    const int fd = qn_batch_open(path, true, ids, lines, &n_answers);
    if (fd < 0)
        return false;
    char *text = read_fd(fd, &n);
    require(n <= n_before && (!n || !memcmp(text, before, n)) && (!n || text[n - 1] == '\n'), "whole lines stay");
    require(!memchr(before + n, '\n', n_before - n), "all of them");
    check_lines(text, n, ids, lines);
    free(text);
    close(fd);
    return true;
}

/* Reads a line as the first of its input file. Returns the output line if it is refused. */
static char *take_line(const char *text, size_t length)
{
    qn_batch_job job = { .line = 1 };
    qn_batch_error error = { 0 };
    const qn_served served = {
        .model = model, .n_ctx = 64, .max_tokens = -1, .reasoning_budget = -1, .sampling = QN_SAMPLING_INIT
    };
    char *line = NULL;
    if (qn_batch_parse(text, length, &job, &error) && qn_batch_bind(&job, &served, &error)) {
        require(job.exchange->n_requests > 0 && job.custom_id, "a line has requests and an id");
    } else {
        require(error.code && *error.message, "an error has a code and a message");
        line = qn_batch_error_line(&job, &error);
        require(line, "an error has a line");
    }
    qn_batch_job_free(&job);
    return line;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t max_size, unsigned int seed)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    const size_t middle = zero ? (size_t)(zero - data) : size;
    if (!zero || seed % 4)
        return mutate_json(data, size, max_size, 0, middle, seed);
    /* Mutates one line of the output. */
    size_t begin = middle + 1;
    for (unsigned skip = seed / 4 % 4; skip; skip--) {
        const uint8_t *newline = begin < size ? memchr(data + begin, '\n', size - begin) : NULL;
        begin = newline && newline + 1 < data + size ? (size_t)(newline + 1 - data) : begin;
    }
    const uint8_t *end = begin < size ? memchr(data + begin, '\n', size - begin) : NULL;
    return mutate_json(data, size, max_size, begin < size ? begin : size, end ? (size_t)(end - data) : size, seed);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *zero = size ? memchr(data, 0, size) : NULL;
    const size_t length = zero ? (size_t)(zero - data) : size, n_output = zero ? size - length - 1 : 0;
    const char *output = zero ? (const char *)zero + 1 : "";
    qn_batch_set ids = { 0 }, lines = { 0 }, again = { 0 }, lines_again = { 0 };
    char path[64];
    if (!model)
        model = load_vocab_model();
    const int fd = memory_file(output, n_output, path);
    char *line = take_line((const char *)data, length);
    if (open_output(path, &ids, &lines, output, n_output) && line) {
        size_t n;
        require(lseek(fd, 0, SEEK_END) >= 0 && qn_batch_write(fd, line), "the line is written");
        char *text = read_fd(fd, &n);
        require(open_output(path, &again, &lines_again, text, n), "the next run reads it");
        require(again.n + lines_again.n >= ids.n + lines.n, "and knows no less");
        free(text);
    }
    free(line);
    qn_batch_set_free(&ids);
    qn_batch_set_free(&lines);
    qn_batch_set_free(&again);
    qn_batch_set_free(&lines_again);
    close(fd);
    return 0;
}
