/* Split models, as written by llama.cpp's gguf-split: files PREFIX-00001-of-00003.gguf and so on. Each is a GGUF
 * file with the keys split.no (from 0), split.count and split.tensors.count (of all files). The first file has the
 * model's keys; any file may have tensors. This file finds and joins them; gguf_read.c validates each. */
#include "gguf/file.h"

#include "base/append.h"
#include "base/file.h"
#include "base/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NO "split.no"
#define COUNT "split.count"
#define TENSORS "split.tensors.count"

struct split {
    uint32_t no, count, n_tensors;
};

/* The length of a file name's suffix. Its numbers have five digits, as QN_GGUF_MAX_FILES is less than 100000. */
enum { TAIL = sizeof "-00001-of-00001.gguf" - 1 };
_Static_assert(QN_GGUF_MAX_FILES < 100000, "the numbers of a file name have five digits");

static void print_tail(char tail[TAIL + 1], uint32_t no, uint32_t count)
{
    qn_print(tail, TAIL + 1, "-%05u-of-%05u.gguf", (no + 1) % 100000, count % 100000);
}

bool qn_gguf_split_numbers(const char *path, uint32_t *no, uint32_t *count)
{
    const size_t length = strlen(path);
    char tail[TAIL + 1];
    uint32_t number, total;
    if (length < TAIL || sscanf(path + length - TAIL, "-%5" SCNu32 "-of-%5" SCNu32, &number, &total) != 2 ||
        number == 0 || number > total || total > QN_GGUF_MAX_FILES)
        return false;
    print_tail(tail, number - 1, total);
    if (strcmp(path + length - TAIL, tail) != 0)
        return false;
    *no = number - 1;
    *count = total;
    return true;
}

void qn_gguf_split_rename(char *path, uint32_t no, uint32_t count)
{
    print_tail(path + strlen(path) - TAIL, no, count);
}

bool qn_gguf_is_split_key(qn_string key)
{
    return qn_string_equals(key, NO) || qn_string_equals(key, COUNT) || qn_string_equals(key, TENSORS);
}

static qn_status read_split(const qn_gguf *file, struct split *split)
{
    QN_TRY(qn_gguf_get_u32(file, NO, true, &split->no));
    QN_TRY(qn_gguf_get_u32(file, COUNT, true, &split->count));
    return qn_gguf_get_u32(file, TENSORS, true, &split->n_tensors);
}

/* Checks the split keys of the given file: in range, and consistent with its name. */
static qn_status check_given(const qn_gguf *file, const struct split *split)
{
    char tail[TAIL + 1];
    const size_t length = strlen(file->path);
    if (split->count > QN_GGUF_MAX_FILES)
        return qn_fail(QN_ERR_FORMAT, "%s: key '" COUNT "' is %u, expected at most %d", file->path, split->count,
                       QN_GGUF_MAX_FILES);
    if (split->no >= split->count)
        return qn_fail(QN_ERR_FORMAT, "%s: key '" NO "' is %u, expected less than '" COUNT "', %u", file->path,
                       split->no, split->count);
    print_tail(tail, split->no, split->count);
    if (length < TAIL || strcmp(file->path + length - TAIL, tail) != 0)
        return qn_fail(QN_ERR_FORMAT,
                       "%s: file %u of %u of a split model by its keys '" NO "' and '" COUNT
                       "', expected a name that ends in '%s'",
                       file->path, split->no + 1, split->count, tail);
    return QN_OK;
}

static qn_status expect(const qn_gguf *file, const char *key, uint32_t found, uint32_t expected, const char *because)
{
    if (found == expected)
        return QN_OK;
    return qn_fail(QN_ERR_FORMAT, "%s: key '%s' is %u, expected %u %s", file->path, key, found, expected, because);
}

static qn_status check_part(const qn_gguf *file, uint32_t no, const struct split *given)
{
    struct split split;
    QN_TRY(read_split(file, &split));
    QN_TRY(expect(file, NO, split.no, no, "by the file's name"));
    QN_TRY(expect(file, COUNT, split.count, given->count, "by the file's name"));
    return expect(file, TENSORS, split.n_tensors, given->n_tensors, "as in the model's other files");
}

