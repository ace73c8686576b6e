/* The hub's cache on disk, in the layout of huggingface_hub: each of the two programs finds the other's files.
 *
 *   models--OWNER--REPO/blobs/HASH                  content; HASH.incomplete while it is downloaded
 *   models--OWNER--REPO/snapshots/COMMIT/PATH       a relative symbolic link to the blob; the content itself if the
 *                                                   file system has no symbolic links
 *   models--OWNER--REPO/refs/REVISION               the commit of a branch or tag, 40 digits without a newline; a
 *                                                   commit as revision has none
 *   .locks/models--OWNER--REPO/HASH.lock            locked while a blob is written: by flock, on Windows byte 0
 *
 * A blob may itself be a link, into a store that huggingface_hub shares among repositories. No other links are
 * followed (folder.h). `folder` is that of a repository, from qn_hub_folder. */
#ifndef QN_HUB_CACHE_H
#define QN_HUB_CACHE_H

#include "hub/files.h"
#include "hub/folder.h"

#include <stdbool.h>

/* qn_hub_path - formats a path; free() it. NULL without memory, with the error text set. */
char *qn_hub_path(const char *format, ...) QN_PRINTF(1, 2);

/* qn_hub_folder - the folder of a repository in the cache; free() it. NULL without memory, as above. */
char *qn_hub_folder(const char *repo);

/* The entries of a folder, sorted. */
typedef struct qn_hub_names {
    char **at;
    size_t count, capacity;
} qn_hub_names;

/* qn_hub_read_names - lists a folder; a missing one has no names. Free it with qn_hub_names_free, even after an error.
 */
qn_status qn_hub_read_names(const qn_hub_cache *cache, const char *folder, qn_hub_names *names);
void qn_hub_names_free(qn_hub_names *names);

/* qn_hub_tag - marks the cache folder as a cache for backup programs (CACHEDIR.TAG), as huggingface_hub does. */
void qn_hub_tag(const qn_hub_cache *cache);

/* qn_hub_lock - tries to lock a blob, against other processes and other threads. *fd is the lock, or -1 if another
 * holds it. */
qn_status qn_hub_lock(const qn_hub_cache *cache, const char *repo, const char *hash, int *fd);

/* qn_hub_unlock - releases a lock; -1 is allowed. */
void qn_hub_unlock(int fd);

/* qn_hub_read_ref - gets the commit of a revision, which is itself one if it looks like one; "" if it is unknown. */
void qn_hub_read_ref(const qn_hub_cache *cache, const char *folder, const char *revision,
                     char commit[QN_HUB_COMMIT_LENGTH + 1]);

/* qn_hub_read_ref_file - reads the commit in any file of refs; "" if it has none. */
void qn_hub_read_ref_file(const qn_hub_cache *cache, const char *path, char commit[QN_HUB_COMMIT_LENGTH + 1]);

/* qn_hub_write_ref - sets the commit of a revision; writes nothing if the revision already has that commit. */
qn_status qn_hub_write_ref(const qn_hub_cache *cache, const char *folder, const char *revision, const char *commit);

/* qn_hub_make_snapshot - creates the folders of snapshots/COMMIT/PATH. Without them huggingface_hub considers a
 * repository damaged. */
qn_status qn_hub_make_snapshot(const qn_hub_cache *cache, const char *folder, const char *commit, const char *path);

/* qn_hub_link - makes snapshots/COMMIT/PATH a link to blobs/HASH; its folders must exist. Another entry there is
 * replaced. The correct link is left alone, so a read-only cache that has the file is enough. If the file system has
 * no symbolic links, the blob is moved to snapshots/COMMIT/PATH. */
qn_status qn_hub_link(const qn_hub_cache *cache, const char *folder, const char *commit, const char *path,
                      const char *hash);

/* qn_hub_read_snapshot - lists the files of a snapshot whose content is present, sorted; `hash` is not set. A
 * missing snapshot has no files. Free the list with qn_hub_files_free, even after an error. */
qn_status qn_hub_read_snapshot(const qn_hub_cache *cache, const char *folder, const char *commit, qn_hub_files *files);

/* qn_hub_read_roles - sets the roles of the GGUF files of a snapshot, of split models those of the first parts. Files
 * that cannot be read have none. */
void qn_hub_read_roles(const qn_hub_cache *cache, const char *folder, qn_hub_files *files);

/* qn_hub_find_cached - finds the path of a model's file, or of the first of its parts, in the snapshot of its revision;
 * NULL if it is missing or incomplete, or if only drafters are there and none is named; free() it. Marks the files as
 * used now. */
qn_status qn_hub_find_cached(const qn_hub_cache *cache, const qn_hub_name *name, char **path);

/* qn_hub_find_elsewhere - the same in any snapshot that has the model, the last changed first; returns its commit,
 * too. A drafter is taken where there is nothing else. */
qn_status qn_hub_find_elsewhere(const qn_hub_cache *cache, const qn_hub_name *name,
                                char commit[QN_HUB_COMMIT_LENGTH + 1], char **path);

#endif
