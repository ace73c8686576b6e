/* The path of the demo model, which run and chat load if no model is named. */
#ifndef QN_CLI_DEMO_MODEL_H
#define QN_CLI_DEMO_MODEL_H

#include <stdbool.h>
#include <stddef.h>

enum { QN_DEMO_MODEL_PATH = 4096 };

/* qn_demo_model_find - write the path of the demo model into `path` of QN_DEMO_MODEL_PATH bytes: that in the source
 * tree the program was built from, else that of the installation. False: there is none; `path` is the last place looked
 * at. */
bool qn_demo_model_find(char *path);

#endif
