/* Listing and removing what the cache has. */
#include "hub/cache.h"
#include "hub/hub.h"

#include "base/append.h"
#include "base/memory.h"

#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_DEPTH = QN_HUB_MAX_DEPTH + 2 }; /* snapshots/COMMIT/ before a path */

/* ---- Names in folders ---- */

struct names {
    char **at;
    size_t count, capacity;
};

static void free_names(struct names *names)
{
    for (size_t i = 0; i < names->count; i++)
        free(names->at[i]);
    free(names->at);
    *names = (struct names){ 0 };
}

static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The entries of a folder but "." and "..", sorted. A folder that is not there has none. */
static qn_status read_names(const char *folder, struct names *names)
{
    DIR *directory = opendir(folder);
    qn_status status = QN_OK;
    const struct dirent *entry;
    *names = (struct names){ 0 };
    while (directory && !status && (entry = readdir(directory))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        status =
            qn_realloc_array(&names->at, &names->capacity, names->count + 1, sizeof *names->at, "names in the hub's cache");
        char *name = status ? NULL : strdup(entry->d_name);
        if (name)
            names->at[names->count++] = name;
        else if (!status)
            status = qn_fail(QN_ERR_MEMORY, "no memory for the names in the hub's cache");
    }
    if (directory)
        closedir(directory);
    if (names->count)
        qsort(names->at, names->count, sizeof *names->at, by_name);
    return status;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), n = strlen(end);
    return length >= n && strcmp(text + length - n, end) == 0;
}

/* ---- Listing ---- */

typedef bool (*on_entry_fn)(void *user, const qn_hub_entry *entry);

static time_t last_use(const char *folder, const qn_hub_files *files, const qn_hub_selection *selection)
{
    time_t used = 0;
    for (size_t i = 0; i < selection->count; i++) {
        struct stat st;
        char *path = qn_hub_path("%s/snapshots/%s/%s", folder, files->commit, files->at[selection->at[i]].path);
        if (path && stat(path, &st) == 0 && st.st_atime > used)
            used = st.st_atime;
        free(path);
    }
    return used;
}

/* Whether branch main has the same content under the same name. */
static bool is_in_main(const char *folder, const char *commit, const char *file)
{
    struct stat here, main;
    char now[QN_HUB_COMMIT_LENGTH + 1];
    qn_hub_read_ref(folder, now);
    char *path = qn_hub_path("%s/snapshots/%s/%s", folder, commit, file),
         *current = qn_hub_path("%s/snapshots/%s/%s", folder, now, file);
    const bool same = path && current && stat(path, &here) == 0 && stat(current, &main) == 0 && here.st_dev == main.st_dev &&
                      here.st_ino == main.st_ino;
    free(current);
    free(path);
    return same;
}

static void list_model(const char *folder, const char *repo, const qn_hub_files *files, const qn_hub_model *model,
                       on_entry_fn on_entry, void *user, bool *go_on)
{
    char commit[QN_HUB_COMMIT_LENGTH + 1];
    qn_hub_name name = { 0 };
    qn_hub_selection selection;
    qn_hub_read_ref(folder, commit);
    const bool outdated = strcmp(commit, files->commit) != 0;
    strcpy(name.file, files->at[model->first].path);
    if (outdated && is_in_main(folder, files->commit, name.file))
        return;
    if (qn_hub_select(files, &name, UINT64_MAX, &selection) == QN_OK) {
        const qn_hub_entry entry = {
            .repo = repo,
            .file = name.file,
            .type = model->type,
            .n_files = (uint32_t)selection.count,
            .bytes = selection.bytes,
            .outdated = outdated,
            .used = last_use(folder, files, &selection),
        };
        *go_on = on_entry(user, &entry);
    }
    qn_hub_selection_free(&selection);
}

/* Incomplete downloads of a repository, as one entry. */
static qn_status list_incomplete(const char *folder, const char *repo, on_entry_fn on_entry, void *user)
{
    struct names names;
    qn_hub_entry entry = { .repo = repo, .type = "" };
    char *blobs = qn_hub_path("%s/blobs", folder);
    qn_status status = blobs ? read_names(blobs, &names) : QN_ERR_MEMORY;
    if (!blobs)
        return status;
    for (size_t i = 0; i < names.count; i++) {
        struct stat st;
        char *path = ends_with(names.at[i], ".incomplete") ? qn_hub_path("%s/%s", blobs, names.at[i]) : NULL;
        if (path && stat(path, &st) == 0) {
            entry.n_files++;
            entry.bytes += (uint64_t)st.st_size;
            entry.used = st.st_mtime > entry.used ? st.st_mtime : entry.used;
        }
        free(path);
    }
    if (!status && entry.n_files)
        (void)on_entry(user, &entry);
    free_names(&names);
    free(blobs);
    return status;
}

