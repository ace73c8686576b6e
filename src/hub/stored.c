/* Lists and removes models in the cache. */
#include "hub/cache.h"
#include "hub/hub.h"
#include "hub/settings.h"

#include "base/append.h"
#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = QN_HUB_MAX_DEPTH + 2 }; /* a path is in snapshots/COMMIT/ */

static bool is_folder(const qn_hub_cache *cache, const char *path)
{
    qn_hub_status st;
    return qn_hub_stat(cache, path, false, &st) && st.kind == QN_HUB_FOLDER;
}

static bool ends_with(const char *text, const char *end)
{
    const size_t length = strlen(text), n = strlen(end);
    return length >= n && strcmp(text + length - n, end) == 0;
}

/* ---- Listing ---- */

typedef bool (*on_entry_fn)(void *user, const qn_hub_entry *entry);

struct listing {
    const qn_hub_cache *cache;
    const char *folder, *repo; /* the repository being listed */
    on_entry_fn on_entry;
    void *user;
    bool go_on;
};

static int64_t last_use(const qn_hub_cache *cache, const char *folder, const qn_hub_files *files,
                        const qn_hub_selection *selection)
{
    int64_t used = 0;
    for (size_t i = 0; i < selection->count; i++) {
        qn_hub_status st;
        char *path = qn_hub_path("%s/snapshots/%s/%s", folder, files->commit, files->at[selection->at[i]].path);
        if (path && qn_hub_stat(cache, path, true, &st) && st.used > used)
            used = st.used;
        free(path);
    }
    return used;
}

/* Whether branch main has the same content under the same name. */
static bool is_in_main(const qn_hub_cache *cache, const char *folder, const char *commit, const char *file)
{
    qn_hub_status here, main;
    char now[QN_HUB_COMMIT_LENGTH + 1];
    qn_hub_read_ref(cache, folder, "main", now);
    char *path = qn_hub_path("%s/snapshots/%s/%s", folder, commit, file),
         *current = qn_hub_path("%s/snapshots/%s/%s", folder, now, file);
    const bool same = path && current && qn_hub_stat(cache, path, true, &here) &&
                      qn_hub_stat(cache, current, true, &main) && qn_file_id_equal(here.id, main.id);
    free(current);
    free(path);
    return same;
}

/* Finds a branch or tag of a commit in a folder of refs: "v1", or "refs/pr/1" in subfolders. `inside` is "" or a
 * folder of refs. */
static void find_ref(const qn_hub_cache *cache, const char *refs, const char *inside, int depth, const char *commit,
                     char revision[QN_HUB_REVISION_SIZE])
{
    qn_hub_names names = { 0 };
    const char *slash = *inside ? "/" : "";
    char *folder = qn_hub_path("%s%s%s", refs, slash, inside);
    if (folder)
        (void)qn_hub_read_names(cache, folder, &names); /* without it there is no branch */
    for (size_t i = 0; i < names.count && !*revision && depth < MAX_DEPTH; i++) {
        char found[QN_HUB_COMMIT_LENGTH + 1];
        char *name = qn_hub_path("%s%s%s", inside, slash, names.at[i]);
        char *path = name ? qn_hub_path("%s/%s", refs, name) : NULL;
        if (path && is_folder(cache, path)) {
            find_ref(cache, refs, name, depth + 1, commit, revision);
        } else if (path) {
            qn_hub_read_ref_file(cache, path, found);
            if (strcmp(found, commit) == 0 && !qn_print(revision, QN_HUB_REVISION_SIZE, "%s", name))
                revision[0] = '\0';
        }
        free(path);
        free(name);
    }
    qn_hub_names_free(&names);
    free(folder);
}

/* Gets a branch or tag of a snapshot, "" if the cache has none. */
static void find_revision(const struct listing *l, const char *commit, char revision[QN_HUB_REVISION_SIZE])
{
    char *refs = qn_hub_path("%s/refs", l->folder);
    revision[0] = '\0';
    if (refs)
        find_ref(l->cache, refs, "", 0, commit, revision);
    free(refs);
}

static void list_model(struct listing *l, const qn_hub_files *files, const qn_hub_model *model)
{
    char revision[QN_HUB_REVISION_SIZE] = "";
    char commit[QN_HUB_COMMIT_LENGTH + 1];
    qn_hub_name name = { 0 };
    qn_hub_selection selection;
    qn_hub_read_ref(l->cache, l->folder, "main", commit);
    const bool is_main = strcmp(commit, files->commit) == 0;
    strcpy(name.file, files->at[model->first].path);
    if (!is_main && is_in_main(l->cache, l->folder, files->commit, name.file))
        return;
    if (!is_main)
        find_revision(l, files->commit, revision);
    if (qn_hub_select(files, &name, UINT64_MAX, &selection) == QN_OK) {
        const qn_hub_entry entry = {
            .repo = l->repo,
            .file = name.file,
            .type = model->type,
            .n_files = (uint32_t)selection.count,
            .bytes = selection.bytes,
            .revision = revision,
            .is_drafter = model->is_drafter,
            .outdated = !is_main && !*revision,
            .used = last_use(l->cache, l->folder, files, &selection),
        };
        l->go_on = l->on_entry(l->user, &entry);
    }
    qn_hub_selection_free(&selection);
}

