/* Shared by fuzz targets: a check, the bytes of an input, files of the repository and files in memory. */
#ifndef QN_TESTS_FUZZ_H
#define QN_TESTS_FUZZ_H

#include "base/status.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A copy of standard error, which libFuzzer closes to silence the program. */
static int report_fd;

__attribute__((constructor)) static void keep_report_fd(void)
{
    report_fd = fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 0);
}

static inline void require(bool condition, const char *what)
{
    if (!condition) {
        dprintf(report_fd, "not so: %s (%s)\n", what, qn_error_text());
        abort();
    }
}

/* ---- Bytes of an input ---- */

/* The unread part of an input. Past its end it reads as zeros. */
struct input {
    const uint8_t *at;
    size_t left;
};

static inline uint8_t take_byte(struct input *in)
{
    if (!in->left)
        return 0;
    in->left--;
    return *in->at++;
}

/* Takes a little-endian number of n bytes. */
static inline uint64_t take_number(struct input *in, size_t n)
{
    uint64_t value = 0;
    for (size_t i = 0; i < n; i++)
        value |= (uint64_t)take_byte(in) << 8 * i;
    return value;
}

/* Takes at most n bytes. Returns their number. */
static inline size_t take_bytes(struct input *in, size_t n, const uint8_t **bytes)
{
    n = n < in->left ? n : in->left;
    *bytes = in->at;
    in->at += n;
    in->left -= n;
    return n;
}

/* ---- Files ---- */

/* The path of a file of the repository, which is in $QN_SOURCE_DIR if that is set. */
static inline const char *source_path(const char *name, char path[4096])
{
    const char *root = getenv("QN_SOURCE_DIR");
    snprintf(path, 4096, "%s/%s", root && *root ? root : QN_SOURCE_DIR, name);
    return path;
}

static inline uint8_t *read_source(const char *name, size_t *size)
{
    char path[4096];
    FILE *file = fopen(source_path(name, path), "rb");
    if (!file || fseek(file, 0, SEEK_END)) {
        dprintf(report_fd, "%s cannot be read: QN_SOURCE_DIR is the folder that it is in\n", path);
        exit(1);
    }
    *size = (size_t)ftell(file);
    rewind(file);
    uint8_t *data = malloc(*size + 1);
    require(data && fread(data, 1, *size, file) == *size, "the file is read");
    data[*size] = '\0';
    fclose(file);
    return data;
}

/* A file in memory: returns its descriptor, and a path that opens it. */
static inline int memory_file(const void *data, size_t size, char path[64])
{
    const int fd = memfd_create("fuzz", MFD_CLOEXEC);
    require(fd >= 0, "there are files in memory");
    for (size_t at = 0; at < size;) {
        const ssize_t n = write(fd, (const char *)data + at, size - at);
        require(n > 0, "the file is written");
        at += (size_t)n;
    }
    snprintf(path, 64, "/proc/self/fd/%d", fd);
    return fd;
}

/* A folder, in memory if possible; its name is constant. */
static inline char *memory_folder(const char *name)
{
    char *folder;
    require(asprintf(&folder, "%s/quern-fuzz-%s-XXXXXX", access("/dev/shm", W_OK) ? "/tmp" : "/dev/shm", name) > 0,
            "memory");
    require(mkdtemp(folder) != NULL, "the folder is made");
    return folder;
}

#endif
