/* The device interface: every device (CPU, CUDA) implements these tables, and the engine runs models only through them.
 *
 * A device executes the plan of one model and allocates the session memories (KV cache and recurrent state) of that
 * model. The plan must outlive the device, and the device its memories. Threads: any thread may create and free
 * memories at any time. One thread at a time may use a memory and its checkpoints; different threads may use different
 * memories. One thread at a time may make the other calls of a device: the engine holds a lock of the model for them
 * (qn_model_lock). */
#ifndef QN_DEVICE_DEVICE_H
#define QN_DEVICE_DEVICE_H

#include "base/team.h"
#include "cache/kv_format.h"
#include "cache/sequence.h"
#include "device/profile.h"
#include "plan/plan.h"
#include "plan/sampling.h"

typedef struct qn_device qn_device;
typedef struct qn_memory qn_memory;

/* ---- Steps ---- */

/* What a row may have besides a token (qn_device.row_features). */
enum { QN_ROW_EMBEDDING = 1, QN_ROW_POSITION = 2, QN_ROW_HIDDEN = 4 };

typedef struct qn_row {
    int32_t token;     /* not read if the row has an embedding */
    uint32_t source;   /* 0: the row's token is `token`; i + 1: the token that request i of the previously launched step
                          samples */
    uint32_t position; /* in the sequence: where the row's keys and values are stored */
    /* Rope rotates by components of a position: component c is position + rope_offsets[c], modulo 2^32. Zeros for text;
     * text after an image, whose rows share positions, has one number in all of them. QN_ROW_POSITION */
    uint32_t rope_offsets[QN_ROPE_COMPONENTS];
    /* NULL, or what EMBED or INPUT writes for this row: [width of their buffer]. Owned by the caller, who keeps it
     * unchanged until the step has ended. With INPUT every row has one. QN_ROW_EMBEDDING */
    const float *embedding;
    /* NULL, or [width of the residual stream] written: the row's hidden state, before and after the norm of
     * LOGIT_NORM, whether or not its logits are computed. Owned by the caller. QN_ROW_HIDDEN */
    float *hidden, *normed;
    /* The row, and other rows of its memory, which are consecutive, have the bits that steps of one row would give
     * them. Only for rows with logits, on devices with a `piece`, where other rows differ from those. */
    bool is_single;
    qn_memory *memory; /* the session's */
} qn_row;

/* One execution of the plan, over rows of one or more memories. A draft step runs the operations of the draft head
 * (plan/plan.h): one row of each memory, at its sequence's length, with the token there; then perhaps in further steps
 * at the positions after it, each with the token that follows. Positions are reserved (qn_memory_vtable.prepare), and
 * the caller takes that back: the sequence stays as it is. The caller has checked tokens, positions, and that the
 * device takes what the rows have (device/rows.h). */
typedef struct qn_step {
    bool is_draft; /* only on devices with `drafts` */
    bool is_chain; /* a draft step of the chain: the logits of each row are what its token adds to those after it */
    bool without_pairs; /* a step of the model stores zeros as the draft head's keys and values of its rows */
    const qn_row *rows; /* rows of one memory are contiguous, at consecutive positions */
    size_t n_rows;
    /* Any rows, several of one memory too. The last rows of a memory may be drafted tokens to verify, with logits for
     * each of them: after qn_memory_on_append the caller truncates the memory to the accepted rows. There are at most
     * qn_sequence_max_drafted drafted rows. */
    const uint32_t *logit_rows; /* [n_logit_rows] indices of the rows whose logits are computed, ascending */
    size_t n_logit_rows;
    float *logits;               /* [n_logit_rows, n_vocab]; may be NULL with requests */
    qn_sample_request *requests; /* NULL, or [n_logit_rows]: the device samples a token from each logit row and calls
                                    `check` */
} qn_step;

/* ---- Memory: the KV cache and recurrent state of a session ---- */

/* Called with a host buffer of `bytes` bytes, valid during the call: reads it (serialize) or fills it (deserialize). On
 * the calling thread. An error ends the operation with its status. */
typedef qn_status (*qn_memory_region_fn)(void *context, void *data, size_t bytes);

typedef struct qn_memory_params {
    size_t n_ctx, n_batch;      /* limits of positions, and of positions appended in a step */
    const qn_kv_format *format; /* format of the KV cache */
} qn_memory_params;

/* After an error a memory stays usable, but its contents may be lost: the session then drops its tokens.
 * device/memory.h has the functions that are the same on all devices. */
typedef struct qn_memory_vtable {
    void (*free)(qn_memory *memory);

    /* Returns the bytes that `length` positions use. */
    uint64_t (*bytes)(const qn_memory *memory, size_t length);

    /* Takes memory for a step that appends up to n > 0 rows. After the step, even a failed one, the caller calls
     * qn_memory_on_append with the resulting length. QN_ERR_MEMORY changes nothing. */
    qn_status (*prepare)(qn_memory *memory, size_t n);

    /* The contents in the order of session files (cache/saved_layout.h): the KV cache region by region, then the
     * recurrent layers' arrays.
     *   serialize    calls `region` to read each; unused elements within a region are zero
     *   deserialize  calls `region` to fill each. The memory must be empty; its sequence gets this extent */
    qn_status (*serialize)(const qn_memory *memory, qn_memory_region_fn region, void *context);
    qn_status (*deserialize)(qn_memory *memory, const qn_extent *extent, qn_memory_region_fn region, void *context);

    /* The same for what the draft head keeps: its keys and values, then the hidden state of the last row. Nothing if
     * there is no head; NULL on devices without `drafts`.
     *   deserialize_head  after `deserialize`, which sets zeros */
    qn_status (*serialize_head)(const qn_memory *memory, qn_memory_region_fn region, void *context);
    qn_status (*deserialize_head)(qn_memory *memory, qn_memory_region_fn region, void *context);
} qn_memory_vtable;

