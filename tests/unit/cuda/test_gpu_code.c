/* The kernel sources embedded in the binary are complete, and the installed compilers, if any, compile them as on a
 * user's machine. */
#include "helper_assert.h"

#include "cuda/runtime/code.h"
#include "cuda/runtime/compile.h"

/* Every pipeline can be compiled from the embedded files alone: every file that they include is embedded too, except in
 * host-only parts, which follow a line "#ifndef __CUDACC__" or "#else". */
TEST(test_carried)
{
    const qn_gpu_code *code = qn_gpu_code_built_in();
    assert_true(code->n_pipelines > 0);
    for (size_t i = 0; i < code->n_pipelines; i++) {
        label("%s", code->pipelines[i].source);
        const qn_gpu_file *list[QN_GPU_MAX_FILES];
        size_t n;
        assert_ok(qn_gpu_code_files(code, code->pipelines[i].source, list, &n));
        for (size_t f = 0; f < n; f++) {
            char text[1 << 17];
            assert_true(qn_gpu_file_bytes(list[f]) < sizeof text);
            memcpy(text, list[f]->text, qn_gpu_file_bytes(list[f]) + 1);
            char *c_side = strstr(text, "#ifndef __CUDACC__"), *other = strstr(text, "#else");
            if (other && (!c_side || other < c_side))
                c_side = other;
            if (c_side)
                *c_side = '\0';
            for (char *at = text; (at = strstr(at, "#include \"")) != NULL;) {
                at += strlen("#include \"");
                bool there = false;
                for (size_t g = 0; g < n; g++)
                    there |= !strncmp(list[g]->name, at, strlen(list[g]->name)) && at[strlen(list[g]->name)] == '"';
                if (!there)
                    fail_msg("%s includes %.*s, which is not embedded in the binary", list[f]->name,
                             (int)strcspn(at, "\""), at);
            }
        }
    }
}

/* An embedded source, compiled for every architecture by nvcc and NVRTC. */
TEST(test_real_compilers)
{
    static const char *const archs[] = { "sm_80", "sm_86", "sm_89", "sm_90a", "sm_100", "sm_120" };
    const qn_gpu_code *code = qn_gpu_code_built_in();
    const qn_gpu_file *list[QN_GPU_MAX_FILES];
    qn_gpu_unit unit = { .files = list, .defines = "" };
    char compiler[QN_COMPILER_MAX], *real;
    void *cubin;
    size_t bytes;
    unsigned made = 0;
    assert_ok(qn_gpu_code_files(code, "peak/peak.cu", list, &unit.n_files));
    assert_ok(qn_nvcc_find(&real));
    for (size_t i = 0; i < COUNT(archs); i++) {
        unit.arch = archs[i];
        if (real && qn_nvcc_compile(real, 300, &unit, &cubin, &bytes, compiler) == QN_OK) {
            assert_memory_equal(cubin, "\177ELF", 4);
            assert_memory_equal(compiler, "nvcc ", 5);
            assert_memory_not_equal(compiler, "nvcc unknown", 12);
            free(cubin);
            made++;
        } else if (real && !strstr(qn_error_text(), "Unsupported gpu architecture")) {
            fail_msg("%s", qn_error_text());
        }
        if (qn_nvrtc_compile(NULL, &unit, &cubin, &bytes, compiler) == QN_OK) {
            assert_memory_equal(cubin, "\177ELF", 4);
            assert_memory_equal(compiler, "NVRTC ", 6);
            free(cubin);
            made++;
        } else if (!strstr(qn_error_text(), "no NVRTC") && !strstr(qn_error_text(), "--gpu-architecture")) {
            fail_msg("%s", qn_error_text());
        }
    }
    free(real);
    if (!made)
        skip();
}

/* The first pipeline of every source, compiled with NVRTC, which rejects some code that nvcc accepts. */
TEST(test_nvrtc)
{
    const qn_gpu_code *code = qn_gpu_code_built_in();
    for (size_t i = 0; i < code->n_pipelines; i++) {
        const qn_gpu_pipeline *p = &code->pipelines[i];
        const qn_gpu_file *list[QN_GPU_MAX_FILES];
        qn_gpu_unit unit = { .files = list, .defines = p->defines, .arch = "sm_90a" };
        char compiler[QN_COMPILER_MAX];
        void *cubin;
        size_t bytes;
        if (i > 0 && !strcmp(p->source, code->pipelines[i - 1].source))
            continue;
        assert_ok(qn_gpu_code_files(code, p->source, list, &unit.n_files));
        if (qn_nvrtc_compile(NULL, &unit, &cubin, &bytes, compiler) != QN_OK) {
            if (strstr(qn_error_text(), "no NVRTC") || strstr(qn_error_text(), "--gpu-architecture"))
                skip();
            fail_msg("%s %s: %s", p->source, p->defines, qn_error_text());
        }
        assert_memory_equal(cubin, "\177ELF", 4);
        free(cubin);
    }
}
