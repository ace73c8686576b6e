/* The folder of the cache of compiled kernels, and whom its files are trusted from. */
#ifndef QN_GPU_CODE_STORE_H
#define QN_GPU_CODE_STORE_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* qn_code_store_place - the folder; free() it. NULL if the environment names none. */
qn_status qn_code_store_place(char **folder);

/* qn_code_store_check - check that no other user can put files into the folder. A missing folder is fine. */
qn_status qn_code_store_check(const char *folder);

/* qn_code_store_make - create the folder and its parents, for this user alone. */
qn_status qn_code_store_make(const char *folder);

/* qn_code_store_open - open a file for reading, after the checks of folder and file. *fd is -1 if it is missing.
 *
 *   path   folder, '/' and the name of the file, which begins at `name` */
qn_status qn_code_store_open(const char *folder, const char *path, const char *name, int *fd, uint64_t *bytes);

/* qn_code_store_clear - remove the files whose names `is_ours` accepts; count them. */
qn_status qn_code_store_clear(const char *folder, bool (*is_ours)(const char *name), size_t *n_files, uint64_t *bytes);

#endif
