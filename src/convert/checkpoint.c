/* Opens the files of a checkpoint and merges their lists of tensors. */
#include "convert/checkpoint.h"

#include "base/append.h"
#include "base/file.h"
#include "base/memory.h"
#include "gguf/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* MAX_HEADER_BYTES limits the headers of all files together, whose values are kept. */
enum { MAX_INDEX_BYTES = 32 << 20, MAX_HEADER_BYTES = QN_SAFETENSORS_MAX_HEADER };

qn_status qn_checkpoint_path(const char *folder, const char *name, char path[QN_CHECKPOINT_PATH_MAX])
{
    if (!qn_print(path, QN_CHECKPOINT_PATH_MAX, "%s/%s", folder, name))
        return qn_fail(QN_ERR_INVALID, "%.200s/%.200s: the path is too long", folder, name);
    return QN_OK;
}

static qn_status add_file(qn_checkpoint *c, const char *name)
{
    char path[QN_CHECKPOINT_PATH_MAX];
    QN_TRY(qn_checkpoint_path(c->folder, name, path));
    QN_TRY(qn_realloc_array(&c->files, &c->files_capacity, c->n_files + 1, sizeof *c->files, "checkpoint files"));
    QN_TRY(qn_safetensors_open(path, &c->files[c->n_files]));
    c->header_bytes += qn_safetensors_header_bytes(c->files[c->n_files++]);
    if (c->header_bytes > MAX_HEADER_BYTES)
        return qn_fail(QN_ERR_FORMAT,
                       "%s: with it the headers of the checkpoint have %llu bytes, at most %d are allowed", path,
                       (unsigned long long)c->header_bytes, MAX_HEADER_BYTES);
    return QN_OK;
}

static int compare_names(const void *left, const void *right)
{
    return strcmp(((const qn_source *)left)->name, ((const qn_source *)right)->name);
}

static qn_status list_sources(qn_checkpoint *c)
{
    size_t total = 0;
    for (size_t f = 0; f < c->n_files; f++)
        total += qn_safetensors_count(c->files[f]);
    QN_TRY(qn_alloc(&c->sources, total, sizeof *c->sources, "tensors of a checkpoint"));
    for (size_t f = 0; f < c->n_files; f++)
        for (size_t i = 0; i < qn_safetensors_count(c->files[f]); i++) {
            const qn_safetensor *t = qn_safetensors_at(c->files[f], i);
            c->sources[c->n_sources++] = (qn_source){ .name = t->name, .file = c->files[f], .tensor = t };
        }
    qsort(c->sources, c->n_sources, sizeof *c->sources, compare_names);
    for (size_t i = 1; i < c->n_sources; i++)
        if (strcmp(c->sources[i].name, c->sources[i - 1].name) == 0)
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s' is in another file, too",
                           qn_safetensors_path(c->sources[i].file), c->sources[i].name);
    return QN_OK;
}

/* Whether a name from the index is a plain file name, which cannot lead out of the folder. */
static bool is_plain_name(const char *name)
{
    return name && *name && *name != '.' && qn_file_name(name) == name;
}

static bool has_file(const qn_checkpoint *c, const char *name)
{
    const size_t folder = strlen(c->folder) + 1;
    for (size_t f = 0; f < c->n_files; f++)
        if (strcmp(qn_safetensors_path(c->files[f]) + folder, name) == 0)
            return true;
    return false;
}

/* Checks that the index and the open files have the same tensors. `part`: tensors of other files are not looked for. */
static qn_status check_index(const qn_checkpoint *c, const char *path, const json_t *map, bool part)
{
    const char *name;
    json_t *file;
    const size_t folder = strlen(c->folder) + 1;
    json_object_foreach((json_t *)map, name, file)
    {
        if (part && !has_file(c, json_string_value(file)))
            continue;
        const qn_source *source = qn_checkpoint_find(c, name);
        const char *found = source ? qn_safetensors_path(source->file) + folder : "no file";
        if (strcmp(found, json_string_value(file)) != 0)
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s' is in %.80s, expected in %.80s", path, name, found,
                           json_string_value(file));
    }
    for (size_t i = 0; i < c->n_sources; i++)
        if (!json_object_get(map, c->sources[i].name))
            return qn_fail(QN_ERR_FORMAT, "%s: tensor '%.80s' of %s is not in the index", path, c->sources[i].name,
                           qn_safetensors_path(c->sources[i].file));
    return QN_OK;
}

