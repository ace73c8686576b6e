/* The file of edited messages: any bytes are read as one, then a message is added. There are as many entries as lines,
 * at most QN_HISTORY_ENTRIES; the added message comes back as the last, and a long file is cut to its end.
 *
 * An input is: the number of repetitions of the file, the length of the message in two bytes, the message, the file. */
#include "fuzz.h"

#include "cli/history.h"

#include <fcntl.h>
#include <sys/stat.h>

enum { MAX_FILE = 200000, MAX_MESSAGE = 64 << 10 };

static char *folder, *path;

struct remembered {
    size_t n;
    char *last;
};

static void remember(void *user, const char *text)
{
    struct remembered *r = user;
    free(r->last);
    r->last = strdup(text);
    require(r->last, "memory");
    r->n++;
}

static struct remembered load(void)
{
    struct remembered r = { 0 };
    qn_history_load(remember, &r);
    require(r.n <= QN_HISTORY_ENTRIES, "there are at most so many");
    return r;
}

static void remove_all(void)
{
    char below[256];
    unlink(path);
    snprintf(below, sizeof below, "%.200s/quern", folder);
    rmdir(below);
    rmdir(folder);
}

static void set_up(void)
{
    char below[256];
    folder = memory_folder("history");
    snprintf(below, sizeof below, "%.200s/quern", folder);
    require(!mkdir(below, 0700) && asprintf(&path, "%s/chat_history", below) > 0 &&
                !setenv("XDG_STATE_HOME", folder, 1),
            "memory");
    require(!atexit(remove_all), "memory");
}

static size_t write_file(const uint8_t *data, size_t size, size_t times)
{
    const int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    size_t n_lines = 0, n = 0;
    require(fd >= 0, "the file is made");
    for (size_t i = 0; i < times && n + size <= MAX_FILE; i++, n += size)
        require(write(fd, data, size) == (ssize_t)size, "the file is written");
    close(fd);
    for (size_t i = 0; i < size; i++)
        n_lines += data[i] == '\n';
    return size ? n_lines * (n / size) : 0;
}

/* A message as it should come back. */
static char *expected(const uint8_t *message, size_t n)
{
    char *text = strndup((const char *)message, n);
    require(text, "memory");
    n = strlen(text);
    if (n && text[n - 1] == '\n')
        text[n - 1] = '\0';
    return text;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = { data, size };
    const uint8_t *bytes;
    struct stat info;
    if (!folder)
        set_up();
    const size_t times = 1 + take_byte(&in), length = take_number(&in, 2) % MAX_MESSAGE;
    const size_t n = take_bytes(&in, length, &bytes);
    const size_t n_lines = write_file(in.at, in.left, times);
    const bool is_cut = in.left && in.at[in.left - 1] != '\n'; /* then the message continues the last line */
    struct remembered r = load();
    require(r.n >= (n_lines < QN_HISTORY_ENTRIES ? n_lines : QN_HISTORY_ENTRIES), "each line is an entry");
    free(r.last);
    char *message = n ? expected(bytes, n) : NULL;
    if (message && *message && !memchr(bytes, 0, n)) {
        qn_history_add((const char *)bytes, n);
        r = load();
        require(r.last && (is_cut || !strcmp(r.last, message)), "what was added is the last");
        free(r.last);
    }
    free(message);
    require(stat(path, &info) != 0 || !(info.st_mode & 077), "only its owner reads it");
    return 0;
}
