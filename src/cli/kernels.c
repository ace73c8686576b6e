/* quern kernels: lists the kernels that are compiled for a device, where their code came from and how long that took;
 * empties the cache of compiled code. */
#include "cli/cli.h"

#include "base/append.h"
#include "base/cpu.h"
#include "base/topology.h"
#include "device/registry.h"

#include <stdlib.h>
#include <string.h>

/* ---- The cache ---- */

static qn_status clear_cache(const qn_backend_kernels *kernels)
{
    char *folder, size[32];
    size_t n_files;
    uint64_t bytes;
    QN_TRY(kernels->clear_cache(&folder, &n_files, &bytes));
    if (!folder) {
        puts("there is no cache: neither XDG_CACHE_HOME nor HOME is an absolute path");
        return QN_OK;
    }
    printf("%zu file%s, %s, removed from ", n_files, n_files == 1 ? "" : "s", qn_print_size(size, bytes));
    qn_print_escaped(stdout, folder, strlen(folder));
    putchar('\n');
    free(folder);
    return QN_OK;
}

static int clear_caches(void)
{
    const qn_backend *backend;
    for (size_t i = 0; (backend = qn_device_backend(i)); i++)
        if (backend->kernels && clear_cache(backend->kernels))
            return qn_cli_fail();
    return QN_EXIT_DONE;
}

/* ---- Lists ---- */

/* Prints source and definitions, padded to the longest name. */
static void print_name(const char *source, const char *defines, size_t width)
{
    const int length = printf("%s%s%s", source, *defines ? " " : "", defines);
    printf("%*s  ", length > 0 && (size_t)length < width ? (int)(width - (size_t)length) : 0, "");
}

static size_t name_width(size_t widest, const char *source, const char *defines)
{
    const size_t length = strlen(source) + (*defines ? 1 : 0) + strlen(defines);
    return length > widest ? length : widest;
}

static void print_built_in(const qn_backend_kernels *kernels)
{
    const char *compiler = kernels->compiler();
    qn_built_in_kernel k;
    size_t width = 0;
    printf("\nkernels for %s in this program%s%s\n", kernels->devices, *compiler ? ", by " : "", compiler);
    for (size_t i = 0; kernels->built_in(i, &k); i++)
        width = name_width(width, k.source, k.defines);
    print_name("kernels", "", width);
    puts("compiled for");
    for (size_t i = 0; kernels->built_in(i, &k); i++) {
        print_name(k.source, k.defines, width);
        puts(*k.built_for ? k.built_for : "nothing: it is compiled when it is needed");
    }
}

/* Prints the processors that the process may use, and the number of threads without -t. */
static void print_processors(void)
{
    qn_topology topology;
    char text[256], quota_text[64] = "";
    const double quota = qn_cpu_quota();
    const int n = qn_cpu_best_threads();
    qn_topology_read("", &topology);
    qn_topology_print(&topology, text, sizeof text);
    if (quota > 0)
        (void)qn_print(quota_text, sizeof quota_text, "; a quota of %.3g processors", quota);
    printf("processors  %s%s; -t auto is %d thread%s\n", text, quota_text, n, n == 1 ? "" : "s");
}

/* Lists the code in this program, for a device without kernels that are compiled for it; `auto` is the CPU here. */
static int list_built_in(const qn_device_name *name)
{
    const qn_backend *backend;
    qn_device_name device = *name;
    char text[QN_DEVICE_TEXT_MAX];
    if ((!device.backend && qn_device_name_parse("--device", "cpu", &device)) || qn_device_describe(&device, text))
        return qn_cli_fail();
    printf("device      %s: its kernels are part of the program\n", text);
    print_processors();
    for (size_t i = 0; (backend = qn_device_backend(i)); i++)
        if (backend->kernels)
            print_built_in(backend->kernels);
    return QN_EXIT_DONE;
}

static void print_loaded(const qn_loaded_kernel *k, size_t width)
{
    char size[32];
    print_name(k->source, k->defines, width);
    if (k->failure)
        printf("%-9s unavailable: see below\n", k->origin);
    else
        printf("%-9s %-16s %12s %10.1f ms\n", k->origin, k->compiler, qn_print_size(size, k->bytes), k->seconds * 1e3);
}

static int list_device(const qn_backend_kernels *of, qn_device_kernels *device, const qn_device_name *name)
{
    const char *why_none, *folder = of->cache_folder(device, &why_none);
    char text[QN_DEVICE_TEXT_MAX];
    if (qn_device_describe(name, text))
        return qn_cli_fail();
    printf("device      %s\ncode for    %s\ncache       ", text, of->arch(device));
    if (folder)
        qn_print_escaped(stdout, folder, strlen(folder));
    else
        printf("none: %s", why_none);
    fputs("\n\n", stdout);
    const double start = qn_seconds();
    const bool failed = of->load(device) != QN_OK;
    const double seconds = qn_seconds() - start;
    qn_loaded_kernel k;
    size_t width = 0;
    for (size_t i = 0; of->loaded(device, i, &k); i++)
        width = name_width(width, k.source, k.defines);
    print_name("kernels", "", width);
    printf("%-9s %-16s %12s %13s\n", "from", "by", "size", "time");
    for (size_t i = 0; of->loaded(device, i, &k); i++)
        print_loaded(&k, width);
    printf("\nall ready after %.1f ms\n", seconds * 1e3);
    for (size_t i = 0; of->loaded(device, i, &k); i++)
        if (k.failure)
            qn_cli_error("%s", k.failure);
    return failed ? QN_EXIT_FAILED : QN_EXIT_DONE;
}

/* ---- The command ---- */

static void print_note(void *unused, const char *line)
{
    (void)unused;
    qn_cli_error("note: %s", line);
}

static int fail(const qn_device_name *name)
{
    qn_cli_error("%s %s: %s", name->source, name->text, qn_error_text());
    return QN_EXIT_FAILED;
}

/* Lists the kernels of a device. QN_ERR_UNSUPPORTED, and nothing printed, if it is not there; else the exit status in
 * *result. */
static qn_status list_if_present(const qn_device_name *name, int *result)
{
    const qn_backend_kernels *of = name->backend->kernels;
    qn_device_kernels *device;
    int count;
    QN_TRY(qn_device_count(name, &count)); /* of a backend that this build lacks: an error */
    QN_TRY(of->open(name->ordinal, print_note, NULL, &device));
    *result = list_device(of, device, name);
    of->close(device);
    return QN_OK;
}

/* Lists the kernels of the first device that is there. */
static int list_auto(const qn_device_name *name)
{
    qn_device_name one = *name;
    int result;
    for (size_t i = 0; (one.backend = qn_device_backend(i)); i++) {
        const qn_status status = one.backend->kernels ? list_if_present(&one, &result) : QN_ERR_UNSUPPORTED;
        if (status == QN_OK)
            return result;
        if (status != QN_ERR_UNSUPPORTED)
            return fail(name);
    }
    return list_built_in(name);
}

int qn_cli_kernels(qn_args *args)
{
    qn_device_name name;
    int result;
    if (qn_device_name_select(args->device, &name)) {
        qn_cli_error("%s", qn_error_text());
        return QN_EXIT_USAGE;
    }
    if (args->clear)
        return clear_caches();
    if (!name.backend)
        return list_auto(&name);
    if (!name.backend->kernels && qn_device_count(&name, &result) == QN_OK)
        return list_built_in(&name);
    return list_if_present(&name, &result) ? fail(&name) : result;
}
