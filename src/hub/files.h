/* The files of a repository, as listed by the hub's answer or found in a cache folder, and the choice of those that
 * a name selects: one file, or all parts of a split model. */
#ifndef QN_HUB_FILES_H
#define QN_HUB_FILES_H

#include "hub/name.h"
#include "model/role.h"

#include <stdint.h>

enum { QN_HUB_HASH_SIZE = 65, QN_HUB_ANSWER_MAX = 8 << 20 };

/* Limit of a file's size, 16 TiB: sizes come from a server. */
#define QN_HUB_SIZE_MAX ((uint64_t)1 << 44)

typedef struct qn_hub_file {
    char *path;                  /* in the repository; safe (qn_hub_path_is_safe) */
    uint64_t size;               /* bytes, at most QN_HUB_SIZE_MAX; 0 if unknown */
    char hash[QN_HUB_HASH_SIZE]; /* SHA-256, or the SHA-1 of a git blob; "" if unknown */
    bool has_role;               /* the content was read: */
    qn_file_role role;
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
    bool is_drafter; /* it was not named, and the files have no other model than drafters */
    char why[320];   /* how the file was chosen if the name did not determine it; else "" */
} qn_hub_selection;

/* qn_hub_select - chooses the file or files that `name` selects.
 *
 *   memory     bytes that a model may take, for names without file and type; UINT64_MAX: any
 *
 * A file is selected by its path, or by its last component if that is unique. A type is compared with the type of
 * qn_hub_path_type, whole or up to a '_', with or without "UD-"; otherwise with any words of a file's name. Case is
 * ignored. A part of a split model selects all parts. Without file and type, the preferred files are 1-bit and
 * ternary ones of PrismML's types, then quantised ones, 16-bit ones, and others; among these the largest that fits
 * in four fifths of the memory. Drafters (qn_hub_model) are not models of a type and are not chosen, unless the word
 * looked for names them, or there is nothing else. QN_ERR_INVALID, with the available files, if none or several are
 * selected, or none fits. Free the selection with qn_hub_selection_free, even after an error. */
qn_status qn_hub_select(const qn_hub_files *files, const qn_hub_name *name, uint64_t memory,
                        qn_hub_selection *selection);

void qn_hub_selection_free(qn_hub_selection *selection);

/* What a path says about drafters. */
typedef enum qn_hub_guess {
    QN_HUB_ORDINARY,
    QN_HUB_PERHAPS_MTP, /* an MTP block alone, or a model with one: such a block is smaller by far */
    QN_HUB_MTP,         /* an MTP block alone */
    QN_HUB_DRAFTER      /* another drafter, which may be a small model */
} qn_hub_guess;

/* qn_hub_guess_drafter - judges by a path, or by a word that is looked for. */
qn_hub_guess qn_hub_guess_drafter(const char *path);

/* A model among files. */
typedef struct qn_hub_model {
    size_t first;      /* index of its file, or of the first of its parts */
    uint32_t n_parts;  /* 1: not split */
    uint32_t n_listed; /* number of its parts among the files */
    uint64_t bytes;
    char type[QN_HUB_TYPE_SIZE]; /* or "" */
    qn_hub_guess guess;
    bool is_drafter; /* it drafts tokens for another model, by its content or by its name */
} qn_hub_model;

/* qn_hub_models - lists the GGUF files that are models or drafters, split ones once, without projectors (mmproj) and
 * importance matrices (imatrix). free() the list. */
qn_status qn_hub_models(const qn_hub_files *files, qn_hub_model **models, size_t *count);

/* qn_hub_offer_drafter - writes what to say about drafters after a selection: that the selected file is one, or which
 * drafter is next to the model; "" if there is nothing to say. QN_ERR_MEMORY. */
qn_status qn_hub_offer_drafter(const qn_hub_files *files, const qn_hub_name *name, const qn_hub_selection *selection,
                               char *line, size_t size);

#endif
