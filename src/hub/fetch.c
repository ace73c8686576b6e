/* Downloads the model that a name selects: the list of files, the selection, and the blob, lock and link of each
 * file. */
#include "hub/fetch.h"

#include "base/memory.h"
#include "hub/cache.h"
#include "hub/download.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double lock_interval = 0.2;

struct fetch {
    const qn_hub_settings *settings;
    const qn_hub_params *params;
    const qn_hub_name *name;
    qn_hub_http *http;
    qn_hub_cache cache;
    char *folder; /* of the repository */
    qn_hub_files files;
    qn_hub_selection selection;
    char *path; /* the result */
};

/* ---- The list of files ---- */

struct answer {
    char *text;
    size_t length, capacity;
};

static qn_status on_answer(void *user, const void *data, size_t size)
{
    struct answer *a = user;
    if (size > QN_HUB_ANSWER_MAX - a->length)
        return qn_fail(QN_ERR_FORMAT, "the hub's answer is longer than %d bytes", QN_HUB_ANSWER_MAX);
    QN_TRY(qn_realloc_array(&a->text, &a->capacity, a->length + size, 1, "the hub's answer"));
    memcpy(a->text + a->length, data, size);
    a->length += size;
    return QN_OK;
}

static qn_status on_answer_headers(void *user, const qn_hub_response *response)
{
    (void)response;
    ((struct answer *)user)->length = 0; /* a failed attempt may have left a part */
    return QN_OK;
}

static qn_status list_files(struct fetch *f)
{
    struct answer answer = { 0 };
    qn_hub_response response;
    unsigned failures = 0;
    char *before = qn_hub_path("api/models/%s/revision/", f->name->repo);
    qn_hub_request request = {
        .repo = f->name->repo,
        .what = f->name->repo,
        .url = before ? qn_hub_http_url(f->http, before, f->name->revision, "?blobs=true") : NULL,
        .on_headers = on_answer_headers,
        .on_body = on_answer,
        .user = &answer,
    };
    qn_status status = request.url ? qn_hub_http_get(f->http, &request, &response, &failures, NULL) : QN_ERR_MEMORY;
    if (!status)
        status = qn_hub_files_parse(answer.text ? answer.text : "", answer.length, &f->files);
    free(request.url);
    free(before);
    free(answer.text);
    return status;
}

/* ---- One file ---- */

/* Gets the size and hash of a file from its headers; they must agree with the list. */
static qn_status ask(struct fetch *f, char *url, qn_hub_file *file)
{
    qn_hub_response r;
    unsigned failures = 0;
    qn_hub_request request = { .repo = f->name->repo, .what = file->path, .url = url, .head = true };
    uint64_t size = 0;
    QN_TRY(qn_hub_http_get(f->http, &request, &r, &failures, NULL));
    if (strcmp(r.commit, f->files.commit) != 0)
        return qn_fail(QN_ERR_FORMAT,
                       "%s: the header X-Repo-Commit is '%.80s', expected %s: %s is no hub, or a proxy answers for it",
                       file->path, r.commit, f->files.commit, f->settings->endpoint);
    const char *hash = *r.linked_etag ? r.linked_etag : r.etag;
    if (!*file->hash && qn_hub_is_etag(hash))
        strcpy(file->hash, hash);
    if (!*file->hash || (qn_hub_is_etag(hash) && strcmp(hash, file->hash) != 0))
        return qn_fail(QN_ERR_FORMAT, "%s: its ETag is '%.80s', expected %s", file->path, hash,
                       *file->hash ? file->hash : "a SHA-256 or SHA-1 by which the file can be verified");
    if (*r.linked_size ? !qn_hub_size_parse(r.linked_size, &size)
                       : r.length < 0 || (uint64_t)r.length > QN_HUB_SIZE_MAX)
        return qn_fail(QN_ERR_FORMAT, "%s: its size is '%.80s', expected a number up to %llu", file->path,
                       *r.linked_size ? r.linked_size : "unknown", (unsigned long long)QN_HUB_SIZE_MAX);
    if (!*r.linked_size)
        size = (uint64_t)r.length;
    if (file->size && file->size != size)
        return qn_fail(QN_ERR_FORMAT, "%s: its size is %llu bytes, expected %llu, as the hub lists it", file->path,
                       (unsigned long long)size, (unsigned long long)file->size);
    file->size = size;
    return QN_OK;
}

static bool is_there(const struct fetch *f, const qn_hub_file *file)
{
    qn_hub_status st;
    char *blob = *file->hash ? qn_hub_path("%s/blobs/%s", f->folder, file->hash) : NULL;
    const bool found = blob && qn_hub_stat(&f->cache, blob, true, &st);
    free(blob);
    return found && st.kind == QN_HUB_FILE && (!file->size || st.size == file->size);
}

/* Whether the snapshot holds the content itself, as in a cache without symbolic links. */
static bool is_in_snapshot(const struct fetch *f, const qn_hub_file *file)
{
    qn_hub_status st;
    char *path = qn_hub_path("%s/snapshots/%s/%s", f->folder, f->files.commit, file->path);
    const bool found = path && file->size && qn_hub_stat(&f->cache, path, false, &st);
    free(path);
    return found && st.kind == QN_HUB_FILE && st.size == file->size;
}

