/* The cache of compiled kernels on disk. A file is
 *
 *   struct header, little-endian     magic, sizes, checksum, key, compiler, version of quern
 *   payload                          the code
 *
 * The checksum is XXH3-64 of the payload, seeded with XXH3-64 of the header with its checksum field set to zero. */
#include "gpu/code_file.h"

#include "base/append.h"
#include "base/atomic_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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
    static const struct place {
        const char *variable, *below;
    } places[] = { { "XDG_CACHE_HOME", "/quern" }, { "HOME", "/.cache/quern" } };
    *folder = NULL;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *base = getenv(places[i].variable);
        if (!base || base[0] != '/') /* the XDG specification: relative paths are ignored */
            continue;
        if (asprintf(folder, "%s%s", base, places[i].below) < 0) {
            *folder = NULL;
            return qn_fail(QN_ERR_MEMORY, "no memory for the name of the kernel cache");
        }
        return QN_OK;
    }
    return QN_OK;
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

/* ---- Trust ---- */

/* Checks the owner and mode of a file or directory of the cache. Cached code runs with this user's rights: the owner of
 * a file or directory of the cache, and everyone who may write to it, must be this user or root. */
static qn_status check_trust(const char *path, const struct stat *st)
{
    if (st->st_uid != geteuid() && st->st_uid != 0)
        return qn_fail(QN_ERR_INVALID,
                       "%s: belongs to user %u, expected %u or root: kernels of another user are not run", path,
                       (unsigned)st->st_uid, (unsigned)geteuid());
    if (!S_ISLNK(st->st_mode) && st->st_mode & 022)
        return qn_fail(QN_ERR_INVALID, "%s: has mode %03o: kernels that other users can write are not run", path,
                       (unsigned)st->st_mode & 0777u);
    return QN_OK;
}

/* Opens the directory; *fd is -1 if it does not exist. A symbolic link counts if it is a trusted user's. */
static qn_status open_folder(const char *folder, int *fd)
{
    struct stat st;
    *fd = -1;
    if (lstat(folder, &st) != 0)
        return errno == ENOENT || errno == ENOTDIR ? QN_OK
                                                   : qn_fail(QN_ERR_IO, "%s: cannot open: %s", folder, strerror(errno));
    QN_TRY(check_trust(folder, &st));
    const int opened = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (opened < 0)
        return errno == ENOENT || errno == ENOTDIR ? QN_OK
                                                   : qn_fail(QN_ERR_IO, "%s: cannot open: %s", folder, strerror(errno));
    const qn_status status = fstat(opened, &st) == 0
                                 ? check_trust(folder, &st)
                                 : qn_fail(QN_ERR_IO, "%s: cannot read: %s", folder, strerror(errno));
    if (status)
        close(opened);
    else
        *fd = opened;
    return status;
}