/* Lists the incomplete downloads of a repository as one entry. */
static qn_status list_incomplete(const struct listing *l)
{
    qn_hub_names names;
    qn_hub_entry entry = { .repo = l->repo, .type = "", .revision = "" };
    char *blobs = qn_hub_path("%s/blobs", l->folder);
    qn_status status = blobs ? qn_hub_read_names(l->cache, blobs, &names) : QN_ERR_MEMORY;
    if (!blobs)
        return status;
    for (size_t i = 0; i < names.count; i++) {
        qn_hub_status st;
        char *path = ends_with(names.at[i], ".incomplete") ? qn_hub_path("%s/%s", blobs, names.at[i]) : NULL;
        if (path && qn_hub_stat(l->cache, path, false, &st)) {
            entry.n_files++;
            entry.bytes += st.size;
            entry.used = st.modified > entry.used ? st.modified : entry.used;
        }
        free(path);
    }
    if (!status && entry.n_files)
        (void)l->on_entry(l->user, &entry);
    qn_hub_names_free(&names);
    free(blobs);
    return status;
}

static qn_status list_snapshot(struct listing *l, const char *commit)
{
    qn_hub_files files;
    qn_hub_model *models = NULL;
    size_t count = 0;
    qn_status status = qn_hub_read_snapshot(l->cache, l->folder, commit, &files);
    if (!status)
        qn_hub_read_roles(l->cache, l->folder, &files);
    if (!status)
        status = qn_hub_models(&files, &models, &count);
    for (size_t i = 0; i < count && !status && l->go_on; i++)
        list_model(l, &files, &models[i]);
    free(models);
    qn_hub_files_free(&files);
    return status;
}

static qn_status list_repository(struct listing *l)
{
    qn_hub_names commits = { 0 };
    char *snapshots = qn_hub_path("%s/snapshots", l->folder);
    qn_status status = snapshots ? qn_hub_read_names(l->cache, snapshots, &commits) : QN_ERR_MEMORY;
    for (size_t i = 0; i < commits.count && !status && l->go_on; i++)
        if (qn_hub_is_hash(commits.at[i], QN_HUB_COMMIT_LENGTH))
            status = list_snapshot(l, commits.at[i]);
    if (!status && l->go_on)
        status = list_incomplete(l);
    qn_hub_names_free(&commits);
    free(snapshots);
    return status;
}

/* Converts "models--OWNER--REPO" to "OWNER/REPO"; false for any other folder. */
static bool repo_of(const char *folder, char repo[QN_HUB_REPO_SIZE])
{
    static const char prefix[] = "models--";
    qn_hub_name name;
    const char *owner = folder + sizeof prefix - 1;
    const char *end = strncmp(folder, prefix, sizeof prefix - 1) == 0 ? strstr(owner, "--") : NULL;
    if (!end || !qn_print(repo, QN_HUB_REPO_SIZE, "%.*s/%s", (int)(end - owner), owner, end + 2))
        return false;
    return !strpbrk(repo, ":@") && qn_hub_name_parse(repo, &name) == QN_OK;
}

qn_status qn_hub_list(on_entry_fn on_entry, void *user)
{
    qn_hub_settings settings;
    qn_hub_cache cache = { .fd = -1 };
    qn_hub_names names = { 0 };
    struct listing l = { .cache = &cache, .on_entry = on_entry, .user = user, .go_on = true };
    qn_status status = qn_hub_settings_read(&settings);
    if (!status)
        status = qn_hub_cache_open(settings.cache, false, &cache);
    if (!status)
        status = qn_hub_read_names(&cache, "", &names);
    for (size_t i = 0; i < names.count && !status && l.go_on; i++) {
        char repo[QN_HUB_REPO_SIZE];
        if (!repo_of(names.at[i], repo))
            continue;
        l.folder = names.at[i];
        l.repo = repo;
        status = list_repository(&l);
    }
    qn_hub_names_free(&names);
    qn_hub_cache_close(&cache);
    qn_hub_settings_free(&settings);
    return status;
}

/* ---- Removing ---- */

