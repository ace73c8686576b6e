/* The files of a repository, as listed by the hub's answer or found in a cache folder, and the choice of those that
 * a name selects: one file, or all parts of a split model. */
#ifndef QN_HUB_FILES_H
#define QN_HUB_FILES_H

#include "hub/name.h"

#include <stdint.h>

enum { QN_HUB_HASH_SIZE = 65, QN_HUB_ANSWER_MAX = 8 << 20 };

/* Limit of a file's size, 16 TiB: sizes come from a server. */
#define QN_HUB_SIZE_MAX ((uint64_t)1 << 44)

typedef struct qn_hub_file {
    char *path;                  /* in the repository; safe (qn_hub_path_is_safe) */
    uint64_t size;               /* bytes, at most QN_HUB_SIZE_MAX; 0 if unknown */
    char hash[QN_HUB_HASH_SIZE]; /* SHA-256, or the SHA-1 of a git blob; "" if unknown */
} qn_hub_file;

/* A list sorted by path, which owns its paths. All zero is an empty list. Used by one thread at a time. */
typedef struct qn_hub_files {
    qn_hub_file *at;
    size_t count, capacity;
    char commit[QN_HUB_COMMIT_LENGTH + 1];
} qn_hub_files;

/* qn_hub_files_add - appends a file. An invalid hash or a size above the limit counts as unknown. */
qn_status qn_hub_files_add(qn_hub_files *files, const char *path, uint64_t size, const char *hash);

/* qn_hub_files_sort - sorts the list; call it after the last qn_hub_files_add. */
void qn_hub_files_sort(qn_hub_files *files);

/* qn_hub_files_parse - reads the hub's answer to api/models/OWNER/REPO: fields "sha" and "siblings".
 *
 *   json    [length] not terminated, from a server: untrusted
 *   files   an empty list
 *
 * QN_ERR_FORMAT if it is not JSON, too long, nested too deeply, without these fields, or lists a GGUF file whose
 * path is not safe. Other files with unsafe paths are skipped. Free the list with qn_hub_files_free, even after an
 * error. */
qn_status qn_hub_files_parse(const char *json, size_t length, qn_hub_files *files);

void qn_hub_files_free(qn_hub_files *files);

/* ---- Selection ---- */

typedef struct qn_hub_selection {
    size_t *at; /* [count] indices of files: the parts in order */
    size_t count;
    uint64_t bytes;
    char why[320]; /* how the file was chosen if the name did not determine it; else "" */
} qn_hub_selection;

/* qn_hub_select - chooses the file or files that `name` selects.
 *
 *   memory     bytes that a model may take, for names without file and type; UINT64_MAX: any
 *
 * A file is selected by its path, or by its last component if that is unique. A type is compared with the type of
 * qn_hub_path_type, whole or up to a '_', with or without "UD-"; otherwise with any words of a file's name. Case is
 * ignored. A part of a split model selects all parts. Without file and type, the preferred files are 1-bit and
 * ternary ones of PrismML's types, then quantised ones, 16-bit ones, and others; among these the largest that fits
 * in four fifths of the memory. QN_ERR_INVALID, with the available files, if none or several are selected, or none
 * fits. Free the selection with qn_hub_selection_free, even after an error. */
qn_status qn_hub_select(const qn_hub_files *files, const qn_hub_name *name, uint64_t memory,
                        qn_hub_selection *selection);

void qn_hub_selection_free(qn_hub_selection *selection);

/* A model among files. */
typedef struct qn_hub_model {
    size_t first;      /* index of its file, or of the first of its parts */
    uint32_t n_parts;  /* 1: not split */
    uint32_t n_listed; /* number of its parts among the files */
    uint64_t bytes;
    char type[QN_HUB_TYPE_SIZE]; /* or "" */
} qn_hub_model;

/* qn_hub_models - lists the GGUF files that are models, split ones once, without projectors (mmproj) and importance
 * matrices (imatrix). free() the list. */
qn_status qn_hub_models(const qn_hub_files *files, qn_hub_model **models, size_t *count);

#endif
