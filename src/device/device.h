/* The device interface: every device (CPU, CUDA) implements these tables, and the engine runs models through them only.
 *
 * A device executes the plan of one model and allocates the session memories (KV cache and recurrent state) of that
 * model. The plan outlives the device; the device outlives its memories. Threads: any thread may create and free
 * memories at any time; a memory and its checkpoints are used by one thread at a time, different ones by different
 * threads; the other calls of a device are made by one thread at a time. */
#ifndef QN_DEVICE_DEVICE_H
#define QN_DEVICE_DEVICE_H

#include "base/team.h"
#include "cache/kv_format.h"
#include "cache/sequence.h"
#include "plan/plan.h"
#include "plan/sampling.h"

typedef struct qn_device qn_device;
typedef struct qn_memory qn_memory;

/* ---- Steps ---- */

typedef struct qn_row {
    int32_t token;
    uint32_t source; /* 0: `token`; else the token that the step launched before this one samples by its request source
                        - 1 */
    uint32_t position;
    qn_memory *memory; /* the session's */
} qn_row;

/* One execution of the plan, over rows of one or many memories. The caller has checked tokens and positions. */
typedef struct qn_step {
    const qn_row *rows; /* rows of one memory are contiguous, at consecutive positions */
    size_t n_rows;
    /* The last rows of a memory may be drafted tokens to verify, with logits for each: after qn_memory_on_append the
     * caller truncates the memory to the accepted ones. There are at most qn_sequence_max_drafted of them. */
    const uint32_t *logit_rows; /* [n_logit_rows] indices of the rows whose logits are computed, ascending */
    size_t n_logit_rows;
    float *logits;               /* [n_logit_rows, n_vocab]; may be NULL with requests */
    qn_sample_request *requests; /* NULL, or [n_logit_rows]: sample a token from each logit row, and call its `check` */
} qn_step;

/* ---- Memory: the KV cache and recurrent state of a session ---- */

/* Called with a host buffer of `bytes` bytes: reads it (serialize) or fills it (deserialize). */
typedef qn_status (*qn_memory_region_fn)(void *context, void *data, size_t bytes);

typedef struct qn_memory_params {
    size_t n_ctx, n_batch;      /* n_ctx: most positions; n_batch: at most so many are appended a step */
    const qn_kv_format *format; /* of the KV cache */
} qn_memory_params;

/* After an error a memory stays usable, but its contents may be lost: the session then drops its tokens.
 * device/memory.h has what is the same on all devices. */
typedef struct qn_memory_vtable {
    void (*free)(qn_memory *memory);

    /* Bytes in use by `length` positions. */
    uint64_t (*bytes)(const qn_memory *memory, size_t length);

    /* Before a step that appends up to n > 0 rows: gets the memory for them. qn_memory_on_append follows the step, also
     * one that failed, with the length that is then held. QN_ERR_MEMORY changes nothing. */
    qn_status (*prepare)(qn_memory *memory, size_t n);

    /* The contents as session files have them (cache/saved_layout.h): region after region of the KV cache, then the
     * arrays of the recurrent layers.
     *   serialize    calls `region` to read each; unused elements within a region are zero
     *   deserialize  calls `region` to fill each; the memory was empty, and its sequence has this extent afterwards */
    qn_status (*serialize)(const qn_memory *memory, qn_memory_region_fn region, void *context);
    qn_status (*deserialize)(qn_memory *memory, const qn_extent *extent, qn_memory_region_fn region, void *context);
} qn_memory_vtable;

struct qn_memory {
    const qn_memory_vtable *vtable;
    /* The items that the memory holds. Pages and states of others may be put into it while it is empty, also beside a
     * step of others; `prepare` makes the device use them. */
    qn_sequence *sequence;
};

/* ---- Devices ---- */

/* What every device is opened with (device/registry.h). Plan and team outlive the device. */
typedef struct qn_device_params {
    const qn_plan *plan;
    qn_team *team;   /* computes on the CPU; for other devices converts weights and embeddings */
    unsigned cpu;    /* features of the CPU (base/cpu.h); for other devices embeddings and sampling on the host */
    uint64_t memory; /* bytes that memories may take; 0: half of what is available, on GPUs most of it */
    /* Gets a line for each kernel that is compiled when it is first needed; may be NULL. Must not call the device. */
    void (*on_log)(void *user, const char *line);
    void *user;
    bool deterministic; /* results of a row do not depend on the other rows of a step; on the CPU always so */
} qn_device_params;

typedef struct qn_device_vtable {
    void (*free)(qn_device *device);

    /* Allocates the workspace for steps of up to max_rows rows over sessions of up to max_positions positions. Sizes
     * only grow; a call that needs no growth costs nothing. After an error the workspace may be smaller than before:
     * the caller reserves again before it runs a step. */
    qn_status (*reserve)(qn_device *device, size_t max_rows, size_t max_positions);

    /* Executes one step, within the reserved sizes. Returns when the memories, and the logits or the sampled tokens,
     * are written. */
    qn_status (*run)(qn_device *device, const qn_step *step);

    /* The same in three calls, between which the device computes and the host is free. NULL for devices that compute on
     * the host.
     *   launch   queues the step, and sampling if no request has `prepare`. Its rows, and what it points to, stay as
     *            they are until `finish` returns; `reserve` and `run` are not called before, and what its memories hold
     *            is not dropped (qn_sequence_advance). A second step, of up to qn_device.ahead sequences, may be
     *            launched before the first is finished, if the first has neither logits nor a `check`. After an error
     *            nothing of the step is queued any more, but a part may have been computed; `finish` is not called for
     *            it
     *   sample   prepares the requests of the step that was launched last, and queues its sampling; nothing if it is
     *            queued. It comes before another `launch`, and before `finish`. After an error the step is over:
     *            `finish` is not called for it
     *   finish   waits for the step that was launched first; then logits and sampled tokens are written. No step is
     *            launched behind one with rows that the host samples (qn_sample_is_on_host) */
    qn_status (*launch)(qn_device *device, const qn_step *step);
    qn_status (*sample)(qn_device *device);
    qn_status (*finish)(qn_device *device);

    qn_status (*memory_new)(qn_device *device, const qn_memory_params *params, qn_memory **out);

    /* Copies all weight matrices of the plan whose rows begin at `data` to the device, in the layout in which it reads
     * them. *uploaded: whether there were any, and so whether the pages of the file may be released. Called for every
     * tensor before the first `reserve`. */
    qn_status (*upload)(qn_device *device, const uint8_t *data, bool *uploaded);

    /* Measures the device's memory read bandwidth, in bytes per second: the limit of decode speed. NULL for devices
     * where it depends on the number of threads. */
    qn_status (*read_rate)(qn_device *device, double *rate);
} qn_device_vtable;

struct qn_device {
    const qn_device_vtable *vtable;
    size_t piece;        /* rows of a sequence in a step end at the next multiple of it, as a position; 0: anywhere */
    char name[32];       /* "cpu", "cuda:0" */
    size_t batch;        /* default number of rows of a step */
    size_t ahead;        /* a step of so many sequences can be launched while another is in flight; 0: none */
    double idle_seconds; /* from the end of a step until the one behind it, which was finished last, was queued; 0:
                            unknown */
    size_t prompt_multiple; /* prompts are evaluated faster if cut at positions that are multiples of it; 0: anywhere */
};

/* qn_device_piece - of n > 0 rows of a sequence from `position` on, those that a step may have. */
static inline size_t qn_device_piece(const qn_device *device, size_t position, size_t n)
{
    const size_t most = device->piece ? device->piece - position % device->piece : n;
    return n < most ? n : most;
}

#endif
