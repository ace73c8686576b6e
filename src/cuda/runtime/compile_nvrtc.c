/* Compiling with NVRTC, loaded on first use. Prototypes are those of the NVRTC reference manual (11.1 and later). */
#include "cuda/runtime/compile.h"

#include "base/library.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct _nvrtcProgram *program;

struct nvrtc {
    int (*nvrtcVersion)(int *major, int *minor);
    const char *(*nvrtcGetErrorString)(int code);
    int (*nvrtcCreateProgram)(program *p, const char *text, const char *name, int n_headers, const char *const *headers,
                              const char *const *names);
    int (*nvrtcDestroyProgram)(program *p);
    int (*nvrtcCompileProgram)(program p, int n_options, const char *const *options);
    int (*nvrtcGetProgramLogSize)(program p, size_t *bytes);
    int (*nvrtcGetProgramLog)(program p, char *log);
    int (*nvrtcGetCUBINSize)(program p, size_t *bytes);
    int (*nvrtcGetCUBIN)(program p, char *cubin);
};

static bool find(void *library, const char *name, void *member)
{
    void *function = qn_library_find(library, name);
    memcpy(member, &function, sizeof function);
    return function != NULL;
}

/* Loads NVRTC. The library is never unloaded, like the driver: threads that it has started may still run its code. */
static qn_status load(const char *library, struct nvrtc *n)
{
    void *handle = library ? qn_library_open(library) : NULL;
    for (size_t i = 0; !library && !handle && qn_library_nvrtc[i]; i++)
        handle = qn_library_open(qn_library_nvrtc[i]);
    if (!handle)
        return qn_fail(QN_ERR_UNSUPPORTED, "no NVRTC: %s%s cannot be loaded", library ? library : qn_library_nvrtc[0],
                       library ? "" : " and older ones");
    if (find(handle, "nvrtcVersion", &n->nvrtcVersion) &&
        find(handle, "nvrtcGetErrorString", &n->nvrtcGetErrorString) &&
        find(handle, "nvrtcCreateProgram", &n->nvrtcCreateProgram) &&
        find(handle, "nvrtcDestroyProgram", &n->nvrtcDestroyProgram) &&
        find(handle, "nvrtcCompileProgram", &n->nvrtcCompileProgram) &&
        find(handle, "nvrtcGetProgramLogSize", &n->nvrtcGetProgramLogSize) &&
        find(handle, "nvrtcGetProgramLog", &n->nvrtcGetProgramLog) &&
        find(handle, "nvrtcGetCUBINSize", &n->nvrtcGetCUBINSize) && find(handle, "nvrtcGetCUBIN", &n->nvrtcGetCUBIN))
        return QN_OK;
    return qn_fail(QN_ERR_UNSUPPORTED, "this NVRTC cannot produce cubins: 11.1 or later is needed");
}

static qn_status check(const struct nvrtc *n, int code, const char *call)
{
    return code ? qn_fail(QN_ERR_UNSUPPORTED, "%s: %s", call, n->nvrtcGetErrorString(code)) : QN_OK;
}

/* Fails with the first line of the compiler's log that contains "error", or with its first line. */
static qn_status fail_with_log(const struct nvrtc *n, program p, const char *arch)
{
    size_t bytes = 0;
    char *log = n->nvrtcGetProgramLogSize(p, &bytes) == 0 ? calloc(1, bytes + 1) : NULL;
    const char *line = "no log";
    if (log && n->nvrtcGetProgramLog(p, log) == 0) {
        char *error = strstr(log, "error");
        while (error && error > log && error[-1] != '\n')
            error--;
        line = error ? error : log;
        log[(size_t)(line - log) + strcspn(line, "\r\n")] = '\0';
    }
    const qn_status status = qn_fail(QN_ERR_UNSUPPORTED, "NVRTC failed for %s: %.300s", arch, line);
    free(log);
    return status;
}

static qn_status compile(const struct nvrtc *n, program p, const qn_gpu_unit *unit, const char *const *options,
                         size_t n_options, void **cubin, size_t *bytes)
{
    if (n->nvrtcCompileProgram(p, (int)n_options, options) != 0)
        return fail_with_log(n, p, unit->arch);
    QN_TRY(check(n, n->nvrtcGetCUBINSize(p, bytes), "nvrtcGetCUBINSize"));
    if (*bytes == 0)
        return qn_fail(QN_ERR_UNSUPPORTED, "NVRTC produced no cubin for %s", unit->arch);
    *cubin = malloc(*bytes);
    if (!*cubin)
        return qn_fail(QN_ERR_MEMORY, "no memory for a cubin of %zu bytes", *bytes);
    const qn_status status = check(n, n->nvrtcGetCUBIN(p, *cubin), "nvrtcGetCUBIN");
    if (status) {
        free(*cubin);
        *cubin = NULL;
    }
    return status;
}

static qn_status compile_with(const struct nvrtc *n, const qn_gpu_unit *unit, const char *const *options,
                              size_t n_options, void **cubin, size_t *bytes)
{
    const char *names[QN_GPU_MAX_FILES], *texts[QN_GPU_MAX_FILES];
    for (size_t i = 0; i < unit->n_files; i++) {
        names[i] = unit->files[i]->name;
        texts[i] = unit->files[i]->text; /* zero-terminated, as all texts of qn_gpu_code */
    }
    program p;
    QN_TRY(check(n, n->nvrtcCreateProgram(&p, texts[0], names[0], (int)unit->n_files - 1, texts + 1, names + 1),
                 "nvrtcCreateProgram"));
    const qn_status status = compile(n, p, unit, options, n_options, cubin, bytes);
    n->nvrtcDestroyProgram(&p);
    return status;
}

qn_status qn_nvrtc_compile(const char *library, const qn_gpu_unit *unit, void **cubin, size_t *bytes,
                           char compiler[QN_COMPILER_MAX])
{
    struct nvrtc n = { 0 };
    int major = 0, minor = 0;
    char arch[48], *defines = NULL;
    /* Without the last option, NVRTC 13.0 treats a generic lambda in a kernel as a host function and rejects it. */
    const char *options[QN_GPU_MAX_DEFINES + 3] = { arch, "--std=c++17", "--device-as-default-execution-space" };
    size_t n_defines;
    *cubin = NULL;
    QN_TRY(load(library, &n));
    QN_TRY(check(&n, n.nvrtcVersion(&major, &minor), "nvrtcVersion"));
    snprintf(compiler, QN_COMPILER_MAX, "NVRTC %d.%d", major, minor);
    if (strchr(unit->arch, '/'))
        return qn_fail(QN_ERR_UNSUPPORTED, "NVRTC compiles for one architecture, not for %s", unit->arch);
    snprintf(arch, sizeof arch, "--gpu-architecture=%s", unit->arch);
    qn_status status = qn_gpu_options(unit->defines, &defines, options + 3, QN_GPU_MAX_DEFINES, &n_defines);
    if (!status)
        status = compile_with(&n, unit, options, n_defines + 3, cubin, bytes);
    free(defines);
    return status;
}