qn_status qn_code_check_folder(const char *folder)
{
    int fd;
    QN_TRY(open_folder(folder, &fd));
    if (fd >= 0)
        close(fd);
    return QN_OK;
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

static qn_status read_open(const qn_code_kind *kind, int fd, const char *path, const qn_code_key *key, void **data,
                           size_t *bytes, char compiler[QN_COMPILER_MAX])
{
    struct stat st;
    struct header h;
    if (fstat(fd, &st) != 0)
        return qn_fail(QN_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return qn_fail(QN_ERR_FORMAT, "%s: is not a regular file", path);
    QN_TRY(check_trust(path, &st));
    const ssize_t n = read_fully(fd, &h, sizeof h);
    if (n < 0)
        return qn_fail(QN_ERR_IO, "%s: cannot read: %s", path, strerror(errno));
    if ((size_t)n < sizeof h)
        return qn_fail(QN_ERR_FORMAT, "%s: has %zd bytes, its header alone has %zu", path, n, sizeof h);
    QN_TRY(check_header(kind, path, &h, key, (uint64_t)st.st_size));
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
    int directory;
    *data = NULL;
    *bytes = 0;
    QN_TRY(open_folder(folder, &directory));
    if (directory < 0)
        return QN_OK;
    qn_status status = path_of(kind, folder, key, &path);
    /* O_NOFOLLOW: quern makes no links here. O_NONBLOCK: do not block if it is a FIFO. */
    const int fd =
        status ? -1 : openat(directory, strrchr(path, '/') + 1, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd >= 0)
        status = read_open(kind, fd, path, key, data, bytes, compiler);
    else if (!status && errno != ENOENT)
        status = errno == ELOOP ? qn_fail(QN_ERR_FORMAT, "%s: is a symbolic link, expected a file", path)
                                : qn_fail(QN_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    if (fd >= 0)
        close(fd);
    close(directory);
    if (status) {
        free(*data);
        *data = NULL;
    }
    free(path);
    return status;
}

/* ---- Writing ---- */

/* Creates the directory and its parents with mode 0700, as the XDG specification requires. */
static qn_status make_folder(const char *folder)
{
    char *path = strdup(folder);
    if (!path)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for the name of a directory", folder);
    int failed = 0;
    for (char *at = path; *at && !failed; at++) {
        if (at == path || *at != '/')
            continue;
        *at = '\0';
        failed = mkdir(path, 0700) != 0 && errno != EEXIST ? errno : 0;
        *at = '/';
    }
    if (!failed && mkdir(path, 0700) != 0 && errno != EEXIST)
        failed = errno;
    free(path);
    errno = failed;
    /* EROFS and EACCES may come from parents that exist already; if not, creating the file fails */
    return failed && failed != EROFS && failed != EACCES
               ? qn_fail(QN_ERR_IO, "%s: cannot create this directory: %s", folder, strerror(errno))
               : QN_OK;
}

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
    QN_TRY(make_folder(folder));
    QN_TRY(qn_code_check_folder(folder));
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
static bool is_ours(const qn_code_kind *kind, const char *name)
{
    const char *suffix = kind->suffix;
    const size_t length = strlen(name), whole = HEX + strlen(suffix);
    if (length == whole)
        return is_hex(name, HEX) && !strcmp(name + HEX, suffix);
    static const char part[] = ".quern.part";
    return length == 1 + whole + 7 + sizeof part - 1 && name[0] == '.' && is_hex(name + 1, HEX) &&
           !memcmp(name + 1 + HEX, suffix, strlen(suffix)) && !strcmp(name + length - (sizeof part - 1), part);
}

static qn_status clear_open(DIR *dir, const char *folder, size_t *n_files, uint64_t *bytes)
{
    for (;;) {
        errno = 0;
        const struct dirent *entry = readdir(dir);
        if (!entry)
            return errno ? qn_fail(QN_ERR_IO, "%s: cannot list: %s", folder, strerror(errno)) : QN_OK;
        struct stat st;
        if ((!is_ours(&qn_cubin_files, entry->d_name) && !is_ours(&qn_pipeline_files, entry->d_name)) ||
            fstatat(dirfd(dir), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) != 0)
            continue;
        if (unlinkat(dirfd(dir), entry->d_name, 0) == 0) {
            ++*n_files;
            *bytes += (uint64_t)st.st_size;
        } else if (errno != ENOENT) { /* ENOENT: another process may be clearing too */
            return qn_fail(QN_ERR_IO, "%s/%s: cannot remove: %s", folder, entry->d_name, strerror(errno));
        }
    }
}

qn_status qn_code_file_clear(const char *folder, size_t *n_files, uint64_t *bytes)
{
    *n_files = 0;
    *bytes = 0;
    DIR *dir = opendir(folder);
    if (!dir)
        return errno == ENOENT || errno == ENOTDIR ? QN_OK
                                                   : qn_fail(QN_ERR_IO, "%s: cannot list: %s", folder, strerror(errno));
    const qn_status status = clear_open(dir, folder, n_files, bytes);
    closedir(dir);
    return status;
}
