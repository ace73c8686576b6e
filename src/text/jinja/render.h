/* Rendering a whole template. */
#ifndef QN_TEXT_JINJA_RENDER_H
#define QN_TEXT_JINJA_RENDER_H

#include "text/jinja/run.h"

/* qn_render_template - what the template prints, in the run's arena. */
qn_status qn_render_template(qn_run *r, qn_value *out);

#endif
