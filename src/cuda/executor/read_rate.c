/* Measurement of a device's memory read bandwidth, the limit of decode speed. */
#include "cuda/executor/read_rate.h"

#include "base/splitmix.h"
#include "cuda/kernels/peak/peak.h"

/* A pass is several launches, so that the overhead of events is negligible. */
enum { PASSES = 5, LAUNCHES = 8, NOISE_WORDS = 1 << 13 };

static const size_t max_bytes = (size_t)1 << 30;

struct reading {
    qn_cuda *cuda;
    qn_cuda_stream stream;
    qn_cuda_buffer from, out;
    qn_cuda_event begin, end;
};

/* Fills the memory with random data, like weights, because memory filled with one value can be read faster: 64 KiB are
 * generated, then doubled by copies on the device. */
static qn_status fill(const struct reading *r)
{
    uint64_t noise[NOISE_WORDS], state = 1;
    for (size_t i = 0; i < NOISE_WORDS; i++)
        noise[i] = qn_splitmix(&state);
    QN_TRY(qn_cuda_upload(r->cuda, r->from.address, noise, sizeof noise, NULL, NULL));
    for (size_t done = sizeof noise; done < r->from.bytes; done *= 2) {
        const size_t left = r->from.bytes - done;
        QN_TRY(
            qn_cuda_copy_d2d(r->cuda, r->stream, r->from.address + done, r->from.address, done < left ? done : left));
    }
    return QN_OK;
}

static qn_status measure(struct reading *r, double *rate)
{
    size_t bytes;
    QN_TRY(qn_cuda_available_memory(r->cuda, &bytes));
    bytes = (bytes / 4 < max_bytes ? bytes / 4 : max_bytes) & ~(sizeof(uint64_t) * NOISE_WORDS - 1);
    if (bytes == 0)
        return qn_fail(QN_ERR_MEMORY, "read bandwidth: less than 256 KiB of device memory free to measure it with");
    QN_TRY(qn_cuda_alloc(r->cuda, bytes, 1, "memory to measure with", &r->from));
    QN_TRY(qn_cuda_alloc(r->cuda, 1, sizeof(uint32_t), "memory to measure with", &r->out));
    QN_TRY(qn_cuda_event_create(r->cuda, &r->begin));
    QN_TRY(qn_cuda_event_create(r->cuda, &r->end));
    QN_TRY(fill(r));
    qn_peak_read read;
    QN_TRY(qn_peak_read_plan(r->out.address, r->from.address, bytes, qn_cuda_get_info(r->cuda)->n_sms, &read));
    *rate = 0;
    for (int pass = -1; pass < PASSES; pass++) { /* the first one loads the kernel */
        double seconds;
        QN_TRY(qn_cuda_event_record(r->cuda, r->begin, r->stream));
        for (int i = 0; i < LAUNCHES; i++)
            QN_TRY(qn_cuda_launch(r->cuda, r->stream, &read.launch, &read.args));
        QN_TRY(qn_cuda_event_record(r->cuda, r->end, r->stream));
        QN_TRY(qn_cuda_event_synchronize(r->cuda, r->end));
        QN_TRY(qn_cuda_event_seconds(r->cuda, r->begin, r->end, &seconds));
        const double found = seconds > 0 ? (double)bytes * LAUNCHES / seconds : 0;
        if (pass >= 0 && found > *rate)
            *rate = found;
    }
    return QN_OK;
}

qn_status qn_cuda_read_rate(qn_cuda *cuda, qn_cuda_stream stream, double *rate)
{
    struct reading r = { .cuda = cuda, .stream = stream };
    const qn_status status = measure(&r, rate);
    qn_cuda_event_free(cuda, r.begin);
    qn_cuda_event_free(cuda, r.end);
    qn_cuda_free(cuda, &r.from);
    qn_cuda_free(cuda, &r.out);
    return status;
}
