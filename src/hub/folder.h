/* The hub's cache as a tree of folders that other users may write to, if it is shared. Nothing in it is reached through a symbolic
 * link: folders are opened one from the other, and what is written or removed is named in an open folder. A link is removed as a
 * link. The path of the cache itself is the user's own word; links in it are followed.
 *
 * Paths are relative to the cache: "models--OWNER--REPO/refs/main". They have no "." and "..". */
#ifndef QN_HUB_FOLDER_H
#define QN_HUB_FOLDER_H

#include "base/status.h"

#include <dirent.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

typedef struct qn_hub_cache {
    int fd;           /* -1: there is none */
    const char *path; /* borrowed */
} qn_hub_cache;

/* qn_hub_cache_open - open the cache in a folder, with `create` make the folder if it is not there. QN_ERR_IO if it cannot be opened,
 * but not if it is not there. Close with qn_hub_cache_close, whatever the status. */
qn_status qn_hub_cache_open(const char *path, bool create, qn_hub_cache *cache);
void qn_hub_cache_close(qn_hub_cache *cache);

/* qn_hub_parent - open the folder that `path` is in: its descriptor, or -1 with errno. *name is the last component of the path.
 * qn_hub_make_parent makes it and those above. */
int qn_hub_parent(const qn_hub_cache *cache, const char *path, const char **name);
qn_status qn_hub_make_parent(const qn_hub_cache *cache, const char *path, const char **name, int *fd);

/* qn_hub_opendir - open a folder for reading its names; NULL if it cannot be read. closedir() it. */
DIR *qn_hub_opendir(const qn_hub_cache *cache, const char *path);

/* qn_hub_stat - what a path names, a link itself unless `content` asks for the file that it leads to. False: nothing. */
bool qn_hub_stat(const qn_hub_cache *cache, const char *path, bool content, struct stat *st);

/* qn_hub_read_link - where a link leads, terminated; false if it is no link, or longer. */
bool qn_hub_read_link(const qn_hub_cache *cache, const char *path, char *target, size_t size);

/* qn_hub_unlink - remove a file or a link, or with `folder` an empty folder. False, with errno, if that fails. */
bool qn_hub_unlink(const qn_hub_cache *cache, const char *path, bool folder);

/* qn_hub_read_text - the beginning of a regular file, terminated. Returns its length, 0 if it cannot be read. */
size_t qn_hub_read_text(const qn_hub_cache *cache, const char *path, char *text, size_t size);

/* qn_hub_write_text - replace a file, or a link, by a file that has this text. Its folder is made. */
qn_status qn_hub_write_text(const qn_hub_cache *cache, const char *path, const char *text);

#endif
