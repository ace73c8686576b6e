/* The key of a cubin. */
#include "cuda/runtime/cubin_key.h"

#include <string.h>
#include <xxhash.h>

static XXH128_canonical_t hash_of(const char *text, size_t bytes)
{
    XXH128_canonical_t hash;
    XXH128_canonicalFromHash(&hash, XXH3_128bits(text, bytes));
    return hash;
}

/* A hash of hashes, so that moving text from one part to the next changes the key. */
qn_code_key qn_cubin_key_of(const char *arch, const char *defines, const qn_gpu_file *const *files, size_t n_files)
{
    XXH128_canonical_t parts[3 + 2 * QN_GPU_MAX_FILES];
    size_t n = 0;
    parts[n++] = hash_of(QN_VERSION, strlen(QN_VERSION));
    parts[n++] = hash_of(arch, strlen(arch));
    parts[n++] = hash_of(defines, strlen(defines));
    for (size_t i = 0; i < n_files; i++) {
        parts[n++] = hash_of(files[i]->name, strlen(files[i]->name));
        parts[n++] = hash_of(files[i]->text, qn_gpu_file_bytes(files[i]));
    }
    const XXH128_canonical_t canonical = hash_of((const char *)parts, n * sizeof *parts);
    qn_code_key key;
    memcpy(key.bytes, canonical.digest, sizeof key.bytes);
    return key;
}
