/* The hub's cache on disk, in the layout of huggingface_hub, which finds quern's files and whose files quern finds:
 *
 *   models--OWNER--REPO/blobs/HASH                  content; HASH.incomplete while it is downloaded
 *   models--OWNER--REPO/snapshots/COMMIT/PATH       a relative symbolic link to the blob; the content itself where there are no links
 *   models--OWNER--REPO/refs/main                   the commit, 40 digits without a newline
 *   .locks/models--OWNER--REPO/HASH.lock            held by flock while a blob is written
 *
 * A blob in turn may be a link, into a store that huggingface_hub shares among repositories. Other links are not followed
 * (folder.h). `folder` is that of a repository, qn_hub_folder. */
#ifndef QN_HUB_CACHE_H
#define QN_HUB_CACHE_H

#include "hub/files.h"
#include "hub/folder.h"

#include <stdbool.h>

/* qn_hub_path - a path of formatted parts; free() it. NULL without memory, with the error text set.
 * qn_hub_folder - the folder of a repository in the cache. */
char *qn_hub_path(const char *format, ...) QN_PRINTF(1, 2);
char *qn_hub_folder(const char *repo);

/* qn_hub_tag - mark the cache folder as a cache for backup programs (CACHEDIR.TAG), as huggingface_hub does. */
void qn_hub_tag(const qn_hub_cache *cache);

/* qn_hub_lock - try to take the lock of a blob; *fd is -1 if another process has it. qn_hub_unlock gives it back; -1 is
 * allowed. */
qn_status qn_hub_lock(const qn_hub_cache *cache, const char *repo, const char *hash, int *fd);
void qn_hub_unlock(int fd);

/* qn_hub_read_ref - the commit of branch main, "" if it is not known. qn_hub_read_ref_file reads any file of refs. */
void qn_hub_read_ref(const qn_hub_cache *cache, const char *folder, char commit[QN_HUB_COMMIT_LENGTH + 1]);
void qn_hub_read_ref_file(const qn_hub_cache *cache, const char *path, char commit[QN_HUB_COMMIT_LENGTH + 1]);

/* qn_hub_write_ref - replace it. */
qn_status qn_hub_write_ref(const qn_hub_cache *cache, const char *folder, const char *commit);

/* qn_hub_make_snapshot - create the folders for snapshots/COMMIT/PATH, without which huggingface_hub takes a repository for
 * damaged. */
qn_status qn_hub_make_snapshot(const qn_hub_cache *cache, const char *folder, const char *commit, const char *path);

/* qn_hub_link - make snapshots/COMMIT/PATH a link to blobs/HASH, where the folders are; what is there is
 * replaced, if it is another link: a cache that cannot be written, but has the file, will do. Where the file system has no symbolic
 * links the blob moves to snapshots/COMMIT/PATH. */
qn_status qn_hub_link(const qn_hub_cache *cache, const char *folder, const char *commit, const char *path, const char *hash);

/* qn_hub_read_snapshot - the files of a snapshot whose content is there, sorted; `hash` is not set. An absent snapshot has
 * none. Free with qn_hub_files_free, whatever the status. */
qn_status qn_hub_read_snapshot(const qn_hub_cache *cache, const char *folder, const char *commit, qn_hub_files *files);

/* qn_hub_find_cached - the path of a model's file, or of the first of its parts, in the snapshot of branch main; NULL if it is
 * not there or not whole. Marks the files as used now. */
qn_status qn_hub_find_cached(const qn_hub_cache *cache, const qn_hub_name *name, char **path);

/* qn_hub_find_elsewhere - the same in the snapshot that was changed last of those that have it, and its commit. */
qn_status qn_hub_find_elsewhere(const qn_hub_cache *cache, const qn_hub_name *name, char commit[QN_HUB_COMMIT_LENGTH + 1],
                                char **path);

#endif
