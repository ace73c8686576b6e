/* Hashes by GnuTLS. Its handle is the hash. */
#include "hub/hash.h"

#include <gnutls/crypto.h>

qn_status qn_hub_hash_begin(qn_hub_algorithm algorithm, qn_hub_hash **out)
{
    gnutls_hash_hd_t handle;
    const int error = gnutls_hash_init(&handle, algorithm == QN_HUB_SHA256 ? GNUTLS_DIG_SHA256 : GNUTLS_DIG_SHA1);
    *out = error ? NULL : (qn_hub_hash *)handle;
    return error ? qn_fail(QN_ERR_UNSUPPORTED, "GnuTLS cannot compute the hash of a file: %s", gnutls_strerror(error))
                 : QN_OK;
}

void qn_hub_hash_add(qn_hub_hash *hash, const void *bytes, size_t n)
{
    gnutls_hash((gnutls_hash_hd_t)hash, bytes, n);
}

void qn_hub_hash_end(qn_hub_hash *hash, uint8_t bytes[QN_HUB_HASH_BYTES])
{
    if (hash)
        gnutls_hash_deinit((gnutls_hash_hd_t)hash, bytes);
}