/* Locks a blob; waits while another process downloads it. */
static qn_status lock(const struct fetch *f, const qn_hub_file *file, int *fd)
{
    for (bool said = false;; said = true) {
        QN_TRY(qn_hub_lock(&f->cache, f->name->repo, file->hash, fd));
        if (*fd >= 0)
            return QN_OK;
        if (!said)
            qn_hub_log(f->params, "%s: another process downloads it; waiting", file->path);
        QN_TRY(qn_hub_wait(f->params, lock_interval));
    }
}

static qn_status fetch_blob(struct fetch *f, qn_hub_file *file, char *url, uint32_t part)
{
    int fd;
    QN_TRY(lock(f, file, &fd));
    char *blob = qn_hub_path("%s/blobs/%s", f->folder, file->hash);
    qn_status status = blob ? QN_OK : QN_ERR_MEMORY;
    if (!status && !is_there(f, file) && !is_in_snapshot(f, file))
        status = qn_hub_download(f->http, f->params, f->name->repo, file, url, &f->cache, blob, part,
                                 (uint32_t)f->selection.count);
    free(blob);
    qn_hub_unlock(fd);
    return status;
}

static qn_status fetch_file(struct fetch *f, qn_hub_file *file, uint32_t part)
{
    if (is_in_snapshot(f, file))
        return QN_OK;
    char *before = qn_hub_path("%s/resolve/%s/", f->name->repo, f->files.commit);
    char *url = before ? qn_hub_http_url(f->http, before, file->path, "") : NULL;
    qn_status status = url ? QN_OK : QN_ERR_MEMORY;
    const bool there = is_there(f, file);
    if (!status && !there)
        status = ask(f, url, file);
    if (!status)
        status = qn_hub_make_snapshot(&f->cache, f->folder, f->files.commit, file->path);
    if (!status && !there)
        status = fetch_blob(f, file, url, part);
    if (!status && !is_in_snapshot(f, file)) /* another process may have moved it there */
        status = qn_hub_link(&f->cache, f->folder, f->files.commit, file->path, file->hash);
    if (status && is_in_snapshot(f, file))
        status = QN_OK;
    free(url);
    free(before);
    return status;
}

/* ---- All ---- */

static qn_status fetch_selected(struct fetch *f)
{
    qn_status status = QN_OK;
    qn_hub_cache_close(&f->cache);
    QN_TRY(qn_hub_cache_open(f->settings->cache, true, &f->cache));
    for (size_t i = 0; i < f->selection.count && !status; i++)
        status = fetch_file(f, &f->files.at[f->selection.at[i]], (uint32_t)i);
    if (status)
        return status;
    qn_hub_tag(&f->cache);
    /* The reference comes last: until then, offline use finds the earlier content. */
    QN_TRY(qn_hub_write_ref(&f->cache, f->folder, f->name->revision, f->files.commit));
    free(f->path);
    f->path = qn_hub_path("%s/%s/snapshots/%s/%s", f->cache.path, f->folder, f->files.commit,
                          f->files.at[f->selection.at[0]].path);
    return f->path ? QN_OK : QN_ERR_MEMORY;
}

/* Says that a drafter was selected, or that one is next to the model. */
static qn_status log_drafter(const struct fetch *f)
{
    char line[QN_HUB_PATH_SIZE + 512];
    QN_TRY(qn_hub_offer_drafter(&f->files, f->name, &f->selection, line, sizeof line));
    if (*line && f->params->on_log)
        f->params->on_log(f->params->user, line);
    return QN_OK;
}

/* Selects and downloads. What is in the cache is judged by its content: if a file that was selected by its name turns
 * out to be a drafter, another is selected. */
static qn_status fetch_model(struct fetch *f)
{
    bool again = true;
    while (again) {
        qn_hub_selection_free(&f->selection);
        qn_hub_read_roles(&f->cache, f->folder, &f->files);
        QN_TRY(qn_hub_select(&f->files, f->name, f->params->memory, &f->selection));
        if (*f->selection.why)
            qn_hub_log(f->params, "%s", f->selection.why);
        QN_TRY(fetch_selected(f));
        const qn_hub_file *file = &f->files.at[f->selection.at[0]];
        const bool known = file->has_role;
        qn_hub_read_roles(&f->cache, f->folder, &f->files);
        again = !*f->name->file && !known && file->has_role && file->role != QN_FILE_MODEL &&
                !f->selection.is_drafter && qn_hub_guess_drafter(f->name->type) == QN_HUB_ORDINARY;
        if (again)
            qn_hub_log(f->params, "%s is no model by what it contains", file->path);
    }
    return log_drafter(f);
}

qn_status qn_hub_fetch(const qn_hub_settings *settings, const qn_hub_params *params, const qn_hub_name *name,
                       char **path)
{
    struct fetch f = {
        .settings = settings, .params = params, .name = name, .cache = { .fd = -1, .path = settings->cache }
    };
    f.folder = qn_hub_folder(name->repo);
    qn_status status = f.folder ? qn_hub_http_create(settings, params, &f.http) : QN_ERR_MEMORY;
    if (!status)
        status = list_files(&f);
    if (!status)
        status = fetch_model(&f);
    if (status)
        free(f.path);
    *path = status ? NULL : f.path;
    free(f.folder);
    qn_hub_cache_close(&f.cache);
    qn_hub_selection_free(&f.selection);
    qn_hub_files_free(&f.files);
    qn_hub_http_free(f.http);
    return status;
}
