/* Finds the demo model relative to the running program: an installation may have been moved as a whole, and a build
 * uses the model of its source tree. */
#include "cli/demo_model.h"

#include "base/append.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define NAME "quern-demo.gguf"

bool qn_demo_model_find(char *path)
{
    static const char *const beside[] = { "/../models/" NAME, "/../share/quern/" NAME };
    char program[QN_DEMO_MODEL_PATH];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program);
    const char *slash = length > 0 && (size_t)length < sizeof program ? memrchr(program, '/', (size_t)length) : NULL;
    for (size_t i = 0; slash && i < sizeof beside / sizeof *beside; i++) {
        if (qn_print(path, QN_DEMO_MODEL_PATH, "%.*s%s", (int)(slash - program), program, beside[i]) &&
            access(path, R_OK) == 0)
            return true;
    }
    snprintf(path, QN_DEMO_MODEL_PATH, "%s", QN_DATA_DIR "/" NAME);
    return access(path, R_OK) == 0;
}
