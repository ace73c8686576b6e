/* Mapped files, in a list that a signal handler can read: entries are never freed, only reused, and need no lock. */
#include "base/mapping.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* An entry of the list: a mapping, or free for the next one. */
struct qn_mapping {
    atomic_bool in_use;
    atomic_bool is_lost;
    /* An entry with end 0 has no addresses. `begin` is written before `end` when it gets some, and after `end` when
     * it loses them. */
    atomic_uintptr_t begin, end;
    uintptr_t page_bytes;
    struct qn_mapping *next; /* constant once the entry is in the list */
};

static _Atomic(qn_mapping *) list;

/* Takes an entry: a free one of the list, or a new one. NULL without memory. */
static qn_mapping *take_entry(void)
{
    for (qn_mapping *m = atomic_load(&list); m; m = m->next) {
        bool expected = false;
        if (atomic_compare_exchange_strong(&m->in_use, &expected, true))
            return m;
    }
    qn_mapping *m = calloc(1, sizeof *m);
    if (!m)
        return NULL;
    atomic_store(&m->in_use, true);
    m->page_bytes = (uintptr_t)sysconf(_SC_PAGESIZE);
    m->next = atomic_load(&list);
    while (!atomic_compare_exchange_weak(&list, &m->next, m))
        ;
    return m;
}

qn_status qn_mapping_create(const char *path, int fd, size_t size, qn_mapping **out)
{
    *out = NULL;
    qn_mapping *m = take_entry();
    if (!m)
        return qn_fail(QN_ERR_MEMORY, "%s: no memory to map it", path);
    void *at = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (at == MAP_FAILED) {
        atomic_store(&m->in_use, false);
        return qn_fail(QN_ERR_IO, "%s: cannot map its %zu bytes: %s", path, size, strerror(errno));
    }
    atomic_store(&m->is_lost, false);
    atomic_store(&m->begin, (uintptr_t)at);
    atomic_store(&m->end, (uintptr_t)at + size);
    *out = m;
    return QN_OK;
}

void qn_mapping_free(qn_mapping *m)
{
    if (!m)
        return;
    const uintptr_t begin = atomic_load(&m->begin), end = atomic_load(&m->end);
    atomic_store(&m->end, 0); /* before the addresses can become those of another mapping */
    atomic_store(&m->begin, 0);
    munmap((void *)begin, end - begin);
    atomic_store(&m->in_use, false);
}

const uint8_t *qn_mapping_data(const qn_mapping *m)
{
    return (const uint8_t *)atomic_load(&m->begin);
}

bool qn_mapping_is_lost(const qn_mapping *m)
{
    return atomic_load(&m->is_lost);
}

/* The end of the entry's addresses if `address` is one of them, else 0. An entry that changes meanwhile is not the
 * reader's, whose file stays mapped while it reads. `begin` and `end` belong to one mapping if `begin` is still the
 * same after `end` was read. */
static uintptr_t end_behind(const qn_mapping *m, uintptr_t address)
{
    const uintptr_t begin = atomic_load(&m->begin), end = atomic_load(&m->end);
    return begin && begin <= address && address < end && atomic_load(&m->begin) == begin ? end : 0;
}

bool qn_mapping_replace(void *address)
{
    const int saved_errno = errno;
    bool replaced = false;
    for (qn_mapping *m = atomic_load(&list); m && !replaced; m = m->next) {
        const uintptr_t page = (uintptr_t)address / m->page_bytes * m->page_bytes,
                        end = end_behind(m, (uintptr_t)address);
        if (!end)
            continue;
        atomic_store(&m->is_lost, true); /* before anybody can read the zeros */
        replaced =
            mmap((void *)page, end - page, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED;
    }
    errno = saved_errno;
    return replaced;
}

void qn_mapping_drop(const void *begin, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)begin;
    const uintptr_t first = (at + page - 1) / page * page, end = (at + bytes) / page * page;
    if (first < end)
        (void)madvise((void *)first, end - first, MADV_DONTNEED); /* fails for locked pages, which is correct */
}
