/* A token's operations as segments: chains of stages (kernels/persistent/persistent_cuda.h), each a single launch, and between them the
 * operations that do not fit into a chain, which are launched one by one (operations.c). This is arithmetic with addresses and
 * shapes: it knows no driver. */
#ifndef QN_DEVICE_CUDA_PERSISTENT_H
#define QN_DEVICE_CUDA_PERSISTENT_H

#include "device/cuda/cuda.h"
#include "device/plan.h"
#include "kernels/persistent/persistent_cuda.h"

struct qn_cuda_model;
struct qn_cuda_memory;

/* How many products' parts are kept at the same time: those that are being read, those that are being written, and two that
 * wait for a later reader. */
enum { QN_CUDA_PARTIALS = 4 };

/* What chains work in, beside the plan's buffers. */
typedef struct qn_cuda_persistent_workspace {
    qn_tile_layout tiles; /* of all products in chains; of 0 bits: there are no chains */
    uint64_t x;           /* the stream of rows is here or in the plan's buffer, in turn */
    uint64_t heads, partials, maxima, barrier;
    struct {
        uint64_t data, sumsq, f16_rows;
    } gemv_partials[QN_CUDA_PARTIALS];
} qn_cuda_persistent_workspace;

typedef struct qn_cuda_segment {
    size_t op, n_ops;       /* of the plan */
    bool skip_acts;         /* a launched operation: the activations that it writes are made by the chain behind it */
    size_t phase, n_phases; /* of the token's; 0 stages: a launched operation */
} qn_cuda_segment;

/* The operations of one row up to its logits, in order. */
typedef struct qn_cuda_decode_plan {
    qn_cuda_segment *segments;
    size_t n_segments, cap_segments;
    qn_persistent_phase *phases;
    size_t n_phases, cap_phases;
    qn_cuda_buffer memory; /* the stages on the device */
    uint32_t generation;   /* of the buffers that they are for; 0: none yet */
} qn_cuda_decode_plan;

/* qn_cuda_persistent_lay_out - the room for chains of this model from `address` on, and how much that takes: no bytes, and no tiles,
 * where none of its products fits. Products and vectors have been placed. */
qn_status qn_cuda_persistent_lay_out(const struct qn_cuda_model *model, uint64_t address,
                                     qn_cuda_persistent_workspace *workspace, size_t *bytes);

/* qn_cuda_plan_decode - the segments of a token of this memory, in buffers as they are placed now; without chains, every
 * operation is a segment by itself. Replaces what the token had; its memory stays as it is. */
qn_status qn_cuda_plan_decode(const struct qn_cuda_model *model, const struct qn_cuda_memory *memory,
                              qn_cuda_decode_plan *decode_plan);

#endif
