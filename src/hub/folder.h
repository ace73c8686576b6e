/* The hub's cache as a tree of folders. If it is shared, other users may write to it, so nothing in it is reached
 * through a symbolic link: each folder is opened from its parent, and files are written or removed by name in an open
 * folder. A link is removed itself, not its target. The path of the cache is the user's choice; links in it are
 * followed.
 *
 * Paths are relative to the cache: "models--OWNER--REPO/refs/main". They contain no "." and "..". */
#ifndef QN_HUB_FOLDER_H
#define QN_HUB_FOLDER_H

#include "base/status.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

/* Constant while it is open; any thread may use it. */
typedef struct qn_hub_cache {
    int fd;           /* -1: there is no cache */
    const char *path; /* borrowed */
} qn_hub_cache;

/* qn_hub_cache_open - opens the cache in a folder. With `create`, creates a missing folder; otherwise a missing
 * folder is no error and gives fd -1. QN_ERR_IO if it cannot be opened. Close it with qn_hub_cache_close, even after
 * an error. */
qn_status qn_hub_cache_open(const char *path, bool create, qn_hub_cache *cache);
void qn_hub_cache_close(qn_hub_cache *cache);

/* qn_hub_parent - opens the parent folder of `path`. Returns its descriptor, which the caller closes, or -1 with errno.
 * *name is the last component of the path, in `path`. */
int qn_hub_parent(const qn_hub_cache *cache, const char *path, const char **name);

/* qn_hub_make_parent - the same, but creates the parent folder and those above it. */
qn_status qn_hub_make_parent(const qn_hub_cache *cache, const char *path, const char **name, int *fd);

/* qn_hub_opendir - opens a folder to list its names; NULL if it cannot be read. closedir() it. */
DIR *qn_hub_opendir(const qn_hub_cache *cache, const char *path);

/* qn_hub_stat - the status of a path: of a link itself, or with `content` of its target. False if there is nothing. */
bool qn_hub_stat(const qn_hub_cache *cache, const char *path, bool content, struct stat *st);

/* qn_hub_read_link - the target of a link, terminated. False if it is not a link or does not fit. */
bool qn_hub_read_link(const qn_hub_cache *cache, const char *path, char *target, size_t size);

/* qn_hub_unlink - removes a file or link, or with `folder` an empty folder. False, with errno, on failure. */
bool qn_hub_unlink(const qn_hub_cache *cache, const char *path, bool folder);

/* qn_hub_read_text - reads the beginning of a regular file, terminated. Returns its length; 0 if it cannot be read. */
size_t qn_hub_read_text(const qn_hub_cache *cache, const char *path, char *text, size_t size);

/* qn_hub_write_text - replaces a file or link by a file with this text. Creates its folder. */
qn_status qn_hub_write_text(const qn_hub_cache *cache, const char *path, const char *text);

#endif
