/* Paths, locks, references and links of the cache; finds a model in it. */
#include "hub/cache.h"

#include "base/memory.h"
#include "gguf/gguf.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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
    qn_hub_status found;
    if (!qn_hub_stat(cache, name, false, &found)) /* a cache without the tag works as well */
        (void)qn_hub_write_text(
            cache, name, "Signature: 8a477f597d28d172789f06886806bc55\n# This is a cache of models, made by quern.\n");
}

/* ---- Names ---- */

struct reading {
    qn_hub_names *names;
    qn_status status;
};

static bool add_name(void *user, const char *name)
{
    struct reading *r = user;
    qn_hub_names *names = r->names;
    r->status =
        qn_realloc_array(&names->at, &names->capacity, names->count + 1, sizeof *names->at, "names in the hub's cache");
    char *copy = r->status ? NULL : strdup(name);
    if (copy)
        names->at[names->count++] = copy;
    else if (!r->status)
        r->status = qn_fail(QN_ERR_MEMORY, "no memory for the names in the hub's cache");
    return r->status == QN_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

qn_status qn_hub_read_names(const qn_hub_cache *cache, const char *folder, qn_hub_names *names)
{
    struct reading reading = { .names = names };
    *names = (qn_hub_names){ 0 };
    qn_hub_each_name(cache, folder, add_name, &reading);
    if (names->count)
        qsort(names->at, names->count, sizeof *names->at, by_name);
    return reading.status;
}

void qn_hub_names_free(qn_hub_names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->at[i]);
    free(names->at);
    *names = (qn_hub_names){ 0 };
}

/* ---- Locks ---- */

qn_status qn_hub_lock(const qn_hub_cache *cache, const char *repo, const char *hash, int *fd)
{
    char *folder = qn_hub_folder(repo), *path = folder ? qn_hub_path(".locks/%s/%s.lock", folder, hash) : NULL;
    *fd = -1;
    const qn_status status = path ? qn_hub_lock_file(cache, path, fd) : QN_ERR_MEMORY;
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
    char *link = qn_hub_path("%s/snapshots/%s/%s", folder, commit, path);
    const qn_status status = link ? qn_hub_make_parent(cache, link) : QN_ERR_MEMORY;
    free(link);
    return status;
}

/* Whether an error of qn_hub_make_link means that the file system has no symbolic links: FAT, exFAT, FUSE, network file
 * systems. */
static bool means_no_links(int error)
{
    return error == EPERM || error == EOPNOTSUPP || error == ENOSYS || error == EINVAL;
}

/* Replaces `link` by a link to a blob; without symbolic links by the blob itself, as huggingface_hub does. The
 * temporary name is next to the blob, since it could be too long next to `link`. */
static qn_status replace_link(const qn_hub_cache *cache, const char *link, const char *target, const char *blob)
{
    QN_TRY(qn_hub_make_parent(cache, link));
    QN_TRY(qn_hub_make_parent(cache, blob));
    char *temporary = qn_hub_path("%s.%d.tmp", blob, (int)getpid());
    qn_status status = temporary ? QN_OK : QN_ERR_MEMORY;
    if (!status) {
        (void)qn_hub_unlink(cache, temporary, false); /* left by a process that was interrupted */
        const bool linked = qn_hub_make_link(cache, temporary, target), moves = !linked && means_no_links(errno);
        if ((!linked && !moves) || !qn_hub_rename(cache, moves ? blob : temporary, link)) {
            status = qn_fail(QN_ERR_IO, "%s/%s: cannot create the link: %s", cache->path, link, strerror(errno));
            (void)qn_hub_unlink(cache, temporary, false);
        }
    }
    free(temporary);
    return status;
}

qn_status qn_hub_link(const qn_hub_cache *cache, const char *folder, const char *commit, const char *path,
                      const char *hash)
{
    char *link = qn_hub_path("%s/snapshots/%s/%s", folder, commit, path), found[QN_HUB_LINK_SIZE];
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
    qn_hub_names names;
    char *folder = qn_hub_path("%s%s%s", snapshot, *inside ? "/" : "", inside);
    if (!folder)
        return QN_ERR_MEMORY;
    qn_status status = qn_hub_read_names(cache, folder, &names);
    for (size_t i = 0; i < names.count && !status; i++) {
        qn_hub_status entry, target;
        char *path = qn_hub_path("%s%s%s", inside, *inside ? "/" : "", names.at[i]),
             *whole = qn_hub_path("%s/%s", folder, names.at[i]);
        if (!path || !whole)
            status = QN_ERR_MEMORY;
        else if (!qn_hub_path_is_safe(path) || !qn_hub_stat(cache, whole, false, &entry))
            ; /* also entries that were removed meanwhile */
        else if (entry.kind == QN_HUB_FOLDER)
            status = depth < QN_HUB_MAX_DEPTH ? read_folder(cache, snapshot, path, depth + 1, files) : QN_OK;
        else if (qn_hub_stat(cache, whole, true, &target) && target.kind == QN_HUB_FILE)
            status = qn_hub_files_add(files, path, target.size, NULL);
        free(whole);
        free(path);
    }
    qn_hub_names_free(&names);
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

void qn_hub_read_roles(const qn_hub_cache *cache, const char *folder, qn_hub_files *files)
{
    for (size_t i = 0; i < files->count; i++) {
        qn_hub_file *file = &files->at[i];
        uint32_t no = 0, n_parts;
        if (!qn_hub_path_is_gguf(file->path) || (qn_gguf_split_numbers(file->path, &no, &n_parts) && no != 0))
            continue;
        char *path = qn_hub_path("%s/%s/snapshots/%s/%s", cache->path, folder, files->commit, file->path);
        file->has_role = path && qn_hub_file_role(path, &file->role);
        free(path);
    }
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
        qn_hub_touch(cache, path);
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

static bool is_older(const qn_hub_status *a, const qn_hub_status *b)
{
    return a->modified < b->modified ||
           (a->modified == b->modified && a->modified_nanoseconds < b->modified_nanoseconds);
}

qn_status qn_hub_find_elsewhere(const qn_hub_cache *cache, const qn_hub_name *name,
                                char commit[QN_HUB_COMMIT_LENGTH + 1], char **path)
{
    qn_hub_names names = { 0 };
    qn_hub_status newest = { 0 };
    char *folder = qn_hub_folder(name->repo), *snapshots = folder ? qn_hub_path("%s/snapshots", folder) : NULL;
    qn_status status = snapshots ? qn_hub_read_names(cache, snapshots, &names) : QN_ERR_MEMORY;
    bool found;
    commit[0] = '\0';
    *path = NULL;
    for (size_t i = 0; i < names.count && !status; i++) {
        qn_hub_status entry;
        char *snapshot = qn_hub_path("%s/%s", snapshots, names.at[i]);
        const bool is_newer = snapshot && qn_hub_is_hash(names.at[i], QN_HUB_COMMIT_LENGTH) &&
                              qn_hub_stat(cache, snapshot, false, &entry) && !is_older(&entry, &newest);
        free(snapshot);
        if (!is_newer)
            continue;
        status = find_in(cache, folder, names.at[i], name, true, &found, NULL);
        if (!status && found) {
            newest = entry;
            strcpy(commit, names.at[i]);
        }
    }
    qn_hub_names_free(&names);
    if (!status && *commit)
        status = find_in(cache, folder, commit, name, true, &found, path);
    free(snapshots);
    free(folder);
    return status;
}