/* The memory of a session or of a scheduler's request. Used by one thread at a time. */
struct qn_memory {
    const qn_memory_vtable *vtable;
    /* The memory's items. While it is empty, pages and states of other sequences may be put into it, even during a step
     * of other memories; `prepare` makes the device use them. */
    qn_sequence *sequence;
};

/* ---- Devices ---- */

/* Parameters of every device (device/registry.h). Plan and team must outlive the device. */
typedef struct qn_device_params {
    const qn_plan *plan;
    qn_team *team;   /* runs the CPU's steps; for other devices, converts weights and embeddings */
    unsigned cpu;    /* CPU features (base/cpu.h); for other devices, used for embeddings and sampling on the host */
    uint64_t memory; /* limit of the bytes of memories; 0: half of the available memory, on GPUs most of it */
    double memory_share; /* on the CPU and on CUDA devices, the part of this limit that is used; 0: all of it */
    bool shares_team;    /* another device runs the steps that the team's pace is measured by (base/team.h) */
    /* Called with a line of text for each kernel that is compiled when it is first needed, on any thread, but by one
     * thread at a time; may be NULL. Must not call the device. */
    void (*on_log)(void *user, const char *line);
    void *user;
    bool must_draft;    /* "auto" takes only devices on which draft models run (qn_backend.drafts) */
    bool deterministic; /* results of a row do not depend on the other rows of a step; always true on the CPU */
} qn_device_params;

typedef struct qn_device_vtable {
    void (*free)(qn_device *device);

    /* Allocates the workspace for steps of up to max_rows rows over sessions of up to max_positions positions. Sizes
     * only grow; a call that needs no growth costs nothing. After an error the workspace may be smaller than before, so
     * the caller must reserve again before it runs a step. */
    qn_status (*reserve)(qn_device *device, size_t max_rows, size_t max_positions);

    /* Executes one step within the reserved sizes. On return the memories, and the logits or sampled tokens, are
     * written. */
    qn_status (*run)(qn_device *device, const qn_step *step);

    /* `run` in three calls; between them the device computes and the host is free. NULL for devices that compute on the
     * host.
     *   launch   queues the step, and its sampling if no request has `prepare`. The step's rows, and everything that
     *            it points to, must not change until `finish` returns. Until then `reserve` and `run` must not be
     *            called, and items of its memories must not be dropped (qn_sequence_advance). A second step, of up to
     *            qn_device.ahead sequences, may be launched before the first is finished if the first has neither
     *            logits nor a `check`, and no rows that the host samples (qn_sample_is_on_host). After an error
     *            nothing of the step is queued, but a part may have been computed; `finish` must not be called for it
     *   sample   prepares the requests of the step launched last, and queues its sampling; does nothing if that is
     *            already queued, and need not be called if no request has `prepare`. Call it before another `launch`,
     *            and before `finish`. After an error the step is over: `finish` must not be called for it
     *   finish   waits for the step launched first; its logits and sampled tokens are then written */
    qn_status (*launch)(qn_device *device, const qn_step *step);
    qn_status (*sample)(qn_device *device);
    qn_status (*finish)(qn_device *device);

    /* Creates an empty memory; free it with its vtable->free, before the device. From any thread. */
    qn_status (*memory_new)(qn_device *device, const qn_memory_params *params, qn_memory **out);

    /* Copies all weight matrices of the plan whose rows begin at `data` to the device, in the layout that its kernels
     * read. *uploaded: whether there were any; if so, the file's pages may be released. Called for every tensor before
     * the first `reserve`. */
    qn_status (*upload)(qn_device *device, const uint8_t *data, bool *uploaded);

    /* Measures the device's memory read bandwidth, in bytes per second: the limit of decode speed. NULL for devices
     * whose bandwidth depends on the number of threads. */
    qn_status (*read_rate)(qn_device *device, double *rate);

    /* Measure where the time of steps goes; NULL for devices that cannot. `profile_start` begins anew, `profile_stop`
     * ends and adds to the report what was measured since; without a start it adds nothing. */
    qn_status (*profile_start)(qn_device *device);
    void (*profile_stop)(qn_device *device, qn_profile *report);
} qn_device_vtable;

/* A device with the plan of a model. Members are constant after it was opened, but `ahead`, which `reserve` sets, and
 * idle_seconds, which `finish` sets. */
struct qn_device {
    const qn_device_vtable *vtable;
    unsigned row_features; /* QN_ROW_*: what rows may have besides tokens */
    size_t piece;  /* a sequence's rows in a step end at the next position that is a multiple of this; 0: anywhere */
    char name[32]; /* "cpu", "cuda:0" */
    size_t batch;  /* default number of rows of a step */
    bool drafts;   /* the plan has a draft head, and the device runs draft steps */
    size_t ahead;  /* limit of sequences in a step that is launched while another is in flight; 0: none */
    double idle_seconds;    /* the device's idle time between the step finished last and the one before; 0: unknown */
    size_t prompt_multiple; /* prompts cut at positions that are multiples of this are evaluated faster; 0: anywhere */
};

/* qn_device_piece - returns how many of n > 0 rows of a sequence, from `position` on, may be in one step. */
static inline size_t qn_device_piece(const qn_device *device, size_t position, size_t n)
{
    const size_t most = device->piece ? device->piece - position % device->piece : n;
    return n < most ? n : most;
}

#endif