struct removal {
    qn_hub_cache cache;
    const qn_hub_name *name;
    char *folder;
    qn_hub_names snapshots;
    qn_status refused; /* why a snapshot has no such file, or several */
    qn_hub_removed *removed;
};

/* The blob that a snapshot's link points to; false if it points elsewhere. */
static bool blob_of(const qn_hub_cache *cache, const char *link, char hash[QN_HUB_HASH_SIZE])
{
    static const char blobs[] = "/blobs/";
    char target[QN_HUB_LINK_SIZE];
    if (!qn_hub_read_link(cache, link, target, sizeof target))
        return false;
    const char *at = strstr(target, blobs), *name = at ? at + sizeof blobs - 1 : NULL;
    if (!name || strspn(target, "./") != (size_t)(at - target) + 1 || !qn_hub_is_etag(name))
        return false;
    strcpy(hash, name);
    return true;
}

/* Whether a link of any snapshot points to the blob. */
static qn_status is_linked(const struct removal *r, const char *hash, bool *linked)
{
    *linked = false;
    for (size_t s = 0; s < r->snapshots.count && !*linked; s++) {
        qn_hub_files files;
        qn_status status = qn_hub_read_snapshot(&r->cache, r->folder, r->snapshots.at[s], &files);
        for (size_t i = 0; i < files.count && !status && !*linked; i++) {
            char other[QN_HUB_HASH_SIZE];
            char *path = qn_hub_path("%s/snapshots/%s/%s", r->folder, r->snapshots.at[s], files.at[i].path);
            status = path ? QN_OK : QN_ERR_MEMORY;
            *linked = path && blob_of(&r->cache, path, other) && strcmp(other, hash) == 0;
            free(path);
        }
        qn_hub_files_free(&files);
        QN_TRY(status);
    }
    return QN_OK;
}

static qn_status lock_blob(const struct removal *r, const char *hash, int *fd)
{
    QN_TRY(qn_hub_lock(&r->cache, r->name->repo, hash, fd));
    return *fd >= 0 ? QN_OK : qn_fail(QN_ERR_IO, "%s: another process downloads a file of it", r->name->repo);
}

/* Removes a blob or its incomplete download. The caller holds its lock. */
static qn_status remove_blob(const struct removal *r, const char *hash, const char *suffix)
{
    qn_hub_status st, target;
    char *path = qn_hub_path("%s/blobs/%s%s", r->folder, hash, suffix);
    qn_status status = path ? QN_OK : QN_ERR_MEMORY;
    if (path && qn_hub_stat(&r->cache, path, false, &st)) {
        const bool shared = st.kind == QN_HUB_LINK, there = qn_hub_stat(&r->cache, path, true, &target);
        if (!qn_hub_unlink(&r->cache, path, false))
            status = qn_fail(QN_ERR_IO, "%s/%s: cannot be removed: %s", r->cache.path, path, strerror(errno));
        else if (there)
            *(shared ? &r->removed->shared : &r->removed->bytes) += target.size;
    }
    free(path);
    return status;
}

static qn_status remove_link(struct removal *r, const char *snapshot, const char *file)
{
    char hash[QN_HUB_HASH_SIZE];
    qn_hub_status st;
    int fd = -1;
    bool linked = true;
    char *path = qn_hub_path("%s/snapshots/%s/%s", r->folder, snapshot, file);
    if (!path)
        return QN_ERR_MEMORY;
    const bool has_blob = blob_of(&r->cache, path, hash),
               is_file = qn_hub_stat(&r->cache, path, false, &st) && st.kind == QN_HUB_FILE;
    qn_status status = has_blob ? lock_blob(r, hash, &fd) : QN_OK;
    if (!status && !qn_hub_unlink(&r->cache, path, false))
        status = qn_fail(QN_ERR_IO, "%s/%s: cannot be removed: %s", r->cache.path, path, strerror(errno));
    if (!status) {
        r->removed->n_files++;
        r->removed->bytes += is_file ? st.size : 0; /* a cache without symbolic links */
    }
    if (!status && has_blob)
        status = is_linked(r, hash, &linked);
    if (!status && !linked)
        status = remove_blob(r, hash, "");
    qn_hub_unlock(fd);
    free(path);
    return status;
}

/* Removes the files that the name selects in one snapshot. */
static qn_status remove_from(struct removal *r, const char *snapshot)
{
    qn_hub_files files;
    qn_hub_selection selection = { 0 };
    qn_status status = qn_hub_read_snapshot(&r->cache, r->folder, snapshot, &files);
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
    qn_hub_names names;
    char *blobs = qn_hub_path("%s/blobs", r->folder);
    if (!blobs)
        return QN_ERR_MEMORY;
    qn_status status = qn_hub_read_names(&r->cache, blobs, &names);
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
    qn_hub_names_free(&names);
    free(blobs);
    return status;
}

