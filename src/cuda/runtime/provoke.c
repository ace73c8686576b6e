/* Poison as memsets, delays as a kernel. */
#include "cuda/runtime/provoke.h"

#include "cuda/runtime/context.h"
#include "cuda/kernels/spin/spin.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xff, POISON_OF_CACHES = 0x7b, MOST_US = 100000 };

/* ---- Variables ---- */

static qn_status read_poison(bool *poisons)
{
    const char *text = getenv("QN_CUDA_POISON");
    *poisons = text && !strcmp(text, "1");
    return !text || !*text || *poisons || !strcmp(text, "0")
               ? QN_OK
               : qn_fail(QN_ERR_INVALID, "QN_CUDA_POISON is '%.32s', expected 1 or 0", text);
}

static qn_status read_delay(uint32_t *us)
{
    const char *text = getenv("QN_CUDA_DELAY");
    char *end;
    *us = 0;
    if (!text || !*text)
        return QN_OK;
    errno = 0;
    const long value = strtol(text, &end, 10);
    if (errno || *end || end == text || value < 0 || value > MOST_US)
        return qn_fail(QN_ERR_INVALID, "QN_CUDA_DELAY is '%.32s', expected microseconds, 0 to %d", text, MOST_US);
    *us = (uint32_t)value;
    return QN_OK;
}

qn_status qn_cuda_provoke_read(qn_cuda_provoke *provoke)
{
    QN_TRY(read_poison(&provoke->poisons));
    return read_delay(&provoke->delay_us);
}

bool qn_cuda_poisons(const qn_cuda *device)
{
    return device->provoke.poisons;
}

/* ---- Delays ---- */

qn_status qn_cuda_delay(qn_cuda *device, qn_cuda_stream stream, bool pdl)
{
    enum { NS_OF_US = 1000 };
    static atomic_uint_fast64_t n_delays;
    const uint64_t golden = 0x9e3779b97f4a7c15;
    if (!device->provoke.delay_us)
        return QN_OK;
    const qn_spin_args args = { .seed = golden * (atomic_fetch_add(&n_delays, 1) + 1),
                                .max_ns = device->provoke.delay_us * NS_OF_US };
    qn_launch launch;
    qn_spin_plan(pdl, &launch);
    return qn_cuda_launch_now(device, stream, &launch, &args);
}

/* ---- Poison ---- */

static qn_status fill(qn_cuda *device, qn_cuda_stream stream, uint64_t address, uint8_t value, size_t bytes)
{
    QN_TRY(qn_cuda_make_current(device));
    return bytes ? QN_CU(device->driver, cuMemsetD8Async, address, value, bytes, stream) : QN_OK;
}

qn_status qn_cuda_poison(qn_cuda *device, qn_cuda_stream stream, uint64_t address, size_t bytes)
{
    return device->provoke.poisons ? fill(device, stream, address, POISON, bytes) : QN_OK;
}

static qn_status fill_now(qn_cuda *device, qn_cuda_stream stream, uint64_t address, uint8_t value, size_t bytes)
{
    QN_TRY(fill(device, stream, address, value, bytes));
    return QN_CU(device->driver, cuStreamSynchronize, stream);
}

/* Uses the device's default stream, which waits for no other stream. */
qn_status qn_cuda_poison_now(qn_cuda *device, uint64_t address, size_t bytes)
{
    return device->provoke.poisons ? fill_now(device, NULL, address, POISON, bytes) : QN_OK;
}

qn_status qn_cuda_poison_cache(qn_cuda *device, qn_cuda_stream stream, uint64_t address, size_t bytes)
{
    return device->provoke.poisons ? fill_now(device, stream, address, POISON_OF_CACHES, bytes) : QN_OK;
}

void qn_cuda_poison_host(const qn_cuda *device, void *memory, size_t bytes)
{
    if (device->provoke.poisons && memory)
        memset(memory, POISON, bytes);
}
