/* The list of a repository's files, parsed from the hub's answer. */
#include "hub/files.h"

#include "base/memory.h"
#include "gguf/json_decode.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 32 };

qn_status qn_hub_files_add(qn_hub_files *files, const char *path, uint64_t size, const char *hash)
{
    QN_TRY(
        qn_realloc_array(&files->at, &files->capacity, files->count + 1, sizeof *files->at, "files of a repository"));
    qn_hub_file *file = &files->at[files->count];
    *file = (qn_hub_file){ .path = strdup(path), .size = size <= QN_HUB_SIZE_MAX ? size : 0 };
    if (!file->path)
        return qn_fail(QN_ERR_MEMORY, "no memory for the files of a repository");
    if (hash && qn_hub_is_etag(hash))
        strcpy(file->hash, hash);
    files->count++;
    return QN_OK;
}

static int by_path(const void *a, const void *b)
{
    return strcmp(((const qn_hub_file *)a)->path, ((const qn_hub_file *)b)->path);
}

void qn_hub_files_sort(qn_hub_files *files)
{
    if (files->count)
        qsort(files->at, files->count, sizeof *files->at, by_path);
}

void qn_hub_files_free(qn_hub_files *files)
{
    for (size_t i = 0; i < files->count; i++)
        free(files->at[i].path);
    free(files->at);
    *files = (qn_hub_files){ 0 };
}

/* ---- JSON ---- */

static uint64_t size_of(const json_t *json)
{
    return json_is_integer(json) && json_integer_value(json) > 0 ? (uint64_t)json_integer_value(json) : 0;
}

static qn_status add_sibling(qn_hub_files *files, size_t index, const json_t *sibling)
{
    const char *path = json_string_value(json_object_get(sibling, "rfilename"));
    const json_t *lfs = json_object_get(sibling, "lfs");
    if (!path)
        return qn_fail(QN_ERR_FORMAT, "the hub's answer: entry %zu of 'siblings' has no string 'rfilename'", index);
    if (!qn_hub_path_is_safe(path) && qn_hub_path_is_gguf(path))
        return qn_fail(QN_ERR_FORMAT,
                       "the hub's answer: '%.200s' is not a file's name that could stay inside the cache folder", path);
    if (!qn_hub_path_is_safe(path))
        return QN_OK;
    const json_t *size = json_object_get(json_is_object(lfs) ? lfs : sibling, "size");
    const json_t *hash = json_is_object(lfs) ? json_object_get(lfs, "sha256") : json_object_get(sibling, "blobId");
    return qn_hub_files_add(files, path, size_of(size), json_string_value(hash));
}

static qn_status read_answer(const json_t *json, qn_hub_files *files)
{
    const char *commit = json_string_value(json_object_get(json, "sha"));
    const json_t *siblings = json_object_get(json, "siblings");
    if (!commit || !qn_hub_is_hash(commit, QN_HUB_COMMIT_LENGTH))
        return qn_fail(QN_ERR_FORMAT, "the hub's answer: 'sha' is %s%.80s, expected %d hexadecimal digits",
                       commit ? "" : "missing", commit ? commit : "", QN_HUB_COMMIT_LENGTH);
    if (!json_is_array(siblings))
        return qn_fail(QN_ERR_FORMAT, "the hub's answer: no array 'siblings'");
    strcpy(files->commit, commit);
    for (size_t i = 0; i < json_array_size(siblings); i++)
        QN_TRY(add_sibling(files, i, json_array_get(siblings, i)));
    qn_hub_files_sort(files);
    for (size_t i = 1; i < files->count; i++)
        if (strcmp(files->at[i - 1].path, files->at[i].path) == 0)
            return qn_fail(QN_ERR_FORMAT, "the hub's answer: '%.200s' is listed twice", files->at[i].path);
    return QN_OK;
}

qn_status qn_hub_files_parse(const char *json, size_t length, qn_hub_files *files)
{
    json_error_t why;
    *files = (qn_hub_files){ 0 };
    if (length > QN_HUB_ANSWER_MAX)
        return qn_fail(QN_ERR_FORMAT, "the hub's answer: %zu bytes, expected at most %d", length, QN_HUB_ANSWER_MAX);
    json_t *parsed = qn_json_load(json, length, JSON_REJECT_DUPLICATES, MAX_DEPTH, &why);
    if (!parsed && json_error_code(&why) == json_error_stack_overflow)
        return qn_fail(QN_ERR_FORMAT, "the hub's answer: JSON nested more than %d deep", MAX_DEPTH);
    if (!parsed)
        return qn_fail(QN_ERR_FORMAT, "the hub's answer is not JSON: %s at byte %d", why.text, why.position);
    const qn_status status = read_answer(parsed, files);
    json_decref(parsed);
    return status;
}
