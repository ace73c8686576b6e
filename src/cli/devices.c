/* quern devices: the devices of this machine that --device can name, and why a backend has none. */
#include "cli/cli.h"

#include "device/registry.h"

/* Prints a line for each device of a backend; if there is none, the reason. */
static bool print_backend(const qn_backend *backend)
{
    char text[QN_DEVICE_TEXT_MAX];
    int n;
    if (backend->count(&n)) {
        printf("%s: %s\n", backend->name, qn_error_text());
        return qn_out_flush();
    }
    for (int i = 0; i < n; i++) {
        if (backend->describe(i, text))
            printf("%s:%d: %s\n", backend->name, i, qn_error_text());
        else
            puts(text);
    }
    return qn_out_flush();
}

int qn_cli_devices(qn_args *args)
{
    const qn_backend *backend;
    (void)args;
    for (size_t i = 0; (backend = qn_device_backend(i)); i++)
        if (!print_backend(backend))
            return QN_EXIT_FAILED;
    return QN_EXIT_DONE;
}
