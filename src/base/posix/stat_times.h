/* Times of a file, whose names in struct stat differ between systems. */
#ifndef QN_BASE_POSIX_STAT_TIMES_H
#define QN_BASE_POSIX_STAT_TIMES_H

#include <sys/stat.h>

#ifdef __APPLE__
#define QN_MODIFIED(st) (st)->st_mtimespec
#define QN_ACCESSED(st) (st)->st_atimespec
#else
#define QN_MODIFIED(st) (st)->st_mtim
#define QN_ACCESSED(st) (st)->st_atim
#endif

#endif
