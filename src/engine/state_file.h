/* The layout of a saved session. All numbers are little-endian.
 *
 *   header     struct qn_state_header
 *   tokens     [length] i32
 *   memory     what the device's memory gives for `length` positions, in the format and layout that the header names. The CPU's
 *              are the parts of qn_kv_part, then those of qn_recurrent_part, layer by layer, f32
 *   checksum   u64: xxHash64 of everything before it
 *
 * The sizes follow from the model and the length. What a session does not hold is zero, so that the same tokens give the same
 * file. */
#ifndef QN_ENGINE_STATE_FILE_H
#define QN_ENGINE_STATE_FILE_H

#include "base/status.h"

#include <stdint.h>

#define QN_STATE_MAGIC "quernSES"

enum { QN_STATE_VERSION = 3 };

struct qn_state_header {
    char magic[8];
    uint32_t version;
    uint32_t length;   /* tokens held */
    uint32_t capacity; /* tokens that it could hold */
    int32_t pending;   /* generated and not evaluated, or -1 */
    uint64_t fingerprint;
    char kv[16]; /* cache format, and " cuda" where a GPU has laid it out; padded with zeros */
    uint64_t file_bytes;
    uint64_t checksum; /* xxHash64 of the header before it: a length must be right before memory is made for it */
};

_Static_assert(sizeof(struct qn_state_header) == 64, "no padding in the file");

/* qn_session_check_target - whether qn_session_save would write to this path: there is nothing, an empty file, or a session
 * file of any version. QN_ERR_INVALID for any other file, which saving would destroy. */
qn_status qn_session_check_target(const char *path);

#endif
