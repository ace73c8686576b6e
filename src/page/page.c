/* Looks up files of the chat page by their paths. */
#include "page/page.h"

#include <string.h>

const qn_page_file *qn_page_find(const char *path)
{
    size_t n_files;
    const qn_page_file *files = qn_page_files(&n_files);
    for (size_t i = 0; i < n_files; i++)
        if (!strcmp(files[i].path, path))
            return &files[i];
    return NULL;
}
