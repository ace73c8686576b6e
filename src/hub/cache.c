/* Paths, locks, references and links of the cache; finds a model in it. */
#include "hub/cache.h"

#include "gguf/gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* ---- Paths ---- */

char *qn_hub_path(const char *format, ...)
{
    char *path;
    va_list args;
    va_start(args, format);
    const int length = vasprintf(&path, format, args);
    va_end(args);
    if (length >= 0)
        return path;
    (void)qn_fail(QN_ERR_MEMORY, "no memory for a path in the hub's cache");
    return NULL;
}

char *qn_hub_folder(const char *repo)
{
    const char *slash = strchr(repo, '/');
    return qn_hub_path("models--%.*s--%s", (int)(slash - repo), repo, slash + 1);
}

void qn_hub_tag(const qn_hub_cache *cache)
{
    static const char name[] = "CACHEDIR.TAG";
    struct stat st;
    if (!qn_hub_stat(cache, name, false, &st)) /* a cache without the tag works as well */
        (void)qn_hub_write_text(
            cache, name, "Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache of models, made by quern.\n");
}

/* ---- Locks ---- */

qn_status qn_hub_lock(const qn_hub_cache *cache, const char *repo, const char *hash, int *fd)
{
    struct stat st;
    const char *name;
    int at = -1;
    char *folder = qn_hub_folder(repo), *path = folder ? qn_hub_path(".locks/%s/%s.lock", folder, hash) : NULL;
    qn_status status = path ? qn_hub_make_parent(cache, path, &name, &at) : QN_ERR_MEMORY;
    *fd = -1;
    if (!status) {
        *fd = openat(at, name, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY, 0664);
        if (*fd < 0)
            status = qn_fail(QN_ERR_IO, "%s/%s: cannot open the lock: %s", cache->path, path, strerror(errno));
    }
    if (*fd >= 0 && flock(*fd, LOCK_EX | LOCK_NB)) {
        /* On a file system without locks, two downloads at once only waste one: blobs are renamed when complete. */
        const bool taken = errno == EWOULDBLOCK || errno == EACCES || errno == EINTR;
        if (taken) {
            close(*fd);
            *fd = -1;
        } else if (errno != ENOSYS && errno != ENOTSUP && errno != ENOLCK) {
            status = qn_fail(QN_ERR_IO, "%s/%s: cannot lock: %s", cache->path, path, strerror(errno));
        }
    }
    /* A lock file that was removed meanwhile locks nothing. */
    if ((*fd >= 0 && fstat(*fd, &st) == 0 && st.st_nlink == 0) || (status && *fd >= 0)) {
        close(*fd);
        *fd = -1;
    }
    if (at >= 0)
        close(at);
    free(path);
    free(folder);
    return status;
}

void qn_hub_unlock(int fd)
{
    if (fd >= 0)
        close(fd);
}

/* ---- References and links ---- */

void qn_hub_read_ref_file(const qn_hub_cache *cache, const char *path, char commit[QN_HUB_COMMIT_LENGTH + 1])
{
    (void)qn_hub_read_text(cache, path, commit, QN_HUB_COMMIT_LENGTH + 1);
    if (!qn_hub_is_hash(commit, QN_HUB_COMMIT_LENGTH))
        commit[0] = '\0';
}

void qn_hub_read_ref(const qn_hub_cache *cache, const char *folder, const char *revision,
                     char commit[QN_HUB_COMMIT_LENGTH + 1])
{
    commit[0] = '\0';
    if (qn_hub_is_hash(revision, QN_HUB_COMMIT_LENGTH)) {
        strcpy(commit, revision);
        return;
    }
    char *path = qn_hub_path("%s/refs/%s", folder, revision);
    if (path)
        qn_hub_read_ref_file(cache, path, commit);
    free(path);
}

qn_status qn_hub_write_ref(const qn_hub_cache *cache, const char *folder, const char *revision, const char *commit)
{
    char *path = qn_hub_path("%s/refs/%s", folder, revision), known[QN_HUB_COMMIT_LENGTH + 1];
    qn_status status = path ? QN_OK : QN_ERR_MEMORY;
    qn_hub_read_ref(cache, folder, revision, known);
    if (!status && strcmp(known, commit) != 0)
        status = qn_hub_write_text(cache, path, commit);
    free(path);
    return status;
}

qn_status qn_hub_make_snapshot(const qn_hub_cache *cache, const char *folder, const char *commit, const char *path)
{
    const char *name;
    int at = -1;
    char *link = qn_hub_path("%s/snapshots/%s/%s", folder, commit, path);
    const qn_status status = link ? qn_hub_make_parent(cache, link, &name, &at) : QN_ERR_MEMORY;
    if (at >= 0)
        close(at);
    free(link);
    return status;
}

