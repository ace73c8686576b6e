/* The cache's folder on Windows: below the user's folder of local data, which gives no access to other users. */
#include "gpu/code_store.h"

#include "base/environment.h"
#include "base/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

qn_status qn_code_store_place(char **folder)
{
    const char *local = qn_environment("LOCALAPPDATA");
    *folder = NULL;
    if (!local || !*local || asprintf(folder, "%s/quern/cache", local) >= 0)
        return QN_OK;
    *folder = NULL;
    return qn_fail(QN_ERR_MEMORY, "no memory for the name of the kernel cache");
}

qn_status qn_code_store_check(const char *folder)
{
    qn_file_info info;
    if (!qn_file_describe(folder, &info) || info.kind == QN_FILE_FOLDER)
        return QN_OK;
    return qn_fail(QN_ERR_IO, "%s: cannot open: it is not a folder", folder);
}

qn_status qn_code_store_make(const char *folder)
{
    char *path = strdup(folder);
    bool is_made = path != NULL;
    for (char *at = path; path && *at && is_made; at++) {
        const char c = *at;
        if (!qn_file_is_separator(c) || at == path || at[-1] == ':')
            continue;
        *at = '\0';
        is_made = qn_folder_make(path, 0700);
        *at = c;
    }
    is_made = is_made && qn_folder_make(folder, 0700);
    free(path);
    return is_made ? QN_OK : qn_fail(QN_ERR_IO, "%s: cannot create this directory: %s", folder, strerror(errno));
}

qn_status qn_code_store_open(const char *folder, const char *path, const char *name, int *fd, uint64_t *bytes)
{
    qn_file_info info;
    (void)folder, (void)name;
    *fd = -1;
    const int opened = qn_file_open_read(path);
    if (opened < 0)
        return errno == ENOENT ? QN_OK : qn_fail(QN_ERR_IO, "%s: cannot open: %s", path, strerror(errno));
    if (!qn_file_describe_fd(opened, &info) || info.kind != QN_FILE_REGULAR) {
        close(opened);
        return qn_fail(QN_ERR_FORMAT, "%s: is not a regular file", path);
    }
    *fd = opened;
    *bytes = info.size;
    return QN_OK;
}

static qn_status remove_one(const char *folder, const char *name, size_t *n_files, uint64_t *bytes)
{
    char *path;
    qn_file_info info;
    if (asprintf(&path, "%s/%s", folder, name) < 0)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for the name of a file", folder);
    const bool is_there = qn_file_describe(path, &info);
    qn_status status = QN_OK;
    if (is_there && qn_file_remove(path)) {
        ++*n_files;
        *bytes += info.size;
    } else if (is_there && errno != ENOENT) { /* ENOENT: another process may be clearing too */
        status = qn_fail(QN_ERR_IO, "%s: cannot remove: %s", path, strerror(errno));
    }
    free(path);
    return status;
}

qn_status qn_code_store_clear(const char *folder, bool (*is_ours)(const char *name), size_t *n_files, uint64_t *bytes)
{
    qn_folder *list = qn_folder_open(folder);
    const char *name;
    qn_status status = QN_OK;
    *n_files = 0;
    *bytes = 0;
    if (!list)
        return errno == ENOENT || errno == ENOTDIR ? QN_OK
                                                   : qn_fail(QN_ERR_IO, "%s: cannot list: %s", folder, strerror(errno));
    while (!status && (name = qn_folder_next(list)))
        if (is_ours(name))
            status = remove_one(folder, name, n_files, bytes);
    qn_folder_close(list);
    return status;
}
