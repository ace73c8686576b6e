/* The file format of a saved session. Numbers are little-endian.
 *
 *   header     struct qn_state_header
 *   tokens     [length] i32
 *   memory     the KV cache and recurrent state of `length` positions, as serialised by the device, in the format and layout
 *              given in the header. On the CPU: the regions of qn_kv_region, then the f32 arrays of qn_recurrent_array, layer
 *              by layer
 *   checksum   u64: xxHash64 of all preceding bytes
 *
 * All sizes follow from the model and the length. Unused elements are zero, so that the same tokens give the same file. */
#ifndef QN_ENGINE_STATE_FILE_H
#define QN_ENGINE_STATE_FILE_H

#include "base/status.h"

#include <stdint.h>

#define QN_STATE_MAGIC "quernSES"

enum { QN_STATE_VERSION = 3 };

struct qn_state_header {
    char magic[8];
    uint32_t version;
    uint32_t length;      /* tokens in the session */
    uint32_t capacity;    /* n_ctx of the session */
    int32_t pending;      /* token sampled but not evaluated, or -1 */
    uint64_t fingerprint; /* qn_model_fingerprint */
    char kv[16];          /* cache format, then the device's layout: " cuda", or nothing for the CPU; padded with zeros */
    uint64_t file_bytes;
    uint64_t checksum; /* xxHash64 of the preceding members, checked before memory is allocated for `length` tokens */
};

_Static_assert(sizeof(struct qn_state_header) == 64, "no padding in the file");

/* qn_session_check_target - QN_OK if qn_session_save may write to this path: no file exists, an empty one, or a session
 * file of any version. QN_ERR_INVALID for any other file. */
qn_status qn_session_check_target(const char *path);

#endif