/* Removes empty folders in a folder, with `files` also the files, then the folder itself if it is empty. */
static void prune(const qn_hub_cache *cache, const char *folder, bool files, int depth)
{
    qn_hub_names names;
    (void)qn_hub_read_names(cache, folder, &names); /* if it cannot be read, it stays */
    for (size_t i = 0; i < names.count && depth < MAX_DEPTH; i++) {
        char *path = qn_hub_path("%s/%s", folder, names.at[i]);
        if (path && is_folder(cache, path))
            prune(cache, path, files, depth + 1);
        else if (path && files)
            (void)qn_hub_unlink(cache, path, false);
        free(path);
    }
    qn_hub_names_free(&names);
    (void)qn_hub_unlink(cache, folder, true);
}

/* Removes references to removed snapshots, which huggingface_hub considers damage: "main", or "refs/pr/1" in
 * subfolders. */
static void remove_refs(const struct removal *r, const char *refs, int depth)
{
    qn_hub_names names;
    (void)qn_hub_read_names(&r->cache, refs, &names);
    for (size_t i = 0; i < names.count && depth < MAX_DEPTH; i++) {
        char commit[QN_HUB_COMMIT_LENGTH + 1];
        char *path = qn_hub_path("%s/%s", refs, names.at[i]), *snapshot = NULL;
        if (path && is_folder(&r->cache, path)) {
            remove_refs(r, path, depth + 1);
        } else if (path) {
            qn_hub_read_ref_file(&r->cache, path, commit);
            snapshot = *commit ? qn_hub_path("%s/snapshots/%s", r->folder, commit) : NULL;
            if (snapshot && !is_folder(&r->cache, snapshot))
                (void)qn_hub_unlink(&r->cache, path, false);
        }
        free(snapshot);
        free(path);
    }
    qn_hub_names_free(&names);
}

/* Removes huggingface_hub's notes about a repository. If the folder is a link, only the link is removed. */
static void remove_notes(const struct removal *r, const char *name)
{
    char *folder = qn_hub_path("%s/%s", r->folder, name);
    if (folder && is_folder(&r->cache, folder))
        prune(&r->cache, folder, true, 0);
    else if (folder)
        (void)qn_hub_unlink(&r->cache, folder, false);
    free(folder);
}

/* Removes everything without a use. A repository without snapshots is removed with huggingface_hub's notes about it:
 * lists of files (trees) and of missing files (.no_exist). */
static void remove_rest(const struct removal *r)
{
    char *snapshots = qn_hub_path("%s/snapshots", r->folder), *refs = qn_hub_path("%s/refs", r->folder);
    if (snapshots)
        prune(&r->cache, snapshots, false, 0);
    if (refs)
        remove_refs(r, refs, 0);
    if (snapshots && !is_folder(&r->cache, snapshots)) {
        remove_notes(r, "trees");
        remove_notes(r, ".no_exist");
        prune(&r->cache, r->folder, false, 0);
    }
    free(refs);
    free(snapshots);
}

static qn_status remove_all(struct removal *r)
{
    const bool all_revisions = strcmp(r->name->revision, "main") == 0;
    char commit[QN_HUB_COMMIT_LENGTH + 1];
    char *snapshots = qn_hub_path("%s/snapshots", r->folder);
    qn_status status = snapshots ? qn_hub_read_names(&r->cache, snapshots, &r->snapshots) : QN_ERR_MEMORY;
    if (!all_revisions)
        qn_hub_read_ref(&r->cache, r->folder, r->name->revision, commit);
    for (size_t s = 0; s < r->snapshots.count && !status; s++)
        if (all_revisions || strcmp(r->snapshots.at[s], commit) == 0)
            status = remove_from(r, r->snapshots.at[s]);
    if (!status && all_revisions && !*r->name->file && !*r->name->type)
        status = remove_incomplete(r);
    if (!status)
        remove_rest(r);
    if (!status && !r->removed->n_files)
        status = r->refused ? r->refused
                            : qn_fail(QN_ERR_INVALID, "%s%s%s: no models of it in %s", r->name->repo,
                                      all_revisions ? "" : "@", all_revisions ? "" : r->name->revision, r->cache.path);
    qn_hub_names_free(&r->snapshots);
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
    struct removal r = { .cache = { .fd = -1 }, .name = &name, .removed = removed };
    if (!status)
        status = qn_hub_cache_open(settings.cache, false, &r.cache);
    if (!status) {
        r.folder = qn_hub_folder(name.repo);
        status = r.folder ? remove_all(&r) : QN_ERR_MEMORY;
    }
    free(r.folder);
    qn_hub_cache_close(&r.cache);
    qn_hub_settings_free(&settings);
    return status;
}
