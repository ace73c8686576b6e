/* The file format of a saved session. Numbers are little-endian.
 *
 *   header     struct qn_state_header
 *   tokens     [length] i32
 *   memory     the KV cache and recurrent state of `length` positions (cache/saved_layout.h). A GPU converts exactly,
 *              but that it rounds v' and keys of an open chunk to the fp16 that it keeps them in
 *   checksum   u64: xxHash64 of all preceding bytes
 *
 * All sizes follow from the model and the header. Unused elements are zero, so that the same tokens in the same steps
 * give the same file on the same device.
 *
 * Recurrent layers. The open chunk has the rows from state_position to length; it may be empty. Of the inputs of the
 * convolution it has those from position shortest - (taps - 1) on, and none before state_position, which are the
 * history. A GPU keeps fewer of them than rows of the open chunk: `shortest` is the shortest length that the session
 * can then be truncated to by dropping rows.
 *
 * A file in a format that sessions of its model no longer get (qn_model_kv_format) is read for its tokens, which are
 * evaluated again. */
#ifndef QN_ENGINE_STATE_FILE_H
#define QN_ENGINE_STATE_FILE_H

#include "base/status.h"

#include <stdint.h>

#define QN_STATE_MAGIC "quernSES"

enum { QN_STATE_VERSION = 4 };

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
    uint32_t zero;
    uint64_t checksum; /* xxHash64 of the preceding members, checked before memory is allocated for `length` tokens */
};

_Static_assert(sizeof(struct qn_state_header) == 80, "no padding in the file");

/* qn_session_check_target - QN_OK if qn_session_save may write to this path: no file exists, an empty one, or a session
 * file of any version. QN_ERR_INVALID for any other file. */
qn_status qn_session_check_target(const char *path);

#endif
