/* Finds the names that a block of a template assigns before it reads them. */
#ifndef QN_JINJA_FRAMES_H
#define QN_JINJA_FRAMES_H

#include "jinja/ast.h"

/* qn_find_locals - fills in the `locals` of all bodies of a parsed template. */
qn_status qn_find_locals(struct qn_jinja *jinja);

#endif
