/* Names of models on the Hugging Face hub: "OWNER/REPO[@REVISION][:FILE | :TYPE]" and addresses of its pages, and the
 * checks that names from users, servers and folders must pass before they become paths. Nothing here opens a file. */
#ifndef QN_HUB_NAME_H
#define QN_HUB_NAME_H

#include "base/status.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    QN_HUB_REPO_SIZE = 200,
    QN_HUB_PATH_SIZE = 1024,
    QN_HUB_TYPE_SIZE = 32,
    QN_HUB_REVISION_SIZE = 128,
    QN_HUB_COMMIT_LENGTH = 40,
    QN_HUB_MAX_DEPTH = 32
};

typedef struct qn_hub_name {
    char repo[QN_HUB_REPO_SIZE];         /* OWNER/REPO */
    char revision[QN_HUB_REVISION_SIZE]; /* a branch, a tag or a commit; "main" if the name has none */
    char file[QN_HUB_PATH_SIZE];         /* a path in the repository; or "" */
    char type[QN_HUB_TYPE_SIZE];         /* a weight type as file names spell it; or "" */
} qn_hub_name;

/* qn_hub_name_parse - parses a name. The part after ':' is a file if it contains '.' or '/', else a type of letters,
 * digits, '_' and '-'. An address is that of a repository or of a file in it, with or without https://, on
 * huggingface.co or hf.co, as a browser shows it: huggingface.co/OWNER/REPO/blob/REVISION/FILE; or such a name after
 * the host. QN_ERR_INVALID, with the violated rule. */
qn_status qn_hub_name_parse(const char *text, qn_hub_name *name);

/* qn_hub_name_is - whether an option's value is such a name rather than a path: it can be parsed, and does not end
 * in ".gguf" unless it has a ':' or is an address. */
bool qn_hub_name_is(const char *text);

/* qn_hub_is_address - whether text begins as an address of the hub does, whether or not it can be parsed. */
bool qn_hub_is_address(const char *text);

/* qn_hub_path_is_safe - whether a path in a repository stays inside any folder that it is appended to: no empty
 * component, no "." or "..", no backslash, no control character (C0, C1, DEL), at most QN_HUB_MAX_DEPTH folders. */
bool qn_hub_path_is_safe(const char *path);

/* qn_hub_is_hash - whether text is exactly `length` lower-case hexadecimal digits. */
bool qn_hub_is_hash(const char *text, size_t length);

/* qn_hub_is_etag - whether text is a content hash of the hub: a SHA-256, or the SHA-1 of a git blob. */
bool qn_hub_is_etag(const char *text);

/* qn_hub_path_type - the weight type in a file's name, in upper case; the last one if there are several: "Q1_0" of
 * "Bonsai-8B-Q1_0.gguf", "Q4_K_M" of "model.q4_k_m.gguf", "UD-Q4_K_XL" of "m-UD-Q4_K_XL.gguf". False if there is
 * none. */
bool qn_hub_path_type(const char *path, char type[QN_HUB_TYPE_SIZE]);

/* qn_hub_type_format - the part of a type that names its format: "Q4_K_XL" of "UD-Q4_K_XL". */
const char *qn_hub_type_format(const char *type);

/* qn_hub_path_has_words - whether a file's name contains the words, ignoring case, with no letter, digit or '_'
 * directly before or after them. */
bool qn_hub_path_has_words(const char *path, const char *words);

/* qn_hub_path_base - the last component of a path. */
const char *qn_hub_path_base(const char *path);

/* qn_hub_path_is_gguf - whether a path ends in ".gguf". */
bool qn_hub_path_is_gguf(const char *path);

#endif
