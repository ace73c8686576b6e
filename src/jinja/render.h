/* Rendering a whole template. */
#ifndef QN_JINJA_RENDER_H
#define QN_JINJA_RENDER_H

#include "jinja/run.h"

/* qn_render_template - what the template prints, in the run's arena. */
qn_status qn_render_template(qn_run *r, qn_value *out);

#endif
