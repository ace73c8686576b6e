/* Downloads one file. */
#include "hub/download.h"

#include "base/atomic_file.h"
#include "hub/cache.h"
#include "hub/digest.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    MAX_FAILURES = 5,
    PROGRESS_BYTES = 1 << 20 /* a request that received this much counts as progress */
};

/* The download of one file, on the stack of qn_hub_download. libcurl's callbacks get it on the same thread. */
struct transfer {
    const qn_hub_params *params;
    const qn_hub_file *file;
    const qn_hub_cache *cache;
    const char *path;              /* path of the incomplete file, for error texts */
    const char *blob, *incomplete; /* paths in the cache */
    int fd;
    qn_hub_digest *digest;
    qn_hub_request request;
    uint64_t done, written_back; /* bytes of the file */
    uint8_t *block;              /* block of the digest, or NULL; its first `filled` bytes are not written yet */
    size_t filled;
    uint64_t received; /* bytes received by this request, up to PROGRESS_BYTES */
    unsigned failures; /* requests without progress */
    bool resumed;      /* some bytes are from an earlier download */
};

static void set_done(struct transfer *t, uint64_t done)
{
    t->done = done;
    t->request.progress.done = done + t->filled;
}

static qn_status restart(struct transfer *t)
{
    if (!qn_file_truncate(t->fd, 0))
        return qn_fail(QN_ERR_IO, "%s: cannot be emptied: %s", t->path, strerror(errno));
    set_done(t, 0);
    t->written_back = t->request.progress.before = 0;
    t->resumed = false;
    return qn_hub_digest_restart(t->digest);
}

/* ---- The server's answer ---- */

static qn_status on_headers(void *user, const qn_hub_response *response)
{
    struct transfer *t = user;
    qn_hub_range range;
    if (response->status == 206 &&
        (!qn_hub_range_parse(response->range, &range) || range.first != t->done || range.total != t->file->size))
        return qn_fail(QN_ERR_FORMAT,
                       "%s: the server sends the range '%.60s', expected bytes %" PRIu64 " to the end of %" PRIu64,
                       t->file->path, response->range, t->done, t->file->size);
    if (response->status == 200 && t->done) { /* the server does not support ranges */
        qn_hub_log(t->params, "%s: the server does not continue downloads; from the beginning", t->file->path);
        QN_TRY(restart(t));
    }
    if (response->length >= 0 && (uint64_t)response->length != t->file->size - t->done)
        return qn_fail(QN_ERR_FORMAT, "%s: the server has %" PRId64 " bytes more, expected %" PRIu64, t->file->path,
                       response->length, t->file->size - t->done);
    return QN_OK;
}

/* Writes the block and pushes it to the digest. libcurl delivers 16 KiB at a time; a system call for each would take
 * longer than the hash. */
static qn_status flush(struct transfer *t)
{
    const uint8_t *from = t->block;
    const size_t size = t->filled;
    while (t->filled) {
        const ptrdiff_t n = qn_file_write_at(t->fd, from, t->filled, t->done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            t->filled = 0;
            return qn_fail(QN_ERR_IO, "%s: cannot write: %s; %" PRIu64 " bytes are kept, and the next pull continues",
                           t->path, strerror(errno), t->done);
        }
        from += n;
        t->filled -= (size_t)n;
        set_done(t, t->done + (uint64_t)n);
    }
    if (size)
        qn_hub_digest_push(t->digest, size);
    t->block = NULL;
    qn_file_write_back(t->fd, t->done, &t->written_back);
    return QN_OK;
}

static qn_status on_body(void *user, const void *data, size_t size)
{
    struct transfer *t = user;
    if (size > t->file->size - t->done - t->filled)
        return qn_fail(QN_ERR_FORMAT, "%s: the server sends more than %" PRIu64 " bytes", t->file->path, t->file->size);
    t->received += size;
    if (t->received >= PROGRESS_BYTES)
        t->failures = 0;
    for (const char *from = data; size;) {
        if (!t->block)
            t->block = qn_hub_digest_block(t->digest);
        const size_t left = QN_HUB_BLOCK - t->filled, n = size < left ? size : left;
        memcpy(t->block + t->filled, from, n);
        t->filled += n;
        from += n;
        size -= n;
        if (t->filled == QN_HUB_BLOCK)
            QN_TRY(flush(t));
    }
    set_done(t, t->done);
    return QN_OK;
}

/* ---- Content of an earlier download ---- */

