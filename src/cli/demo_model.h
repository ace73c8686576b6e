/* The path of the demo model, which run and chat load when no model is named. */
#ifndef QN_CLI_DEMO_MODEL_H
#define QN_CLI_DEMO_MODEL_H

#include <stdbool.h>
#include <stddef.h>

enum { QN_DEMO_MODEL_PATH = 4096 };

/* qn_demo_model_find - the path of the demo model, into `path` of QN_DEMO_MODEL_PATH bytes: that of the source tree that the
 * program was built in, else that of the installation. False where there is none; `path` is then the last place looked at. */
bool qn_demo_model_find(char *path);

#endif
