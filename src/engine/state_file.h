/* The file format of a saved session. Numbers are little-endian.
 *
 *   header     struct qn_state_header
 *   tokens     [length] i32; -1 for an embedding
 *   rows       [n_rows] qn_session_row: the embeddings, and tokens at positions of their own (engine/rows.h)
 *   memory     the KV cache and recurrent state of `length` positions (cache/saved_layout.h). A GPU saves what it has
 *              exactly. From a file of the CPU it rounds what it keeps in fewer bits: states (gpu/state_planes.h),
 *              and of the open chunk keys and corrected values v'
 *   head       in version 6: struct qn_state_head, then the draft head's keys and values, in the order of the KV
 *              cache, and the normed hidden state of the last row, zeros if it is not known.
 *              Positions without pairs (engine/spec/head_use.h) are zeros. A model with another head, or without one,
 *              skips it; one with a head reads files without it, and has worse drafts for a while
 *   checksum   u64: xxHash64 of all preceding bytes
 *
 * All sizes follow from the model and the header. Unused elements are zero, so that the same tokens in the same steps
 * give the same file on the same device.
 *
 * Recurrent layers. The open chunk has the rows from state_position to length; it may be empty. The convolution's
 * inputs before state_position are an array of their own, the history. Of the later inputs the file has those from
 * position shortest - (taps - 1) on: a GPU keeps the inputs of the newest rows only. `shortest` is the shortest length
 * above 0 that the session can be truncated to by dropping rows.
 *
 * A file in a format that sessions of its model no longer get (qn_model_kv_format) is read for its tokens, which are
 * evaluated again. */
#ifndef QN_ENGINE_STATE_FILE_H
#define QN_ENGINE_STATE_FILE_H

#include "base/status.h"
#include "plan/rope.h"

#include <stdint.h>

#define QN_STATE_MAGIC "quernSES"

/* On the CPU sessions of a model with a draft head have version 6, with its keys and values. Others have version 4
 * without a list of rows, and 5 with one: libraries that do not know the list, or the head, reject them. */
enum { QN_STATE_VERSION = 4, QN_STATE_VERSION_ROWS = 5, QN_STATE_VERSION_HEAD = 6 };

/* A row that is an embedding, or a token whose position does not follow the row before it (engine/rows.h). Also its
 * layout in saved sessions. */
typedef struct qn_session_row {
    uint32_t index;
    uint32_t components[QN_ROPE_COMPONENTS]; /* of its position */
    uint32_t zero;
    uint64_t id; /* of an embedding: qn_rows.ids; 0 for a token */
} qn_session_row;

struct qn_state_header {
    char magic[8];
    uint32_t version;
    uint32_t length;      /* tokens in the session */
    uint32_t capacity;    /* n_ctx of the session */
    int32_t pending;      /* token sampled but not evaluated, or -1 */
    uint64_t fingerprint; /* qn_model_fingerprint */
    char kv[16];          /* cache format, padded with zeros */
    uint64_t file_bytes;
    /* As in qn_extent (cache/sequence.h), 0 without recurrent layers. */
    uint32_t state_position, shortest, has_last_page;
    uint32_t n_rows;   /* 0 in version 4 */
    uint64_t checksum; /* xxHash64 of the preceding members, checked before memory is allocated for `length` tokens */
};

struct qn_state_head {
    uint64_t fingerprint; /* qn_model_head_fingerprint */
    uint64_t bytes;       /* that follow */
};

_Static_assert(sizeof(struct qn_state_header) == 80 && sizeof(qn_session_row) == 32, "no padding in the file");

/* qn_session_check_target - QN_OK if qn_session_save may write to this path: no file exists, an empty one, or a session
 * file of any version. QN_ERR_INVALID for any other file. */
qn_status qn_session_check_target(const char *path);

#endif