static qn_status hash_existing(struct transfer *t, uint64_t size)
{
    qn_status status = QN_OK;
    while (t->done < size && !status) {
        const uint64_t left = size - t->done;
        uint8_t *block = qn_hub_digest_block(t->digest);
        const ptrdiff_t n = qn_file_read_at(t->fd, block, left < QN_HUB_BLOCK ? (size_t)left : QN_HUB_BLOCK, t->done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return qn_fail(QN_ERR_IO, "%s: cannot read what was downloaded: %s", t->path, strerror(errno));
        qn_hub_digest_push(t->digest, (size_t)n);
        set_done(t, t->done + (uint64_t)n);
        t->request.progress.before = t->done;
        if (t->params->on_progress && !t->params->on_progress(t->params->user, &t->request.progress))
            status = qn_fail(QN_ERR_CANCELLED, "%s: the download was cancelled", t->file->path);
    }
    t->resumed = t->done > 0;
    t->written_back = t->done;
    return status;
}

static qn_status open_incomplete(struct transfer *t)
{
    uint64_t size;
    QN_TRY(qn_hub_open_own(t->cache, t->incomplete, &t->fd, &size));
    return size > t->file->size ? restart(t) : hash_existing(t, size);
}

static qn_status check_space(const struct transfer *t)
{
    const uint64_t left = t->file->size - t->done, free_bytes = qn_file_free_space(t->fd);
    if (left <= free_bytes)
        return QN_OK;
    return qn_fail(QN_ERR_IO,
                   "%s: %.3g GB are to be downloaded, and its disk has %.3g GB left; %" PRIu64 " bytes are kept",
                   t->path, (double)left * 1e-9, (double)free_bytes * 1e-9, t->done);
}

/* ---- The whole file ---- */

/* Makes requests until the file is complete. */
static qn_status receive(qn_hub_http *http, struct transfer *t)
{
    bool asked_anew = false;
    while (t->done < t->file->size) {
        qn_hub_response response;
        bool again;
        QN_TRY(check_space(t));
        t->request.from = t->done;
        t->received = 0;
        const qn_status status = qn_hub_http_get(http, &t->request, &response, &t->failures, &again);
        QN_TRY(flush(t));
        if (again)
            continue;
        if (status)
            return status;
        if (response.status == 416) {
            if (asked_anew || !t->done)
                return qn_fail(QN_ERR_FORMAT, "%s: the server has nothing from byte %" PRIu64 " on (416)",
                               t->file->path, t->done);
            asked_anew = true;
            qn_hub_log(t->params, "%s: the server has nothing to continue with; from the beginning", t->file->path);
            QN_TRY(restart(t));
        } else if (t->done < t->file->size) {
            (void)qn_fail(QN_ERR_IO, "%s: the server ended after %" PRIu64 " of %" PRIu64 " bytes", t->file->path,
                          t->done, t->file->size);
            if (++t->failures >= MAX_FAILURES)
                return QN_ERR_IO;
            QN_TRY(qn_hub_wait(t->params, 1));
        }
    }
    return QN_OK;
}

static qn_status receive_verified(qn_hub_http *http, struct transfer *t)
{
    for (;;) {
        QN_TRY(receive(http, t));
        const bool resumed = t->resumed;
        const qn_status status = qn_hub_digest_finish(t->digest, t->file->path);
        if (status != QN_ERR_FORMAT)
            return status;
        if (!resumed) {
            (void)qn_hub_unlink(t->cache, t->incomplete, false);
            return status;
        }
        qn_hub_log(t->params, "%s: what an earlier download left does not fit; from the beginning", t->file->path);
        QN_TRY(restart(t));
    }
}

/* Opens the incomplete file, receives the rest, and renames it. */
static qn_status download(qn_hub_http *http, struct transfer *t)
{
    QN_TRY(qn_hub_digest_create(t->file->hash, t->file->size, &t->digest));
    QN_TRY(open_incomplete(t));
    QN_TRY(receive_verified(http, t));
    if (!qn_file_sync(t->fd))
        return qn_fail(QN_ERR_IO, "%s: cannot write: %s", t->path, strerror(errno));
    if (!qn_hub_rename(t->cache, t->incomplete, t->blob))
        return qn_fail(QN_ERR_IO, "%s: cannot be renamed to '%s': %s", t->path, strrchr(t->blob, '/') + 1,
                       strerror(errno));
    return QN_OK;
}

qn_status qn_hub_download(qn_hub_http *http, const qn_hub_params *params, const char *repo, const qn_hub_file *file,
                          char *url, const qn_hub_cache *cache, const char *blob, uint32_t part, uint32_t n_parts)
{
    char *path = qn_hub_path("%s/%s.incomplete", cache->path, blob);
    if (!path)
        return QN_ERR_MEMORY;
    struct transfer t = {
        .params = params,
        .file = file,
        .cache = cache,
        .path = path,
        .blob = blob,
        .incomplete = path + strlen(cache->path) + 1,
        .fd = -1,
        .request = { .repo = repo,
                     .what = file->path,
                     .url = url,
                     .on_headers = on_headers,
                     .on_body = on_body,
                     .user = &t,
                     .progress = { .file = file->path, .total = file->size, .part = part, .n_parts = n_parts } },
    };
    const qn_status status = download(http, &t);
    if (t.fd >= 0)
        close(t.fd);
    qn_hub_digest_free(t.digest);
    free(path);
    return status;
}