/* Checks that all files exist. The error text names the missing files that fit, then the number of others. */
static qn_status check_present(const qn_gguf *given, const struct split *split, char *name, char *tail)
{
    char list[240];
    qn_text_buffer text = QN_APPEND_TO(list);
    uint32_t n_missing = 0, n_listed = 0;
    const char *base = qn_file_name(name);
    for (uint32_t i = 0; i < split->count; i++) {
        print_tail(tail, i, split->count);
        if (i == split->no || qn_file_exists(name) || errno != ENOENT)
            continue;
        const size_t need = strlen(base) + (n_missing ? 2 : 0);
        if (n_missing++ == n_listed && text.length + need < sizeof list) {
            qn_append(&text, "%s%s", n_listed ? ", " : "", base);
            n_listed++;
        }
    }
    if (!n_missing)
        return QN_OK;
    char more[40] = "";
    if (n_listed < n_missing)
        snprintf(more, sizeof more, "%s%u more", n_listed ? " and " : "", n_missing - n_listed);
    return qn_fail(QN_ERR_IO, "%s: file %u of %u of a split model; missing in its directory: %s%s", given->path,
                   split->no + 1, split->count, list, more);
}

static qn_status open_part(const char *name, uint32_t no, const struct split *given, qn_gguf **out)
{
    QN_TRY(qn_gguf_map(name, out));
    const qn_status status = check_part(*out, no, given);
    if (status) {
        qn_gguf_close(*out);
        *out = NULL;
    }
    return status;
}

/* Appends the tensors of all files to those of the first. */
static qn_status join(qn_gguf *whole, uint32_t expected)
{
    size_t total = 0, duplicate;
    for (size_t i = 0; i < whole->n_parts; i++)
        total += whole->parts[i]->n_tensors; /* no overflow: each tensor has a header in memory */
    if (total != expected)
        return qn_fail(QN_ERR_FORMAT,
                       "%s: the %zu files of this model have %zu tensors, expected %u by the key '" TENSORS "'",
                       whole->path, whole->n_parts, total, expected);
    QN_TRY(qn_realloc_array(&whole->tensors, &whole->tensors_capacity, total, sizeof *whole->tensors, "tensors"));
    for (size_t i = 1; i < whole->n_parts; i++) {
        const qn_gguf *part = whole->parts[i];
        for (size_t t = 0; t < part->n_tensors; t++)
            whole->tensors[whole->n_tensors++] = part->tensors[t];
    }
    qn_free(whole->tensor_table.slots);
    QN_TRY(qn_name_table_build(&whole->tensor_table, whole->tensors, total, sizeof *whole->tensors, &duplicate));
    if (duplicate == total)
        return QN_OK;
    const qn_gguf_tensor *later = &whole->tensors[duplicate];
    const qn_gguf_tensor *earlier = qn_name_table_find(&whole->tensor_table, later->name.data, later->name.length);
    return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.*s' is also in %s, expected in one file of a split model",
                   qn_gguf_tensor_path(whole, later), QN_STRING_ARGS(later->name), qn_gguf_tensor_path(whole, earlier));
}

/* Opens the other files. *file becomes the model's first file, which owns all others, including the given one. If
 * the first file cannot be opened, *file is unchanged. */
static qn_status open_others(qn_gguf **file, const struct split *split, char *name, char *tail)
{
    qn_gguf *given = *file, *first = given;
    print_tail(tail, 0, split->count);
    if (split->no != 0)
        QN_TRY(open_part(name, 0, split, &first));
    const qn_status status = qn_alloc(&first->parts, split->count, sizeof *first->parts, "files of a model");
    if (status) {
        if (first != given)
            qn_gguf_close(first);
        return status;
    }
    first->n_parts = split->count;
    first->parts[0] = first;
    first->parts[split->no] = given;
    *file = first;
    for (uint32_t i = 1; i < split->count; i++) {
        print_tail(tail, i, split->count);
        if (i != split->no)
            QN_TRY(open_part(name, i, split, &first->parts[i]));
    }
    return join(first, split->n_tensors);
}

static qn_status gather(qn_gguf **file)
{
    struct split split = { 0 };
    QN_TRY(qn_gguf_get_u32(*file, COUNT, false, &split.count));
    if (split.count < 2)
        return QN_OK;
    QN_TRY(read_split(*file, &split));
    QN_TRY(check_given(*file, &split));
    char *name = strdup((*file)->path);
    if (!name)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory for the names of its files", (*file)->path);
    char *tail = name + strlen(name) - TAIL;
    qn_status status = check_present(*file, &split, name, tail);
    if (!status)
        status = open_others(file, &split, name, tail);
    free(name);
    return status;
}

qn_status qn_gguf_open(const char *path, qn_gguf **out)
{
    qn_gguf *file;
    *out = NULL;
    QN_TRY(qn_gguf_map(path, &file));
    qn_status status = gather(&file);
    if (!status)
        status = qn_gguf_settle_type_42(file);
    if (!status)
        status = qn_gguf_check_unchanged(file);
    if (status) {
        qn_gguf_close(file);
        return status;
    }
    *out = file;
    return QN_OK;
}
