/* quern kernels: lists the GPU's pipelines, where their code came from and how long loading took; empties the cache of
 * compiled code. */
#include "cli/cli.h"

#include "cuda/runtime/pipeline.h"
#include "device/registry.h"

#include <stdlib.h>
#include <string.h>

static int clear_cache(void)
{
    char *folder, size[32];
    size_t n_files;
    uint64_t bytes;
    if (qn_cubin_folder(&folder))
        return qn_cli_fail();
    if (!folder) {
        puts("there is no cache: neither XDG_CACHE_HOME nor HOME is an absolute path");
        return QN_EXIT_DONE;
    }
    const qn_status status = qn_cubin_clear(folder, &n_files, &bytes);
    if (!status) {
        printf("%zu file%s, %s, removed from ", n_files, n_files == 1 ? "" : "s", qn_print_size(size, bytes));
        qn_print_escaped(stdout, folder, strlen(folder));
        putchar('\n');
    }
    free(folder);
    return status ? qn_cli_fail() : QN_EXIT_DONE;
}

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

/* Without a device: lists the code in this program. */
static int list_built_in(void)
{
    const qn_gpu_code *code = qn_gpu_code_built_in();
    char text[QN_DEVICE_TEXT_MAX];
    if (qn_device_describe(&(qn_device_name){ .kind = QN_DEVICE_CPU }, text))
        return qn_cli_fail();
    printf("device      %s: its kernels are part of the program\n\n", text);
    printf("kernels for NVIDIA GPUs in this program%s%s\n", *code->compiler ? ", by " : "", code->compiler);
    size_t width = 0;
    for (size_t i = 0; i < code->n_pipelines; i++)
        width = name_width(width, code->pipelines[i].source, code->pipelines[i].defines);
    print_name("kernels", "", width);
    puts("compiled for");
    for (size_t i = 0; i < code->n_pipelines; i++) {
        const qn_gpu_pipeline *p = &code->pipelines[i];
        bool any = false;
        print_name(p->source, p->defines, width);
        for (size_t c = 0; c < code->n_cubins; c++)
            if (!strcmp(code->cubins[c].source, p->source) && !strcmp(code->cubins[c].defines, p->defines)) {
                printf("%s%s", any ? " " : "", code->cubins[c].arch);
                any = true;
            }
        puts(any ? "" : "nothing: it is compiled when it is needed");
    }
    return QN_EXIT_DONE;
}

static void print_pipeline(const qn_pipeline_info *p, size_t width)
{
    char size[32];
    print_name(p->source, p->defines, width);
    if (p->failure)
        printf("%-9s unavailable: see below\n", qn_origin_name(p->origin));
    else
        printf("%-9s %-16s %12s %10.1f ms\n", qn_origin_name(p->origin), p->compiler, qn_print_size(size, p->bytes),
               p->seconds * 1e3);
}

static int list_device(qn_cuda *device)
{
    const char *folder = qn_cuda_cache_folder(device);
    char text[QN_DEVICE_TEXT_MAX];
    const qn_device_name name = { .kind = QN_DEVICE_CUDA, .ordinal = qn_cuda_get_info(device)->ordinal };
    if (qn_device_describe(&name, text))
        return qn_cli_fail();
    printf("device      %s\ncode for    %s\ncache       ", text, qn_cuda_arch(device));
    if (folder)
        qn_print_escaped(stdout, folder, strlen(folder));
    else
        printf("none: %s", qn_cuda_no_cache(device));
    fputs("\n\n", stdout);
    const double start = qn_seconds();
    const bool failed = qn_cuda_load_pipelines(device) != QN_OK;
    const double seconds = qn_seconds() - start;
    qn_pipeline_info p;
    size_t width = 0;
    for (size_t i = 0; qn_cuda_pipeline(device, i, &p); i++)
        width = name_width(width, p.source, p.defines);
    print_name("kernels", "", width);
    printf("%-9s %-16s %12s %13s\n", "from", "by", "size", "time");
    for (size_t i = 0; qn_cuda_pipeline(device, i, &p); i++)
        print_pipeline(&p, width);
    printf("\nall ready after %.1f ms\n", seconds * 1e3);
    for (size_t i = 0; qn_cuda_pipeline(device, i, &p); i++)
        if (p.failure)
            qn_cli_error("%s", p.failure);
    return failed ? QN_EXIT_FAILED : QN_EXIT_DONE;
}

static void print_note(void *unused, const char *line)
{
    (void)unused;
    qn_cli_error("note: %s", line);
}

/* For "auto" a missing device is no error. */
static int list_cuda(const qn_device_name *name)
{
    const qn_cuda_params params = { .ordinal = name->ordinal, .on_log = print_note };
    qn_cuda *device;
    const qn_status status = qn_cuda_open(&params, &device);
    if (status == QN_ERR_UNSUPPORTED && name->kind == QN_DEVICE_AUTO)
        return list_built_in();
    if (status) {
        qn_cli_error("%s %s: %s", name->source, name->text, qn_error_text());
        return QN_EXIT_FAILED;
    }
    const int result = list_device(device);
    qn_cuda_close(device);
    return result;
}

int qn_cli_kernels(qn_args *args)
{
    qn_device_name name;
    if (qn_device_name_select(args->device, &name)) {
        qn_cli_error("%s", qn_error_text());
        return QN_EXIT_USAGE;
    }
    if (args->clear)
        return clear_cache();
    switch (name.kind) {
    case QN_DEVICE_CPU: return list_built_in();
    case QN_DEVICE_CUDA:
    case QN_DEVICE_AUTO: break;
    }
    return list_cuda(&name);
}
