/* quern pull from a hostile hub: lists, redirects, headers, ranges and bodies of any bytes, with or without a part of a
 * file from an earlier download. A pulled file is in the cache and has the hash of its name; a refusal has a text.
 *
 * An input is: a byte of options, then answers separated by a byte 0x1e. The first byte of an answer is its kind:
 * 'L' a list of files, 'H' header lines added to a sound answer, 'B' a body with sound headers, 'E' three digits of
 * a status and headers; otherwise all of it is the answer, including the status line. An empty one is sound. */
#include "hostile_server.h"

#include "hub/files.h"
#include "hub/hub.h"

#include <fcntl.h>
#include <ftw.h>
#include <sys/stat.h>
#include <time.h>

/* Replaces the C library's function: waiting takes no time. */
int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)wanted;
    (void)left;
    return 0;
}

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define HASH "a948904f2f0f479b8f8197694b30184b0d2ed1c1cd2a1ec0fb85d299a192a447" /* of the content */

static const char content[] = "hello world\n";
static const char list[] =
    "{\"sha\":\"" COMMIT "\",\"siblings\":[{\"rfilename\":\"config.json\",\"size\":3,\"blobId\":\"" COMMIT "\"},"
    "{\"rfilename\":\"m-Q1_0.gguf\",\"size\":12,\"lfs\":{\"sha256\":\"" HASH "\",\"size\":12}}]}";
static struct hostile_server *server;
static char *home;
static bool cancels;

/* ---- Answers ---- */

/* Headers of the file's answer; `more` is added and replaces none. */
static void answer_file(struct answer *answer, const char *request, const uint8_t *more, size_t n, const uint8_t *body,
                        size_t n_body)
{
    char head[600];
    size_t from = 0;
    const bool is_head = strncmp(request, "HEAD ", 5) == 0;
    const char *range = strcasestr(request, "\r\nrange: bytes=");
    if (range)
        from = strtoul(range + 15, NULL, 10);
    const bool has_range = range && from < n_body;
    snprintf(head, sizeof head,
             "HTTP/1.1 %s\r\nX-Repo-Commit: " COMMIT "\r\nX-Linked-Etag: \"" HASH "\"\r\nContent-Length: %zu\r\n",
             has_range ? "206 Partial" : "200 OK", has_range ? n_body - from : n_body);
    answer_text(answer, head);
    snprintf(head, sizeof head, "Content-Range: bytes %zu-%zu/%zu\r\n", from, n_body - 1, n_body);
    if (has_range)
        answer_text(answer, head);
    answer_add(answer, more, n);
    answer_text(answer, n && more[n - 1] != '\n' ? "\r\n\r\n" : "\r\n");
    if (!is_head)
        answer_add(answer, body + (has_range ? from : 0), n_body - (has_range ? from : 0));
}

static void make(const char *request, const uint8_t *item, size_t n, struct answer *answer)
{
    char status[4] = "", line[64];
    const bool asks_for_list = strstr(request, "/api/models/") != NULL;
    const char kind = n ? (char)*item : asks_for_list ? 'L' : 'H';
    item += n > 0;
    n -= n > 0;
    switch (kind) {
    case 'L':
        answer_body(answer, "200 OK", "application/json", n ? (const void *)item : list, n ? n : strlen(list));
        break;
    case 'H': answer_file(answer, request, item, n, (const uint8_t *)content, strlen(content)); break;
    case 'B': answer_file(answer, request, NULL, 0, item, n); break;
    case 'E':
        snprintf(status, sizeof status, "%.*s", (int)(n < 3 ? n : 3), item);
        snprintf(line, sizeof line, "HTTP/1.1 %s X\r\nContent-Length: 0\r\n", status);
        answer_text(answer, line);
        answer_add(answer, item + strlen(status), n - strlen(status));
        answer_text(answer, "\r\n\r\n");
        break;
    default: answer_add(answer, item - 1, n + 1);
    }
}

/* ---- The cache ---- */

static int remove_one(const char *path, const struct stat *info, int flag, struct FTW *at)
{
    (void)info, (void)flag;
    if (at->level)
        remove(path);
    return 0;
}

static void empty_cache(void)
{
    nftw(home, remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static void remove_cache(void)
{
    empty_cache();
    rmdir(home);
}

static void set_up(void)
{
    server = hostile_start(make);
    home = memory_folder("pull");
    require(!setenv("HF_HOME", home, 1) && !setenv("HF_ENDPOINT", server->url, 1) &&
                !setenv("HF_HUB_DOWNLOAD_TIMEOUT", "3", 1) && !setenv("HF_TOKEN", "hf_secret", 1) &&
                !unsetenv("HF_HUB_CACHE") && !atexit(remove_cache),
            "the environment is set");
}

/* Leaves the part of an earlier download. */
static void leave_part(const char *bytes, size_t n)
{
    char path[400];
    static const char *const folders[] = { "", "/hub", "/hub/models--a--b", "/hub/models--a--b/blobs" };
    for (size_t i = 0; i < sizeof folders / sizeof *folders; i++) {
        snprintf(path, sizeof path, "%.200s%s", home, folders[i]);
        (void)mkdir(path, 0700);
    }
    snprintf(path, sizeof path, "%.200s/hub/models--a--b/blobs/" HASH ".incomplete", home);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    require(fd >= 0 && write(fd, bytes, n) == (ssize_t)n, "a part is written");
    close(fd);
}

static bool on_progress(void *user, const qn_hub_progress *progress)
{
    size_t *calls = user;
    require(progress->done <= QN_HUB_SIZE_MAX && progress->before <= QN_HUB_SIZE_MAX, "progress is within a file");
    return !cancels || ++*calls < 6;
}

static void on_log(void *user, const char *line)
{
    (void)user;
    require(*line, "a line has a text");
}

static void check(const char *path)
{
    struct stat info;
    char *real = realpath(path, NULL);
    require(real && !strncmp(real, home, strlen(home)) && real[strlen(home)] == '/', "what is pulled is in the cache");
    require(stat(path, &info) == 0 && S_ISREG(info.st_mode), "it is a file");
    require(strstr(real, "/blobs/") && qn_hub_is_etag(strrchr(real, '/') + 1), "it is named by its hash");
    free(real);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = { "a/b", "a/b:Q1_0", "a/b:m-Q1_0.gguf", "a/b:config.json" };
    struct input in = { data, size };
    char *path;
    size_t calls = 0;
    if (!server)
        set_up();
    const uint8_t options = take_byte(&in);
    const qn_hub_params params = { .memory = 1 << 30, .on_log = on_log, .on_progress = on_progress, .user = &calls };
    cancels = options / 4 % 8 == 7;
    if (options & 32)
        leave_part(options & 64 ? content : "another", options & 64 ? 5 : 7);
    hostile_script(server, in.at, in.left);
    if (qn_hub_pull(names[options % 4], &params, &path) == QN_OK) {
        check(path);
        free(path);
    } else {
        require(!path && *qn_error_text(), "a refusal has a text");
    }
    hostile_script(server, (const uint8_t *)"", 0);
    empty_cache();
    return 0;
}