static qn_status list_snapshot(const char *folder, const char *repo, const char *commit, on_entry_fn on_entry, void *user,
                               bool *go_on)
{
    qn_hub_files files;
    qn_hub_model *models = NULL;
    size_t count = 0;
    qn_status status = qn_hub_read_snapshot(folder, commit, &files);
    if (!status)
        status = qn_hub_models(&files, &models, &count);
    for (size_t i = 0; i < count && !status && *go_on; i++)
        list_model(folder, repo, &files, &models[i], on_entry, user, go_on);
    free(models);
    qn_hub_files_free(&files);
    return status;
}

static qn_status list_repository(const char *folder, const char *repo, on_entry_fn on_entry, void *user, bool *go_on)
{
    struct names commits = { 0 };
    char *snapshots = qn_hub_path("%s/snapshots", folder);
    qn_status status = snapshots ? read_names(snapshots, &commits) : QN_ERR_MEMORY;
    for (size_t i = 0; i < commits.count && !status && *go_on; i++)
        if (qn_hub_is_hash(commits.at[i], QN_HUB_COMMIT_LENGTH))
            status = list_snapshot(folder, repo, commits.at[i], on_entry, user, go_on);
    if (!status && *go_on)
        status = list_incomplete(folder, repo, on_entry, user);
    free_names(&commits);
    free(snapshots);
    return status;
}

/* "models--OWNER--REPO" to "OWNER/REPO"; false for another folder. */
static bool repo_of(const char *folder, char repo[QN_HUB_REPO_SIZE])
{
    static const char prefix[] = "models--";
    qn_hub_name name;
    const char *owner = folder + sizeof prefix - 1;
    const char *end = strncmp(folder, prefix, sizeof prefix - 1) == 0 ? strstr(owner, "--") : NULL;
    if (!end || !qn_print(repo, QN_HUB_REPO_SIZE, "%.*s/%s", (int)(end - owner), owner, end + 2))
        return false;
    return qn_hub_name_parse(repo, &name) == QN_OK && !*name.file && !*name.type;
}

qn_status qn_hub_list(on_entry_fn on_entry, void *user)
{
    qn_hub_settings settings;
    struct names names = { 0 };
    bool go_on = true;
    qn_status status = qn_hub_settings_read(&settings);
    if (!status)
        status = read_names(settings.cache, &names);
    for (size_t i = 0; i < names.count && !status && go_on; i++) {
        char repo[QN_HUB_REPO_SIZE];
        char *folder = repo_of(names.at[i], repo) ? qn_hub_folder(&settings, repo) : NULL;
        if (folder)
            status = list_repository(folder, repo, on_entry, user, &go_on);
        free(folder);
    }
    free_names(&names);
    qn_hub_settings_free(&settings);
    return status;
}

/* ---- Removing ---- */

struct removal {
    const qn_hub_settings *settings;
    const qn_hub_name *name;
    char *folder;
    struct names snapshots;
    qn_status refused; /* why a snapshot has no such file, or more than one */
    qn_hub_removed *removed;
};

/* The name of the blob that a link of a snapshot leads to; false if it leads elsewhere. */
static bool blob_of(const char *link, char hash[QN_HUB_HASH_SIZE])
{
    static const char blobs[] = "/blobs/";
    char target[PATH_MAX];
    const ssize_t length = readlink(link, target, sizeof target - 1);
    if (length < 0)
        return false;
    target[length] = '\0';
    const char *at = strstr(target, blobs), *name = at ? at + sizeof blobs - 1 : NULL;
    if (!name || strspn(target, "./") != (size_t)(at - target) + 1 || !qn_hub_is_etag(name))
        return false;
    strcpy(hash, name);
    return true;
}

