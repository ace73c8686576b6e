/* Renders a whole template. */
#ifndef QN_JINJA_RENDER_H
#define QN_JINJA_RENDER_H

#include "jinja/run.h"

/* qn_render_template - runs the template. *out is the text that it prints, allocated in the run's arena. */
qn_status qn_render_template(qn_run *r, qn_value *out);

#endif
