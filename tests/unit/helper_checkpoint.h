/* Checkpoints to convert: the golden ones (tests/golden/README.md), and copies that a test changes. */
#ifndef QN_TESTS_HELPER_CHECKPOINT_H
#define QN_TESTS_HELPER_CHECKPOINT_H

#include "helper_assert.h"
#include "helper_files.h"

#include "gguf/gguf.h"

#include "quern/quern.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static char work[] = "/tmp/quern-test-convert-XXXXXX";
static char out[4096], copy[4096]; /* the GGUF file, and the changed checkpoint */
static char log_text[4096];

static inline void checkpoint_path(const char *name, char to[4096])
{
    snprintf(to, 4096, "%s/tests/golden/checkpoints/%s", QN_SOURCE_DIR, name);
}

static inline void on_log(void *user, const char *line)
{
    (void)user;
    strncat(log_text, line, sizeof log_text - strlen(log_text) - 2);
    strcat(log_text, "\n");
}

static inline qn_status convert(const char *folder, const char *type, int n_threads, bool force)
{
    const qn_convert_params params = {
        .size = sizeof(qn_convert_params), .n_threads = n_threads, .force = force, .on_log = on_log
    };
    log_text[0] = '\0';
    return qn_convert_checkpoint(folder, out, type, &params);
}

/* The file is a link to one of tests/golden. */
static inline void replace_file(const char *path, const char *bytes, size_t size)
{
    unlink(path);
    write_file(path, bytes, size);
}

/* Makes `copy` a folder of links to the files of a golden checkpoint. */
static inline void link_checkpoint(const char *name)
{
    char folder[4096], from[8192], to[8192];
    checkpoint_path(name, folder);
    snprintf(copy, sizeof copy, "%s/checkpoint", work);
    mkdir(copy, 0700);
    DIR *old = opendir(copy), *dir = opendir(folder);
    assert_true(old && dir);
    for (struct dirent *e; (e = readdir(old));) {
        snprintf(to, sizeof to, "%s/%s", copy, e->d_name);
        if (e->d_name[0] != '.')
            unlink(to);
    }
    for (struct dirent *e; (e = readdir(dir));) {
        snprintf(from, sizeof from, "%s/%s", folder, e->d_name);
        snprintf(to, sizeof to, "%s/%s", copy, e->d_name);
        if (e->d_name[0] != '.')
            assert_int_equal(symlink(from, to), 0);
    }
    closedir(old);
    closedir(dir);
}

/* Replaces the first `before` in a file of the copy by `after`, or the whole file if `before` is NULL. */
static inline void edit(const char *file, const char *before, const char *after)
{
    char path[8192];
    size_t size;
    snprintf(path, sizeof path, "%s/%s", copy, file);
    if (!before) {
        replace_file(path, after, strlen(after));
        return;
    }
    char *text = read_file(path, &size), *at = memmem(text, size, before, strlen(before));
    assert_non_null(at);
    char *changed = malloc(size + strlen(after));
    const size_t head = (size_t)(at - text), tail = size - head - strlen(before);
    memcpy(changed, text, head);
    memcpy(changed + head, after, strlen(after));
    memcpy(changed + head + strlen(after), at + strlen(before), tail);
    replace_file(path, changed, head + strlen(after) + tail);
    free(changed);
    free(text);
}

/* Removes white space between the tokens of a JSON file of the copy, which `edit` expects. */
static inline void compact_json(const char *file)
{
    char path[8192];
    size_t size, n = 0;
    snprintf(path, sizeof path, "%s/%s", copy, file);
    char *text = read_file(path, &size);
    bool in_string = false;
    for (size_t i = 0; i < size; i++) {
        in_string ^= text[i] == '"' && (i == 0 || text[i - 1] != '\\' || (i > 1 && text[i - 2] == '\\'));
        if (in_string || (text[i] != ' ' && text[i] != '\n'))
            text[n++] = text[i];
    }
    replace_file(path, text, n);
    free(text);
}

#define convert_copy() assert_ok(convert(copy, NULL, 1, false))

static inline qn_gguf *open_out(void)
{
    qn_gguf *file;
    assert_ok(qn_gguf_open(out, &file));
    return file;
}

static inline int make_folder(void)
{
    if (!mkdtemp(work))
        return -1;
    snprintf(out, sizeof out, "%s/out.gguf", work);
    return 0;
}

static inline int remove_folder(void)
{
    return remove_tree(work);
}

#endif
