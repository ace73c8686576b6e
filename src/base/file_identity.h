/* Identifies a file and its state: whether a path still names the same, unchanged file. */
#ifndef QN_BASE_FILE_IDENTITY_H
#define QN_BASE_FILE_IDENTITY_H

#include <stdbool.h>
#include <sys/stat.h>

typedef struct qn_file_identity {
    dev_t device;
    ino_t inode;
    off_t size;
    struct timespec modified;
} qn_file_identity;

static inline qn_file_identity qn_file_identity_of(const struct stat *st)
{
    return (qn_file_identity){ st->st_dev, st->st_ino, st->st_size, st->st_mtim };
}

static inline bool qn_file_identity_equal(const qn_file_identity *a, const qn_file_identity *b)
{
    return a->device == b->device && a->inode == b->inode && a->size == b->size &&
           a->modified.tv_sec == b->modified.tv_sec && a->modified.tv_nsec == b->modified.tv_nsec;
}

#endif
