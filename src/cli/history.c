/* Reads and appends to the file of edited messages. */
#include "cli/history.h"

#include "base/append.h"
#include "base/atomic_file.h"
#include "base/environment.h"
#include "base/file.h"
#include "base/strings.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_ENTRY = 64 << 10 };

/* Creates the missing folders of a path. */
static void create_folders(char *path)
{
    for (char *slash = strchr(path + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = 0;
        const bool failed = !qn_folder_make(path, 0700);
        *slash = '/';
        if (failed)
            return;
    }
}

/* Finds the path of the file. False: there is no home directory. */
static bool find_path(char path[PATH_MAX])
{
    const char *state = qn_environment("XDG_STATE_HOME"), *home = qn_file_home(NULL);
    if (state && qn_file_is_absolute(state))
        return qn_print(path, PATH_MAX, "%s/quern/chat_history", state);
    return home && qn_file_is_absolute(home) && qn_print(path, PATH_MAX, "%s/.local/state/quern/chat_history", home);
}

/* Unescapes in place. */
static void unescape(char *line)
{
    char *out = line;
    for (const char *in = line; *in; in++) {
        if (*in == '\\' && in[1])
            *out++ = *++in == 'n' ? '\n' : *in;
        else
            *out++ = *in;
    }
    *out = 0;
}

/* ---- Loading ---- */

/* The last entries, as lines, in a ring buffer. */
struct entries {
    char *lines[QN_HISTORY_ENTRIES];
    size_t n; /* lines read */
};

static void read_entries(FILE *file, struct entries *entries)
{
    char *line = NULL;
    size_t capacity = 0;
    ptrdiff_t n;
    while ((n = qn_getline(&line, &capacity, file)) > 0) {
        if (line[n - 1] == '\n')
            line[n - 1] = 0;
        char **slot = &entries->lines[entries->n % QN_HISTORY_ENTRIES];
        free(*slot);
        *slot = strdup(line);
        if (!*slot)
            break;
        entries->n++;
    }
    free(line);
}

static void cut_file(const char *path, const struct entries *entries)
{
    qn_atomic_file file;
    qn_status status = qn_atomic_file_create(&file, path, QN_FILE_PRIVATE);
    for (size_t i = entries->n - QN_HISTORY_ENTRIES; i < entries->n && status == QN_OK; i++) {
        const char *line = entries->lines[i % QN_HISTORY_ENTRIES];
        status = qn_atomic_file_write(&file, line, strlen(line));
        if (status == QN_OK)
            status = qn_atomic_file_write(&file, "\n", 1);
    }
    if (status == QN_OK)
        status = qn_atomic_file_commit(&file);
    qn_atomic_file_free(&file);
}

void qn_history_load(void (*remember)(void *user, const char *text), void *user)
{
    char path[PATH_MAX];
    struct entries entries = { .n = 0 };
    FILE *file = find_path(path) ? qn_file_stream(path, "r") : NULL;
    if (!file)
        return;
    read_entries(file, &entries);
    fclose(file);
    if (entries.n > 2 * QN_HISTORY_ENTRIES)
        cut_file(path, &entries);
    for (size_t i = entries.n > QN_HISTORY_ENTRIES ? entries.n - QN_HISTORY_ENTRIES : 0; i < entries.n; i++) {
        char *line = entries.lines[i % QN_HISTORY_ENTRIES];
        if (!line)
            continue;
        unescape(line);
        remember(user, line);
    }
    for (size_t i = 0; i < QN_HISTORY_ENTRIES; i++)
        free(entries.lines[i]);
}

/* ---- Adding ---- */

/* Appends an entry to the file, in one write to a descriptor opened for appending, so that entries of several programs
 * do not mix. */
static void append_line(const char *line, size_t length)
{
    char path[PATH_MAX];
    qn_file_info info;
    if (!find_path(path))
        return;
    create_folders(path);
    const int fd = qn_file_open_append(path, 0600);
    if (fd < 0)
        return;
    if (qn_file_describe_fd(fd, &info) && info.kind == QN_FILE_REGULAR && qn_file_make_private(fd)) {
        const ssize_t ignored = write(fd, line, length);
        (void)ignored; /* on a full disk only this entry is lost */
    }
    close(fd);
}

void qn_history_add(const char *text, size_t length)
{
    if (length && text[length - 1] == '\n')
        length--;
    if (!length || length > MAX_ENTRY)
        return;
    char *line = malloc(2 * length + 1);
    if (!line)
        return;
    size_t n = 0;
    for (size_t i = 0; i < length; i++) {
        if (text[i] == '\\' || text[i] == '\n')
            line[n++] = '\\';
        line[n++] = text[i] == '\n' ? 'n' : text[i];
    }
    line[n++] = '\n';
    append_line(line, n);
    free(line);
}
