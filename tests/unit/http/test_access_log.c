/* The access log: lines are JSON, whatever a request has; files can be renamed; nobody waits for a full pipe. */
#include "helper_assert.h"
#include "helper_folder.h"

#include "http/access_log.h"

#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

static const qn_access usual = { .time = 1769860800.5,
                                 .id = "req-1",
                                 .address = "127.0.0.1",
                                 .method = "POST",
                                 .path = "/v1/chat/completions",
                                 .status = 200,
                                 .bytes = 5000000000u,
                                 .n_prompt = 20,
                                 .n_cached = 5,
                                 .n_generated = 16,
                                 .seconds = 0.75 };
/* Line `number` of a file, from 0 on; NULL: it has fewer. */
static json_t *read_line(const char *file_path, int number)
{
    char line[4096];
    json_t *json = NULL;
    FILE *file = fopen(file_path, "r");
    assert_non_null(file);
    for (int i = 0; fgets(line, sizeof line, file); i++)
        if (i == number) {
            json = json_loads(line, 0, NULL);
            assert_true(json && line[strlen(line) - 1] == '\n');
        }
    fclose(file);
    return json;
}

TEST_WITH(lines_have_what_is_known, make_folder, remove_folder)
{
    qn_access_log *log;
    const char *time, *id, *address, *method, *request_path, *key;
    json_int_t status, bytes, n_prompt, n_cached, n_generated;
    double seconds;
    int is_cancelled;
    struct stat info;
    qn_access named = usual;
    named.key = "alice";
    named.is_cancelled = true;
    assert_ok(qn_access_log_create(path, QN_ACCESS_JSON, &log));
    qn_access_log_write(log, &usual);
    qn_access_log_write(log, &named);
    qn_access_log_free(log);
    assert_true(stat(path, &info) == 0 && (info.st_mode & S_IRWXO) == 0);
    json_t *json = read_line(path, 0);
    assert_int_equal(json_unpack(json, "{s:s,s:s,s:s,s:n,s:s,s:s,s:I,s:I,s:I,s:I,s:I,s:F,s:b!}", "time", &time, "id",
                                 &id, "address", &address, "key", "method", &method, "path", &request_path, "status",
                                 &status, "bytes", &bytes, "prompt_tokens", &n_prompt, "cached_tokens", &n_cached,
                                 "completion_tokens", &n_generated, "seconds", &seconds, "cancelled", &is_cancelled),
                     0);
    assert_string_equal(time, "2026-01-31T12:00:00.500Z");
    assert_string_equal(id, "req-1");
    assert_string_equal(address, "127.0.0.1");
    assert_string_equal(method, "POST");
    assert_string_equal(request_path, "/v1/chat/completions");
    assert_true(status == 200 && bytes == 5000000000 && n_prompt == 20 && n_cached == 5 && n_generated == 16);
    assert_true(seconds == 0.75 && !is_cancelled);
    json_decref(json);
    json = read_line(path, 1);
    assert_int_equal(json_unpack(json, "{s:s,s:b}", "key", &key, "cancelled", &is_cancelled), 0);
    assert_string_equal(key, "alice");
    assert_true(is_cancelled);
    json_decref(json);
}

/* Also the longest texts fit in PIPE_BUF bytes when each byte is escaped. */
TEST_WITH(hostile_texts_stay_on_their_line, make_folder, remove_folder)
{
    char text[1000], line[2 * PIPE_BUF];
    qn_access_log *log;
    qn_access access = usual;
    memset(text, 1, sizeof text);
    text[0] = '\n';
    text[1] = '"';
    text[2] = '\xff';
    text[sizeof text - 1] = '\0';
    access.id = access.address = access.key = access.method = access.path = text;
    access.time = 1e300;
    access.seconds = -1e300;
    access.n_prompt = access.n_cached = access.n_generated = SIZE_MAX / 2;
    access.bytes = INT64_MAX;
    assert_ok(qn_access_log_create(path, QN_ACCESS_JSON, &log));
    qn_access_log_write(log, &access);
    qn_access_log_write(log, &usual);
    qn_access_log_free(log);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    assert_true(strlen(line) < PIPE_BUF);
    json_t *json = read_line(path, 0);
    assert_int_equal(json_string_length(json_object_get(json, "path")), 256 + 2); /* U+FFFD for one byte */
    json_decref(json);
    json_decref(json = read_line(path, 1));
    assert_non_null(json);
    assert_null(read_line(path, 2));
}

