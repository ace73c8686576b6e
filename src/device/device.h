/* What runs models: the seam that every device fills, and through which the engine uses whichever it was given.
 *
 * A device runs the plan of one model, which outlives it, and makes the memories of its sessions, which it outlives. Any thread
 * may create and free memories; all else that a device is asked to do is asked by one thread at a time. */
#ifndef QN_DEVICE_DEVICE_H
#define QN_DEVICE_DEVICE_H

#include "device/plan.h"

typedef struct qn_device qn_device;
typedef struct qn_memory qn_memory;
typedef struct qn_memory_checkpoint qn_memory_checkpoint;

/* Told of some bytes in the device's order: copies them elsewhere, or fills them. */
typedef qn_status (*qn_memory_region_fn)(void *context, void *data, size_t bytes);

/* ---- Memory: what a session remembers ---- */

typedef struct qn_memory_params {
    size_t n_layers, n_ctx, n_batch;              /* positions, and how many a step appends at most */
    const qn_aura_codec *key_codec, *value_codec; /* which outlive it; both NULL: halves */
} qn_memory_params;

/* Failures leave a memory whole, but not always with what it held: sessions are then told to forget. */
typedef struct qn_memory_vtable {
    void (*free)(qn_memory *memory);

    /* Bytes that `length` positions take. */
    uint64_t (*bytes)(const qn_memory *memory, size_t length);

    /* To how many of its last lengths a memory with recurrent layers that holds `held` tokens can go back by forgetting, its
     * own among them: 0 for none held. */
    size_t (*open_tokens)(size_t held);

    /* The cache, which is all there is without recurrent layers. appended: it has become that of `length` positions. reach: the
     * greatest length, not above `length`, to which it can go back with nothing to be computed again. cut: goes back there. */
    void (*on_append)(qn_memory *memory, size_t length);
    size_t (*rewind_length)(const qn_memory *memory, size_t length);
    void (*truncate)(qn_memory *memory, size_t length);

    /* Recurrent layers as they are before the first token. */
    qn_status (*reset)(qn_memory *memory);

    /* The contents of one, of `length` positions, into another with the same parameters. */
    qn_status (*copy)(qn_memory *to, const qn_memory *from, size_t length);

    /* A mark holds what later tokens would overwrite, for memories with recurrent layers alone. keep: what memory of `held` > 0
     * tokens is; take: makes it so again, but for positions of the cache that are still there. */
    qn_status (*checkpoint_new)(const qn_memory *memory, qn_memory_checkpoint **checkpoint);
    void (*checkpoint_free)(qn_memory_checkpoint *checkpoint);
    qn_status (*checkpoint_save)(qn_memory_checkpoint *checkpoint, const qn_memory *memory, size_t held);
    qn_status (*checkpoint_restore)(const qn_memory_checkpoint *checkpoint, qn_memory *memory, size_t held);
    qn_status (*checkpoint_copy)(qn_memory_checkpoint *to, const qn_memory_checkpoint *from, const qn_memory *memory);

    /* All that `length` positions are, piece by piece, the same pieces for any capacity: read by `piece`, with zeros in place
     * of what is not held; or filled by it, as memory that was empty becomes that of these positions. count: their bytes. */
    qn_status (*serialize)(const qn_memory *memory, size_t length, qn_memory_region_fn region, void *context);
    qn_status (*deserialize)(qn_memory *memory, size_t length, qn_memory_region_fn region, void *context);
    uint64_t (*serialized_bytes)(const qn_memory *memory, size_t length);
} qn_memory_vtable;

struct qn_memory {
    const qn_memory_vtable *vtable;
    const qn_kv_view *cache;             /* on the CPU; NULL elsewhere */
    const qn_recurrent_layer *recurrent; /* the same */
};

/* ---- Devices ---- */

typedef struct qn_device_vtable {
    void (*free)(qn_device *device);

    /* Room for steps of up to max_rows rows over sessions of up to max_positions positions. Sizes only grow, and asking for no
     * more than there is costs nothing. After a failure there may be less than before: whoever runs asks again. */
    qn_status (*reserve)(qn_device *device, size_t max_rows, size_t max_positions);

    /* One step, for which there is room. Returns when memories, and logits or the choice, are written. */
    qn_status (*run)(qn_device *device, const qn_step *step);

    qn_status (*memory_new)(qn_device *device, const qn_memory_params *params, qn_memory **out);

    /* Weights [data, ...) of the plan's products go to where the device reads them; *taken says whether there were any, so that
     * they need not stay where they are. Before the first step, for all there are. NULL where a device reads them in place. */
    qn_status (*upload)(qn_device *device, const uint8_t *data, bool *uploaded);

    /* Bytes a second that the device reads of its memory, measured now: what decoding is held against. NULL where that depends
     * on how many threads read. */
    qn_status (*read_rate)(qn_device *device, double *rate);
} qn_device_vtable;

struct qn_device {
    const qn_device_vtable *vtable;
    const char *layout; /* of what memories read and fill: "" for the CPU's; files of sessions name it */
    char name[32];      /* "cpu", "cuda:0" */
    size_t batch;       /* rows that a step of a session takes where its user does not say */
};

#endif
