/* Finds the demo model relative to the running program: an installation may have been moved as a whole, and a build
 * uses the model of its source tree. */
#include "cli/demo_model.h"

#include "base/append.h"
#include "base/file.h"
#include "base/program.h"

#include <stdio.h>

#define NAME "quern-demo.gguf"

bool qn_demo_model_find(char *path)
{
    static const char *const beside[] = { "../models/" NAME, "../share/quern/" NAME };
    char program[QN_DEMO_MODEL_PATH];
    const bool is_known = qn_program_path(program, sizeof program);
    const int folder = is_known ? (int)(qn_file_name(program) - program) : 0;
    for (size_t i = 0; folder && i < sizeof beside / sizeof *beside; i++) {
        if (qn_print(path, QN_DEMO_MODEL_PATH, "%.*s%s", folder, program, beside[i]) && qn_file_is_readable(path))
            return true;
    }
    snprintf(path, QN_DEMO_MODEL_PATH, "%s", QN_DATA_DIR "/" NAME);
    return qn_file_is_readable(path);
}
