/* Properties of Unicode's characters, as regular expressions name them: \p{...}. */
#ifndef QN_TEXT_UNICODE_PROPERTY_H
#define QN_TEXT_UNICODE_PROPERTY_H

#include "quern/status.h"

#include <stddef.h>
#include <stdint.h>

typedef struct qn_code_range {
    uint32_t lo, hi;
} qn_code_range;

/* qn_unicode_property - the code points with a property.
 *
 *   name     [length] as ECMAScript writes it between braces: a general category (L, Lu, Uppercase_Letter,
 *            General_Category=Lu, gc=Lu), a script (Script=Greek, sc=Grek, Script_Extensions=Greek, scx=Greek; also
 *            Greek alone), or a binary property (Alphabetic, White_Space, Emoji, ...). Case and underscores are ignored
 *   ranges   [n] ascending and apart; they are kept until the process ends. NULL: there is no such property
 *
 * The first use of a property takes some milliseconds. Threads: safe. QN_ERR_MEMORY without memory. */
qn_status qn_unicode_property(const char *name, size_t length, const qn_code_range **ranges, size_t *n);

#endif
