/* A ring buffer of blocks between the thread that downloads and the thread that hashes. */
#include "hub/digest.h"

#include "base/append.h"
#include "base/memory.h"
#include "hub/hash.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

enum { N_BLOCKS = 8, HASH_BYTES = QN_HUB_HASH_BYTES };

/* `lock` protects filled, hashed and stop. Blocks [hashed, filled) of the ring and their lengths belong to the thread
 * that hashes, the others to the thread that downloads. `hash` belongs to the hashing thread while a block is left. */
struct qn_hub_digest {
    char expected[2 * HASH_BYTES + 1];
    uint64_t size;
    qn_hub_hash *hash;
    uint8_t *ring; /* [N_BLOCKS * QN_HUB_BLOCK] */
    size_t lengths[N_BLOCKS];
    uint64_t filled, hashed; /* total numbers of blocks */
    bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    pthread_t thread;
};

static qn_hub_algorithm algorithm(const qn_hub_digest *d)
{
    return strlen(d->expected) == 2 * HASH_BYTES ? QN_HUB_SHA256 : QN_HUB_SHA1;
}

static qn_status begin(qn_hub_digest *d)
{
    char header[40];
    QN_TRY(qn_hub_hash_begin(algorithm(d), &d->hash));
    qn_text_buffer text = QN_APPEND_TO(header);
    qn_append(&text, "blob %" PRIu64, d->size);
    if (algorithm(d) == QN_HUB_SHA1)
        qn_hub_hash_add(d->hash, header, text.length + 1); /* git hashes the terminating zero, too */
    return QN_OK;
}

static void *hash_blocks(void *user)
{
    qn_hub_digest *d = user;
    pthread_mutex_lock(&d->lock);
    for (;;) {
        while (d->hashed == d->filled && !d->stop)
            pthread_cond_wait(&d->changed, &d->lock);
        if (d->stop)
            break;
        const size_t at = d->hashed % N_BLOCKS;
        pthread_mutex_unlock(&d->lock);
        qn_hub_hash_add(d->hash, d->ring + at * QN_HUB_BLOCK, d->lengths[at]);
        pthread_mutex_lock(&d->lock);
        d->hashed++;
        pthread_cond_broadcast(&d->changed);
    }
    pthread_mutex_unlock(&d->lock);
    return NULL;
}

qn_status qn_hub_digest_create(const char *expected, uint64_t size, qn_hub_digest **digest)
{
    qn_hub_digest *d;
    *digest = NULL;
    QN_TRY(qn_alloc(&d, 1, sizeof *d, "the hash of a file"));
    d->size = size;
    snprintf(d->expected, sizeof d->expected, "%s", expected);
    qn_status status = qn_alloc(&d->ring, N_BLOCKS, QN_HUB_BLOCK, "the hash of a file");
    if (!status)
        status = begin(d);
    if (!status) {
        pthread_mutex_init(&d->lock, NULL);
        pthread_cond_init(&d->changed, NULL);
        if (pthread_create(&d->thread, NULL, hash_blocks, d) == 0) {
            *digest = d;
            return QN_OK;
        }
        status = qn_fail(QN_ERR_MEMORY, "no thread for the hash of a file");
        qn_hub_hash_end(d->hash, NULL);
    }
    qn_free(d->ring);
    qn_free(d);
    return status;
}

/* Waits until the ring holds at most `n` blocks. The caller holds the lock. */
static void wait_for(qn_hub_digest *d, uint64_t n)
{
    while (d->filled - d->hashed > n)
        pthread_cond_wait(&d->changed, &d->lock);
}

uint8_t *qn_hub_digest_block(qn_hub_digest *d)
{
    pthread_mutex_lock(&d->lock);
    wait_for(d, N_BLOCKS - 1);
    const size_t at = d->filled % N_BLOCKS;
    pthread_mutex_unlock(&d->lock);
    return d->ring + at * QN_HUB_BLOCK;
}

void qn_hub_digest_push(qn_hub_digest *d, size_t size)
{
    pthread_mutex_lock(&d->lock);
    d->lengths[d->filled % N_BLOCKS] = size;
    d->filled++;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
}

static void drain(qn_hub_digest *d)
{
    pthread_mutex_lock(&d->lock);
    wait_for(d, 0);
    pthread_mutex_unlock(&d->lock);
}

qn_status qn_hub_digest_restart(qn_hub_digest *d)
{
    drain(d);
    qn_hub_hash_end(d->hash, NULL);
    return begin(d);
}

qn_status qn_hub_digest_finish(qn_hub_digest *d, const char *name)
{
    uint8_t bytes[HASH_BYTES];
    char found[2 * HASH_BYTES + 1];
    drain(d);
    qn_hub_hash_end(d->hash, bytes);
    d->hash = NULL;
    qn_text_buffer text = QN_APPEND_TO(found);
    qn_append_hex(&text, bytes, strlen(d->expected) / 2);
    if (strcmp(found, d->expected) == 0)
        return QN_OK;
    return qn_fail(QN_ERR_FORMAT, "%s: its %s is %s, expected %s", name,
                   algorithm(d) == QN_HUB_SHA256 ? "SHA-256" : "SHA-1 as a git blob", found, d->expected);
}

void qn_hub_digest_free(qn_hub_digest *d)
{
    if (!d)
        return;
    pthread_mutex_lock(&d->lock);
    d->stop = true;
    pthread_cond_broadcast(&d->changed);
    pthread_mutex_unlock(&d->lock);
    pthread_join(d->thread, NULL);
    qn_hub_hash_end(d->hash, NULL);
    pthread_mutex_destroy(&d->lock);
    pthread_cond_destroy(&d->changed);
    qn_free(d->ring);
    qn_free(d);
}
