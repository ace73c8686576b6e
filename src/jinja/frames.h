/* Which names a block of a template assigns before anything else reads them there. */
#ifndef QN_JINJA_FRAMES_H
#define QN_JINJA_FRAMES_H

#include "jinja/ast.h"

/* qn_find_locals - fill in the `locals` of all bodies of a parsed template. */
qn_status qn_find_locals(struct qn_jinja *jinja);

#endif