TEST_WITH(lines_of_text_are_for_people, make_folder, remove_folder)
{
    char line[1000], name[300];
    qn_access_log *log;
    qn_access named = usual, hostile = usual;
    named.key = "alice";
    named.is_cancelled = true;
    named.n_prompt = 0;
    memset(name, 'x', sizeof name);
    strcpy(name + sizeof name - 5, "tail");
    memcpy(name, "\x1b[1m\n\xc2\x9b", 7);
    hostile.path = hostile.method = hostile.address = hostile.key = name;
    assert_ok(qn_access_log_create(path, QN_ACCESS_TEXT, &log));
    qn_access_log_write(log, &usual);
    qn_access_log_write(log, &named);
    qn_access_log_write(log, &hostile);
    qn_access_log_free(log);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line + strlen("12:00:00"),
                        " POST /v1/chat/completions 200, prompt 20 tokens (5 cached), answer "
                        "16, 0.75 s, 127.0.0.1\n");
    assert_non_null(fgets(line, sizeof line, file));
    assert_string_equal(line + strlen("12:00:00"),
                        " POST /v1/chat/completions 200, 0.75 s, 127.0.0.1, alice, the client disconnected\n");
    assert_non_null(fgets(line, sizeof line, file));
    assert_non_null(strstr(line, "?[1m???xxx"));
    assert_null(strstr(line, "tail"));
    assert_null(strpbrk(line, "\x1b"));
    assert_null(fgets(line, sizeof line, file));
    fclose(file);
}

TEST_WITH(renamed_files_are_left, make_folder, remove_folder)
{
    qn_access_log *log;
    assert_ok(qn_access_log_create(path, QN_ACCESS_JSON, &log));
    qn_access_log_write(log, &usual);
    assert_int_equal(rename(path, other_path), 0);
    qn_access_log_write(log, &usual);
    assert_ok(qn_access_log_reopen(log));
    qn_access_log_write(log, &usual);
    json_t *json = read_line(other_path, 1);
    assert_non_null(json);
    json_decref(json);
    assert_null(read_line(other_path, 2));
    json_decref(json = read_line(path, 0));
    assert_non_null(json);
    /* Another log appends to the file. */
    qn_access_log_free(log);
    assert_ok(qn_access_log_create(path, QN_ACCESS_JSON, &log));
    qn_access_log_write(log, &usual);
    qn_access_log_free(log);
    json_decref(json = read_line(path, 1));
    assert_non_null(json);
    assert_fails(qn_access_log_create("/nonexistent/log", QN_ACCESS_JSON, &log), QN_ERR_IO, "/nonexistent/log");
}

TEST(full_pipes_lose_lines)
{
    enum { N_LINES = 2000 };
    static char all[1 << 20];
    qn_access_log *log;
    int pipe_fds[2], n = 0;
    assert_int_equal(pipe(pipe_fds), 0);
    const int saved = dup(STDERR_FILENO);
    assert_true(saved >= 0 && dup2(pipe_fds[1], STDERR_FILENO) == STDERR_FILENO);
    assert_ok(qn_access_log_create(NULL, QN_ACCESS_JSON, &log));
    for (int i = 0; i < N_LINES; i++)
        qn_access_log_write(log, &usual);
    const ssize_t first = read(pipe_fds[0], all, sizeof all / 2);
    qn_access_log_write(log, &usual);
    dup2(saved, STDERR_FILENO);
    close(saved);
    close(pipe_fds[1]);
    assert_true(first > 0);
    const ssize_t second = read(pipe_fds[0], all + first, sizeof all / 2);
    close(pipe_fds[0]);
    assert_ok(qn_access_log_reopen(log));
    qn_access_log_free(log);
    assert_true(second > 0);
    char *last = NULL, *rest = all, *line;
    while ((line = strsep(&rest, "\n")) && *line) {
        last = line;
        n++;
    }
    json_t *json = json_loads(last, 0, NULL);
    const json_int_t n_lost = json_integer_value(json_object_get(json, "lost"));
    json_decref(json);
    assert_true(n_lost > 0);
    assert_int_equal(n + n_lost, N_LINES + 1);
}
