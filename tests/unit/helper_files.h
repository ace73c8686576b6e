/* Whole files of tests. */
#ifndef QN_TESTS_HELPER_FILES_H
#define QN_TESTS_HELPER_FILES_H

#include "helper_assert.h"

#include <sys/stat.h>

/* The contents, with a zero behind them, which the caller frees. `size` may be NULL. */
static inline void *read_file(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (!file)
        fail_msg("%s: cannot be opened", path);
    assert_int_equal(fseek(file, 0, SEEK_END), 0);
    const size_t n = (size_t)ftell(file);
    rewind(file);
    char *bytes = malloc(n + 1);
    assert_non_null(bytes);
    assert_int_equal(fread(bytes, 1, n, file), n);
    fclose(file);
    bytes[n] = '\0';
    if (size)
        *size = n;
    return bytes;
}

static inline void write_file(const char *path, const void *bytes, size_t size)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        fail_msg("%s: cannot be written", path);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static inline void write_text(const char *path, const char *text)
{
    write_file(path, text, strlen(text));
}

/* Writes the file of a made-up system whose root folder is `root`, with the folders above it; path: from the root on.
 */
static inline void write_below(const char *root, const char *path, const char *text)
{
    char full[512];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *slash = strchr(full + strlen(root) + 1, '/'); slash; slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        mkdir(full, 0700);
        *slash = '/';
    }
    write_text(full, text);
}

static inline void assert_file(const char *path, const void *expected, size_t size)
{
    size_t found_size;
    void *found = read_file(path, &found_size);
    assert_int_equal(found_size, size);
    assert_memory_equal(found, expected, size);
    free(found);
}

static inline void assert_same_files(const char *a, const char *b)
{
    size_t size;
    void *bytes = read_file(a, &size);
    assert_file(b, bytes, size);
    free(bytes);
}

/* A folder and all that is in it. */
static inline int remove_tree(const char *folder)
{
    char command[256];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

#endif
