/* Hashes for tables whose keys strangers choose: XXH3 with a secret of the process, so that nobody can construct
 * colliding keys. The hashes differ between processes and must not be stored in files. Any thread may call these
 * functions; the first call makes the secret, which then stays the same. */
#ifndef QN_BASE_KEYED_HASH_H
#define QN_BASE_KEYED_HASH_H

#include <stddef.h>
#include <stdint.h>

/* qn_keyed_hash - the hash of bytes. */
uint64_t qn_keyed_hash(const void *data, size_t length);

/* qn_keyed_hash_with - the hash of bytes and a number, which may be another hash. */
uint64_t qn_keyed_hash_with(const void *data, size_t length, uint64_t number);

/* qn_keyed_hash_pair - the hash of two numbers, in few instructions. The words come from qn_keyed_words_get; a table
 * keeps a copy. All bits are equally good: n of them are equal for two pairs with a probability of 2^-n. */
typedef struct qn_keyed_words {
    uint64_t left, right, both;
} qn_keyed_words;

qn_keyed_words qn_keyed_words_get(void);

static inline uint32_t qn_keyed_hash_pair(const qn_keyed_words *words, uint32_t left, uint32_t right)
{
    return (uint32_t)((words->left * left + words->right * right + words->both) >> 32);
}

/* qn_keyed_hash128 - a hash that may stand for its data: equal hashes of different bytes do not occur and cannot be
 * constructed. */
typedef struct qn_hash128 {
    uint64_t low, high;
} qn_hash128;

qn_hash128 qn_keyed_hash128(const void *data, size_t length);

#endif