/* Whether a link of any snapshot still leads to the blob. */
static qn_status is_linked(const struct removal *r, const char *hash, bool *linked)
{
    *linked = false;
    for (size_t s = 0; s < r->snapshots.count && !*linked; s++) {
        qn_hub_files files;
        qn_status status = qn_hub_read_snapshot(r->folder, r->snapshots.at[s], &files);
        for (size_t i = 0; i < files.count && !status && !*linked; i++) {
            char other[QN_HUB_HASH_SIZE];
            char *path = qn_hub_path("%s/snapshots/%s/%s", r->folder, r->snapshots.at[s], files.at[i].path);
            status = path ? QN_OK : QN_ERR_MEMORY;
            *linked = path && blob_of(path, other) && strcmp(other, hash) == 0;
            free(path);
        }
        qn_hub_files_free(&files);
        QN_TRY(status);
    }
    return QN_OK;
}

static qn_status lock_blob(const struct removal *r, const char *hash, int *fd)
{
    QN_TRY(qn_hub_lock(r->settings, r->name->repo, hash, fd));
    return *fd >= 0 ? QN_OK : qn_fail(QN_ERR_IO, "%s: another process downloads a file of it", r->name->repo);
}

/* Removes a blob, or what was left of its download. The caller has its lock. */
static qn_status remove_blob(const struct removal *r, const char *hash, const char *suffix)
{
    struct stat st, target;
    char *path = qn_hub_path("%s/blobs/%s%s", r->folder, hash, suffix);
    qn_status status = path ? QN_OK : QN_ERR_MEMORY;
    if (path && lstat(path, &st) == 0) {
        const bool shared = S_ISLNK(st.st_mode), there = stat(path, &target) == 0;
        if (unlink(path))
            status = qn_fail(QN_ERR_IO, "%s: cannot be removed: %m", path);
        else if (there)
            *(shared ? &r->removed->shared : &r->removed->bytes) += (uint64_t)target.st_size;
    }
    free(path);
    return status;
}

static qn_status remove_link(struct removal *r, const char *snapshot, const char *file)
{
    char hash[QN_HUB_HASH_SIZE];
    struct stat st;
    int fd = -1;
    bool linked = true;
    char *path = qn_hub_path("%s/snapshots/%s/%s", r->folder, snapshot, file);
    if (!path)
        return QN_ERR_MEMORY;
    const bool has_blob = blob_of(path, hash), is_file = lstat(path, &st) == 0 && S_ISREG(st.st_mode);
    qn_status status = has_blob ? lock_blob(r, hash, &fd) : QN_OK;
    if (!status && unlink(path))
        status = qn_fail(QN_ERR_IO, "%s: cannot be removed: %m", path);
    if (!status) {
        r->removed->n_files++;
        r->removed->bytes += is_file ? (uint64_t)st.st_size : 0; /* a cache without links */
    }
    if (!status && has_blob)
        status = is_linked(r, hash, &linked);
    if (!status && !linked)
        status = remove_blob(r, hash, "");
    qn_hub_unlock(fd);
    free(path);
    return status;
}

/* What the name means in one snapshot. */
static qn_status remove_from(struct removal *r, const char *snapshot)
{
    qn_hub_files files;
    qn_hub_selection selection = { 0 };
    qn_status status = qn_hub_read_snapshot(r->folder, snapshot, &files);
    const bool all = !*r->name->file && !*r->name->type;
    for (size_t i = 0; i < files.count && !status && all; i++)
        if (qn_hub_path_is_gguf(files.at[i].path))
            status = remove_link(r, snapshot, files.at[i].path);
    if (!status && !all)
        r->refused = qn_hub_select(&files, r->name, UINT64_MAX, &selection);
    for (size_t i = 0; i < selection.count && !status && !r->refused; i++)
        status = remove_link(r, snapshot, files.at[selection.at[i]].path);
    qn_hub_selection_free(&selection);
    qn_hub_files_free(&files);
    return status;
}

static qn_status remove_incomplete(const struct removal *r)
{
    static const char suffix[] = ".incomplete";
    struct names names;
    char *blobs = qn_hub_path("%s/blobs", r->folder);
    if (!blobs)
        return QN_ERR_MEMORY;
    qn_status status = read_names(blobs, &names);
    for (size_t i = 0; i < names.count && !status; i++) {
        char *end = ends_with(names.at[i], suffix) ? names.at[i] + strlen(names.at[i]) - strlen(suffix) : NULL;
        if (!end)
            continue;
        *end = '\0';
        if (qn_hub_is_etag(names.at[i])) {
            int fd = -1;
            status = lock_blob(r, names.at[i], &fd);
            if (!status)
                status = remove_blob(r, names.at[i], suffix);
            qn_hub_unlock(fd);
            r->removed->n_files += status == QN_OK;
        }
    }
    free_names(&names);
    free(blobs);
    return status;
}

