/* Git LFS pointers: the small text file that stands in a clone of a git repository for a file that was not fetched. */
#ifndef QN_GGUF_LFS_H
#define QN_GGUF_LFS_H

#include "base/status.h"

#include <string.h>

#define QN_LFS_POINTER "version https://git-lfs.github.com/spec/v1"
enum { QN_LFS_POINTER_BYTES = sizeof QN_LFS_POINTER - 1 };

/* qn_refuse_lfs_pointer - QN_ERR_FORMAT, with what to do, if a file begins as a pointer. begin: QN_LFS_POINTER_BYTES.
 */
static inline qn_status qn_refuse_lfs_pointer(const char *path, const void *begin)
{
    if (memcmp(begin, QN_LFS_POINTER, QN_LFS_POINTER_BYTES) != 0)
        return QN_OK;
    return qn_fail(QN_ERR_FORMAT, "%s: is a Git LFS pointer, not the file itself: run 'git lfs pull' in its folder",
                   path);
}

#endif
