/* Lookup in the tables of embedded GPU code, and the include closure of a source. */
#include "cuda/runtime/code.h"

#include "base/append.h"
#include "base/strings.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Writes the first architecture of the family. Code for sm_90a runs only on compute capability 9.0; code for the others
 * also on later minor versions (CUDA C++ Programming Guide, binary compatibility). 8.6 has 99 KiB of shared memory, 8.0
 * and 8.7 163 KiB. */
void qn_gpu_arch(int major, int minor, char arch[QN_GPU_ARCH_MAX])
{
    if (major == 8)
        snprintf(arch, QN_GPU_ARCH_MAX, minor == 9 ? "sm_89" : minor == 6 ? "sm_86" : "sm_80");
    else if (major == 9)
        snprintf(arch, QN_GPU_ARCH_MAX, "sm_90a");
    else if (major == 10 || major == 12)
        snprintf(arch, QN_GPU_ARCH_MAX, "sm_%d0", major);
    else
        snprintf(arch, QN_GPU_ARCH_MAX, "sm_%d%d", major, minor);
}

const qn_gpu_cubin *qn_gpu_code_cubin(const qn_gpu_code *code, const char *source, const char *defines,
                                      const char *arch)
{
    for (size_t i = 0; i < code->n_cubins; i++) {
        const qn_gpu_cubin *c = &code->cubins[i];
        if (!strcmp(c->source, source) && !strcmp(c->defines, defines) && !strcmp(c->arch, arch))
            return c;
    }
    return NULL;
}

static const qn_gpu_file *find(const qn_gpu_code *code, const char *name, size_t length)
{
    for (size_t i = 0; i < code->n_files; i++)
        if (strlen(code->files[i].name) == length && !memcmp(code->files[i].name, name, length))
            return &code->files[i];
    return NULL;
}

static qn_status add(const qn_gpu_file *file, const qn_gpu_file *files[QN_GPU_MAX_FILES], size_t *n_files)
{
    for (size_t i = 0; i < *n_files; i++)
        if (files[i] == file)
            return QN_OK;
    if (*n_files == QN_GPU_MAX_FILES)
        return qn_fail(QN_ERR_INVALID, "%s: more than %d files, with all its includes", files[0]->name,
                       QN_GPU_MAX_FILES);
    files[(*n_files)++] = file;
    return QN_OK;
}

/* The name in a line #include "name"; NULL for other lines. */
static const char *included(const char *line, const char *end, size_t *length)
{
    const char *at = line;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    if (at == end || *at++ != '#')
        return NULL;
    while (at < end && (*at == ' ' || *at == '\t'))
        at++;
    static const char word[] = "include";
    if ((size_t)(end - at) < sizeof word || memcmp(at, word, sizeof word - 1) != 0)
        return NULL;
    const char *open = memchr(at, '"', (size_t)(end - at));
    const char *close = open ? memchr(open + 1, '"', (size_t)(end - open - 1)) : NULL;
    if (!close)
        return NULL;
    *length = (size_t)(close - open - 1);
    return open + 1;
}

qn_status qn_gpu_code_files(const qn_gpu_code *code, const char *source, const qn_gpu_file *files[QN_GPU_MAX_FILES],
                            size_t *n_files)
{
    char name[256];
    *n_files = 0;
    qn_text_buffer text = QN_APPEND_TO(name);
    qn_append(&text, "cuda/kernels/%s", source);
    if (text.is_cut)
        return qn_fail(QN_ERR_INVALID, "'%s' is too long for the name of a kernel source", source);
    const qn_gpu_file *file = find(code, name, text.length);
    if (!file)
        return qn_fail(QN_ERR_INVALID, "'%s' is not among the kernel sources of this build", source);
    QN_TRY(add(file, files, n_files));
    /* Conditionals are ignored: an unneeded file does no harm. A name that is not in the table is a header for the host
     * side only; if the kernel needed it, the compiler would report it missing. */
    for (size_t i = 0; i < *n_files; i++) {
        const char *at = files[i]->text, *end = files[i]->end;
        while (at < end) {
            const char *newline = memchr(at, '\n', (size_t)(end - at));
            const char *stop = newline ? newline : end;
            size_t n;
            const char *target = included(at, stop, &n);
            file = target ? find(code, target, n) : NULL;
            if (file)
                QN_TRY(add(file, files, n_files));
            at = newline ? newline + 1 : end;
        }
    }
    return QN_OK;
}

qn_status qn_gpu_options(const char *defines, char **copy, const char **out, size_t max, size_t *n)
{
    *n = 0;
    *copy = strdup(defines);
    if (!*copy)
        return qn_fail(QN_ERR_MEMORY, "no memory for the options of a kernel");
    char *rest = *copy;
    for (char *word; (word = qn_strsep(&rest, " ")) != NULL;) {
        if (!*word)
            continue;
        if (*n == max)
            return qn_fail(QN_ERR_INVALID, "'%s': more than %zu definitions", defines, max);
        out[(*n)++] = word;
    }
    return QN_OK;
}
