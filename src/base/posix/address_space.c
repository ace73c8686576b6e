/* Reserved address space by mmap and mprotect. */
#include "base/address_space.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

qn_status qn_address_space_reserve(size_t bytes, void **address)
{
    const size_t more = QN_COMMIT_GRANULE; /* to align the range */
    *address = NULL;
    if (bytes > SIZE_MAX - more)
        return qn_fail(QN_ERR_MEMORY, "%zu bytes of addresses cannot be reserved", bytes);
    char *at = mmap(NULL, bytes + more, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return qn_fail(QN_ERR_MEMORY, "%zu MiB of addresses cannot be reserved: %s", bytes >> 20, strerror(errno));
    char *const aligned = at + (more - (uintptr_t)at % more) % more;
    if (aligned > at)
        munmap(at, (size_t)(aligned - at));
    if (at + more > aligned)
        munmap(aligned + bytes, (size_t)(at + more - aligned));
    *address = aligned;
    return QN_OK;
}

void qn_address_space_free(void *address, size_t bytes)
{
    if (address)
        munmap(address, bytes);
}

qn_status qn_address_space_commit(void *granule)
{
    if (mprotect(granule, QN_COMMIT_GRANULE, PROT_READ | PROT_WRITE) != 0)
        return qn_fail(QN_ERR_MEMORY, "%d MiB of memory cannot be committed: %s", QN_COMMIT_GRANULE >> 20,
                       strerror(errno));
    qn_advise_huge(granule, QN_COMMIT_GRANULE);
    return QN_OK;
}

void qn_address_space_release(void *granule)
{
    /* A new mapping replaces the old one: its memory is freed and no longer counts where the system limits
     * commitments. */
    if (mmap(granule, QN_COMMIT_GRANULE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0) ==
        MAP_FAILED)
        (void)madvise(granule, QN_COMMIT_GRANULE, MADV_DONTNEED); /* too many mappings */
}

/* Advice for the whole pages of a range. */
static void advise(void *memory, size_t bytes, int advice)
{
    const uintptr_t page = qn_page_bytes(), begin = ((uintptr_t)memory + page - 1) / page * page;
    const uintptr_t end = ((uintptr_t)memory + bytes) / page * page;
    if (begin < end)
        (void)madvise((void *)begin, end - begin, advice);
}

void qn_advise_huge(void *memory, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    advise(memory, bytes, MADV_HUGEPAGE);
#else
    (void)memory, (void)bytes, (void)advise;
#endif
}

void qn_advise_small(void *memory, size_t bytes)
{
#ifdef MADV_NOHUGEPAGE
    advise(memory, bytes, MADV_NOHUGEPAGE);
#else
    (void)memory, (void)bytes, (void)advise;
#endif
}

size_t qn_page_bytes(void)
{
    return (size_t)sysconf(_SC_PAGESIZE);
}
