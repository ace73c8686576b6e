/* Models by their names on the Hugging Face hub: downloading, finding, listing and removing them. The cache is that of
 * huggingface_hub (cache.h); the environment says where it is (settings.h). */
#ifndef QN_HUB_HUB_H
#define QN_HUB_HUB_H

#include "hub/name.h"

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* A download, as it stands. */
typedef struct qn_hub_progress {
    const char *file;     /* its path in the repository; NULL while nothing is downloaded: waiting, or asking */
    uint64_t done, total; /* bytes */
    uint64_t before;      /* bytes that an earlier download left, of those done */
    uint32_t part, n_parts;
} qn_hub_progress;

/* Callbacks, on the calling thread. All may be NULL. */
typedef struct qn_hub_params {
    uint64_t memory; /* bytes that a model may take, where the name leaves the choice; 0: what is available */
    void (*on_log)(void *user, const char *line);
    bool (*on_progress)(void *user, const qn_hub_progress *progress); /* false: cancel */
    void *user;
} qn_hub_params;

/* qn_hub_pull - download what a name means, as far as it is not in the cache, and verify its size and hash.
 *
 *   path   of the file, or of the first part of a split model, in the cache; free() it
 *
 * Interrupted downloads are continued. While another process downloads the same file, waits for it. Requests that fail for the
 * moment are repeated, five times at most without progress.
 *
 * QN_ERR_INVALID      the name, an environment variable, or what the name means in the repository
 * QN_ERR_UNSUPPORTED  built without libcurl; or the hub refuses: 401, 403, 404
 * QN_ERR_FORMAT       the hub's answer, or the file's size or hash
 * QN_ERR_IO           network or disk; what is downloaded is kept
 * QN_ERR_CANCELLED    by on_progress; what is downloaded is kept */
qn_status qn_hub_pull(const char *name, const qn_hub_params *params, char **path);

/* qn_hub_find - the same, but what is in the cache is used without asking the hub. */
qn_status qn_hub_find(const char *name, const qn_hub_params *params, char **path);

/* A model of the cache; texts are valid during the call. */
typedef struct qn_hub_entry {
    const char *repo, *file; /* the first part of a split model; NULL: downloads that are not complete */
    const char *type;        /* or "" */
    uint32_t n_files;
    uint64_t bytes;
    time_t used;   /* last */
    bool outdated; /* branch main has another file now, or none */
} qn_hub_entry;

/* qn_hub_list - the models in the cache, sorted by repository and file. on_entry returns false to stop. */
qn_status qn_hub_list(bool (*on_entry)(void *user, const qn_hub_entry *entry), void *user);

typedef struct qn_hub_removed {
    size_t n_files;
    uint64_t bytes;  /* freed */
    uint64_t shared; /* bytes in a store that huggingface_hub shares among repositories, which it alone removes from */
} qn_hub_removed;

/* qn_hub_remove - remove a model from the cache; without file and type all models of the repository and what was left of
 * downloads. Other files of the repository stay, and so does what another snapshot links to under another name. QN_ERR_INVALID
 * if there is none, QN_ERR_IO if another process downloads it. */
qn_status qn_hub_remove(const char *name, qn_hub_removed *removed);

#endif
