/* The cache of compiled kernels on disk. A file is
 *
 *   struct header, little-endian     magic, sizes, checksum, key, compiler, version of quern
 *   payload                          the code
 *
 * The checksum is XXH3-64 of the payload, seeded with XXH3-64 of the header with its checksum field set to zero. */
#include "gpu/code_file.h"

#include "base/append.h"
#include "base/atomic_file.h"
#include "gpu/code_store.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

/* Far above the size of any code of quern; a file with a larger payload is rejected. */
#define MAX_BYTES ((uint64_t)1 << 28)

const qn_code_kind qn_cubin_files = { "QNCUBIN1", ".cubin" }, qn_pipeline_files = { "QNVKPIP1", ".pipelines" };

struct header {
    char magic[8];
    uint64_t header_bytes, payload_bytes, checksum;
    qn_code_key key;
    char compiler[QN_COMPILER_MAX], version[16];
};

enum { HEX = 2 * sizeof(qn_code_key) };

void qn_code_file_name(const qn_code_kind *kind, const qn_code_key *key, char name[QN_CODE_NAME_MAX])
{
    qn_text_buffer text = qn_append_to(name, QN_CODE_NAME_MAX);
    qn_append_hex(&text, key->bytes, sizeof key->bytes);
    qn_append(&text, "%s", kind->suffix);
}

qn_status qn_code_folder(char **folder)
{
    return qn_code_store_place(folder);
}

qn_status qn_code_check_folder(const char *folder)
{
    return qn_code_store_check(folder);
}

static qn_status path_of(const qn_code_kind *kind, const char *folder, const qn_code_key *key, char **path)
{
    char name[QN_CODE_NAME_MAX];
    qn_code_file_name(kind, key, name);
    if (asprintf(path, "%s/%s", folder, name) >= 0)
        return QN_OK;
    *path = NULL;
    return qn_fail(QN_ERR_MEMORY, "%s: no memory for the name of a file", folder);
}

static uint64_t checksum(const struct header *h, const void *payload)
{
    struct header without = *h;
    without.checksum = 0;
    return XXH3_64bits_withSeed(payload, (size_t)h->payload_bytes, XXH3_64bits(&without, sizeof without));
}

/* ---- Reading ---- */

