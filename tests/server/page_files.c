/* Writes the chat page out of the binary for a server that serves it in tests: page_files FOLDER. FOLDER gets a file
 * for each row of the table, named by its number, and standard output a JSON object with the policy and the rows. */
#include "page/page.h"

#include <stdbool.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "page_files: expected a folder\n"), 2;
    size_t n_files;
    const qn_page_file *files = qn_page_files(&n_files);
    printf("{\"policy\": \"%s\", \"files\": [", QN_PAGE_CONTENT_SECURITY_POLICY);
    for (size_t i = 0; i < n_files; i++) {
        char path[4096];
        snprintf(path, sizeof path, "%s/%zu", argv[1], i);
        FILE *out = fopen(path, "wb");
        if (!out)
            return fprintf(stderr, "page_files: %s cannot be written\n", path), 1;
        const bool is_whole = fwrite(files[i].bytes, 1, files[i].size, out) == files[i].size;
        if (fclose(out) || !is_whole)
            return fprintf(stderr, "page_files: %s cannot be written\n", path), 1;
        /* The only marks in a row that JSON would escape are those of the ETag. */
        printf("%s\n{\"path\": \"%s\", \"type\": \"%s\", \"etag\": %s, \"size\": %zu}", i ? "," : "", files[i].path,
               files[i].type, files[i].etag, files[i].size);
    }
    printf("\n]}\n");
    return 0;
}
