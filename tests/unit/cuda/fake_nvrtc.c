/* A fake NVRTC: its "cubin" contains names, texts and options of the compilation, so that tests can check that all were
 * passed. Built as a separate shared library and loaded by name. With QN_FAKE_NVRTC=fails compilation fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct program {
    char text[4096];
};

int nvrtcVersion(int *major, int *minor);
const char *nvrtcGetErrorString(int code);
int nvrtcCreateProgram(struct program **p, const char *text, const char *name, int n_headers,
                       const char *const *headers, const char *const *names);
int nvrtcDestroyProgram(struct program **p);
int nvrtcCompileProgram(struct program *p, int n_options, const char *const *options);
int nvrtcGetProgramLogSize(struct program *p, size_t *bytes);
int nvrtcGetProgramLog(struct program *p, char *log);
int nvrtcGetCUBINSize(struct program *p, size_t *bytes);
int nvrtcGetCUBIN(struct program *p, char *cubin);

static const char complaint[] = "cuda/kernels/module/a.cu(1): error: requested by the test\nmore\n";

int nvrtcVersion(int *major, int *minor)
{
    *major = 99;
    *minor = 7;
    return 0;
}

const char *nvrtcGetErrorString(int code)
{
    (void)code;
    return "NVRTC_ERROR_FAKE";
}

static void append(struct program *p, const char *text)
{
    const size_t used = strlen(p->text), n = strlen(text);
    if (n + 2 > sizeof p->text - used)
        return;
    memcpy(p->text + used, text, n);
    memcpy(p->text + used + n, "|", 2);
}

int nvrtcCreateProgram(struct program **p, const char *text, const char *name, int n_headers,
                       const char *const *headers, const char *const *names)
{
    *p = calloc(1, sizeof **p);
    if (!*p)
        return 1;
    append(*p, "nvrtc");
    append(*p, name);
    append(*p, text);
    for (int i = 0; i < n_headers; i++) {
        append(*p, names[i]);
        append(*p, headers[i]);
    }
    return 0;
}

int nvrtcDestroyProgram(struct program **p)
{
    free(*p);
    *p = NULL;
    return 0;
}

int nvrtcCompileProgram(struct program *p, int n_options, const char *const *options)
{
    const char *mood = getenv("QN_FAKE_NVRTC");
    for (int i = 0; i < n_options; i++)
        append(p, options[i]);
    return mood && !strcmp(mood, "fails") ? 6 : 0;
}

int nvrtcGetProgramLogSize(struct program *p, size_t *bytes)
{
    (void)p;
    *bytes = sizeof complaint;
    return 0;
}

int nvrtcGetProgramLog(struct program *p, char *log)
{
    (void)p;
    memcpy(log, complaint, sizeof complaint);
    return 0;
}

int nvrtcGetCUBINSize(struct program *p, size_t *bytes)
{
    *bytes = 64 + strlen(p->text) + 1;
    return 0;
}

int nvrtcGetCUBIN(struct program *p, char *cubin)
{
    memset(cubin, 0, 64);
    memcpy(cubin, "\177ELF", 4);
    memcpy(cubin + 64, p->text, strlen(p->text) + 1);
    return 0;
}
