/* The hub's answers and the command line: any bytes are read as the hub's list of files, from which files are
 * selected by names made of the same bytes, and as a name. Everything accepted must stay inside the cache. */
#include "hub/files.h"

#include "base/append.h"
#include "hub/name.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Checks a path in a snapshot, in another way than qn_hub_path_is_safe. */
static void check_path(const char *path)
{
    char wrapped[QN_HUB_PATH_SIZE + 4];
    if (!qn_print(wrapped, sizeof wrapped, "/%s/", path) || strstr(wrapped, "//") || strstr(wrapped, "/../") ||
        strstr(wrapped, "/./") || strchr(path, '\\'))
        abort();
    for (const char *c = path; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 0x7f)
            abort();
}

static void check_name(const char *text)
{
    qn_hub_name name;
    char type[QN_HUB_TYPE_SIZE];
    (void)qn_hub_path_type(text, type);
    if (strlen(type) >= sizeof type)
        abort();
    if (qn_hub_name_parse(text, &name) != QN_OK) {
        if (qn_hub_name_is(text))
            abort();
        return;
    }
    check_path(name.repo);
    check_path(name.revision);
    const char *slash = strchr(name.repo, '/');
    if (!slash || strchr(slash + 1, '/') || strstr(name.repo, "--") || (*name.file && *name.type))
        abort();
    if (*name.file)
        check_path(name.file);
}

static void select_some(const qn_hub_files *files, const qn_hub_name *name)
{
    static const uint64_t memories[] = { 0, 1000, UINT64_MAX };
    for (size_t m = 0; m < sizeof memories / sizeof *memories; m++) {
        qn_hub_selection selection;
        if (qn_hub_select(files, name, memories[m], &selection) == QN_OK) {
            if (selection.count == 0)
                abort();
            for (size_t i = 0; i < selection.count; i++)
                if (selection.at[i] >= files->count)
                    abort();
        }
        char line[512];
        (void)qn_hub_offer_drafter(files, name, &selection, line, sizeof line);
        if (strlen(line) >= sizeof line)
            abort();
        qn_hub_selection_free(&selection);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    qn_hub_files files;
    const size_t length = size < 2000 ? size : 2000;
    char *text = malloc(length + 1);
    if (!text)
        abort();
    memcpy(text, data, length);
    text[length] = '\0';
    check_name(text);
    free(text);
    if (qn_hub_files_parse((const char *)data, size, &files) == QN_OK) {
        qn_hub_name name = { .repo = "a/b" };
        if (!qn_hub_is_hash(files.commit, QN_HUB_COMMIT_LENGTH))
            abort();
        select_some(&files, &name);
        for (size_t i = 0; i < files.count; i++) {
            const qn_hub_file *file = &files.at[i];
            check_path(file->path);
            if (file->size > QN_HUB_SIZE_MAX || (*file->hash && !qn_hub_is_etag(file->hash)))
                abort();
            if (i >= 20)
                continue;
            name = (qn_hub_name){ .repo = "a/b" };
            strcpy(name.file, file->path);
            select_some(&files, &name);
            if (qn_hub_path_type(file->path, name.type)) {
                name.file[0] = '\0';
                select_some(&files, &name);
            }
        }
    }
    qn_hub_files_free(&files);
    return 0;
}