/* Reads `bytes` bytes; fewer only at the end of the file. -1 on error. */
static ssize_t read_fully(int fd, void *to, size_t bytes)
{
    size_t done = 0;
    while (done < bytes) {
        const ssize_t n = read(fd, (char *)to + done, bytes - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return -1;
        if (n == 0)
            break;
        done += (size_t)n;
    }
    return (ssize_t)done;
}

static qn_status check_header(const qn_code_kind *kind, const char *path, const struct header *h,
                              const qn_code_key *key, uint64_t file_bytes)
{
    if (memcmp(h->magic, kind->magic, sizeof h->magic) != 0 || h->header_bytes != sizeof *h)
        return qn_fail(QN_ERR_FORMAT, "%s: is not a file of quern's kernel cache", path);
    if (h->payload_bytes > MAX_BYTES || h->payload_bytes != file_bytes - sizeof *h)
        return qn_fail(QN_ERR_FORMAT, "%s: has %llu bytes, expected %llu by its header", path,
                       (unsigned long long)file_bytes, (unsigned long long)h->payload_bytes + sizeof *h);
    if (memcmp(&h->key, key, sizeof *key) != 0)
        return qn_fail(QN_ERR_FORMAT, "%s: the key in its header is not that of its name", path);
    return QN_OK;
}

static qn_status read_open(const qn_code_kind *kind, int fd, const char *path, const qn_code_key *key,
                           uint64_t file_bytes, void **data, size_t *bytes, char compiler[QN_COMPILER_MAX])
{
    struct header h;
    const ssize_t n = read_fully(fd, &h, sizeof h);
    if (n < 0)
        return qn_fail(QN_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if ((size_t)n < sizeof h)
        return qn_fail(QN_ERR_FORMAT, "%s: has %zd bytes, its header alone has %zu", path, n, sizeof h);
    QN_TRY(check_header(kind, path, &h, key, file_bytes));
    *bytes = (size_t)h.payload_bytes;
    *data = malloc(*bytes + 1); /* not NULL for an empty payload */
    if (!*data)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for %zu bytes", path, *bytes);
    const ssize_t got = read_fully(fd, *data, *bytes);
    if (got < 0)
        return qn_fail(QN_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if ((size_t)got != *bytes || checksum(&h, *data) != h.checksum)
        return qn_fail(QN_ERR_FORMAT, "%s: is damaged, its checksum does not fit", path);
    snprintf(compiler, QN_COMPILER_MAX, "%.*s", (int)strnlen(h.compiler, sizeof h.compiler), h.compiler);
    return QN_OK;
}

qn_status qn_code_file_read(const qn_code_kind *kind, const char *folder, const qn_code_key *key, void **data,
                            size_t *bytes, char compiler[QN_COMPILER_MAX])
{
    char *path;
    int fd;
    uint64_t file_bytes;
    *data = NULL;
    *bytes = 0;
    QN_TRY(path_of(kind, folder, key, &path));
    qn_status status = qn_code_store_open(folder, path, strrchr(path, '/') + 1, &fd, &file_bytes);
    if (fd >= 0) {
        status = read_open(kind, fd, path, key, file_bytes, data, bytes, compiler);
        close(fd);
    }
    if (status) {
        free(*data);
        *data = NULL;
    }
    free(path);
    return status;
}

/* ---- Writing ---- */

static qn_status write_parts(qn_atomic_file *file, const struct header *h, const void *data, size_t bytes)
{
    QN_TRY(qn_atomic_file_write(file, h, sizeof *h));
    QN_TRY(qn_atomic_file_write(file, data, bytes));
    return qn_atomic_file_commit(file);
}

qn_status qn_code_file_write(const qn_code_kind *kind, const char *folder, const qn_code_key *key, const char *compiler,
                             const void *data, size_t bytes)
{
    struct header h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, kind->magic, sizeof h.magic);
    h.header_bytes = sizeof h;
    h.payload_bytes = bytes;
    h.key = *key;
    snprintf(h.compiler, sizeof h.compiler, "%s", compiler);
    snprintf(h.version, sizeof h.version, "%s", QN_VERSION);
    h.checksum = checksum(&h, data);
    char *path;
    QN_TRY(qn_code_store_make(folder));
    QN_TRY(qn_code_store_check(folder));
    QN_TRY(path_of(kind, folder, key, &path));
    qn_atomic_file file;
    qn_status status = qn_atomic_file_create(&file, path, QN_FILE_PRIVATE);
    if (!status)
        status = write_parts(&file, &h, data, bytes);
    qn_atomic_file_free(&file);
    free(path);
    return status;
}

/* ---- Clearing ---- */

static bool is_hex(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (!(text[i] >= '0' && text[i] <= '9') && !(text[i] >= 'a' && text[i] <= 'f'))
            return false;
    return true;
}

/* Whether a file name is one of the cache: <hex><suffix>, or .<hex><suffix>.XXXXXX.quern.part of an unfinished
 * write. */
static bool is_of_kind(const qn_code_kind *kind, const char *name)
{
    const char *suffix = kind->suffix;
    const size_t length = strlen(name), whole = HEX + strlen(suffix);
    if (length == whole)
        return is_hex(name, HEX) && !strcmp(name + HEX, suffix);
    static const char part[] = ".quern.part";
    return length == 1 + whole + 7 + sizeof part - 1 && name[0] == '.' && is_hex(name + 1, HEX) &&
           !memcmp(name + 1 + HEX, suffix, strlen(suffix)) && !strcmp(name + length - (sizeof part - 1), part);
}

static bool is_ours(const char *name)
{
    return is_of_kind(&qn_cubin_files, name) || is_of_kind(&qn_pipeline_files, name);
}

qn_status qn_code_file_clear(const char *folder, size_t *n_files, uint64_t *bytes)
{
    return qn_code_store_clear(folder, is_ours, n_files, bytes);
}