/* Which tensors of an index are needed: those whose names begin with one of the prefixes. n = 0: all. */
struct part {
    const char *const *prefixes;
    size_t n;
};

static bool is_needed(const struct part *part, const char *name)
{
    bool needed = part->n == 0;
    for (size_t i = 0; i < part->n && !needed; i++)
        needed = strncmp(name, part->prefixes[i], strlen(part->prefixes[i])) == 0;
    return needed;
}

static qn_status open_index(qn_checkpoint *c, const char *path, const json_t *index, const struct part *part)
{
    const json_t *map = json_object_get(index, "weight_map");
    const char *name;
    json_t *file;
    if (json_object_size(map) == 0)
        return qn_fail(QN_ERR_FORMAT, "%s: 'weight_map' is not an object that names tensors", path);
    json_object_foreach((json_t *)map, name, file)
    {
        const char *file_name = json_string_value(file);
        if (!is_plain_name(file_name))
            return qn_fail(QN_ERR_FORMAT, "%s: the file of tensor '%.80s' is '%.80s', expected a name without a folder",
                           path, name, file_name ? file_name : "not a string");
        if (is_needed(part, name) && !has_file(c, file_name))
            QN_TRY(add_file(c, file_name));
    }
    QN_TRY(list_sources(c));
    return check_index(c, path, map, part->n > 0);
}

static bool is_there(const qn_checkpoint *c, const char *name)
{
    char path[QN_CHECKPOINT_PATH_MAX];
    return qn_checkpoint_path(c->folder, name, path) == QN_OK && qn_file_exists(path);
}

static qn_status open_folder(qn_checkpoint *c, const char *folder, const struct part *part)
{
    static const char single[] = "model.safetensors";
    char path[QN_CHECKPOINT_PATH_MAX];
    json_t *index;
    c->folder = folder;
    QN_TRY(qn_checkpoint_path(folder, "model.safetensors.index.json", path));
    QN_TRY(qn_json_read(path, MAX_INDEX_BYTES, false, &index));
    if (!index) {
        QN_TRY(add_file(c, single));
        return list_sources(c);
    }
    const qn_status status = open_index(c, path, index, part);
    json_decref(index);
    c->has_unlisted_file = !has_file(c, single) && is_there(c, single);
    return status;
}

qn_status qn_checkpoint_open(qn_checkpoint *c, const char *folder)
{
    return open_folder(c, folder, &(struct part){ 0 });
}

qn_status qn_checkpoint_open_part(qn_checkpoint *c, const char *folder, const char *const *prefixes, size_t n)
{
    return open_folder(c, folder, &(struct part){ prefixes, n });
}

qn_status qn_checkpoint_open_file(qn_checkpoint *c, const char *folder, const char *name)
{
    c->folder = folder;
    QN_TRY(add_file(c, name));
    return list_sources(c);
}

void qn_checkpoint_close(qn_checkpoint *c)
{
    for (size_t f = 0; f < c->n_files; f++)
        qn_safetensors_close(c->files[f]);
    free(c->files);
    qn_free(c->sources);
    *c = (qn_checkpoint){ 0 };
}

qn_status qn_checkpoint_check_unchanged(const qn_checkpoint *c)
{
    for (size_t f = 0; f < c->n_files; f++)
        QN_TRY(qn_safetensors_check_unchanged(c->files[f]));
    return QN_OK;
}

qn_source *qn_checkpoint_find(const qn_checkpoint *c, const char *name)
{
    const qn_source key = { .name = name };
    return c->n_sources ? bsearch(&key, c->sources, c->n_sources, sizeof key, compare_names) : NULL;
}

bool qn_checkpoint_has_prefix(const qn_checkpoint *c, const char *prefix)
{
    for (size_t i = 0; i < c->n_sources; i++)
        if (strncmp(c->sources[i].name, prefix, strlen(prefix)) == 0)
            return true;
    return false;
}

const qn_source *qn_checkpoint_first_unused(const qn_checkpoint *c)
{
    for (size_t i = 0; i < c->n_sources; i++)
        if (!c->sources[i].used)
            return &c->sources[i];
    return NULL;
}
