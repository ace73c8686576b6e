/* Which names a block of a template assigns before anything else reads them there. */
#ifndef QN_TEXT_JINJA_FRAMES_H
#define QN_TEXT_JINJA_FRAMES_H

#include "text/jinja/ast.h"

/* qn_find_locals - fill in the `locals` of all bodies of a parsed template. */
qn_status qn_find_locals(struct qn_jinja *jinja);

#endif