/* Whether symlink's error means that the file system has no symbolic links: FAT, exFAT, FUSE, network file systems. */
static bool means_no_links(int error)
{
    return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

/* Replaces `link` by a link to a blob; without symbolic links by the blob itself, as huggingface_hub does. The
 * temporary name is next to the blob, since it could be too long next to `link`. */
static qn_status replace_link(const qn_hub_cache *cache, const char *link, const char *target, const char *blob)
{
    char temporary[QN_HUB_HASH_SIZE + 32];
    const char *name, *blob_name;
    int at, blobs = -1;
    QN_TRY(qn_hub_make_parent(cache, link, &name, &at));
    qn_status status = qn_hub_make_parent(cache, blob, &blob_name, &blobs);
    if (!status) {
        snprintf(temporary, sizeof temporary, "%s.%d.tmp", blob_name, (int)getpid());
        (void)unlinkat(blobs, temporary, 0); /* left by a process that was interrupted */
        const bool linked = symlinkat(target, blobs, temporary) == 0, moves = !linked && means_no_links(errno);
        if ((!linked && !moves) || renameat(blobs, moves ? blob_name : temporary, at, name)) {
            status = qn_fail(QN_ERR_IO, "%s/%s: cannot create the link: %s", cache->path, link, strerror(errno));
            (void)unlinkat(blobs, temporary, 0);
        }
        close(blobs);
    }
    close(at);
    return status;
}

qn_status qn_hub_link(const qn_hub_cache *cache, const char *folder, const char *commit, const char *path,
                      const char *hash)
{
    char *link = qn_hub_path("%s/snapshots/%s/%s", folder, commit, path), found[PATH_MAX];
    char *blob = qn_hub_path("%s/blobs/%s", folder, hash);
    char *target = qn_hub_path("../../blobs/%s", hash);
    qn_status status = link && blob && target ? QN_OK : QN_ERR_MEMORY;
    /* one ".." for each folder of the path */
    for (const char *c = strchr(path, '/'); c && target; c = strchr(c + 1, '/')) {
        char *deeper = qn_hub_path("../%s", target);
        free(target);
        target = deeper;
    }
    if (!status && !target)
        status = QN_ERR_MEMORY;
    if (!status && !(qn_hub_read_link(cache, link, found, sizeof found) && strcmp(found, target) == 0))
        status = replace_link(cache, link, target, blob);
    free(target);
    free(blob);
    free(link);
    return status;
}

/* ---- Snapshots ---- */

static qn_status read_folder(const qn_hub_cache *cache, const char *snapshot, const char *inside, int depth,
                             qn_hub_files *files)
{
    char *folder = qn_hub_path("%s%s%s", snapshot, *inside ? "/" : "", inside);
    DIR *directory = folder ? qn_hub_opendir(cache, folder) : NULL;
    qn_status status = folder ? QN_OK : QN_ERR_MEMORY;
    while (directory && !status) {
        const struct dirent *entry = readdir(directory);
        struct stat st, target;
        if (!entry)
            break;
        char *path = qn_hub_path("%s%s%s", inside, *inside ? "/" : "", entry->d_name);
        if (!path)
            status = QN_ERR_MEMORY;
        else if (!qn_hub_path_is_safe(path) || fstatat(dirfd(directory), entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
            ; /* "." and "..", and entries that were removed meanwhile */
        else if (S_ISDIR(st.st_mode))
            status = depth < QN_HUB_MAX_DEPTH ? read_folder(cache, snapshot, path, depth + 1, files) : QN_OK;
        else if (fstatat(dirfd(directory), entry->d_name, &target, 0) == 0 && S_ISREG(target.st_mode))
            status = qn_hub_files_add(files, path, (uint64_t)target.st_size, NULL);
        free(path);
    }
    if (directory)
        closedir(directory);
    free(folder);
    return status;
}

qn_status qn_hub_read_snapshot(const qn_hub_cache *cache, const char *folder, const char *commit, qn_hub_files *files)
{
    *files = (qn_hub_files){ 0 };
    snprintf(files->commit, sizeof files->commit, "%s", commit);
    char *snapshot = qn_hub_path("%s/snapshots/%s", folder, commit);
    const qn_status status = snapshot ? read_folder(cache, snapshot, "", 0, files) : QN_ERR_MEMORY;
    free(snapshot);
    qn_hub_files_sort(files);
    return status;
}

/* Reads what a file is for. That is no use of it: the time of last use stays, if the file is the user's. */
static bool read_role(const char *path, qn_file_role *role)
{
    struct stat st;
    if (stat(path, &st))
        return false;
    const bool known = qn_file_role_read(path, role);
    const struct timespec before[2] = { st.st_atim, { .tv_nsec = UTIME_OMIT } };
    (void)utimensat(AT_FDCWD, path, before, 0);
    return known;
}

void qn_hub_read_roles(const qn_hub_cache *cache, const char *folder, qn_hub_files *files)
{
    for (size_t i = 0; i < files->count; i++) {
        qn_hub_file *file = &files->at[i];
        uint32_t no = 0, n_parts;
        if (!qn_hub_path_is_gguf(file->path) || (qn_gguf_split_numbers(file->path, &no, &n_parts) && no != 0))
            continue;
        char *path = qn_hub_path("%s/%s/snapshots/%s/%s", cache->path, folder, files->commit, file->path);
        file->has_role = path && read_role(path, &file->role);
        free(path);
    }
}

/* Sets the time of last use to now; in a read-only cache it stays. */
static void mark_used(const qn_hub_cache *cache, const char *path)
{
    const struct timespec now[2] = { { .tv_nsec = UTIME_NOW }, { .tv_nsec = UTIME_OMIT } };
    const char *name;
    const int at = qn_hub_parent(cache, path, &name);
    if (at < 0)
        return;
    (void)utimensat(at, name, now, 0);
    close(at);
}

/* The path of the first selected file. Marks all as used now. */
static char *use(const qn_hub_cache *cache, const char *folder, const qn_hub_files *files,
                 const qn_hub_selection *selection)
{
    char *first = NULL;
    for (size_t i = 0; i < selection->count; i++) {
        char *path = qn_hub_path("%s/snapshots/%s/%s", folder, files->commit, files->at[selection->at[i]].path);
        if (!path)
            break;
        mark_used(cache, path);
        if (i == 0)
            first = qn_hub_path("%s/%s", cache->path, path);
        free(path);
    }
    return first;
}

/* Finds the model in one snapshot. *path is NULL if it is missing or incomplete. path NULL: sets only *found. drafters:
 * a drafter that was not named will do. */
static qn_status find_in(const qn_hub_cache *cache, const char *folder, const char *commit, const qn_hub_name *name,
                         bool drafters, bool *found, char **path)
{
    qn_hub_files files;
    qn_hub_selection selection = { 0 };
    qn_status status = qn_hub_read_snapshot(cache, folder, commit, &files);
    if (!status && !*name->file)
        qn_hub_read_roles(cache, folder, &files);
    *found =
        !status && qn_hub_select(&files, name, UINT64_MAX, &selection) == QN_OK && (drafters || !selection.is_drafter);
    if (*found && path) {
        *path = use(cache, folder, &files, &selection);
        status = *path ? QN_OK : QN_ERR_MEMORY;
    }
    qn_hub_selection_free(&selection);
    qn_hub_files_free(&files);
    return status;
}

qn_status qn_hub_find_cached(const qn_hub_cache *cache, const qn_hub_name *name, char **path)
{
    char commit[QN_HUB_COMMIT_LENGTH + 1];
    bool found;
    char *folder = qn_hub_folder(name->repo);
    qn_status status = folder ? QN_OK : QN_ERR_MEMORY;
    *path = NULL;
    if (folder)
        qn_hub_read_ref(cache, folder, name->revision, commit);
    if (folder && *commit)
        status = find_in(cache, folder, commit, name, false, &found, path);
    free(folder);
    return status;
}

qn_status qn_hub_find_elsewhere(const qn_hub_cache *cache, const qn_hub_name *name,
                                char commit[QN_HUB_COMMIT_LENGTH + 1], char **path)
{
    struct timespec newest = { 0 };
    char *folder = qn_hub_folder(name->repo), *snapshots = folder ? qn_hub_path("%s/snapshots", folder) : NULL;
    DIR *directory = snapshots ? qn_hub_opendir(cache, snapshots) : NULL;
    qn_status status = snapshots ? QN_OK : QN_ERR_MEMORY;
    const struct dirent *entry;
    bool found;
    commit[0] = '\0';
    *path = NULL;
    while (directory && !status && (entry = readdir(directory))) {
        struct stat st;
        if (!qn_hub_is_hash(entry->d_name, QN_HUB_COMMIT_LENGTH) ||
            fstatat(dirfd(directory), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) || st.st_mtim.tv_sec < newest.tv_sec ||
            (st.st_mtim.tv_sec == newest.tv_sec && st.st_mtim.tv_nsec < newest.tv_nsec))
            continue;
        status = find_in(cache, folder, entry->d_name, name, true, &found, NULL);
        if (!status && found) {
            newest = st.st_mtim;
            strcpy(commit, entry->d_name);
        }
    }
    if (directory)
        closedir(directory);
    if (!status && *commit)
        status = find_in(cache, folder, commit, name, true, &found, path);
    free(snapshots);
    free(folder);
    return status;
}