/* Removes empty folders in a folder, with `files` also the files, and the folder itself if nothing is left. */
static void prune(const char *folder, bool files, int depth)
{
    struct names names;
    (void)read_names(folder, &names); /* what is not read stays */
    for (size_t i = 0; i < names.count && depth < MAX_DEPTH; i++) {
        struct stat st;
        char *path = qn_hub_path("%s/%s", folder, names.at[i]);
        if (path && lstat(path, &st) == 0 && S_ISDIR(st.st_mode))
            prune(path, files, depth + 1);
        else if (path && files)
            unlink(path);
        free(path);
    }
    free_names(&names);
    rmdir(folder);
}

/* Removes references to snapshots that are gone, which huggingface_hub takes for damage: "main", and "refs/pr/1" in folders. */
static void remove_refs(const struct removal *r, const char *refs, int depth)
{
    struct names names;
    (void)read_names(refs, &names);
    for (size_t i = 0; i < names.count && depth < MAX_DEPTH; i++) {
        char commit[QN_HUB_COMMIT_LENGTH + 1];
        struct stat st;
        char *path = qn_hub_path("%s/%s", refs, names.at[i]), *snapshot = NULL;
        if (path && lstat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
            remove_refs(r, path, depth + 1);
        } else if (path) {
            qn_hub_read_ref_file(path, commit);
            snapshot = *commit ? qn_hub_path("%s/snapshots/%s", r->folder, commit) : NULL;
            if (snapshot && stat(snapshot, &st))
                unlink(path);
        }
        free(snapshot);
        free(path);
    }
    free_names(&names);
}

/* What is left without a use. A repository without snapshots is gone itself, with what huggingface_hub notes about it: lists of
 * files (trees) and of files that it does not have (.no_exist). */
static void remove_rest(const struct removal *r)
{
    static const char *const notes[] = { "trees", ".no_exist" };
    struct stat st;
    char *snapshots = qn_hub_path("%s/snapshots", r->folder), *refs = qn_hub_path("%s/refs", r->folder);
    if (snapshots)
        prune(snapshots, false, 0);
    if (refs)
        remove_refs(r, refs, 0);
    if (snapshots && stat(snapshots, &st)) {
        for (size_t i = 0; i < sizeof notes / sizeof *notes; i++) {
            char *folder = qn_hub_path("%s/%s", r->folder, notes[i]);
            if (folder)
                prune(folder, true, 0);
            free(folder);
        }
        prune(r->folder, false, 0);
    }
    free(refs);
    free(snapshots);
}

static qn_status remove_all(struct removal *r)
{
    char *snapshots = qn_hub_path("%s/snapshots", r->folder);
    qn_status status = snapshots ? read_names(snapshots, &r->snapshots) : QN_ERR_MEMORY;
    for (size_t s = 0; s < r->snapshots.count && !status; s++)
        status = remove_from(r, r->snapshots.at[s]);
    if (!status && !*r->name->file && !*r->name->type)
        status = remove_incomplete(r);
    if (!status)
        remove_rest(r);
    if (!status && !r->removed->n_files)
        status =
            r->refused ? r->refused : qn_fail(QN_ERR_INVALID, "%s: it has no models in %s", r->name->repo, r->settings->cache);
    free_names(&r->snapshots);
    free(snapshots);
    return status;
}

qn_status qn_hub_remove(const char *text, qn_hub_removed *removed)
{
    qn_hub_name name;
    qn_hub_settings settings;
    *removed = (qn_hub_removed){ 0 };
    QN_TRY(qn_hub_name_parse(text, &name));
    qn_status status = qn_hub_settings_read(&settings);
    struct removal r = { .settings = &settings, .name = &name, .removed = removed };
    if (!status) {
        r.folder = qn_hub_folder(&settings, name.repo);
        status = r.folder ? remove_all(&r) : QN_ERR_MEMORY;
    }
    free(r.folder);
    qn_hub_settings_free(&settings);
    return status;
}
