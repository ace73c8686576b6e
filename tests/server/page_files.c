/* Writes the chat page out of the binary for a server that serves it in tests: page_files FOLDER. FOLDER gets a file
 * for each row of the table, named by its number, and NUMBER.gz if it has a compressed form; standard output gets a
 * JSON object with the policy and the rows. */
#include "page/page.h"

#include <stdbool.h>
#include <stdio.h>

static bool write_file(const char *path, const qn_page_bytes *bytes)
{
    FILE *out = fopen(path, "wb");
    if (!out)
        return false;
    const bool is_whole = fwrite(bytes->bytes, 1, bytes->size, out) == bytes->size;
    return !fclose(out) && is_whole;
}

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "page_files: expected a folder\n"), 2;
    size_t n_files;
    const qn_page_file *files = qn_page_files(&n_files);
    printf("{\"policy\": \"%s\", \"files\": [", QN_PAGE_CONTENT_SECURITY_POLICY);
    for (size_t i = 0; i < n_files; i++) {
        const qn_page_file *const file = &files[i];
        char path[4096], gzip[4096];
        snprintf(path, sizeof path, "%s/%zu", argv[1], i);
        snprintf(gzip, sizeof gzip, "%s/%zu.gz", argv[1], i);
        if (!write_file(path, &file->plain) || (file->gzip.bytes && !write_file(gzip, &file->gzip)))
            return fprintf(stderr, "page_files: %s cannot be written\n", path), 1;
        /* The only marks in a row that JSON would escape are those of ETags. */
        printf("%s\n{\"path\": \"%s\", \"type\": \"%s\", \"etag\": %s, \"gzip_etag\": %s}", i ? "," : "", file->path,
               file->type, file->plain.etag, file->gzip.bytes ? file->gzip.etag : "null");
    }
    printf("\n]}\n");
    return 0;
}
