/* A temporary folder for the files of a test. */
#ifndef QN_TESTS_HELPER_FOLDER_H
#define QN_TESTS_HELPER_FOLDER_H

#include "helper_assert.h"

#include <unistd.h>

static char folder[32], path[64], other_path[64]; /* two files in it, which the tests write and read */

static inline int make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/quern-test-XXXXXX");
    snprintf(path, sizeof path, "%s/file", mkdtemp(folder) ? folder : "");
    snprintf(other_path, sizeof other_path, "%s/other", folder);
    return *folder == 0;
}

/* Fails if a temporary file of what is tested was not removed. */
static inline int remove_folder(void)
{
    unlink(path);
    unlink(other_path);
    return rmdir(folder) != 0;
}

#endif
