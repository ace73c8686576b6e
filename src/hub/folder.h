/* The hub's cache as a tree of folders. If it is shared, other users may write to it, so nothing in it is reached
 * through a symbolic link: each folder is opened from its parent, and files are written or removed by name in an open
 * folder. A link is removed itself, not its target. The path of the cache is the user's choice; links in it are
 * followed.
 *
 * Paths are relative to the cache: "models--OWNER--REPO/refs/main". They contain no "." and "..". Functions that return
 * false set errno. */
#ifndef QN_HUB_FOLDER_H
#define QN_HUB_FOLDER_H

#include "base/file.h"
#include "base/status.h"
#include "model/role.h"

#include <stdbool.h>
#include <stddef.h>

/* Constant while it is open; any thread may use it. */
typedef struct qn_hub_cache {
    int fd;           /* the system's; -1: there is no cache */
    const char *path; /* borrowed */
} qn_hub_cache;

typedef enum qn_hub_kind { QN_HUB_FILE, QN_HUB_FOLDER, QN_HUB_LINK, QN_HUB_OTHER } qn_hub_kind;

typedef struct qn_hub_status {
    qn_hub_kind kind;
    uint64_t size;
    qn_file_id id;
    int64_t used, modified; /* seconds since 1970 */
    uint32_t modified_nanoseconds;
} qn_hub_status;

/* qn_hub_cache_open - opens the cache in a folder. With `create`, creates a missing folder; otherwise a missing
 * folder is no error and gives fd -1. QN_ERR_IO if it cannot be opened. Close it with qn_hub_cache_close, even after
 * an error. */
qn_status qn_hub_cache_open(const char *path, bool create, qn_hub_cache *cache);
void qn_hub_cache_close(qn_hub_cache *cache);

/* qn_hub_make_parent - creates the parent folder of a path, and those above it. */
qn_status qn_hub_make_parent(const qn_hub_cache *cache, const char *path);

/* qn_hub_each_name - calls on_name for the names in a folder, without "." and "..", until it returns false. A folder
 * that is missing or cannot be read has none. */
void qn_hub_each_name(const qn_hub_cache *cache, const char *path, bool (*on_name)(void *user, const char *name),
                      void *user);

/* qn_hub_stat - the status of a path: of a link itself, or with `content` of its target. False if there is nothing. */
bool qn_hub_stat(const qn_hub_cache *cache, const char *path, bool content, qn_hub_status *status);

enum { QN_HUB_LINK_SIZE = 4096 /* for the targets of links that quern makes */ };

/* qn_hub_read_link - the target of a link, terminated. False if it is not a link or does not fit. */
bool qn_hub_read_link(const qn_hub_cache *cache, const char *path, char *target, size_t size);

/* qn_hub_make_link - makes a link to a target. False with EPERM where the file system has no symbolic links. */
bool qn_hub_make_link(const qn_hub_cache *cache, const char *path, const char *target);

/* qn_hub_rename - renames a file or link, and replaces one. The parent of `to` must exist. */
bool qn_hub_rename(const qn_hub_cache *cache, const char *from, const char *to);

/* qn_hub_unlink - removes a file or link, or with `folder` an empty folder. */
bool qn_hub_unlink(const qn_hub_cache *cache, const char *path, bool folder);

/* qn_hub_touch - sets the time of last use of a file or its target to now; in a read-only cache it stays. */
void qn_hub_touch(const qn_hub_cache *cache, const char *path);

/* qn_hub_file_role - reads what a file is for, by its whole path. That is no use of it: the time of last use stays, if
 * the file is the user's. */
bool qn_hub_file_role(const char *path, qn_file_role *role);

/* qn_hub_read_text - reads the beginning of a regular file, terminated. Returns its length; 0 if it cannot be read. */
size_t qn_hub_read_text(const qn_hub_cache *cache, const char *path, char *text, size_t size);

/* qn_hub_write_text - replaces a file or link by a file with this text. Creates its folder. */
qn_status qn_hub_write_text(const qn_hub_cache *cache, const char *path, const char *text);

/* qn_hub_open_own - opens a file for reading and writing, which is created if it is missing. QN_ERR_IO also if it is
 * not a regular file with this name alone: a second name could belong to anybody's file. */
qn_status qn_hub_open_own(const qn_hub_cache *cache, const char *path, int *fd, uint64_t *size);

/* qn_hub_lock_file - tries to lock a file, which is created if it is missing, against other processes and other
 * threads; its folder, too. *fd is -1 if another holds it, or if it was removed meanwhile. On a file system without
 * locks it is locked at once. Closing *fd releases it. */
qn_status qn_hub_lock_file(const qn_hub_cache *cache, const char *path, int *fd);

#endif
