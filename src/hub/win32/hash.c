/* Hashes by Windows' own cryptography. */
#include "hub/hash.h"

#include <stdbool.h>
#include <stdlib.h>
#include <windows.h>
/* after windows.h, whose types it needs */
#include <bcrypt.h>

struct qn_hub_hash {
    BCRYPT_ALG_HANDLE provider;
    BCRYPT_HASH_HANDLE handle;
    ULONG n_bytes;
};

qn_status qn_hub_hash_begin(qn_hub_algorithm algorithm, qn_hub_hash **out)
{
    const bool is_sha256 = algorithm == QN_HUB_SHA256;
    qn_hub_hash *hash = calloc(1, sizeof *hash);
    *out = NULL;
    if (hash && BCryptOpenAlgorithmProvider(&hash->provider, is_sha256 ? L"SHA256" : L"SHA1", NULL, 0) >= 0) {
        hash->n_bytes = is_sha256 ? 32 : 20;
        if (BCryptCreateHash(hash->provider, &hash->handle, NULL, 0, NULL, 0, 0) >= 0) {
            *out = hash;
            return QN_OK;
        }
        BCryptCloseAlgorithmProvider(hash->provider, 0);
    }
    free(hash);
    return qn_fail(QN_ERR_UNSUPPORTED, "Windows cannot compute the hash of a file");
}

void qn_hub_hash_add(qn_hub_hash *hash, const void *bytes, size_t n)
{
    (void)BCryptHashData(hash->handle, (PUCHAR)(uintptr_t)bytes, (ULONG)n, 0);
}

void qn_hub_hash_end(qn_hub_hash *hash, uint8_t bytes[QN_HUB_HASH_BYTES])
{
    if (!hash)
        return;
    if (bytes)
        (void)BCryptFinishHash(hash->handle, bytes, hash->n_bytes, 0);
    BCryptDestroyHash(hash->handle);
    BCryptCloseAlgorithmProvider(hash->provider, 0);
    free(hash);
}
