/* Pool memory as reserved address space, committed granule by granule. */
#include "cache/host_memory.h"

#include "base/address_space.h"

static qn_status reserve(void *context, size_t bytes, uint64_t *address)
{
    void *at;
    (void)context;
    QN_TRY(qn_address_space_reserve(bytes, &at));
    *address = (uint64_t)(uintptr_t)at;
    return QN_OK;
}

static void unreserve(void *context, uint64_t address, size_t bytes)
{
    (void)context;
    qn_address_space_free((void *)(uintptr_t)address, bytes);
}

static qn_status commit(void *context, uint64_t address)
{
    (void)context;
    return qn_address_space_commit((void *)(uintptr_t)address);
}

static void release(void *context, uint64_t address)
{
    (void)context;
    qn_address_space_release((void *)(uintptr_t)address);
}

qn_pool_memory qn_host_pool_memory(void)
{
    return (qn_pool_memory){
        .granule = QN_COMMIT_GRANULE, .reserve = reserve, .unreserve = unreserve, .commit = commit, .release = release
    };
}
