/* Models by their names on the Hugging Face hub: downloads, finds, lists and removes them. The cache is that of
 * huggingface_hub (cache.h); environment variables give its place (settings.h). Any thread may call; the cache on disk
 * is shared with other threads and processes by locks of files (cache.h). */
#ifndef QN_HUB_HUB_H
#define QN_HUB_HUB_H

#include "hub/name.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* The state of a download. */
typedef struct qn_hub_progress {
    const char *file;     /* its path in the repository; NULL during a wait or a query */
    uint64_t done, total; /* bytes */
    uint64_t before;      /* bytes of `done` that an earlier download left */
    uint32_t part, n_parts;
} qn_hub_progress;

/* Callbacks, on the thread that called the function; their pointers are valid during the call. All may be NULL. */
typedef struct qn_hub_params {
    uint64_t memory; /* bytes that a model may take if the name leaves a choice; 0: the available memory */
    void (*on_log)(void *user, const char *line);
    bool (*on_progress)(void *user, const qn_hub_progress *progress); /* false: cancel */
    void *user;
} qn_hub_params;

/* qn_hub_pull - downloads the model that a name selects, unless it is in the cache, and verifies its size and hash.
 * on_log hears of a drafter in the repository.
 *
 *   path   of the file, or of the first part of a split model, in the cache; free() it
 *
 * An interrupted download is continued. If another process downloads the same file, waits for it. Requests with
 * transient failures are repeated, at most five times without progress.
 *
 * QN_ERR_INVALID       the name or an environment variable is invalid, or the name selects no single model of the
 *                      repository
 * QN_ERR_UNSUPPORTED   built without libcurl, or the hub refuses access: 401, 403, 404
 * QN_ERR_FORMAT        an invalid answer of the hub, or a file with a wrong size or hash
 * QN_ERR_IO            network or disk; downloaded data is kept
 * QN_ERR_CANCELLED     by on_progress; downloaded data is kept */
qn_status qn_hub_pull(const char *name, const qn_hub_params *params, char **path);

/* qn_hub_find - as qn_hub_pull, but uses a model in the cache without asking the hub. */
qn_status qn_hub_find(const char *name, const qn_hub_params *params, char **path);

/* A model in the cache; the strings are valid during the call. */
typedef struct qn_hub_entry {
    const char *repo, *file; /* file: the first part of a split model; NULL: incomplete downloads */
    const char *type;        /* or "" */
    const char *revision;    /* a branch or tag of the file, other than main; or "" */
    uint32_t n_files;
    uint64_t bytes;
    time_t used;     /* time of last use */
    bool is_drafter; /* it drafts tokens for a model */
    bool outdated;   /* branch main now has another file or none, and no other branch or tag of the cache has it */
} qn_hub_entry;

/* qn_hub_list - lists the models and drafters in the cache, sorted by repository and file. on_entry returns false to
 * stop. */
qn_status qn_hub_list(bool (*on_entry)(void *user, const qn_hub_entry *entry), void *user);

typedef struct qn_hub_removed {
    size_t n_files;
    uint64_t bytes;  /* freed */
    uint64_t shared; /* bytes in a store shared among repositories, which only huggingface_hub frees */
} qn_hub_removed;

/* qn_hub_remove - removes a model from the cache; without file and type all models and incomplete downloads of the
 * repository. A name with a revision removes it from that revision alone; without one, from all. Other files of the
 * repository stay, as do blobs to which another snapshot links. QN_ERR_INVALID if there is no such model, QN_ERR_IO
 * while another process downloads it. */
qn_status qn_hub_remove(const char *name, qn_hub_removed *removed);

#endif
